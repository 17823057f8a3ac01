/* attention_cases.c - the cases of attn_fwd and attn_bwd. */
#include "attention.h"
#include "base/err.h"
#include "base/philox.h"

/* Run cases with each type. */
static void with_types(attn_case *run, const struct attn_conf *c, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (int t = 0; t < OP_FLOATS; t++)
            run(attn_of_type(c[i], (enum meg_dtype)t));
}

void attn_masks(attn_case *run)
{
    static const struct attn_conf c[] = {
        { .s_q = 150, .left = -1 },
        { .s_q = 70, .left = -1, .right = -1, .pad = 8 },
        { .s_q = 140, .b = 1, .left = 20 },
        { .s_q = 90, .b = 1, .left = 10, .right = 5 },
        { .s_q = 70, .b = 1, .left = -1, .right = 30 },
        { .s_q = 45, .b = 3, .a = 6, .g = 2, .d = 12, .right = -1 },
        /* queries attend to only the last key or all but the first key of a tile, or see one key of the next tile */
        { .s_q = 130, .b = 1, .a = 1, .left = 1, .right = 1 },
        { .s_q = 20, .s_k = 63, .b = 1, .a = 1, .left = -1, .right = -1 },
        { .s_q = 20, .s_k = 100, .q0 = 62, .b = 1, .a = 1, .left = -1, .flags = ATTN_EQUAL },
        { .s_q = 140, .a = 1, .left = -1, .flags = ATTN_DOCS },
        { .s_q = 45, .a = 4, .g = 2, .d = 16, .left = -1, .p = 0.3f, .flags = ATTN_DOCS | ATTN_PACKED },
        /* A sequence without keys has o = 0. */
        { .s_q = 70, .b = 3, .a = 1, .left = -1, .right = -1, .flags = ATTN_LENGTHS },
        { .s_q = 70, .b = 3, .a = 1, .left = -1, .flags = ATTN_LENGTHS | ATTN_SINKS },
        { .s_q = 0, .s_k = 5, .left = -1, .right = -1, .q0 = 5 },
    };

    with_types(run, c, LEN(c));
    for (int64_t d = 64; d <= 96; d += 32)
        for (int64_t left = 62; left <= 126; left += 32) {
            const struct attn_conf window = {
                .s_q = 64, .s_k = 128, .q0 = 64, .b = 1, .a = 1, .d = d, .left = left, .flags = ATTN_EQUAL
            };

            with_types(run, &window, 1);
        }
}

/* Head sizes equal to, below and above those to which the kernels pad (64, 96, 128, 256); some rows are not aligned. */
void attn_sizes(attn_case *run)
{
    static const int64_t d[][2] = { { 64, 64 },   { 32, 32 },   { 80, 80 },  { 96, 96 }, { 128, 128 },
                                    { 256, 256 }, { 192, 128 }, { 40, 104 }, { 17, 5 } };
    static const struct attn_conf c[] = {
        { .s_q = 1, .b = 1, .a = 1, .d = 1, .left = -1 },
        { .s_q = 13, .a = 4, .d = 7, .left = -1, .pad = 5, .p = 0.1f },
        { .s_q = 20, .left = -1, .pad = 3 }, /* strides that are not multiples of 16 bytes */
        { .s_q = 66, .b = 1, .a = 6, .g = 2, .left = -1, .flags = ATTN_ACCUMULATE },
        { .s_q = 45, .b = 3, .a = 6, .g = 2, .d = 12, .d_v = 20, .left = -1 },
        { .s_q = 45, .b = 3, .a = 6, .g = 2, .d = 12, .d_v = 5, .left = -1, .right = -1 },
    };
    static const struct attn_conf large[] = {
        { .s_q = 9, .b = 1, .d = 520, .d_v = 8, .left = -1 },
        { .s_q = 9, .b = 1, .d = 3, .d_v = 300, .left = -1, .pad = 1 },
    };

    with_types(run, c, LEN(c));
    for (size_t i = 0; i < LEN(d); i++)
        run(attn_of_type(
            (struct attn_conf){
                .s_q = 33, .s_k = 65, .q0 = 32, .b = 1, .a = 1, .d = d[i][0], .d_v = d[i][1], .left = -1 },
            i % 2 ? MEG_DTYPE_F16 : MEG_DTYPE_BF16));
    for (size_t i = 0; i < LEN(large); i++)
        run(attn_of_type(large[i], MEG_DTYPE_F32));
}

