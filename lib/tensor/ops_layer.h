/*
 * ops_layer.h - the operations of layers and losses except attention: linear layers, activations, rotary embedding,
 * norms, residual additions, embeddings and cross-entropy.  For each, its formula and the struct of its arguments, and
 * at the end of the file a row that describes the arguments (tensor/op_row.h).
 */
#ifndef MEG_TENSOR_OPS_LAYER_H
#define MEG_TENSOR_OPS_LAYER_H
#include "tensor/operands.h"

MEG_BEGIN_DECLS

/* Activation functions of linear layers and of gated linear units. */
enum meg_act {
    MEG_ACT_NONE,
    MEG_ACT_GELU_TANH, /* tanh form of GELU */
    MEG_ACT_GELU_ERF,  /* exact form of GELU */
    MEG_ACT_TANH,
    MEG_ACT_RELU,
    MEG_ACT_SILU,         /* x / (1 + exp(-x)) */
    MEG_ACT_QUICK_GELU,   /* x / (1 + exp(-1.702 x)) */
    MEG_ACT_SQUARED_RELU, /* relu(x)^2 */
    MEG_ACTS              /* number of the above */
};

/* The types with 1P store a weight as its difference from 1 (Megatron's --apply-layernorm-1p; RMSNorm of Gemma). */
enum meg_norm { MEG_NORM_LAYER, MEG_NORM_RMS, MEG_NORM_LAYER_1P, MEG_NORM_RMS_1P };
static inline MEG_HOST_DEVICE bool meg_norm_is_rms(enum meg_norm type)
{
    return type == MEG_NORM_RMS || type == MEG_NORM_RMS_1P;
}

static inline MEG_HOST_DEVICE bool meg_norm_is_1p(enum meg_norm type)
{
    return type == MEG_NORM_LAYER_1P || type == MEG_NORM_RMS_1P;
}

/*
 * Return the number that is added to each stored weight of a norm: 1 for the 1P types, else 0.  If w is NULL, the
 * stored weights count as 0, and the number is 1.
 */
static inline MEG_HOST_DEVICE float meg_norm_offset(enum meg_norm type, const void *w)
{
    return meg_norm_is_1p(type) || !w ? 1.0f : 0.0f;
}

/*
 * A gated linear unit (Shazeer 2020): y = act(gate) * (up + offset).  If limit is above 0, gate is first clamped to at
 * most limit, and up to [-limit, limit]; the gradient of a clamped value is 0.  GPT-OSS has MEG_ACT_QUICK_GELU, limit 7
 * and offset 1 (GptOssExperts in transformers; activation_func_clamp_value and glu_linear_offset in Megatron).
 */
struct meg_glu {
    enum meg_act act; /* not MEG_ACT_NONE */
    float limit, offset;
};

/*
 * A backend's plan of a linear layer y [n,out] = act(x [n,in] w^T + bias).  Calls may use smaller shapes, but have the
 * data types of the plan: dx has the type of x, the bias that of w, pre and dy that of y, and dbias that of dw.
 */
struct meg_linear_plan;
struct meg_linear_desc {
    int64_t n, in, out;
    enum meg_dtype x, w, y, dw;
};

/*
 * y [n,o] = act(x [n,i] w^T + bias), w [o,i], bias [o] or NULL.  Also write x w^T + bias to pre [n,o], for the backward
 * pass, unless pre.p is NULL or act is MEG_ACT_NONE.  If accumulate, the previous value of pre, or of y if pre is not
 * written, is added to x w^T + bias.
 */
struct meg_linear_fwd_args {
    struct meg_linear_plan *plan;
    struct meg_mat y, pre, x, w;
    const void *bias;
    enum meg_act act;
    bool accumulate;
};

/*
 * dx [n,i] = (dy [n,o] w) * act'(pre [n,i]) or, if accumulate, (dx + dy w) * act'(pre).  If act is MEG_ACT_NONE, pre is
 * not read.
 */
struct meg_linear_bwd_data_args {
    struct meg_linear_plan *plan;
    struct meg_mat dx, dy, w, pre;
    enum meg_act act;
    bool accumulate;
};

/*
 * Compute the gradients dw [o,i] = dy^T x and, unless dbias is NULL, dbias [o] = column sums of dy.  dbias has the type
 * of dw.
 */
