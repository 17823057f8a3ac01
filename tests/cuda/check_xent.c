/* check_xent.c - cases of xent_fwd_bwd that depend on the shared memory of a GPU; see tests/ops for others. */
#include "check.h"
#include "cuda/internal.h"

/*
 * Return random logits that increase on average from left to right, so that the maximum changes often.  Their offset
 * differs by row.
 */
static struct twin logits_random(enum meg_dtype t, int64_t rows, int64_t v, int64_t pad)
{
    struct twin x = twin_random(t, rows, v, pad);

    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < v; c++)
            twin_set(&x, r, c, 4 * twin_get(&x, r, c) + 3 * (float)c / (float)v + 100 * (float)(r % 3 - 1));
    twin_upload(&x);
    return x;
}

/*
 * Call xent_fwd_bwd of both backends, as on a GPU of compute capability cc with one multiprocessor, on which a block
 * processes several rows.  Compare the gradients with tolerance tol.
 */
static void compare_fwd_bwd(const struct twin *x, struct twin_bytes target, int cc, double tol)
{
    const struct meg_cuda_device device = meg_cuda_device;
    const struct twin loss = twin_output(MEG_DTYPE_F32, 1, x->host.rows, 0);

    meg_cuda_device.num_sms = 1;
    meg_cuda_device.cc = cc;
    MEG_CALL(cpu, NULL, xent_fwd_bwd, .loss = loss.host.p, .logits = x->host, .target = target.host);
    MEG_CALL(gpu, stream, xent_fwd_bwd, .loss = loss.dev.p, .logits = x->dev, .target = target.dev);
    meg_cuda_device = device;
    expect_near(&loss, 4e-5, "loss");
    expect_near(x, tol, "gradient");
}

/* Return targets of n rows for v logits: the last id, the first, an ignored row, and random ids. */
static struct twin_bytes unsplit_targets(int64_t n, int64_t v)
{
    int32_t target[64];

    for (int64_t r = 0; r < n; r++)
        target[r] = r == 0 ? (int32_t)v - 1 : r == 1 ? 0 : r == 2 ? -1 : (int32_t)op_below(v);
    return twin_bytes(target, (size_t)n * sizeof *target);
}

/* Return whether the GPU has at least the shared memory of a GPU of compute capability cc (meg_cuda_max_shared). */
static bool has_shared_memory_of(int cc)
{
    const int own = meg_cuda_device.cc;
    const int64_t most = meg_cuda_max_shared();
    int64_t required;

    meg_cuda_device.cc = cc;
    required = meg_cuda_max_shared();
    meg_cuda_device.cc = own;
    return required <= most;
}

/*
 * Compare with rows of which two, one or none fit into the shared memory of a multiprocessor, so that a block has 512
 * or 1024 threads.  Rows have complete or incomplete vectors, and are aligned or not.
 */
static void fwd_bwd_long(void)
{
    static const struct {
        enum meg_dtype t;
        int cc;
        int64_t v, pad;
    } rows[] = {
        { MEG_DTYPE_BF16, 86, 24003, 5 },  { MEG_DTYPE_BF16, 86, 30003, 5 },   { MEG_DTYPE_BF16, 86, 50624, 0 },
        { MEG_DTYPE_F16, 86, 50625, 7 },   { MEG_DTYPE_BF16, 89, 60003, 4 },   { MEG_DTYPE_BF16, 120, 67019, 5 },
        { MEG_DTYPE_F32, 86, 30001, 3 },   { MEG_DTYPE_BF16, 80, 84000, 0 },   { MEG_DTYPE_F32, 87, 45000, 0 },
        { MEG_DTYPE_BF16, 90, 117001, 7 }, { MEG_DTYPE_BF16, 103, 117001, 7 },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int64_t n = rows[i].v < 100000 ? 4 : 2;
        const struct twin x = logits_random(rows[i].t, n, rows[i].v, rows[i].pad);

        if (has_shared_memory_of(rows[i].cc))
            compare_fwd_bwd(&x, unsplit_targets(n, rows[i].v), rows[i].cc,
                            2e-4 + (rows[i].t == MEG_DTYPE_F32 ? 4e-5 : op_tolerance(rows[i].t)));
    }
}

const struct check_case cases_xent[] = {
    { "xent_fwd_bwd: rows that do not fit into shared memory once or twice", fwd_bwd_long },
    { NULL, NULL },
};
