/* embedding.c - cases of embed_fwd, embed_bwd, position_fwd and position_bwd: word and position embeddings, dropout. */
#include <stdlib.h>
#include "base/mem.h"
#include "ops.h"

/* The first id of a shard of the vocabulary. */
enum { V0 = 1000 };

/* Hidden sizes below, at and above the size of a vector and the number of columns that a warp processes. */
static const struct {
    int64_t h, pad;
} shapes[] = { { 1, 0 }, { 8, 0 }, { 13, 3 }, { 64, 8 }, { 257, 1 }, { 264, 0 } };

/* ---- tokens and positions ---- */

/* The ids of the next case: tokens or positions. */
static int32_t *ids;

/* Set n random ids in [first, first + rows); lower ids are more frequent. */
static void random_ids(int64_t n, int64_t first, int64_t rows)
{
    ids = meg_realloc_array(ids, (size_t)n, sizeof *ids);
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)(first + op_below(op_below(rows) + 1));
}

static void shuffle(int64_t n)
{
    for (int64_t i = n - 1; i > 0; i--) {
        const int64_t j = op_below(i + 1);
        const int32_t swap = ids[i];

        ids[i] = ids[j];
        ids[j] = swap;
    }
}

static void fill_ids(struct op_call *c, const char *name)
{
    struct op_tensor *const t = op_find(c, name);

    for (int64_t i = 0; t && i < t->numel; i++)
        t->v[i] = ids[i];
}

/* PLAIN results are equal on CUDA.  CHUNKS: a row has several chunks of tokens, which are summed in another order. */
enum { PLAIN, CHUNKS, ONES };

static double cuda(const struct op_call *c, const struct op_tensor *t)
{
    return c->variant != CHUNKS ? 0 : t->dtype == MEG_DTYPE_F32 ? 1e-6 : op_tolerance(t->dtype);
}

/* ---- embed_fwd ---- */

static void embed_fill(struct op_call *c)
{
    struct op_tensor *const dx = op_find(c, "dx");

    fill_ids(c, "token");
    if (c->variant == ONES) {
        struct op_tensor *const dword = op_find(c, "dword");

        for (int64_t i = 0; i < dx->numel; i++)
            dx->v[i] = 1;
        for (int64_t i = 0; i < dword->numel; i++)
            dword->v[i] = 0;
    }
}

static void embed_fwd_ref(struct op_call *c)
{
    const int64_t v0 = ((const struct meg_embed_fwd_args *)c->args)->v0, h = op_size(c, "h"), v = op_size(c, "v");
    const double *token = op_in(c, "token"), *word = op_in(c, "word");
    struct op_tensor *x = op_find(c, "x");

    for (int64_t i = 0; i < x->numel; i++) {
        const int64_t row = (int64_t)token[i / h] - v0;

        x->want[i] = row >= 0 && row < v ? word[row * h + i % h] : 0;
    }
}

static void embed_fwd_one(struct op_mix t, int64_t n, int64_t rows, int64_t h, int64_t pad, int64_t v0)
{
    OP_CASE(embed_fwd, PLAIN, .x = op_mat(t.stream, n, h, pad), .word = op_mat(t.branch, rows, h, pad), .v0 = v0);
}

static void embed_fwd_shapes(void)
{
    for (int m = 0; m < OP_MIXES; m++) {
        for (size_t i = 0; i < LEN(shapes); i++) {
            random_ids(21, V0 - 4, 20);
            embed_fwd_one(op_mixes[m], 21, 12, shapes[i].h, shapes[i].pad, V0);
        }
        random_ids(26, 0, 11);
        embed_fwd_one(op_mixes[m], 26, 11, 150, 1, 0);
    }
}

/* There are more rows than a grid has blocks. */
static void embed_fwd_many_rows(void)
{
    random_ids(66000, -1, 7);
    embed_fwd_one(op_mixes[0], 66000, 5, 1, 0, 0);
}

static void embed_bench_ids(void)
{
    random_ids(16384, 0, 50304);
    for (int i = 0; i < 16384; i++)
        ids[i] = (int32_t)((uint32_t)i * 2654435761u % 50304);
}

static void embed_fwd_bench(void)
{
    embed_bench_ids();
    embed_fwd_one(op_mixes[1], 16384, 50304, 4096, 0, 0);
}

OP_TEST(embed_fwd, .fill = embed_fill, .ref = embed_fwd_ref, .cuda = cuda, .bench = embed_fwd_bench,
        .group = { { "shapes and types", embed_fwd_shapes }, { "more rows than a grid", embed_fwd_many_rows } });

/* ---- embed_bwd ---- */