struct meg_linear_bwd_weight_args {
    struct meg_linear_plan *plan;
    struct meg_mat dw;
    void *dbias;
    struct meg_mat dy, x;
    bool accumulate;
};

/*
 * dx [n,f] = dy * act'(pre), all [n,f], for an activation whose output is not the input of a linear layer.  dx may be
 * dy.
 */
struct meg_act_bwd_args {
    struct meg_mat dx, dy, pre;
    enum meg_act act;
};

/* y [n,f] = factor * x; y may be x. */
struct meg_scale_args {
    struct meg_mat y, x;
    float factor;
};

/* y [n,f] = cap * tanh(x / cap), the soft cap of Gemma 2; y may be x, and cap is above 0. */
struct meg_softcap_args {
    struct meg_mat y, x;
    float cap;
};

/* y [n,f] = max(-limit, min(limit, x)); y may be x, and limit is above 0. */
struct meg_clamp_args {
    struct meg_mat y, x;
    float limit;
};

/* dx [n,f] = dy where x is from -limit to limit, else 0; dx may be dy. */
struct meg_clamp_bwd_args {
    struct meg_mat dx, dy, x;
    float limit;
};

/* Compute the output y [n,f] of a gated linear unit from x [n,2f] = [gate | up]. */
struct meg_glu_fwd_args {
    const struct meg_glu *unit;
    struct meg_mat y, x;
};

/* Compute dx [n,2f] from dy [n,f] and x; dx may be x. */
struct meg_glu_bwd_args {
    const struct meg_glu *unit;
    struct meg_mat dx, dy, x;
};

/*
 * Rotary position embedding (Su et al. 2021), in place, of the first 2*half columns of a head.  Rotate the pair (x_i,
 * x_{i+half}), or (x_{2i}, x_{2i+1}) if is_interleaved.  The cosine and the sine of its angle are cos[p,i] and sin[p,i]
 * for a token at position p; cos and sin are [positions, half] f32.  With sign -1, rotate back, for gradients.  x is a
 * view of [s, b, g, heads, d] with r = heads (struct meg_heads); position [s,b] i32.
 */
struct meg_rope_args {
    struct meg_heads x;
    int64_t s, b, g, heads, half;
    int is_interleaved;
    const float *cos, *sin;
    const int32_t *position;
    float sign;
};

/* The arguments that qk_norm_fwd and qk_norm_bwd have in common. */
struct meg_qk_norm {
    int64_t s, b, g, heads, d; /* shape of the heads */
    float eps;
    int64_t half; /* this and the following are arguments of rope; half 0: no rotation, and no pointer is read */
    int is_interleaved;
    const float *cos, *sin;
    const int32_t *position;
};

/*
 * QK-norm with rotary position embedding (Qwen3): RMSNorm over the d columns of each head, y = rope(x * rstd * w), rstd
 * = 1/sqrt(mean(x^2) + eps).  x and y are views of [s, b, g, heads, d] with r = heads (struct meg_heads), the query
 * heads or the key heads; w [d] has the type of y; rstd [s,b,g,heads] f32 is an output, kept for qk_norm_bwd.
 */
struct meg_qk_norm_fwd_args {
    const struct meg_qk_norm *q;
    struct meg_heads y;
    float *rstd;
    struct meg_heads x;
    const void *w;
};

/*
 * Compute dx, the gradient of x, from dy, the gradient of y; dx may be dy.  Unless dw is NULL, write the gradient of w
 * to dw [d] of type `grad` or, if accumulate, add it.  w has the type of dy.
 */
struct meg_qk_norm_bwd_args {
    const struct meg_qk_norm *q;
    struct meg_heads dx;
    void *dw;
    enum meg_dtype grad;
    struct meg_heads dy, x;
    const void *w;
    const float *rstd;
    bool accumulate;
};

/*
 * LayerNorm (Ba et al. 2016): y = (x - mean) * rstd * w + b, rstd = 1/sqrt(var + eps), with the biased variance.
 * RMSNorm (Zhang and Sennrich 2019): y = x * rstd * w, rstd = 1/sqrt(mean(x^2) + eps); b is NULL and mean is not
 * written.  With a 1P type, 1 + w replaces w.  A norm without weights or without a bias has w or b NULL, which counts
 * as 1 or 0.  y is computed in f32 and rounded once.  x, y [n,h]; w, b [h]; mean, rstd [n] f32 are outputs, kept for
 * norm_bwd.
 */
