/* ctx.h - the argument common to all layer functions: backend, ranks, data types and the current micro-batch. */
#pragma once
#include <stdbool.h>
#include "comm/comm.h"
#include "tensor/suballoc.h"

/* Keys and values of tokens.  Those of layer i of a stack are at p + i * layer_bytes, with shape [token, g, 2, d]. */
struct meg_kv_cache {
    char *p;
    size_t layer_bytes;
};

/*
 * A step of decoding with KV caches: b sequences with s new tokens each.  Row t * b + i of the micro-batch is new token
 * t of sequence i; further rows are padding.  Each sequence has a cache of its tokens, by position, and a cache of the
 * output of the encoder, which cross-attention reads.
 *
 * Offsets are in elements, from the keys of sequence 0 in the same layer.  The arrays are in device memory; they may be
 * NULL if there is only one sequence, and position0 is not read if they are not NULL.
 */
struct meg_kv_step {
    int64_t s, b;
    int64_t position0;                  /* position of the first new token of sequence 0 */
    int64_t len, memory_len;            /* upper bounds of the numbers of tokens (with new ones) and encoder tokens */
    struct meg_kv_cache tokens, memory; /* of sequence 0 */
    const int64_t *tokens_offset;       /* [layers,b] offset of the cache of tokens */
    const int64_t *added_offset;        /* [layers,b] offset of the first new token in this cache */
    const int64_t *memory_offset;       /* [layers,b] offset of the cache of the encoder's output */
    const int32_t *position;            /* [b] position of the first new token */
    const int32_t *memory_length;       /* [b] tokens of the encoder's input */
};

/* The output of the encoder, which the cross-attention of the decoder reads. */
struct meg_memory {
    void *y, *dy;              /* [rows,h] this rank's rows, and their gradient, to which the backward pass adds */
    int64_t rows, h, s;        /* s positions */
    const int32_t *key_length; /* [b] device: number of tokens of each sequence; NULL: s */
};

/*
 * What a pass depends on, besides its weights and activations: the micro-batch in one stack, and whether gradients are
 * accumulated.  Arrays are in device memory.  It is a part of the keys of graphs (device/graph.h), which are compared
 * as bytes, so it has no padding.
 */
struct meg_call {
    int64_t s, b;                /* s positions on this context-parallel rank, b sequences; n = s*b rows */
    const int64_t *sample_id;    /* [b] global sample number of each sequence; NULL: no dropout */
    const int32_t *position_ids; /* [s,b] */
    const int32_t *doc_start;    /* [s,b] position of the first key that each query may attend to; NULL: 0 */
    const int32_t *key_length;   /* [b] number of keys of each sequence; NULL: s */
    /* [rows/b] element t is the global position of rows [t*b, (t+1)*b) of the residual stream; NULL: t */
    const int32_t *position_of_row;
    struct meg_memory memory;
    struct meg_kv_step kv;     /* kv.b is 0: complete sequences, without a KV cache */
    int64_t accumulates_grads; /* backward adds to parameter gradients; otherwise it overwrites them */
    int64_t is_first_backward; /* of the layer in this step; with ZeRO-2/3, the later ones overwrite gradients, too */
    /* factors of each loss of the model in the gradients and in its sum, and of all losses in the gradients */
    const double *grad_factor, *sum_factor, *loss_scale;
};

struct meg_ctx {
    /* constants of the model on this rank */
    const struct meg_ops *op;
    struct meg_stream *stream;
    struct meg_comm *tp;       /* tensor-parallel group */
    struct meg_comm *ep, *etp; /* expert-parallel and expert tensor-parallel groups (parallel/mesh.h) */
    bool has_sp;               /* sequence parallelism is on (nn/sequence_parallel.h) */
    void *sp_buffer[2];        /* workspace of sequence parallelism, [n, h] each: [0] gathered rows, [1] partial sums */
    bool defers_wgrad;         /* backward leaves the weight gradients of linears to *_bwd_weight */
    enum meg_dtype dtype;      /* dtype of parameters, and of activations except the residual stream */
    enum meg_dtype grad_dtype; /* dtype of parameter gradients */
    uint32_t seed;             /* seed of dropout */
    double *loss_sum;          /* device: sum of each loss of the model */
    struct meg_call call;
};

/* Return the output of the encoder or its gradient, memory.y or memory.dy of the call. */
static inline struct meg_mat meg_memory_mat(const struct meg_ctx *c, void *p)
{
    return meg_mat(p, c->dtype, c->call.memory.rows, c->call.memory.h);
}

/*
 * Return the dropout parameters of one site of a layer for the current micro-batch.  The dropout probability is p, or 0
 * if the micro-batch has no sample numbers.
 */
static inline struct meg_drop meg_ctx_drop(const struct meg_ctx *c, double p, int layer, enum meg_drop_site site)
{
    struct meg_drop d = { 0 };
    d.p = c->call.sample_id ? (float)p : 0;
    d.seed = c->seed;
    d.layer = layer;
    d.site = site;
    d.b = c->call.b;
    d.sample = c->call.sample_id;
    d.position_of_row = c->call.position_of_row;
    return d;
}

/* Return the weights of the values of loss i of the model in the gradients.  mask is in device memory, or NULL. */
static inline struct meg_loss_weight meg_ctx_loss_weight(const struct meg_ctx *c, int i, const float *mask)
{
    return (struct meg_loss_weight){ mask, c->call.grad_factor + i, c->call.loss_scale };
}

/*
 * Add the sum of mask * value, both [n], to the sum of loss i of the model.  Sums are added over context- and
 * data-parallel ranks, but not over tensor-parallel ones, which all add the values of all n tokens.
 */
static inline void meg_ctx_add_loss(struct meg_ctx *c, int i, const float *value, const float *mask, int64_t n)
{
    MEG_CALL(c->op, c->stream, weighted_sum, .out = c->loss_sum + i, .x = value, .weight = mask, .n = n,
             .scale = c->call.sum_factor + i);
}
