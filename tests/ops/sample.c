/* sample.c - cases of sample: the next token of each row of logits. */
#include <stdlib.h>
#include "base/mem.h"
#include "ops.h"

enum { ROWS = 8 };

/* ---- reference ---- */

/* An id that may be sampled. */
struct entry {
    double logit, weight;
    int32_t id;
};

/* Order entries by descending logit and ascending id. */
static int compare(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;

    return x->logit != y->logit ? (x->logit < y->logit) - (x->logit > y->logit) : (x->id > y->id) - (x->id < y->id);
}

/* Return the number of the first entries that a filter keeps, and set *sum to the sum of their weights. */
static int64_t kept(const struct entry *e, int64_t n, const struct meg_sampling_args *a, double total, double *sum)
{
    int64_t i;

    *sum = 0;
    for (i = 0; i < n; i++) {
        if (a->top_k > 0 && i >= a->top_k && e[i].logit != e[a->top_k - 1].logit)
            break;
        if (a->top_p > 0 && a->top_p < 1 && i > 0 && *sum / total > a->top_p)
            break;
        *sum += e[i].weight;
    }
    return i;
}

/* Return the id that is sampled from logits x of ids below n. */
static int32_t sampled(const double *x, int64_t n, const struct meg_sampling_args *a)
{
    struct entry *const e = meg_new((size_t)n * sizeof *e);
    const bool has_filter = a->top_k > 0 || (a->top_p > 0 && a->top_p < 1);
    double most = -INFINITY, total = 0, sum, cumulative = 0;
    int32_t id = -1;
    int64_t left;

    for (int64_t i = 0; i < n; i++)
        most = fmax(most, x[i]);
    for (int64_t i = 0; i < n; i++) {
        e[i] = (struct entry){ x[i], exp((x[i] - most) / a->temperature), (int32_t)i };
        total += e[i].weight;
    }
    if (has_filter || a->temperature == 0)
        qsort(e, (size_t)n, sizeof *e, compare);
    left = kept(e, a->temperature == 0 ? 1 : n, a, total, &sum);
    for (int64_t i = 0; i < left && (i == 0 || cumulative / sum < a->u); i++) {
        cumulative += e[i].weight;
        if (e[i].weight > 0 || a->temperature == 0)
            id = e[i].id;
    }
    free(e);
    return id;
}

/* Return the logarithm of the sum of the exponentials of x [v]; NaN if an element is NaN or +infinity. */
static double log_sum_exp(const double *x, int64_t v)
{
    double most = -INFINITY, sum = 0;

    for (int64_t i = 0; i < v; i++)
        most = fmax(most, x[i]);
    for (int64_t i = 0; i < v; i++)
        sum += exp(x[i] - most);
    return most + log(sum);
}

static void ref(struct op_call *c)
{
    const struct meg_sample_args *a = c->args;
    const int64_t n = op_size(c, "n"), v = op_size(c, "v");
    struct op_tensor *const token = op_find(c, "token");

    for (int64_t r = 0; r < n; r++) {
        const double *x = op_in(c, "logits") + r * v, lse = log_sum_exp(x, v);
        bool is_possible = false;

        for (int64_t i = 0; i < a->unpadded_vocab; i++)
            is_possible |= isfinite(x[i]);
        token->want[2 * r] = isnan(lse) || !is_possible ? -1 : sampled(x, a->unpadded_vocab, &a->args[r]);
        token->want[2 * r + 1] = NAN;
        if (token->want[2 * r] >= 0 && a->has_logprobs) {
            token->want[2 * r + 1] = x[(int64_t)token->want[2 * r]] - lse;
            token->tol[2 * r + 1] = 1e-12 * (1 + fabs(token->want[2 * r + 1]));
        }
    }
}

/* ---- calls ---- */

/* The call has a workspace of the size that the backend requires. */
static void call(const struct meg_ops *op, struct meg_stream *st, const void *args)
{
    struct meg_sample_args a = *(const struct meg_sample_args *)args;

    a.workspace.nbytes = op->sample_nbytes(a.logits.rows, a.unpadded_vocab);
    a.workspace.p = op->alloc(a.workspace.nbytes);
    op->sample(st, &a);
    op->release(a.workspace.p);
}

static struct meg_sampling_args sampling[ROWS]; /* of the next case */

