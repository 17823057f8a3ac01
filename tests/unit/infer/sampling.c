/* infer/sample.h and tensor/token_sampler.h: temperature, top-k and top-p filters, sampling, option checks. */
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "infer/sample.h"
#include "reference.h"
#include "tensor/token_sampler.h"

static const struct meg_sampling plain = { .temperature = 1, .seed = 1234 };

/* Return a sampler for v logits, of which the first n may be sampled; free s.p with free. */
static struct meg_token_sampler sampler(int64_t v, int64_t n)
{
    return meg_token_sampler_of(v, n, meg_new(meg_token_sampler_nbytes(n)));
}

static void keep(struct meg_token_sampler *s, struct meg_sampling conf, const float *logits, int64_t v)
{
    const struct meg_sampling_args args = meg_sampling_args_of(&conf, 0, 0);
    struct meg_err e;

    assert_int_equal(meg_sampling_check(&conf, v, &e), MEG_OK);
    *s = sampler(v, v);
    meg_token_sampler_filter(s, &args, logits);
}

/* Return the token that conf samples, and store its log-probability unless logprob is NULL. */
static int32_t sample(struct meg_token_sampler *s, const struct meg_sampling *conf, const float *logits, int64_t prompt,
                      int64_t step, double *logprob)
{
    const struct meg_sampling_args args = meg_sampling_args_of(conf, prompt, step);
    const struct meg_sampled_token token = meg_sample_token(s, &args, logits, logprob != NULL);

    assert_true(isnan(token.logprob) == (token.id < 0 || !logprob));
    if (logprob && token.id >= 0)
        *logprob = token.logprob;
    return token.id;
}

static void temperature_divides_the_logits(void **state)
{
    const float logits[3] = { 0, logf(4), 0 };
    struct meg_sampling conf = plain;
    struct meg_token_sampler s;

    (void)state;
    conf.temperature = 2; /* weights 1 : sqrt(4) : 1 */
    keep(&s, conf, logits, 3);
    assert_int_equal(s.n, 3);
    assert_true(fabs(s.p[0] - 0.25) < 1e-7 && fabs(s.p[1] - 0.5) < 1e-7 && fabs(s.p[2] - 0.25) < 1e-7);
    free(s.p);
}

static void top_k_keeps_ties_with_the_kth(void **state)
{
    const float logits[6] = { 1, 0, 2, 1, 1, -1 };
    struct meg_sampling conf = plain;
    struct meg_token_sampler s;

    (void)state;
    conf.top_k = 2;
    keep(&s, conf, logits, 6);
    assert_int_equal(s.n, 4);
    assert_int_equal(s.id[0], 2);
    assert_int_equal(s.id[1], 0);
    assert_int_equal(s.id[2], 3);
    assert_int_equal(s.id[3], 4);
    free(s.p);
}

static void top_p_keeps_the_token_that_crosses_it(void **state)
{
    const float logits[4] = { logf(.1f), logf(.3f), logf(.5f), logf(.1f) };
    const double p[] = { .0001, .4, .6, .85, .95, 1 };
    const int64_t n[] = { 1, 1, 2, 3, 4, 4 };
    struct meg_sampling conf = plain;
    struct meg_token_sampler s;

    (void)state;
    for (int i = 0; i < 6; i++) {
        conf.top_p = p[i];
        keep(&s, conf, logits, 4);
        assert_int_equal(s.n, n[i]);
        free(s.p);
    }
    conf.top_p = .85; /* on a tie, the lower id is kept */
    keep(&s, conf, logits, 4);
    assert_int_equal(s.id[2], 0);
    assert_true(fabs(s.p[0] - .5 / .9) < 1e-6);
    free(s.p);
}

/* Megatron drops a token if the sum of the probabilities before it exceeds top_p, but not if it equals top_p. */
static void top_p_keeps_the_token_after_a_sum_equal_to_it(void **state)
{
    const float logits[4] = { 0, 0, 0, 0 }; /* four times 1/4, exactly */
    struct meg_sampling conf = plain;
    struct meg_token_sampler s;

    (void)state;
    for (int i = 1; i < 4; i++) {
        conf.top_p = i / 4.;
        keep(&s, conf, logits, 4);
        assert_int_equal(s.n, i + 1);
        free(s.p);
    }
}

