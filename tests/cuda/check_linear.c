/* check_linear.c - cases of cuda/cublas/linear.c and of the products in cuda/cublas/gemm.c. */
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

/* Types of linear layers: x and w, y, dw. */
static const struct types {
    enum meg_dtype x, y, dw;
} types[] = {
    { MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32 },   { MEG_DTYPE_BF16, MEG_DTYPE_BF16, MEG_DTYPE_F32 },
    { MEG_DTYPE_BF16, MEG_DTYPE_F32, MEG_DTYPE_BF16 }, { MEG_DTYPE_F16, MEG_DTYPE_F16, MEG_DTYPE_F16 },
    { MEG_DTYPE_F16, MEG_DTYPE_F32, MEG_DTYPE_F32 },
};
enum { TYPES = sizeof types / sizeof *types };

/* Shapes of linear layers, some with aligned rows; pad is the row padding in elements. */
static const struct shape {
    int64_t n, in, out, pad;
} shapes[] = { { 32, 48, 40, 0 }, { 1, 64, 24, 0 }, { 21, 16, 32, 8 }, { 7, 17, 19, 0 },
               { 9, 24, 2, 3 },   { 5, 1, 11, 0 },  { 3, 8, 1034, 6 } };
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* The plans of both backends. */
struct plans {
    struct meg_linear_plan *host, *dev;
};

static struct plans plans_new(struct types t, struct shape s)
{
    const struct meg_linear_desc desc = { s.n, s.in, s.out, t.x, t.x, t.y, t.dw };
    const char *why = "no reason";
    const struct plans p = { cpu->linear_create(&desc, &why), gpu->linear_create(&desc, &why) };

    if (!p.host || !p.dev)
        meg_die(MEG_EFAIL, "no plan: %s", why);
    return p;
}

static void plans_free(struct plans p)
{
    cpu->linear_destroy(p.host);
    gpu->linear_destroy(p.dev);
}

/*
 * Tolerance for a result of type t.  An activation may be computed from a rounded value, and cuBLASLt's GELU has an
 * approximate tanh.
 */
static double tolerance(enum meg_dtype t, enum meg_act act)
{
    return op_tolerance(t) * (act == MEG_ACT_NONE || t == MEG_DTYPE_F32 ? 1 : 2);
}

/* Create the result of an operation, random if the operation adds to it. */
static struct twin result(enum meg_dtype t, int64_t rows, int64_t cols, int64_t pad, bool accumulate)
{
    return accumulate ? twin_random(t, rows, cols, pad) : twin_output(t, rows, cols, pad);
}

struct fwd_options {
    bool has_bias;
    enum meg_act act;
    bool has_pre, accumulate;
};

static void compare_fwd(struct types t, struct shape s, struct fwd_options o)
{
    const struct twin x = twin_random(t.x, s.n, s.in, s.pad), w = twin_random(t.x, s.out, s.in, s.pad);
    const struct twin bias = twin_random(t.x, 1, s.out, 0);
    const struct twin y = result(t.y, s.n, s.out, s.pad, o.accumulate);
    const struct twin pre = result(t.y, s.n, s.out, s.pad, o.accumulate);
    const struct plans p = plans_new(t, s);

    MEG_CALL(cpu, NULL, linear_fwd, .plan = p.host, .y = y.host, .pre = o.has_pre ? pre.host : meg_no_mat(),
             .x = x.host, .w = w.host, .bias = o.has_bias ? bias.host.p : NULL, .act = o.act,
             .accumulate = o.accumulate);
    MEG_CALL(gpu, stream, linear_fwd, .plan = p.dev, .y = y.dev, .pre = o.has_pre ? pre.dev : meg_no_mat(), .x = x.dev,
             .w = w.dev, .bias = o.has_bias ? bias.dev.p : NULL, .act = o.act, .accumulate = o.accumulate);
    expect_near(&y, tolerance(t.y, o.act), "y");
    expect_near(&pre, tolerance(t.y, MEG_ACT_NONE), "pre");
    plans_free(p);
}

static void fwd(void)
{
    for (int i = 0; i < TYPES; i++)
        for (int k = 0; k < SHAPES; k++)
            for (int accumulate = 0; accumulate < 2; accumulate++)
                compare_fwd(types[i], shapes[k], (struct fwd_options){ k % 2, MEG_ACT_NONE, false, accumulate });
}

