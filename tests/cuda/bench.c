/*
 * bench.c - measure the operations of the CUDA backend, most of them with cases of tests/ops, and print TSV:
 * microseconds, GB/s or TFLOP/s, and the ratio to the bandwidth of a copy of 1 GiB or to the rate of the first matrix
 * product.  Each time is the median of five rounds of calls that are queued one after the other.  Matrices are random,
 * and the operands of an operation do not fit in the L2 cache.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../ops/ops.h"
#include "base/clock.h"
#include "base/mem.h"
#include "device/device.h"
#include "plan/count_ops.h"
#include "tensor/half.h"
#include "tensor/suballoc.h"

static const struct meg_device *device;
static const struct meg_ops *op;
static struct meg_stream *stream;

/* ---- operands ---- */

/* Return device memory of random bf16 numbers in [-1, 1), which are also valid as f32. */
static void *random_memory(size_t nbytes)
{
    enum { N = 1 << 20 };
    static uint16_t numbers[N];
    static uint32_t x = 1;
    char *p = op->alloc(nbytes);

    if (!p)
        meg_die(MEG_EFAIL, "out of device memory");
    for (int i = 0; i < N; i++) {
        x = x * 1664525 + 1013904223;
        numbers[i] = meg_to_bf16((float)(int32_t)x * 0x1p-31f);
    }
    for (size_t at = 0; at < nbytes; at += sizeof numbers)
        op->upload(stream, p + at, numbers, nbytes - at < sizeof numbers ? nbytes - at : sizeof numbers);
    return p;
}

static struct meg_mat random_mat(enum meg_dtype t, int64_t rows, int64_t cols)
{
    return meg_mat(random_memory((size_t)(rows * cols) * meg_dtype_size(t)), t, rows, cols);
}

/* ---- timing ---- */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

enum { ROUNDS = 5 };

/* Return the median seconds of a call of f(arg). */
static double time_of(void (*f)(void *arg), void *arg)
{
    double s[ROUNDS];
    int n = 2;

    f(arg);
    meg_device_synchronize(device, stream);
    for (int round = -1; round < ROUNDS; round++) {
        const double start = meg_now_s();

        for (int i = 0; i < n; i++)
            f(arg);
        meg_device_synchronize(device, stream);
        if (round < 0) /* choose n for rounds of about 20 ms */
            n = 1 + (int)(0.02 * n / (meg_now_s() - start));
        else
            s[round] = (meg_now_s() - start) / n;
    }
    qsort(s, ROUNDS, sizeof *s, compare);
    return s[ROUNDS / 2];
}

static double copy_rate, product_rate;

/* Print a line for an operation that moves nbytes of device memory. */
static void report_bytes(const char *name, double nbytes, void (*f)(void *arg), void *arg)
{
    const double s = time_of(f, arg);

    if (copy_rate == 0)
        copy_rate = nbytes / s;
    printf("%s\t%.1f\t%.0f GB/s\t%.2f\n", name, 1e6 * s, 1e-9 * nbytes / s, nbytes / s / copy_rate);
    fflush(stdout);
}

/* Print a line for an operation of nflops floating-point operations. */
static void report_flops(const char *name, double nflops, void (*f)(void *arg), void *arg)
{
    const double s = time_of(f, arg);

    if (product_rate == 0)
        product_rate = nflops / s;
    printf("%s\t%.1f\t%.0f TFLOP/s\t%.2f\n", name, 1e6 * s, 1e-12 * nflops / s, nflops / s / product_rate);
    fflush(stdout);
}

/* ---- the cases of tests/ops ---- */

struct bench_call {
    const struct op_call *c;
    const void *args;
};

static void call(void *arg)
{
    const struct bench_call *b = arg;

    b->c->test->call(op, stream, b->args);
}

/* Return the bytes that a call moves and the FLOPs, as the planner counts them, or the bytes of all arrays. */
static struct cost_pass count(const struct op_call *c, const void *args)
{
    static const struct meg_hardware hw = { 0 };
    struct cost_pass pass = { 0 };
    struct cost_counter counter = { .hw = &hw, .threads = 1, .pass = &pass };

