/* internal.h - axes of the mesh, and the table of placements by address. */
#ifndef MEG_PLACEMENT_INTERNAL_H
#define MEG_PLACEMENT_INTERNAL_H
#include "placement/placement.h"

MEG_BEGIN_DECLS

enum { PLACEMENT_MAX_AXES = 8 };

/*
 * The placement of a value over one axis; enum meg_placement has further values.  Zeros are neutral: they are valid
 * with each placement.
 */
enum {
    PLACEMENT_IN_FLIGHT = 1, /* an output of a collective that was not waited for */
    PLACEMENT_ZERO,
    PLACEMENT_MERGING = MEG_PLACEMENT_PARTIAL + 1, /* attention over some of the keys (attn_merge) */
    PLACEMENT_RECEIVED                             /* the sum of some other ranks of a ring */
};

struct placement {
    unsigned char axis[PLACEMENT_MAX_AXES];
    uint16_t others; /* number of other ranks of a ring that a partial sum includes */
    uint16_t chunks; /* MERGING: the chunks of keys, one bit each */
};

enum placement_axis_type { PLACEMENT_TP, PLACEMENT_CP, PLACEMENT_DP, PLACEMENT_PP };

/*
 * An axis of the mesh.  The data- and context-parallel ranks have several axes, so that each group of the mesh
 * consists of complete axes.
 */
struct placement_axis {
    enum placement_axis_type type;
    char name[24];
    int64_t size, rank, stride; /* stride: of the index meg_layout_dp_cp_rank */
};

extern struct placement_axis placement_axis[PLACEMENT_MAX_AXES];
extern int placement_naxes;
extern const struct meg_mesh *placement_mesh; /* NULL: nothing is checked */
extern const struct meg_params *placement_params_table;

/* ---- table.c ---- */

struct placement_range {
    const char *begin, *end;
    struct placement v;
    const struct meg_param *row; /* in placement_declared: the parameter */
};

/* Disjoint ranges in ascending order. */
struct placement_table {
    struct placement_range *range;
    int n, cap;
};

extern struct placement_table placement_table; /* the current placement of each range of device memory */
extern struct placement_table
    placement_declared; /* the ranges of parameters and gradients, as in the parameter table */

void placement_set(struct placement_table *t, const void *p, size_t nbytes, struct placement v,
                   const struct meg_param *row);
void placement_remove(struct placement_table *t, const void *p, size_t nbytes);
/* Return the first part of [p, end) that has one placement; the placement of memory that is in no range is unknown. */
struct placement_range placement_first(const struct placement_table *t, const char *p, const char *end);
/* Return a placement that is s over all axes. */
struct placement placement_all(int s);
/* Return the placement of [p, p + nbytes), apart from zeros.  Set *differs to an axis over which it differs, or -1. */
struct placement placement_of(const void *p, size_t nbytes, int *differs);
/* Set dst to the placements of src; the elements have sizes to and from. */
void placement_copy(const void *dst, size_t to, const void *src, size_t from, int64_t n);
bool placement_is_sharded(int s);
const char *placement_name(int s);
/* Return the name of the parameter that is at p, or of which the gradient is at p; NULL if there is none. */
const char *placement_param_name(const void *p);

/* Print the operation, the layer, the tensor, its placement over an axis and what is wrong with it, and abort. */
void placement_fail(const char *op, const char *tensor, const void *p, int placement, int axis, const char *fmt, ...)
    __attribute__((format(printf, 6, 7), noreturn));

/* ---- rules.c ---- */

struct meg_op_row;
/* Set the placements of the outputs of a call of an operation, or fail if an input has a placement it may not have. */
void placement_apply(const struct meg_op_row *row, const void *args);

/* ---- ops.c ---- */

/* Return a table of operations that check placements and call those of op. */
const struct meg_ops *placement_ops(const struct meg_ops *op);

/* ---- grads.c ---- */

/*
 * The sums of squares at an address: begin them when the memory is zeroed, record an array that is summed, and the axes
 * over which the sum is reduced.
 */
void placement_norm_begin(const void *sums, size_t nbytes);
void placement_norm_add(const void *sum, const void *x, size_t nbytes);
unsigned placement_norm_reduce(const void *sum, unsigned mask); /* return all axes recorded so far */
void placement_norm_end(void);
/* Check the record of a step: its sums must not be partial. */
void placement_step_finish(const struct meg_step_finish_args *a);
/*
 * Check that the gradients that an optimizer step reads have the placement of their parameters, and that each is in the
 * norm once.  Mark the updated shards.
 */
void placement_update(const char *op, const struct meg_update_arrays *x, const struct meg_update_range *range,
                      int nranges);

/* ---- comm.c ---- */

void placement_comm_begin(struct meg_comm *c, unsigned mask);
void placement_comm_end(void);
/* Return the axes of a group as a bit mask. */
unsigned placement_comm_mask(const struct meg_comm *c);

MEG_END_DECLS
#endif
