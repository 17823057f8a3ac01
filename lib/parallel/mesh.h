/*
 * mesh.h - the communicator of each parallel group that a rank belongs to.
 *
 * A rank has the coordinates (tp, cp, dp, pp) in the grid of meg_layout.  The ranks of a group differ only in the
 * coordinates named in the group's comment, and are ordered by world rank.  A group along an axis of size 1 is
 * meg_comm_self, so layers need no special case for it.
 */
#pragma once
#include "comm/comm.h"
#include "device/device.h"
#include "parallel/layout.h"

/*
 * Separate communicators over the ranks of dp_cp or, for experts, of edp, so that gradients can be reduced while dp_cp
 * is in use.  Without ZeRO, gradients are reduced over `grad`; with ZeRO, over `shard` and `replica`.  The unused ones
 * are meg_comm_self.
 */
struct meg_dp_comms {
    struct meg_comm *grad;    /* all ranks of the group: gradients are all-reduced */
    struct meg_comm *shard;   /* the ranks of an optimizer instance, which are consecutive: one shard per rank */
    struct meg_comm *replica; /* ranks with the same shard, one in each optimizer instance */
};

struct meg_mesh {
    struct meg_layout layout;
    struct meg_rank_coords coords; /* coordinates of this rank */
    struct meg_comm *world;
    struct meg_comm *tp;      /* differ in tp: each rank has a shard of the weight matrices */
    struct meg_comm *cp;      /* differ in cp: each sequence is divided over the ranks */
    struct meg_comm *cp_a2a;  /* a2a+p2p: a2a_size consecutive ranks of cp, which exchange heads by all-to-all */
    struct meg_comm *cp_ring; /* a2a+p2p: ranks with equal rank in their cp_a2a groups, which send K/V around a ring */
    struct meg_comm *pp;      /* differ in pp: the pipeline stages, in order */
    struct meg_comm *dp_cp;   /* differ in dp or cp: same dense parameters, different tokens */
    struct meg_comm *ep;      /* ranks of the stage with different experts */
    struct meg_comm *etp;     /* each rank has a shard of the matrices of the same experts; tp if layout.etp is tp */
    struct meg_comm *edp;     /* same shards of the same experts, different tokens; dp_cp without expert groups */
    struct meg_comm *mp;      /* all stages, and on each meg_layout_mp_size ranks: over it, norms are summed */
    struct meg_dp_comms dp[MEG_DP_GROUPS]; /* for gradients.  Without expert groups, both elements are equal */
    /* for each tie of the layout, the stages with a replica of its parameters; on other stages, this rank alone */
    struct meg_comm *tied[MEG_MAX_TIES];
    /* meg_mesh_alloc registers memory with NCCL; set after meg_mesh_make, which sets false, and before allocations */
    bool registers_buffers;
};

/* The mesh of a run of one rank. */
extern const struct meg_mesh meg_mesh_one;

/* Split the groups from world.  The size of world must be meg_layout_world(l).  Collective over world. */
void meg_mesh_make(struct meg_mesh *m, struct meg_comm *world, const struct meg_layout *l);
/* Set the layout and the coordinates of a rank, but no communicators, for cost estimates. */
void meg_mesh_init_dry(struct meg_mesh *m, const struct meg_layout *l, int64_t rank);
/* Close the groups, but not world. */
void meg_mesh_close(struct meg_mesh *m);

/*
 * Allocate memory of device d, filled with zeros, for parameters or gradients, which the groups in m->dp communicate.
 * If m->registers_buffers is set, register it with these groups, if they use NCCL (meg_comm_ops.alloc).  Return NULL if
 * memory is exhausted.  Release the memory by meg_mesh_release before the groups are closed; p may be NULL.
 */
void *meg_mesh_alloc(const struct meg_mesh *m, const struct meg_device *d, size_t nbytes);
void meg_mesh_release(const struct meg_mesh *m, const struct meg_device *d, void *p);
