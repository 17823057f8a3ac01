/*
 * model.h - a model on one rank: its parameters, and forward and backward of micro-batches.
 *
 * conf.h describes the architecture, run.h the runtime configuration, decode.h decoding with a KV cache.
 */
#pragma once
#include "data/batch.h"
#include "device/device.h"
#include "model/conf.h"
#include "model/run.h"
#include "tensor/step.h"

/* Factors of the losses of a micro-batch. */
struct meg_loss_factors {
    double grad[MEG_MAX_LOSSES]; /* of the loss in the gradients, in addition to *loss_scale of the model */
    double sum[MEG_MAX_LOSSES];  /* of the loss in loss_sum of the model */
};

/*
 * Callbacks through which data parallelism overlaps communication with forward and backward.  Layer group 0 is the
 * embedding, groups 1..L are the layers, and group L+1 is the head (params/param.h).
 */
struct meg_model_hooks {
    void *user;
    /*
     * Called before the parameters of a layer group are read.  `next` is the group to prefetch, which is needed after
     * this one, or -1.  If is_backward, the pass computes gradients of this group.
     */
    void (*params_needed)(void *user, int layer_group, int next, bool is_backward);
    /* Called when the backward pass of a micro-batch has computed all its gradients of a layer group. */
    void (*grads_ready)(void *user, int layer_group);
};

struct meg_model {
    struct meg_model_conf conf;
    struct meg_model_run run;
    const struct meg_mesh *mesh;
    struct meg_params params;
    const struct meg_device *device;
    const struct meg_ops *op; /* device->op */
    /* Flat buffers, or the unsharded buffers of ZeRO-2/3 (params/param.h). */
    void *w; /* parameters in run.dtype; unsharded buffers if run.shards_params */
    void *g; /* gradients in run.grad_dtype; unsharded buffers if run.shards_grads; NULL when not training */
    /*
     * [MEG_MAX_LOSSES] f64 in device memory: for each loss, the sum of factor * loss * loss_mask over the tokens, or of
     * factor * loss over the sequences, since meg_model_zero_loss; 0 on ranks without head or block that computes it
     */
    double *loss_sum;
    /*
     * f64 in device memory, set by the caller before the first backward pass: factor by which gradients are multiplied;
     * NULL (the default) means 1
     */
    const double *loss_scale;
    struct meg_model_memory used;  /* number of bytes in use in each arena */
    int64_t num_moves;             /* number of times that meg_model_reserve has allocated new buffers */
    struct meg_model_hooks hooks;  /* set by the caller; initially NULL */
    struct meg_model_state *state; /* layers, activations, workspace */
};

/*
 * Create this rank's shard of the model and allocate all of its memory.  Weights are zero until meg_model_init is
 * called or a checkpoint is loaded into g->w.  device and mesh are borrowed until meg_model_close.  Fail with
 * MEG_EFAIL if memory is exhausted.  Fail with MEG_EUSAGE, before memory is allocated, if the backend does not
 * support the shape or the data types of a linear layer.
 */
int meg_model_create(struct meg_model **out, const struct meg_model_conf *c, const struct meg_model_run *run,
                     const struct meg_device *device, const struct meg_mesh *mesh, struct meg_err *e);
void meg_model_close(struct meg_model *g);
/*
 * Grow the buffers of a model for inference, unless they are large enough.  A sequence may then have s tokens, in each
 * stack, and a position may be any number below `positions`.  Both numbers are at most max_position_embeddings.  The
 * weights are kept.  The results of later calls have the same bits as with larger or smaller buffers.  Fail with
 * MEG_EFAIL if memory is exhausted; the model can then only be closed.
 */
int meg_model_reserve(struct meg_model *g, int64_t s, int64_t positions, struct meg_err *e);

/*
 * Set the initial weights, which do not depend on the parallel layout (meg_param_init).  With ZeRO-3, call
 * meg_optim_init instead.
 */
void meg_model_init(struct meg_model *g, uint32_t seed);

/*
 * Begin new sums of gradients, without writing g->g.  The next backward pass through a layer group overwrites the
 * group's gradients.  Later passes add to them or, with run.shards_grads, overwrite them again.
 */
void meg_model_zero_grads(struct meg_model *g);
/* Set loss_sum to 0. */
void meg_model_zero_loss(struct meg_model *g);
/* Wait for the operations that are queued on the compute stream, and copy loss_sum to sum [MEG_MAX_LOSSES]. */
void meg_model_read_losses(struct meg_model *g, double *sum);

