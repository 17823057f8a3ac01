/*
 * placement.h - check in debug builds how tensors are placed on the ranks of a mesh.
 *
 * Each tensor has a placement for each axis of the mesh: replicated, sharded (by rows, by columns, or by an outer
 * dimension such as experts or pipeline stages), or partial, if the tensor is the sum of those of all ranks.  An
 * operation derives the placement of its outputs from those of its inputs (ops.c), and a collective changes the
 * placement of its buffer (comm.c).  A placement that an operation, a collective or the optimizer does not accept, or
 * does not know, ends the process with a message that names the operation, the tensor, the axis and the layer.  This is
 * checked before any number is computed.
 *
 * Parameters have the placement of the parameter table.  The functions below declare the placement of what the host
 * uploads.  They do nothing between meg_placement_end and meg_placement_begin, and in release builds.
 */
#pragma once
#include "params/param.h"

enum meg_placement {
    MEG_PLACEMENT_UNKNOWN,
    MEG_PLACEMENT_REPLICATED = 3,
    MEG_PLACEMENT_ROWS,    /* sharded along dimension 0, such as tokens */
    MEG_PLACEMENT_COLUMNS, /* sharded along dimension 1, such as features or heads */
    MEG_PLACEMENT_OUTER,   /* sharded along a dimension outside of the matrix: experts, pipeline stages */
    MEG_PLACEMENT_FLAT,    /* a shard of a flat buffer (parallel/zero.h) */
    MEG_PLACEMENT_PARTIAL  /* a summand */
};

#ifdef MEG_DEBUG
/*
 * Begin to check operations on device *d and collectives of the groups of a mesh.  Set *d to a device whose operations
 * are checked.  Check nothing and leave *d if the mesh has one rank, if device memory is not host memory, or if the
 * size of a data-parallel group does not divide that of a larger one.
 */
void meg_placement_begin(const struct meg_device **d, const struct meg_mesh *mesh);
void meg_placement_end(void);
/*
 * Declare that `base` has the parameters of the parameter table, or their gradients if is_grad: in the flat
 * buffer or, gradients with ZeRO-2/3, in the unsharded buffers.
 */
void meg_placement_params(const struct meg_params *p, void *base, enum meg_dtype dtype, bool is_grad);
/* Declare that the unsharded buffers at `base` have the parameters of a layer group, or their gradients. */
void meg_placement_layer_group(const struct meg_params *p, int group, void *base, enum meg_dtype dtype, bool is_grad);
/* Declare that `base` has n elements of a parameter: a shard over the ranks of the group `shard`. */
void meg_placement_param_shard(const struct meg_param *row, void *base, int64_t n, enum meg_dtype dtype,
                               const struct meg_comm *shard);
/* Declare that a tensor is an input of the micro-batch, of which data- and context-parallel ranks have other tokens. */
void meg_placement_input(const void *p, size_t nbytes);
/* Declare that the contents of memory are undefined, until they are written. */
void meg_placement_undefined(const void *p, size_t nbytes);
/*
 * Change the placement of a tensor over the axes of a group from `from`, or from zero, to `to`.  Use it where no
 * operation implies this change.  Its placement over other axes does not change; if it is unknown, it becomes
 * replicated.  A replicated tensor can become partial only on the first rank; on the other ranks, it must be zero.
 */
void meg_placement_declare(const void *p, size_t nbytes, const struct meg_comm *c, enum meg_placement from,
                           enum meg_placement to);
#else
#    define meg_placement_begin(d, mesh) ((void)0)
#    define meg_placement_end() ((void)0)
#    define meg_placement_params(...) ((void)0)
#    define meg_placement_layer_group(...) ((void)0)
#    define meg_placement_param_shard(row, base, n, dtype, shard) ((void)(row), (void)(base))
#    define meg_placement_input(...) ((void)0)
#    define meg_placement_undefined(...) ((void)0)
#    define meg_placement_declare(...) ((void)0)
#endif
