/*
 * ops.h - cases of operations.  A file of tests/ops has, for some operations, the f64 reference and the cases: sizes,
 * types and options.  Drivers run all cases: tests/unit/cpu/ops.c compares the CPU operations with the references,
 * tests/unit/placement/rules.c the rules of placements with the references, tests/cuda/check_ops.c the CUDA operations
 * with those of the CPU, and tests/cuda/bench.c measures.
 *
 * A case is a struct of arguments without memory, from which op_case makes a call: with the row of the operation
 * (tensor/op_row.h), it creates each tensor, fills it with random numbers, and passes the call to op_run, which the
 * driver sets.  A required tensor is always created, an optional one if its pointer is ON.  The pointer of a tensor may
 * also be OFFSET(n), for a tensor that begins n bytes after an address that is a multiple of 64.  That of an input of
 * structs, such as ranges, is the address of the structs, of which the call has a copy.
 */
#ifndef TESTS_OPS_OPS_H
#define TESTS_OPS_OPS_H
#include <math.h>
#include "tensor/op_row.h"

#define EPS 5.9604645e-8 /* half an ulp of 1 in f32 */
#define LEN(a) (sizeof(a) / sizeof *(a))
#define OFFSET(n) ((void *)(uintptr_t)(4096 + (n)))
#define ON OFFSET(0)

enum { OP_MAX_DIMS = 6, OP_MAX_TENSORS = 24, OP_POSITIONS = 19 };

/*
 * A tensor of a call.  Its elements are numbered in the order of its shape, without the padding between rows; the
 * padding of each tensor is NaN.  The arrays of a struct such as meg_drop are tensors with names like "drop.sample".
 *
 * Structs in device memory are the rows of a tensor, and their members are its columns.  Its format has a letter for
 * each member: d f64, f f32, q i64, i i32, x four bytes of padding, which are no column.  Its dtype is I32.
 */
struct op_tensor {
    char name[40];
    int role; /* enum meg_field_role; MEG_ROLE_IN is also set for outputs to which an operation adds */
    enum meg_dtype dtype;
    const char *format; /* of structs, else NULL */
    int ndims;
    int64_t size[OP_MAX_DIMS], stride[OP_MAX_DIMS];
    int64_t numel;
    int64_t origin;       /* offset, from element 0, of the element to which the pointer in the arguments points */
    size_t first, nbytes; /* of the memory: offset of element 0, and the size including padding */
    char *init;           /* the memory before the call */
    double *v;            /* the values before the call; NaN for an output; NULL if the tensor is large (op_is_large) */
    double *want, *tol;   /* of an output: results of the reference, and absolute tolerances before rounding to dtype */
    size_t offset;        /* of the pointer to the tensor in the arguments or, if field is not NULL, in its struct */
    const struct meg_op_field *field; /* the field that points to the struct in host memory that has the tensor */
};

struct op_call {
    const struct op_test *test;
    const void *args; /* the case */
    void *own_args;   /* freed with the call; NULL: args belongs to the caller */
    int variant;      /* of op_case; its meaning depends on the operation */
    struct meg_op_sizes sizes;
    int n;
    struct op_tensor tensor[OP_MAX_TENSORS];
};

/* A tensor that the row of an operation does not describe, or describes with another shape. */
struct op_extra {
    const char *name;
    size_t offset;        /* in the struct of the arguments */
    enum meg_dtype dtype; /* MEG_DTYPES: that of the row or, if the row lacks the tensor, of its value `type` */
    const char *shape;
    const char *format; /* of structs, which the row describes */
};

struct op_group {
    const char *what; /* the tested property */
    void (*cases)(void);
    int num_sms;      /* CUDA: plan as for a device with so many multiprocessors; 0: with those of the device */
    bool is_cpu_only; /* other groups test the CUDA kernels faster, or the CUDA backend refuses the types */
    bool is_untimed;  /* CUDA: use the first algorithms of cuBLASLt, as with --deterministic-mode */
};