static void fwd_act(void)
{
    for (int i = 0; i < TYPES; i++)
        for (int k = 0; k < 4; k++)
            for (enum meg_act act = MEG_ACT_GELU_TANH; act <= MEG_ACT_RELU; act++)
                compare_fwd(
                    types[i], shapes[k],
                    (struct fwd_options){ (i + k + (int)act) % 2, act, (i + k) % 3 > 0, (k + (int)act) / 2 % 2 });
}

/* Test all combinations of bias, GELU, pre and accumulate, which are epilogues of aligned bf16 products. */
static void fwd_epilogues(void)
{
    for (int i = 0; i < 48; i++) {
        const struct fwd_options o = { i / 2 % 2, i / 4 % 2 ? MEG_ACT_GELU_TANH : MEG_ACT_NONE, i / 8 % 2, i / 24 };

        compare_fwd(types[1], (struct shape){ 8, 16 + 8 * (i % 3), 16, 0 }, o);
    }
}

static void compare_bwd_data(struct types t, struct shape s, enum meg_act act, enum meg_dtype pre_type)
{
    const bool accumulate = (s.n + s.in / 8 + (int)act) % 2;
    const struct twin dy = twin_random(t.y, s.n, s.out, s.pad), w = twin_random(t.x, s.out, s.in, s.pad);
    const struct twin pre = twin_random(pre_type, s.n, s.in, s.pad), dx = result(t.x, s.n, s.in, s.pad, accumulate);
    const struct plans p = plans_new(t, s);
    /* the sum of two 16-bit products is rounded twice (cuda/cublas/linear.c) */
    const int nroundings = act == MEG_ACT_NONE && s.out > 1024 && t.x != MEG_DTYPE_F32 ? 2 : 1;

    MEG_CALL(cpu, NULL, linear_bwd_data, .plan = p.host, .dx = dx.host, .dy = dy.host, .w = w.host, .pre = pre.host,
             .act = act, .accumulate = accumulate);
    MEG_CALL(gpu, stream, linear_bwd_data, .plan = p.dev, .dx = dx.dev, .dy = dy.dev, .w = w.dev, .pre = pre.dev,
             .act = act, .accumulate = accumulate);
    expect_near(&dx, nroundings * tolerance(t.x, act), "dx");
    plans_free(p);
}

static void bwd_data(void)
{
    for (int i = 0; i < TYPES; i++)
        for (int k = 0; k < SHAPES && types[i].x == types[i].y; k++)
            for (int act = k % 2; act <= MEG_ACT_RELU; act += 2 - i % 2)
                compare_bwd_data(types[i], shapes[k], (enum meg_act)act, types[i].x);
}

/* pre, the input of the activation function, may have another type than dx. */
static void bwd_data_pre(void)
{
    for (int i = 0; i < TYPES; i++)
        if (types[i].x == types[i].y)
            for (int64_t n = 8; n < 24; n += 8)
                compare_bwd_data(types[i], (struct shape){ n, 56, 48, 0 }, MEG_ACT_GELU_TANH, MEG_DTYPE_F32);
}

static void compare_bwd_weight(struct types t, struct shape s, bool has_dbias, bool accumulate)
{
    const struct twin dy = twin_random(t.x, s.n, s.out, s.pad), x = twin_random(t.x, s.n, s.in, s.pad);
    const struct twin dw = result(t.dw, s.out, s.in, s.pad, accumulate), db = result(t.dw, 1, s.out, 0, accumulate);
    struct plans p;

    t.y = t.x;
    p = plans_new(t, s);
    MEG_CALL(cpu, NULL, linear_bwd_weight, .plan = p.host, .dw = dw.host, .dbias = has_dbias ? db.host.p : NULL,
             .dy = dy.host, .x = x.host, .accumulate = accumulate);
    MEG_CALL(gpu, stream, linear_bwd_weight, .plan = p.dev, .dw = dw.dev, .dbias = has_dbias ? db.dev.p : NULL,
             .dy = dy.dev, .x = x.dev, .accumulate = accumulate);
    expect_near(&dw, op_tolerance(t.dw), "dw");
    expect_near(&db, op_tolerance(t.dw), "dbias");
    plans_free(p);
}

static void bwd_weight(void)
{
    for (int i = 0; i < TYPES; i++)
        for (int k = 0; k < SHAPES; k++)
            for (int j = (i + k) % 2; j < 4; j += 2)
                compare_bwd_weight(types[i], shapes[k], j % 2 ^ j / 2, j / 2);
}

