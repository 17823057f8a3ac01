/* check_embedding.c - cases of cuda/embedding.cu: word and position embeddings. */
#include "check.h"
#include "cuda/internal.h"

static const enum meg_dtype types[] = { MEG_DTYPE_F32, MEG_DTYPE_BF16, MEG_DTYPE_F16 };
enum { TYPES = sizeof types / sizeof *types };

/* Hidden sizes below, at and above the size of a vector and the number of columns that a warp processes. */
static const struct {
    int64_t h, pad;
} shapes[] = { { 1, 0 }, { 8, 0 }, { 13, 3 }, { 64, 8 }, { 257, 1 }, { 264, 0 } };
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* The first id of a shard of the vocabulary. */
enum { V0 = 1000 };

/* Return n random ids in [first, first + rows); lower ids are more frequent. */
static struct twin_bytes ids_random(int64_t n, int64_t first, int64_t rows)
{
    int32_t id[8192];

    for (int64_t i = 0; i < n; i++)
        id[i] = (int32_t)(first + op_below(op_below(rows) + 1));
    return twin_bytes(id, (size_t)n * sizeof *id);
}

static void shuffle(int32_t *id, int n)
{
    for (int i = n - 1; i > 0; i--) {
        const int64_t j = op_below(i + 1);
        const int32_t swap = id[i];

        id[i] = id[j];
        id[j] = swap;
    }
}

/* ---- word embeddings ---- */

static void embed_fwd(void)
{
    for (int m = 0; m < OP_MIXES; m++)
        for (int i = 0; i < SHAPES; i++) {
            const int64_t n = 21, rows = 12;
            const struct twin word = twin_random(op_mixes[m].branch, rows, shapes[i].h, shapes[i].pad);
            const struct twin x = twin_output(op_mixes[m].stream, n, shapes[i].h, shapes[i].pad);
            const struct twin_bytes token = ids_random(n, V0 - 4, rows + 8);

            MEG_CALL(cpu, NULL, embed_fwd, .x = x.host, .token = token.host, .word = word.host, .v0 = V0);
            MEG_CALL(gpu, stream, embed_fwd, .x = x.dev, .token = token.dev, .word = word.dev, .v0 = V0);
            expect_equal(&x, "x");
        }
}

static void embed_fwd_many_rows(void)
{
    const struct twin word = twin_random(MEG_DTYPE_F32, 5, 1, 0), x = twin_output(MEG_DTYPE_F32, 66000, 1, 0);
    int32_t *id = x.host.p;
    struct twin_bytes token;

    for (int64_t i = 0; i < 66000; i++)
        id[i] = (int32_t)op_below(7) - 1;
    token = twin_bytes(id, 66000 * sizeof *id);
    MEG_CALL(cpu, NULL, embed_fwd, .x = x.host, .token = token.host, .word = word.host);
    MEG_CALL(gpu, stream, embed_fwd, .x = x.dev, .token = token.dev, .word = word.dev);
    expect_equal(&x, "x");
}

/*
 * Compare the gradients of `rows` rows that both backends compute.  If each row has at most one chunk of tokens, both
 * backends add in the same order, and the results are equal (in bf16 and f16, for up to 512 tokens).
 */
static void compare_embed_bwd(enum meg_dtype grad, enum meg_dtype t, int64_t rows, int64_t h, int64_t pad, int64_t n,
                              struct twin_bytes token, bool accumulate, bool is_equal)
{
    const struct twin dx = twin_random(t, n, h, pad);
    const struct twin dword = accumulate ? twin_random(grad, rows, h, pad) : twin_output(grad, rows, h, pad);

    MEG_CALL(cpu, NULL, embed_bwd, .dword = dword.host, .v0 = V0, .dx = dx.host, .token = token.host,
             .accumulate = accumulate);
    MEG_CALL(gpu, stream, embed_bwd, .dword = dword.dev, .v0 = V0, .dx = dx.dev, .token = token.dev,
             .accumulate = accumulate);
    if (is_equal)
        expect_equal(&dword, "dword");
    else
        expect_near(&dword, grad == MEG_DTYPE_F32 ? 1e-6 : op_tolerance(grad), "dword");
}

