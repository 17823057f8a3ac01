/*
 * check.h - compare the operations of the CUDA backend with those of the CPU, on random data.
 *
 * The same cases run on a GPU (make check-gpu) and, compiled with emulate.h and the doubles of the libraries, on the
 * CPU (make check).  A case creates each operand as a twin, in host and in device memory, calls an operation of both
 * backends, and compares the results.
 */
#ifndef TESTS_CUDA_CHECK_H
#define TESTS_CUDA_CHECK_H
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include "device/device.h"
#include "tensor/ops.h"
#include "tensor/suballoc.h"

extern const struct meg_ops *cpu, *gpu; /* the backends that are compared */
extern struct meg_stream *stream;       /* stream of the GPU on which the cases queue operations */

/* A case.  Its name is that of an operation, followed by the tested property: "norm_fwd: rows of odd length". */
struct check_case {
    const char *name;
    void (*run)(void);
};
/* The cases of a file end with an entry without name. */
extern const struct check_case cases_elementwise[], cases_norm[], cases_rope[], cases_embedding[], cases_xent[],
    cases_reduce[], cases_optim[], cases_sample[], cases_linear[], cases_attention[], cases_cudnn[], cases_graph[];

/* Random numbers, which depend on the seed of the run and on the case: uniform in [-1, 1), and integers in [0, n). */
double check_uniform(void);
int64_t check_below(int64_t n);

/*
 * A matrix in host memory, for the CPU, and in device memory.  The row padding, pad elements between rows, is NaN in
 * both.  The memory is freed when the case ends.
 */
struct twin {
    struct meg_mat host, dev;
};
struct twin twin_random(enum meg_dtype t, int64_t rows, int64_t cols, int64_t pad);
/* Create an output: all elements are NaN, so the operation must write each of them. */
struct twin twin_output(enum meg_dtype t, int64_t rows, int64_t cols, int64_t pad);
/* Copy x->host to x->dev, after changes of x->host. */
void twin_upload(const struct twin *x);
/* Copy x->dev to x->host, to compare two results of the device. */
void twin_download(struct twin *x);
float twin_get(const struct twin *x, int64_t r, int64_t c); /* element of x->host */
void twin_set(struct twin *x, int64_t r, int64_t c, float v);

/* Data other than matrices, such as token ids.  twin_bytes() copies its argument to both memories. */
struct twin_bytes {
    void *host, *dev;
    size_t nbytes;
};
struct twin_bytes twin_bytes(const void *data, size_t nbytes);
/* Copy x->dev to `to`. */
void twin_bytes_read(void *to, const struct twin_bytes *x);

/*
 * Fail unless the L2 norm of dev - host is at most tol times that of host.  Also fail if an element is NaN or
 * infinite on one side only, or if the row padding has changed.  `what` names the result, such as "dx".
 */
void expect_near(const struct twin *x, double tol, const char *what);
/* Fail unless the bytes of both are equal. */
void expect_equal(const struct twin *x, const char *what);
void expect_equal_bytes(const struct twin_bytes *x, const char *what);
/* Like expect_near, for an array of f64. */
void expect_near_f64(const struct twin_bytes *x, double tol, const char *what);
void check_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Return the tolerance of expect_near for results of type t that are rounded once. */
static inline double check_tolerance(enum meg_dtype t)
{
    return t == MEG_DTYPE_F32 ? 1e-5 : t == MEG_DTYPE_F16 ? 1e-3 : 4e-3;
}

/* The combinations of types in one model.  stream: residual stream; branch: sublayers, norm outputs and parameters. */
static const struct check_mix {
    enum meg_dtype stream, branch;
} check_mixes[] = {
    { MEG_DTYPE_F32, MEG_DTYPE_F32 },  { MEG_DTYPE_BF16, MEG_DTYPE_BF16 }, { MEG_DTYPE_F16, MEG_DTYPE_F16 },
    { MEG_DTYPE_F32, MEG_DTYPE_BF16 }, { MEG_DTYPE_F32, MEG_DTYPE_F16 },
};
enum { CHECK_MIXES = sizeof check_mixes / sizeof *check_mixes };

#endif
