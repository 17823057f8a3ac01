/* Shards of parameters that are sharded along several dimensions, and their initial weights. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/int64.h"
#include "base/mem.h"
#include "params/param.h"

enum { NUMEL = 4 * 12 * 10 };

/* Shardings of a parameter [4, 12, 10], whose dimensions are experts, rows and columns. */
#define PART(n, axis)                                                                                                  \
    {                                                                                                                  \
        n, MEG_AXIS_##axis,                                                                                            \
        {                                                                                                              \
            0                                                                                                          \
        }                                                                                                              \
    }
#define ONE(n, axis)                                                                                                   \
    {                                                                                                                  \
        1,                                                                                                             \
        {                                                                                                              \
            PART(n, axis)                                                                                              \
        }                                                                                                              \
    }
static const struct meg_sharding shardings[][3] = {
    { ONE(4, NONE), ONE(12, NONE), ONE(10, NONE) },
    { ONE(4, EP), ONE(12, NONE), ONE(10, NONE) },
    { ONE(4, EP), ONE(12, ETP), ONE(10, NONE) },
    { ONE(4, EP), { 2, { PART(6, ETP), PART(6, ETP) } }, ONE(10, NONE) },
    { ONE(4, EP), ONE(12, NONE), ONE(10, ETP) },
    { ONE(4, NONE),
      { 3, { PART(4, EP), PART(4, EP), PART(4, EP) } },
      { 5, { PART(2, ETP), PART(2, ETP), PART(2, ETP), PART(2, ETP), PART(2, ETP) } } },
    { { 2, { PART(2, ETP), PART(2, ETP) } }, ONE(12, EP), ONE(10, NONE) },
    { ONE(4, EP), { 5, { PART(4, ETP), PART(1, NONE), PART(1, NONE), PART(2, ETP), PART(4, ETP) } }, ONE(10, NONE) },
    { { 3, { PART(1, NONE), PART(2, TP), PART(1, TP) } }, ONE(12, NONE), ONE(10, NONE) },
    { { 2, { PART(2, NONE), PART(2, ETP) } }, ONE(12, EP), ONE(10, NONE) },
    { ONE(4, NONE), ONE(12, NONE), { 3, { PART(2, NONE), PART(3, TP), PART(5, TP) } } },
};
enum { SHARDINGS = sizeof shardings / sizeof *shardings };

/* Create the parameter table of one rank.  It contains this parameter, sharded as in shardings[sharding]. */
static void make(struct meg_params *p, int sharding, const struct meg_layout *l, int64_t rank)
{
    const int64_t dim[] = { 4, 12, 10 };
    struct meg_mesh mesh;
    struct meg_param *row;

    *p = (struct meg_params){ 0 };
    row = meg_params_add(p, 0, 3, dim, "experts.weight");
    memcpy(row->sharding, shardings[sharding], sizeof shardings[sharding]);
    row->init = (struct meg_init){ meg_init_normal, .a = 1 };
    meg_mesh_init_dry(&mesh, l, rank);
    meg_params_shard(p, &mesh);
}

static struct meg_layout layout(int64_t tp, int64_t cp, int64_t dp, int64_t ep, int64_t etp)
{
    struct meg_layout l = meg_layout_one;

    l.tp = tp;
    l.cp = cp;
    l.dp = dp;
    l.ep = ep;
    l.etp = etp;
    return l;
}

static int64_t begin_of(const struct meg_sharding *s, int part, int64_t size, int64_t rank)
{
    return meg_partition_begin(s->part[part].n, size, rank);
}

/* Return whether index i of a dimension is in a rank's shard. */
static bool has_index(const struct meg_sharding *s, int64_t i, const struct meg_layout *l, int64_t rank)
{
    const int64_t tp_rank = rank % l->tp, ep_rank = rank / l->etp % l->ep, etp_rank = rank % l->etp;
    int part = 0;

    while (i >= s->part[part].n)
        i -= s->part[part++].n;
    switch (s->part[part].axis) {
    case MEG_AXIS_TP: return i >= begin_of(s, part, l->tp, tp_rank) && i < begin_of(s, part, l->tp, tp_rank + 1);
    case MEG_AXIS_EP: return i >= begin_of(s, part, l->ep, ep_rank) && i < begin_of(s, part, l->ep, ep_rank + 1);
    case MEG_AXIS_ETP: return i >= begin_of(s, part, l->etp, etp_rank) && i < begin_of(s, part, l->etp, etp_rank + 1);
    default: return true;
    }
}