static void embed_bwd_types(void)
{
    for (int k = 0; k < TYPES; k++)
        for (int m = 0; m < TYPES; m++)
            for (int accumulate = 0; accumulate < 2; accumulate++)
                compare_embed_bwd(types[k], types[m], 31, 24, 0, 100, ids_random(100, V0 - 5, 40), accumulate, true);
}

static void embed_bwd_shapes(void)
{
    for (int k = 0; k < TYPES; k++)
        for (int i = 0; i < SHAPES; i++)
            for (int accumulate = 0; accumulate < 2; accumulate++)
                compare_embed_bwd(types[k], types[k], 9, shapes[i].h, shapes[i].pad, 50, ids_random(50, V0 - 1, 11),
                                  accumulate, true);
}

/*
 * Rows have 0 to 16 tokens.  Some of these numbers are multiples of the number of rows of dx that a thread loads at a
 * time.
 */
static void embed_bwd_lengths(void)
{
    int32_t id[153];
    int n = 0;

    for (int row = 0; row < 17; row++)
        for (int i = 0; i < row; i++)
            id[n++] = V0 + 3 * row;
    shuffle(id, n);
    compare_embed_bwd(MEG_DTYPE_F32, MEG_DTYPE_BF16, 50, 9, 0, n, twin_bytes(id, (size_t)n * sizeof *id), false, true);
}

/* The scratch memory behind the sorted tokens contains numbers of another operation, which are not used as tokens. */
static void embed_bwd_old_scratch(void)
{
    const struct twin x = twin_random(MEG_DTYPE_F32, 64, 1000, 0), sums = twin_output(MEG_DTYPE_F32, 1, 1000, 0);
    const int32_t id[] = { V0, V0, V0, V0, V0 };

    meg_cuda_column_sums(stream, sums.dev.p, MEG_DTYPE_F32, x.dev, false);
    compare_embed_bwd(MEG_DTYPE_F32, MEG_DTYPE_F32, 8, 8, 0, 5, twin_bytes(id, sizeof id), false, true);
}

/*
 * Rows have several chunks of tokens.  The numbers of tokens are below, at and above multiples of the chunk size (128),
 * so that chunks of different rows begin at close positions.
 */
static void embed_bwd_frequent(void)
{
    static const int lengths[] = { 1, 129, 129, 127, 128, 300, 2, 256, 257, 385, 130 };
    int32_t id[2048];
    int n = 0;

    for (int row = 0; row < 11; row++)
        for (int i = 0; i < lengths[row]; i++)
            id[n++] = V0 + row;
    for (int k = 0; k < TYPES; k++)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            compare_embed_bwd(types[k], types[k], 12, 11, 5, n, twin_bytes(id, (size_t)n * sizeof *id), accumulate,
                              false);
            shuffle(id, n);
        }
}

/*
 * All tokens belong to one row: a list of many chunks, in f32, with the order of additions that embedding.cu documents.
 */
static void embed_bwd_one_row(void)
{
    enum { N = 1500, CHUNK = 128 };
    const struct twin dx = twin_random(MEG_DTYPE_F32, N, 3, 0), dword = twin_random(MEG_DTYPE_F32, 2, 3, 0);
    int32_t id[N];

    for (int i = 0; i < N; i++)
        id[i] = V0 + 1;
    for (int c = 0; c < 3; c++) {
        float total = twin_get(&dword, 1, c);

        for (int first = 0; first < N; first += CHUNK) {
            float sum = 0;

            for (int i = first; i < N && i < first + CHUNK; i++)
                sum += twin_get(&dx, i, c);
            total += sum;
        }
        ((float *)dword.host.p)[3 + c] = total;
    }
    MEG_CALL(gpu, stream, embed_bwd, .dword = dword.dev, .v0 = V0, .dx = dx.dev, .token = twin_bytes(id, sizeof id).dev,
             .accumulate = true);
    expect_equal(&dword, "dword");
}

/*
 * Several blocks sort the tokens by two digits of 9 bits.  Only a stable sort retains the order of additions.  There
 * are more counts (17 tiles, 512 values) than the scan processes at a time.
 */
