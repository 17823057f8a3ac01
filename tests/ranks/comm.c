/*
 * Test of all collectives for each dtype and several sizes on the ranks of a launcher.  Values are functions of rank
 * and element, so that each rank can compute the expected result.  Rank 0 prints TAP.
 *
 * With the argument "host", test host collectives only.  With the arguments "loop S", count steps, each of which is a
 * barrier with a timeout of S seconds, until a signal ends the process.  With the arguments "stuck S", rank 1 does not
 * call an all-reduce of the other ranks, which wait for its result for at most S seconds.  With the arguments "task S N
 * R", the other ranks wait in a barrier with a timeout of S seconds while rank R runs a task of N seconds.  After that
 * barrier, rank R calls the next one only after 30 seconds.  With an argument N, also test a message and a broadcast of
 * N bf16 elements.  For N = 2147483651, a rank requires 13 GB of memory; with a GPU, 9 GB on the GPU
 * and 4 GB on the host.
 */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"
#include "comm/comm.h"
#include "comm/internal.h"
#include "device/device.h"
#include "tensor/half.h"

static struct meg_comm *w;
static const struct meg_device *d; /* NULL: test host collectives only */
static int tests, failed;

/* Report a check, which passes if it passes on all ranks. */
static void ok(int is_ok, const char *what)
{
    int32_t bad = !is_ok;

    meg_host_all_reduce(w, &bad, 1, MEG_DTYPE_I32, MEG_REDUCE_MAX);
    tests++;
    failed += bad;
    if (w->rank == 0)
        printf("%sok %d - %s\n", bad ? "not " : "", tests, what);
}

/* Return a small multiple of 0.5, which is exact in every floating-point type; integer types store its floor. */
static double value(int rank, int64_t i)
{
    return (double)((rank * 7 + i * 3) % 23) - 11 + 0.5 * (double)(i % 2);
}

static void put(void *p, int64_t i, enum meg_dtype t, double v)
{
    switch (t) {
    case MEG_DTYPE_F32: ((float *)p)[i] = (float)v; break;
    case MEG_DTYPE_F64: ((double *)p)[i] = v; break;
    case MEG_DTYPE_BF16: ((uint16_t *)p)[i] = meg_to_bf16((float)v); break;
    case MEG_DTYPE_F16: ((uint16_t *)p)[i] = meg_to_f16((float)v); break;
    case MEG_DTYPE_I32: ((int32_t *)p)[i] = (int32_t)floor(v); break;
    default: ((int64_t *)p)[i] = (int64_t)floor(v); break;
    }
}

static double get(const void *p, int64_t i, enum meg_dtype t)
{
    switch (t) {
    case MEG_DTYPE_F32: return ((const float *)p)[i];
    case MEG_DTYPE_F64: return ((const double *)p)[i];
    case MEG_DTYPE_BF16: return meg_from_bf16(((const uint16_t *)p)[i]);
    case MEG_DTYPE_F16: return meg_from_f16(((const uint16_t *)p)[i]);
    case MEG_DTYPE_I32: return ((const int32_t *)p)[i];
    default: return (double)((const int64_t *)p)[i];
    }
}

static double expected(int rank, int64_t i, enum meg_dtype t)
{
    return t == MEG_DTYPE_I32 || t == MEG_DTYPE_I64 ? floor(value(rank, i)) : value(rank, i);
}

static double reduced(int64_t i, enum meg_dtype t, enum meg_reduce_op op)
{
    double a = expected(0, i, t);

    for (int r = 1; r < w->size; r++)
        a = op == MEG_REDUCE_SUM ? a + expected(r, i, t) : fmax(a, expected(r, i, t));
    return a;
}

static void *filled(int64_t n, enum meg_dtype t)
{
    void *p = meg_new((size_t)n * meg_dtype_size(t) + 1);

    for (int64_t i = 0; i < n; i++)
        put(p, i, t, value(w->rank, i));
    return p;
}

/* ---- tensors ---- */

static size_t nbytes_of(int64_t n, enum meg_dtype t)
{
    return (size_t)n * meg_dtype_size(t);
}

/* Return a tensor with the n values of `host`. */
static void *to_device(const void *host, int64_t n, enum meg_dtype t)
{
    void *p = d->op->alloc(nbytes_of(n, t) + 1);

    d->op->upload(d->compute, p, host, nbytes_of(n, t));
    return p;
}

