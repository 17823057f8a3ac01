/*
 * check.c - run the cases of tests/ops and of tests/cuda/check_*.c, and print TAP.
 *     check [--seed N] [PREFIX...]     run the cases whose names begin with a PREFIX; by default, all
 */
#include "check.h"
#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "tensor/half.h"

const struct meg_ops *cpu, *gpu;
struct meg_stream *stream;

static int nfailures;                   /* of the case that runs */
static const struct op_group *group;    /* that runs, or NULL */
static const struct op_call *described; /* the first message describes this call */

void check_fail(const char *fmt, ...)
{
    enum { MAX_MESSAGES = 10 };
    va_list ap;

    if (++nfailures > MAX_MESSAGES)
        return;
    va_start(ap, fmt);
    fputs("#   ", stdout);
    vprintf(fmt, ap);
    if (described) {
        printf("; %s", op_describe(described));
        described = NULL;
    }
    putchar('\n');
    va_end(ap);
}

/* ---- memory ---- */

/*
 * Device memory of the twins of a case.  Each block has a guard before and after it, which must not change.  Chunks are
 * used again in the next case, because their allocation takes time.
 */
enum { GUARD = 256, CHUNK_NBYTES = 16 << 20 };

struct chunk {
    struct chunk *next;
    char *dev;
    size_t nbytes, used;
};
static struct chunk *chunks;

struct block {
    struct block *next;
    const struct chunk *chunk;
    void *host;
    size_t offset, nbytes; /* range in the chunk, without the guards around it */
};
static struct block *blocks;

static void synchronize(void)
{
    struct meg_event *e = gpu->event_create();

    gpu->event_record(stream, e);
    while (!gpu->event_is_done(e))
        sched_yield();
    gpu->event_destroy(e);
}

/* Return a copy of device memory, which is valid until the next call. */
static void *download(const void *dev, size_t nbytes)
{
    static void *pinned;
    static size_t pinned_nbytes;

    if (nbytes > pinned_nbytes) {
        if (pinned)
            gpu->release_pinned(pinned);
        pinned_nbytes = 2 * nbytes;
        pinned = gpu->alloc_pinned(pinned_nbytes);
    }
    if (nbytes) {
        gpu->download(stream, pinned, dev, nbytes);
        synchronize();
    }
    return pinned;
}

/* Return a chunk with at least nbytes that are not used. */
static struct chunk *chunk_for(size_t nbytes)
{
    struct chunk *c = chunks;

    while (c && c->nbytes - c->used < nbytes)
        c = c->next;
    if (c)
        return c;
    c = meg_new(sizeof *c);
    c->nbytes = nbytes > CHUNK_NBYTES ? nbytes : CHUNK_NBYTES;
    c->dev = gpu->alloc(c->nbytes);
    if (!c->dev)
        meg_die(MEG_EFAIL, "out of memory: cannot allocate %zu bytes", c->nbytes);
    c->next = chunks;
    chunks = c;
    return c;
}

/* Allocate nbytes in both memories, filled with NaN.  Return the device memory, and set *host to the host memory. */
static char *block_new(void **host, size_t nbytes)
{
    const size_t total = (nbytes + 3 * GUARD - 1) / GUARD * GUARD;
    struct chunk *c = chunk_for(total);
    struct block *b = meg_new(sizeof *b);
    void *nan = memset(meg_new(total), 0xff, total);

    *b = (struct block){ blocks, c, aligned_alloc(64, (nbytes + 64) / 64 * 64), c->used + GUARD, nbytes };
    blocks = b;
    gpu->upload(stream, c->dev + c->used, nan, total);
    free(nan);
    c->used += total;
    *host = memset(b->host, 0xff, nbytes);
    return c->dev + b->offset;
}

static bool is_nan_bytes(const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != 0xff)
            return false;
    return true;
}

