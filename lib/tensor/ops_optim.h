/*
 * ops_optim.h - the operations of the optimizer step and of sampling, and casts and reductions: the formula and the
 * struct of the arguments of each, and at the end of the file a row that describes the arguments (tensor/op_row.h).
 */
#ifndef MEG_TENSOR_OPS_OPTIM_H
#define MEG_TENSOR_OPS_OPTIM_H
#include "tensor/operands.h"
#include "tensor/step.h"

MEG_BEGIN_DECLS

/*
 * The arrays of an optimizer step.  Element k of each array belongs to the same element of the model.  g and `copy` are
 * f32, bf16 or f16; the other arrays are f32 or bf16.
 *
 * If w, state[0] or state[1] (arrays 0, 1 and 2) is bf16, its values are rounded stochastically, up or down with
 * probabilities that make the mean exact, so that updates below the precision of bf16 are not lost.  The random number
 * is a function of the seed, the update, and the array, parameter and element in the unsharded model (base/philox.h),
 * so the result of rounding does not depend on the parallel layout.
 */
struct meg_update_arrays {
    struct meg_array w, g;     /* parameters, gradients */
    struct meg_array state[2]; /* AdamW: m, v; SGD: momentum, absent */
    struct meg_array copy;     /* out: w, rounded to nearest; if it is absent, no copy is written */
    uint32_t seed;
};

/*
 * Elements [begin, end) of the arrays of an optimizer step, which belong to one parameter.  With i = first + k - begin,
 * element k of the arrays is element base + (i / cols) * ld + i % cols of the unsharded parameter.
 */
struct meg_update_range {
    int64_t begin, end;
    float wd_mult, lr_mult;
    int32_t lr_index; /* index into meg_step_hparams.lr */
    uint32_t row;     /* row of the parameter in the parameter table */
    int64_t first, base, cols, ld;
};

/* Elements [begin, end) of an array. */
struct meg_range {
    int64_t begin, end;
};

struct meg_adam {
    float beta1, beta2, eps;
};

/*
 * How the next token of a row of logits is sampled.  Greedy sampling selects the largest logit and, on a tie, the
 * lowest id.  Otherwise, the token is sampled from the softmax over the kept entries of x = logits / temperature.  The
 * filters are the same as in Megatron-LM.  Top-k keeps the k largest entries, and all entries that are equal to the
 * k-th largest.  Top-p visits x in descending order, on ties the lower id first.  An entry is kept if the total softmax
 * probability of the entries before it is at most p; the first entry is always kept.
 *
 * The token is the first kept entry at which the cumulative sum of probabilities reaches u.  The sum is in ascending
 * order of id or, with a filter, in the order in which top-p visits entries.  If rounding errors keep the sum below u,
 * the token is the last kept entry with a probability above 0.
 */
struct meg_sampling_args {
    double temperature; /* 0: greedy, and the other members are not read */
    double top_p;       /* 0 or 1: off */
    int64_t top_k;      /* 0: off; at most one filter is on */
    double u;           /* a random number in (0,1] */
};

/*
 * A sampled token.  logprob is log softmax(logits)[id] in nats, before temperature and filters, or NAN if it is not
 * computed.  The id is -1 if a logit is NaN or +Inf, or if the logits of all ids that may be sampled are -Inf.
 */
struct meg_sampled_token {
    int32_t id;
    double logprob;
};

/*
 * Sample token [n], the next token of each row of logits [n,v] f32, 1 <= unpadded_vocab <= v < 2^23.  token and args
 * [n] are in device memory; workspace has at least sample_nbytes(n, unpadded_vocab) bytes.  Ids from unpadded_vocab on
 * are never sampled.  Log-probabilities are computed only if has_logprobs is set.
 *
 * The CUDA backend rounds exp((logit - max) / temperature) down to a multiple of 2^-40, so that sums are exact in any
 * order.  It thus never samples an id whose probability is below 2^-40 of the largest one, and its token may differ
 * from the CPU backend's if a sum is closer to u or top_p than these rounding errors.
 */
struct meg_sample_args {
    struct meg_sampled_token *token;
    struct meg_mat logits;
    int64_t unpadded_vocab;
    const struct meg_sampling_args *args;
    bool has_logprobs;
    struct meg_workspace workspace;
};

/* dst [n] = src [n], converted to dst_type. */
struct meg_cast_args {
    void *dst;
    enum meg_dtype dst_type;
    const void *src;
    enum meg_dtype src_type;
    int64_t n;
};

/* Add the sum of squares of x [n] to *out, an f64 in device memory.  The sum is not finite iff an element is not. */
struct meg_sumsq_args {
    double *out;
    const void *x;
    enum meg_dtype type;
    int64_t n;
};

/* Add the sum of squares of range k of x to out[k], for k < nranges; range [nranges] is in device memory. */
struct meg_sumsq_ranges_args {
    double *out;
    const void *x;
    enum meg_dtype type;
    const struct meg_range *range;
    int nranges;
};