/* Copy a tensor of n values to `host` and release it. */
static void from_device(void *host, void *tensor, int64_t n, enum meg_dtype t)
{
    meg_device_read(d, d->compute, host, tensor, nbytes_of(n, t));
    d->op->release(tensor);
}

/*
 * Each of the functions below copies its host buffers to the device, calls the collective of comm.h, and copies the
 * result back.
 */

static void tensor_all_reduce(void *buf, int64_t n, enum meg_dtype t, enum meg_reduce_op op)
{
    void *x = to_device(buf, n, t);

    meg_all_reduce(w, d->compute, x, n, t, op);
    from_device(buf, x, n, t);
}

static void tensor_reduce_scatter(struct meg_comm *c, void *out, const void *in, int64_t n, enum meg_dtype t,
                                  enum meg_reduce_op op)
{
    void *x = to_device(in, n * c->size, t), *y = to_device(out, n, t);

    meg_reduce_scatter(c, d->compute, y, x, n, t, op);
    from_device(out, y, n, t);
    d->op->release(x);
}

static void tensor_all_gather(void *out, const void *in, int64_t n, enum meg_dtype t)
{
    void *x = to_device(in, n, t), *y = to_device(out, n * w->size, t);

    meg_all_gather(w, d->compute, y, x, n, t);
    from_device(out, y, n * w->size, t);
    d->op->release(x);
}

static void tensor_all_to_all(struct meg_comm *c, void *out, const void *in, int64_t n, enum meg_dtype t)
{
    void *x = to_device(in, n * c->size, t), *y = to_device(out, n * c->size, t);

    meg_all_to_all(c, d->compute, y, x, n, t);
    from_device(out, y, n * c->size, t);
    d->op->release(x);
}

/* Start an operation of the world on buf [n]. */
static struct meg_work *start(enum meg_comm_op op, void *buf, int64_t n, enum meg_dtype t, int peer)
{
    return w->op->start(w, d->compute, &(struct meg_comm_call){ op, buf, buf, n, t, 0, peer });
}

static void tensor_broadcast(void *buf, int64_t n, enum meg_dtype t, int root)
{
    void *x = to_device(buf, n, t);

    meg_comm_wait(w, d->compute, start(MEG_BROADCAST, x, n, t, root));
    from_device(buf, x, n, t);
}

/* ---- collectives ---- */

static int is_reduced(const void *buf, int64_t first, int64_t n, enum meg_dtype t, enum meg_reduce_op op)
{
    for (int64_t i = 0; i < n; i++)
        if (get(buf, i, t) != reduced(first + i, t, op))
            return 0;
    return 1;
}

static void reductions(enum meg_dtype t, int64_t n)
{
    char what[80];

    for (int op = MEG_REDUCE_SUM; op <= MEG_REDUCE_MAX; op++) {
        const char *name = op == MEG_REDUCE_SUM ? "sum" : "max";
        void *buf = filled(n, t), *tensor = filled(n, t), *in = filled(n * w->size, t),
             *part = meg_new((size_t)n * 8 + 1);

        meg_host_all_reduce(w, buf, n, t, op);
        snprintf(what, sizeof what, "host all-reduce %s of %" PRId64 " %s", name, n, meg_dtype_name(t));
        ok(is_reduced(buf, 0, n, t, op), what);
        if (d) {
            tensor_all_reduce(tensor, n, t, op);
            snprintf(what, sizeof what, "all-reduce %s of %" PRId64 " %s", name, n, meg_dtype_name(t));
            ok(is_reduced(tensor, 0, n, t, op), what);
            tensor_reduce_scatter(w, part, in, n, t, op);
            snprintf(what, sizeof what, "reduce-scatter %s of %" PRId64 " %s", name, n, meg_dtype_name(t));
            ok(is_reduced(part, w->rank * n, n, t, op), what);
        }
        free(buf);
        free(tensor);
        free(in);
        free(part);
    }
}

/* Test an all-reduce of more elements than a chunk. */
static void chunks(void)
{
    const int64_t n = meg_all_reduce_chunk(w->size) + 5;
    void *buf = filled(n, MEG_DTYPE_BF16);

    tensor_all_reduce(buf, n, MEG_DTYPE_BF16, MEG_REDUCE_SUM);
    ok(is_reduced(buf, 0, n, MEG_DTYPE_BF16, MEG_REDUCE_SUM), "an all-reduce in chunks");
    free(buf);
}

