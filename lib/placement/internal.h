/* internal.h - axes of the mesh, the table of placements by address, and the tensors of a call of an operation. */
#pragma once
#include "placement/placement.h"
#include "tensor/op_row.h"

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
    uint16_t others;  /* number of other ranks of a ring that a partial sum includes */
    uint16_t chunks;  /* MERGING: the chunks of keys, one bit each */
    uint16_t reduced; /* of a sum of squares: the axes over which it was reduced, one bit each */
};

enum placement_axis_type { PLACEMENT_TP, PLACEMENT_CP, PLACEMENT_DP, PLACEMENT_PP };

/*
 * An axis of the mesh.  The ranks of a stage have several axes, so that each group of the mesh consists of complete
 * axes.
 */
struct placement_axis {
    enum placement_axis_type type;
    char name[24];
    int64_t size, rank, stride; /* stride: of the index meg_layout_stage_rank + ranks of a stage * pp */
};

extern struct placement_axis placement_axis[PLACEMENT_MAX_AXES];
extern int placement_naxes;
extern const struct meg_mesh *placement_mesh; /* NULL: nothing is checked */
extern const struct meg_params *placement_params_table;

/* Return the placement of a parameter. */
struct placement placement_of_param(const struct meg_param *row);
/* Return the placement of tokens, such as hidden states, that are `tp` over tensor parallelism. */
struct placement placement_of_tokens(int tp);

/* ---- table.c ---- */

struct placement_range {
    const char *begin, *end;
    struct placement v;
    const struct meg_param *row; /* the parameter or gradient that was declared to be there; NULL: none */
    const struct meg_work *work; /* a collective that writes it; v is the placement after it */
};

void placement_set(const void *p, size_t nbytes, struct placement v);
void placement_set_row(const void *p, size_t nbytes, const struct meg_param *row);
/* Mark the outputs of a collective as in flight, and unmark them when it is complete. */
void placement_set_work(const void *p, size_t nbytes, const struct meg_work *work);
void placement_complete(const struct meg_work *work);
/*
 * Set *r to the first part of [r->end, end) that has one placement and belongs to at most one parameter, or return
 * false if this range is empty.  The placement of memory that was not set is unknown; that of a part in flight is
 * IN_FLIGHT.
 */
bool placement_next(struct placement_range *r, const char *end);
/* Return a placement that is s over all axes. */
struct placement placement_all(int s);
/* Return the placement of [p, p + nbytes), apart from zeros.  Set *differs to an axis over which it differs, or -1. */
struct placement placement_of(const void *p, size_t nbytes, int *differs);
/* Set dst to the placements of src; the elements have sizes to and from. */
void placement_copy(const void *dst, size_t to, const void *src, size_t from, int64_t n);
void placement_free(void);
bool placement_is_sharded(int s);
const char *placement_name(int s);
/* Return the parameter that is at p, or of which the gradient is at p; NULL if there is none. */
const struct meg_param *placement_param(const void *p);

/* Print the operation, the layer, the tensor, its placement over an axis and what is wrong with it, and abort. */
void placement_fail(const char *op, const char *tensor, const void *p, int placement, int axis, const char *fmt, ...)
    __attribute__((format(printf, 6, 7), noreturn));

/* ---- call.c ---- */

/* A call of an operation.  An elementwise operation may be checked for elements [begin, begin + n) only. */
struct placement_call {
    const struct meg_op_row *row;
    const void *args;
    struct meg_op_sizes sizes;
    int64_t begin, n; /* n is 0: all */
};

/* Return whether a list of words, or NULL, contains a word. */
bool placement_contains(const char *list, const char *word);
/* Return field i of those that are in a list of names and present; NULL if there are fewer, or if the list is NULL. */
const struct meg_op_field *placement_nth(const struct placement_call *c, const char *list, int i);
/* Return the range from the first to the last element of a tensor. */
struct placement_range placement_extent(const struct placement_call *c, const struct meg_op_field *f);
/* Return the placement of a tensor.  Fail if parts of it have different placements. */
struct placement placement_value(const struct placement_call *c, const struct meg_op_field *f);
/* Fail because of the placement s of a tensor over an axis. */
#define PLACEMENT_FAIL(c, f, s, axis, ...)                                                                             \
    placement_fail((c)->row->name, (f)->name, placement_extent(c, f).begin, s, axis, __VA_ARGS__)

/* The letter of a size in a shape, as in Einstein notation.  A size with a longer name has an upper-case letter. */
enum {
    PLACEMENT_NONE = 0,
    PLACEMENT_TOKENS = 'n', /* all sizes of tokens */
    PLACEMENT_HEADS = 'g',  /* all sizes of heads */
    PLACEMENT_OUTER = '*'   /* a dimension outside of the tensor, such as experts */
};
/* Return the placement of a tensor that is sharded along a letter, or 0 if the tensor does not have the letter. */
int placement_sharding_along(const struct meg_op_field *f, int letter);
/* Return the letter along which a tensor with placement s is sharded. */
int placement_letter(const struct meg_op_field *f, int s);

/* ---- rules.c ---- */

/* Set the placements of the outputs of a call of an operation, or fail if an input has a placement it may not have. */
void placement_apply(const struct placement_call *call);

/* ---- ops.c ---- */

/* Return a table of operations that check placements and call those of op. */
const struct meg_ops *placement_ops(const struct meg_ops *op);

/* ---- grads.c ---- */

/* Begin the sums of squares, or other sums of gradients, in memory that is zeroed; or end all. */
void placement_norm_begin(const void *sums, size_t nbytes);
void placement_norm_end(void);
/* Record an array that is added to a sum. */
void placement_norm_add(const void *sum, const void *x, size_t nbytes);
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
