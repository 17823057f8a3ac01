/* eval/ppl.h: perplexity of a small model on tokens in memory and on a dataset. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "cpu/cpu.h"
#include "eval/ppl.h"
#include "tiny_gpt.h"
#include "tmp.h"
#include "indexed_append.h"

enum { V = 50, POSITIONS = 16, TOKENS = 70 };

static struct meg_model *g;
static struct meg_scorer scorer;
static int32_t tokens[TOKENS];

static int setup(void **state)
{
    const struct meg_model_conf conf = tiny_gpt(1, 32, 64, 2, POSITIONS, V);
    const struct meg_model_run run = { .s = POSITIONS, .b = 1 };
    struct meg_err e;

    (void)state;
    if (meg_model_create(&g, &conf, &run, meg_device_cpu(), &meg_mesh_one, &e) < 0)
        return -1;
    meg_model_init(g, 3);
    meg_scorer_init(&scorer, g);
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = (i * i + 3 * i) % V;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    meg_scorer_free(&scorer);
    meg_model_close(g);
    return 0;
}

static void ppl(struct meg_ppl_result *p, const struct meg_token_stream *src, int64_t seq_length, int64_t stride)
{
    struct meg_err e;

    if (meg_ppl(p, &scorer, src, &(struct meg_ppl_conf){ .seq_length = seq_length, .stride = stride }, &e) < 0)
        fail_msg("%s", e.msg);
}

static void the_loss_is_the_sum_over_windows(void **state)
{
    const struct meg_ids ids = { .v = tokens, .n = TOKENS, .cap = TOKENS };
    struct meg_token_stream src = meg_token_stream_from_ids(&ids);
    float logprob[POSITIONS];
    struct meg_err e;
    struct meg_ppl_result p;
    double want = 0;

    (void)state;
    for (int64_t at = 0; at < TOKENS - 1; at += POSITIONS) {
        int64_t n = TOKENS - at < POSITIONS + 1 ? TOKENS - at : POSITIONS + 1;
        assert_int_equal(meg_score(&scorer, tokens + at, n, logprob, &e), MEG_OK);
        for (int64_t t = 0; t < n - 1; t++)
            want -= logprob[t];
    }
    ppl(&p, &src, POSITIONS, POSITIONS);
    assert_int_equal(p.num_targets, TOKENS - 1);
    assert_int_equal(p.windows, 5);
    assert_true(fabs(p.loss - want) < 1e-9);
    assert_true(fabs(meg_ppl_value(&p) - exp(want / (TOKENS - 1))) < 1e-9 * exp(want / (TOKENS - 1)));

    want = 0; /* one token per window, each with up to POSITIONS tokens of context */
    for (int64_t t = 1; t < TOKENS; t++) {
        int64_t first = t <= POSITIONS ? 0 : t - POSITIONS, n = t <= POSITIONS ? t + 1 : POSITIONS + 1;
        assert_int_equal(meg_score(&scorer, tokens + first, n, logprob, &e), MEG_OK);
        want -= logprob[n - 2];
    }
    ppl(&p, &src, POSITIONS, 1);
    assert_int_equal(p.num_targets, TOKENS - 1);
    assert_true(fabs(p.loss - want) < 1e-4);
}

static void a_dataset_is_the_concatenation_of_its_documents(void **state)
{
    const int64_t length[] = { 1, 30, 0, 5, 0, 0, 33, 1 };
    char dir[TMP_NAME], prefix[TMP_PATH], path[TMP_PATH + 16];
    const struct meg_ids ids = { .v = tokens, .n = TOKENS, .cap = TOKENS };
    struct meg_indexed_writer *w = NULL;
    struct meg_dataset_reader reader;
    struct meg_indexed *d = NULL;
    struct meg_token_stream src;
    struct meg_ppl_result p, want;
    struct meg_err e;

    (void)state;
    assert_non_null(tmp_dir(dir, "ppl"));
    snprintf(prefix, sizeof prefix, "%s/d", dir);
    assert_int_equal(meg_indexed_create(&w, prefix, MEG_IDX_U16, &e), MEG_OK);
    for (int64_t i = 0, at = 0; i < 8; at += length[i++]) {
        assert_int_equal(indexed_append(w, tokens + at, length[i], &e), MEG_OK);
        meg_indexed_end_document(w);
    }
    assert_int_equal(meg_indexed_commit(&w, 1, &e), MEG_OK);
    assert_int_equal(meg_indexed_open(&d, prefix, &e), MEG_OK);
    for (int64_t stride = 1; stride <= 10; stride++) {
        src = meg_token_stream_from_ids(&ids);
        ppl(&want, &src, 10, stride);
        src = meg_token_stream_from_dataset(&reader, d, V);
        assert_int_equal(src.n, TOKENS);
        ppl(&p, &src, 10, stride);
        assert_memory_equal(&p, &want, sizeof p);
    }
    src = meg_token_stream_from_dataset(&reader, d, 40);
    assert_int_equal(meg_ppl(&p, &scorer, &src, &(struct meg_ppl_conf){ .seq_length = 10, .stride = 10 }, &e),
                     MEG_EFORMAT);
    assert_non_null(strstr(e.msg, "d.bin: the id at offset 4 of sequence 1 (both counted from 0) is 40; the vocabulary "
                                  "of the model has ids 0 to 39"));
    meg_indexed_close(d);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s.%s", prefix, i ? "bin" : "idx");
        unlink(path);
    }
    rmdir(dir);
}

/* As in Megatron, the exponent is limited to 20. */
static void the_perplexity_is_exp_of_the_mean_loss(void **state)
{
    const struct meg_ppl_result small = { .loss = 30, .num_targets = 12 }, large = { .loss = 75, .num_targets = 3 };

    (void)state;
    assert_true(fabs(meg_ppl_value(&small) - 12.182493960703473) < 1e-12);
    assert_true(fabs(meg_ppl_value(&large) - 485165195.40979028) < 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_loss_is_the_sum_over_windows),
        cmocka_unit_test(the_perplexity_is_exp_of_the_mean_loss),
        cmocka_unit_test(a_dataset_is_the_concatenation_of_its_documents),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