/* Return whether `all` [size * n] has the values of all ranks. */
static int is_gathered(const void *all, int64_t n, enum meg_dtype t)
{
    for (int64_t i = 0; i < n * w->size; i++)
        if (get(all, i, t) != expected((int)(i / n), i % n, t))
            return 0;
    return 1;
}

/* Return whether buf [n] has the values of rank `root`. */
static int is_from(int root, const void *buf, int64_t n, enum meg_dtype t)
{
    for (int64_t i = 0; i < n; i++)
        if (get(buf, i, t) != expected(root, i, t))
            return 0;
    return 1;
}

static void copies(enum meg_dtype t, int64_t n)
{
    const int root = w->size - 1;
    void *in = filled(n, t), *tensor = filled(n, t), *all = meg_new((size_t)(n * w->size) * 8 + 1),
         *parts = filled(n * w->size, t);
    int good;
    char what[80];

    meg_host_all_gather(w, all, in, n, t);
    good = is_gathered(all, n, t);
    meg_host_broadcast(w, in, n, t, root);
    good &= is_from(root, in, n, t);
    snprintf(what, sizeof what, "host all-gather, broadcast of %" PRId64 " %s", n, meg_dtype_name(t));
    ok(good, what);
    if (d) {
        memset(all, 0, (size_t)(n * w->size) * meg_dtype_size(t));
        tensor_all_gather(all, tensor, n, t);
        good = is_gathered(all, n, t);
        tensor_all_to_all(w, all, parts, n, t);
        for (int64_t i = 0; i < n * w->size; i++)
            good &= get(all, i, t) == expected((int)(i / n), w->rank * n + i % n, t);
        tensor_broadcast(tensor, n, t, root);
        good &= is_from(root, tensor, n, t);
        snprintf(what, sizeof what, "all-gather, all-to-all, broadcast of %" PRId64 " %s", n, meg_dtype_name(t));
        ok(good, what);
    }
    free(in);
    free(tensor);
    free(all);
    free(parts);
}

/* Test two messages to the next rank of a ring, all of which are started before the first wait. */
static void messages(void)
{
    const int next = (w->rank + 1) % w->size, before = (w->rank + w->size - 1) % w->size;
    const float values[2] = { (float)w->rank, (float)(w->rank + 100) };
    float got[2] = { -1, -1 }, *out = to_device(values, 2, MEG_DTYPE_F32), *in = to_device(got, 2, MEG_DTYPE_F32);
    struct meg_work *work[4];

    work[0] = start(MEG_RECV, &in[0], 1, MEG_DTYPE_F32, before);
    work[1] = start(MEG_RECV, &in[1], 1, MEG_DTYPE_F32, before);
    work[2] = start(MEG_SEND, &out[0], 1, MEG_DTYPE_F32, next);
    work[3] = start(MEG_SEND, &out[1], 1, MEG_DTYPE_F32, next);
    for (int i = 0; i < 4; i++)
        meg_comm_wait(w, d->compute, work[i]);
    from_device(got, in, 2, MEG_DTYPE_F32);
    d->op->release(out);
    ok(got[0] == (float)before && got[1] == (float)(before + 100), "messages in a ring are received in order");
}

/* Test a message of n elements to the next rank of a ring, and a broadcast of n elements. */
static void large(int64_t n)
{
    const int next = (w->rank + 1) % w->size, before = (w->rank + w->size - 1) % w->size;
    void *values = filled(n, MEG_DTYPE_BF16), *out = to_device(values, n, MEG_DTYPE_BF16),
         *in = d->op->alloc(nbytes_of(n, MEG_DTYPE_BF16));
    struct meg_work *work[2] = { start(MEG_RECV, in, n, MEG_DTYPE_BF16, before),
                                 start(MEG_SEND, out, n, MEG_DTYPE_BF16, next) };
    int good;
    char what[80];

    for (int i = 0; i < 2; i++)
        meg_comm_wait(w, d->compute, work[i]);
    from_device(values, in, n, MEG_DTYPE_BF16);
    good = is_from(before, values, n, MEG_DTYPE_BF16);
    meg_comm_wait(w, d->compute, start(MEG_BROADCAST, out, n, MEG_DTYPE_BF16, 1));
    from_device(values, out, n, MEG_DTYPE_BF16);
    good &= is_from(1, values, n, MEG_DTYPE_BF16);
    snprintf(what, sizeof what, "a message and a broadcast of %" PRId64 " elements", n);
    ok(good, what);
    free(values);
}

