/*
 * The operations every backend provides: one table, meg_cpu_ops in cpu/ (the
 * definition) and later meg_cuda_ops in cuda/.  Layers and the optimizer call
 * nothing else.
 *
 * Shapes: s sequence, b micro-batch, n = s*b tokens, h hidden, f feed-forward,
 * a heads, g key-value groups, d head size, v vocabulary.  Activations are
 * sequence first: token t of sequence i is row t*b + i.
 *
 * dtype: every tensor argument carries its type, f32, bf16 or f16, and those of
 * one call may differ: beside an f32 residual stream, branches, outputs of norms
 * and parameters are bf16 or f16.  A backend that lacks a type says so when the
 * plan is made (see supports).  What is read is widened to f32, computed and
 * summed in f32, and rounded once, to nearest even, where it is stored.
 * Statistics, losses and log-sum-exps are f32.  Vectors of parameters (void *) have
 * the type of the matrix they belong to: the bias of a linear that of w, the bias
 * of an addition that of the branch y, w and b of a norm that of its output y (dy on
 * the way back).  Gradients of parameters are f32, or of 16 bits to save memory and
 * then rounded each time they are added to.
 *
 * Operations return nothing and allocate nothing: buffers are the caller's, and
 * must not overlap unless a comment says they may.  A wrong shape is a bug and
 * aborts.  Work is queued on a stream in order; the CPU does it at once.
 * Results do not depend on the number of threads: work is cut into blocks of
 * fixed size and sums are taken in a fixed order.
 */
#ifndef MEG_TENSOR_OPS_H
#define MEG_TENSOR_OPS_H
#include <stdint.h>
#include "tensor/dtype.h"

MEG_BEGIN_DECLS

struct meg_stream;

/* A matrix [rows, cols] whose row r begins ld elements after row r-1. */
struct meg_mat {
    void *p;
    enum meg_dtype dtype;
    int64_t rows, cols, ld;
};

/*
 * Heads of a tensor whose rows may hold other things too (packed qkv, a cache).  With r = a/g query
 * heads a key-value group, column c of query head j at token t of sequence i is
 *   p[t*ld_s + i*ld_b + (j/r)*ld_g + (j%r)*ld_h + c]
 * and that of group j's key or value head p[t*ld_s + i*ld_b + j*ld_g + c].
 */
struct meg_heads {
    void *p;
    enum meg_dtype dtype;
    int64_t ld_s, ld_b, ld_g, ld_h;
};

enum meg_act { MEG_ACT_NONE, MEG_ACT_GELU_TANH, MEG_ACT_GELU_ERF };
enum meg_norm { MEG_NORM_LAYER, MEG_NORM_RMS };

/* What changes from step to step.  In device memory, so that a captured graph replays. */
struct meg_step_hparams {
    float lr[2];            /* rate of ordinary [0] and decoupled-lr [1] parameters */
    float weight_decay;     /* multiplied by a range's wd_mult */
    float adam_c1, adam_c2; /* 1 - beta1^t, 1 - beta2^t for the t-th successful step */
    float grad_scale;       /* multiplies every gradient: clip factor / loss scale */
    int32_t is_first;       /* sgd: the momentum buffer holds nothing yet */
    int32_t skip;           /* leave everything as it is */
};

/*
 * Dropout by position (DESIGN.md §6): Philox key (seed, 1 + 16*layer + site), counter
 * (unit/8, position, sample low, high), a 16-bit lane a unit.  A unit is kept iff its lane is
 * >= T = min(round(65536 p), 65535), and is then scaled by 65536/(65536-T).
 *   hidden dropout: unit = unit0 + column, position and sample of the row
 *   attention:      unit = (unit0 + head) * round_up(s, 8) + position of the key, s the whole sequence;
 *                   position of the query (both from struct meg_attn_geom)
 * p = 0 draws nothing.  sample [b] i64 is the number of each sequence in the run.
 */