/* List the elements of a rank's shard in ascending order, and return their number. */
static int64_t list_elements(int64_t out[NUMEL], int sharding, const struct meg_layout *l, int64_t rank)
{
    const struct meg_sharding *s = shardings[sharding];
    int64_t n = 0;

    for (int64_t i = 0; i < NUMEL; i++)
        if (has_index(&s[0], i / 120, l, rank) && has_index(&s[1], i / 10 % 12, l, rank) &&
            has_index(&s[2], i % 10, l, rank))
            out[n++] = i;
    return n;
}

/* Call test() for each sharding on each rank of several layouts. */
static void for_each_rank(void (*test)(const struct meg_param *row, const int64_t *element, int64_t n))
{
    const struct meg_layout layouts[] = { layout(1, 1, 1, 1, 1), layout(2, 1, 1, 1, 2), layout(1, 2, 2, 4, 1),
                                          layout(2, 1, 4, 2, 2), layout(2, 2, 2, 4, 2), layout(2, 2, 1, 1, 2),
                                          layout(2, 2, 1, 2, 1), layout(1, 2, 2, 2, 2), layout(4, 1, 1, 1, 2) };

    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        for (int64_t rank = 0; rank < meg_layout_world(&layouts[i]); rank++)
            for (int k = 0; k < SHARDINGS; k++) {
                struct meg_params p;
                int64_t element[NUMEL];

                make(&p, k, &layouts[i], rank);
                test(&p.row[0], element, list_elements(element, k, &layouts[i], rank));
                meg_params_free(&p);
            }
}

static void check_ranges(const struct meg_param *row, const int64_t *element, int64_t n)
{
    int64_t local = 0;

    assert_int_equal(row->shard_numel, n);
    for (int64_t i = 0; i < meg_param_num_shard_ranges(row); i++) {
        const struct meg_param_shard_range r = meg_param_shard_range_at(row, i);

        assert_int_equal(r.local, local);
        for (int64_t j = 0; j < r.n; j++)
            assert_int_equal(r.global + j, element[local + j]);
        local += r.n;
    }
    assert_int_equal(local, n);
}

static void shard_ranges_are_the_elements_of_the_rank(void **state)
{
    (void)state;
    for_each_rank(check_ranges);
}

static void check_spans(const struct meg_param *row, const int64_t *element, int64_t n)
{
    int64_t local = 0;

    for (int64_t i = 0; i < meg_param_num_spans(row); i++) {
        const struct meg_param_span span = meg_param_span_at(row, i);

        assert_int_equal(span.begin, local);
        for (int64_t k = 0; k < span.end - span.begin; k++)
            assert_int_equal(span.base + k / span.cols * span.ld + k % span.cols, element[local + k]);
        local = span.end;
    }
    assert_int_equal(local, n);
}

static void spans_are_the_elements_of_the_rank(void **state)
{
    (void)state;
    for_each_rank(check_spans);
}

/* Shards whose ranges are equally long and equally spaced have one span. */
static void spans_are_as_long_as_possible(void **state)
{
    static const int64_t want[SHARDINGS] = { 1, 1, 1, 1, 1, 120, 2, 10, 3, 3, 144 };
    const struct meg_layout l = layout(2, 1, 2, 2, 2);

    (void)state;
    for (int i = 0; i < SHARDINGS; i++) {
        struct meg_params p;

        make(&p, i, &l, 0);
        assert_int_equal(meg_param_num_spans(&p.row[0]), want[i]);
        meg_params_free(&p);
    }
}

/* Each element is counted on one of the tensor-parallel ranks, also in replicated parts of a sharded dimension. */
static void each_element_is_counted_once(void **state)
{
    const struct meg_layout l = layout(2, 1, 1, 1, 2);

    (void)state;
    for (int i = 0; i < SHARDINGS; i++) {
        int count[NUMEL] = { 0 };

        for (int64_t rank = 0; rank < 2; rank++) {
            struct meg_params p;
            struct meg_mesh mesh;

            make(&p, i, &l, rank);
            meg_mesh_init_dry(&mesh, &l, rank);
            for (int64_t k = 0; k < meg_param_num_shard_ranges(&p.row[0]); k++) {
                const struct meg_param_shard_range r = meg_param_shard_range_at(&p.row[0], k);

                for (int64_t j = 0; j < r.n; j++)
                    count[r.global + j] += meg_param_is_counted(&p.row[0], r.is_tp_replica, &mesh);
            }
            meg_params_free(&p);
        }
        for (int k = 0; k < NUMEL; k++)
            assert_int_equal(count[k], 1);
    }
}

