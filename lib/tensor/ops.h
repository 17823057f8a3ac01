/*
 * ops.h - struct meg_ops, the table of tensor operations that a backend provides.  The results of the CPU backend
 * (cpu/cpu.h) are the reference.  Layers and the optimizer compute only with these operations.
 *
 * Shapes: s sequence, b micro-batch, n = s*b tokens, h hidden, f feed-forward, a query heads, g key-value groups, d
 * head size, v vocabulary.  Activations are sequence first: token t of sequence i is row t*b + i.
 *
 * Data types: a matrix or view of heads has a field for its type (f32, bf16 or f16), and the types of one call may
 * differ.  For example, the residual stream may be f32 while parameters and the outputs of sublayers are bf16.  An
 * operation converts its inputs to f32, computes in f32 or f64, and rounds stored results to nearest even.  Only bf16
 * parameters and states of an optimizer step are rounded stochastically (struct meg_update_arrays).  Statistics, losses
 * and log-sum-exps are f32.
 *
 * A parameter vector (void *) has the type of a matrix of the same call.  The bias of a linear layer has the type of w,
 * the bias of add_fwd the type of the sublayer's output, and w and b of a norm the type of y (norm_bwd: of dy).
 * Parameter gradients may be f32 or, to save memory, bf16 or f16; bf16 and f16 gradients are rounded at each
 * accumulation.  An operation that computes parameter gradients adds them to their arrays if `accumulate` is true;
 * otherwise it overwrites all elements, without reading them.
 *
 * Operations on tensors return nothing and allocate no memory; an operation that needs more device memory than its
 * arguments has a workspace (struct meg_workspace).  The caller owns the buffers, which must not overlap unless a
 * comment allows it.  A wrong shape is a bug in the caller; debug builds check shapes (tensor/check_ops.h).  An
 * operation is queued on its stream.  On the CPU, an operation is complete when it returns.  CPU results do not depend
 * on the number of threads: block sizes depend only on the shapes, and sums have a fixed order.
 */
#ifndef MEG_TENSOR_OPS_H
#define MEG_TENSOR_OPS_H
#include <stdbool.h>
#include <stdint.h>
#include "tensor/dtype.h"
#include "tensor/step.h"

MEG_BEGIN_DECLS

/* A stream executes the work queued on it in order.  An event marks a point in a stream.  See device/device.h. */
struct meg_stream;
struct meg_event;
/* A recorded sequence of operations and their arguments (a CUDA graph).  One launch is faster than the single calls. */
struct meg_graph;

/* A matrix [rows, cols].  Row r begins ld elements after row r-1. */
struct meg_mat {
    void *p;
    enum meg_dtype dtype;
    int64_t rows, cols, ld;
};

/* Return the value of a matrix argument that is not given: its p is NULL. */
static inline struct meg_mat meg_no_mat(void)
{
    struct meg_mat m = { NULL, MEG_DTYPE_F32, 0, 0, 0 };

    return m;
}

/*
 * A strided view of the heads in a tensor such as qkv or a KV cache.  Column c of a head, at token t of sequence i:
 *   query head j:                  p[t*ld_s + i*ld_b + (j/r)*ld_g + (j%r)*ld_h + c]
 *   key or value head of group j:  p[t*ld_s + i*ld_b + j*ld_g + c]
 * r = a/g is the number of query heads per key-value group.
 */
struct meg_heads {
    void *p;
    enum meg_dtype dtype;
    int64_t ld_s, ld_b, ld_g, ld_h;
};

enum meg_act { MEG_ACT_NONE, MEG_ACT_GELU_TANH, MEG_ACT_GELU_ERF, MEG_ACT_TANH, MEG_ACT_RELU };

/* The types with 1P store a weight as its difference from 1 (Megatron's --apply-layernorm-1p; RMSNorm of Gemma). */
enum meg_norm { MEG_NORM_LAYER, MEG_NORM_RMS, MEG_NORM_LAYER_1P, MEG_NORM_RMS_1P };
static inline MEG_HOST_DEVICE bool meg_norm_is_rms(enum meg_norm type)
{
    return type == MEG_NORM_RMS || type == MEG_NORM_RMS_1P;
}

/* Return the number that is added to each stored weight of a norm: 1 for the 1P types, else 0. */
static inline MEG_HOST_DEVICE float meg_norm_offset(enum meg_norm type)
{
    return type == MEG_NORM_LAYER_1P || type == MEG_NORM_RMS_1P ? 1.0f : 0.0f;
}