/* Check the guards of all blocks, and free the blocks. */
static void end_case(void)
{
    for (struct chunk *c = chunks; c; c = c->next) {
        const unsigned char *p = download(c->dev, c->used);

        for (const struct block *b = blocks; b; b = b->next) {
            if (b->chunk != c)
                continue;
            if (!is_nan_bytes(p + b->offset - GUARD, GUARD))
                check_fail("device memory before a buffer of %zu bytes has changed", b->nbytes);
            if (!is_nan_bytes(p + b->offset + b->nbytes, GUARD))
                check_fail("device memory behind a buffer of %zu bytes has changed", b->nbytes);
        }
        c->used = 0;
    }
    for (struct block *b; (b = blocks);) {
        blocks = b->next;
        free(b->host);
        free(b);
    }
}

/* ---- twins ---- */

static float get(const void *p, enum meg_dtype t, int64_t i)
{
    switch (t) {
    case MEG_DTYPE_F32: return ((const float *)p)[i];
    case MEG_DTYPE_BF16: return meg_from_bf16(((const uint16_t *)p)[i]);
    case MEG_DTYPE_F16: return meg_from_f16(((const uint16_t *)p)[i]);
    default: meg_die(MEG_EFAIL, "a matrix of type %s", meg_dtype_name(t));
    }
}

float twin_get(const struct twin *x, int64_t r, int64_t c)
{
    return get(x->host.p, x->host.dtype, r * x->host.ld + c);
}

void twin_set(struct twin *x, int64_t r, int64_t c, float v)
{
    meg_dtype_from_f32(meg_element(x->host.p, r * x->host.ld + c, x->host.dtype), x->host.dtype, &v, 1);
}

/* Return the number of bytes from the first to the last element of a matrix. */
static size_t mat_nbytes(struct meg_mat m)
{
    return m.rows && m.cols ? (size_t)((m.rows - 1) * m.ld + m.cols) * meg_dtype_size(m.dtype) : 0;
}

void twin_upload(const struct twin *x)
{
    gpu->upload(stream, x->dev.p, x->host.p, mat_nbytes(x->host));
}

struct twin twin_output(enum meg_dtype t, int64_t rows, int64_t cols, int64_t pad)
{
    const int64_t ld = cols + pad;
    void *host, *dev = block_new(&host, (size_t)(rows * ld) * meg_dtype_size(t));

    return (struct twin){ { host, t, rows, cols, ld }, { dev, t, rows, cols, ld } };
}

struct twin twin_random(enum meg_dtype t, int64_t rows, int64_t cols, int64_t pad)
{
    struct twin x = twin_output(t, rows, cols, pad);

    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            twin_set(&x, r, c, (float)op_uniform());
    twin_upload(&x);
    return x;
}

struct twin_bytes twin_bytes(const void *data, size_t nbytes)
{
    void *host, *dev = block_new(&host, nbytes);

    if (nbytes)
        memcpy(host, data, nbytes);
    gpu->upload(stream, dev, data, nbytes);
    return (struct twin_bytes){ host, dev, nbytes };
}

/* ---- comparisons ---- */

void difference_add(struct difference *d, int64_t r, int64_t c, double got, double want)
{
    double error = fabs(got - want);

    if (got == want || (isnan(got) && isnan(want)))
        error = 0;
    if (!isfinite(error)) {
        error = INFINITY;
        d->num_special++;
    } else {
        d->error2 += error * error;
        d->norm2 += isfinite(want) ? want * want : 0;
    }
    if (error > d->most) {
        d->most = error;
        d->r = r;
        d->c = c;
        d->got = got;
        d->want = want;
    }
}

void expect_small(const struct difference *d, double tol, const char *what)
{
    const double error = sqrt(d->error2), norm = sqrt(d->norm2);

    if (d->num_special || error > tol * norm)
        check_fail("%s: relative error %.3g, at most %.3g is allowed; [%" PRId64 ",%" PRId64
                   "] is %.9g, not %.9g; %" PRId64 " NaN or Inf on one side",
                   what, error / norm, tol, d->r, d->c, d->got, d->want, d->num_special);
}

