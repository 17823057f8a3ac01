/* internal.h - declarations private to this module: layers, activations, micro-batch slots and buffers. */
#pragma once
#include "device/graph.h"
#include "model/family.h"
#include "model/model.h"
#include "nn/attn/self_attention.h"
#include "nn/embedding.h"
#include "nn/lm_head.h"
#include "nn/sequence_parallel.h"

/* A block of a layer on this rank. */
struct model_block {
    const struct meg_block *desc;
    struct meg_norm_weights norm, post_norm;
    void *weights; /* of the mixer */
};

struct model_layer {
    const struct meg_layer *desc;
    int64_t index;             /* index of the layer in the model */
    struct model_block *block; /* [desc->n] */
    bool has_grads;            /* backward has run since meg_model_zero_grads; with run.shards_grads, always false */
    bool has_run_backward;     /* since meg_model_zero_grads */
    bool has_wgrads;           /* meg_model_backward_weight has run since meg_model_zero_grads */
};

/* Activations of a block, kept for its backward pass, and gradients. */
struct block_acts {
    struct meg_mat x; /* [residual_rows, h] residual stream before the block */
    struct meg_mat y; /* [residual_rows, h] norm(x); without a norm, x in the dtype of activations, or p is NULL */
    struct meg_norm_stats stats;
    void *acts;         /* of the mixer */
    struct meg_mat out; /* [residual_rows, h] output of the mixer, if it has a norm, and the statistics of that norm */
    struct meg_norm_stats post_stats;
    struct meg_mat d_out; /* [residual_rows, h] gradient of the output of the block's mixer */
    void *grads;          /* gradients of acts */
};

/* A micro-batch in device memory. */
struct model_inputs {
    struct meg_batch x; /* arrays in device memory, each allocated for n elements */
    unsigned present;   /* arrays that are uploaded, a bit mask (enum meg_batch_field) */
    struct meg_loss_factors
        *factors;               /* in device memory; uploaded only if this rank has heads, or blocks have losses */
    struct meg_event *uploaded; /* recorded on the copy stream */
    struct meg_event *unused;   /* recorded on the compute stream after the last read */
};

/* The passes of a layer: forward, backward, and the weight gradients that backward defers. */
enum model_pass { MODEL_FWD, MODEL_BWD, MODEL_BWD_WEIGHT, MODEL_NUM_PASSES };

/* The activations of a layer in a slot, and the graphs of its passes. */
struct slot_layer {
    struct block_acts *block; /* [blocks of the layer] */
    struct meg_mat saved;     /* shard of a recomputed layer's input (distribute_saved_activations) */
    struct meg_graphs graphs[MODEL_NUM_PASSES];
};

/* The hidden states of a stack in a slot. */
struct slot_stack {
    int64_t s; /* positions of the micro-batch */
    /*
     * [residual_rows, h] output of the last layer, input of the final norm.  If the chunk with the head has no layers,
     * this is the pipeline's receive buffer.
     */
    struct meg_mat last_out;
    struct meg_mat memory; /* encoder: [residual_rows, h] output of its final norm, or the pipeline's receive buffer */
    struct meg_norm_stats stats;            /* encoder: row statistics of its final norm */
    struct meg_mat words;                   /* [residual_rows, h] input of the norm of the word embedding, if any */
    struct meg_norm_stats word_stats;       /* row statistics of this norm */
    struct meg_graphs embed_fwd, embed_bwd; /* passes of the embedding */
};

/*
 * Activation slot: the inputs and the activations of one micro-batch in one chunk of layers.  The chunks of the rank
 * use the same memory.
 */
struct model_slot {
    int64_t b;
    struct slot_layer *layer; /* [layers of the rank] */
    struct slot_stack stack[MEG_MAX_STACKS];
    /*
     * The inputs of two micro-batches, so that one is uploaded while the other is computed.  If device memory is host
     * memory, both use the same arrays.
     */
    struct model_inputs inputs[2];
    struct model_inputs *in;     /* inputs of the current micro-batch, &inputs[0] or &inputs[1] */
    struct meg_graphs heads_bwd; /* losses and gradients of the heads */
};

/*
 * The layers of a stack in a chunk: [begin, end) of meg_model_state.layer.  The range may be empty: a chunk may have
 * only layers of another stack, only the embedding or only the heads, or may only copy its input to its output.
 */
struct model_segment {
    int64_t begin, end;
    bool has_embedding; /* the chunk has the embedding before the first layer of the stack */
    bool has_norm;      /* the chunk has the norm after the last layer */
};

/* A model chunk (virtual pipeline stage) of this rank. */
struct model_chunk {
    struct model_segment segment[MEG_MAX_STACKS];
    bool has_head;
};

/* The largest numbers of positions and rows of a stack's hidden states. */
struct model_rows {
    int64_t s, n;
    int64_t residual; /* rows of the residual stream: n, with sequence parallelism n / tp */
};