/* Without tokens, weight and bias gradients are zero, or unchanged if they are accumulated. */
static void empty(void)
{
    const struct shape s = { 0, 24, 16, 8 };

    for (int i = 0; i < TYPES; i++) {
        const struct twin dy = twin_output(types[i].x, 0, s.out, 0), x = twin_output(types[i].x, 0, s.in, 0);
        struct twin dw = twin_output(types[i].dw, s.out, s.in, s.pad), db = twin_output(types[i].dw, 1, s.out, 0);
        const struct plans p = plans_new((struct types){ types[i].x, types[i].x, types[i].dw }, s);

        MEG_CALL(gpu, stream, linear_bwd_weight, .plan = p.dev, .dw = dw.dev, .dbias = db.dev.p, .dy = dy.dev,
                 .x = x.dev);
        MEG_CALL(gpu, stream, linear_bwd_weight, .plan = p.dev, .dw = dw.dev, .dbias = db.dev.p, .dy = dy.dev,
                 .x = x.dev, .accumulate = true);
        for (int64_t r = 0; r < s.out; r++)
            for (int64_t c = 0; c < s.in; c++)
                twin_set(&dw, r, c, 0);
        for (int64_t c = 0; c < s.out; c++)
            twin_set(&db, 0, c, 0);
        expect_equal(&dw, "dw");
        expect_equal(&db, "dbias");
        plans_free(p);
        compare_fwd(types[i], s, (struct fwd_options){ true, MEG_ACT_GELU_TANH, true, false });
    }
}

/* Return x without its first row and column, so that its pointer is not aligned. */
static struct twin without_first(struct twin x)
{
    struct meg_mat *const m[] = { &x.host, &x.dev };

    for (int i = 0; i < 2; i++) {
        m[i]->p = meg_element(m[i]->p, m[i]->ld + 1, m[i]->dtype);
        m[i]->rows--;
        m[i]->cols--;
    }
    return x;
}

/* Compute products of unaligned submatrices, which are smaller than the matrices of the plan. */
static void unaligned(void)
{
    const struct shape s = { 14, 33, 25, 7 };

    for (int i = 0; i < TYPES; i++) {
        const struct types t = types[i];
        const struct twin x = without_first(twin_random(t.x, s.n, s.in, s.pad));
        const struct twin w = without_first(twin_random(t.x, s.out, s.in, s.pad));
        const struct twin bias = without_first(twin_random(t.x, 2, s.out, s.pad));
        const struct twin y = without_first(twin_random(t.y, s.n, s.out, s.pad));
        const struct twin pre = without_first(twin_random(t.y, s.n, s.out, s.pad));
        const struct plans p = plans_new(t, s);

        MEG_CALL(cpu, NULL, linear_fwd, .plan = p.host, .y = y.host, .pre = pre.host, .x = x.host, .w = w.host,
                 .bias = bias.host.p, .act = MEG_ACT_GELU_TANH);
        MEG_CALL(gpu, stream, linear_fwd, .plan = p.dev, .y = y.dev, .pre = pre.dev, .x = x.dev, .w = w.dev,
                 .bias = bias.dev.p, .act = MEG_ACT_GELU_TANH);
        expect_near(&y, tolerance(t.y, MEG_ACT_GELU_TANH), "y");
        expect_near(&pre, tolerance(t.y, MEG_ACT_NONE), "pre");
        plans_free(p);
    }
}

/* Compute products of which one operand is not aligned.  The first epilogue that cuBLASLt supports is used. */
static void one_unaligned(void)
{
    const struct shape s = { 8, 32, 24, 0 };
    const struct types t = types[1];

    meg_cuda_device.is_deterministic = true;
    for (int i = 0; i < 6; i++) {
        const int64_t shift = i % 2 ? 1 : 4; /* by 2 or 8 bytes */
        struct twin x = twin_random(t.x, s.n, s.in + 8, 0), w = twin_random(t.x, s.out, s.in + 8, 0);
        struct twin bias = twin_random(t.x, 1, s.out + 8, 0), y = twin_output(t.y, s.n, s.out, 0);
        struct twin *const m = i / 2 == 0 ? &x : i / 2 == 1 ? &w : &bias;
        const struct plans p = plans_new(t, s);

        m->host.p = meg_element(m->host.p, shift, t.x);
        m->dev.p = meg_element(m->dev.p, shift, t.x);
        x.host.cols = x.dev.cols = w.host.cols = w.dev.cols = s.in;
        MEG_CALL(cpu, NULL, linear_fwd, .plan = p.host, .y = y.host, .x = x.host, .w = w.host, .bias = bias.host.p);
        MEG_CALL(gpu, stream, linear_fwd, .plan = p.dev, .y = y.dev, .x = x.dev, .w = w.dev, .bias = bias.dev.p);
        expect_near(&y, tolerance(t.y, MEG_ACT_NONE), "y");
        plans_free(p);
    }
    meg_cuda_device.is_deterministic = false;
}