/*
 * Add row r of dx [n,h] to row index[r] - first of out, for all r, in f64.  The CPU rounds to bf16 and f16 after each
 * 512 rows of dx.
 */
static void scatter(struct op_tensor *out, const double *dx, const double *index, int64_t first, int64_t n)
{
    const int64_t rows = out->size[0], h = out->size[1], roundings = n > 512 ? n / 512 : 0;
    const double ulp = out->dtype == MEG_DTYPE_BF16 ? 0x1p-8 : out->dtype == MEG_DTYPE_F16 ? 0x1p-11 : 0;
    double *most = meg_new((size_t)(out->numel + 1) * sizeof *most),
           *count = meg_new((size_t)(rows + 1) * sizeof *count);

    for (int64_t i = 0; i < out->numel; i++)
        out->want[i] = 0;
    for (int64_t r = 0; r < n; r++) {
        const int64_t row = (int64_t)index[r] - first;

        for (int64_t i = row * h; row >= 0 && row < rows && i < (row + 1) * h; i++) {
            out->want[i] += dx[r * h + i - row * h];
            most[i] = fmax(most[i], fabs(out->want[i]));
        }
        if (row >= 0 && row < rows)
            count[row]++;
    }
    for (int64_t i = 0; i < out->numel; i++)
        out->tol[i] = 32 * EPS * fmax(1, count[i / h] / 26) + (double)roundings * ulp * most[i];
    free(most);
    free(count);
}

static void embed_bwd_ref(struct op_call *c)
{
    const int64_t v0 = ((const struct meg_embed_bwd_args *)c->args)->v0;

    struct op_tensor *const dword = op_find(c, "dword");

    scatter(dword, op_in(c, "dx"), op_in(c, "token"), v0, op_size(c, "n"));
    if (c->variant == ONES)
        memset(dword->tol, 0, (size_t)dword->numel * sizeof *dword->tol);
}

/* The gradient of `rows` rows from n tokens. */
static void embed_bwd_one(int variant, enum meg_dtype grad, enum meg_dtype t, int64_t rows, int64_t h, int64_t pad,
                          int64_t n)
{
    for (int accumulate = 0; accumulate < 2; accumulate++)
        OP_CASE(embed_bwd, variant, .dword = op_mat(grad, rows, h, pad), .v0 = V0, .dx = op_mat(t, n, h, pad),
                .accumulate = accumulate);
}

static void embed_bwd_types(void)
{
    for (int i = 0; i < OP_FLOATS * OP_FLOATS; i++) {
        random_ids(100, V0 - 5, 40);
        embed_bwd_one(PLAIN, (enum meg_dtype)(i / 3), (enum meg_dtype)(i % 3), 31, 24, 0, 100);
        random_ids(26, V0, 11);
        embed_bwd_one(PLAIN, (enum meg_dtype)(i / 3), (enum meg_dtype)(i % 3), 11, 150, 3, 26);
    }
}

static void embed_bwd_shapes(void)
{
    for (int t = 0; t < OP_FLOATS; t++)
        for (size_t i = 0; i < LEN(shapes); i++) {
            random_ids(50, V0 - 1, 11);
            embed_bwd_one(PLAIN, (enum meg_dtype)t, (enum meg_dtype)t, 9, shapes[i].h, shapes[i].pad, 50);
        }
}

/*
 * Rows have 0 to 16 tokens.  Some of these numbers are multiples of the number of rows of dx that a thread loads at a
 * time.
 */
static void embed_bwd_lengths(void)
{
    int n = 0;

    random_ids(136, 0, 1);
    for (int row = 0; row < 17; row++)
        for (int i = 0; i < row; i++)
            ids[n++] = V0 + 3 * row;
    shuffle(n);
    embed_bwd_one(PLAIN, MEG_DTYPE_F32, MEG_DTYPE_BF16, 50, 9, 0, n);
}

/*
 * The numbers of tokens are below, at and above multiples of the chunk size (128), so that chunks of different rows
 * begin at close positions.
 */
static void embed_bwd_frequent(void)
{
    static const int lengths[] = { 1, 129, 129, 127, 128, 300, 2, 256, 257, 385, 130 };
    int n = 0;

    random_ids(2048, 0, 1);
    for (int row = 0; row < 11; row++)
        for (int i = 0; i < lengths[row]; i++)
            ids[n++] = V0 + row;
    for (int t = 0; t < OP_FLOATS; t++) {
        embed_bwd_one(CHUNKS, (enum meg_dtype)t, (enum meg_dtype)t, 12, 11, 5, n);
        shuffle(n);
    }
}