/* Sizes of the model on this rank. */
struct model_dims {
    int64_t b;                                     /* largest number of sequences of a micro-batch */
    struct model_rows stack[MEG_MAX_STACKS], most; /* of each stack, and of the longest one */
    int64_t h;
    int64_t nlayers, nchunks, nslots;
    int64_t tp, tp_rank, ep, etp;
    /* whether a chunk of this rank has an embedding, the head, layers of a stack, or the norm after it */
    bool has_embedding, has_head, has_layers[MEG_MAX_STACKS], has_norm[MEG_MAX_STACKS];
    bool uses_group0; /* whether a chunk has an embedding, or layers that use a relative bias */
};

struct meg_model_state {
    struct meg_ctx ctx;
    struct meg_model_desc desc;
    struct model_dims dim;
    struct model_layer *layer; /* [nlayers] layers of this rank, chunk by chunk */
    struct model_chunk *chunk; /* [nchunks] */
    struct model_slot *slot;   /* [nslots] */
    struct meg_norm_weights final_norm[MEG_MAX_STACKS];
    struct meg_embed embed;
    struct meg_rope rope[MEG_ROPE_SETS];
    float *alibi_slope; /* [heads of this rank], device: slopes of ALiBi; NULL without ALiBi */
    struct meg_rel_bias rel_bias[MEG_MAX_STACKS]; /* relative bias of attention scores, by stack; T5 only */
    bool rel_bias_has_grads[MEG_MAX_STACKS];      /* like model_layer.has_grads */
    struct meg_cp *cp;                            /* [ncp]: one for all layers of the model, or one per layer */
    int ncp;
    int stack;                            /* the current stack, to which ctx.call belongs */
    void *head[MEG_MAX_LOSSES];           /* weights of the heads */
    bool embed_has_grads, head_has_grads; /* like model_layer.has_grads */
    struct meg_mat sublayer_out;          /* [residual_rows, h] output of a mixer, before bias-dropout-add */
    struct meg_mat parallel_out;          /* [residual_rows, h] the same of a parallel block, or a gradient to add */
    struct meg_mat d_parallel;            /* [residual_rows, h] gradient of x through parallel blocks with norms */
    struct meg_mat lnf;                   /* [residual_rows, h] output of the final norm */
    struct meg_norm_stats lnf_stats;
    struct meg_mat d_residual;     /* [residual_rows, h] gradient of the residual stream */
    struct meg_mat d_norm;         /* [residual_rows, h] gradient of the output of a norm */
    struct meg_mat d_memory;       /* [residual_rows, h] gradient of the output of the encoder */
    float *loss[MEG_MAX_LOSSES];   /* [n] or [b], device: losses of each head */
    struct meg_batch in;           /* current micro-batch, in device memory; arrays that it lacks are NULL */
    int32_t *position_of_row;      /* [s], device */
    int32_t *host_position;        /* [s] */
    void *activations, *workspace; /* base addresses of the arenas */
};

/* ---- family.c ---- */

extern char meg_family_choices[64]; /* the names of the families, separated by '|' */

/* ---- bind.c ---- */

/* Allocate the structures of layer `index` of the model, without its parameters.  Free it with model_layer_free. */
void model_layer_init(struct model_layer *l, const struct meg_model_desc *d, int64_t index);
void model_layer_free(struct model_layer *l);

/* Declare the parameters of the parts of the model (params/binder.h). */
void model_bind_embed(struct meg_binder *b, struct meg_embed *l, const struct meg_model_desc *d);
void model_bind_rel_bias(struct meg_binder *b, struct meg_rel_bias *l, const struct meg_model_desc *d, int k);
void model_bind_layer(struct meg_binder *b, struct model_layer *l, const struct meg_model_desc *d,
                      const struct meg_block_env *env);
/*
 * Declare the norm after stack k.  The norm after the last stack belongs to the layer group of the heads, the norm
 * after the encoder to that of the encoder's last layer.
 */
void model_bind_final_norm(struct meg_binder *b, struct meg_norm_weights *norm, const struct meg_model_desc *d, int k);
void model_bind_heads(struct meg_binder *b, void *const *weights, const struct meg_model_desc *d,
                      const struct meg_block_env *env);

/* For each head i, set weights[i] to a new structure of its type, without parameters.  weights is [MEG_MAX_LOSSES]. */
void model_heads_init(void **weights, const struct meg_model_desc *d);
void model_heads_free(void **weights);

/* ---- state.c ---- */

/* Compute the sizes of a state and allocate its host arrays.  The device buffers are not allocated. */
struct meg_model_state *model_state_new(const struct meg_model_conf *c, const struct meg_model_run *run,
                                        const struct meg_ops *op, const struct meg_mesh *mesh);
/* Free a state.  `device` has its graphs; it may be NULL if there are none. */
void model_state_free(struct meg_model_state *st, const struct meg_device *device);

/* ---- buffers.c ---- */

/* Sub-allocate all buffers from the two arenas.  In an arena with base NULL, only count bytes. */
void model_buffers_suballoc(struct meg_model_state *st, const struct meg_model_run *run,
                            struct meg_suballoc *activations, struct meg_suballoc *workspace);

