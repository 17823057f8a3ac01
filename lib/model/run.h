/*
 * run.h - runtime configuration of a model (batch dimensions, data types, recomputation), and its memory requirement.
 */
#pragma once
#include "model/conf.h"
#include "tensor/ops.h"

/*
 * Activation recomputation (Korthikanti et al. 2022): which activations are not kept from forward, but recomputed in
 * the backward pass.
 */
enum meg_recompute {
    MEG_RECOMPUTE_NONE,
    MEG_RECOMPUTE_SELECTIVE, /* recompute the output and log-sum-exp of core attention from queries, keys and values */
    /* recompute all layers, in groups of recompute_num_layers; only the input of each group is kept */
    MEG_RECOMPUTE_UNIFORM,
    /*
     * recompute the first recompute_num_layers layers that a chunk has of each stack, one at a time; the input of each
     * recomputed layer is kept
     */
    MEG_RECOMPUTE_BLOCK
};

struct meg_model_run {
    int64_t s, b;             /* longest sequence in tokens (T5: of the decoder), largest micro-batch in sequences */
    int64_t s_enc;            /* T5: longest sequence of the encoder's input in tokens; not used by other families */
    int64_t positions;        /* number of positions in the rotary tables; 0: max_position_embeddings */
    bool is_training;         /* keep activations and allocate gradients */
    uint32_t seed;            /* seed of dropout and of stochastic rounding */
    int64_t microbatch_slots; /* number of activation slots, one per (chunk, micro-batch) in flight; 0 means 1 */
    /* meg_model_backward leaves the weight gradients of the linear layers of blocks to meg_model_backward_weight */
    bool defers_wgrad;
    enum meg_recompute recompute;
    int64_t recompute_num_layers;
    bool distribute_saved_activations; /* shard the inputs kept for recomputation over tensor-parallel ranks */
    enum meg_dtype dtype;              /* dtype of parameters, and of activations except the residual stream */
    enum meg_dtype residual_dtype;     /* dtype of the residual stream */
    enum meg_dtype grad_dtype;         /* dtype of parameter gradients */
    bool shards_params;                /* ZeRO-3: parameters are all-gathered one layer group at a time */
    bool shards_grads;                 /* ZeRO-2/3: gradients are reduce-scattered one layer group at a time */
    /*
     * launch operations as graphs (struct meg_graph, CUDA graphs) if the backend supports them: one graph for each pass
     * of a layer or of the embeddings, one for the losses and gradients of the heads, and the graphs of the optimizer;
     * layers must not communicate
     */
    bool uses_graphs;
};

/* Number of bytes in each arena. */
struct meg_model_memory {
    size_t params, grads, activations, workspace;
};
/* Compute the sizes of the arenas that meg_model_create would allocate on the mesh's rank with backend op. */
void meg_model_memory_size(struct meg_model_memory *m, const struct meg_model_conf *c, const struct meg_model_run *run,
                           const struct meg_ops *op, const struct meg_mesh *mesh);