/* Chunks of context parallelism: keys precede, overlap or follow queries; some positions are not multiples of 8. */
void attn_chunks(attn_case *run)
{
    static const struct attn_conf c[] = {
        { .s_q = 40, .s_k = 70, .q0 = 133, .k0 = 63, .b = 1, .left = -1, .p = 0.2f, .flags = ATTN_ACCUMULATE },
        { .s_q = 40, .q0 = 50, .k0 = 60, .b = 1, .left = -1, .p = 0.2f },
        { .s_q = 40, .k0 = 40, .b = 1, .left = -1, .flags = ATTN_GIVEN_DELTA }, /* no key is visible */
        { .s_q = 9, .s_k = 12, .k0 = 9, .a = 4, .g = 2, .d = 8, .left = -1, .p = 0.1f, .flags = ATTN_SINKS },
        { .s_q = 11, .s_k = 50, .q0 = 50, .k0 = 3, .b = 3, .d = 7, .left = -1, .flags = ATTN_DOCS | ATTN_GIVEN_DELTA },
        { .s_q = 40, .q0 = 50, .k0 = 30, .left = 23, .flags = ATTN_OTHER_KEYS | ATTN_GIVEN_DELTA | ATTN_ACCUMULATE },
        { .s_q = 40, .q0 = 50, .k0 = 30, .left = -1, .flags = ATTN_OTHER_KEYS | ATTN_SINKS },
        { .s_q = 10,
          .s_k = 14,
          .q0 = 20,
          .k0 = 17,
          .a = 4,
          .g = 2,
          .d = 7,
          .d_v = 5,
          .left = -1,
          .softcap = 1.5f,
          .p = 0.1f,
          .flags = ATTN_LENGTHS | ATTN_ALIBI | ATTN_REL_BIAS | ATTN_SINKS | ATTN_GIVEN_DELTA },
        /* with the keys of position 0 to 6, tiles and words of dropout bits have one key more than a multiple of 64 */
        { .s_q = 20, .s_k = 58, .q0 = 7, .k0 = 7, .b = 1, .a = 1, .left = -1, .right = -1, .p = 0.2f },
    };

    with_types(run, c, LEN(c));
}

/* The buckets of our reference begin at the distances at which those of Hugging Face's T5 begin. */
static void expect_buckets_of_t5(void)
{
    /* first distances of buckets 8 to 15 (bidirectional) and 16 to 31 (causal) of 32, for a maximum distance of 128 */
    static const int64_t both[] = { 8, 12, 16, 23, 32, 46, 64, 91 };
    static const int64_t past[] = { 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113 };

    for (int n = 0; n < 8; n++)
        for (int side = -1; side <= 1; side += 2) {
            MEG_ASSERT_EQ(attn_bucket(32, 128, true, side * both[n]), (side > 0 ? 16 : 0) + 8 + n);
            MEG_ASSERT_EQ(attn_bucket(32, 128, true, side * (both[n] - 1)), (side > 0 ? 16 : 0) + 7 + n);
        }
    for (int n = 0; n < 16; n++) {
        MEG_ASSERT_EQ(attn_bucket(32, 128, false, -past[n]), 16 + n);
        MEG_ASSERT_EQ(attn_bucket(32, 128, false, 1 - past[n]), 15 + n);
    }
}

