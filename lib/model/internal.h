/* internal.h - declarations private to the files of the GPT: layers, activations, micro-batch slots and buffers. */
#ifndef MEG_MODEL_INTERNAL_H
#define MEG_MODEL_INTERNAL_H
#include "model/model.h"
#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/lm_head.h"
#include "nn/mlp.h"
#include "nn/norm.h"
#include "nn/sequence_parallel.h"

MEG_BEGIN_DECLS

/*
 * Number of rows in a decoding step; unused rows are padding.  The fixed size makes the result of a row independent of
 * the number of rows in use.
 */
enum { DECODE_ROWS = 16 };

struct model_layer {
    struct meg_norm_weights norm1, norm2;
    struct meg_attn attn;
    struct meg_mlp mlp;
    bool has_grads;  /* backward has run since meg_model_zero_grads; false with run.shards_grads (begin_grads) */
    bool has_wgrads; /* meg_model_backward_weight has run since meg_model_zero_grads */
};

/* Activations of a layer, kept for its backward pass. */
struct model_acts {
    struct meg_mat x;        /* [residual_rows, h] input */
    struct meg_mat ln1;      /* [residual_rows, h] norm1(x) */
    struct meg_mat residual; /* [residual_rows, h] m = x + drop(attn(ln1)) */
    struct meg_mat ln2;      /* [residual_rows, h] norm2(m) */
    struct meg_norm_stats ln1_stats, ln2_stats;
    struct meg_attn_acts attn;
    struct meg_mlp_acts mlp;
};

/* Gradients of the activations of a layer; x, ln, attn_out and mlp_out are [residual_rows, h]. */
struct model_grads {
    struct meg_mat x;                 /* gradient of the residual stream */
    struct meg_mat ln;                /* gradient of the output of either norm */
    struct meg_mat attn_out, mlp_out; /* gradients of the sublayers' outputs */
    struct meg_attn_grads attn;
    struct meg_mlp_acts mlp;
};

/* The arrays of a micro-batch in device memory. */
struct model_inputs {
    int32_t *tokens, *labels, *position_ids, *doc_start; /* [n] */
    float *loss_mask;                                    /* [n] */
    int64_t *sample_id;                                  /* [b] */
    struct meg_event *uploaded;                          /* recorded on the copy stream */
    struct meg_event *unused;                            /* recorded on the compute stream after the last read */
};

/* Activation slot: the inputs and the activations of one micro-batch in one chunk of layers. */
struct model_slot {
    int64_t s, b;
    struct model_acts *acts; /* [layers of a chunk]; acts[0].x is embed_out or the pipeline's receive buffer */
    void *embed_out;         /* output of the embedding */
    struct meg_mat *saved; /* [layers of a chunk] shard of a recomputed layer's input (distribute_saved_activations) */
    /*
     * [layers of a chunk] copies of meg_model_state.grads, with buffers that all layers share.  With defers_wgrad, the
     * gradients that meg_model_backward_weight reads have their own buffers in this slot.
     */
    struct model_grads *grads;
    struct meg_mat last_out; /* [residual_rows, h] output of the last layer, input of the final norm */
    /*
     * The inputs of two micro-batches, so that one is uploaded while the other is computed.  If device memory is host
     * memory, both use the same arrays.
     */
    struct model_inputs inputs[2];
    struct model_inputs *in; /* inputs of the current micro-batch, &inputs[0] or &inputs[1] */
    bool has_doc_start, has_dropout, has_loss_mask;
    double scale; /* factor of the loss in the gradients (meg_model_forward_backward) */
};

/* Sizes of the model on this rank. */
struct model_dims {
    int64_t s, b, n;       /* maximum numbers of positions, sequences and rows of a micro-batch */
    int64_t residual_rows; /* rows of the residual stream: n, with sequence parallelism n / tp */
    struct meg_model_widths width;
    int64_t v, v0;                /* number of vocabulary rows on this rank, index of the first one */
    int64_t rope_half, positions; /* rotated column pairs per head; max_position_embeddings */
    int64_t layers;               /* number of layers per chunk */
    int64_t chunks, slots;
    int64_t tp;
    bool has_embedding, has_head; /* whether a chunk of this rank has the embedding, or the head */
};

struct meg_model_state {
    struct meg_ctx ctx;
    struct model_dims dim;
    struct model_layer *layer;     /* [chunks, layers] */
    struct model_slot *slot;       /* [slots] */
    struct model_acts *recomputed; /* activations of layers recomputed together; selective: only attn.o and attn.lse */
    struct meg_norm_weights final_norm;
    struct meg_embed embed;
    struct meg_rope rope;
    struct meg_cp *cp; /* [ncp]: one for all layers of the model, or one per layer */
    int ncp;
    struct meg_attn_workspace attn_workspace;
    struct meg_lm_head head;
    bool embed_has_grads, head_has_grads; /* like model_layer.has_grads */
    struct meg_mat sublayer_out;          /* [residual_rows, h] output of attention or MLP, before bias-dropout-add */
    struct meg_mat lnf;                   /* [residual_rows, h] output of the final norm */
    struct meg_norm_stats lnf_stats;
    struct model_grads grads;      /* gradients shared by all layers, unless a slot has its own (struct model_slot) */
    float *loss;                   /* [n], device */
    double *loss_sum;              /* [1], device */
    int32_t *position_of_row;      /* [s], device */
    int32_t *host_position;        /* [s] */
    void *activations, *workspace; /* base addresses of the arenas */
};

/* ---- buffers.c ---- */

/* Compute the sizes of a state and allocate its host arrays.  The device buffers are not allocated. */
struct meg_model_state *model_state_new(const struct meg_model_conf *c, const struct meg_model_run *run,
                                        const struct meg_ops *op, const struct meg_mesh *mesh);
void model_state_free(struct meg_model_state *st);
/* Sub-allocate all buffers from the two arenas.  In an arena with base NULL, only count bytes. */
void model_buffers_suballoc(struct meg_model_state *st, const struct meg_model_run *run,
                            struct meg_suballoc *activations, struct meg_suballoc *workspace);

/*
 * Set [*begin, *end) to the layers of a chunk that are recomputed together with layer i.  Return false if layer i is
 * not recomputed, or only its core attention is.
 */
bool model_recompute_range(const struct meg_model_run *run, int64_t layers, int64_t i, int64_t *begin, int64_t *end);

/* ---- forward_backward.c ---- */

/* Upload a micro-batch to a slot and make the slot current.  For `scale`, see meg_model_forward_backward. */
void model_load_batch(struct meg_model *g, int64_t slot, const struct meg_batch *x, double scale, bool has_dropout);
/* Run forward of all layers of a chunk.  For `out`, see meg_model_forward. */
void model_layers_fwd(struct meg_model *g, int64_t chunk, int64_t slot, void *out);
/*
 * Compute the logits of rows [first, first + rows) of lnf.  Copy the logits of the first nkept of these rows to the
 * host.
 */
void model_logits_to_host(struct meg_model *g, int64_t first, int64_t rows, int64_t nkept, float *out);

MEG_END_DECLS
#endif