struct meg_norm_fwd_args {
    enum meg_norm type;
    struct meg_mat y;
    float *mean, *rstd;
    struct meg_mat x;
    const void *w, *b;
    float eps;
};

/*
 * dx [n,h] = skip + the gradient of x, computed from dy, the gradient of y.  skip [n,h] may be dx; if skip.p is NULL,
 * nothing is added.  Unless they are NULL, compute the gradients dw [h] of w and db [h] of b, both of type `grad`; db
 * is NULL if dw is, and for RMSNorm.
 */
struct meg_norm_bwd_args {
    enum meg_norm type;
    struct meg_mat dx;
    void *dw, *db;
    enum meg_dtype grad;
    struct meg_mat skip, dy, x;
    const void *w;
    const float *mean, *rstd;
    bool accumulate;
};

/* z [n,h] = x + dropout(y + bias), bias [h] or NULL.  z may be x.  If drop is NULL, there is no dropout. */
struct meg_add_fwd_args {
    struct meg_mat z, x, y;
    const void *bias;
    const struct meg_drop *drop;
};

/*
 * dy [n,h] = dz times the dropout factors of add_fwd; dy may be dz.  Unless dbias is NULL, compute the gradient dbias
 * [h] of type `grad`, the column sums of dy.
 */
struct meg_add_bwd_args {
    struct meg_mat dy;
    void *dbias;
    enum meg_dtype grad;
    struct meg_mat dz;
    const struct meg_drop *drop;
    bool accumulate;
};

/* Compute z = add_fwd(x, sublayer_out) and y = norm_fwd(z), in one pass if the backend can. */
struct meg_add_norm_fwd_args {
    enum meg_norm type;
    struct meg_mat z, y;
    float *mean, *rstd;
    struct meg_mat x, sublayer_out;
    const void *bias;
    const struct meg_drop *drop;
    const void *w, *b;
    float eps;
};

/*
 * x [n,h] = word[token - v0], token [n] i32.  If the token is outside [v0, v0 + word.rows), its embedding is on another
 * shard and the row of x is zero.
 */
struct meg_embed_fwd_args {
    struct meg_mat x;
    const int32_t *token;
    struct meg_mat word;
    int64_t v0;
};

/*
 * Compute the gradient dword [v,h] of word: add each row of dx [n,h], in order, to row token - v0 of dword.  Skip rows
 * of dx whose token is on another shard.
 */
struct meg_embed_bwd_args {
    struct meg_mat dword;
    int64_t v0;
    struct meg_mat dx;
    const int32_t *token;
    bool accumulate;
};

/* x [n,h] = dropout(x + pos[position]), in place; position [n] i32.  If pos.p is NULL, add no position embedding. */
struct meg_position_fwd_args {
    struct meg_mat x;
    const int32_t *position;
    struct meg_mat pos;
    const struct meg_drop *drop;
};

/*
 * Multiply dx by the dropout factors of position_fwd, in place.  Unless dpos.p is NULL, then compute the gradient dpos
 * [positions,h] of pos: add each row of dx, in order, to row `position` of dpos.
 */
struct meg_position_bwd_args {
    struct meg_mat dpos, dx;
    const int32_t *position;
    const struct meg_drop *drop;
    bool accumulate;
};

/*
 * Weight of each row's loss in the gradient of the cross-entropy: *scale * *loss_scale * mask[row].  All pointers are
 * to device memory; NULL means 1.
 */
struct meg_loss_weight {
    const float *mask;        /* [n] */
    const double *scale;      /* of the micro-batch */
    const double *loss_scale; /* of the step; step_finish updates it */
};

/*
 * Cross-entropy over a vocabulary that is split over ranks.  This rank has the logits [n,v] of ids [v0, v0 + v).
 * xent_partial writes two statistics of each row to part [2,n] f32: the log-sum-exp of the row, and the target's logit
 * (0 if the target is on another rank).  target [n] i32 contains ids of the complete vocabulary, or -1 for a row that
 * is ignored (BERT: a position without a masked token; T5: padding).
 */
