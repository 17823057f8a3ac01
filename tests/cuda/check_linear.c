/* check_linear.c - cases of cuda/cublas/linear.c that are no comparison; tests/ops has the others. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "check.h"
#include "cuda/cublas/gemm_cache.h"
#include "cuda/internal.h"
#include "file/file.h"

/* Combinations of types that cuBLASLt does not support are refused with a reason. */
static void refused(void)
{
    static const struct meg_linear_desc descs[] = {
        { 8, 8, 8, MEG_DTYPE_BF16, MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32 },
        { 8, 8, 8, MEG_DTYPE_BF16, MEG_DTYPE_F16, MEG_DTYPE_F32, MEG_DTYPE_F32 },
        { 8, 8, 8, MEG_DTYPE_BF16, MEG_DTYPE_BF16, MEG_DTYPE_F16, MEG_DTYPE_F32 },
        { 8, 8, 8, MEG_DTYPE_F16, MEG_DTYPE_F16, MEG_DTYPE_F16, MEG_DTYPE_BF16 },
        { 8, 8, 8, MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_BF16 },
        { 8, 8, 8, MEG_DTYPE_F64, MEG_DTYPE_F64, MEG_DTYPE_F64, MEG_DTYPE_F64 },
    };

    for (size_t i = 0; i < sizeof descs / sizeof *descs; i++) {
        const char *why = NULL;

        if (gpu->linear_create(&descs[i], &why) || !why)
            check_fail("description %zu is not refused with a reason", i);
    }
}

/* ---- the cache file of algorithms ---- */

static struct meg_gemm_choice choice_of(uint64_t number)
{
    struct meg_gemm_choice c = { .epilogue = CUBLASLT_EPILOGUE_BIAS };

    for (int i = 0; i < 8; i++)
        c.algo.data[i] = number * 0x9e3779b97f4a7c15u + (uint64_t)i;
    return c;
}

static void expect_choice(const char *key, const struct meg_gemm_choice *want)
{
    struct meg_gemm_choice got;

    if (meg_gemm_cache_find(&got, key) != (want != NULL))
        check_fail("%s: a choice is %s", key, want ? "not found" : "found");
    else if (want && (got.epilogue != want->epilogue || memcmp(&got.algo, &want->algo, sizeof got.algo) != 0))
        check_fail("%s: not the choice that was added", key);
}

/* Run a shell command, in which $MEG_CACHE_DIR is the directory of the cache file. */
static void shell(const char *command)
{
    if (system(command) != 0) /* NOLINT: fixed commands */
        check_fail("%s fails", command);
}

static void with_bias(int64_t n, int64_t in)
{
    OP_CASE(linear_fwd, 0, .y = op_mat(MEG_DTYPE_BF16, n, 56, 0), .x = op_mat(MEG_DTYPE_BF16, n, in, 0),
            .w = op_mat(MEG_DTYPE_BF16, 56, in, 0), .bias = ON);
}

/*
 * Choices are stored even if other lines of the file are damaged.  With --deterministic-mode, products are neither
 * timed nor stored.  Without it, products that differ only in the number of tokens are timed for at most four such
 * numbers.
 */
static void stored(void)
{
    const bool was_deterministic = meg_cuda_device.is_deterministic;
    const struct meg_gemm_choice a = choice_of(1), b = choice_of(2), c = choice_of(3);
    char dir[] = "/tmp/meg-check-XXXXXX", *old = getenv("MEG_CACHE_DIR");

    old = old ? meg_strdup(old) : NULL;
    if (!mkdtemp(dir))
        meg_die(MEG_EIO, "mkdtemp fails");
    setenv("MEG_CACHE_DIR", dir, 1);
    meg_log_set_level(MEG_LOG_ERROR);
    expect_choice("one", NULL);
    meg_gemm_cache_add("one", &a);
    meg_gemm_cache_add("two", &c);
    meg_gemm_cache_add("one", &b); /* like another process that timed the same product at the same time */
    expect_choice("one", &a);
    expect_choice("two", &c);
    expect_choice("on", NULL);
    shell("set -- $MEG_CACHE_DIR/cublaslt-*; printf 'one\\t4\\t12' >>$1"); /* like a process that was killed */
    meg_gemm_cache_add("three", &c);
    expect_choice("three", &c);
    shell("sed -i '2s/c\\t/d\\t/' $MEG_CACHE_DIR/cublaslt-*");
    expect_choice("one", &b);
    meg_cuda_device.is_deterministic = true;
    with_bias(6, 80);
    meg_cuda_device.is_deterministic = was_deterministic;
    for (int64_t n = 1; n < 7; n++)
        with_bias(n, 88);
    shell("test $(grep -c ' k=80 ' $MEG_CACHE_DIR/cublaslt-*) = 0");
    shell("test $(grep -c ' k=88 ' $MEG_CACHE_DIR/cublaslt-*) = 4");
    meg_log_set_level(MEG_LOG_INFO);
    if (old)
        setenv("MEG_CACHE_DIR", old, 1);
    else
        unsetenv("MEG_CACHE_DIR");
    free(old);
    meg_remove_tree(dir, NULL);
}

const struct check_case cases_linear[] = {
    { "linear: refused types", refused },
    { "linear: stored algorithms", stored },
    { 0 },
};
