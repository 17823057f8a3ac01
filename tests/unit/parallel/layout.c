/* Number of layers of pipeline stages and chunks, for even and uneven partitions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "parallel/layout.h"

enum { MAX_CHUNKS = 8 };

/* Options and number of layers; expected stages, chunks per stage, and layers of each chunk, in model order. */
static const struct {
    const char *options;
    int64_t layers, stages, chunks, n[MAX_CHUNKS];
} cases[] = {
    { "", 5, 1, 1, { 5 } },
    { "pipeline-model-parallel-size = 4", 8, 4, 1, { 2, 2, 2, 2 } },
    { "pipeline-model-parallel-size = 2\nnum-virtual-stages-per-pipeline-rank = 3", 12, 2, 3, { 2, 2, 2, 2, 2, 2 } },
    { "pipeline-model-parallel-size = 2\nnum-layers-per-virtual-pipeline-stage = 3", 12, 2, 2, { 3, 3, 3, 3 } },
    { "pipeline-model-parallel-size = 2\ndecoder-first-pipeline-num-layers = 3", 8, 2, 1, { 3, 5 } },
    { "pipeline-model-parallel-size = 4\ndecoder-first-pipeline-num-layers = 2", 8, 4, 1, { 2, 2, 2, 2 } },
    { "pipeline-model-parallel-size = 4\ndecoder-last-pipeline-num-layers = 1", 10, 4, 1, { 3, 3, 3, 1 } },
    { "pipeline-model-parallel-size = 4\ndecoder-first-pipeline-num-layers = 3\ndecoder-last-pipeline-num-layers = 1",
      8,
      4,
      1,
      { 3, 2, 2, 1 } },
    { "pipeline-model-parallel-size = 2\nnum-layers-in-first-pipeline-stage = 2\nnum-layers-in-last-pipeline-stage = "
      "4\n"
      "num-virtual-stages-per-pipeline-rank = 2",
      6,
      2,
      2,
      { 1, 2, 1, 2 } },
    { "pipeline-model-parallel-size = 4\ndecoder-last-pipeline-num-layers = 2\nnum-virtual-stages-per-pipeline-rank = "
      "2",
      14,
      4,
      2,
      { 2, 2, 2, 1, 2, 2, 2, 1 } },
    { "account-for-embedding-in-pipeline-split = yes\naccount-for-loss-in-pipeline-split = yes", 3, 1, 1, { 3 } },
    { "pipeline-model-parallel-size = 3\naccount-for-embedding-in-pipeline-split = yes", 8, 3, 1, { 2, 3, 3 } },
    { "pipeline-model-parallel-size = 3\naccount-for-loss-in-pipeline-split = yes", 8, 3, 1, { 3, 3, 2 } },
    { "pipeline-model-parallel-size = 2\naccount-for-embedding-in-pipeline-split = yes\n"
      "account-for-loss-in-pipeline-split = yes\nnum-layers-per-virtual-pipeline-stage = 2",
      6,
      2,
      2,
      { 1, 2, 2, 1 } },
    { "pipeline-model-parallel-size = 4\naccount-for-embedding-in-pipeline-split = yes\n"
      "account-for-loss-in-pipeline-split = yes\nnum-virtual-stages-per-pipeline-rank = 2",
      6,
      4,
      2,
      { 0, 1, 1, 1, 1, 1, 1, 0 } },
    { "pipeline-model-parallel-size = 2\ndecoder-first-pipeline-num-layers = 5\ndecoder-last-pipeline-num-layers = 1",
      6,
      2,
      1,
      { 5, 1 } },
};

static struct meg_layout layout(const char *options, int64_t layers, int64_t stages)
{
    const struct meg_layout_model model = {
        .layers = layers, .s = 16, .heads = 2, .groups = 2, .ffn = 32, .vocab = 99
    };
    struct meg_layout_conf c = { 0 };
    const struct meg_optgroup groups[] = { { "parallelism", meg_layout_opts, &c }, { 0 } };
    struct meg_layout l = { 0 };
    struct meg_err e;

    meg_opt_defaults(groups);
    if (meg_opt_apply(groups, options, "test", &e) < 0 || meg_layout_make(&l, &c, stages, &e) < 0 ||
        meg_layout_set_model(&l, &c, &model, &e) < 0)
        fail_msg("%s: %s", options, e.msg);
    return l;
}

static void chunks_are_contiguous_and_cover_all_layers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct meg_layout l = layout(cases[i].options, cases[i].layers, cases[i].stages);
        int64_t next = 0;

        assert_int_equal(l.pp, cases[i].stages);
        assert_int_equal(l.vp, cases[i].chunks);
        for (int64_t k = 0; k < l.pp * l.vp; k++) {
            int64_t first, n;

            meg_layout_layers(&l, k % l.pp, k / l.pp, &first, &n);
            if (first != next || n != cases[i].n[k])
                fail_msg("%s: part %d has %d layers from %d, expected %d from %d", cases[i].options, (int)k, (int)n,
                         (int)first, (int)cases[i].n[k], (int)next);
            next += n;
        }
        assert_int_equal(next, cases[i].layers);
        meg_layout_free(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(chunks_are_contiguous_and_cover_all_layers) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