/* The activation function of a gated linear unit. */
enum meg_glu_type {
    MEG_GLU_SILU,       /* SwiGLU: x / (1 + exp(-x)) */
    MEG_GLU_QUICK_GELU, /* x / (1 + exp(-1.702 x)) */
    MEG_GLU_GELU_TANH,  /* GEGLU, with the tanh form of GELU */
    MEG_GLU_GELU_ERF,   /* GEGLU, with the exact form of GELU */
    MEG_GLU_RELU,       /* ReGLU */
    MEG_GLU_SQUARED_RELU
};

/*
 * A gated linear unit (Shazeer 2020): y = act(gate) * (up + offset).  If limit is above 0, gate is first clamped to at
 * most limit, and up to [-limit, limit]; the gradient of a clamped value is 0.  GPT-OSS has MEG_GLU_QUICK_GELU, limit 7
 * and offset 1 (GptOssExperts in transformers; activation_func_clamp_value and glu_linear_offset in Megatron).
 */
struct meg_glu {
    enum meg_glu_type type;
    float limit, offset;
};

/*
 * Dropout parameters.  A dropout mask is a function of global indices, so it does not depend on the parallel layout.  A
 * unit is a column of a hidden state or one attention weight of a query.  Philox (base/philox.h) returns eight 16-bit
 * numbers, one for each of eight units.  The key is (seed, 1 + 16*layer + site), the counter (unit/8, position, sample
 * low, sample high).  Let T = min(round(65536 p), 65535).  A unit is kept iff its number is >= T; a kept unit is
 * multiplied by 65536/(65536-T).  The global indices are:
 *   hidden dropout: unit = unit0 + column; position and sample are the row's
 *   attention:      unit = (unit0 + head) * round_up(s, 8) + position of the key, where s is the length of the full
 *                   sequence (struct meg_attn_desc); position is the position of the query
 * With p = 0 there is no dropout.
 */
enum meg_drop_site {
    MEG_DROP_EMBED,
    MEG_DROP_ATTN,
    MEG_DROP_ATTN_OUT,
    MEG_DROP_MLP_OUT,
    MEG_DROP_CROSS_ATTN,
    MEG_DROP_CROSS_ATTN_OUT
};
struct meg_drop {
    float p;
    uint32_t seed;
    int32_t layer; /* global index of the layer; for an embedding, of the first layer of its stack */
    enum meg_drop_site site;
    int64_t unit0;                  /* global index of this shard's column 0 (hidden dropout) or head 0 (attention) */
    int64_t pos0;                   /* global sequence position of row 0; hidden dropout only */
    int64_t b;                      /* sequences in the micro-batch: row r is position pos0 + r/b of sequence r%b */
    const int64_t *sample;          /* [b] in device memory: global sample number of each sequence (struct meg_batch) */
    const int32_t *position_of_row; /* [rows/b] in device memory: if not NULL, row r is position position_of_row[r/b] */
};

/*
 * Device memory that an operation may overwrite while it runs.  The table has a function that returns the necessary
 * size for given shapes.  Such a function needs no open device and reads no tensor, and its result does not decrease if
 * a shape grows.
 */
struct meg_workspace {
    void *p;
    size_t nbytes;
};

/* A flat array; p is NULL if it is absent. */
struct meg_array {
    void *p;
    enum meg_dtype dtype;
};

/*
 * Attention over b complete sequences, or between a chunk of queries and a chunk of keys of each.  The score of a query
 * at position p and a key at position t, for query head j, is
 *   cap(scale * q.k) - alibi_slope[j] * |p - t| + rel_bias[bucket(t - p), j]
 * Absent terms are 0, and cap(x) = softcap * tanh(x / softcap) (Gemma 2), or x if softcap is 0.  A key is masked unless
 * it satisfies the conditions of window_left, window_right, doc_start and key_length.  Pointers are to device memory.
 *
 * bucket is the function of T5 (Raffel et al. 2020), as in Hugging Face and Megatron.  Let B be the number of rows of
 * rel_bias, or half of this number if rel_bias_is_bidirectional is set, and e = B/2, rounded down.  The distance n is
 * max(p - t, 0), or |p - t| if rel_bias_is_bidirectional is set.
 *   bucket = n if n < e, else min(B - 1, e + floor(log(n / e) / log(rel_bias_max_distance / e) * (B - e))), in f32
 * If rel_bias_is_bidirectional is set, B is added for keys with t > p.
 *
 * Callers keep ld_b = g * ld_g in qkv and o, and lse and delta are contiguous (nn/attn/self_attention.h says why).
 */
