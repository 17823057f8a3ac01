/*
 * gpt.h - a GPT on one rank: its parameters, and forward and backward of micro-batches.
 *
 * gpt_conf.h describes the architecture, gpt_run.h the runtime configuration, gpt_decode.h decoding with a KV cache.
 */
#ifndef MEG_MODEL_GPT_H
#define MEG_MODEL_GPT_H
#include "data/batch.h"
#include "device/device.h"
#include "model/gpt_conf.h"
#include "model/gpt_run.h"

MEG_BEGIN_DECLS

/*
 * Callbacks through which data parallelism overlaps communication with forward and backward.  Layer group 0 is the
 * embedding, groups 1..L are the layers, and group L+1 is the head (model/param.h).
 */
struct meg_gpt_hooks {
    void *user;
    /*
     * Called before the parameters of a layer group are read.  `next` is the group to prefetch, which the pass reads
     * after this one, or -1.  If is_backward, the pass computes gradients of the group.
     */
    void (*params_needed)(void *user, int layer_group, int next, bool is_backward);
    /* Called when the backward pass of a micro-batch has added all its gradients of a layer group. */
    void (*grads_ready)(void *user, int layer_group);
};

struct meg_gpt {
    struct meg_gpt_conf conf;
    struct meg_gpt_run run;
    const struct meg_mesh *mesh;
    struct meg_params params;
    const struct meg_device *device;
    const struct meg_ops *op; /* device->op */
    /*
     * Flat buffers [params.flat_numel], or [meg_params_unsharded_numel] where run.shards_params or run.shards_grads: w
     * has the parameters in run.dtype; g has the gradients in run.grad_dtype, and is NULL when not training.
     */
    void *w;
    void *g;
    /* f64 in device memory: sum of loss * loss_mask over the tokens since meg_gpt_zero_loss; 0 on ranks without head */
    double *loss_sum;
    /* f64 in device memory, set by the caller: gradients are multiplied by the loss scale; initially NULL, which is 1 */
    const double *loss_scale;
    struct meg_gpt_memory used;  /* maximum bytes in use in each arena */
    struct meg_gpt_hooks hooks;  /* set by the caller; initially NULL */
    struct meg_gpt_state *state; /* layers, activations, workspace */
};

/*
 * Create this rank's shard of the model and allocate all of its memory.  Weights are zero until meg_gpt_init or until a
 * checkpoint fills g->w.  device and mesh are borrowed until meg_gpt_close.  Fails with MEG_EFAIL if memory is
 * exhausted, and with MEG_EUSAGE if the backend does not support run->dtype.
 */
int meg_gpt_create(struct meg_gpt **out, const struct meg_gpt_conf *c, const struct meg_gpt_run *run,
                   const struct meg_device *device, const struct meg_mesh *mesh, struct meg_err *e);
void meg_gpt_close(struct meg_gpt *g);

/*
 * Set the initial weights.  They depend on the seed, the tensor's name and the element's index (meg_param_init), but
 * not on the layout.  Not for ZeRO-3, where meg_optim_init sets the weights.
 */
void meg_gpt_init(struct meg_gpt *g, uint32_t seed);

/* Set *loss_sum to 0. */
void meg_gpt_zero_loss(struct meg_gpt *g);
/* Wait for the operations queued so far and return *loss_sum. */
double meg_gpt_read_loss(struct meg_gpt *g);

/* ---- without pipeline parallelism: each rank has all layers; these calls overwrite *loss_sum ---- */

/*
 * Compute the loss of each token into token_loss [s,b] (host; may be NULL), without dropout; return the sum of
 * loss * loss_mask over the tokens.
 */
double meg_gpt_loss(struct meg_gpt *g, const struct meg_batch *x, float *token_loss);

/*
 * Run forward and backward: add the gradients of scale * *loss_scale * sum(loss * loss_mask) to g->g and return
 * sum(loss * loss_mask).  Dropout is applied if x->sample_id is not NULL.
 */
double meg_gpt_forward_backward(struct meg_gpt *g, const struct meg_batch *x, double scale);

/* Return the number of rows in a chunk of logits, the largest number that meg_gpt_loss_logits accepts. */
int64_t meg_gpt_logit_rows(const struct meg_gpt *g);
/*
 * Write the logits [rows,v] f32 (host) of tokens [first, first + rows), from which meg_gpt_loss has just computed the
 * losses.  `first` must be a multiple of meg_gpt_logit_rows; `rows` is that number, or fewer for the last tokens.  The
 * model must be f32 and not tensor-parallel.
 */
void meg_gpt_loss_logits(struct meg_gpt *g, int64_t first, int64_t rows, float *logits);

/* Compute the logits [s,b,v] f32 (host) of a batch, without dropout.  The model must be f32 and not tensor-parallel. */
void meg_gpt_logits(struct meg_gpt *g, const struct meg_batch *x, float *logits);

/* ---- with pipeline parallelism: a rank has chunks of layers, and each micro-batch in flight has a slot ---- */

/*
 * Return the bytes of the tensor that chunks send to each other, [s b, h] or, with sequence parallelism over t ranks,
 * [s/t b, h].
 */
size_t meg_gpt_boundary_nbytes(const struct meg_gpt *g);

/*
 * Run forward of a micro-batch through a chunk and keep its activations in a slot.  The device buffers `in` and `out`
 * have meg_gpt_boundary_nbytes bytes.  A chunk that begins with the embedding does not read `in`; for other chunks,
 * `in` must remain unchanged until the slot's backward has ended.  A chunk that ends with the head does not write
 * `out`.  For `scale`, see meg_gpt_forward_backward.
 */
void meg_gpt_forward(struct meg_gpt *g, int64_t chunk, int64_t slot, const struct meg_batch *x, double scale,
                     const void *in, void *out);
/* Compute the losses of a slot after forward of the chunk that ends with the head, and add to *loss_sum. */
void meg_gpt_slot_loss(struct meg_gpt *g, int64_t slot);
/*
 * Run backward of a slot: compute d_in, the gradient of `in`, from d_out, the gradient of `out`, and add the parameter
 * gradients to g->g, except those deferred to meg_gpt_backward_weight.  A chunk that ends with the head does not read
 * d_out, computes the losses of the slot and adds to *loss_sum.  A chunk that begins with the embedding does not write
 * d_in.
 */
void meg_gpt_backward(struct meg_gpt *g, int64_t chunk, int64_t slot, const void *d_out, void *d_in);
/* Add the weight gradients of linears that meg_gpt_backward of this slot deferred (run.defers_wgrad). */
void meg_gpt_backward_weight(struct meg_gpt *g, int64_t chunk, int64_t slot);

MEG_END_DECLS
#endif