static void embed_bwd_many_tokens(void)
{
    enum { N = 34000 };
    const int64_t rows = 70000;
    int32_t id[N];

    for (int64_t i = 0; i < N; i++) {
        const int64_t group = op_below(600);

        id[i] = (int32_t)(V0 - 5 + group * group * group % 70003 + op_below(2) * 512);
    }
    compare_embed_bwd(MEG_DTYPE_F32, MEG_DTYPE_F32, rows, 2, 0, N, twin_bytes(id, sizeof id), true, true);
}

/* The shard has 2^18 rows.  Tokens of other shards sort as row 2^18, a key of 19 bits, which takes three passes. */
static void embed_bwd_large_vocabulary(void)
{
    const int64_t rows = 1 << 18;
    int32_t id[300];

    for (int i = 0; i < 300; i++)
        id[i] = (int32_t)(V0 + (i % 3 == 0 ? rows - 2 + op_below(4) : op_below(i % 3 == 1 ? 2 : rows)));
    compare_embed_bwd(MEG_DTYPE_F32, MEG_DTYPE_F32, rows, 1, 0, 300, twin_bytes(id, sizeof id), true, true);
}

/* If there are no tokens, or none of this shard, the gradient is zero or does not change. */
static void embed_bwd_no_tokens(void)
{
    const struct twin_bytes absent = ids_random(70, 0, V0);

    for (int accumulate = 0; accumulate < 2; accumulate++) {
        compare_embed_bwd(MEG_DTYPE_BF16, MEG_DTYPE_F32, 20, 10, 1, 0, absent, accumulate, true);
        compare_embed_bwd(MEG_DTYPE_F32, MEG_DTYPE_F32, 20, 10, 6, 70, absent, accumulate, true);
        compare_embed_bwd(MEG_DTYPE_F32, MEG_DTYPE_F32, 0, 10, 0, 70, absent, accumulate, true);
    }
}

/* ---- position embeddings ---- */

/* The same dropout parameters, with arrays in host memory and in device memory. */
struct drop_twin {
    struct meg_drop host, dev;
};

static struct drop_twin drop_random(int64_t n, int64_t b, float p, int64_t unit0, bool has_positions)
{
    int64_t sample[8];
    int32_t position[64];
    struct twin_bytes samples, positions;
    struct drop_twin d = { .host = {
                               .p = p, .seed = 1234, .site = MEG_DROP_EMBED, .unit0 = unit0, .pos0 = 7, .b = b } };

    for (int64_t i = 0; i < b; i++)
        sample[i] = ((int64_t)1 << 33) + op_below(1 << 20);
    for (int64_t i = 0; i < n; i++)
        position[i] = (int32_t)op_below(5000);
    samples = twin_bytes(sample, (size_t)b * sizeof *sample);
    positions = twin_bytes(position, (size_t)n * sizeof *position);
    d.dev = d.host;
    d.host.sample = samples.host;
    d.dev.sample = samples.dev;
    if (has_positions) {
        d.host.position_of_row = positions.host;
        d.dev.position_of_row = positions.dev;
    }
    return d;
}

static const struct drop_case {
    float p;
    int64_t unit0;
    bool has_positions;
} drop_cases[] = { { 0, 0, false }, { 0.1f, 0, false }, { 0.5f, 24, true }, { 0.3f, 13, false } };
enum { DROP_CASES = sizeof drop_cases / sizeof *drop_cases };

static void position_fwd(void)
{
    for (int m = 0; m < OP_MIXES; m++)
        for (int i = 0; i < SHAPES; i++)
            for (int k = 0; k < DROP_CASES; k++) {
                const int64_t b = 3, n = 4 * b, h = shapes[i].h;
                const struct drop_case *dc = &drop_cases[k];
                const struct drop_twin d = drop_random(n, b, dc->p, dc->unit0, dc->has_positions);
                const struct twin x = twin_random(op_mixes[m].stream, n, h, shapes[i].pad);
                const struct twin pos = twin_random(op_mixes[m].branch, 9, h, shapes[i].pad);
                const struct twin_bytes position = ids_random(n, 0, 9);

                MEG_CALL(cpu, NULL, position_fwd, .x = x.host, .position = position.host, .pos = pos.host,
                         .drop = &d.host);
                MEG_CALL(gpu, stream, position_fwd, .x = x.dev, .position = position.dev, .pos = pos.dev,
                         .drop = &d.dev);
                expect_equal(&x, "x");
            }
}