/*
 * Add *scale * sum(x * weight) to *out; x [n], weight [n] f32.  scale and out are f64 in device memory.  NULL for
 * weight or scale means 1.
 */
struct meg_weighted_sum_args {
    double *out;
    const float *x, *weight;
    int64_t n;
    const double *scale;
};

/* Add the number of elements of x [n] that are exactly zero to *out, an i64 in device memory. */
struct meg_count_zeros_args {
    int64_t *out;
    const void *x;
    enum meg_dtype type;
    int64_t n;
};

/* Compute meg_step_finish of a record in device memory; conf is host memory, which may be reused on return. */
struct meg_step_finish_args {
    struct meg_step_record *record;
    const struct meg_step_conf *conf;
};

/*
 * One step of AdamW (Loshchilov and Hutter 2019; Apex's FusedAdam, as in Megatron) on the elements of the ranges:
 *   g' = g * step->grad_scale, m = beta1 * m + (1 - beta1) * g', v = beta2 * v + (1 - beta2) * g'^2,
 *   w -= lr * (m / adam_c1 / (sqrt(v / adam_c2) + eps) + wd * w), copy = w
 * with lr = step->lr[lr_index] * lr_mult and wd = step->weight_decay * wd_mult.  range [nranges] and step are in device
 * memory.  If step->skip is set, do nothing.
 */
struct meg_adamw_args {
    const struct meg_update_arrays *arrays;
    const struct meg_update_range *range;
    int nranges;
    const struct meg_adam *adam;
    const struct meg_step_hparams *step;
};

/*
 * One step of SGD.  It takes the arguments of adamw, with `momentum` instead of `adam`; buf is state[0]:
 *   g' = g * step->grad_scale + wd * w, buf = momentum * buf + g' (first update: buf = g'),
 *   w -= lr * buf, copy = w
 */
struct meg_sgd_args {
    const struct meg_update_arrays *arrays;
    const struct meg_update_range *range;
    int nranges;
    float momentum;
    const struct meg_step_hparams *step;
};

/* The operations of this file (MEG_ISA_OPS). */
#define MEG_OPTIM_OPS(X) X(cast) X(sumsq) X(sumsq_ranges) X(weighted_sum) X(count_zeros) X(adamw) X(sgd)

MEG_END_DECLS
#endif

#ifdef MEG_OP_ROW
/* clang-format off */
MEG_OP_ROW(sample, check_sample,
    FIELD(sample, token, OUT, "n") FIELD(sample, logits, IN, "n v") VALUE(sample, unpadded_vocab)
    FIELD(sample, args, IN, "n"))
MEG_OP_ROW(cast, NULL,
    FIELD(cast, dst, OUT, "n", "dst_type") VALUE(cast, dst_type) FIELD(cast, src, IN, "n", "src_type")
    VALUE(cast, src_type) VALUE(cast, n))
MEG_OP_ROW(sumsq, NULL,
    FIELD(sumsq, out, INOUT, "1") FIELD(sumsq, x, IN, "n", "type") VALUE(sumsq, type) VALUE(sumsq, n))
MEG_OP_ROW(sumsq_ranges, NULL,
    FIELD(sumsq_ranges, out, INOUT, "nranges") VALUE(sumsq_ranges, type) FIELD(sumsq_ranges, range, IN, "nranges")
    VALUE(sumsq_ranges, nranges))
MEG_OP_ROW(weighted_sum, NULL,
    FIELD(weighted_sum, out, INOUT, "1") FIELD(weighted_sum, x, IN, "n") FIELD(weighted_sum, weight, IN | OPTIONAL, "n")
    VALUE(weighted_sum, n) FIELD(weighted_sum, scale, IN | OPTIONAL, "1"))
MEG_OP_ROW(count_zeros, NULL,
    FIELD(count_zeros, out, INOUT, "1") FIELD(count_zeros, x, IN, "n", "type") VALUE(count_zeros, type)
    VALUE(count_zeros, n))
MEG_OP_ROW(step_finish, check_step_finish,
    FIELD(step_finish, record, INOUT, "1") VALUE(step_finish, conf))
MEG_OP_ROW(adamw, check_adamw,
    VALUE(adamw, arrays) VALUE(adamw, nranges) FIELD(adamw, range, IN, "nranges") VALUE(adamw, adam)
    FIELD(adamw, step, IN, "1"))
MEG_OP_ROW(sgd, check_sgd,
    VALUE(sgd, arrays) VALUE(sgd, nranges) FIELD(sgd, range, IN, "nranges") FIELD(sgd, step, IN, "1"))
/* clang-format on */
#endif

#ifdef MEG_PLACEMENT_RULE
/* clang-format off */
MEG_PLACEMENT_RULE(weighted_sum, "out", .factors = "x weight", .linear = "x")
/* clang-format on */
#endif
