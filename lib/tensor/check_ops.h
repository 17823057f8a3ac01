/*
 * check_ops.h - a table of operations that checks its arguments against tensor/ops.h, for debug builds (make DEBUG=1).
 *
 * Before it calls an operation, the table asserts the shapes, data types and leading dimensions of the arguments, that
 * required buffers are not NULL, and that outputs do not overlap other arguments.  A failed check prints the condition
 * and aborts.  No check reads device memory.
 *
 * These are not checked: the functions that allocate, release, create or destroy; copy; the functions on events; the
 * sizes for which a linear layer was planned.  Views of heads may interleave in one tensor, so only their start
 * addresses are compared.
 */
#ifndef MEG_TENSOR_CHECK_OPS_H
#define MEG_TENSOR_CHECK_OPS_H
#include "tensor/ops.h"

MEG_BEGIN_DECLS

/*
 * Return a table that checks the arguments of each call and then calls op.  With MEG_DEBUG defined, a backend passes
 * its table through this function.  A process can check only one table.
 */
const struct meg_ops *meg_check_ops(const struct meg_ops *op);

MEG_END_DECLS
#endif