/* Set the rows of the buffers of the blocks of a slot to those of the micro-batch that q->b and q->stack describe. */
void model_buffers_trim(struct meg_model_state *st, const struct meg_model_run *run, struct model_slot *q);

/*
 * Return the dtype of the logits: f32 for inference, so that sampled and printed probabilities have the precision of
 * the sums of the last matrix product, and run->dtype for training.
 */
enum meg_dtype model_logits_dtype(const struct meg_model_run *run);

/*
 * Set [*begin, *end) to the layers of a segment that are recomputed together with layer i.  Return false if layer i is
 * not recomputed, or only its core attention is.
 */
bool model_recompute_range(const struct meg_model_run *run, const struct model_segment *x, int64_t i, int64_t *begin,
                           int64_t *end);

/* ---- micro_batch.c ---- */

/* Upload a micro-batch to a slot.  `factors` may be NULL if no losses are computed. */
void model_load_batch(struct meg_model *g, int64_t slot, const struct meg_batch *x,
                      const struct meg_loss_factors *factors, bool has_dropout);
/* Make the micro-batch of a slot, and stack k, current. */
void model_set_current(struct meg_model *g, struct model_slot *q, int k);
/* Return the index of the last stack, whose output the heads read. */
int model_last_stack(const struct meg_model *g);

/* ---- layers.c ---- */

/* Return the first rows of m [residual_rows, h], as many as the current micro-batch has in the current stack. */
struct meg_mat model_residual_rows(const struct meg_model *g, struct meg_mat m);
/* Return the residual stream of the current micro-batch, or its gradient, at p: [residual_rows, h]. */
struct meg_mat model_residual(const struct meg_model *g, void *p);
/* Queue a copy of a matrix with the shape of `like` within device memory. */
void model_copy(struct meg_model *g, void *to, const void *from, struct meg_mat like);
/* Return the layer group of layer i of this rank. */
int64_t model_group_of(const struct meg_model *g, int64_t i);
/* Run forward of the layers of a segment, whose stack is current.  Store the residual stream after them in y. */
void model_layers_fwd(struct meg_model *g, const struct model_segment *x, struct model_slot *q, struct meg_mat y);
/* Run backward through the layers of a segment: compute dx from dy. */
void model_layers_bwd(struct meg_model *g, const struct model_segment *x, struct model_slot *q, struct meg_mat dx,
                      struct meg_mat dy);
/* Compute the weight gradients that the backward pass of a layer deferred (zero-bubble schedules). */
void model_layer_bwd_weight(struct meg_model *g, struct model_layer *l, struct slot_layer *q);

/* ---- heads.c ---- */

/* Call the hook params_needed for the layer groups that the heads read. */
void model_head_params_needed(const struct meg_model *g, bool is_backward);
/* Compute lnf from the output of the last layer. */
void model_final_norm_fwd(struct meg_model *g, const struct model_slot *q);
/*
 * Compute the losses of a slot, and add them to loss_sum.  Compute the gradients of the heads, and d_last_out, the
 * gradient of the output of the last layer.
 */
void model_heads_bwd(struct meg_model *g, struct model_slot *q, struct meg_mat d_last_out);
/* Return the number of columns of the logits on this rank. */
int64_t model_vocab(const struct meg_model *g);
/* Compute the logits [rows,v] of rows [first, first + rows) of lnf, in device memory; the next call overwrites them. */
struct meg_mat model_logits(struct meg_model *g, int64_t first, int64_t rows);
/* Compute the logits as model_logits does, and copy them to out [rows,v] in host memory. */
void model_read_logits(struct meg_model *g, int64_t first, int64_t rows, float *out);

/* ---- forward_backward.c ---- */

/* Return the context of a pass. */
struct meg_ctx model_ctx(const struct meg_model *g, const struct meg_call *call);
/* Call run(pass), as a graph if g->run.uses_graphs is set (meg_graphs_run). */
void model_run_pass(const struct meg_model *g, struct meg_graphs *graphs, void (*run)(const void *pass),
                    const void *pass, size_t nbytes);
/* Call the hooks of g, if they are set. */
void model_params_needed(const struct meg_model *g, int64_t layer_group, int64_t next, bool is_backward);
void model_grads_ready(const struct meg_model *g, int64_t layer_group);
/*
 * Return whether a backward pass adds to the gradients to which has_grads belongs, or overwrites them.  With ZeRO-2/3
 * it always overwrites, because each pass is reduce-scattered and added to the shards (optim/zero).
 */
bool model_begin_grads(const struct meg_model *g, bool *has_grads);
/*
 * Run the forward pass of the part of stack k that is in a chunk: its embeddings and layers and, at the end of the
 * encoder, the norm.  The stack must be current (model_set_current).
 */
void model_stack_fwd(struct meg_model *g, int64_t chunk, int k, struct model_slot *q, void *const *in,
                     void *const *out);