#ifdef MEG_HAVE_MPI
/* Test counts above the limit of an MPI call, which is lowered for the test. */
static void derived_types(void)
{
    const int64_t max = meg_mpi_max_count;

    meg_mpi_max_count = 7;
    for (int64_t n = 6; n <= 15; n++) {
        reductions(MEG_DTYPE_F32, n);
        copies(MEG_DTYPE_BF16, n);
    }
    if (w->size > 1)
        large(1000);
    meg_mpi_max_count = max;
}
#endif

/* Test that sums with rounding errors are equal on all ranks and are added in rank order. */
static void order(void)
{
    enum { N = 1000 };
    float buf[N], tensor[N];
    int good = 1;

    for (int i = 0; i < N; i++)
        tensor[i] = buf[i] = 1.0f / (float)(3 + w->rank * N + i);
    meg_host_all_reduce(w, buf, N, MEG_DTYPE_F32, MEG_REDUCE_SUM);
    if (d)
        tensor_all_reduce(tensor, N, MEG_DTYPE_F32, MEG_REDUCE_SUM);
    for (int i = 0; i < N; i++) {
        float sum = 1.0f / (float)(3 + i);

        for (int r = 1; r < w->size; r++)
            sum += 1.0f / (float)(3 + r * N + i);
        good &= sum == buf[i] && (!d || sum == tensor[i]);
    }
    ok(good, "sums are added in rank order");
}

static void groups(void)
{
    struct meg_comm *half = meg_comm_split(w, w->rank % 2, "half");
    int32_t sum = w->rank, want = 0;

    for (int r = w->rank % 2; r < w->size; r += 2)
        want += r;
    meg_host_all_reduce(half, &sum, 1, MEG_DTYPE_I32, MEG_REDUCE_SUM);
    ok(sum == want && half->rank == w->rank / 2, "a split group is in world order");
    if (d) { /* the group is closed while the operation is in progress */
        int32_t tensor_sum = w->rank;
        void *x = to_device(&tensor_sum, 1, MEG_DTYPE_I32);

        meg_all_reduce(half, d->compute, x, 1, MEG_DTYPE_I32, MEG_REDUCE_SUM);
        meg_comm_close(half);
        from_device(&tensor_sum, x, 1, MEG_DTYPE_I32);
        ok(tensor_sum == want, "an operation is complete when its group is closed");
    } else {
        meg_comm_close(half);
    }
}

/* Test that the bytes sent equal the formulas of comm.h. */
static void volumes(void)
{
    enum { N = 24 };
    struct meg_comm *g = meg_comm_split(w, 0, "all");
    const double n = g->size;
    float *in = filled(N * g->size, MEG_DTYPE_F32), *out = filled(N * g->size, MEG_DTYPE_F32);
    double want = 0;

    meg_host_all_reduce(g, in, N, MEG_DTYPE_F32, MEG_REDUCE_SUM);
    ok(g->nbytes_sent == (want += 2 * (n - 1) * N * 4 / n), "bytes sent by an all-reduce");
    meg_host_all_gather(g, out, in, N, MEG_DTYPE_F32);
    ok(g->nbytes_sent == (want += (n - 1) * N * 4), "bytes sent by an all-gather");
    if (d) {
        tensor_reduce_scatter(g, out, in, N, MEG_DTYPE_BF16, MEG_REDUCE_SUM);
        ok(g->nbytes_sent == (want += (n - 1) * N * 2), "bytes sent by a reduce-scatter");
        tensor_all_to_all(g, out, in, N, MEG_DTYPE_F32);
        ok(g->nbytes_sent == (want += (n - 1) * N * 4), "bytes sent by an all-to-all");
    }
    meg_host_barrier(g);
    ok(g->nbytes_sent == want, "a barrier sends nothing");
    meg_comm_close(g);
    free(in);
    free(out);
}

static void signals(void)
{
    struct sigaction a;

    sigaction(SIGTERM, NULL, &a);
    ok(a.sa_flags & SA_ONSTACK, "the watchdog handles SIGTERM on the alternate stack (cpu/gemm.c)");
}