struct meg_attn_desc {
    int64_t s_q, s_k, b; /* queries and keys per sequence, number of sequences */
    int64_t a, g;        /* query heads, key-value groups (a % g == 0) */
    int64_t d, d_v;      /* columns of a head of q and k, columns of a head of v and o */
    int64_t s;           /* length of the full sequence; used in indices of dropout units (struct meg_drop) */
    int64_t q0, k0;      /* query t is at position q0 + t of its sequence, key j at k0 + j */
    float scale;
    float softcap; /* 0: none */

    /* A query at position p attends to positions p - window_left to p + window_right; -1: no limit, (-1, 0): causal. */
    int64_t window_left, window_right;
    /*
     * [s_q, b] or NULL: position of the first visible key of a query (packed documents); not less than that of an
     * earlier query
     */
    const int32_t *doc_start;
    const int32_t
        *key_length; /* [b] or NULL: keys of sequence i are visible at positions below key_length[i] (padding) */

    const float *alibi_slope; /* [a] or NULL (Press et al. 2022) */
    struct meg_mat rel_bias;  /* relative attention bias [buckets, a]; p is NULL if absent */
    int64_t rel_bias_max_distance;
    int rel_bias_is_bidirectional;
    /*
     * Attention sinks [a] (GPT-OSS): exp(sink[j]) is added to the sum of the exponentials of the scores of each query
     * of head j.  This sum, exp(lse), is the denominator of the softmax.  If the keys are in chunks, pass the sinks
     * with one chunk only.
     */
    struct meg_array sink;

    /* The following fields are for decoding.  attn_bwd requires that query_start and block_offset are NULL. */
    const int32_t
        *query_start; /* [b] or NULL: query t of sequence i is at position query_start[i] + t instead of q0 + t */
    /*
     * KV caches in blocks, which may be separate allocations: [b, blocks_per_seq] or NULL.  Key t of sequence i is row
     * t % block_size of the block that begins at element block_offset[i, t / block_size] of k and, for the value, of v.
     * ld_b of k and v is not used, and k0 is 0.  The offsets of all visible keys and of earlier keys must be valid.
     * An offset in bytes must be a multiple of 16 plus a multiple of the size of a row (ld_s elements).
     */
    const int64_t *block_offset;
    int64_t block_size, blocks_per_seq;
};

/* The tensors of attn_bwd.  The gradient of a tensor has the shape of the tensor. */
struct meg_attn_bwd_args {
    struct meg_heads dq, dk, dv;    /* out; f32, bf16 or f16, of one type */
    int accumulate;                 /* add the gradients to dq, dk and dv instead of overwriting dq, dk and dv */
    struct meg_mat d_rel_bias;      /* out [buckets, a]; p is NULL if this gradient is not needed */
    struct meg_array d_sink;        /* out [a]; p is NULL if this gradient is not needed */
    int accumulate_params;          /* add to d_rel_bias and d_sink instead of overwriting them */
    struct meg_heads d_o, o;        /* o is not read if delta is given */
    const float *lse;               /* of attn_fwd, over all keys */
    const float *delta;             /* of attn_delta, over all keys; NULL: attn_bwd computes delta from d_o and o */
    struct meg_heads q, k, v;       /* k and v may be a chunk of the keys */
    struct meg_workspace workspace; /* at least attn_bwd_nbytes */
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
 * Weight of each row's loss in the gradient of the cross-entropy: *scale * *loss_scale * mask[row].  All pointers are
 * to device memory; NULL means 1.
 */
struct meg_loss_weight {
    const float *mask;        /* [n] */
    const double *scale;      /* of the micro-batch */
    const double *loss_scale; /* of the step; step_finish updates it */
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
 * A backend's plan of a linear layer y [n,out] = act(x [n,in] w^T + bias).  Calls may use smaller shapes, but have the
 * data types of the plan: dx has the type of x, the bias that of w, pre and dy that of y, and dbias that of dw.
 */
struct meg_linear;
struct meg_linear_desc {
    int64_t n, in, out;
    enum meg_dtype x, w, y, dw;
};

struct meg_ops {
    const char *name;    /* "cpu", "cuda" */
    bool is_host_memory; /* device memory is host memory, which the host may read and write between operations */
    /*
     * The largest number of rows of a decoding step, one for each sequence.  If the result of a row depends on the
     * number of rows, pads_decode_steps is set, and each step has decode_rows rows, some of which may be padding.  A
     * GPU takes about as long for 64 rows as for one, because it reads all weights in both cases.
     */
    int64_t decode_rows;
    bool pads_decode_steps;

