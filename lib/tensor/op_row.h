/*
 * op_row.h - rows that describe the arguments of operations.  The checks of debug builds (check_ops.c), tracing
 * (trace_ops.c), the cost model (plan/count_ops.c) and the queue device of the tests are loops over the fields of rows.
 *
 * A row is at the end of the header that defines the struct of the arguments:
 *   MEG_OP_ROW(OP, CHECK, FIELD(OP, NAME, ROLE, SHAPE [, TYPED]) ... VALUE(OP, NAME) ...)
 * CHECK is a function of op_rows.c that checks rules between fields, or NULL.  FIELD describes a tensor, VALUE another
 * argument; numbers that are neither checked nor traced, such as eps, are omitted.  The types of fields are those of
 * the struct.  ROLE is IN, OUT or INOUT, with OPTIONAL if the tensor may be absent, IN_PLACE if it may be the first
 * output, and ANY_DTYPE if its elements are only copied.  TYPED is the field that has the data type of a void pointer:
 * a tensor or an enum meg_dtype.
 *
 * SHAPE is the shape of a matrix, a view of heads, or an array, in terms separated by spaces: a number, or a size that
 * may have a factor (2f).  A size is an integer field of this name; a size in the struct meg_attn_desc or struct
 * meg_qk_norm of the call (r is a/g, and s_k and b_k are the rows and sequences of one block of a KV cache in blocks);
 * or, as in Einstein notation, the rows or columns of the first matrix whose shape contains it.
 *
 * After the rows, rules state how placements on the ranks of a mesh follow (lib/placement, debug builds):
 *   MEG_PLACEMENT_RULE(OP, OUTPUTS, .factors = INPUTS [, .linear = INPUTS] [, .terms = INPUTS] ...)
 * Names are separated by spaces.  The outputs are a function of the factors, to which the terms are added.  The
 * function is linear in each of `linear`, one of which may thus be a partial sum.  No factor may be sharded along the
 * sizes in `complete`.  An output that lacks the size of a sharded dimension is a partial sum or, if the size is in
 * `stacked`, has statistics of the shard.  The outputs of an operation without a rule have an unknown placement.
 */
#pragma once
#include <string.h>
#include "tensor/ops.h"

enum meg_field_type {
    MEG_FIELD_MAT,    /* struct meg_mat */
    MEG_FIELD_HEADS,  /* struct meg_heads */
    MEG_FIELD_ARRAY,  /* struct meg_array */
    MEG_FIELD_VECTOR, /* pointer to elements of type `dtype`, or of the type of field `typed` */
    MEG_FIELD_RANGES, /* const struct meg_update_range * */
    MEG_FIELD_MEMORY, /* pointer to other device memory, such as structs */

    MEG_FIELD_I64,
    MEG_FIELD_INT,
    MEG_FIELD_BOOL,
    MEG_FIELD_F32,
    MEG_FIELD_DTYPE,
    MEG_FIELD_ACT,
    MEG_FIELD_NORM,
    MEG_FIELD_PLAN, /* struct meg_linear_plan * */

    /* Pointers to structs in host memory, which the caller may change when the operation returns. */
    MEG_FIELD_GLU,
    MEG_FIELD_QK_NORM,
    MEG_FIELD_DROP,
    MEG_FIELD_ATTN_DESC,
    MEG_FIELD_STEP_CONF,
    MEG_FIELD_UPDATE_ARRAYS,
    MEG_FIELD_ADAM
};
enum meg_field_role {
    MEG_ROLE_IN = 1,
    MEG_ROLE_OUT = 2,
    MEG_ROLE_OPTIONAL = 4,
    MEG_ROLE_IN_PLACE = 8,
    MEG_ROLE_ANY_DTYPE = 16
};

struct meg_op_field {
    const char *name;
    size_t offset; /* in the struct of the arguments */
    size_t nbytes; /* of the struct in host memory to which the field points, else 0 */
    enum meg_field_type type;
    enum meg_dtype dtype;
    int role;                  /* enum meg_field_role; 0 for a field that is no tensor */
    const char *shape, *typed; /* of tensors */
};

struct meg_op_row {
    const char *name;
    void (*check)(const struct meg_ops *op, const void *args); /* check rules between fields; NULL: none */
    const struct meg_op_field *field;                          /* the last one has no name */
};

#define MEG_DECLARE_ROW(name) extern const struct meg_op_row meg_row_##name;
MEG_TENSOR_OPS(MEG_DECLARE_ROW)
#undef MEG_DECLARE_ROW

/* Return the address of a field in the arguments of a call. */
static inline const void *meg_op_field(const struct meg_op_field *f, const void *args)
{
    return (const char *)args + f->offset;
}

/* Return the value of a field that is a pointer. */
static inline void *meg_op_pointer(const struct meg_op_field *f, const void *args)
{
    void *p;

    memcpy(&p, meg_op_field(f, args), sizeof p);
    return p;
}

/* The sizes that the shapes of a call contain. */
struct meg_op_sizes {
    int n;
    struct {
        const char *name;
        int len; /* of the name, which ends with a space or 0 */
        int64_t value;
    } size[24];
};
struct meg_op_sizes meg_op_sizes_of(const struct meg_op_row *row, const void *args);
/* Return term i of a shape; -1 if the shape has no such term.  *term is the term, *len its length. */
int64_t meg_op_term(const struct meg_op_sizes *s, const char *shape, int i, const char **term, int *len);
/* Return the number of elements of a tensor of this shape. */
int64_t meg_op_numel(const struct meg_op_sizes *s, const char *shape);

/*
 * Return the matrix, array or vector of a field as a matrix; vectors have one row.  The pointer is NULL if absent.
 * MEG_FIELD_MEMORY and views of heads, too, are returned as vectors; the data type of memory does not matter.
 */
struct meg_mat meg_op_mat(const struct meg_op_sizes *s, const struct meg_op_row *row, const struct meg_op_field *f,
                          const void *args);
