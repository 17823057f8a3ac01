/*
 * Random numbers: Philox against the known answers of Random123, its streams against numbers computed in Python, and
 * the Mersenne Twister against libstdc++, Python 3.11, and NumPy 1.24 and torch 1.13 (golden/data/rng).
 */
#include "golden.h"

#include <math.h>

#include "base/hash.h"
#include "data/mt19937.h"
#include "base/philox.h"

#define LEN(a) (sizeof(a) / sizeof *(a))

static void philox_equals_known_answers(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } kat[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff },
          { 0xffffffff, 0xffffffff },
          { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
          { 0xa4093822, 0x299f31d0 },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    uint32_t out[4];
    size_t i;

    (void)state;
    for (i = 0; i < LEN(kat); i++) {
        meg_philox(out, kat[i].key, kat[i].counter);
        assert_memory_equal(out, kat[i].out, sizeof out);
    }
}

static void philox_streams_differ_by_purpose(void **state)
{
    static const uint16_t lanes[8] = { 25108, 42737, 60387, 45783, 18109, 55269, 61006, 4041 };
    const char *tensor = "decoder.layers.0.mlp.linear_fc1.weight";
    const uint64_t name = meg_xxh3_64(tensor, strlen(tensor)), element = 5 * (UINT64_C(1) << 32) + 7;
    const int64_t sample = 3 * (INT64_C(1) << 32) + 9;
    uint32_t got[4];

    (void)state;
    assert_true(meg_philox_init_uniform(1234, name, element) == 0.2762412519890739);
    assert_true(fabs(meg_philox_init_normal(1234, name, element) + 1.5953119841600045) < 1e-15);
    meg_philox_dropout(got, 1234, 16 * 2 + 3, 11, 77, sample);
    for (int i = 0; i < 8; i++)
        assert_int_equal(got[i / 2] >> 16 * (i % 2) & 0xffff, lanes[i]);
    assert_true(meg_philox_sampling(42, 6, sample) == 0.5969683831146217);
    assert_true(meg_philox_unit(0, 0) == 0x1p-53);
    assert_true(meg_philox_unit(0xffffffff, 0xffffffff) == 1.0);
}

static void initial_weights_are_normally_distributed(void **state)
{
    enum { N = 100000 };
    double sum = 0, sum2 = 0, sum4 = 0;
    uint64_t i;

    (void)state;
    for (i = 0; i < N; i++) {
        double x = meg_philox_init_normal(1, 2, i);

        sum += x;
        sum2 += x * x;
        sum4 += x * x * x * x;
    }
    assert_true(fabs(sum / N) < 4 / sqrt(N)); /* four standard deviations of each estimate */
    assert_true(fabs(sum2 / N - 1) < 4 * sqrt(2.0 / N));
    assert_true(fabs(sum4 / N - 3) < 4 * sqrt(96.0 / N));
}

static void mt19937_equals_the_standard_library(void **state)
{
    static const uint64_t want[4] = { 17473339210090333472u, 963351229459618018u, 17972999874122035550u,
                                      17445978100525441934u };
    struct meg_mt19937 g;
    struct meg_mt19937_64 h;
    int i;

    (void)state;
    meg_mt19937_seed(&g, 5489);
    meg_mt19937_64_seed(&h, 5489);
    for (i = 0; i < 9999; i++) {
        meg_mt19937_u32(&g);
        meg_mt19937_64_u64(&h);
    }
    assert_int_equal(meg_mt19937_u32(&g), 4123659995u); /* the 10000th number, from the C++ standard */
    assert_int_equal(meg_mt19937_64_u64(&h), 9981545732273789042u);
    meg_mt19937_64_seed(&h, 1234);
    for (i = 0; i < 4; i++)
        assert_int_equal(meg_mt19937_64_u64(&h), want[i]);
}

static void draws_equal_those_of_numpy(void **state)
{
    static const int32_t shuffled[10] = { 7, 2, 9, 1, 0, 8, 4, 5, 6, 3 };
    static const int64_t permuted[7] = { 6, 4, 3, 1, 0, 5, 2 };
    struct meg_mt19937 g;
    int32_t a[10];
    int64_t p[7];
    uint64_t v;
    int i;

    (void)state;
    meg_mt19937_seed(&g, 1234);
    assert_true(meg_mt19937_double(&g) == 0.1915194503788923);
    assert_true(meg_mt19937_double(&g) == 0.6221087710398319);
    meg_mt19937_seed(&g, 1234);
    assert_int_equal(meg_mt19937_interval(&g, 0), 0); /* does not advance the generator */
    for (i = 0; i < 10; i++)
        a[i] = i;
    meg_mt19937_shuffle_i32(&g, a, 10);
    assert_memory_equal(a, shuffled, sizeof a);
    meg_torch_randperm(p, 7, 1234);
    assert_memory_equal(p, permuted, sizeof p);
    for (i = 0; i < 100; i++) {
        v = meg_mt19937_interval(&g, UINT64_C(5) << 32);
        assert_true(v <= UINT64_C(5) << 32);
    }
}