/* The tests of an operation. */
struct op_test {
    const struct meg_op_row *row;
    size_t nbytes; /* of its struct of arguments */
    void (*call)(const struct meg_ops *op, struct meg_stream *st, const void *args);
    /* Change v of inputs from random numbers in [-1, 1), or from 0 for integers; then they are rounded.  NULL: none. */
    void (*fill)(struct op_call *c);
    /*
     * Compute `want` and `tol` of each output from v of the inputs, as if accumulate were false unless ref_adds is set.
     * tol is 0 before, and `want` is v.  Sizes
     * are read by op_size, because finite differences call the reference of the forward operation with a struct of
     * arguments in which only fields that are no tensors are set.
     */
    void (*ref)(struct op_call *c);
    /*
     * The operation of which this one computes gradients: output dX is the gradient of input X, and input dY that of
     * output Y.  They are compared with central differences, without optional inputs that `grad_of` does not have.
     */
    const struct op_test *grad_of;
    /* Return the number of sums of the reference, if it is not proportional to the elements.  NULL: it is. */
    int64_t (*work)(const struct op_call *c);
    /* Return the number of which an output is the gradient, which replaces the input.  NULL: none. */
    double (*loss)(struct op_call *c);
    /* Call other operations that compute the same; on the CPU, the outputs `same` have equal bytes.  NULL: none. */
    void (*parts)(const struct meg_ops *op, struct meg_stream *st, const void *args);
    const char *same;         /* separated by spaces */
    struct op_extra extra[4]; /* the last one has no name */
    const char *added;        /* the outputs, separated by spaces, that accumulate affects; NULL: none */
    bool ref_adds;            /* ref itself adds the previous values of these outputs */
    /* Change the shapes of tensors that the row does not describe.  NULL: none. */
    void (*shape)(struct op_call *c);
    /* Return the size of the workspace, a field of the arguments, for a backend.  NULL: it has none. */
    size_t (*workspace)(const struct meg_ops *op, const void *args);
    size_t workspace_at;
    /* Describe the linear layer of a call, whose plan the operation needs.  NULL: it needs none. */
    struct meg_linear_desc (*plan)(struct op_call *c);
    /*
     * Return the largest relative error, in the L2 norm, of a CUDA result compared with the CPU; 0: equal bytes.  NULL:
     * op_tolerance of its type.
     */
    double (*cuda)(const struct op_call *c, const struct op_tensor *t);
    struct op_group group[12]; /* the last one has no name */
    void (*bench)(void);       /* cases to measure; NULL: none */
};

#define OP_DECLARE(name) extern const struct op_test op_test_##name;
MEG_TENSOR_OPS(OP_DECLARE)

#define OP_TEST(name, ...)                                                                                             \
    static void call_##name(const struct meg_ops *op, struct meg_stream *st, const void *args)                         \
    {                                                                                                                  \
        op->name(st, args);                                                                                            \
    }                                                                                                                  \
    const struct op_test op_test_##name = { .row = &meg_row_##name,                                                    \
                                            .nbytes = sizeof(struct meg_##name##_args),                                \
                                                                                                                       \
                                            .call = call_##name,                                                       \
                                            __VA_ARGS__ }

/* Run a case: OP_CASE(norm_fwd, variant, .type = MEG_NORM_RMS, ...). */
#define OP_CASE(name, variant, ...) op_case(&op_test_##name, variant, &(struct meg_##name##_args){ __VA_ARGS__ })
void op_case(const struct op_test *test, int variant, const void *args);

/* Return the field of a row with this name, or NULL. */
const struct meg_op_field *op_field_of(const struct meg_op_row *row, const char *name);
/* Return test i, in the order of MEG_TENSOR_OPS; NULL if i is their number. */
const struct op_test *op_test_at(int i);
extern void (*op_run)(struct op_call *c);
extern bool op_is_large; /* tensors of f32, bf16 and f16 have no values: set for cases of benchmarks */
void op_seed(uint64_t seed, const char *name);

