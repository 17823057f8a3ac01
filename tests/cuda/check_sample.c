/* check_sample.c - cases of cuda/sample.cu: sampling of tokens. */
#include <stdlib.h>
#include <string.h>
#include "check.h"
#include "cuda/internal.h"

/*
 * Numbers of logits below, at and above the sizes of a warp and a block, and some for which a thread has several
 * batches of 4 logits.  The last `padding` logits belong to ids that are never sampled.
 */
static const struct {
    int64_t v, padding, pad;
} shapes[] = {
    { 1, 0, 0 }, { 33, 1, 7 }, { 1000, 24, 0 }, { 1024, 0, 0 }, { 4097, 0, 5 }, { 9001, 77, 8 },
};
enum { SHAPES = sizeof shapes / sizeof *shapes, ROWS = 8 };

/*
 * Return logits of ROWS rows of four types: with a density that decreases on both sides of the mean, with one logit
 * that is much larger than the others, with few different values, among them 0 and -0, and with many -Inf.
 */
static struct twin logits_random(int64_t v, int64_t pad)
{
    struct twin x = twin_random(MEG_DTYPE_F32, ROWS, v, pad);

    for (int64_t r = 0; r < ROWS; r++) {
        const int64_t largest = op_below(v);

        for (int64_t c = 0; c < v; c++) {
            const double y = 3 * (op_uniform() + op_uniform() + op_uniform());

            switch (r % 4) {
            case 0: twin_set(&x, r, c, (float)y); break;
            case 1: twin_set(&x, r, c, c == largest ? 25 : (float)y); break;
            case 2: twin_set(&x, r, c, (float)op_below(5) / (op_below(2) ? 4 : -4)); break;
            case 3: twin_set(&x, r, c, c == largest || op_below(3) == 0 ? (float)y - 1e4f : -INFINITY); break;
            }
        }
        twin_set(&x, r, 0, 1); /* at least one logit is finite, for any vocabulary size */
    }
    twin_upload(&x);
    return x;
}

/* Sample by both backends, and compare the tokens. */
static void compare(const struct twin *x, int64_t unpadded_vocab, const struct meg_sampling_args *args,
                    bool has_logprobs)
{
    const struct twin_bytes a = twin_bytes(args, ROWS * sizeof *args);
    struct meg_sampled_token got[ROWS], none[ROWS];
    struct twin_bytes token;
    struct meg_workspace on_cpu = { .nbytes = cpu->sample_nbytes(ROWS, unpadded_vocab) };
    struct meg_workspace on_gpu = { .nbytes = gpu->sample_nbytes(ROWS, unpadded_vocab) };

    memset(none, 0xff, sizeof none);
    token = twin_bytes(none, sizeof none);
    on_cpu.p = cpu->alloc(on_cpu.nbytes);
    on_gpu.p = gpu->alloc(on_gpu.nbytes);
    MEG_CALL(cpu, NULL, sample, .token = token.host, .logits = x->host, .unpadded_vocab = unpadded_vocab,
             .args = a.host, .has_logprobs = has_logprobs, .workspace = on_cpu);
    MEG_CALL(gpu, stream, sample, .token = token.dev, .logits = x->dev, .unpadded_vocab = unpadded_vocab, .args = a.dev,
             .has_logprobs = has_logprobs, .workspace = on_gpu);
    twin_bytes_read(got, &token);
    for (int r = 0; r < ROWS; r++) {
        const struct meg_sampled_token *want = (const struct meg_sampled_token *)token.host + r;

        if (got[r].id != want->id)
            check_fail("row %d of %d logits, temperature %g, top_k %d, top_p %g, u %.17g: id %d, not %d", r,
                       (int)x->host.cols, args[r].temperature, (int)args[r].top_k, args[r].top_p, args[r].u, got[r].id,
                       want->id);
        if (isnan(got[r].logprob) != isnan(want->logprob) ||
            fabs(got[r].logprob - want->logprob) > 1e-12 * (1 + fabs(want->logprob)))
            check_fail("row %d: log-probability %.17g, not %.17g", r, got[r].logprob, want->logprob);
    }
    cpu->release(on_cpu.p);
    gpu->release(on_gpu.p);
}

