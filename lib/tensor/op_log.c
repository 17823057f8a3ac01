/* op_log.c - a log of calls of operations. */
#include "tensor/op_log.h"
#include <stdio.h>
#include <stdlib.h>
#include "base/err.h"
#include "base/mem.h"

/* A call.  The structs in host memory to which its arguments point follow them, and the pointers are 0. */
struct meg_op_log_call {
    struct meg_op_log_call *next;
    const struct meg_op_row *row;
    size_t nbytes;
    char args[];
};

static _Thread_local struct meg_op_log *current;

void meg_op_log_begin(struct meg_op_log *log)
{
#ifndef MEG_HAS_NO_OP_LOG
    current = log;
#endif
    (void)log;
}

void meg_op_log_end(void)
{
    current = NULL;
}

/* Copy a struct of this type, with padding bytes of 0. */
#define COPY(type)                                                                                                     \
    {                                                                                                                  \
        type copy = *(const type *)from;                                                                               \
        MEG_CLEAR_PADDING(copy);                                                                                       \
        memcpy(to, &copy, sizeof copy);                                                                                \
        break;                                                                                                         \
    }

static void copy_struct(char *to, const void *from, enum meg_field_type type)
{
    switch (type) {
    case MEG_FIELD_GLU: COPY(struct meg_glu)
    case MEG_FIELD_QK_NORM: COPY(struct meg_qk_norm)
    case MEG_FIELD_DROP: COPY(struct meg_drop)
    case MEG_FIELD_ATTN_DESC: COPY(struct meg_attn_desc)
    case MEG_FIELD_STEP_CONF: COPY(struct meg_step_conf)
    case MEG_FIELD_UPDATE_ARRAYS: COPY(struct meg_update_arrays)
    case MEG_FIELD_ADAM: COPY(struct meg_adam)
    default: MEG_ASSERT(false);
    }
}

void meg_op_log_add(const struct meg_op_row *row, const void *args, size_t nbytes)
{
    struct meg_op_log_call *c;
    size_t total = nbytes;

    if (!current)
        return;
    for (const struct meg_op_field *f = row->field; f->name; f++)
        total += f->nbytes;
    c = meg_new(sizeof *c + total);
    c->row = row;
    c->nbytes = total;
    memcpy(c->args, args, nbytes);
    for (const struct meg_op_field *f = row->field; f->name; f++) {
        const void *p = f->nbytes ? meg_op_pointer(f, args) : NULL;

        if (p) {
            copy_struct(c->args + nbytes, p, f->type);
            memset(c->args + f->offset, 0, sizeof p);
        }
        nbytes += f->nbytes;
    }
    *(current->last ? &current->last->next : &current->first) = c;
    current->last = c;
}

/* Return the field that contains a byte of a call, in the arguments or in a struct that follows them. */
static const char *field_at(const struct meg_op_log_call *c, size_t at)
{
    const char *name = "arguments";
    size_t begin = 0, structs = c->nbytes;

    for (const struct meg_op_field *f = c->row->field; f->name; f++)
        structs -= f->nbytes;
    for (const struct meg_op_field *f = c->row->field; f->name; f++) {
        const size_t field = f->nbytes && at >= structs ? structs : f->offset;

        if (field <= at && field >= begin) {
            begin = field;
            name = f->name;
        }
        structs += f->nbytes;
    }
    return name;
}

static void require_equal_calls(const struct meg_op_log_call *a, const struct meg_op_log_call *b)
{
    char text[200];
    size_t at = 0;

    if (a && b && a->row == b->row) {
        while (at < a->nbytes && a->args[at] == b->args[at])
            at++;
        if (at == a->nbytes)
            return;
        snprintf(text, sizeof text, "%s of %s is in the key of the graph", field_at(a, at), a->row->name);
    } else {
        snprintf(text, sizeof text, "the key of the graph determines whether %s follows or %s",
                 a ? a->row->name : "nothing", b ? b->row->name : "nothing");
    }
    meg_assert_failed(__FILE__, __LINE__, text);
}

void meg_op_log_require_equal(const struct meg_op_log *a, const struct meg_op_log *b)
{
    const struct meg_op_log_call *x = a->first, *y = b->first;

    while (x || y) {
        require_equal_calls(x, y);
        x = x->next;
        y = y->next;
    }
}

void meg_op_log_free(struct meg_op_log *log)
{
    for (struct meg_op_log_call *c; (c = log->first);) {
        log->first = c->next;
        free(c);
    }
    log->last = NULL;
}