struct meg_xent_partial_args {
    float *part;
    struct meg_mat logits;
    const int32_t *target;
    int64_t v0;
};

/*
 * Compute lse [n] and loss [n], both f32, from part [nparts,2,n] of all ranks:
 *   loss = lse - the target's logit + z_loss * lse^2, or 0 if the target is -1
 * The last term is the z-loss (Chowdhery et al. 2022, PaLM, section 5), which keeps lse close to 0.
 */
struct meg_xent_combine_args {
    float *loss, *lse;
    const float *part;
    const int32_t *target;
    int64_t nparts, n;
    float z_loss;
};

/*
 * Replace the logits by their gradient: (softmax * (1 + 2 * z_loss * lse) - onehot(target)) times the weight of the
 * row, or 0 if the target is -1.  If softcap is above 0, the logits are outputs of the operation softcap with this cap;
 * replace them by the gradient of its input, which has the additional factor 1 - (logit / softcap)^2.
 */
struct meg_xent_bwd_args {
    struct meg_mat logits;
    const float *lse;
    const int32_t *target;
    int64_t v0;
    float z_loss, softcap;
    struct meg_loss_weight weight;
};

/*
 * Compute loss [n] and replace the logits by their gradient, as xent_partial, xent_combine and xent_bwd do if the
 * vocabulary is not split.
 */
struct meg_xent_fwd_bwd_args {
    float *loss;
    struct meg_mat logits;
    const int32_t *target;
    float z_loss, softcap;
    struct meg_loss_weight weight;
};

/* clang-format off */
/* The operations of this file (MEG_ISA_OPS). */
#define MEG_LAYER_OPS(X)                                                                                               \
    X(linear_fwd) X(linear_bwd_data) X(linear_bwd_weight) X(act_bwd) X(scale) X(softcap) X(clamp) X(clamp_bwd)         \
    X(glu_fwd) X(glu_bwd) X(rope)                                                                                      \
    X(qk_norm_fwd) X(qk_norm_bwd) X(norm_fwd) X(norm_bwd) X(add_fwd) X(add_bwd) X(add_norm_fwd) X(embed_fwd)           \
    X(embed_bwd) X(position_fwd) X(position_bwd) X(xent_partial) X(xent_combine) X(xent_bwd) X(xent_fwd_bwd)
/* clang-format on */

MEG_END_DECLS
#endif

#ifdef MEG_OP_ROW
/* clang-format off */
MEG_OP_ROW(linear_fwd, NULL,
    VALUE(linear_fwd, plan) FIELD(linear_fwd, y, OUT, "n o") FIELD(linear_fwd, pre, OUT | OPTIONAL, "n o")
    FIELD(linear_fwd, x, IN, "n i") FIELD(linear_fwd, w, IN, "o i") FIELD(linear_fwd, bias, IN | OPTIONAL, "o", "w")
    VALUE(linear_fwd, act) VALUE(linear_fwd, accumulate))
MEG_OP_ROW(linear_bwd_data, check_linear_bwd_data,
    VALUE(linear_bwd_data, plan) FIELD(linear_bwd_data, dx, OUT, "n i") FIELD(linear_bwd_data, dy, IN, "n o")
    FIELD(linear_bwd_data, w, IN, "o i") FIELD(linear_bwd_data, pre, IN | OPTIONAL, "n i") VALUE(linear_bwd_data, act)
    VALUE(linear_bwd_data, accumulate))
MEG_OP_ROW(linear_bwd_weight, NULL,
    VALUE(linear_bwd_weight, plan) FIELD(linear_bwd_weight, dw, OUT, "o i")
    FIELD(linear_bwd_weight, dbias, OUT | OPTIONAL, "o", "dw") FIELD(linear_bwd_weight, dy, IN, "n o")
    FIELD(linear_bwd_weight, x, IN, "n i") VALUE(linear_bwd_weight, accumulate))
MEG_OP_ROW(act_bwd, check_act_bwd,
    FIELD(act_bwd, dx, OUT, "n f") FIELD(act_bwd, dy, IN | IN_PLACE, "n f") FIELD(act_bwd, pre, IN, "n f")
    VALUE(act_bwd, act))
