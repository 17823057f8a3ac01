/*
 * mesh.h - the communicator of each parallel group that a rank belongs to.
 *
 * A rank has the coordinates (tp, cp, dp, pp) in the grid of meg_layout.  A group is the set of ranks that differ
 * only in the coordinates which its comment names; they are ordered by world rank.  A group of one rank is
 * meg_comm_self, so that layers use their group without a special case.
 */
#ifndef MEG_PARALLEL_MESH_H
#define MEG_PARALLEL_MESH_H
#include "comm/comm.h"
#include "parallel/layout.h"

MEG_BEGIN_DECLS

struct meg_mesh {
    struct meg_layout layout;
    struct meg_rank_coords coords; /* of this rank */
    struct meg_comm *world;
    struct meg_comm *tp;      /* differ in tp: each has a shard of every layer's weights */
    struct meg_comm *cp;      /* differ in cp: each has two chunks of every sequence */
    struct meg_comm *cp_a2a;  /* a2a+p2p: a2a_size consecutive ranks of cp, which exchange heads by all-to-all */
    struct meg_comm *cp_ring; /* a2a+p2p: ranks at one position of the cp_a2a groups, which pass K/V round a ring */
    struct meg_comm *pp;      /* differ in pp: the pipeline stages, in order */
    struct meg_comm *dp_cp;   /* differ in dp or cp: same parameters, different tokens */
    /*
     * The ranks of dp_cp again, with communicators of their own, so that gradients are reduced while dp_cp is in use.
     * Without ZeRO: dp_grad.  With ZeRO: dp_shard and dp_replica, and dp_grad is meg_comm_self.
     */
    struct meg_comm *dp_grad; /* differ in dp or cp: all-reduce of gradients */
    struct meg_comm
        *dp_shard; /* zero.nshards consecutive ranks of dp_cp (one optimizer instance), each with one shard */
    struct meg_comm *dp_replica; /* ranks of dp_cp that have the same shard, one of each optimizer instance */
    struct meg_comm *mp;         /* differ in tp or pp: together they hold one copy of the model */
    struct meg_comm *embd;       /* first and last stage, which share tied embeddings; other stages: this rank alone */
};

/* The mesh of a run of one rank. */
extern const struct meg_mesh meg_mesh_one;

/* Split the groups from world, whose size is that of the layout; collective. */
void meg_mesh_make(struct meg_mesh *m, struct meg_comm *world, const struct meg_layout *l);
/* Set layout and coords of a rank, but no communicators: for cost estimates. */
void meg_mesh_init_dry(struct meg_mesh *m, const struct meg_layout *l, int64_t rank);
/* Close the groups, but not world. */
void meg_mesh_close(struct meg_mesh *m);

MEG_END_DECLS
#endif