/* Soft caps, biases and sinks. */
void attn_scores(attn_case *run)
{
    enum { ALL = ATTN_ALIBI | ATTN_REL_BIAS | ATTN_SINKS };
    static const struct attn_conf c[] = {
        { .s_q = 70, .b = 1, .left = -1, .softcap = 1.5f },
        { .s_q = 45, .b = 3, .a = 6, .g = 2, .d = 12, .left = -1, .softcap = 0.7f },
        { .s_q = 70, .b = 1, .left = -1, .right = -1, .flags = ATTN_ALIBI },
        { .s_q = 40, .s_k = 70, .q0 = 133, .k0 = 63, .b = 1, .left = -1, .flags = ATTN_ALIBI },
        { .s_q = 70, .left = -1, .flags = ATTN_REL_BIAS },
        { .s_q = 40,
          .s_k = 50,
          .b = 1,
          .a = 4,
          .g = 2,
          .left = -1,
          .right = -1,
          .flags = ATTN_REL_BIAS | ATTN_ACCUMULATE | ATTN_ACCUMULATE_PARAMS | ATTN_ALIBI },
        { .s_q = 40, .b = 1, .left = -1, .softcap = 3, .flags = ATTN_REL_BIAS },
        { .s_q = 130, .b = 1, .a = 1, .d = 8, .left = -1, .flags = ATTN_REL_BIAS, .buckets = 32, .max_distance = 128 },
        { .s_q = 130,
          .b = 1,
          .a = 1,
          .d = 8,
          .left = -1,
          .right = -1,
          .flags = ATTN_REL_BIAS,
          .buckets = 32,
          .max_distance = 128 },
        { .s_q = 70, .left = 20, .flags = ATTN_SINKS },
        { .s_q = 40, .a = 4, .g = 2, .left = -1, .flags = ATTN_SINKS | ATTN_ACCUMULATE_PARAMS },
        { .s_q = 45,
          .a = 2,
          .g = 1,
          .d = 12,
          .left = -1,
          .right = -1,
          .softcap = 0.9f,
          .p = 0.2f,
          .flags = ATTN_REL_BIAS },
        { .s_q = 45,
          .b = 3,
          .a = 6,
          .g = 2,
          .d = 12,
          .d_v = 7,
          .left = 30,
          .right = 9,
          .softcap = 0.8f,
          .p = 0.1f,
          .flags = ATTN_LENGTHS | ALL },
        { .s_q = 45,
          .b = 3,
          .a = 6,
          .g = 2,
          .d = 12,
          .d_v = 16,
          .left = 40,
          .softcap = 0.8f,
          .p = 0.1f,
          .flags = ATTN_DOCS | ALL },
        { .s_q = 7,
          .s_k = 9,
          .a = 4,
          .g = 2,
          .d = 3,
          .d_v = 2,
          .q0 = 2,
          .left = 5,
          .softcap = 1.5f,
          .p = 0.2f,
          .flags = ATTN_DOCS | ALL },
    };

    expect_buckets_of_t5();
    with_types(run, c, LEN(c));
}

/* A weight is kept if its number is equal to the threshold: p is the number of a weight of query 0 and keys 0 to 7. */
static void dropout_threshold(attn_case *run)
{
    struct attn_conf c = attn_complete(
        (struct attn_conf){ .s_q = 16, .b = 1, .a = 1, .left = -1, .right = -1, .flags = ATTN_KNOWN_SAMPLE });
    const struct meg_attn_desc desc = attn_desc_of(&c);
    const struct meg_drop d = attn_drop_of(&c);
    uint32_t word[4];

    meg_philox_dropout(word, d.seed, 16 * (uint32_t)d.layer + (uint32_t)d.site,
                       (uint32_t)(d.unit0 * ((desc.s + 7) / 8)), 0, ATTN_SAMPLE);
    for (int n = 0; n < 8; n++) {
        c.p = (float)(word[n / 2] >> n % 2 * 16 & 0xffff) / 65536;
        run(c);
    }
}

void attn_dropout(attn_case *run)
{
    static const struct attn_conf c[] = {
        { .s_q = 130, .a = 1, .left = -1, .p = 0.2f },
        { .s_q = 30, .s_k = 50, .b = 1, .a = 4, .g = 2, .left = -1, .right = -1, .p = 0.2f, .flags = ATTN_SINKS },
    };

    with_types(run, c, LEN(c));
    for (int i = 0; i < 8;
         i++) { /* each kernel for tensor cores, two tiles of queries, several words of mask per row */
        static const int64_t d[] = { 64, 96, 128, 256 };
        const struct attn_conf x = { .s_q = 130,
                                     .q0 = 3,
                                     .k0 = 3,
                                     .b = 1,
                                     .g = 1,
                                     .d = d[i / 2],
                                     .left = 90,
                                     .p = 0.2f,
                                     .flags = ATTN_DOCS | (i % 2 ? ATTN_ALIBI : 0) };

        run(attn_of_type(x, i % 2 ? MEG_DTYPE_F16 : MEG_DTYPE_BF16));
    }
    dropout_threshold(run);
}

