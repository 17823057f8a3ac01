/* The rank grid: the groups a rank belongs to.  A layer asks for its group also when that has one member. */
#ifndef MEG_PARALLEL_MESH_H
#define MEG_PARALLEL_MESH_H
#include "comm/comm.h"

MEG_BEGIN_DECLS

struct meg_mesh {
    struct meg_comm *world, *tp, *dp;
};

/* The grid of a run with one rank. */
extern const struct meg_mesh meg_mesh_one;

MEG_END_DECLS
#endif