    c->test->call(&cost_count_ops, (struct meg_stream *)(void *)&counter, args);
    if (pass.flops + pass.nbytes > 0)
        return pass;
    for (int i = 0; i < c->n; i++) {
        const struct op_tensor *t = &c->tensor[i];
        const double nbytes = (double)t->numel * (double)meg_dtype_size(t->dtype);

        pass.nbytes += (t->role & MEG_ROLE_IN ? nbytes : 0) + (t->role & MEG_ROLE_OUT ? nbytes : 0);
    }
    return pass;
}

/* Measure a case.  Its name is the operation, the sizes, and the optional tensors that are present. */
static void bench_op(struct op_call *c)
{
    void *memory[OP_MAX_TENSORS], *const workspace = op->alloc(op_workspace_nbytes(c, op));
    struct bench_call b = { .c = c };
    struct cost_pass pass;
    struct op_args args;
    char name[200];
    size_t n = (size_t)snprintf(name, sizeof name, "%s", c->test->row->name);

    for (int i = 0; i < c->sizes.n && n < sizeof name; i++)
        n += (size_t)snprintf(name + n, sizeof name - n, " %.*s=%" PRId64, c->sizes.size[i].len, c->sizes.size[i].name,
                              c->sizes.size[i].value);
    for (int i = 0; i < c->n; i++) {
        const struct op_tensor *t = &c->tensor[i];

        if (n < sizeof name && (t->field || t->role & MEG_ROLE_OPTIONAL))
            n += (size_t)snprintf(name + n, sizeof name - n, ", %s", t->name);
        memory[i] = t->init ? op->alloc(t->nbytes) : random_memory(t->nbytes);
        if (t->init)
            op->upload(stream, memory[i], t->init, t->nbytes);
    }
    args = op_args_of(c, op, memory, workspace);
    b.args = args.args;
    pass = count(c, args.args);
    if (pass.flops > 0)
        report_flops(name, pass.flops, call, &b);
    else
        report_bytes(name, pass.nbytes, call, &b);
    op_args_free(&args);
    for (int i = 0; i < c->n; i++)
        op->release(memory[i]);
    op->release(workspace);
}

static void bench_ops(void)
{
    const struct op_test *t;

    op_is_large = true;
    op_run = bench_op;
    for (int i = 0; (t = op_test_at(i)); i++)
        if (t->bench)
            t->bench();
}

/* ---- copies, column sums and sampling ---- */

enum { N = 16384, H = 4096, V = 50304 };

struct copy {
    char *dst, *src;
    size_t nbytes;
};

static void copy(void *arg)
{
    const struct copy *x = arg;

    op->copy(stream, x->dst, x->src, x->nbytes);
}

static void column_sums(void *arg)
{
    const struct meg_add_bwd_args *a = arg;

    op->add_bwd(stream, a);
}

/* Operands of sampling the next token of each of SEQUENCES sequences from f32 logits. */
enum { SEQUENCES = 64 };
struct sampling {
    struct meg_mat logits;
    struct meg_sampling_args *args;
    struct meg_sampled_token *token;
};

static void sample(void *arg)
{
    const struct sampling *x = arg;

    MEG_CALL(op, stream, sample, .token = x->token, .logits = x->logits, .unpadded_vocab = V, .args = x->args,
             .workspace = (struct meg_workspace){ 0 });
}

static void report_sample(const char *what, struct sampling *x, struct meg_sampling_args of_row)
{
    struct meg_sampling_args args[SEQUENCES];

    for (int i = 0; i < SEQUENCES; i++) {
        args[i] = of_row;
        args[i].u = (i + 0.5) / SEQUENCES;
    }
    op->upload(stream, x->args, args, sizeof args);
    report_bytes(what, (double)SEQUENCES * V * 4, sample, x);
}

static void bench_sample(void)
{
    struct sampling x = { .logits = random_mat(MEG_DTYPE_F32, SEQUENCES, V),
                          .args = op->alloc(SEQUENCES * sizeof *x.args),
                          .token = op->alloc(SEQUENCES * sizeof *x.token) };

    report_sample("sample [64,50304], greedy", &x, (struct meg_sampling_args){ .temperature = 0 });
    report_sample("sample", &x, (struct meg_sampling_args){ .temperature = 0.5 });
    report_sample("sample, top-k 50", &x, (struct meg_sampling_args){ .temperature = 0.5, .top_k = 50 });
    report_sample("sample, top-p 0.9", &x, (struct meg_sampling_args){ .temperature = 0.5, .top_p = 0.9 });
    report_sample("  with few likely tokens", &x, (struct meg_sampling_args){ .temperature = 0.03, .top_p = 0.9 });
}

