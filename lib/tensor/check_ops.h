/*
 * check_ops.h - make DEBUG=1: check the arguments of each operation against tensor/ops.h.
 *
 * Before each call, the checked table asserts what ops.h states of the arguments: shapes, data types, leading dimensions
 * of at least the row's length, memory where it is required, and outputs that do not overlap other arguments.  A failure
 * prints the condition, in the argument names of ops.h, and both values, and aborts.  It reads no device memory.
 *
 * Not checked: the sizes that a linear layer was planned for, which are the backend's; overlap of heads, whose views
 * interleave, beyond equal addresses; memory management (alloc, release, linear_create, linear_destroy).
 */
#ifndef MEG_TENSOR_CHECK_OPS_H
#define MEG_TENSOR_CHECK_OPS_H
#include "tensor/ops.h"

MEG_BEGIN_DECLS

/*
 * Return a table that checks the arguments and calls op.  With MEG_DEBUG defined, a backend calls it where it returns its
 * table.  One table can be checked in a process.
 */
const struct meg_ops *meg_check_ops(const struct meg_ops *op);

MEG_END_DECLS
#endif
