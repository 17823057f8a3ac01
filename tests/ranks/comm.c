/*
 * Test of all collectives for each type and several sizes on the ranks of a launcher.  Values are functions of rank and
 * element, so that each rank can compute the expected result.  Rank 0 prints TAP.
 *
 * With an argument N, also test a message and a broadcast of N elements.  For N = 2147483651, a rank requires 9 GB.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "comm/comm.h"
#include "comm/internal.h"
#include "tensor/half.h"

static struct meg_comm *w;
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

/* Return a small integer or half, which is exact in every type. */
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

static void reductions(enum meg_dtype t, int64_t n)
{
    char what[80];

    for (int op = MEG_REDUCE_SUM; op <= MEG_REDUCE_MAX; op++) {
        void *buf = filled(n, t), *in = filled(n * w->size, t), *part = meg_new((size_t)n * 8 + 1);
        int good = 1;

        meg_host_all_reduce(w, buf, n, t, op);
        for (int64_t i = 0; i < n; i++)
            good &= get(buf, i, t) == reduced(i, t, op);
        snprintf(what, sizeof what, "all-reduce %s of %" PRId64 " %s", op == MEG_REDUCE_SUM ? "sum" : "max", n,
                 meg_dtype_name(t));
        ok(good, what);

        meg_reduce_scatter(w, NULL, part, in, n, t, op);
        good = 1;
        for (int64_t i = 0; i < n; i++)
            good &= get(part, i, t) == reduced(w->rank * n + i, t, op);
        snprintf(what, sizeof what, "reduce-scatter %s of %" PRId64 " %s", op == MEG_REDUCE_SUM ? "sum" : "max", n,
                 meg_dtype_name(t));
        ok(good, what);
        free(buf);
        free(in);
        free(part);
    }
}

/* Test an all-reduce of more elements than a chunk. */
static void chunks(void)
{
    const int64_t n = meg_all_reduce_chunk(w->size) + 5;
    void *buf = filled(n, MEG_DTYPE_BF16);
    int good = 1;

    meg_host_all_reduce(w, buf, n, MEG_DTYPE_BF16, MEG_REDUCE_SUM);
    for (int64_t i = 0; i < n; i++)
        good &= get(buf, i, MEG_DTYPE_BF16) == reduced(i, MEG_DTYPE_BF16, MEG_REDUCE_SUM);
    ok(good, "an all-reduce in chunks");
    free(buf);
}

static void copies(enum meg_dtype t, int64_t n)
{
    void *in = filled(n, t), *all = meg_new((size_t)(n * w->size) * 8 + 1), *parts = filled(n * w->size, t);
    int good = 1;
    char what[80];

    meg_host_all_gather(w, all, in, n, t);
    for (int64_t i = 0; i < n * w->size; i++)
        good &= get(all, i, t) == expected((int)(i / n), i % n, t);
    meg_all_to_all(w, NULL, all, parts, n, t);
    for (int64_t i = 0; i < n * w->size; i++)
        good &= get(all, i, t) == expected((int)(i / n), w->rank * n + i % n, t);
    meg_host_broadcast(w, in, n, t, w->size - 1);
    for (int64_t i = 0; i < n; i++)
        good &= get(in, i, t) == expected(w->size - 1, i, t);
    snprintf(what, sizeof what, "all-gather, all-to-all, broadcast of %" PRId64 " %s", n, meg_dtype_name(t));
    ok(good, what);
    free(in);
    free(all);
    free(parts);
}

/* Test two messages to the next rank of a ring, all of which are started before the first wait. */
static void messages(void)
{
    const int next = (w->rank + 1) % w->size, before = (w->rank + w->size - 1) % w->size;
    float out[2] = { (float)w->rank, (float)(w->rank + 100) }, in[2] = { -1, -1 };
    struct meg_work *work[4];

    work[0] = w->op->recv(w, NULL, &in[0], 1, MEG_DTYPE_F32, before);
    work[1] = w->op->recv(w, NULL, &in[1], 1, MEG_DTYPE_F32, before);
    work[2] = w->op->send(w, NULL, &out[0], 1, MEG_DTYPE_F32, next);
    work[3] = w->op->send(w, NULL, &out[1], 1, MEG_DTYPE_F32, next);
    for (int i = 0; i < 4; i++)
        meg_comm_wait(w, NULL, work[i]);
    ok(in[0] == (float)before && in[1] == (float)(before + 100), "messages in a ring are received in order");
}

