/*
 * infer/generate.h: compare generation with forward passes over full sequences, for a small model with random weights.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <omp.h>

#include "base/mem.h"
#include "cpu/cpu.h"
#include "eval/score.h"
#include "infer/generate.h"
#include "tiny_gpt.h"

enum { V = 61, POSITIONS = 24, PROMPTS = 7 };

static struct meg_model *g;

/* Weights of standard deviation 0.3 result in distributions that are far from uniform. */
static int setup(void **state)
{
    const struct meg_model_conf conf = tiny_gpt(2, 32, 128, 4, POSITIONS, V);
    const struct meg_model_run run = { .s = POSITIONS, .b = 1 };
    struct meg_err e;

    (void)state;
    if (meg_model_create(&g, &conf, &run, meg_device_cpu(), &meg_mesh_one, &e) < 0)
        return -1;
    meg_model_init(g, 42);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    meg_model_close(g);
    return 0;
}

/* Write prompt i to ids, and return its number of tokens, 1 + 3 i; the last prompt uses 19 of the 24 positions. */
static int64_t prompt(int32_t *ids, int64_t i)
{
    int64_t n = 1 + 3 * i;

    for (int64_t j = 0; j < n; j++)
        ids[j] = (int32_t)((7 * j + 11 * i + j * j) % V);
    return n;
}

static void generate(struct meg_continuation *c, struct meg_sampling conf, int64_t max_new, int32_t eod, int64_t slots)
{
    const struct meg_ids ends = { .v = &eod, .n = eod >= 0 };
    static struct meg_request request;
    struct meg_generator *gen;
    int32_t ids[POSITIONS];
    struct meg_err e;

    memset(c, 0, PROMPTS * sizeof *c);
    assert_int_equal(meg_sampling_check(&conf, V, &e), MEG_OK);
    request = (struct meg_request){ .max_tokens = max_new, .sampling = conf };
    gen = meg_generator_open(g, V, &ends, slots, true, 0);
    for (int64_t i = 0; i < PROMPTS; i++) {
        int64_t n = prompt(ids, i);
        while (!meg_generator_has_free_slot(gen))
            assert_int_equal(meg_generator_step(gen, &e), MEG_OK);
        c[i].prompt = i;
        c[i].request = &request;
        assert_int_equal(meg_generator_add(gen, ids, n, &c[i], &e), MEG_OK);
    }
    while (meg_generator_active(gen) > 0)
        assert_int_equal(meg_generator_step(gen, &e), MEG_OK);
    meg_generator_close(gen);
}

static void release(struct meg_continuation *c)
{
    for (int i = 0; i < PROMPTS; i++)
        meg_continuation_free(&c[i]);
}

static const struct meg_sampling greedy = { .greedy = true, .temperature = 1 };
static const struct meg_sampling drawn = { .temperature = 1.2, .seed = 99 };

/*
 * Decoding with the KV cache up to the last position computes the log-probabilities of a forward pass over prompt and
 * continuation.
 */
static void decoding_equals_a_forward_pass_over_the_full_sequence(void **state)
{
    struct meg_continuation c[PROMPTS];
    struct meg_scorer s;
    struct meg_err e;

    (void)state;
    generate(c, drawn, 100, -1, 3);
    meg_scorer_init(&s, g);
    for (int64_t i = 0; i < PROMPTS; i++) {
        int32_t ids[POSITIONS];
        float logprob[POSITIONS];
        int64_t n = prompt(ids, i);
        assert_int_equal(c[i].finish, MEG_FINISH_LENGTH);
        assert_int_equal(n + c[i].n, POSITIONS);
        memcpy(ids + n, c[i].ids, (size_t)c[i].n * sizeof *ids);
        assert_int_equal(meg_score(&s, ids, POSITIONS, logprob, &e), MEG_OK);
        for (int64_t t = 0; t < c[i].n; t++)
            assert_true(fabs(logprob[n - 1 + t] - c[i].logprob[t]) < 2e-5);
    }
    meg_scorer_free(&s);
    release(c);
}

