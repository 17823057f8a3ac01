/*
 * trace_ops.h - print each operation with its shapes, data types and time (MEG_TRACE=ops).
 *
 * If the environment variable MEG_TRACE contains "ops", each traced operation prints one line on stderr after it
 * returns: a JSON object with
 *   op       the name of the operation in struct meg_ops (tensor/ops.h)
 *   rank     the rank of the process in its run
 *   time_us  microseconds from call to return; on a GPU, to the end of the operation, for which the host then waits
 * and the main arguments of the operation under their names in the struct of its arguments.  A matrix is printed as
 * {"dtype":"F32","shape":[rows,cols]}, a view of heads as {"dtype":"BF16","ld":[ld_s,ld_b,ld_g,ld_h]}, dropout as
 * {"p":0.1,"layer":0,"site":"attention","unit0":0} (struct meg_drop) or, with p = 0, as null, a NULL pointer as null, a
 * size or an option as a number or a string.  For example:
 * {"op":"sumsq","rank":0,"time_us":14.1,"x":{"dtype":"F32","shape":[4096]},"n":4096}
 * These are not traced: logits_rows; free_nbytes; attn_bwd_nbytes; the functions that allocate, release, create or
 * destroy; copy; the functions on events.
 */
#pragma once
#include "tensor/ops.h"

/* Return whether the environment variable MEG_TRACE, a comma-separated list, contains `what`. */
bool meg_trace_is_enabled(const char *what);

/*
 * If MEG_TRACE contains "ops", return a table that calls op and prints each call; otherwise return op itself, so
 * disabled tracing has no cost.  A backend passes its table through this function.  A process traces the first table
 * only.
 */
const struct meg_ops *meg_trace_ops(const struct meg_ops *op);