    /*
     * Return the number of rows of logits [rows,v] that the language-model head should compute at a time.  Fewer rows
     * use less memory, but each chunk of rows updates the complete weight gradient of the head.  The result depends
     * only on v.
     */
    int64_t (*logits_rows)(int64_t v);

    /* Return the bytes of device memory that are free; 0 if unknown, as on the CPU. */
    size_t (*free_nbytes)(void);
    /* Allocate zeroed device memory, 64-byte aligned; NULL if memory is exhausted.  For 0 bytes, return non-NULL. */
    void *(*alloc)(size_t nbytes);
    void (*release)(void *p);
    /*
     * Allocate zeroed host memory for upload_pinned and download (page-locked with CUDA); NULL if memory is exhausted.
     * release_pinned first waits until no queued copy uses the memory.
     */
    void *(*alloc_pinned)(size_t nbytes);
    void (*release_pinned)(void *p);
    /* Copy nbytes within device memory; the two ranges must not overlap. */
    void (*copy)(struct meg_stream *st, void *dst, const void *src, size_t nbytes);
    /* Copy host memory to device memory.  The caller may reuse `host` as soon as the function returns. */
    void (*upload)(struct meg_stream *st, void *dev, const void *host, size_t nbytes);
    /* Copy pinned memory to device memory.  Before changing `pinned`, wait for an event recorded after this call. */
    void (*upload_pinned)(struct meg_stream *st, void *dev, const void *pinned, size_t nbytes);
    /* Copy device memory to pinned memory.  Before reading the result, wait for an event recorded after this call. */
    void (*download)(struct meg_stream *st, void *pinned, const void *dev, size_t nbytes);
    void (*zero)(struct meg_stream *st, void *dev, size_t nbytes);

    /* Create a stream; `name` identifies it in profiles.  The CPU backend has no streams and returns NULL. */
    struct meg_stream *(*stream_create)(const char *name);
    void (*stream_destroy)(struct meg_stream *st); /* no work may be queued on st */
    /* Create an event.  Until it is recorded, event_is_done returns true. */
    struct meg_event *(*event_create)(void);
    void (*event_destroy)(struct meg_event *event);
    /* Record the event on st: it is done when all work queued on st before this call is complete. */
    void (*event_record)(struct meg_stream *st, struct meg_event *event);
    /* Make work that is queued on st after this call wait for the event.  The host does not wait. */
    void (*event_wait)(struct meg_stream *st, struct meg_event *event);
    bool (*event_is_done)(struct meg_event *event);

    /*
     * Between graph_begin and graph_end, operations on st are not executed, but added to a graph, with the values of
     * their arguments.  graph_launch queues them on st; tensors are read and written at that time.  Each operation must
     * have been executed before with these shapes, so that its plans and workspaces exist.  Events, and copies between
     * host and device, cannot be added.  graph_destroy requires that the graph's last launch is complete.  graph_begin
     * is NULL if operations cannot be added to graphs, as on the CPU.
     */
    void (*graph_begin)(struct meg_stream *st);
    struct meg_graph *(*graph_end)(struct meg_stream *st);
    void (*graph_launch)(struct meg_stream *st, struct meg_graph *graph);
    void (*graph_destroy)(struct meg_graph *graph);

    /* Create a plan.  If the backend does not support the layer, return NULL and set *why to the reason. */
    struct meg_linear *(*linear_create)(const struct meg_linear_desc *desc, const char **why);
    void (*linear_destroy)(struct meg_linear *l);