static void greedy_takes_the_largest_logit(void **state)
{
    static float logits[POSITIONS * V];
    struct meg_continuation c[PROMPTS];
    int32_t position[POSITIONS];

    (void)state;
    for (int32_t t = 0; t < POSITIONS; t++)
        position[t] = t;
    generate(c, greedy, 100, -1, 4);
    for (int64_t i = 0; i < PROMPTS; i++) {
        int32_t ids[POSITIONS];
        int64_t n = prompt(ids, i);
        memcpy(ids + n, c[i].ids, (size_t)c[i].n * sizeof *ids);
        meg_model_logits(g, &(struct meg_batch){ .s = POSITIONS, .b = 1, .tokens = ids, .position_ids = position },
                         logits);
        for (int64_t t = n; t < POSITIONS; t++)
            for (int32_t k = 0; k < V; k++)
                assert_true(logits[(t - 1) * V + k] <= logits[(t - 1) * V + ids[t]] + 1e-4f);
    }
    release(c);
}

/* Continuations are bit-identical for each number of slots, and thus in different batches and steps. */
static void a_prompt_does_not_depend_on_its_batch(void **state)
{
    const int64_t slots[] = { 2, 3, 7, 20 };
    struct meg_continuation alone[PROMPTS], c[PROMPTS];

    (void)state;
    for (int k = 0; k < 2; k++) {
        generate(alone, k ? drawn : greedy, 15, 5, 1);
        for (int j = 0; j < 4; j++) {
            generate(c, k ? drawn : greedy, 15, 5, slots[j]);
            for (int i = 0; i < PROMPTS; i++) {
                assert_int_equal(c[i].n, alone[i].n);
                assert_int_equal(c[i].finish, alone[i].finish);
                if (c[i].n > 0) {
                    assert_memory_equal(c[i].ids, alone[i].ids, (size_t)c[i].n * sizeof *c[i].ids);
                    assert_memory_equal(c[i].logprob, alone[i].logprob, (size_t)c[i].n * sizeof *c[i].logprob);
                }
            }
            release(c);
        }
        release(alone);
    }
}

/* With more slots than threads, a thread samples several sequences with the same arrays. */
static void the_number_of_threads_does_not_matter(void **state)
{
    const struct meg_sampling conf = { .temperature = 1.5, .top_p = 0.9, .seed = 7 };
    const int most = omp_get_max_threads();
    struct meg_continuation c[2][PROMPTS];

    (void)state;
    for (int i = 0; i < 2; i++) {
        omp_set_num_threads(i ? 4 : 1);
        generate(c[i], conf, 5, -1, 5);
    }
    omp_set_num_threads(most);
    for (int i = 0; i < PROMPTS; i++) {
        assert_int_equal(c[0][i].n, c[1][i].n);
        assert_memory_equal(c[0][i].ids, c[1][i].ids, (size_t)c[0][i].n * sizeof *c[0][i].ids);
        assert_memory_equal(c[0][i].logprob, c[1][i].logprob, (size_t)c[0][i].n * sizeof *c[0][i].logprob);
    }
    release(c[0]);
    release(c[1]);
}

static void eod_ends_a_continuation_and_is_not_among_its_ids(void **state)
{
    struct meg_continuation full[PROMPTS], c[PROMPTS];

    (void)state;
    generate(full, drawn, 12, -1, 4);
    for (int k = 0; k < 3; k++) {
        int32_t eod = full[0].ids[4 * k];
        generate(c, drawn, 12, eod, 4);
        for (int i = 0; i < PROMPTS; i++) {
            int64_t n = 0;
            while (n < full[i].n && full[i].ids[n] != eod)
                n++;
            assert_int_equal(c[i].n, n);
            assert_int_equal(c[i].finish, n < full[i].n ? MEG_FINISH_STOP : MEG_FINISH_LENGTH);
            if (n > 0)
                assert_memory_equal(c[i].ids, full[i].ids, (size_t)n * sizeof *c[i].ids);
        }
        release(c);
    }
    release(full);
}

static void other_seeds_and_prompts_are_sampled_differently(void **state)
{
    struct meg_sampling other = drawn;
    struct meg_continuation a[PROMPTS], b[PROMPTS];
    int same = 0, total = 0;

    (void)state;
    other.seed++;
    generate(a, drawn, 12, -1, 4);
    generate(b, other, 12, -1, 4);
    for (int i = 0; i < PROMPTS; i++)
        for (int64_t t = 0; t < a[i].n; t++, total++)
            same += a[i].ids[t] == b[i].ids[t];
    assert_true(same < total / 2);
    release(a);
    release(b);
}

