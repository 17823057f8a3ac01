/* The rank grid: the groups a rank belongs to.  A layer asks for its group also when that has one member. */
#ifndef MEG_PARALLEL_MESH_H
#define MEG_PARALLEL_MESH_H
#include "comm/comm.h"

MEG_BEGIN_DECLS

struct meg_mesh {
    struct meg_comm *world;
    struct meg_comm *tp;                     /* holds one model's weights together */
    struct meg_comm *dp;                     /* each member has the same weights and its own samples */
};

/* The grid of a run with one rank. */
extern const struct meg_mesh meg_mesh_one;

/* All ranks of world side by side, each with a whole model.  The groups are world's. */
void meg_mesh_make(struct meg_mesh *m, struct meg_comm *world);

MEG_END_DECLS
#endif