    /*
     * y [n,o] = act(x [n,i] w^T + bias), w [o,i], bias [o] or NULL.  Also write x w^T + bias to pre [n,o], for the
     * backward pass, unless pre.p is NULL or act is MEG_ACT_NONE.
     */
    void (*linear_fwd)(struct meg_stream *st, struct meg_linear *l, struct meg_mat y, struct meg_mat pre,
                       struct meg_mat x, struct meg_mat w, const void *bias, enum meg_act act);
    /* dx [n,i] = (dy [n,o] w) * act'(pre [n,i]).  If act is MEG_ACT_NONE, pre is not read. */
    void (*linear_bwd_data)(struct meg_stream *st, struct meg_linear *l, struct meg_mat dx, struct meg_mat dy,
                            struct meg_mat w, struct meg_mat pre, enum meg_act act);
    /*
     * Compute the gradients dw [o,i] = dy^T x and, unless dbias is NULL, dbias [o] = column sums of dy.  dbias has the
     * type of dw.
     */
    void (*linear_bwd_weight)(struct meg_stream *st, struct meg_linear *l, struct meg_mat dw, void *dbias,
                              struct meg_mat dy, struct meg_mat x, bool accumulate);

    /*
     * dx [n,f] = dy * act'(pre), all [n,f], for an activation whose output is not the input of a linear layer.  dx may
     * be dy.
     */
    void (*act_bwd)(struct meg_stream *st, struct meg_mat dx, struct meg_mat dy, struct meg_mat pre, enum meg_act act);

    /* y [n,f] = factor * x; y may be x. */
    void (*scale)(struct meg_stream *st, struct meg_mat y, struct meg_mat x, float factor);

    /* Compute the output y [n,f] of a gated linear unit from x [n,2f] = [gate | up]. */
    void (*glu_fwd)(struct meg_stream *st, const struct meg_glu *unit, struct meg_mat y, struct meg_mat x);
    /* Compute dx [n,2f] from dy [n,f] and x; dx may be x. */
    void (*glu_bwd)(struct meg_stream *st, const struct meg_glu *unit, struct meg_mat dx, struct meg_mat dy,
                    struct meg_mat x);

    /*
     * Rotary position embedding (Su et al. 2021), in place, of the first 2*half columns of a head.  Rotate the pair
     * (x_i, x_{i+half}), or (x_{2i}, x_{2i+1}) if is_interleaved.  The cosine and the sine of its angle are cos[p,i]
     * and sin[p,i] for a token at position p; cos and sin are [positions, half] f32.  With sign -1, rotate back, for
     * gradients.  x is a view of [s, b, g, heads, d] with r = heads (struct meg_heads); position [s,b] i32.
     */
    void (*rope)(struct meg_stream *st, struct meg_heads x, int64_t s, int64_t b, int64_t g, int64_t heads,
                 int64_t half, int is_interleaved, const float *cos, const float *sin, const int32_t *position,
                 float sign);

    /*
     * QK-norm with rotary position embedding (Qwen3): RMSNorm over the d columns of each head, y = rope(x * rstd * w),
     * rstd = 1/sqrt(mean(x^2) + eps).  x and y are views of [s, b, g, heads, d] with r = heads (struct meg_heads), the
     * query heads or the key heads; w [d] has the type of y; rstd [s,b,g,heads] f32 is an output, kept for qk_norm_bwd.
     */
    void (*qk_norm_fwd)(struct meg_stream *st, const struct meg_qk_norm *q, struct meg_heads y, float *rstd,
                        struct meg_heads x, const void *w);
    /*
     * Compute dx, the gradient of x, from dy, the gradient of y; dx may be dy.  Write the gradient of w to dw [d] of
     * type `grad` or, if accumulate, add it.  w has the type of dy.
     */
    void (*qk_norm_bwd)(struct meg_stream *st, const struct meg_qk_norm *q, struct meg_heads dx, void *dw,
                        enum meg_dtype grad, struct meg_heads dy, struct meg_heads x, const void *w, const float *rstd,
                        bool accumulate);

