/*
 * gpt.h - a GPT on one rank: its parameters, and forward and backward of micro-batches.
 *
 * The architecture is described in gpt_conf.h, the runtime configuration in gpt_run.h, decoding with a KV cache in
 * gpt_decode.h.
 */
#ifndef MEG_MODEL_GPT_H
#define MEG_MODEL_GPT_H
#include "data/batch.h"
#include "model/gpt_conf.h"
#include "model/gpt_run.h"

MEG_BEGIN_DECLS

/*
 * Callbacks by which data parallelism overlaps communication with forward and backward.  Layer groups are 0 the
 * embedding, 1..L the layers, L+1 the head (model/param.h).
 */
struct meg_gpt_hooks {
    void *user;
    /*
     * Called before a layer group's parameters are read.  next: the group that the pass reads after it, for
     * prefetching, or -1.  is_backward: gradients of the group follow.
     */
    void (*params_needed)(void *user, int layer_group, int next, bool is_backward);
    /* Called when a micro-batch's backward has added all of its gradients of a layer group. */
    void (*grads_ready)(void *user, int layer_group);
};

struct meg_gpt {
    struct meg_gpt_conf conf;
    struct meg_gpt_run run;
    const struct meg_mesh *mesh;
    struct meg_params params;
    const struct meg_ops *op;
    void *
        w; /* flat buffer of parameters in run.dtype: [params.flat_numel], or [meg_params_unsharded_numel] if sharded */
    void *g;                     /* of gradients in run.grad_dtype, likewise; NULL when not training */
    struct meg_gpt_memory used;  /* maximum bytes in use of each arena */
    struct meg_gpt_hooks hooks;  /* the caller's; all NULL at first */
    struct meg_gpt_state *state; /* layers, activations, workspace */
};

/*
 * Create this rank's shard of the model and allocate all of its memory.  Weights are zero until meg_gpt_init or until a
 * checkpoint fills g->w.  mesh is borrowed until meg_gpt_close.  MEG_EFAIL if memory is exhausted, MEG_EUSAGE if the
 * backend does not support run->dtype.
 */
int meg_gpt_create(struct meg_gpt **out, const struct meg_gpt_conf *c, const struct meg_gpt_run *run,
                   const struct meg_ops *op, const struct meg_mesh *mesh, struct meg_err *e);
void meg_gpt_close(struct meg_gpt *g);

/*
 * Set the initial weights, a function of seed, tensor name and element (meg_param_init), the same under every layout.
 */
void meg_gpt_init(struct meg_gpt *g, uint32_t seed);

/* ---- without pipeline parallelism: each rank has all layers ---- */

/*
 * Compute the loss of each token into token_loss [s,b] (host; may be NULL), without dropout; return the sum of
 * loss * loss_mask over the tokens.
 */
double meg_gpt_loss(struct meg_gpt *g, const struct meg_batch *x, float *token_loss);

/*
 * Run forward and backward: add the gradients of scale * sum(loss * loss_mask) to g->g and return sum(loss *
 * loss_mask). Dropout is on if x->sample_id is given.
 */
double meg_gpt_forward_backward(struct meg_gpt *g, const struct meg_batch *x, double scale);

/*
 * After meg_gpt_loss: write the logits [rows,v] f32 (host) of tokens [first, first + rows), exactly those from which
 * the losses were computed.  first is a multiple of meg_gpt_logit_rows; rows is that number, or fewer for the last
 * tokens.
 */
int64_t meg_gpt_logit_rows(const struct meg_gpt *g);
void meg_gpt_loss_logits(struct meg_gpt *g, int64_t first, int64_t rows, float *logits);

/* Compute the logits [s,b,v] f32 (host) of a batch, without dropout. */
void meg_gpt_logits(struct meg_gpt *g, const struct meg_batch *x, float *logits);

/* ---- with pipeline parallelism: a rank has chunks of layers, and each micro-batch in flight has a slot ---- */

/*
 * Return the bytes of what chunks send to each other: rows [s/t b, h], t the tensor-parallel ranks with sequence
 * parallelism.
 */
size_t meg_gpt_boundary_nbytes(const struct meg_gpt *g);

/*
 * Run forward of a micro-batch through a chunk and keep its activations in a slot.  in and out are device memory of
 * meg_gpt_boundary_nbytes.  A chunk that begins with the embedding does not read in; for others it must remain
 * unchanged until the slot's backward has ended.  A chunk that ends with the head does not write out.  scale: see
 * meg_gpt_forward_backward.
 */
void meg_gpt_forward(struct meg_gpt *g, int64_t chunk, int64_t slot, const struct meg_batch *x, double scale,
                     const void *in, void *out);
/* Compute the losses of a slot after forward of the chunk with the head; see meg_gpt_loss. */
double meg_gpt_slot_loss(struct meg_gpt *g, int64_t slot, float *token_loss);
/*
 * Run backward of a slot: compute d_in, the gradient of in, from d_out, that of out, and add the gradients of the
 * parameters to g->g.  A chunk that ends with the head does not read d_out and returns sum(loss * loss_mask); others
 * return 0.  A chunk that begins with the embedding does not write d_in.
 */
double meg_gpt_backward(struct meg_gpt *g, int64_t chunk, int64_t slot, const void *d_out, void *d_in);
/* With run.defers_wgrad: add the gradients of the weights of linears, after meg_gpt_backward of that slot. */
void meg_gpt_backward_weight(struct meg_gpt *g, int64_t chunk, int64_t slot);

MEG_END_DECLS
#endif