enum meg_drop_site { MEG_DROP_EMBED, MEG_DROP_ATTN, MEG_DROP_ATTN_OUT, MEG_DROP_MLP_OUT };
struct meg_drop {
    float p;
    uint32_t seed;
    int32_t layer; /* global layer number from 0; 0 for the embedding */
    enum meg_drop_site site;
    int64_t unit0;                  /* global number of column 0, or of head 0: for shards */
    int64_t pos0;                   /* position in the whole sequence of row 0; hidden dropout only */
    int64_t b;                      /* sequences in the micro-batch: row r is position pos0 + r/b of sequence r%b */
    const int64_t *sample;          /* [b], device memory */
    const int32_t *position_of_row; /* [rows/b] device: row r is position place[r/b] instead; NULL: it is not */
};

/* Where queries and keys stand: those of whole sequences, or a part of them. */
struct meg_attn_geom {
    int64_t s_q, s_k, b;
    int64_t a, g, d;          /* query heads, key-value groups (a % g == 0), head size */
    int64_t s;                /* keys of the whole sequence: dropout's units are counted by it */
    int64_t q0, k0;           /* query t stands at position q0 + t of its sequence, key j at k0 + j */
    int is_causal;            /* query at position t sees keys at 0..t */
    float scale;              /* scores are scale * q.k */
    const int32_t *doc_start; /* [s_q, b] or NULL: position of the first key a query sees (packed documents) */
};

/* A run of equal settings inside a flat buffer. */
struct meg_hparam_range {
    int64_t begin, end; /* elements */
    float wd_mult, lr_mult;
    int32_t lr_index; /* which rate of the step block */
};

struct meg_adam {
    float beta1, beta2, eps;
};

/* A linear layer y = act(x w^T + bias) as planned once: shapes are upper bounds, the views of a call rule. */
struct meg_linear;
struct meg_linear_desc {
    enum meg_dtype dtype;
    int64_t n, in, out;
};

struct meg_ops {
    const char *name; /* "cpu", "cuda" */

    /* NULL when the backend computes with dtype, else why not. */
    const char *(*supports)(enum meg_dtype dtype);

    /* Device memory, 64-byte aligned and zeroed; NULL when there is none left. */
    void *(*alloc)(size_t nbytes);
    void (*release)(void *p);
    void (*upload)(struct meg_stream *st, void *dev, const void *host, size_t nbytes);
    void (*download)(struct meg_stream *st, void *host, const void *dev, size_t nbytes);
    void (*zero)(struct meg_stream *st, void *dev, size_t nbytes);

    struct meg_linear *(*linear_create)(const struct meg_linear_desc *desc);
    void (*linear_destroy)(struct meg_linear *l);

    /*
     * y [n,o] = act(x [n,i] w^T + bias), w [o,i], bias [o] or NULL.
     * pre [n,o]: what act was applied to, kept for the backward pass; its p is NULL when
     * not wanted, and it must be given a different buffer from y unless act is NONE.
     */
    void (*linear_fwd)(struct meg_stream *st, struct meg_linear *l, struct meg_mat y, struct meg_mat pre,
                       struct meg_mat x, struct meg_mat w, const void *bias, enum meg_act act);
    /* dx [n,i] = (dy [n,o] w) * act'(pre [n,i]); act NONE: pre is not read. */
    void (*linear_bwd_data)(struct meg_stream *st, struct meg_linear *l, struct meg_mat dx, struct meg_mat dy,
                            struct meg_mat w, struct meg_mat pre, enum meg_act act);
    /* dw [o,i] += dy^T x;  dbias [o], of dw's type, += column sums of dy, when not NULL. */
    void (*linear_bwd_weight)(struct meg_stream *st, struct meg_linear *l, struct meg_mat dw, void *dbias,
                              struct meg_mat dy, struct meg_mat x);

    /* Gated linear unit (Shazeer 2020): y [n,f] = silu(gate) * up, x [n,2f] = [gate | up]. */
    void (*swiglu_fwd)(struct meg_stream *st, struct meg_mat y, struct meg_mat x);
    /* dx [n,2f] from dy [n,f]; dx may be x. */
    void (*swiglu_bwd)(struct meg_stream *st, struct meg_mat dx, struct meg_mat dy, struct meg_mat x);