    /*
     * LayerNorm (Ba et al. 2016): y = (x - mean) * rstd * w + b, rstd = 1/sqrt(var + eps), with the biased variance.
     * RMSNorm (Zhang and Sennrich 2019): y = x * rstd * w, rstd = 1/sqrt(mean(x^2) + eps); b is NULL and mean is not
     * written.  With a 1P type, 1 + w replaces w.  x, y [n,h]; w, b [h]; mean, rstd [n] f32 are outputs, kept for
     * norm_bwd.
     */
    void (*norm_fwd)(struct meg_stream *st, enum meg_norm type, struct meg_mat y, float *mean, float *rstd,
                     struct meg_mat x, const void *w, const void *b, float eps);
    /*
     * dx [n,h] = skip + the gradient of x, computed from dy, the gradient of y.  skip [n,h] may be dx; if skip.p is
     * NULL, nothing is added.  Compute the gradients dw [h] of w and db [h] of b, both of type `grad`; for RMSNorm, db
     * is NULL.
     */
    void (*norm_bwd)(struct meg_stream *st, enum meg_norm type, struct meg_mat dx, void *dw, void *db,
                     enum meg_dtype grad, struct meg_mat skip, struct meg_mat dy, struct meg_mat x, const void *w,
                     const float *mean, const float *rstd, bool accumulate);

    /* z [n,h] = x + dropout(y + bias), bias [h] or NULL.  z may be x.  If drop is NULL, there is no dropout. */
    void (*add_fwd)(struct meg_stream *st, struct meg_mat z, struct meg_mat x, struct meg_mat y, const void *bias,
                    const struct meg_drop *drop);
    /*
     * dy [n,h] = dz times the dropout factors of add_fwd; dy may be dz.  Unless dbias is NULL, compute the gradient
     * dbias [h] of type `grad`, the column sums of dy.
     */
    void (*add_bwd)(struct meg_stream *st, struct meg_mat dy, void *dbias, enum meg_dtype grad, struct meg_mat dz,
                    const struct meg_drop *drop, bool accumulate);

    /* Compute z = add_fwd(x, sublayer_out) and y = norm_fwd(z), in one pass if the backend can. */
    void (*add_norm_fwd)(struct meg_stream *st, enum meg_norm type, struct meg_mat z, struct meg_mat y, float *mean,
                         float *rstd, struct meg_mat x, struct meg_mat sublayer_out, const void *bias,
                         const struct meg_drop *drop, const void *w, const void *b, float eps);

    /*
     * o = dropout(softmax(scores)) v (struct meg_attn_desc); with r = a/g, query head j uses group j/r of k and v.  lse
     * [b,a,s_q] f32, an output, is the log-sum-exp of each query's scores and sink, before dropout.  A query for which
     * all keys are masked has o = 0, and lse is the sink, or -infinity without sinks.  o may be f32 when q, k and v are
     * bf16 or f16.
     */
    void (*attn_fwd)(struct meg_stream *st, const struct meg_attn_desc *desc, struct meg_heads o, float *lse,
                     struct meg_heads q, struct meg_heads k, struct meg_heads v, const struct meg_drop *drop);
    /*
     * Merge (o, lse) over some keys with (o_part, lse_part) of the same queries over other keys, in place (Dao 2023,
     * section 3.1): o = sum of exp(lse_i - lse) * o_i with lse = log sum of exp(lse_i).  o and o_part are f32.  If
     * one of the two lse is -infinity for a query (all keys masked, no sink), the result is exactly the other part.
     */
    void (*attn_merge)(struct meg_stream *st, const struct meg_attn_desc *desc, struct meg_heads o, float *lse,
                       struct meg_heads o_part, const float *lse_part);
    /*
     * delta [b,a,s_q] f32 = sum of d_o * o over the columns of a head; o is the attention output over all keys.
     * attn_bwd computes delta itself unless it is given.  With all-to-all context parallelism, a rank computes delta of
     * its own rows and redistributes delta by heads, because o is larger.
     */
    void (*attn_delta)(struct meg_stream *st, const struct meg_attn_desc *desc, float *delta, struct meg_heads d_o,
                       struct meg_heads o);
    /*
     * Compute the gradients of attn_fwd (Dao et al. 2022, appendix B).  A gradient in bf16 or f16 is rounded once per
     * call.
     */
    void (*attn_bwd)(struct meg_stream *st, const struct meg_attn_desc *desc, const struct meg_attn_bwd_args *args,
                     const struct meg_drop *drop);
    /*
     * Return the size in bytes of the workspace of attn_bwd.  Only the shapes in desc are read.  dq, dk and dv have
     * type `grad`; has_param_grads states whether d_rel_bias or d_sink is computed.  On the CPU, the workspace contains
     * f64 sums of d_rel_bias and d_sink, and f32 sums of bf16 or f16 dq, dk and dv for each thread that has work.  The
     * number of OpenMP threads must not increase between this call and attn_bwd.
     */
    size_t (*attn_bwd_nbytes)(const struct meg_attn_desc *desc, enum meg_dtype grad, bool has_param_grads);