/* Return a random number in (0,1], often a very small one. */
static double random_u(void)
{
    const double u = (op_uniform() + 1) / 2;

    return op_below(4) == 0 ? 1e-9 * (1 - u) : 1 - u;
}

/* Compare tokens of all shapes; `change` sets the filter of a row. */
static void compare_shapes(void (*change)(struct meg_sampling_args *a, int64_t unpadded_vocab))
{
    static const double temperatures[] = { 1, 0.3, 1.7, 1e-40, 100 };

    for (int i = 0; i < SHAPES; i++) {
        const struct twin x = logits_random(shapes[i].v, shapes[i].pad);
        const int64_t unpadded_vocab = shapes[i].v - shapes[i].padding;

        for (int k = 0; k < 2; k++) {
            struct meg_sampling_args args[ROWS];

            for (int r = 0; r < ROWS; r++) {
                args[r] = (struct meg_sampling_args){ .temperature = temperatures[(3 * k + r) % 5], .u = random_u() };
                change(&args[r], unpadded_vocab);
            }
            compare(&x, unpadded_vocab, args, k % 2);
        }
    }
}

static void set_greedy(struct meg_sampling_args *a, int64_t unpadded_vocab)
{
    (void)unpadded_vocab;
    a->temperature = 0;
}

static void set_no_filter(struct meg_sampling_args *a, int64_t unpadded_vocab)
{
    (void)unpadded_vocab;
    a->top_p = (double)op_below(2);
}

static void set_top_k(struct meg_sampling_args *a, int64_t unpadded_vocab)
{
    a->top_k = 1 + op_below(op_below(2) && unpadded_vocab > 50 ? 50 : unpadded_vocab);
}

static void set_top_p(struct meg_sampling_args *a, int64_t unpadded_vocab)
{
    (void)unpadded_vocab;
    a->top_p = op_below(4) == 0 ? 1e-12 : (op_uniform() + 1) / 2;
}

static void greedy(void)
{
    compare_shapes(set_greedy);
}

static void no_filter(void)
{
    compare_shapes(set_no_filter);
}

static void top_k(void)
{
    compare_shapes(set_top_k);
}

static void top_p(void)
{
    compare_shapes(set_top_p);
}

/* Sample rows with different filters and temperatures in one call. */
static void mixed(void)
{
    enum { V = 12304, UNPADDED = 12257 };
    const struct twin x = logits_random(V, 0);
    struct meg_sampling_args args[ROWS];

    for (int r = 0; r < ROWS; r++) {
        args[r] = (struct meg_sampling_args){ .temperature = 0.5 + r / 8., .u = random_u() };
        (r % 4 == 0 ? set_greedy : r % 4 == 1 ? set_no_filter : r % 4 == 2 ? set_top_k : set_top_p)(&args[r], UNPADDED);
    }
    compare(&x, UNPADDED, args, true);
}

/*
 * The logits of 4 x 1024 ids have 4 values, with weights 8, 4, 2 and 1.  With u = (k - 1/2) / total, where total is the
 * sum of the kept weights, the sampled entry is the one at which the sum of weights reaches k.
 */