/* Requests with different options generate the same ids in one batch as one by one. */
static void requests_of_a_batch_keep_their_own_options(void **state)
{
    const struct meg_request request[PROMPTS] = {
        { 4, greedy, false, NULL, 0 },
        { 9, drawn, false, NULL, 0 },
        { 9, { .temperature = 1, .top_k = 3, .seed = 5 }, false, NULL, 0 },
        { 2, { .temperature = 1.5, .top_p = 0.7, .seed = 5 }, true, NULL, 0 },
        { 11, { .temperature = 1.5, .seed = 6 }, true, NULL, 0 },
        { 1, drawn, false, NULL, 0 },
        { 3, { .temperature = 1.5, .seed = 8 }, true, NULL, 0 },
    };
    struct meg_continuation alone[PROMPTS] = { 0 }, c[PROMPTS] = { 0 };
    struct meg_generator *gen;
    int32_t ids[POSITIONS];
    struct meg_err e;

    (void)state;
    for (int k = 0; k < 2; k++) {
        struct meg_continuation *to = k ? c : alone;

        gen = meg_generator_open(g, V, NULL, k ? 5 : 1, true, 0);
        for (int i = 0; i < PROMPTS; i++) {
            to[i].prompt = i;
            to[i].request = &request[i];
            while (!meg_generator_has_free_slot(gen))
                assert_int_equal(meg_generator_step(gen, &e), MEG_OK);
            assert_int_equal(meg_generator_add(gen, ids, prompt(ids, i), &to[i], &e), MEG_OK);
        }
        while (meg_generator_active(gen) > 0)
            assert_int_equal(meg_generator_step(gen, &e), MEG_OK);
        meg_generator_close(gen);
    }
    for (int i = 0; i < PROMPTS; i++) {
        assert_int_equal(c[i].n, request[i].max_tokens);
        assert_int_equal(alone[i].n, c[i].n);
        assert_memory_equal(c[i].ids, alone[i].ids, (size_t)c[i].n * sizeof *c[i].ids);
        assert_memory_equal(c[i].logprob, alone[i].logprob, (size_t)c[i].n * sizeof *c[i].logprob);
    }
    release(alone);
    release(c);
}

/*
 * With a seed in the request, equal prompts have equal continuations at any position in the input; without a seed,
 * their continuations differ.
 */
static void a_request_with_a_seed_does_not_depend_on_the_prompt_number(void **state)
{
    for (int has_seed = 0; has_seed < 2; has_seed++) {
        const struct meg_request request = { 12, { .temperature = 1.5, .seed = 77 }, has_seed, NULL, 0 };
        struct meg_continuation a = { .prompt = 0, .request = &request }, b = { .prompt = 5, .request = &request };
        struct meg_generator *gen;
        int32_t ids[POSITIONS];
        int64_t n = prompt(ids, 2);
        struct meg_err e;

        (void)state;
        gen = meg_generator_open(g, V, NULL, 2, true, 0);
        assert_int_equal(meg_generator_add(gen, ids, n, &a, &e), MEG_OK);
        assert_int_equal(meg_generator_add(gen, ids, n, &b, &e), MEG_OK);
        while (meg_generator_active(gen) > 0)
            assert_int_equal(meg_generator_step(gen, &e), MEG_OK);
        assert_int_equal(a.n, 12);
        assert_int_equal(b.n, 12);
        assert_int_equal(memcmp(a.ids, b.ids, 12 * sizeof *a.ids) == 0, has_seed);
        meg_generator_close(gen);
        meg_continuation_free(&a);
        meg_continuation_free(&b);
    }
}

