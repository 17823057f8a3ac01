/*
 * check_ops.h - check the arguments of each operation against tensor/ops.h in debug builds (make DEBUG=1).
 *
 * Before each call, the checked table asserts what ops.h states about the arguments: shapes, data types, leading
 * dimensions of at least the row's length, non-NULL buffers where they are required, and outputs that do not overlap
 * other arguments.  A failure prints the condition, in the argument names of ops.h, and both values, and aborts.  The
 * checks read no device memory.
 *
 * The checks do not cover the sizes for which a linear layer was planned, which only the backend knows, nor the
 * functions that allocate, release, create or destroy, nor copy and the functions on events.  Since views of heads
 * interleave, heads are compared by their addresses only.
 */
#ifndef MEG_TENSOR_CHECK_OPS_H
#define MEG_TENSOR_CHECK_OPS_H
#include "tensor/ops.h"

MEG_BEGIN_DECLS

/*
 * Return a table that checks the arguments and calls op.  With MEG_DEBUG defined, a backend passes its table through
 * this function.  A process can check only one table.
 */
const struct meg_ops *meg_check_ops(const struct meg_ops *op);

MEG_END_DECLS
#endif
