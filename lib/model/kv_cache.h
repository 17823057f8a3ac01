/* kv_cache.h - the KV cache of model/decode.h, and the arrays of a decoding step. */
#pragma once
#include "model/decode.h"
#include "model/internal.h"

/* Keys and values of tokens in the layers of the last stack. */
struct model_kv_buffer {
    char *kv;    /* [L, s, width]; NULL before the first sequence */
    int64_t s;   /* number of tokens for which memory is allocated */
    int64_t len; /* number of tokens stored */
};

/* The keys and values of one sequence: of its tokens and, in a model with an encoder, of the output of the encoder. */
struct model_kv_slot {
    struct model_kv_buffer tokens, memory;
    int32_t *ids; /* [short_positions] the tokens, with LongRoPE; NULL before the first sequence */
};

/* The arrays of offsets of struct meg_kv_step, in the order in which they are uploaded. */
enum { MODEL_KV_TOKENS_OFFSET, MODEL_KV_ADDED_OFFSET, MODEL_KV_MEMORY_OFFSET, MODEL_KV_NUM_OFFSETS };

struct meg_model_kv_cache {
    const struct meg_device *device;
    const struct meg_ops *op; /* device->op */
    struct meg_decode_conf conf;
    enum meg_dtype dtype;
    int64_t b, L;
    /*
     * With LongRoPE, the length above which a sequence has other rotary tables.  The token that exceeds it changes all
     * keys, so they are computed again.  Otherwise 0.
     */
    int64_t short_positions;
    size_t token_nbytes, memory_nbytes; /* bytes of the keys and values of one token in one layer, by buffer */
    struct model_kv_slot *slot;         /* [b] */
    /*
     * The arrays of a step of n sequences, n <= op->decode_rows: [MODEL_KV_NUM_OFFSETS,L,n] i64 offsets, [2,n] i32
     * positions and lengths of the encoder's input; on the host, and in device memory
     */
    int64_t *host_arrays;
    void *arrays;
    /*
     * Arguments and results [min(b, op->decode_rows)] of the operation `sample`, and its workspace, in device memory.
     */
    struct meg_sampling_args *args;
    struct meg_sampled_token *sampled;
    struct meg_workspace workspace;
    void *device_memory; /* the allocation that contains the arrays in device memory; NULL before the first sequence */
    float *logits;       /* [b,v] next logits, in pinned memory; NULL if not requested, or before the first sequence */
    struct meg_sampled_token *token; /* [b] next tokens; NULL if not requested */
    int32_t *input, *position;       /* [op->decode_rows] inputs of a decoding step, on the host */
    struct meg_graphs graphs;        /* of decoding steps */
};

/* Remove all tokens from a buffer, and allocate memory for s tokens unless the buffer has enough. */
int model_kv_begin_sequence(struct meg_model *g, struct meg_model_kv_cache *c, struct model_kv_buffer *q,
                            size_t token_nbytes, int64_t s, struct meg_err *e);

enum { MODEL_KV_GRAPH_TOKENS = 256 };
/*
 * Return the step that appends s tokens to each of the sequences of n slots.  If is_graph is set, round the lengths up
 * to MODEL_KV_GRAPH_TOKENS, so that many steps can launch the same graph.
 */
struct meg_kv_step model_kv_step(struct meg_model_kv_cache *c, struct meg_stream *st, const int64_t *slot, int64_t n,
                                 int64_t s, bool is_graph);