static void greedy_takes_the_lowest_id_on_ties(void **state)
{
    const float logits[5] = { -1, 3, 0, 3, 2 };
    struct meg_sampling conf = plain;
    struct meg_token_sampler s;
    struct meg_err e;
    double logprob;

    (void)state;
    conf.top_k = 1;
    assert_int_equal(meg_sampling_check(&conf, 5, &e), MEG_OK);
    assert_true(meg_sampling_is_greedy(&conf));
    s = sampler(5, 5);
    assert_int_equal(sample(&s, &conf, logits, 0, 0, &logprob), 1);
    assert_true(fabs(logprob + log(2 + exp(-4) + exp(-3) + exp(-1))) < 1e-12);
    free(s.p);
}

/* The search for the largest logit is vectorized; compare it with a plain loop. */
static void the_most_likely_id_is_the_lowest_with_the_largest_logit(void **state)
{
    enum { SIZES = 1300 };
    float logits[SIZES];

    (void)state;
    for (int32_t v = 1; v <= SIZES; v++) {
        int32_t best = 0;

        /* few values, so that many are equal; 0 has both signs */
        for (int32_t i = 0; i < v; i++) {
            const int x = (int)((uint32_t)(v * 7919 + i) * 2654435761u >> 20) % (v % 50 + 1);

            logits[i] = v % 3 == 0 && x == 0 ? -INFINITY : i % 2 ? -(float)x : (float)-x;
        }
        for (int32_t i = 1; i < v; i++)
            best = logits[i] > logits[best] ? i : best;
        assert_int_equal(meg_most_likely(logits, v), best);
    }
    for (int32_t i = 0; i < SIZES; i++)
        logits[i] = -INFINITY;
    assert_int_equal(meg_most_likely(logits, SIZES), 0);
}

static void top_logprobs_are_in_descending_order(void **state)
{
    const float logits[6] = { 1, 0.1f, 2, 1, 1.5f, -1 };
    const double lse = meg_logsumexp(logits, 6);
    const int32_t want[6] = { 2, 4, 0, 3, 1, 5 };
    struct meg_token_logprob top[6];
    int32_t heap[6];

    (void)state;
    for (int32_t id = 0; id < 6; id++) {
        const float own = (float)(logits[id] - lse);

        for (int64_t n = 0; n <= 6; n++) {
            meg_top_logprobs(top, n, logits, 6, id, own, heap);
            for (int64_t i = 0; i < n; i++) {
                assert_int_equal(top[i].id, want[i]);
                assert_true(fabs(top[i].logprob - (logits[want[i]] - lse)) < 1e-6);
                if (logits[want[i]] == logits[id])
                    assert_true(top[i].logprob == own);
            }
        }
    }
}

/* u was computed by a Philox4x32-10 in Python; with 16 equal weights the id is ceil(16 u) - 1. */
static void samples_are_a_function_of_seed_prompt_and_step(void **state)
{
    static const struct {
        int64_t seed, prompt, step;
        int32_t id;
    } want[] = {
        { 1234, 0, 0, 1 },             /* u = 0.09979715418189705 */
        { 1234, 0, 1, 6 },             /* 0.423954218012063 */
        { 1234, 1, 0, 15 },            /* 0.9619164366288904 */
        { 7, INT64_C(1) << 33, 5, 3 }, /* 0.2195527714339982 */
        { 0, 3, 2, 12 },               /* 0.7989593267423281 */
        { 4294967295, 2, 9, 4 },       /* 0.27010798313969786 */
    };
    const float logits[16] = { 0 };
    double logprob;

    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct meg_sampling conf = plain;
        struct meg_token_sampler s;
        conf.seed = want[i].seed;
        s = sampler(16, 16);
        assert_int_equal(sample(&s, &conf, logits, want[i].prompt, want[i].step, &logprob), want[i].id);
        assert_true(fabs(logprob + log(16)) < 1e-12);
        free(s.p);
    }
}