static void loop(struct meg_comm_world *world, double timeout_s) MEG_NORETURN;
static void loop(struct meg_comm_world *world, double timeout_s)
{
    meg_comm_set_timeout(w, timeout_s);
    meg_comm_watchdog_open(world, timeout_s);
    for (int64_t step = 1;; step++) {
        meg_watchdog_set_step(w->watchdog, step);
        meg_host_barrier(w);
        if (w->rank == 0)
            printf("step %" PRId64 "\n", step);
        fflush(stdout);
        usleep(10000);
    }
}

static void task(struct meg_comm_world *world, double timeout_s, double task_s, int in_task) MEG_NORETURN;
static void task(struct meg_comm_world *world, double timeout_s, double task_s, int in_task)
{
    meg_comm_set_timeout(w, timeout_s);
    meg_comm_watchdog_open(world, timeout_s);
    for (int64_t step = 1; step < 3; step++)
        meg_watchdog_set_step(w->watchdog, step);
    meg_host_barrier(w);
    if (w->rank == in_task) {
        meg_watchdog_task_begin(w->watchdog, "building the index of x");
        printf("begun\n");
        fflush(stdout);
        for (const double start = meg_now_s(); meg_now_s() - start < task_s;)
            usleep(10000);
        meg_watchdog_task_end(w->watchdog);
    }
    meg_host_barrier(w);
    if (w->rank == in_task) {
        printf("ended\n");
        fflush(stdout);
        sleep(30);
    }
    meg_host_barrier(w);
    exit(0);
}

static void stuck(void) MEG_NORETURN;
static void stuck(void)
{
    const float zero = 0;
    void *x = to_device(&zero, 1, MEG_DTYPE_F32);

    for (int64_t step = 1; step < 3; step++)
        meg_watchdog_set_step(w->watchdog, step);
    if (w->rank != 1) {
        meg_all_reduce(w, d->compute, x, 1, MEG_DTYPE_F32, MEG_REDUCE_SUM);
        meg_device_synchronize(d, d->compute);
    }
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    static const enum meg_dtype types[] = { MEG_DTYPE_F32, MEG_DTYPE_F64, MEG_DTYPE_BF16,
                                            MEG_DTYPE_F16, MEG_DTYPE_I32, MEG_DTYPE_I64 };
    /* 1025 f32 have more than MEG_ALL_REDUCE_SMALL bytes. */
    static const int64_t sizes[] = { 1, 3, 1000, 1025 };
    const struct meg_device_conf conf = { .device = MEG_DEVICE_AUTO };
    const int is_host = argc > 1 && strcmp(argv[1], "host") == 0, is_stuck = argc > 2 && strcmp(argv[1], "stuck") == 0;
    const double timeout_s = is_stuck ? strtod(argv[2], NULL) : 60;
    struct meg_comm_world world;
    struct meg_err e;
    float nan = 0;

    if (meg_comm_open(&world, &e) < 0)
        meg_die_err(&e);
    w = world.world;
    if (argc > 2 && strcmp(argv[1], "loop") == 0)
        loop(&world, strtod(argv[2], NULL));
    if (argc > 4 && strcmp(argv[1], "task") == 0)
        task(&world, strtod(argv[2], NULL), strtod(argv[3], NULL), atoi(argv[4]));
    meg_comm_set_timeout(w, timeout_s);
    meg_comm_watchdog_open(&world, timeout_s);
    if (!is_host && (meg_device_open(&d, &conf, &e) < 0 || meg_comm_open_tensors(w, d, &e) < 0))
        meg_die_err(&e);
    if (is_stuck)
        stuck();
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
            reductions(types[t], sizes[n]);
            copies(types[t], sizes[n]);
        }
    reductions(MEG_DTYPE_F32, 2000003);
    if (d && w->size == 2) /* more ranks would need more memory */
        chunks();
    if (d && w->size > 1)
        messages();
#ifdef MEG_HAVE_MPI
    if (d)
        derived_types();
#endif
    if (d && argc > 1)
        large(strtoll(argv[1], NULL, 10));
    order();
    groups();
    if (w->size > 1)
        volumes();
    if (meg_watchdog_is_open(w->watchdog))
        signals();
    nan = w->rank == w->size - 1 ? NAN : 1;
    meg_host_all_reduce(w, &nan, 1, MEG_DTYPE_F32, MEG_REDUCE_MAX);
    ok(isnan(nan), "the maximum with a NaN is a NaN");
    meg_host_barrier(w);
    if (w->rank == 0)
        printf("1..%d\n", tests);
    meg_comm_watchdog_close(&world);
    meg_comm_close(w);
    return failed != 0;
}
