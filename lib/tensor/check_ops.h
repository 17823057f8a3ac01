/*
 * check_ops.h - check the arguments of operations against tensor/ops.h, in debug builds (make DEBUG=1).
 *
 * Before each call of an operation, assertions check the shapes, data types and leading dimensions of the arguments.
 * Required buffers must not be NULL, and outputs must not overlap other arguments.  A failed check prints the condition
 * and aborts.  The checks of adamw and sgd read `range` in device memory; no other check reads device memory.
 *
 * These are not checked: logits_rows; free_nbytes; attn_bwd_nbytes; the functions that allocate, release, create or
 * destroy; copy; the functions on events; the sizes for which a linear layer was planned.  Views of heads may
 * interleave in one tensor, so only their start addresses are compared.
 */
#pragma once
#include "tensor/ops.h"

/*
 * Return a table of operations that check their arguments and call the operations of op.  With MEG_DEBUG defined, a
 * backend passes its table through this function.  A process can check only one table.
 */
const struct meg_ops *meg_check_ops(const struct meg_ops *op);