static void a_stopped_sequence_frees_its_slot(void **state)
{
    const struct meg_request request = { .max_tokens = 9, .sampling = greedy };
    struct meg_continuation a = { .request = &request }, b = a;
    struct meg_generator *gen;
    struct meg_err e;

    (void)state;
    gen = meg_generator_open(g, V, NULL, 2, true, 0);
    assert_int_equal(meg_generator_add(gen, (int32_t[]){ 1 }, 1, &a, &e), MEG_OK);
    assert_int_equal(meg_generator_add(gen, (int32_t[]){ 2 }, 1, &b, &e), MEG_OK);
    meg_generator_stop(gen, &a);
    assert_int_equal(a.finish, MEG_FINISH_STOP);
    assert_int_equal(meg_generator_active(gen), 1);
    assert_true(meg_generator_has_free_slot(gen));
    assert_int_equal(meg_generator_step(gen, &e), MEG_OK);
    assert_int_equal(a.n, 1);
    assert_int_equal(b.n, 2);
    meg_generator_stop(gen, &a);
    assert_int_equal(meg_generator_active(gen), 1);
    meg_generator_close(gen);
    meg_continuation_free(&a);
    meg_continuation_free(&b);
}

/* A sampled id among the top ids has the same log-probability in both lists, so that clients can compare them. */
static void the_top_logprobs_contain_the_sampled_id(void **state)
{
    enum { TOP = 5 };
    int nbest = 0, nother = 0;

    (void)state;
    for (int is_greedy = 0; is_greedy < 2; is_greedy++) {
        const struct meg_request request = { .max_tokens = 20, .sampling = is_greedy ? greedy : drawn };
        struct meg_continuation c = { .request = &request };
        struct meg_generator *gen;
        struct meg_err e;

        gen = meg_generator_open(g, V, NULL, 1, true, TOP);
        assert_int_equal(meg_generator_add(gen, (int32_t[]){ 3 }, 1, &c, &e), MEG_OK);
        while (meg_generator_active(gen) > 0)
            assert_int_equal(meg_generator_step(gen, &e), MEG_OK);
        assert_int_equal(c.n, 20);
        for (int64_t i = 0; i < c.n; i++) {
            const struct meg_token_logprob *top = c.top + i * TOP;
            const bool is_best = top[0].id == c.ids[i];

            assert_true(is_best || !is_greedy);
            assert_int_equal(is_best, c.logprob[i] == top[0].logprob);
            nbest += is_best;
            nother += !is_best;
            for (int k = 1; k < TOP; k++) {
                assert_true(top[k].logprob <= top[k - 1].logprob);
                assert_true(top[k].id != c.ids[i] || top[k].logprob == c.logprob[i]);
            }
        }
        meg_generator_close(gen);
        meg_continuation_free(&c);
    }
    assert_true(nbest > 20 && nother > 0);
}

/* The vocabulary is so large that the LM head processes the rows of a sequence in several chunks. */
static void scores_list_the_top_logprobs_of_every_row(void **state)
{
    enum { ROWS = 140, MANY = 150000 };
    const struct meg_model_conf conf = tiny_gpt(1, 8, 16, 2, ROWS, MANY);
    const struct meg_model_run run = { .s = ROWS, .b = 1 };
    float *logits = meg_new((size_t)ROWS * MANY * sizeof *logits), plain[ROWS], logprob[ROWS];
    struct meg_token_logprob top[ROWS * 2];
    int32_t ids[ROWS + 1];
    struct meg_scorer s;
    struct meg_model *many;
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_model_create(&many, &conf, &run, meg_device_cpu(), &meg_mesh_one, &e), MEG_OK);
    meg_model_init(many, 3);
    assert_in_range(meg_model_logit_rows(many), 1, ROWS - 1);
    for (int32_t i = 0; i <= ROWS; i++)
        ids[i] = i * 1031 % MANY;
    meg_scorer_init(&s, many);
    meg_model_logits(many, &(struct meg_batch){ .s = ROWS, .b = 1, .tokens = ids, .position_ids = s.position }, logits);
    assert_int_equal(meg_score(&s, ids, ROWS + 1, plain, &e), MEG_OK);
    assert_int_equal(meg_score_top(&s, ids, ROWS + 1, logprob, top, 2, &e), MEG_OK);
    assert_memory_equal(plain, logprob, sizeof plain);
    for (int64_t i = 0; i < ROWS; i++) {
        const float *row = logits + i * MANY;
        int32_t best = 0;

        for (int32_t k = 0; k < MANY; k++)
            best = row[k] > row[best] ? k : best;
        assert_int_equal(top[2 * i].id, best);
        assert_true(fabs(top[2 * i].logprob - ((double)logprob[i] + row[best] - row[ids[i + 1]])) < 1e-6);
        assert_true(top[2 * i + 1].id != best && top[2 * i + 1].logprob <= top[2 * i].logprob);
    }
    meg_scorer_free(&s);
    meg_model_close(many);
    free(logits);
}

