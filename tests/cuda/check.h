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
#include "../ops/ops.h"
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
extern const struct check_case cases_elementwise[], cases_embedding[], cases_xent[], cases_reduce[], cases_linear[],
    cases_attention[], cases_cudnn[], cases_graph[];

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
/* Like expect_near, for an array of f64. */
void expect_near_f64(const struct twin_bytes *x, double tol, const char *what);
/* Compare element [r,c] of two arrays, and fail if they differ too much after the last one. */
struct difference {
    double error2, norm2; /* squares of L2 norms */
    double most;          /* largest error of an element; its index and values follow */
    int64_t r, c;
    double got, want;
    int64_t num_special; /* NaN or infinite on one side only */
};
void difference_add(struct difference *d, int64_t r, int64_t c, double got, double want);
void expect_small(const struct difference *d, double tol, const char *what);
/* Run a case of tests/ops, with the options of its group, which may be NULL. */
void check_op(struct op_call *c, const struct op_group *g);
void check_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