/* Each of two rows has 550 tokens with the gradient 1.  If each sum were rounded to bf16, it would stay at 256. */
static void embed_bwd_ones(void)
{
    random_ids(1100, 0, 1);
    for (int i = 0; i < 1100; i++)
        ids[i] = V0 + i % 2;
    for (int t = 0; t < OP_FLOATS; t++)
        embed_bwd_one(ONES, (enum meg_dtype)t, (enum meg_dtype)t, 2, 130, 0, 1100);
}

/*
 * Several blocks sort the tokens by two digits of 9 bits.  Only a stable sort retains the order of additions.  There
 * are more counts (17 tiles, 512 values) than the scan processes at a time.
 */
static void embed_bwd_many_tokens(void)
{
    enum { N = 34000 };

    random_ids(N, 0, 1);
    for (int64_t i = 0; i < N; i++) {
        const int64_t group = op_below(600);

        ids[i] = (int32_t)(V0 - 5 + group * group * group % 70003 + op_below(2) * 512);
    }
    OP_CASE(embed_bwd, PLAIN, .dword = op_mat(MEG_DTYPE_F32, 70000, 2, 0), .v0 = V0,
            .dx = op_mat(MEG_DTYPE_F32, N, 2, 0), .accumulate = true);
}

/* The shard has 2^18 rows.  Tokens of other shards sort as row 2^18, a key of 19 bits, which takes three passes. */
static void embed_bwd_large_vocabulary(void)
{
    const int64_t rows = 1 << 18;

    random_ids(300, 0, 1);
    for (int i = 0; i < 300; i++)
        ids[i] = (int32_t)(V0 + (i % 3 == 0 ? rows - 2 + op_below(4) : op_below(i % 3 == 1 ? 2 : rows)));
    OP_CASE(embed_bwd, PLAIN, .dword = op_mat(MEG_DTYPE_F32, rows, 1, 0), .v0 = V0,
            .dx = op_mat(MEG_DTYPE_F32, 300, 1, 0), .accumulate = true);
}

/* If there are no tokens, or none of this shard, the gradient is zero or does not change. */
static void embed_bwd_no_tokens(void)
{
    random_ids(70, 0, V0);
    embed_bwd_one(PLAIN, MEG_DTYPE_BF16, MEG_DTYPE_F32, 20, 10, 1, 0);
    embed_bwd_one(PLAIN, MEG_DTYPE_F32, MEG_DTYPE_F32, 20, 10, 6, 70);
    embed_bwd_one(PLAIN, MEG_DTYPE_F32, MEG_DTYPE_F32, 0, 10, 0, 70);
}

static void embed_bwd_bench(void)
{
    embed_bench_ids();
    OP_CASE(embed_bwd, PLAIN, .dword = op_mat(MEG_DTYPE_F32, 50304, 4096, 0),
            .dx = op_mat(MEG_DTYPE_BF16, 16384, 4096, 0), .accumulate = true);
}

OP_TEST(embed_bwd, .fill = embed_fill, .ref = embed_bwd_ref, .grad_of = &op_test_embed_fwd, .added = "dword",
        .cuda = cuda, .bench = embed_bwd_bench,
        .group = { { "types", embed_bwd_types },
                   { "shapes", embed_bwd_shapes },
                   { "rows of 0 to 16 tokens", embed_bwd_lengths },
                   { "frequent tokens", embed_bwd_frequent },
                   { "sums are not rounded", embed_bwd_ones },
                   { "many tokens", embed_bwd_many_tokens },
                   { "a large vocabulary", embed_bwd_large_vocabulary },
                   { "no tokens", embed_bwd_no_tokens } });

/* ---- position_fwd ---- */

static const struct meg_drop drops[] = {
    { 0, 1234, 0, MEG_DROP_EMBED, 0, 7, 3, ON, NULL },   { 0.1f, 1234, 0, MEG_DROP_EMBED, 0, 7, 3, ON, NULL },
    { 0.5f, 1234, 0, MEG_DROP_EMBED, 24, 7, 3, ON, ON }, { 0.3f, 1234, 0, MEG_DROP_EMBED, 13, 7, 3, ON, NULL },
    { 0.4f, 5, 0, MEG_DROP_EMBED, 9, 2, 2, ON, NULL },   { 0, 5, 0, MEG_DROP_EMBED, 9, 2, 2, ON, NULL },
};

static void position_fill(struct op_call *c)
{
    fill_ids(c, "position");
}