static void nan_weights_are_reported(void **state)
{
    const struct meg_request request = { .max_tokens = 5, .sampling = greedy };
    struct meg_continuation c = { .request = &request };
    struct meg_generator *gen;
    struct meg_scorer s;
    float was = ((float *)g->w)[0], logprob[1];
    struct meg_err e;

    (void)state;
    gen = meg_generator_open(g, V, NULL, 2, true, 0);
    meg_scorer_init(&s, g);
    ((float *)g->w)[0] = NAN;
    assert_int_equal(meg_generator_add(gen, (int32_t[]){ 1 }, 1, &c, &e), MEG_EFAIL);
    assert_non_null(strstr(e.msg, "not finite"));
    assert_int_equal(meg_generator_active(gen), 0);
    assert_int_equal(meg_score(&s, (int32_t[]){ 1, 2 }, 2, logprob, &e), MEG_EFAIL);
    ((float *)g->w)[0] = was;
    assert_int_equal(meg_score(&s, (int32_t[]){ 1, 2 }, 2, logprob, &e), MEG_OK);
    meg_scorer_free(&s);
    meg_generator_close(gen);
    meg_continuation_free(&c);
}

/* Return the embedding [hidden] of a position. */
static float *position_embedding(int64_t position)
{
    const struct meg_param *row = meg_params_find(&g->params, "embedding.position_embeddings.weight");

    return (float *)g->w + row->offset + position * g->conf.hidden_size;
}

/*
 * The logits of the second and third of four sequences are NaN in the same step.  In this step, the first sequence
 * gets a token, and the fourth, which is after the error, does not.
 */
static void the_first_sequence_with_nan_is_reported(void **state)
{
    const struct meg_request request = { .max_tokens = 5, .sampling = greedy };
    const int64_t len[] = { 9, 7, 7, 3 };
    struct meg_continuation c[4] = { 0 };
    struct meg_generator *gen = meg_generator_open(g, V, NULL, 4, true, 0);
    float *w = position_embedding(7), was = *w;
    int32_t ids[POSITIONS];
    struct meg_err e;

    (void)state;
    prompt(ids, 3);
    for (int i = 0; i < 4; i++) {
        c[i].request = &request;
        assert_int_equal(meg_generator_add(gen, ids, len[i], &c[i], &e), MEG_OK);
    }
    *w = NAN;
    assert_int_equal(meg_generator_step(gen, &e), MEG_EFAIL);
    *w = was;
    assert_string_equal(e.msg, "logits are not finite after 8 tokens; check the checkpoint for NaN or Inf");
    assert_int_equal(meg_generator_active(gen), 3);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(c[i].n, i == 0 ? 2 : 1);
        meg_continuation_free(&c[i]);
    }
    meg_generator_close(gen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoding_equals_a_forward_pass_over_the_full_sequence),
        cmocka_unit_test(greedy_takes_the_largest_logit),
        cmocka_unit_test(a_prompt_does_not_depend_on_its_batch),
        cmocka_unit_test(the_number_of_threads_does_not_matter),
        cmocka_unit_test(eod_ends_a_continuation_and_is_not_among_its_ids),
        cmocka_unit_test(other_seeds_and_prompts_are_sampled_differently),
        cmocka_unit_test(requests_of_a_batch_keep_their_own_options),
        cmocka_unit_test(a_request_with_a_seed_does_not_depend_on_the_prompt_number),
        cmocka_unit_test(a_stopped_sequence_frees_its_slot),
        cmocka_unit_test(the_top_logprobs_contain_the_sampled_id),
        cmocka_unit_test(scores_list_the_top_logprobs_of_every_row),
        cmocka_unit_test(nan_weights_are_reported),
        cmocka_unit_test(the_first_sequence_with_nan_is_reported),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