MEG_OP_ROW(scale, NULL,
    FIELD(scale, y, OUT, "n f") FIELD(scale, x, IN | IN_PLACE, "n f") VALUE(scale, factor))
MEG_OP_ROW(softcap, NULL,
    FIELD(softcap, y, OUT, "n f") FIELD(softcap, x, IN | IN_PLACE, "n f") VALUE(softcap, cap))
MEG_OP_ROW(clamp, NULL,
    FIELD(clamp, y, OUT, "n f") FIELD(clamp, x, IN | IN_PLACE, "n f") VALUE(clamp, limit))
MEG_OP_ROW(clamp_bwd, NULL,
    FIELD(clamp_bwd, dx, OUT, "n f") FIELD(clamp_bwd, dy, IN | IN_PLACE, "n f") FIELD(clamp_bwd, x, IN, "n f")
    VALUE(clamp_bwd, limit))
MEG_OP_ROW(glu_fwd, NULL,
    VALUE(glu_fwd, unit) FIELD(glu_fwd, y, OUT, "n f") FIELD(glu_fwd, x, IN, "n 2f"))
MEG_OP_ROW(glu_bwd, NULL,
    VALUE(glu_bwd, unit) FIELD(glu_bwd, dx, OUT, "n 2f") FIELD(glu_bwd, dy, IN, "n f")
    FIELD(glu_bwd, x, IN | IN_PLACE, "n 2f"))
MEG_OP_ROW(rope, check_rope,
    FIELD(rope, x, INOUT, "s b g heads 2half") VALUE(rope, s) VALUE(rope, b) VALUE(rope, g) VALUE(rope, heads)
    VALUE(rope, half) VALUE(rope, is_interleaved) FIELD(rope, cos, IN, "half") FIELD(rope, sin, IN, "half")
    FIELD(rope, position, IN, "s b") VALUE(rope, sign))
MEG_OP_ROW(qk_norm_fwd, NULL,
    VALUE(qk_norm_fwd, q) FIELD(qk_norm_fwd, y, OUT, "s b g heads d") FIELD(qk_norm_fwd, rstd, OUT, "s b g heads")
    FIELD(qk_norm_fwd, x, IN, "s b g heads d") FIELD(qk_norm_fwd, w, IN, "d", "y"))
MEG_OP_ROW(qk_norm_bwd, NULL,
    VALUE(qk_norm_bwd, q) FIELD(qk_norm_bwd, dx, OUT, "s b g heads d")
    FIELD(qk_norm_bwd, dw, OUT | OPTIONAL, "d", "grad") VALUE(qk_norm_bwd, grad)
    FIELD(qk_norm_bwd, dy, IN | IN_PLACE, "s b g heads d")
    FIELD(qk_norm_bwd, x, IN, "s b g heads d") FIELD(qk_norm_bwd, w, IN, "d", "dy")
    FIELD(qk_norm_bwd, rstd, IN, "s b g heads") VALUE(qk_norm_bwd, accumulate))
MEG_OP_ROW(norm_fwd, check_norm_fwd,
    VALUE(norm_fwd, type) FIELD(norm_fwd, y, OUT, "n h") FIELD(norm_fwd, mean, OUT | OPTIONAL, "n")
    FIELD(norm_fwd, rstd, OUT, "n") FIELD(norm_fwd, x, IN, "n h") FIELD(norm_fwd, w, IN | OPTIONAL, "h", "y")
    FIELD(norm_fwd, b, IN | OPTIONAL, "h", "y"))
MEG_OP_ROW(norm_bwd, check_norm_bwd,
    VALUE(norm_bwd, type) FIELD(norm_bwd, dx, OUT, "n h") FIELD(norm_bwd, dw, OUT | OPTIONAL, "h", "grad")
    FIELD(norm_bwd, db, OUT | OPTIONAL, "h", "grad") VALUE(norm_bwd, grad)
    FIELD(norm_bwd, skip, IN | IN_PLACE | OPTIONAL, "n h") FIELD(norm_bwd, dy, IN, "n h") FIELD(norm_bwd, x, IN, "n h")
    FIELD(norm_bwd, w, IN | OPTIONAL, "h", "dy") FIELD(norm_bwd, mean, IN | OPTIONAL, "n")
    FIELD(norm_bwd, rstd, IN, "n") VALUE(norm_bwd, accumulate))