static void position_fwd_no_table(void)
{
    for (int m = 0; m < TYPES; m++)
        for (int k = 0; k < DROP_CASES; k++) {
            const struct drop_case *dc = &drop_cases[k];
            const struct drop_twin d = drop_random(10, 2, dc->p, dc->unit0, dc->has_positions);
            const struct twin x = twin_random(types[m], 10, 50, 6);

            MEG_CALL(cpu, NULL, position_fwd, .x = x.host, .drop = &d.host);
            MEG_CALL(gpu, stream, position_fwd, .x = x.dev, .drop = &d.dev);
            expect_equal(&x, "x");
        }
}

static void compare_position_bwd(enum meg_dtype grad, enum meg_dtype t, int64_t h, int64_t pad, int64_t rows,
                                 const struct drop_case *dc, bool accumulate)
{
    const int64_t b = 3, n = 9;
    const struct drop_twin d = drop_random(n, b, dc->p, dc->unit0, dc->has_positions);
    const struct twin dx = twin_random(t, n, h, pad);
    const struct twin dpos = accumulate ? twin_random(grad, rows, h, pad) : twin_output(grad, rows, h, pad);
    const struct twin_bytes position = ids_random(n, 0, rows);

    MEG_CALL(cpu, NULL, position_bwd, .dpos = dpos.host, .dx = dx.host, .position = position.host, .drop = &d.host,
             .accumulate = accumulate);
    MEG_CALL(gpu, stream, position_bwd, .dpos = dpos.dev, .dx = dx.dev, .position = position.dev, .drop = &d.dev,
             .accumulate = accumulate);
    expect_equal(&dx, "dx");
    expect_equal(&dpos, "dpos");
}

static void position_bwd(void)
{
    for (int m = 0; m < OP_MIXES; m++)
        for (int k = 0; k < DROP_CASES; k++)
            for (int accumulate = 0; accumulate < 2; accumulate++) {
                compare_position_bwd(op_mixes[m].stream, op_mixes[m].branch, 40, 0, 7, &drop_cases[k], accumulate);
                compare_position_bwd(op_mixes[m].branch, op_mixes[m].stream, 19, 5, 2, &drop_cases[k], accumulate);
            }
}

static void position_bwd_no_table(void)
{
    const struct drop_twin d = drop_random(8, 4, 0.25f, 0, false);
    const struct twin dx = twin_random(MEG_DTYPE_BF16, 8, 24, 0);

    MEG_CALL(cpu, NULL, position_bwd, .dx = dx.host, .drop = &d.host);
    MEG_CALL(gpu, stream, position_bwd, .dx = dx.dev, .drop = &d.dev);
    expect_equal(&dx, "dx");
}

const struct check_case cases_embedding[] = {
    { "embed_fwd: shapes and types", embed_fwd },
    { "embed_fwd: more rows than a grid", embed_fwd_many_rows },
    { "embed_bwd: types", embed_bwd_types },
    { "embed_bwd: shapes", embed_bwd_shapes },
    { "embed_bwd: rows of 0 to 16 tokens", embed_bwd_lengths },
    { "embed_bwd: numbers of another operation in scratch memory", embed_bwd_old_scratch },
    { "embed_bwd: frequent tokens", embed_bwd_frequent },
    { "embed_bwd: one row", embed_bwd_one_row },
    { "embed_bwd: many tokens", embed_bwd_many_tokens },
    { "embed_bwd: a large vocabulary", embed_bwd_large_vocabulary },
    { "embed_bwd: no tokens", embed_bwd_no_tokens },
    { "position_fwd: shapes, types and dropout", position_fwd },
    { "position_fwd: dropout without a table", position_fwd_no_table },
    { "position_bwd: types and dropout", position_bwd },
    { "position_bwd: dropout without a table", position_bwd_no_table },
    { NULL, NULL },
};