static void exact_weights(void)
{
    enum { N = 1024, V = 4 * N };
    static const int weight[4] = { 2, 8, 1, 4 }; /* of ids 0 to 3 modulo 4 */
    const int64_t sums[ROWS] = { 1, 8, 9, 8 * N, 8 * N + 1, 12 * N, 12 * N + 2, 14 * N };
    struct twin x = twin_output(MEG_DTYPE_F32, ROWS, V, 0);
    struct meg_sampling_args args[ROWS];

    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t c = 0; c < V; c++)
            twin_set(&x, r, c, logf((float)weight[c % 4]));
    twin_upload(&x);
    for (int r = 0; r < ROWS; r++)
        args[r] =
            (struct meg_sampling_args){ .temperature = 1, .top_k = 2 * N + 1, .u = ((double)sums[r] - 0.5) / (14 * N) };
    compare(&x, V, args, false);
    for (int r = 0; r < ROWS; r++) {
        args[r].top_k = 0;
        args[r].top_p = (12.5 * N + r) / (15 * N);
    }
    compare(&x, V, args, false);
    for (int r = 0; r < ROWS; r++)
        args[r].top_p = 0;
    compare(&x, V, args, false);
}

/*
 * With 2^n equal logits, all sums are exact: if u is k / 2^n, the kth entry reaches u exactly, and the next entry
 * reaches the next larger u.  Top-p of k / 2^n keeps the entries up to the one after the kth; the largest top-p below 1
 * keeps all.
 */
static void exact_sums(void)
{
    enum { V = 2048 };
    const int64_t k[ROWS] = { 1, 31, 32, 1023, 1024, 1025, V - 1, V };
    struct twin x = twin_output(MEG_DTYPE_F32, ROWS, V + 1, 0);
    struct meg_sampling_args args[ROWS];

    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t c = 0; c <= V; c++)
            twin_set(&x, r, c, c == 700 ? -INFINITY : -0.25f * (float)r);
    twin_upload(&x);
    for (int i = 0; i < 4; i++) {
        for (int r = 0; r < ROWS; r++) {
            const double u = (double)k[r] / V;

            args[r] = (struct meg_sampling_args){ .temperature = 1,
                                                  .top_k = i % 2 * V,
                                                  .u = i < 2 || k[r] == V ? u : nextafter(u, 1) };
        }
        compare(&x, V + 1, args, false);
    }
    for (int r = 0; r < ROWS; r++)
        args[r] = (struct meg_sampling_args){ .temperature = 1,
                                              .top_p = k[r] < V ? (double)k[r] / V : nextafter(1, 0),
                                              .u = ((double)k[r] + 0.5) / ((double)k[r] + 1) };
    compare(&x, V + 1, args, false);
}

/* Sample rows that contain NaN or +Inf, and rows without an id that can be sampled. */
static void not_finite(void)
{
    enum { V = 3000, UNPADDED = 2900 };
    struct twin x = logits_random(V, 3);
    struct meg_sampling_args args[ROWS];

    twin_set(&x, 0, 0, NAN);
    twin_set(&x, 1, UNPADDED - 1, INFINITY);
    twin_set(&x, 2, V - 1, NAN);
    twin_set(&x, 3, UNPADDED, INFINITY);
    twin_set(&x, 4, UNPADDED, -INFINITY);
    for (int64_t c = 0; c < V; c++) {
        twin_set(&x, 5, c, c < UNPADDED ? -INFINITY : 0);
        twin_set(&x, 6, c, c == 2048 ? -1e38f : -INFINITY);
        twin_set(&x, 7, c, c == UNPADDED ? 3e38f : -3e38f);
    }
    twin_upload(&x);
    for (int k = 0; k < 4; k++) {
        for (int r = 0; r < ROWS; r++) {
            args[r] = (struct meg_sampling_args){ .temperature = 1, .u = random_u() };
            (k == 0 ? set_greedy : k == 1 ? set_no_filter : k == 2 ? set_top_k : set_top_p)(&args[r], UNPADDED);
        }
        compare(&x, UNPADDED, args, k % 2);
    }
}

const struct check_case cases_sample[] = {
    { "sample: greedy decoding", greedy },
    { "sample: without a filter", no_filter },
    { "sample: top-k", top_k },
    { "sample: top-p", top_p },
    { "sample: rows with different arguments", mixed },
    { "sample: sums of exact weights", exact_weights },
    { "sample: exact sums", exact_sums },
    { "sample: logits that are not finite", not_finite },
    { 0 },
};