MEG_OP_ROW(add_fwd, NULL,
    FIELD(add_fwd, z, OUT, "n h") FIELD(add_fwd, x, IN | IN_PLACE, "n h") FIELD(add_fwd, y, IN, "n h")
    FIELD(add_fwd, bias, IN | OPTIONAL, "h", "y") VALUE(add_fwd, drop))
MEG_OP_ROW(add_bwd, NULL,
    FIELD(add_bwd, dy, OUT, "n h") FIELD(add_bwd, dbias, OUT | OPTIONAL, "h", "grad") VALUE(add_bwd, grad)
    FIELD(add_bwd, dz, IN | IN_PLACE, "n h") VALUE(add_bwd, drop) VALUE(add_bwd, accumulate))
MEG_OP_ROW(add_norm_fwd, check_add_norm_fwd,
    VALUE(add_norm_fwd, type) FIELD(add_norm_fwd, z, OUT, "n h") FIELD(add_norm_fwd, y, OUT, "n h")
    FIELD(add_norm_fwd, mean, OUT | OPTIONAL, "n") FIELD(add_norm_fwd, rstd, OUT, "n")
    FIELD(add_norm_fwd, x, IN | IN_PLACE, "n h") FIELD(add_norm_fwd, sublayer_out, IN, "n h")
    FIELD(add_norm_fwd, bias, IN | OPTIONAL, "h", "sublayer_out") VALUE(add_norm_fwd, drop)
    FIELD(add_norm_fwd, w, IN | OPTIONAL, "h", "y") FIELD(add_norm_fwd, b, IN | OPTIONAL, "h", "y"))
MEG_OP_ROW(embed_fwd, NULL,
    FIELD(embed_fwd, x, OUT, "n h") FIELD(embed_fwd, token, IN, "n") FIELD(embed_fwd, word, IN, "v h")
    VALUE(embed_fwd, v0))
MEG_OP_ROW(embed_bwd, NULL,
    FIELD(embed_bwd, dword, OUT, "v h") VALUE(embed_bwd, v0) FIELD(embed_bwd, dx, IN, "n h")
    FIELD(embed_bwd, token, IN, "n") VALUE(embed_bwd, accumulate))
MEG_OP_ROW(position_fwd, check_position_fwd,
    FIELD(position_fwd, x, INOUT, "n h") FIELD(position_fwd, position, IN | OPTIONAL, "n")
    FIELD(position_fwd, pos, IN | OPTIONAL, "positions h") VALUE(position_fwd, drop))
MEG_OP_ROW(position_bwd, check_position_bwd,
    FIELD(position_bwd, dpos, OUT | OPTIONAL, "positions h") FIELD(position_bwd, dx, INOUT, "n h")
    FIELD(position_bwd, position, IN | OPTIONAL, "n") VALUE(position_bwd, drop) VALUE(position_bwd, accumulate))
MEG_OP_ROW(xent_partial, NULL,
    FIELD(xent_partial, part, OUT, "2 n") FIELD(xent_partial, logits, IN, "n v") FIELD(xent_partial, target, IN, "n")
    VALUE(xent_partial, v0))
MEG_OP_ROW(xent_combine, check_xent_combine,
    FIELD(xent_combine, loss, OUT, "n") FIELD(xent_combine, lse, OUT, "n") FIELD(xent_combine, part, IN, "nparts 2 n")
    FIELD(xent_combine, target, IN, "n") VALUE(xent_combine, nparts) VALUE(xent_combine, n))
MEG_OP_ROW(xent_bwd, NULL,
    FIELD(xent_bwd, logits, INOUT, "n v") FIELD(xent_bwd, lse, IN, "n") FIELD(xent_bwd, target, IN, "n")
    VALUE(xent_bwd, v0) VALUE(xent_bwd, z_loss) VALUE(xent_bwd, softcap)
    FIELD(xent_bwd, weight.mask, IN | OPTIONAL, "n"))
MEG_OP_ROW(xent_fwd_bwd, NULL,
    FIELD(xent_fwd_bwd, loss, OUT, "n") FIELD(xent_fwd_bwd, logits, INOUT, "n v") FIELD(xent_fwd_bwd, target, IN, "n")
    VALUE(xent_fwd_bwd, z_loss) VALUE(xent_fwd_bwd, softcap) FIELD(xent_fwd_bwd, weight.mask, IN | OPTIONAL, "n"))
