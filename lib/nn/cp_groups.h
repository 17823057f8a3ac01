/*
 * Context parallelism: c ranks share each sequence.  It is cut into 2c equal chunks, and rank i has chunks i and
 * 2c-1-i, its two pieces, so that causal attention costs each rank the same.  Only attention needs the tokens of
 * other ranks:
 *   p2p         keys and values travel round a ring while attention to those at hand is computed (Liu et al. 2023)
 *   all_gather  keys and values are gathered first, and their gradients summed after (Dubey et al. 2024, 3.3.2)
 *   a2a         ranks exchange rows for heads, so that each has all rows of some heads, and back (Jacobs et al. 2023)
 *   a2a+p2p     a2a among neighbours, whose pieces together are two chunks of a coarser cut; p2p among those
 * So a kind is an exchange of heads in one group of ranks, and keys that travel in another; either may have one
 * rank, and both have where sequences are whole.
 */
#ifndef MEG_NN_CP_GROUPS_H
#define MEG_NN_CP_GROUPS_H
#include "nn/ctx.h"
#include "parallel/mesh.h"

MEG_BEGIN_DECLS

struct meg_cp {
    bool is_all_gather;          /* keys, instead of travelling */
    int64_t a2a_size, ring_size; /* sizes of the groups: this many ranks exchange heads, keys of this many meet */
    struct meg_comm *a2a, *ring;
};

/* A rank alone. */
extern const struct meg_cp meg_cp_one;

/* Of the mesh's groups; of a mesh on paper the sizes alone. */
void meg_cp_make(struct meg_cp *cp, enum meg_cp_comm_type kind, const struct meg_mesh *mesh);

/* Of one rank's part of attention: rows of a micro-batch, its heads and groups before any exchange, head size. */
struct meg_attn_size {
    enum meg_dtype dtype;
    int64_t n, a, g, d;
    bool is_training;
};

/* Scratch of attention, shared by all layers. */
struct meg_attn_workspace {
    void *a2a_recv, *a2a_send; /* [n, (a+2g)d]: rows before an exchange of heads, and what arrives; what leaves */
    int32_t *doc_start;        /* [n by_heads] */
    void *kv;                  /* keys and values on their way, slots of [n, g, 2, d] */
    float *dkv;                /* their gradients */
    float *o_part, *lse_part;  /* of a piece's queries and a part of the keys */
    float *o, *dqkv;           /* f32 where the model is narrower: [n, a d], [n, (a+2g)d] */
};

/* Cut it out of cut, large enough for each of the n kinds. */
void meg_attn_workspace_suballoc(struct meg_attn_workspace *r, struct meg_suballoc *cut,
                                 const struct meg_attn_size *size, const struct meg_cp *cp, int n);

MEG_END_DECLS
#endif