    /*
     * Rotary positions (Su et al. 2021), in place on the first 2*half columns of every head: the pair
     * (x_i, x_{i+half}), or (x_{2i}, x_{2i+1}) when interleaved, turns by the angle whose cosine and sine
     * stand in row position of cos, sin [positions, half] f32; sign -1 turns back, for gradients.
     * x [s, b, g, heads, d] as meg_heads with r = heads; position [s,b] i32.
     */
    void (*rope)(struct meg_stream *st, struct meg_heads x, int64_t s, int64_t b, int64_t g, int64_t heads,
                 int64_t half, int is_interleaved, const float *cos, const float *sin, const int32_t *position,
                 float sign);

    /*
     * Layer norm (Ba et al. 2016): y = (x - mean) rstd w + b, rstd = 1/sqrt(var + eps), biased
     * variance; or RMS norm (Zhang and Sennrich 2019): y = x rstd w, rstd = 1/sqrt(mean(x^2) + eps),
     * with b NULL and mean not touched.  x, y [n,h]; w, b [h]; mean, rstd [n] f32 out, kept for norm_bwd.
     */
    void (*norm_fwd)(struct meg_stream *st, enum meg_norm type, struct meg_mat y, float *mean, float *rstd,
                     struct meg_mat x, const void *w, const void *b, float eps);
    /*
     * dx [n,h] = skip + d norm/dx applied to dy; skip [n,h] may be dx itself, or have p NULL for
     * none.  dw, db [h] of type grad are added to; db is NULL for RMS norm.
     */
    void (*norm_bwd)(struct meg_stream *st, enum meg_norm type, struct meg_mat dx, void *dw, void *db,
                     enum meg_dtype grad, struct meg_mat skip, struct meg_mat dy, struct meg_mat x, const void *w,
                     const float *mean, const float *rstd);

    /* z [n,h] = x + dropout(y + bias); bias [h] or NULL.  z may be x. */
    void (*add_fwd)(struct meg_stream *st, struct meg_mat z, struct meg_mat x, struct meg_mat y, const void *bias,
                    const struct meg_drop *drop);
    /* dy [n,h] = dropout mask of add_fwd * dz; dbias [h] of type grad += column sums of dy, when not NULL. */
    void (*add_bwd)(struct meg_stream *st, struct meg_mat dy, void *dbias, enum meg_dtype grad, struct meg_mat dz,
                    const struct meg_drop *drop);

    /* add_fwd into z, then norm_fwd of z into y: one pass where the backend can. */
    void (*add_norm_fwd)(struct meg_stream *st, enum meg_norm type, struct meg_mat z, struct meg_mat y, float *mean,
                         float *rstd, struct meg_mat x, struct meg_mat sublayer_out, const void *bias,
                         const struct meg_drop *drop, const void *w, const void *b, float eps);

    /*
     * o = softmax(scale q k^T, masked) dropped out, times v; query head j uses group j/r of k and v.
     * lse [b,a,s_q] f32 out: log sum exp of each row of scores, before dropout.  A query that sees none
     * of these keys has o = 0 and lse = -infinity.  o may be f32 where q, k and v are narrower.
     */
    void (*attn_fwd)(struct meg_stream *st, const struct meg_attn_geom *geom, struct meg_heads o, float *lse,
                     struct meg_heads q, struct meg_heads k, struct meg_heads v, const struct meg_drop *drop);
    /*
     * o, lse of some keys become those of these and of other keys, whose results o_part, lse_part are:
     * o = sum of exp(lse_i - lse) o_i, with lse = log sum of exp(lse_i).  o f32.  Where one of them saw no
     * key the other is the result, to the last bit.  (Dao 2023, section 3.1.)
     */
    void (*attn_merge)(struct meg_stream *st, const struct meg_attn_geom *geom, struct meg_heads o, float *lse,
                       struct meg_heads o_part, const float *lse_part);
    /* delta [b,a,s_q] f32 = sum of d_o * o over each head, of all keys. */
    void (*attn_delta)(struct meg_stream *st, const struct meg_attn_geom *geom, float *delta, struct meg_heads d_o,
                       struct meg_heads o);
    /*
     * Gradients of attn_fwd; dq, dk, dv f32 are added to, or written when adds is 0.  Scores are computed
     * again.  For a part of the keys, lse and delta are those of all.  (Dao et al. 2022, appendix B.)
     */
    void (*attn_bwd)(struct meg_stream *st, const struct meg_attn_geom *geom, struct meg_heads dq, struct meg_heads dk,
                     struct meg_heads dv, struct meg_heads d_o, const float *lse, const float *delta,
                     struct meg_heads q, struct meg_heads k, struct meg_heads v, const struct meg_drop *drop,
                     int accumulate);