static void one(int variant, int64_t v, int64_t pad, int64_t unpadded_vocab, bool has_logprobs)
{
    OP_CASE(sample, variant, .token = ON, .logits = op_mat(MEG_DTYPE_F32, ROWS, v, pad),
            .unpadded_vocab = unpadded_vocab, .args = sampling, .has_logprobs = has_logprobs);
}

/* ---- random logits ---- */

/* WEIGHTS and EQUAL: see exact_weights and exact_sums. */
enum { RANDOM, NOT_FINITE, WEIGHTS, EQUAL };

static const int weight[4] = { 2, 8, 1, 4 }; /* of ids 0 to 3 modulo 4 */

/*
 * Set rows of four types: with a density that decreases on both sides of the mean, with one logit that is much larger
 * than the others, with few different values, among them 0 and -0, and with many of -infinity.
 */
static void fill_random(double *x, int64_t v)
{
    for (int64_t r = 0; r < ROWS; r++, x += v) {
        const int64_t largest = op_below(v);

        for (int64_t i = 0; i < v; i++) {
            const double y = 3 * (op_uniform() + op_uniform() + op_uniform());

            switch (r % 4) {
            case 0: x[i] = y; break;
            case 1: x[i] = i == largest ? 25 : y; break;
            case 2: x[i] = (double)op_below(5) / (op_below(2) ? 4 : -4); break;
            default: x[i] = i == largest || op_below(3) == 0 ? y - 1e4 : -INFINITY;
            }
        }
        x[0] = 1; /* at least one logit is finite, for any vocabulary size */
    }
}

static void fill(struct op_call *c)
{
    const int64_t v = op_size(c, "v"), unpadded = op_size(c, "unpadded_vocab");
    double *const x = op_in(c, "logits");

    if (!x)
        return;
    fill_random(x, v);
    for (int64_t i = 0; i < v; i++) {
        for (int64_t r = 0; r < ROWS && c->variant == WEIGHTS; r++)
            x[r * v + i] = log(weight[i % 4]);
        for (int64_t r = 0; r < ROWS && c->variant == EQUAL; r++)
            x[r * v + i] = i == 700 ? -INFINITY : -0.25 * (double)r;
        if (c->variant == NOT_FINITE) {
            x[5 * v + i] = i < unpadded ? -INFINITY : 0;
            x[6 * v + i] = i == 2048 ? -1e38 : -INFINITY;
            x[7 * v + i] = i == unpadded ? 3e38 : -3e38;
        }
    }
    if (c->variant == NOT_FINITE) {
        x[0] = NAN;
        x[v + unpadded - 1] = INFINITY;
        x[3 * v - 1] = NAN;
        x[3 * v + unpadded] = INFINITY;
        x[4 * v + unpadded] = -INFINITY;
    }
}

/*
 * Numbers of logits below, at and above the sizes of a warp and a block, and some for which a thread has several
 * batches of 4 logits.  The last `padding` logits belong to ids that are never sampled.
 */
static const struct {
    int64_t v, padding, pad;
} shapes[] = {
    { 1, 0, 0 }, { 33, 1, 7 }, { 1000, 24, 0 }, { 1024, 0, 0 }, { 4097, 0, 5 }, { 9001, 77, 8 },
};

