/*
 * The rank grid with its groups.  A layer asks for its group also when that has one member: then it is
 * meg_comm_self.
 */
#ifndef MEG_PARALLEL_MESH_H
#define MEG_PARALLEL_MESH_H
#include "comm/comm.h"
#include "parallel/layout.h"

MEG_BEGIN_DECLS

struct meg_mesh {
    struct meg_layout layout;
    struct meg_rank_coords at; /* this rank's */
    struct meg_comm *world;
    struct meg_comm *tp;               /* shares each layer's weights */
    struct meg_comm *cp;               /* shares each sequence */
    struct meg_comm *cp_near, *cp_far; /* of a2a+p2p: neighbours in cp, and those in one place among theirs */
    struct meg_comm *pp;               /* the stages, in order */
    struct meg_comm *dp_cp;            /* same weights, own tokens */
    struct meg_comm *copies;           /* the same for gradients alone, on their way while others talk; with
                                                shards self, and instead: */
    struct meg_comm *slices;           /*   those that have one slice each */
    struct meg_comm *same;             /*   those that have the same slice */
    struct meg_comm *model;            /* tp and pp: holds one model together */
    struct meg_comm *ends;             /* first and last stage, which share a tied embedding; on others, and
                                                with one stage, self */
};

/* One rank. */
extern const struct meg_mesh meg_mesh_one;

/* Cut the groups out of world, whose size is the layout's; every rank calls it. */
void meg_mesh_make(struct meg_mesh *m, struct meg_comm *world, const struct meg_layout *l);
/* What a rank of the layout would have, for planning: without groups. */
void meg_mesh_init_dry(struct meg_mesh *m, const struct meg_layout *l, int64_t rank);
/* Closes the groups, not world. */
void meg_mesh_close(struct meg_mesh *m);

MEG_END_DECLS
#endif