/* A sum below 2, a factor below 2 and a product below 4 are each rounded. */
static void position_fwd_ref(struct op_call *c)
{
    const struct meg_position_fwd_args *a = c->args;
    const int64_t h = op_size(c, "h");
    const double *position = op_in(c, "position"), *pos = op_in(c, "pos");
    struct op_tensor *x = op_find(c, "x");

    for (int64_t i = 0; i < x->numel; i++) {
        const double sum = x->v[i] + (pos ? pos[(int64_t)position[i / h] * h + i % h] : 0);

        x->want[i] = op_drop_factor(c, a->drop, i / h, i % h) * sum;
        x->tol[i] = 6 * EPS;
    }
}

static void position_fwd_tables(void)
{
    for (int m = 0; m < OP_MIXES; m++)
        for (size_t k = 0; k < LEN(drops); k++) {
            for (size_t i = 0; i < LEN(shapes); i++) {
                random_ids(12, 0, 9);
                OP_CASE(position_fwd, PLAIN, .x = op_mat(op_mixes[m].stream, 12, shapes[i].h, shapes[i].pad),
                        .position = ON, .pos = op_mat(op_mixes[m].branch, 9, shapes[i].h, shapes[i].pad),
                        .drop = &drops[k]);
            }
            random_ids(26, 0, 20);
            OP_CASE(position_fwd, PLAIN, .x = op_mat(op_mixes[m].stream, 26, 150, 0), .position = ON,
                    .pos = op_mat(op_mixes[m].branch, 20, 150, 2), .drop = &drops[k]);
        }
}

static void position_fwd_no_table(void)
{
    for (int t = 0; t < OP_FLOATS; t++)
        for (size_t k = 0; k < LEN(drops); k++)
            OP_CASE(position_fwd, PLAIN, .x = op_mat((enum meg_dtype)t, 12, 50, 6), .drop = &drops[k]);
}

OP_TEST(position_fwd, .fill = position_fill, .ref = position_fwd_ref, .cuda = cuda,
        .group = { { "shapes, types and dropout", position_fwd_tables },
                   { "dropout without a table", position_fwd_no_table } });

/* ---- position_bwd ---- */

/* dpos is the sum of the values of dx after rounding. */
static void position_bwd_ref(struct op_call *c)
{
    const struct meg_position_bwd_args *a = c->args;
    const int64_t h = op_size(c, "h");
    struct op_tensor *const dx = op_find(c, "dx"), *dpos = op_find(c, "dpos");
    double *rounded = meg_new((size_t)dx->numel * sizeof *rounded);

    for (int64_t i = 0; i < dx->numel; i++) {
        const double f = op_drop_factor(c, a->drop, i / h, i % h);

        dx->want[i] = f * dx->v[i];
        dx->tol[i] = 2 * EPS;
        rounded[i] = op_rounded(dx->dtype, (double)((float)f * (float)dx->v[i]));
    }
    if (dpos)
        scatter(dpos, rounded, op_in(c, "position"), 0, op_size(c, "n"));
    free(rounded);
}

static void position_bwd_one(enum meg_dtype grad, enum meg_dtype t, int64_t n, int64_t h, int64_t pad, int64_t rows,
                             const struct meg_drop *drop)
{
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        random_ids(n, 0, rows);
        OP_CASE(position_bwd, PLAIN, .dpos = op_mat(grad, rows, h, pad), .dx = op_mat(t, n, h, pad), .position = ON,
                .drop = drop, .accumulate = accumulate);
    }
}

static void position_bwd_types(void)
{
    for (int m = 0; m < OP_MIXES; m++)
        for (size_t k = 0; k < LEN(drops); k++) {
            position_bwd_one(op_mixes[m].stream, op_mixes[m].branch, 9, 40, 0, 7, &drops[k]);
            position_bwd_one(op_mixes[m].branch, op_mixes[m].stream, 9, 19, 5, 2, &drops[k]);
            position_bwd_one(op_mixes[m].branch, op_mixes[m].stream, 26, 150, 3, 20, &drops[k]);
            position_bwd_one(MEG_DTYPE_F32, op_mixes[m].stream, 26, 150, 3, 20, &drops[k]);
        }
}

static void position_bwd_no_table(void)
{
    const struct meg_drop d = { 0.25f, 1234, 0, MEG_DROP_EMBED, 0, 7, 4, ON, NULL };

    OP_CASE(position_bwd, PLAIN, .dx = op_mat(MEG_DTYPE_BF16, 8, 24, 0), .drop = &d);
}

OP_TEST(position_bwd, .fill = position_fill, .ref = position_bwd_ref, .grad_of = &op_test_position_fwd, .added = "dpos",
        .cuda = cuda,
        .group = { { "types and dropout", position_bwd_types }, { "dropout without a table", position_bwd_no_table } });