/* Counts of 100,000 samples are within five standard deviations of n p, for the softmax and both filters. */
static void samples_follow_the_distribution(void **state)
{
    enum { V = 8, N = 100000 };
    const float logits[V] = { 1.5f, -2, .3f, .9f, -INFINITY, 1.1f, -.4f, 0 };
    struct meg_sampling conf[3] = { plain, plain, plain };

    (void)state;
    conf[1].top_k = 3;
    conf[2].top_p = .8;
    conf[2].temperature = 1.7;
    for (int k = 0; k < 3; k++) {
        struct meg_token_sampler s;
        double p[V] = { 0 }, sum = 0, logprob;
        int64_t count[V] = { 0 };
        keep(&s, conf[k], logits, V);
        for (int64_t i = 0; i < s.n; i++)
            sum += p[s.id[i]] = s.p[i];
        assert_true(fabs(sum - 1) < 1e-12);
        for (int64_t i = 0; i < N; i++)
            count[sample(&s, &conf[k], logits, i, 3, &logprob)]++;
        for (int i = 0; i < V; i++) {
            double sd = sqrt(N * p[i] * (1 - p[i]));
            if (p[i] == 0)
                assert_int_equal(count[i], 0);
            else
                assert_true(fabs((double)count[i] - N * p[i]) < 5 * sd);
        }
        free(s.p);
    }
}

static void invalid_options_are_rejected(void **state)
{
    static const struct meg_sampling bad[] = {
        { .temperature = -1 },
        { .temperature = NAN },
        { .temperature = 101 },
        { .temperature = 1, .top_k = -1 },
        { .temperature = 1, .top_k = 11 },
        { .temperature = 1, .top_p = 1.5 },
        { .temperature = 1, .top_p = NAN },
        { .temperature = 1, .top_p = .5, .top_k = 5 },
        { .temperature = 1, .top_p = .5, .top_k = 1 },
        { .temperature = 1, .top_p = .5, .greedy = true },
        { .temperature = 1, .seed = -2 },
        { .temperature = 1, .seed = INT64_C(1) << 32 },
    };
    struct meg_sampling c = { .temperature = 1, .seed = -1 };
    struct meg_err e;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct meg_sampling conf = bad[i];
        assert_int_equal(meg_sampling_check(&conf, 10, &e), MEG_EUSAGE);
    }
    assert_int_equal(meg_sampling_check(&c, 10, &e), MEG_OK);
    assert_true(c.seed >= 0);
}

/* golden/schedules/sampling.json: ids kept and their probabilities, from Megatron's own functions. */
static void equals_megatron(void **state)
{
    json_t *root, *x;
    size_t i;

    (void)state;
    assert_non_null(root = json_load_file(golden("schedules/sampling.json"), 0, NULL));
    assert_true(json_array_size(root) > 0);
    json_array_foreach(root, i, x)
    {
        const json_t *in = json_object_get(x, "logits"), *kept = json_object_get(x, "kept");
        const json_t *p = json_object_get(x, "probs");
        int64_t v = (int64_t)json_array_size(in), n = 0;
        struct meg_sampling conf = plain;
        struct meg_token_sampler s;
        float logits[64];
        bool is_kept[64] = { false };
        assert_in_range(v, 1, 64);
        for (int64_t j = 0; j < v; j++)
            logits[j] = (float)json_number_value(json_array_get(in, (size_t)j));
        conf.temperature = json_number_value(json_object_get(x, "temperature"));
        conf.top_k = json_integer_value(json_object_get(x, "top_k"));
        conf.top_p = json_number_value(json_object_get(x, "top_p"));
        keep(&s, conf, logits, v);
        for (int64_t j = 0; j < s.n; j++) {
            is_kept[s.id[j]] = true;
            assert_true(fabs(s.p[j] - json_number_value(json_array_get(p, (size_t)s.id[j]))) < 1e-6);
        }
        for (size_t j = 0; j < json_array_size(kept); j++, n++)
            assert_true(is_kept[json_integer_value(json_array_get(kept, j))]);
        assert_int_equal(s.n, n);
        free(s.p);
    }
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(temperature_divides_the_logits),
        cmocka_unit_test(top_k_keeps_ties_with_the_kth),
        cmocka_unit_test(top_p_keeps_the_token_that_crosses_it),
        cmocka_unit_test(top_p_keeps_the_token_after_a_sum_equal_to_it),
        cmocka_unit_test(greedy_takes_the_lowest_id_on_ties),
        cmocka_unit_test(the_most_likely_id_is_the_lowest_with_the_largest_logit),
        cmocka_unit_test(top_logprobs_are_in_descending_order),
        cmocka_unit_test(samples_are_a_function_of_seed_prompt_and_step),
        cmocka_unit_test(samples_follow_the_distribution),
        cmocka_unit_test(invalid_options_are_rejected),
        cmocka_unit_test(equals_megatron),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
