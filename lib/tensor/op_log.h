/*
 * op_log.h - a log of calls of operations with their arguments, with which debug builds check that the key of a graph
 * (device/graph.h) determines its calls.
 */
#pragma once
#include "tensor/op_row.h"

/* Set the padding bytes of a variable to 0, so that it can be compared as bytes; without this, nothing is logged. */
#if defined __has_builtin
#    if __has_builtin(__builtin_clear_padding)
#        define MEG_CLEAR_PADDING(x) __builtin_clear_padding(&(x))
#    endif
#endif
#ifndef MEG_CLEAR_PADDING
#    define MEG_CLEAR_PADDING(x) (void)(x)
#    define MEG_HAS_NO_OP_LOG
#endif

/* Initially zero. */
struct meg_op_log {
    struct meg_op_log_call *first, *last;
};

/* Append the calls of this thread to a log until meg_op_log_end.  Only the operations of meg_check_ops are logged. */
void meg_op_log_begin(struct meg_op_log *log);
void meg_op_log_end(void);
/* Log a call if a log has begun: its arguments [nbytes], whose padding bytes are 0. */
void meg_op_log_add(const struct meg_op_row *row, const void *args, size_t nbytes);
/* Unless two logs have equal calls, print the first operation and field that differ, and abort. */
void meg_op_log_require_equal(const struct meg_op_log *a, const struct meg_op_log *b);
void meg_op_log_free(struct meg_op_log *log);