/* The first micro-batch of a step sets gradients, and the next ones are added: these products differ in their plans. */
static void accumulated(void)
{
    meg_cuda_device.is_deterministic = true; /* use the first epilogue that cuBLASLt supports */
    for (int64_t in = 16; in < 48; in += 8)
        for (int accumulate = 0; accumulate < 2; accumulate++)
            compare_bwd_weight(types[2], (struct shape){ 16, in, 24, 0 }, true, accumulate);
    meg_cuda_device.is_deterministic = false;
}

/*
 * Run the same product several times: the first call creates a plan, which the later calls use.  m, n and k all
 * exceed a tile of the test double of cuBLASLt.
 */
static void repeated(void)
{
    const struct shape s = { 130, 160, 72, 0 };
    const struct types t = { MEG_DTYPE_BF16, MEG_DTYPE_BF16, MEG_DTYPE_F32 };
    const struct twin x = twin_random(t.x, s.n, s.in, 0), w = twin_random(t.x, s.out, s.in, 0);
    const struct twin y = twin_output(t.y, s.n, s.out, 0), dw = twin_random(t.dw, s.out, s.in, 0);
    const struct plans p = plans_new(t, s);

    MEG_CALL(cpu, NULL, linear_fwd, .plan = p.host, .y = y.host, .x = x.host, .w = w.host);
    for (int i = 0; i < 3; i++) {
        MEG_CALL(gpu, stream, linear_fwd, .plan = p.dev, .y = y.dev, .x = x.dev, .w = w.dev);
        expect_near(&y, op_tolerance(t.y), "y");
    }
    /* Timing an accumulated product must not change dw. */
    for (int i = 0; i < 2; i++) {
        MEG_CALL(cpu, NULL, linear_bwd_weight, .plan = p.host, .dw = dw.host, .dy = y.host, .x = x.host,
                 .accumulate = true);
        MEG_CALL(gpu, stream, linear_bwd_weight, .plan = p.dev, .dw = dw.dev, .dy = y.dev, .x = x.dev,
                 .accumulate = true);
    }
    expect_near(&dw, op_tolerance(MEG_DTYPE_BF16), "dw");
    plans_free(p);
}

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

/*
 * Choices are stored even if other lines of the file are damaged.  With --deterministic-mode, products are neither
 * timed nor stored.  Without it, products that differ only in the number of tokens are timed for at most four such
 * numbers.
 */
static void stored(void)
{
    const bool was_deterministic = meg_cuda_device.is_deterministic;
    const struct fwd_options with_bias = { .has_bias = true };
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
    compare_fwd(types[1], (struct shape){ 6, 80, 56, 0 }, with_bias);
    meg_cuda_device.is_deterministic = was_deterministic;
    for (int64_t n = 1; n < 7; n++)
        compare_fwd(types[1], (struct shape){ n, 88, 56, 0 }, with_bias);
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
    { "linear_fwd: types and shapes", fwd },
    { "linear_fwd: activations", fwd_act },
    { "linear_fwd: epilogues", fwd_epilogues },
    { "linear_fwd: unaligned and smaller than the plan", unaligned },
    { "linear_bwd_data: types, shapes and activations", bwd_data },
    { "linear_bwd_data: f32 pre-activations", bwd_data_pre },
    { "linear_bwd_weight: types and shapes", bwd_weight },
    { "linear: one operand is not aligned", one_unaligned },
    { "linear_bwd_weight: set, then accumulated", accumulated },
    { "linear: no tokens", empty },
    { "linear: repeated products", repeated },
    { "linear: refused types", refused },
    { "linear: stored algorithms", stored },
    { 0 },
};