/* Outputs and gradients in f32 of bf16 and f16, some of which are more accurate than those of the other cases. */
void attn_types(attn_case *run)
{
    static const struct attn_conf f32[] = {
        { .s_q = 50, .left = -1 },
        { .s_q = 64, .s_k = 512, .b = 1, .left = -1, .right = -1, .flags = ATTN_ONES },
        { .s_q = 512, .b = 1, .a = 1, .left = -1, .right = -1, .flags = ATTN_TIGHT },
        { .s_q = 45, .a = 4, .g = 2, .d = 24, .left = -1, .p = 0.1f, .flags = ATTN_DOCS | ATTN_REL_BIAS | ATTN_SINKS },
    };

    for (int t = MEG_DTYPE_BF16; t <= MEG_DTYPE_F16; t++) {
        struct attn_conf c =
            attn_of_type((struct attn_conf){ .s_q = 50, .left = -1, .flags = ATTN_ACCUMULATE }, (enum meg_dtype)t);

        c.grad = MEG_DTYPE_F32;
        run(c);
        for (size_t i = 0; i < LEN(f32); i++) {
            c = attn_of_type(f32[i], (enum meg_dtype)t);
            c.o = c.grad = MEG_DTYPE_F32;
            run(c);
        }
    }
    for (int t = 0; t < OP_FLOATS; t++) { /* different types of q, k and v */
        struct attn_conf c = attn_of_type((struct attn_conf){ .s_q = 20, .left = -1 }, (enum meg_dtype)t);

        c.k = (enum meg_dtype)((t + 1) % OP_FLOATS);
        c.v = (enum meg_dtype)((t + 2) % OP_FLOATS);
        run(c);
    }
}

/* Shapes of several tiles of the CPU. */
void attn_many_tiles(attn_case *run)
{
    static const struct attn_conf typed = {
        .s_q = 300, .a = 4, .g = 2, .d = 24, .left = -1, .p = 0.1f, .flags = ATTN_ACCUMULATE | ATTN_PACKED
    };
    static const struct attn_conf c[] = {
        { .s_q = 530, .b = 1, .d = 8, .left = -1, .p = 0.2f },
        { .s_q = 530, .a = 1, .d = 8, .left = -1, .p = 0.2f, .flags = ATTN_DOCS },
        { .s_q = 140, .s_k = 600, .b = 1, .a = 1, .d = 12, .left = -1, .right = -1 },
        { .s_q = 300, .g = 1, .d = 12, .left = 5, .flags = ATTN_ALIBI },
        { .s_q = 300, .g = 1, .d = 12, .left = 3, .right = 4, .softcap = 0.7f },
        { .s_q = 300, .g = 1, .d = 12, .d_v = 20, .right = -1 },
        { .s_q = 300,
          .g = 1,
          .d = 12,
          .d_v = 7,
          .left = 30,
          .right = 9,
          .softcap = 0.8f,
          .p = 0.1f,
          .flags = ATTN_LENGTHS | ATTN_ALIBI | ATTN_REL_BIAS | ATTN_SINKS },
        { .s_q = 300,
          .g = 1,
          .d = 12,
          .d_v = 16,
          .left = 40,
          .softcap = 0.8f,
          .p = 0.1f,
          .flags = ATTN_DOCS | ATTN_ALIBI | ATTN_REL_BIAS | ATTN_SINKS },
    };

    with_types(run, &typed, 1);
    for (size_t i = 0; i < LEN(c); i++)
        run(attn_of_type(c[i], MEG_DTYPE_F32));
}