/*
 * If experts have other tensor-parallel groups than dense parameters, all ranks store shards at equal offsets, also if
 * their shards of dense parameters differ, because they may be in one data-parallel group of experts.
 */
static void offsets_do_not_depend_on_the_rank(void **state)
{
    const int64_t vocab[] = { 101, 10 }, experts[] = { 4, 12, 10 };
    const struct meg_layout layouts[] = { layout(2, 1, 2, 2, 1), layout(4, 1, 1, 2, 2), layout(1, 1, 4, 1, 2) };

    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        for (int64_t rank = 0; rank < 4; rank++) {
            struct meg_params p = { 0 };
            struct meg_mesh mesh;

            meg_params_add(&p, 0, 3, experts, "experts.weight")->sharding[0].part[0].axis = MEG_AXIS_EP;
            meg_params_add(&p, 1, 2, vocab, "output_layer.weight")->sharding[0].part[0].axis = MEG_AXIS_TP;
            meg_mesh_init_dry(&mesh, &layouts[i], rank);
            meg_params_shard(&p, &mesh);
            assert_int_equal(p.row[0].offset, (meg_ceil_div(101, layouts[i].tp) * 10 + 63) / 64 * 64);
            assert_int_equal(p.row[0].dp_group, MEG_DP_EXPERT);
            meg_params_free(&p);
        }
}

/* The gradient of a replicated part is summed if the parameter has sharded parts. */
static void gradients_of_replicated_parts_are_summed(void **state)
{
    static const bool want[] = { false, true, true, false, false };
    const struct meg_layout l = layout(2, 1, 1, 1, 2);
    struct meg_params p;

    (void)state;
    make(&p, 7, &l, 1);
    for (int64_t i = 0; i < meg_param_num_spans(&p.row[0]); i++) {
        const struct meg_param_span span = meg_param_span_at(&p.row[0], i);

        assert_int_equal(meg_param_sums_grad_over_tp(&p.row[0], &span, &l), want[i % 5]);
    }
    meg_params_free(&p);
}

/* Contiguous elements form one range, also if they are in several rows or experts. */
static void ranges_are_as_long_as_possible(void **state)
{
    static const struct {
        int sharding;
        int64_t nranges;
    } want[] = { { 0, 1 }, { 1, 1 }, { 2, 2 }, { 3, 4 }, { 4, 24 } };
    const struct meg_layout l = layout(2, 1, 2, 2, 2);

    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct meg_params p;

        make(&p, want[i].sharding, &l, 1);
        assert_int_equal(meg_param_num_shard_ranges(&p.row[0]), want[i].nranges);
        meg_params_free(&p);
    }
}

static void check_init(const struct meg_param *row, const int64_t *element, int64_t n)
{
    float all[NUMEL], shard[NUMEL];

    meg_param_init(row, 7, 0, NUMEL, all);
    meg_param_init_shard(row, 7, 3, n - 3, shard);
    for (int64_t i = 3; i < n; i++)
        assert_true(shard[i - 3] == all[element[i]]);
}

static void initial_weights_do_not_depend_on_the_layout(void **state)
{
    (void)state;
    for_each_rank(check_init);
}

/* Fan-in and fan-out in the Xavier limit are the dimensions of one expert's matrix. */
static void xavier_limit_is_that_of_one_expert(void **state)
{
    const double limit = sqrt(6.0 / (12 + 10));
    const struct meg_layout l = layout(1, 1, 1, 1, 1);
    struct meg_params p;
    float w[NUMEL];
    double most = 0;

    (void)state;
    make(&p, 0, &l, 0);
    p.row[0].init.value = meg_init_xavier;
    meg_param_init(&p.row[0], 7, 0, NUMEL, w);
    for (int i = 0; i < NUMEL; i++)
        most = fmax(most, fabs((double)w[i]));
    assert_true(most < limit && most > 0.95 * limit);
    meg_params_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shard_ranges_are_the_elements_of_the_rank),
        cmocka_unit_test(ranges_are_as_long_as_possible),
        cmocka_unit_test(spans_are_the_elements_of_the_rank),
        cmocka_unit_test(spans_are_as_long_as_possible),
        cmocka_unit_test(each_element_is_counted_once),
        cmocka_unit_test(offsets_do_not_depend_on_the_rank),
        cmocka_unit_test(gradients_of_replicated_parts_are_summed),
        cmocka_unit_test(initial_weights_do_not_depend_on_the_layout),
        cmocka_unit_test(xavier_limit_is_that_of_one_expert),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
