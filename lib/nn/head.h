/*
 * head.h - the head of a model: a layer that computes a loss from the final hidden states, such as the language-model
 * head (nn/lm_head.h).  A model (model/desc.h) has a list of heads, and each of them has its own loss.
 */
#pragma once
#include "data/batch.h"
#include "nn/block.h"

/* The functions of a type receive untyped pointers to the type's own structures of weights and configuration. */
struct meg_head_type {
    size_t weights_size;  /* size in bytes of the type's structure of weights */
    bool is_per_sequence; /* there is a loss for each sequence [b]; otherwise, for each token [n] */
    /* Declare the parameters (params/binder.h).  In the step MEG_BIND_POINTERS, also set the weights' other fields. */
    void (*bind)(struct meg_binder *b, void *weights, const void *conf, const struct meg_block_env *env);
    /* Allocate the workspace, for the largest micro-batch. */
    void (*suballoc)(void *weights, const struct meg_block_arena *a, const void *conf);
    /*
     * Compute the losses, f32, of the current micro-batch `in`, whose arrays are in device memory.  x has this rank's
     * rows of the output of the final norm.
     */
    void (*fwd)(struct meg_ctx *c, float *loss, struct meg_mat x, const struct meg_batch *in, const void *weights);
    /*
     * Compute the losses.  Also compute the gradients of sum(weight * loss) with respect to the parameters and, in dx,
     * with respect to x.  A head with is_per_sequence adds to dx; other heads overwrite dx.
     */
    void (*fwd_bwd)(struct meg_ctx *c, float *loss, struct meg_mat dx, struct meg_mat x, const struct meg_batch *in,
                    struct meg_loss_weight weight, const void *weights);
};