/* clang-format on */
#endif

#ifdef MEG_PLACEMENT_RULE
/* clang-format off */
MEG_PLACEMENT_RULE(linear_fwd, "y pre", .factors = "x w", .linear = "x w", .terms = "bias")
MEG_PLACEMENT_RULE(linear_bwd_data, "dx", .factors = "dy w pre", .linear = "dy")
MEG_PLACEMENT_RULE(linear_bwd_weight, "dw", .factors = "dy x", .linear = "dy x")
MEG_PLACEMENT_RULE(linear_bwd_weight, "dbias", .factors = "dy", .linear = "dy")
MEG_PLACEMENT_RULE(act_bwd, "dx", .factors = "dy pre", .linear = "dy")
MEG_PLACEMENT_RULE(scale, "y", .factors = "x", .linear = "x")
MEG_PLACEMENT_RULE(softcap, "y", .factors = "x")
MEG_PLACEMENT_RULE(clamp, "y", .factors = "x")
MEG_PLACEMENT_RULE(clamp_bwd, "dx", .factors = "dy x", .linear = "dy")
MEG_PLACEMENT_RULE(glu_fwd, "y", .factors = "x")
MEG_PLACEMENT_RULE(glu_bwd, "dx", .factors = "dy x", .linear = "dy")
MEG_PLACEMENT_RULE(rope, "x", .factors = "x", .linear = "x")
MEG_PLACEMENT_RULE(qk_norm_fwd, "y rstd", .factors = "x w", .complete = "d")
MEG_PLACEMENT_RULE(qk_norm_bwd, "dw", .factors = "dy x rstd", .linear = "dy", .complete = "d")
MEG_PLACEMENT_RULE(qk_norm_bwd, "dx", .factors = "dy x w rstd", .linear = "dy", .complete = "d")
MEG_PLACEMENT_RULE(norm_fwd, "y", .factors = "x w b", .complete = "h")
MEG_PLACEMENT_RULE(norm_fwd, "mean rstd", .factors = "x", .complete = "h")
MEG_PLACEMENT_RULE(norm_bwd, "dw", .factors = "dy x rstd", .linear = "dy", .complete = "h")
MEG_PLACEMENT_RULE(norm_bwd, "db", .factors = "dy", .linear = "dy", .complete = "h")
MEG_PLACEMENT_RULE(norm_bwd, "dx", .factors = "dy x w rstd", .linear = "dy", .terms = "skip", .complete = "h")
MEG_PLACEMENT_RULE(add_fwd, "z", .terms = "x y bias")
MEG_PLACEMENT_RULE(add_bwd, "dbias", .factors = "dz", .linear = "dz")
MEG_PLACEMENT_RULE(add_bwd, "dy", .factors = "dz", .linear = "dz")
MEG_PLACEMENT_RULE(add_norm_fwd, "z", .terms = "x sublayer_out bias")
MEG_PLACEMENT_RULE(add_norm_fwd, "y", .factors = "z w b", .complete = "h")
MEG_PLACEMENT_RULE(add_norm_fwd, "mean rstd", .factors = "z", .complete = "h")
MEG_PLACEMENT_RULE(embed_fwd, "x", .factors = "token word", .linear = "word")
MEG_PLACEMENT_RULE(embed_bwd, "dword", .factors = "dx token", .linear = "dx")
MEG_PLACEMENT_RULE(position_fwd, "x", .terms = "x pos")
MEG_PLACEMENT_RULE(position_bwd, "dpos", .factors = "dx", .linear = "dx")
MEG_PLACEMENT_RULE(position_bwd, "dx", .factors = "dx", .linear = "dx")
MEG_PLACEMENT_RULE(xent_partial, "part", .factors = "logits target", .stacked = "v")
MEG_PLACEMENT_RULE(xent_combine, "loss lse", .factors = "part target")
MEG_PLACEMENT_RULE(xent_bwd, "logits", .factors = "logits lse target weight.mask")
MEG_PLACEMENT_RULE(xent_fwd_bwd, "loss logits", .factors = "logits target weight.mask", .complete = "v")
/* clang-format on */
#endif