/* Few queries, whose positions can differ between sequences, and many keys, which CUDA splits over blocks. */
void attn_decoding(attn_case *run)
{
    enum { OWN = ATTN_LENGTHS | ATTN_STARTS };
    static const struct attn_conf c[] = {
        { .s_q = 1, .s_k = 700, .q0 = 699, .a = 4, .g = 2, .left = -1 },
        { .s_q = 1, .s_k = 530, .b = 3, .a = 4, .g = 2, .left = -1, .flags = OWN | ATTN_SINKS },
        { .s_q = 3, .s_k = 530, .b = 3, .a = 8, .g = 1, .d = 32, .left = 100, .flags = OWN },
        /* the tiles of the first split begin before key 0, and the number of keys is a multiple of a split's size */
        { .s_q = 1, .s_k = 256, .q0 = 600, .k0 = 7, .b = 1, .left = -1 },
        { .s_q = 2, .s_k = 512, .q0 = 600, .k0 = 7, .b = 1, .left = -1 },
        { .s_q = 1, .s_k = 9, .q0 = 8, .b = 3, .a = 6, .d = 80, .left = -1 },
        { .s_q = 5, .s_k = 301, .q0 = 296, .b = 1, .d = 33, .left = -1, .flags = ATTN_DOCS },
        { .s_q = 1, .s_k = 1000, .q0 = 700, .b = 1, .g = 1, .d = 16, .left = -1 },
    };

    with_types(run, c, LEN(c));
}

/* KV caches in blocks, or in one block per sequence. */
void attn_paged(attn_case *run)
{
    enum { OWN = ATTN_LENGTHS | ATTN_STARTS | ATTN_PAGED, BIASES = ATTN_ALIBI | ATTN_REL_BIAS | ATTN_SINKS };
    static const struct attn_conf c[] = {
        { .s_q = 1, .s_k = 530, .b = 3, .a = 4, .g = 2, .left = -1, .flags = OWN },
        { .s_q = 1, .s_k = 530, .b = 3, .a = 4, .g = 2, .left = -1, .flags = OWN | ATTN_SEPARATE },
        { .s_q = 2, .s_k = 320, .b = 3, .a = 4, .g = 2, .d = 24, .left = 150, .flags = OWN | BIASES },
        { .s_q = 2, .s_k = 320, .b = 3, .a = 4, .g = 2, .d = 24, .left = 150, .flags = OWN | BIASES | ATTN_SEPARATE },
        { .s_q = 40, .s_k = 90, .b = 3, .left = -1, .flags = OWN },
    };

    with_types(run, c, LEN(c));
}

/* NaN and infinity in a key or a value reach the results of the queries that attend to it. */
void attn_not_finite(attn_case *run)
{
    static const int flags[] = { ATTN_NAN_KEY, ATTN_INFINITE_KEY, ATTN_NAN_VALUE };

    for (size_t i = 0; i < LEN(flags); i++)
        run((struct attn_conf){ .s_q = 40, .b = 1, .a = 1, .d = 8, .left = -1, .flags = flags[i] });
}

/* Causal self-attention on packed qkv, with the kernels of cuDNN or, with doc_start or dropout, those of lib/cuda. */
void attn_bench(attn_case *run)
{
    static const struct {
        int64_t s, b, a, g, d;
        int is_own;
    } c[] = {
        { 1024, 64, 12, 12, 64, 1 }, { 1024, 16, 25, 25, 64, 0 }, { 4096, 4, 24, 24, 96, 0 }, { 8192, 1, 32, 8, 128, 1 }
    };

    for (size_t i = 0; i < LEN(c); i++)
        for (int kernel = 0; kernel < (c[i].is_own ? 3 : 1); kernel++)
            run(attn_of_type((struct attn_conf){ .s_q = c[i].s,
                                                 .b = c[i].b,
                                                 .a = c[i].a,
                                                 .g = c[i].g,
                                                 .d = c[i].d,
                                                 .left = -1,
                                                 .p = kernel == 2 ? 0.1f : 0,
                                                 .flags = ATTN_PACKED | (kernel == 1 ? ATTN_DOCS : 0) },
                             MEG_DTYPE_BF16));
}
