/*
 * cp_groups.h - context parallelism: each sequence is sharded over the c ranks of a group.
 *
 * The sequence is split into 2c equal chunks, and rank i has chunks i and 2c-1-i, which balances causal attention.
 * Only attention needs keys and values of other ranks.  The communication types are:
 *   p2p         keys and values circulate in a ring, overlapped with attention over the block received before
 *               (Liu et al. 2023)
 *   all_gather  keys and values are all-gathered, and their gradients reduce-scattered (Dubey et al. 2024, 3.3.2)
 *   a2a         an all-to-all gives each rank all rows of some heads, and a second all-to-all reverses the first
 *               (Jacobs et al. 2023)
 *   a2a+p2p     a2a within groups of consecutive ranks, p2p between the groups; the chunks of a group form two larger
 *               chunks
 * A type is implemented as an all-to-all over a2a_size ranks and a ring (or all-gather) over ring_size ranks.  For p2p
 * and all_gather a2a_size is 1, for a2a ring_size is 1.  Without context parallelism both are 1.
 */
#pragma once
#include "nn/ctx.h"
#include "parallel/mesh.h"

struct meg_cp {
    bool is_all_gather;          /* keys and values are all-gathered instead of circulating in the ring */
    int64_t a2a_size, ring_size; /* number of ranks in each group */
    struct meg_comm *a2a, *ring;
};

/* The groups without context parallelism. */
extern const struct meg_cp meg_cp_one;

/* Set cp to the groups of a communication type.  If mesh is from meg_mesh_init_dry, set only their sizes. */
void meg_cp_make(struct meg_cp *cp, enum meg_cp_comm_type type, const struct meg_mesh *mesh);

/* Return whether sequences are sharded over several ranks. */
static inline bool meg_cp_is_on(const struct meg_cp *cp)
{
    return cp->a2a_size * cp->ring_size > 1;
}

/* Sizes of attention on one rank. */
struct meg_attn_size {
    enum meg_dtype dtype;
    int64_t n, s, b; /* rows, positions and sequences of a micro-batch; for inference, n >= s * b */
    int64_t a, g, d; /* query heads and groups before any all-to-all; head size */
    int64_t buckets; /* rows of the relative bias of attention scores; 0: none */
    bool has_sink;   /* the scores have sinks */
    bool is_training;
};

/* Workspace of attention, shared by all layers.  Buffers that the communication type does not use are NULL. */
struct meg_attn_workspace {
    void *a2a_recv, *a2a_send; /* [n, (a+2g)d] all-to-all buffers */
    int32_t *doc_start;        /* doc_start (struct meg_ctx) gathered from the all-to-all group */
    void *kv;                  /* blocks [n, g, 2, d] of keys and values that are sent and received */
    float *dkv;                /* blocks [n, g, 2, d] of the gradients of keys and values */
    float *o_part, *lse_part;  /* partial o and lse of one query chunk and one key chunk, before merging */
    float *delta;              /* sum of d_o * o over the columns of each head, with the shape of lse */
    float *o, *dqkv;           /* f32 sums [n, a d] and [n, (a+2g)d] over chunks; NULL if dtype is f32 */
    void *zero_sink;           /* [a] zeros, the sinks of MEG_SOFTMAX_OFF_BY_ONE */
    struct meg_workspace bwd;  /* workspace of attn_bwd */
};

/* Sub-allocate a workspace that is large enough for each of cp[0] to cp[n - 1] with the operations op. */
void meg_attn_workspace_suballoc(struct meg_attn_workspace *w, struct meg_suballoc *arena, const struct meg_ops *op,
                                 const struct meg_attn_size *size, const struct meg_cp *cp, int n);