/* Return a random number in (0,1], often a very small one. */
static double random_u(void)
{
    const double u = (op_uniform() + 1) / 2;

    return op_below(4) == 0 ? 1e-9 * (1 - u) : 1 - u;
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

/* Sample from logits of all shapes; `set` sets the filter of a row. */
static void of_shapes(void (*set)(struct meg_sampling_args *a, int64_t unpadded_vocab))
{
    static const double temperatures[] = { 1, 0.3, 1.7, 1e-40, 100 };

    for (size_t i = 0; i < LEN(shapes); i++)
        for (int k = 0; k < 2; k++) {
            for (int r = 0; r < ROWS; r++) {
                sampling[r] =
                    (struct meg_sampling_args){ .temperature = temperatures[(3 * k + r) % 5], .u = random_u() };
                set(&sampling[r], shapes[i].v - shapes[i].padding);
            }
            one(RANDOM, shapes[i].v, shapes[i].pad, shapes[i].v - shapes[i].padding, k % 2);
        }
}

static void greedy(void)
{
    of_shapes(set_greedy);
}

static void no_filter(void)
{
    of_shapes(set_no_filter);
}

static void top_k(void)
{
    of_shapes(set_top_k);
}

static void top_p(void)
{
    of_shapes(set_top_p);
}

static void (*const set_filter[])(struct meg_sampling_args *a, int64_t unpadded_vocab) = { set_greedy, set_no_filter,
                                                                                           set_top_k, set_top_p };

/* Sample rows with different filters and temperatures in one call. */
static void mixed(void)
{
    for (int r = 0; r < ROWS; r++) {
        sampling[r] = (struct meg_sampling_args){ .temperature = 0.5 + r / 8., .u = random_u() };
        set_filter[r % 4](&sampling[r], 12257);
    }
    one(RANDOM, 12304, 0, 12257, true);
}

/* Sample rows that contain NaN or infinity, and rows without an id that can be sampled. */
static void not_finite(void)
{
    for (int k = 0; k < 4; k++) {
        for (int r = 0; r < ROWS; r++) {
            sampling[r] = (struct meg_sampling_args){ .temperature = 1, .u = random_u() };
            set_filter[k](&sampling[r], 2900);
        }
        one(NOT_FINITE, 3000, 3, 2900, k % 2);
    }
}

/* ---- exact sums ---- */

/*
 * The logits of 4 x 1024 ids have 4 values, with weights 8, 4, 2 and 1.  With u = (k - 1/2) / total, where total is the
 * sum of the kept weights, the sampled entry is the one at which the sum of weights reaches k.
 */
static void exact_weights(void)
{
    enum { N = 1024 };
    static const int64_t sums[ROWS] = { 1, 8, 9, 8 * N, 8 * N + 1, 12 * N, 12 * N + 2, 14 * N };

    for (int r = 0; r < ROWS; r++)
        sampling[r] =
            (struct meg_sampling_args){ .temperature = 1, .top_k = 2 * N + 1, .u = ((double)sums[r] - 0.5) / (14 * N) };
    one(WEIGHTS, 4 * N, 0, 4 * N, false);
    for (int r = 0; r < ROWS; r++) {
        sampling[r].top_k = 0;
        sampling[r].top_p = (12.5 * N + r) / (15 * N);
    }
    one(WEIGHTS, 4 * N, 0, 4 * N, false);
    for (int r = 0; r < ROWS; r++)
        sampling[r].top_p = 0;
    one(WEIGHTS, 4 * N, 0, 4 * N, false);
}

/*
 * With 2^n equal logits, all sums are exact: if u is k / 2^n, the kth entry reaches u exactly, and the next entry
 * reaches the next larger u.  Top-p of k / 2^n keeps the entries up to the one after the kth; the largest top-p below 1
 * keeps all.
 */
static void exact_sums(void)
{
    enum { V = 2048 };
    static const int64_t k[ROWS] = { 1, 31, 32, 1023, 1024, 1025, V - 1, V };

    for (int i = 0; i < 4; i++) {
        for (int r = 0; r < ROWS; r++) {
            const double u = (double)k[r] / V;

            sampling[r] = (struct meg_sampling_args){ .temperature = 1,
                                                      .top_k = i % 2 * V,
                                                      .u = i < 2 || k[r] == V ? u : nextafter(u, 1) };
        }
        one(EQUAL, V + 1, 0, V + 1, false);
    }
    for (int r = 0; r < ROWS; r++)
        sampling[r] = (struct meg_sampling_args){ .temperature = 1,
                                                  .top_p = k[r] < V ? (double)k[r] / V : nextafter(1, 0),
                                                  .u = ((double)k[r] + 0.5) / ((double)k[r] + 1) };
    one(EQUAL, V + 1, 0, V + 1, false);
}

const struct op_test op_test_sample = {
    .row = &meg_row_sample,
    .nbytes = sizeof(struct meg_sample_args),
    .call = call,
    .fill = fill,
    .ref = ref,
    .extra = { { "token", .shape = "n", .format = "ixd", .dtype = MEG_DTYPES },
               { "args", .shape = "n", .format = "ddqd", .dtype = MEG_DTYPES } },
    .group = { { "greedy decoding", greedy },
               { "without a filter", no_filter },
               { "top-k", top_k },
               { "top-p", top_p },
               { "rows with different arguments", mixed },
               { "sums of exact weights", exact_weights },
               { "exact sums", exact_sums },
               { "logits that are not finite", not_finite } },
};