/* 128 and 64 MiB: as much traffic as of 2 and 1 of the matrices below. */
static void bench_copies(void)
{
    static const size_t mib[] = { 1024, 128, 64 };
    struct copy x = { random_memory(mib[0] << 20), random_memory(mib[0] << 20), 0 };
    char name[32];

    for (int i = 0; i < 3; i++) {
        x.nbytes = mib[i] << 20;
        snprintf(name, sizeof name, "copy of %zu MiB", mib[i]);
        report_bytes(name, 2.0 * (double)x.nbytes, copy, &x);
    }
    op->release(x.dst);
    op->release(x.src);
}

static void bench_column_sums(void)
{
    const struct meg_mat x = random_mat(MEG_DTYPE_BF16, N, H);
    struct meg_add_bwd_args a = { .dy = x, .dbias = random_memory(H * 4), .dz = x, .accumulate = true };

    report_bytes("add_bwd, dbias only", (double)N * H * 2, column_sums, &a);
    op->release(x.p);
    op->release(a.dbias);
}

/* ---- AdamW ---- */

struct update {
    struct meg_update_arrays x;
    struct meg_update_range *range;
    struct meg_step_hparams *step;
};

enum { RANGES = 148 };

static void adamw(void *arg)
{
    const struct update *u = arg;
    const struct meg_adam adam = { 0.9f, 0.95f, 1e-8f };

    MEG_CALL(op, stream, adamw, .arrays = &u->x, .range = u->range, .nranges = RANGES, .adam = &adam, .step = u->step);
}

static void bench_update(const char *name, int64_t n, enum meg_dtype grad, enum meg_dtype state, double nbytes)
{
    const size_t size = meg_dtype_size(state), nrange = RANGES * sizeof(struct meg_update_range);
    struct meg_update_range *range = meg_new(nrange);
    const struct meg_step_hparams step = {
        .lr = { 1e-4f, 1e-4f }, .adam_c1 = 1, .adam_c2 = 1, .grad_scale = 1, .update = 1
    };
    struct update u = {
        .x = { { random_memory((size_t)n * 4), MEG_DTYPE_F32 },
               { random_memory((size_t)n * meg_dtype_size(grad)), grad },
               { { op->alloc((size_t)n * size), state }, { op->alloc((size_t)n * size), state } },
               { op->alloc((size_t)n * 2), MEG_DTYPE_BF16 },
               1 },
        .range = op->alloc(nrange),
        .step = op->alloc(sizeof step),
    };

    for (int i = 0; i < RANGES; i++) {
        const int64_t begin = n / RANGES / 8 * 8 * i, end = i + 1 < RANGES ? n / RANGES / 8 * 8 * (i + 1) : n;

        range[i] = (struct meg_update_range){ .begin = begin,
                                              .end = end,
                                              .wd_mult = 1,
                                              .lr_mult = 1,
                                              .row = (uint32_t)i,
                                              .cols = end - begin,
                                              .ld = end - begin };
    }
    op->upload(stream, u.range, range, nrange);
    op->upload(stream, u.step, &step, sizeof step);
    report_bytes(name, nbytes * (double)n, adamw, &u);
    free(range);
    op->release(u.x.w.p);
    op->release(u.x.g.p);
    op->release(u.x.state[0].p);
    op->release(u.x.state[1].p);
    op->release(u.x.copy.p);
}

int main(void)
{
    const struct meg_device_conf conf = { .device = MEG_DEVICE_CUDA };
    struct meg_err e;

    if (meg_device_open(&device, &conf, &e) < 0)
        meg_die_err(&e);
    op = device->op;
    stream = device->compute;
    printf("operation\tus\trate\tratio\n");
    bench_copies();
    bench_column_sums();
    bench_ops();
    bench_sample();
    bench_update("adamw, 400M f32, bf16 g and copy", 400000000, MEG_DTYPE_BF16, MEG_DTYPE_F32, 4 * 2 + 2 + 8 * 2 + 2);
    bench_update("adamw, f32 g", 400000000, MEG_DTYPE_F32, MEG_DTYPE_F32, 4 * 2 + 4 + 8 * 2 + 2);
    bench_update("adamw, bf16 states", 400000000, MEG_DTYPE_BF16, MEG_DTYPE_BF16, 4 * 2 + 2 + 4 * 2 + 2);
    return 0;
}