    /*
     * Copy key or value heads [s, b, g, d], for example into a KV cache.  dst and src have the same data type, which
     * may be any enum meg_dtype.  Unless dst_offset [b], in device memory, is NULL, the heads of sequence i begin at
     * element dst_offset[i] of dst, instead of i * ld_b; see block_offset for the alignment.
     */
    void (*copy_heads)(struct meg_stream *st, struct meg_heads dst, const int64_t *dst_offset, struct meg_heads src,
                       int64_t s, int64_t b, int64_t g, int64_t d);

    /*
     * x [n,h] = word[token - v0], token [n] i32.  If the token is outside [v0, v0 + word.rows), its embedding is on
     * another shard and the row of x is zero.
     */
    void (*embed_fwd)(struct meg_stream *st, struct meg_mat x, const int32_t *token, struct meg_mat word, int64_t v0);
    /*
     * Compute the gradient dword [v,h] of word: add each row of dx [n,h], in order, to row token - v0 of dword.  Skip
     * rows of dx whose token is on another shard.
     */
    void (*embed_bwd)(struct meg_stream *st, struct meg_mat dword, int64_t v0, struct meg_mat dx, const int32_t *token,
                      bool accumulate);
    /*
     * x [n,h] = dropout(x + pos[position]), in place; position [n] i32.  If pos.p is NULL, add no position embedding.
     */
    void (*position_fwd)(struct meg_stream *st, struct meg_mat x, const int32_t *position, struct meg_mat pos,
                         const struct meg_drop *drop);
    /*
     * Multiply dx by the dropout factors of position_fwd, in place.  Unless dpos.p is NULL, then compute the gradient
     * dpos [positions,h] of pos: add each row of dx, in order, to row `position` of dpos.
     */
    void (*position_bwd)(struct meg_stream *st, struct meg_mat dpos, struct meg_mat dx, const int32_t *position,
                         const struct meg_drop *drop, bool accumulate);

    /*
     * Cross-entropy over a vocabulary that is split over ranks.  This rank has the logits [n,v] of ids [v0, v0 + v).
     * xent_partial writes two statistics of each row to part [2,n] f32: the log-sum-exp of the row, and the target's
     * logit (0 if the target is on another rank).  target [n] i32 contains ids of the complete vocabulary, or -1
     * for a row that is ignored (BERT: a position without a masked token; T5: padding).
     * xent_combine computes lse [n] and loss [n], both f32, from part [nparts,2,n] of all ranks:
     *   loss = lse - the target's logit + z_loss * lse^2, or 0 if the target is -1
     * The last term is the z-loss (Chowdhery et al. 2022, PaLM, section 5), which keeps lse close to 0.
     */
    void (*xent_partial)(struct meg_stream *st, float *part, struct meg_mat logits, const int32_t *target, int64_t v0);
    void (*xent_combine)(struct meg_stream *st, float *loss, float *lse, const float *part, const int32_t *target,
                         int64_t nparts, int64_t n, float z_loss);
    /*
     * Replace the logits by their gradient: (softmax * (1 + 2 * z_loss * lse) - onehot(target)) times the weight of the
     * row, or 0 if the target is -1.
     */
    void (*xent_bwd)(struct meg_stream *st, struct meg_mat logits, const float *lse, const int32_t *target, int64_t v0,
                     float z_loss, struct meg_loss_weight weight);
    /*
     * Compute loss [n] and replace the logits by their gradient, as xent_partial, xent_combine and xent_bwd do if the
     * vocabulary is not split.
     */
    void (*xent_fwd_bwd)(struct meg_stream *st, float *loss, struct meg_mat logits, const int32_t *target, float z_loss,
                         struct meg_loss_weight weight);

    /*
     * Sample token [n], the next token of each row of logits [n,v] f32, 1 <= unpadded_vocab <= v < 2^23.  token and
     * args [n] are in device memory; workspace has at least sample_nbytes(n, unpadded_vocab) bytes.  Ids from
     * unpadded_vocab on are never sampled.  Log-probabilities are computed only if has_logprobs is set.
     *
     * The CUDA backend rounds exp((logit - max) / temperature) down to a multiple of 2^-40, so that sums are exact in
     * any order.  It thus never samples an id whose probability is below 2^-40 of the largest one, and its token may
     * differ from the CPU backend's if a sum is closer to u or top_p than these rounding errors.
     */
    void (*sample)(struct meg_stream *st, struct meg_sampled_token *token, struct meg_mat logits,
                   int64_t unpadded_vocab, const struct meg_sampling_args *args, bool has_logprobs,
                   struct meg_workspace workspace);
    /* Return the size in bytes of the workspace of `sample`.  The number of OpenMP threads must not increase later. */
    size_t (*sample_nbytes)(int64_t n, int64_t unpadded_vocab);

