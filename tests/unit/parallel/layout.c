/* Number of layers of pipeline stages and chunks, for even and uneven partitions; the order of ranks. */
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
    { "pipeline-model-parallel-layout = EtttL", 3, 1, 1, { 3 } },
    { "pipeline-model-parallel-size = 2\npipeline-model-parallel-layout = Ett|tttL", 5, 2, 1, { 2, 3 } },
    { "pipeline-model-parallel-size = 2\npipeline-model-parallel-layout = E,t*3|(tt|)*2,|*0,L",
      7,
      2,
      2,
      { 3, 2, 2, 0 } },
    { "pipeline-model-parallel-size = 4\npipeline-model-parallel-layout = E|t|*2t|t*0(t|)*2t*1,|L",
      5,
      4,
      2,
      {
          0,
          1,
          0,
          1,
          1,
          1,
          1,
          0,
      } },
    { "pipeline-model-parallel-size = 2\ndecoder-first-pipeline-num-layers = 5\ndecoder-last-pipeline-num-layers = 1",
      6,
      2,
      1,
      { 5, 1 } },
};

/* Make the layout of a model for one rank per stage. */
static int make_layout(struct meg_layout *l, const char *options, int64_t layers, int64_t stages, struct meg_err *e)
{
    const struct meg_layout_model model = {
        .layers = layers, .s = 16, .heads = 2, .groups = 2, .ffn = 32, .vocab = 99
    };
    struct meg_layout_conf c = { 0 };
    const struct meg_optgroup groups[] = { { "parallelism", meg_layout_opts, &c }, { 0 } };
    int r;

    meg_opt_defaults(groups);
    if ((r = meg_opt_apply(groups, options, "test", e)) < 0 || (r = meg_layout_make(l, &c, stages, e)) < 0)
        return r;
    return meg_layout_set_model(l, &c, &model, e);
}

static struct meg_layout layout(const char *options, int64_t layers, int64_t stages)
{
    struct meg_layout l;
    struct meg_err e;

    if (make_layout(&l, options, layers, stages, &e) < 0)
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

/* Values of --pipeline-model-parallel-layout for two stages and eight layers, and parts of the messages. */
static const struct {
    const char *text, *message;
} invalid[] = {
    { "", "ends after 0 characters, expected E" },
    { "t*8L", "found 't' at position 1, expected E, because the first stage begins with the embedding" },
    { "|Et*8L", "found '|' at position 1, expected E" },
    { "Etttt|tttt", "ends after 10 characters, expected L" },
    { "Ett|EttL", "found 'E' at position 5, expected t, L or |, because only one E is permitted" },
    { "E*2tt|ttL", "found 'E' at position 1, expected t, L or |" },
    { "EttL|tt", "found '|' at position 5, expected the end after L" },
    { "Ett|ttL*2", "found 'L' at position 7, expected the end after L" },
    { "Etttt|ttttmL", "found 'm' at position 11, expected E, t, L or |: multi-token prediction (m) is not supported" },
    { "Etttt|tttxL", "found 'x' at position 10, expected E, t, L, | or a group in parentheses" },
    { "Et*4 |t*4L", "found ' ' at position 5, expected E" },
    { "Et*|t*4L", "found '|' at position 4, expected a number after *" },
    { "*2Et*4|t*4L", "found '*' at position 1, expected E" },
    { "Et*65537|t*4L", "the number at position 8 is too large, expected at most 65536" },
    { "E(t*65536)*65536|t*4L", "has more than 65536 symbols" },
    { "E(tt)|t*4L", "found '|' at position 6, expected * and a number after )" },
    { "E(,)*2|t*8L", "found ')' at position 4, expected a symbol in the group" },
    { "E((t|)*2)*2L", "found '(' at position 3, expected ), because a group cannot contain a group" },
    { "E(t|t", "ends after 5 characters, expected )" },
    { "Et)*4|t*4L", "found ')' at position 3, expected E" },
    { "Et*4|t*3L", "has 7 layers (t), expected --num-layers 8" },
    { "Et|t*3|t*4L", "has 3 virtual stages, expected a multiple of --pipeline-model-parallel-size 2" },
};

static void invalid_layout_strings_are_refused_with_position_and_rule(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++) {
        struct meg_layout l;
        struct meg_err e;
        char options[200], begin[200];

        snprintf(options, sizeof options, "pipeline-model-parallel-size = 2\npipeline-model-parallel-layout = \"%s\"",
                 invalid[i].text);
        snprintf(begin, sizeof begin, "--pipeline-model-parallel-layout %s: ", invalid[i].text);
        assert_int_equal(make_layout(&l, options, 8, 2, &e), MEG_EUSAGE);
        if (strncmp(e.msg, begin, strlen(begin)) != 0 || !strstr(e.msg, invalid[i].message))
            fail_msg("the message is \"%s\", expected \"%s%s\"", e.msg, begin, invalid[i].message);
    }
}

/* The orders of Megatron-LM (initialize.py): tp-cp-ep-dp-pp and, with --use-tp-pp-dp-mapping, tp-cp-ep-pp-dp. */
static void ranks_are_numbered_as_in_megatron(void **state)
{
    struct meg_layout l = { .tp = 2, .cp = 3, .dp = 4, .pp = 5 };

    (void)state;
    for (int order = 0; order < 2; order++) {
        int64_t rank = 0;

        l.pp_before_dp = order;
        for (int64_t outer = 0; outer < (order ? l.dp : l.pp); outer++)
            for (int64_t inner = 0; inner < (order ? l.pp : l.dp); inner++)
                for (int64_t cp = 0; cp < l.cp; cp++)
                    for (int64_t tp = 0; tp < l.tp; tp++, rank++) {
                        const struct meg_rank_coords c = meg_layout_coords(&l, rank);

                        assert_int_equal(c.tp, tp);
                        assert_int_equal(c.cp, cp);
                        assert_int_equal(order ? c.pp : c.dp, inner);
                        assert_int_equal(order ? c.dp : c.pp, outer);
                        assert_int_equal(meg_layout_rank(&l, c), rank);
                    }
    }
}

/* The grid of experts in the order tp-cp-ep-dp-pp: etp + ETP (ep + EP (edp + EDP pp)). */
static void ranks_of_experts_are_numbered_as_in_megatron(void **state)
{
    struct meg_layout l = { .tp = 2, .cp = 1, .dp = 6, .pp = 2 };

    (void)state;
    for (l.etp = 1; l.etp <= 4; l.etp++)
        for (l.ep = 1; l.ep <= 3; l.ep++) {
            const int64_t edp_size = 12 / (l.etp * l.ep);

            if (12 % (l.etp * l.ep))
                continue;
            assert_int_equal(meg_layout_dp_size(&l, MEG_DP_EXPERT), edp_size);
            for (int64_t rank = 0; rank < 24; rank++) {
                const struct meg_rank_coords c = meg_layout_coords(&l, rank);
                const int64_t etp = meg_layout_axis_rank(&l, c, MEG_AXIS_ETP);
                const int64_t ep = meg_layout_axis_rank(&l, c, MEG_AXIS_EP);
                const int64_t edp = meg_layout_dp_rank(&l, c, MEG_DP_EXPERT);

                assert_int_equal(etp + l.etp * (ep + l.ep * (edp + edp_size * c.pp)), rank);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_numbered_as_in_megatron),
        cmocka_unit_test(ranks_of_experts_are_numbered_as_in_megatron),
        cmocka_unit_test(chunks_are_contiguous_and_cover_all_layers),
        cmocka_unit_test(invalid_layout_strings_are_refused_with_position_and_rule),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