/* ---- for the cases ---- */

double op_uniform(void); /* in [-1, 1) */
int64_t op_below(int64_t n);

static inline struct meg_mat op_mat(enum meg_dtype t, int64_t rows, int64_t cols, int64_t pad)
{
    return (struct meg_mat){ ON, t, rows, cols, cols + pad };
}

/* The combinations of types in one model.  stream: residual stream; branch: sublayers, norm outputs and parameters. */
struct op_mix {
    enum meg_dtype stream, branch;
};
enum { OP_MIXES = 5, OP_FLOATS = MEG_DTYPE_F16 + 1 };
extern const struct op_mix op_mixes[OP_MIXES];

/* Return a tensor of a call, which may be absent (NULL) unless it is required. */
struct op_tensor *op_find(struct op_call *c, const char *name);
double *op_in(struct op_call *c, const char *name); /* its v; NULL if it is absent or large */
int64_t op_size(const struct op_call *c, const char *letter);
/* Round v of all tensors to their types, to compute inputs that depend on others. */
void op_round(struct op_call *c);
/* Set the first elements of a tensor, from element `first` on, to special values such as infinity. */
void op_set_special(struct op_call *c, const char *name, int64_t first);
/* Return v rounded to f32 and then to type t. */
double op_rounded(enum meg_dtype t, double v);
/* Return the dropout factor of a column of a row, from the definition in tensor/operands.h; 1 without dropout. */
double op_drop_factor(struct op_call *c, const struct meg_drop *d, int64_t row, int64_t col);
/* Return the dropout factor of a unit at a position of a sequence. */
double op_drop_unit(const struct meg_drop *d, int64_t unit, int64_t position, int64_t sample);
double op_act(enum meg_act act, double x);
/* Return the derivative of an activation function.  The derivative of the ReLU is 0 at 0, as in PyTorch. */
double op_slope(enum meg_act act, double x);
bool op_is_relu(enum meg_act act);

/* ---- for the drivers ---- */

/* The arguments of a call on a device. */
struct op_args {
    char *args;
    char *host[8]; /* structs in host memory */
    int nhosts;
    struct meg_linear_plan *plan; /* of the backend `op`, or NULL */
    const struct meg_ops *op;
};
/*
 * Make arguments for a backend, with tensor i at memory[i], which is a copy of its `init`, and a workspace of
 * op_workspace_nbytes bytes.
 */
struct op_args op_args_of(struct op_call *c, const struct meg_ops *op, void *const memory[], void *workspace);
size_t op_workspace_nbytes(const struct op_call *c, const struct meg_ops *op);
void op_args_free(struct op_args *a);

/* Return the elements of a tensor in its memory, which the caller frees. */
double *op_values(const struct op_tensor *t, const char *memory);
/* Return whether the bytes of a tensor or, of structs, the members are equal in two memories. */
bool op_is_equal(const struct op_tensor *t, const char *a, const char *b);
/* Return whether the padding of a tensor is unchanged in memory p. */
bool op_is_padding_intact(const struct op_tensor *t, const char *memory);
/*
 * Return whether tensor i can be the first output: the operation allows it, and their memory is equal.  *output is the
 * index of the output.
 */
bool op_may_be_in_place(const struct op_call *c, int i, int *output);
double op_tolerance(enum meg_dtype t);
/* Return whether a name is in a list of names separated by spaces, which may be NULL. */
bool op_contains(const char *list, const char *name);
/* Return the sizes of a call and the types of its tensors, valid until the next call of this function. */
const char *op_describe(const struct op_call *c);
/* Call the reference, and add the previous values of accumulated outputs. */
void op_reference(struct op_call *c);
/*
 * Make a call of the forward operation with the values of a call of its backward operation; NULL if there is none.
 * Free with op_call_free.
 */
struct op_call *op_forward_of(struct op_call *bwd);
void op_call_free(struct op_call *c);

#endif
