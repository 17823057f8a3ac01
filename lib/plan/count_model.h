/* count_model.h - the counts of one micro-batch in each part of a model: FLOPs, bytes and times on one rank. */
#pragma once
#include "model/desc.h"
#include "model/model.h"
#include "parallel/pipeline.h"
#include "plan/count_ops.h"

/* The counts of each pass of a micro-batch through a part of a model. */
struct cost_part {
    struct cost_pass fwd, bwd;   /* bwd includes the weight gradients that are not deferred */
    struct cost_pass bwd_weight; /* deferred weight gradients (struct meg_model_run) */
};

/*
 * Counts of a layer.  The counts of the first layer of a decoder include the embedding before it, and those of the last
 * layer of an encoder the norm after it.  Other layers with equal blocks and equal context parallelism have one struct
 * cost_layer in common.
 */
struct cost_layer {
    int64_t first;               /* the first layer with these counts */
    struct cost_part part[2];    /* part[1] is with deferred weight gradients; zero unless the schedule defers them */
    struct cost_pass recomputed; /* the forward pass of the layer alone, which full recomputation repeats */
};

struct meg_cost_counts {
    struct meg_model_desc desc;
    struct cost_part embedding, heads; /* embedding of the first stack; final norm of the last stack, and heads */
    struct cost_layer *layer;
    int nlayers;
    int *index;                                            /* [layers of the model] element of `layer` */
    struct meg_pipe_tensor boundary[MEG_BOUNDARY_TENSORS]; /* all tensors that stages send (enum meg_boundary) */
    int nboundary;
    double residual_nbytes[MEG_MAX_STACKS]; /* bytes of the residual stream of a stack on a rank */
    double recv_nbytes; /* bytes of receive buffers of collectives within the model through host memory */
};

/*
 * Run the forward and backward pass of one micro-batch with counting operations, and call the hooks as in a training
 * run.  The layout must have one pipeline stage.
 */
void cost_run_hooks(const struct meg_cost_model *m, const struct meg_model_hooks *hooks);

/* Add `times` times w or p to *to. */
void cost_add_pass(struct cost_pass *to, const struct cost_pass *w, double times);
void cost_add_part(struct cost_part *to, const struct cost_part *p, double times);