/* ---- golden/data/rng ---- */

/* Shuffle 0 .. n-1 as uint32, int32 and int64 from the same state of g, and compare each result with want. */
static void same_shuffle(struct meg_mt19937 *g, const json_t *want)
{
    size_t n = json_array_size(want), i;
    uint32_t *u = malloc((n + 1) * sizeof *u);
    int32_t *s = malloc((n + 1) * sizeof *s);
    int64_t *l = malloc((n + 1) * sizeof *l);
    struct meg_mt19937 g2 = *g, g3 = *g;

    for (i = 0; i < n; i++)
        l[i] = s[i] = (int32_t)(u[i] = (uint32_t)i);
    meg_mt19937_shuffle_u32(g, u, (int64_t)n);
    meg_mt19937_shuffle_i32(&g2, s, (int64_t)n);
    meg_mt19937_shuffle_i64(&g3, l, (int64_t)n);
    for (i = 0; i < n; i++) {
        json_int_t v = json_integer_value(json_array_get(want, i));

        assert_true(u[i] == v && s[i] == v && l[i] == v);
    }
    free(u);
    free(s);
    free(l);
}

static void golden_draws_of_numpy(void **state)
{
    static const double ngram3[3] = { 1.0 / (1 + 1.0 / 2 + 1.0 / 3), 0.5 / (1 + 1.0 / 2 + 1.0 / 3),
                                      1.0 / 3 / (1 + 1.0 / 2 + 1.0 / 3) };
    static const double longer[3] = { 1.0 / 3 / (1 + 1.0 / 2 + 1.0 / 3), 0.5 / (1 + 1.0 / 2 + 1.0 / 3),
                                      1.0 / (1 + 1.0 / 2 + 1.0 / 3) };
    json_t *all = golden_json("data/rng/numpy_randomstate.json"), *one, *v, *list;
    const char *seed, *n;
    struct meg_mt19937 g;
    size_t i;

    (void)state;
    json_object_foreach(all, seed, one)
    {
        uint32_t s = (uint32_t)strtoul(seed, NULL, 10);
#define EACH(key)                                                                                                      \
    meg_mt19937_seed(&g, s);                                                                                           \
    assert_true(json_array_size(json_object_get(one, key)) > 0);                                                       \
    json_array_foreach(json_object_get(one, key), i, v)

        EACH("raw_uint32")
        assert_int_equal(meg_mt19937_u32(&g), json_integer_value(v));
        EACH("random")
        assert_true(meg_mt19937_double(&g) == strtod(json_string_value(v), NULL));
        EACH("randint_1_to_n_for_n_2_to_20")
        assert_int_equal(meg_mt19937_randint(&g, 1, (int64_t)i + 2), json_integer_value(v));
        EACH("randint_0_30522")
        assert_int_equal(meg_mt19937_randint(&g, 0, 30522), json_integer_value(v));
        EACH("choice_ngram3")
        assert_int_equal(1 + meg_mt19937_choice(&g, ngram3, 3), json_integer_value(v));
        EACH("choice_ngram3_longer")
        assert_int_equal(1 + meg_mt19937_choice(&g, longer, 3), json_integer_value(v));
        EACH("geometric_0.2")
        assert_int_equal(meg_mt19937_geometric(&g, 0.2), json_integer_value(v));
        EACH("shuffle9_then5_same_state")
        same_shuffle(&g, v);
        assert_true(json_object_size(json_object_get(one, "shuffle")) > 0);
        json_object_foreach(json_object_get(one, "shuffle"), n, list)
        {
            meg_mt19937_seed(&g, s);
            assert_int_equal(json_array_size(list), atoi(n));
            same_shuffle(&g, list);
        }
    }
    assert_true(json_object_size(all) > 0);
    json_decref(all);
}

static void golden_draws_of_torch(void **state)
{
    json_t *all = golden_json("data/rng/torch_randperm.json"), *want, *v;
    const char *key;
    unsigned seed;
    size_t n, i;

    (void)state;
    json_object_foreach(all, key, want)
    {
        assert_int_equal(sscanf(key, "seed%u_n%zu", &seed, &n), 2);
        assert_int_equal(json_array_size(want), n);
        int64_t *p = malloc(n * sizeof *p);

        meg_torch_randperm(p, (int64_t)n, seed);
        json_array_foreach(want, i, v) assert_int_equal(p[i], json_integer_value(v));
        free(p);
    }
    assert_true(json_object_size(all) > 0);
    json_decref(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_equals_known_answers),
        cmocka_unit_test(philox_streams_differ_by_purpose),
        cmocka_unit_test(initial_weights_are_normally_distributed),
        cmocka_unit_test(mt19937_equals_the_standard_library),
        cmocka_unit_test(draws_equal_those_of_numpy),
        cmocka_unit_test(golden_draws_of_numpy),
        cmocka_unit_test(golden_draws_of_torch),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