/* Test a message of n elements to the next rank of a ring, and a broadcast of n elements. */
static void large(int64_t n)
{
    const int next = (w->rank + 1) % w->size, before = (w->rank + w->size - 1) % w->size;
    void *out = filled(n, MEG_DTYPE_BF16), *in = meg_new((size_t)n * 2);
    struct meg_work *work[2] = { w->op->recv(w, NULL, in, n, MEG_DTYPE_BF16, before),
                                 w->op->send(w, NULL, out, n, MEG_DTYPE_BF16, next) };
    int good = 1;
    char what[80];

    for (int i = 0; i < 2; i++)
        meg_comm_wait(w, NULL, work[i]);
    for (int64_t i = 0; i < n; i++)
        good &= get(in, i, MEG_DTYPE_BF16) == expected(before, i, MEG_DTYPE_BF16);
    meg_host_broadcast(w, out, n, MEG_DTYPE_BF16, 1);
    for (int64_t i = 0; i < n; i++)
        good &= get(out, i, MEG_DTYPE_BF16) == expected(1, i, MEG_DTYPE_BF16);
    snprintf(what, sizeof what, "a message and a broadcast of %" PRId64 " elements", n);
    ok(good, what);
    free(out);
    free(in);
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
    float buf[N];
    int good = 1;

    for (int i = 0; i < N; i++)
        buf[i] = 1.0f / (float)(3 + w->rank * N + i);
    meg_host_all_reduce(w, buf, N, MEG_DTYPE_F32, MEG_REDUCE_SUM);
    for (int i = 0; i < N; i++) {
        float sum = 1.0f / (float)(3 + i);

        for (int r = 1; r < w->size; r++)
            sum += 1.0f / (float)(3 + r * N + i);
        good &= sum == buf[i];
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
    meg_comm_close(half);
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
    meg_reduce_scatter(g, NULL, out, in, N, MEG_DTYPE_BF16, MEG_REDUCE_SUM);
    ok(g->nbytes_sent == (want += (n - 1) * N * 2), "bytes sent by a reduce-scatter");
    meg_host_all_gather(g, out, in, N, MEG_DTYPE_F32);
    ok(g->nbytes_sent == (want += (n - 1) * N * 4), "bytes sent by an all-gather");
    meg_all_to_all(g, NULL, out, in, N, MEG_DTYPE_F32);
    ok(g->nbytes_sent == (want += (n - 1) * N * 4), "bytes sent by an all-to-all");
    meg_host_barrier(g);
    ok(g->nbytes_sent == want, "a barrier sends nothing");
    meg_comm_close(g);
    free(in);
    free(out);
}

int main(int argc, char **argv)
{
    static const enum meg_dtype types[] = { MEG_DTYPE_F32, MEG_DTYPE_F64, MEG_DTYPE_BF16,
                                            MEG_DTYPE_F16, MEG_DTYPE_I32, MEG_DTYPE_I64 };
    /* 1025 f32 are more than MEG_ALL_REDUCE_SMALL. */
    static const int64_t sizes[] = { 1, 3, 1000, 1025 };
    struct meg_comm_world world;
    struct meg_err e;
    float nan = 0;

    if (meg_comm_open(&world, &e) < 0)
        meg_die_err(&e);
    w = world.world;
    meg_comm_set_timeout(w, 60);
    meg_comm_watchdog_open(&world, 60);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
            reductions(types[t], sizes[n]);
            copies(types[t], sizes[n]);
        }
    reductions(MEG_DTYPE_F32, 2000003);
    if (w->size == 2) /* more ranks would need more memory */
        chunks();
    if (w->size > 1)
        messages();
#ifdef MEG_HAVE_MPI
    derived_types();
#endif
    if (argc > 1)
        large(strtoll(argv[1], NULL, 10));
    order();
    groups();
    if (w->size > 1)
        volumes();
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