    /* dst [n] = src [n], converted to dst_type. */
    void (*cast)(struct meg_stream *st, void *dst, enum meg_dtype dst_type, const void *src, enum meg_dtype src_type,
                 int64_t n);

    /*
     * Add the sum of squares of x [n] to *out, an f64 in device memory.  The sum is not finite iff an element is not.
     */
    void (*sumsq)(struct meg_stream *st, double *out, const void *x, enum meg_dtype type, int64_t n);
    /* Add the sum of squares of range k of x to out[k], for k < nranges; range [nranges] is in device memory. */
    void (*sumsq_ranges)(struct meg_stream *st, double *out, const void *x, enum meg_dtype type,
                         const struct meg_range *range, int nranges);
    /*
     * Add *scale * sum(x * weight) to *out; x [n], weight [n] f32.  scale and out are f64 in device memory.  NULL for
     * weight or scale means 1.
     */
    void (*weighted_sum)(struct meg_stream *st, double *out, const float *x, const float *weight, int64_t n,
                         const double *scale);
    /* Add the number of elements of x [n] that are exactly zero to *out, an i64 in device memory. */
    void (*count_zeros)(struct meg_stream *st, int64_t *out, const void *x, enum meg_dtype type, int64_t n);

    /* Compute meg_step_finish of a record in device memory; conf is host memory, which may be reused on return. */
    void (*step_finish)(struct meg_stream *st, struct meg_step_record *record, const struct meg_step_conf *conf);

    /*
     * One step of AdamW (Loshchilov and Hutter 2019; Apex's FusedAdam, as in Megatron) on the elements of the ranges:
     *   g' = g * step->grad_scale, m = beta1 * m + (1 - beta1) * g', v = beta2 * v + (1 - beta2) * g'^2,
     *   w -= lr * (m / adam_c1 / (sqrt(v / adam_c2) + eps) + wd * w), copy = w
     * with lr = step->lr[lr_index] * lr_mult and wd = step->weight_decay * wd_mult.  range [nranges] and step are in
     * device memory.  If step->skip is set, do nothing.
     */
    void (*adamw)(struct meg_stream *st, const struct meg_update_arrays *x, const struct meg_update_range *range,
                  int nranges, const struct meg_adam *adam, const struct meg_step_hparams *step);
    /*
     * One step of SGD.  It takes the arguments of adamw, with `momentum` instead of `adam`; buf is state[0]:
     *   g' = g * step->grad_scale + wd * w, buf = momentum * buf + g' (first update: buf = g'),
     *   w -= lr * buf, copy = w
     */
    void (*sgd)(struct meg_stream *st, const struct meg_update_arrays *x, const struct meg_update_range *range,
                int nranges, float momentum, const struct meg_step_hparams *step);
};

/* clang-format off */
/* Expand to X(name) for each operation that has one implementation per CPU instruction set, and one for GPUs. */
#define MEG_TENSOR_OPS(X)                                                                                              \
    X(linear_fwd) X(linear_bwd_data) X(linear_bwd_weight) X(act_bwd) X(scale) X(glu_fwd) X(glu_bwd) X(rope)            \
    X(qk_norm_fwd) X(qk_norm_bwd) X(norm_fwd) X(norm_bwd) X(add_fwd) X(add_bwd) X(add_norm_fwd) X(attn_fwd)            \
    X(attn_merge) X(attn_delta) X(attn_bwd) X(attn_bwd_nbytes) X(embed_fwd) X(embed_bwd) X(position_fwd)               \
    X(position_bwd) X(xent_partial) X(xent_combine) X(xent_bwd) X(xent_fwd_bwd) X(cast) X(sumsq) X(sumsq_ranges)       \
    X(weighted_sum) X(count_zeros) X(adamw) X(sgd)
/* clang-format on */

MEG_END_DECLS
#endif