/* Return a bit mask (enum meg_batch_field) of the arrays of a micro-batch that the model reads. */
unsigned meg_model_inputs(const struct meg_model *g);
/* Return the number of losses. */
int meg_model_num_losses(const struct meg_model *g);
/* Return the name of loss i, as Megatron prints it, such as "lm loss". */
const char *meg_model_loss_name(const struct meg_model *g, int i);
/* Return whether there is a value of loss i for each sequence; otherwise, there is one for each token. */
bool meg_model_loss_is_per_sequence(const struct meg_model *g, int i);
/*
 * Return whether a logged loss is the mean over micro-batches of their mean losses, as Megatron logs it for this family
 * of models.  Otherwise, it is the mean over tokens.
 */
bool meg_model_averages_batches(const struct meg_model *g);

/* ---- without pipeline parallelism: each rank has all layers ---- */

/*
 * Run forward without dropout.  Store the loss of the first head for each token in token_loss [s,b] (host; may be
 * NULL).  Set loss_sum to the sums with factor 1, and return the first one: the sum of loss * loss_mask over the
 * tokens.
 */
double meg_model_loss(struct meg_model *g, const struct meg_batch *x, float *token_loss);

/*
 * Run forward and backward.  Add the gradients of scale * *loss_scale * sum(loss * loss_mask) to g->g, or overwrite
 * g->g (meg_model_zero_grads); all losses have the factor `scale`.  Set loss_sum to the sums with factor 1 and return
 * the first one.  Dropout is applied if x->sample_id is not NULL.
 */
double meg_model_forward_backward(struct meg_model *g, const struct meg_batch *x, double scale);

/* Return the maximum number of rows that meg_model_loss_logits accepts: the size of a chunk of logits. */
int64_t meg_model_logit_rows(const struct meg_model *g);
/*
 * Compute the logits [rows,v] f32 (host) of tokens [first, first + rows) of the batch for which meg_model_loss was
 * called last.  `first` must be a multiple of meg_model_logit_rows.  `rows` must be meg_model_logit_rows, or fewer
 * for the last tokens of the batch.  The model must be f32 or created for inference, and not tensor-parallel.
 */
void meg_model_loss_logits(struct meg_model *g, int64_t first, int64_t rows, float *logits);

/*
 * Compute the logits [s,b,v] f32 (host) of a batch, without dropout.  The model must be f32 or created for inference,
 * and not tensor-parallel.
 */
void meg_model_logits(struct meg_model *g, const struct meg_batch *x, float *logits);

/* ---- with pipeline parallelism: a rank has chunks of layers, and each micro-batch in flight has a slot ---- */

/*
 * A tensor that a chunk sends to the next one (enum meg_boundary).  With s positions per context-parallel rank, it is
 * [s*b, h] or, with sequence parallelism over t ranks, [s*b/t, h].
 */
struct meg_boundary_tensor {
    int64_t n; /* number of elements, for the largest micro-batch */
    enum meg_dtype dtype;
};
/* Set tensor [MEG_BOUNDARY_TENSORS] to the tensors of this model, and return their number. */
int meg_model_boundary(const struct meg_model *g, struct meg_boundary_tensor *tensor);
/*
 * For each virtual stage v > 0, set transferred[v] to a bit mask (enum meg_boundary) of the tensors that virtual stage
 * v - 1 sends to it.  `transferred` has one element per virtual stage; element 0 is not used.
 */
void meg_model_transferred(const struct meg_model *g, unsigned *transferred);

/*
 * Run forward of a micro-batch through a chunk and keep the activations in a slot.  The factors are in pinned memory if
 * the arrays of x are.  `in` and `out` are arrays of the addresses of the boundary tensors.  The first chunk of the
 * model ignores `in`.  For other chunks, the tensors in `in` must remain unchanged until the slot's backward has ended,
 * and with run.defers_wgrad its backward_weight.  The last chunk, which ends with the heads, does not write to `out`.
 */
void meg_model_forward(struct meg_model *g, int64_t chunk, int64_t slot, const struct meg_batch *x,
                       const struct meg_loss_factors *factors, void *const *in, void *const *out);
/*
 * Compute the losses of a slot and add them to loss_sum.  Call this after meg_model_forward of the chunk that ends with
 * the heads, unless meg_model_backward follows, which also adds them.
 */
void meg_model_slot_loss(struct meg_model *g, int64_t slot);
/*
 * Run backward of a slot.  Compute d_in, the gradient of `in`, from d_out, the gradient of `out`.  Add the parameter
 * gradients to g->g, except gradients that meg_model_backward_weight computes later.  The first chunk of the model does
 * not write d_in.  The last chunk does not read d_out.  It computes the losses of the slot and adds them to loss_sum.
 */
void meg_model_backward(struct meg_model *g, int64_t chunk, int64_t slot, void *const *d_out, void *const *d_in);
/* Add the weight gradients that meg_model_backward of this slot deferred (run.defers_wgrad). */
void meg_model_backward_weight(struct meg_model *g, int64_t chunk, int64_t slot);