void expect_near(const struct twin *x, double tol, const char *what)
{
    struct difference d = { 0 };
    const struct meg_mat m = x->host;
    const void *dev = download(x->dev.p, mat_nbytes(m));

    for (int64_t r = 0; r < m.rows; r++) {
        for (int64_t c = 0; c < m.cols; c++)
            difference_add(&d, r, c, get(dev, m.dtype, r * m.ld + c), twin_get(x, r, c));
        for (int64_t c = m.cols; c < m.ld && r + 1 < m.rows; c++)
            if (isnan(twin_get(x, r, c)) && !isnan(get(dev, m.dtype, r * m.ld + c)))
                check_fail("%s: element %" PRId64 " behind row %" PRId64 " has changed", what, c - m.cols, r);
    }
    expect_small(&d, tol, what);
}

void expect_near_f64(const struct twin_bytes *x, double tol, const char *what)
{
    struct difference d = { 0 };
    const double *dev = download(x->dev, x->nbytes);

    for (int64_t i = 0; i < (int64_t)(x->nbytes / sizeof *dev); i++)
        difference_add(&d, 0, i, dev[i], ((const double *)x->host)[i]);
    expect_small(&d, tol, what);
}

void twin_bytes_read(void *to, const struct twin_bytes *x)
{
    memcpy(to, download(x->dev, x->nbytes), x->nbytes);
}

void twin_download(struct twin *x)
{
    memcpy(x->host.p, download(x->dev.p, mat_nbytes(x->host)), mat_nbytes(x->host));
}

/* Fail at the first byte of dev that differs from that of host. */
static void expect_bytes(const void *host, const void *dev, size_t nbytes, const char *what)
{
    const unsigned char *h = host, *d = download(dev, nbytes);
    size_t i = 0;

    while (i < nbytes && h[i] == d[i])
        i++;
    if (i < nbytes)
        check_fail("%s: byte %zu of %zu is 0x%02x, not 0x%02x", what, i, nbytes, d[i], h[i]);
}

void expect_equal(const struct twin *x, const char *what)
{
    expect_bytes(x->host.p, x->dev.p, mat_nbytes(x->host), what);
}

/* ---- cases ---- */

static bool is_selected(const char *name, char *const *prefix)
{
    if (!*prefix)
        return true;
    for (; *prefix; prefix++)
        if (!strncmp(name, *prefix, strlen(*prefix)))
            return true;
    return false;
}

/* Run a case or a group of them, unless it is not selected, and return whether it fails. */
static bool run(const char *name, void (*f)(void), char *const *prefix, uint64_t seed, int *number)
{
    if (!is_selected(name, prefix))
        return false;
    nfailures = 0;
    op_seed(seed, name);
    f();
    end_case();
    printf("%sok %d - %s\n", nfailures ? "not " : "", ++*number, name);
    fflush(stdout);
    return nfailures > 0;
}

static void run_op(struct op_call *c)
{
    described = c;
    check_op(c, group);
    end_case();
    described = NULL;
}

int main(int argc, char **argv)
{
    static const struct check_case *const files[] = {
        cases_elementwise, cases_embedding, cases_xent,  cases_reduce,
        cases_linear,      cases_attention, cases_cudnn, cases_graph,
    };
    const struct op_test *t;
    struct meg_err e = { 0 };
    uint64_t seed = 1, id;
    int n = 0, nfailed = 0;

    argv++;
    if (argc > 2 && !strcmp(argv[0], "--seed")) {
        seed = strtoull(argv[1], NULL, 10);
        argv += 2;
    }
    if (meg_cuda_open(&gpu, &id, 0, false, &e) < 0)
        meg_die(MEG_EFAIL, "%s", e.msg);
    cpu = meg_cpu_ops();
    stream = gpu->stream_create("check");
    op_run = run_op;
    for (int i = 0; (t = op_test_at(i)); i++)
        for (const struct op_group *g = t->group; g->what; g++) {
            char name[120];

            snprintf(name, sizeof name, "%s: %s", t->row->name, g->what);
            group = g;
            nfailed += !g->is_cpu_only && run(name, g->cases, argv, seed, &n);
        }
    group = NULL;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        for (const struct check_case *c = files[i]; c && c->name; c++)
            nfailed += run(c->name, c->run, argv, seed, &n);
    gpu->stream_destroy(stream);
    printf("1..%d\n", n);
    return nfailed > 0;
}