    /* dst = src over [s, b, g, d], key or value heads: into a cache. */
    void (*copy_heads)(struct meg_stream *st, struct meg_heads dst, struct meg_heads src, int64_t s, int64_t b,
                       int64_t g, int64_t d);

    /*
     * x [n,h] = word[token - v0]; tokens outside [v0, v0 + word.rows) give a zero row (another shard has
     * it).  token [n] i32.
     */
    void (*embed_fwd)(struct meg_stream *st, struct meg_mat x, const int32_t *token, struct meg_mat word, int64_t v0);
    /* dword [v,h] is added to, rows in token order. */
    void (*embed_bwd)(struct meg_stream *st, struct meg_mat dword, int64_t v0, struct meg_mat dx, const int32_t *token);
    /* x [n,h] = dropout(x + pos[position]), in place; position [n] i32; pos.p NULL for no table. */
    void (*position_fwd)(struct meg_stream *st, struct meg_mat x, const int32_t *position, struct meg_mat pos,
                         const struct meg_drop *drop);
    /* dx = dropout mask * dx, in place; dpos [p,h] is added to, rows in order. */
    void (*position_bwd)(struct meg_stream *st, struct meg_mat dpos, struct meg_mat dx, const int32_t *position,
                         const struct meg_drop *drop);

    /*
     * Cross-entropy of rows whose logits [n,v] are columns v0 .. of a vocabulary cut over ranks.
     * xent_partial: part [2,n] f32 = log sum exp of the columns here, and the target's logit or, where another
     * rank has that, 0.  target [n] i32, numbers of the whole vocabulary.
     * xent_combine: part [nparts,2,n] of all ranks make lse [n] and loss [n] = lse - target's logit, both f32.
     */
    void (*xent_partial)(struct meg_stream *st, float *part, struct meg_mat logits, const int32_t *target, int64_t v0);
    void (*xent_combine)(struct meg_stream *st, float *loss, float *lse, const float *part, int64_t nparts, int64_t n);
    /* logits become their gradient: (softmax - onehot(target)) * weight[row]; weight [n] f32. */
    void (*xent_bwd)(struct meg_stream *st, struct meg_mat logits, const float *lse, const int32_t *target, int64_t v0,
                     const float *weight);

    /* dst [n] = src [n]: what one type holds in another, main parameters as those of the model. */
    void (*cast)(struct meg_stream *st, void *dst, enum meg_dtype dst_type, const void *src, enum meg_dtype src_type,
                 int64_t n);

    /* *out f64 (device) = sum of squares of x [n]; not finite iff an element is not. */
    void (*sumsq)(struct meg_stream *st, double *out, const void *x, enum meg_dtype type, int64_t n);
    /* *out i64 (device) = how many of x [n] are exactly zero. */
    void (*count_zeros)(struct meg_stream *st, int64_t *out, const void *x, enum meg_dtype type, int64_t n);

    /*
     * One AdamW pass (Loshchilov and Hutter 2019; spec of Megatron's FusedAdam): with
     * g' = g * step->grad_scale,  m = beta1 m + (1-beta1) g',  v = beta2 v + (1-beta2) g'^2,
     * w -= lr (m / adam_c1 / (sqrt(v / adam_c2) + eps) + wd w);  then g = 0.
     * All buffers f32 flat, indexed by the ranges.  step->skip: only g = 0.
     */
    void (*adamw)(struct meg_stream *st, float *w, float *g, float *m, float *v, const struct meg_hparam_range *range,
                  int nranges, const struct meg_adam *adam, const struct meg_step_hparams *step);
    /* g' = g * grad_scale + wd w;  buf = momentum buf + g' (first step: g');  w -= lr buf;  then g = 0. */
    void (*sgd)(struct meg_stream *st, float *w, float *g, float *buf, const struct meg_hparam_range *range,
                int nranges, float momentum, const struct meg_step_hparams *step);
};

MEG_END_DECLS
#endif
