/* Blends of datasets: blending indices, normalized weights, and the number of samples to build of each dataset. */
#include "data_util.h"

#include "data/blend/blend.h"

static void the_dataset_furthest_below_its_weight_is_next(void **state)
{
    static const int16_t dataset[] = { 1, 0, 1, 1, 0, 1, 1, 0, 1, 1 };
    static const int64_t sample[] = { 0, 0, 1, 2, 1, 3, 4, 2, 5, 6 };
    const double w[] = { 0.3, 0.7 };
    struct meg_blend_index x;

    (void)state;
    meg_blend_weighted(&x, w, 2, 10);
    assert_memory_equal(x.dataset, dataset, sizeof dataset);
    assert_memory_equal(x.sample, sample, sizeof sample);
    meg_blend_index_free(&x);
}

/*
 * With weights a / 2^26 and fewer than 2^16 samples, products are exact in f64 but not in f32, so the expected order
 * follows from integer arithmetic.
 */
static void weights_are_multiplied_in_f64(void **state)
{
    enum { K = 3, N = 60000 };
    const int64_t one = 1 << 26, a[K] = { 22369621, 22369622, 22369621 };
    const double w[K] = { (double)a[0] / one, (double)a[1] / one, (double)a[2] / one };
    int64_t given[K] = { 0 };
    struct meg_blend_index x;

    (void)state;
    meg_blend_weighted(&x, w, K, N);
    for (int64_t i = 0; i < N; i++) {
        int best = 0;

        for (int d = 1; d < K; d++)
            if (a[d] * (i ? i : 1) - one * given[d] > a[best] * (i ? i : 1) - one * given[best])
                best = d;
        assert_int_equal(x.dataset[i], best);
        assert_int_equal(x.sample[i], given[best]++);
    }
    meg_blend_index_free(&x);
}

static void an_exhaustive_blend_takes_each_sample_once(void **state)
{
    const int64_t size[] = { 3, 5 };
    int64_t next[2] = { 0 };
    struct meg_blend_index x;

    (void)state;
    meg_blend_exhaustive(&x, size, 2);
    assert_int_equal(x.n, 8);
    for (int64_t i = 0; i < x.n; i++)
        assert_int_equal(x.sample[i], next[x.dataset[i]]++);
    assert_int_equal(next[0], 3);
    meg_blend_index_free(&x);
}

/*
 * The pairwise sum of these 1000 weights differs in the last bit from the sum in a plain loop.  Expected weights are
 * from NumPy 1.26.
 */
static void weights_are_summed_pairwise(void **state)
{
    double w[1000];

    (void)state;
    for (int i = 0; i < 1000; i++)
        w[i] = 0.1 * (i % 7 + 1) + 1.0 / (i + 3);
    meg_blend_normalize(w, 1000);
    assert_true(w[0] == 0x1.18020bc6af0d5p-10);
    assert_true(w[999] == 0x1.8459275396741p-10);
}

static void a_dataset_is_built_half_a_percent_larger(void **state)
{
    const double w[] = { 0.3, 0.7 };
    int64_t n[2];

    (void)state;
    meg_blend_sizes(n, w, 2, 100);
    assert_true(n[0] == 31 && n[1] == 71);
}

/* Expected counts: ceil(101 * w) and ceil(1.005 * that), as Megatron core 0.12.1 computes them. */
static void counts_with_a_surplus_are_rounded_up_twice(void **state)
{
    const double w[] = { 0.3, 0.7 };
    int64_t taken[2], built[2];

    (void)state;
    meg_blend_sizes_with_surplus(taken, built, w, 2, 101, 0.005);
    assert_true(taken[0] == 31 && taken[1] == 71);
    assert_true(built[0] == 32 && built[1] == 72);
    meg_blend_sizes_with_surplus(taken, built, w, 2, 101, 0);
    assert_true(built[0] == 31 && built[1] == 71);
}

static void golden_indices(void **state)
{
    json_t *all = golden_data("blend/indices.json"), *c;
    size_t i;

    (void)state;
    assert_true(json_array_size(all) > 8);
    json_array_foreach(all, i, c)
    {
        json_t *dataset = json_object_get(c, "dataset_index"), *sample = json_object_get(c, "dataset_sample_index");
        struct meg_blend_index x;

        if (strcmp(get_str(c, "kind"), "exhaustive") == 0) {
            json_t *sizes = json_object_get(c, "sizes");
            int64_t size[16];
            for (size_t k = 0; k < json_array_size(sizes); k++)
                size[k] = int_at(sizes, k);
            meg_blend_exhaustive(&x, size, (int)json_array_size(sizes));
        } else {
            json_t *given = json_object_get(c, "weights"), *norm = json_object_get(c, "normalized");
            json_t *targets = json_object_get(c, "targets"), *wanted = json_object_get(c, "per_dataset_targets");
            int k = (int)json_array_size(given);
            double w[16];

            assert_int_equal(json_array_size(targets), 3);
            for (int d = 0; d < k; d++)
                w[d] = json_number_value(json_array_get(given, (size_t)d));
            meg_blend_normalize(w, k);
            for (int d = 0; d < k; d++)
                assert_true(w[d] == json_number_value(json_array_get(norm, (size_t)d)));
            for (size_t s = 0; s < 3; s++) {
                int64_t n[16];
                meg_blend_sizes(n, w, k, int_at(targets, s));
                for (int d = 0; d < k; d++)
                    assert_int_equal(n[d], int_at(json_array_get(wanted, (size_t)d), s));
            }
            meg_blend_weighted(&x, w, k, get_int(c, "size"));
        }
        assert_int_equal(x.n, json_array_size(dataset));
        for (int64_t j = 0; j < x.n; j++) {
            assert_int_equal(x.dataset[j], int_at(dataset, (size_t)j));
            assert_int_equal(x.sample[j], int_at(sample, (size_t)j));
        }
        meg_blend_index_free(&x);
    }
    json_decref(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_dataset_furthest_below_its_weight_is_next),
        cmocka_unit_test(weights_are_multiplied_in_f64),
        cmocka_unit_test(an_exhaustive_blend_takes_each_sample_once),
        cmocka_unit_test(weights_are_summed_pairwise),
        cmocka_unit_test(a_dataset_is_built_half_a_percent_larger),
        cmocka_unit_test(counts_with_a_surplus_are_rounded_up_twice),
        cmocka_unit_test(golden_indices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
