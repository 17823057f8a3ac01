/* check_xent.c - cases of cuda/xent.cu: cross-entropy. */
#include "check.h"
#include "cuda/internal.h"

static const enum meg_dtype types[] = { MEG_DTYPE_F32, MEG_DTYPE_BF16, MEG_DTYPE_F16 };
enum { TYPES = sizeof types / sizeof *types };

/*
 * Numbers of logits on both sides of the sizes of a vector, a warp and a block, and some for which a thread has several
 * vectors: 8192 = 256 threads * 4 vectors of 8.
 */
static const struct {
    int64_t v, pad;
} shapes[] = {
    { 1, 0 },     { 2, 6 },    { 7, 1 },    { 8, 0 },    { 257, 7 },
    { 1000, 24 }, { 2056, 0 }, { 8191, 0 }, { 8192, 8 }, { 17003, 5 },
};
enum { SHAPES = sizeof shapes / sizeof *shapes, ROWS = 5, V0 = 3000 };

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
 * Return targets of n rows for logits of ids [V0, V0 + v): the last id, the first, the ids before and after them, which
 * are on other shards, an ignored row, and random ids.
 */
static struct twin_bytes targets_random(int64_t n, int64_t v)
{
    int32_t target[64];

    for (int64_t r = 0; r < n; r++)
        target[r] = (int32_t)(V0 + op_below(v));
    target[0] = V0 + (int32_t)v - 1;
    if (n > 1)
        target[1] = V0;
    if (n > 2)
        target[2] = V0 - 1;
    if (n > 3)
        target[3] = V0 + (int32_t)v;
    if (n > 4)
        target[4] = -1;
    return twin_bytes(target, (size_t)n * sizeof *target);
}

static void compare_partial(const struct twin *x, struct twin_bytes target)
{
    const struct twin part = twin_output(MEG_DTYPE_F32, 2, x->host.rows, 0);

    MEG_CALL(cpu, NULL, xent_partial, .part = part.host.p, .logits = x->host, .target = target.host, .v0 = V0);
    MEG_CALL(gpu, stream, xent_partial, .part = part.dev.p, .logits = x->dev, .target = target.dev, .v0 = V0);
    expect_near(&part, 4e-5, "part"); /* the CPU sums 17003 exponentials in f32 */
}

static void partial_shapes(void)
{
    for (int k = 0; k < TYPES; k++)
        for (int i = 0; i < SHAPES; i++) {
            const struct twin x = logits_random(types[k], ROWS, shapes[i].v, shapes[i].pad);

            compare_partial(&x, targets_random(ROWS, shapes[i].v));
        }
}

/*
 * Begin with a row of zeros, whose lse is log(v), and set more and more logits to 12.  Both values are exact in bf16.
 */
static void partial_counts(void)
{
    for (int k = 0; k < TYPES; k++) {
        struct twin x = twin_output(types[k], 1, 9001, 7);

        for (int64_t c = 0; c < 9001; c++)
            twin_set(&x, 0, c, 0);
        twin_upload(&x);
        compare_partial(&x, targets_random(1, 9001));
        for (int64_t c = 0; c < 9001; c += 1000) { /* a thread that ignores one of these columns changes the result */
            twin_set(&x, 0, c, 12);
            twin_upload(&x);
            compare_partial(&x, targets_random(1, 9001));
        }
    }
}

/* Logits of -infinity, as of padded ids, have probability 0, even if a thread finds no other logit in a row. */
static void partial_infinite(void)
{
    struct twin x = twin_random(MEG_DTYPE_F32, 3, 3000, 0);

    for (int64_t c = 0; c < 3000; c++) {
        if (c != 2999)
            twin_set(&x, 0, c, -INFINITY);
        if (c < 2048)
            twin_set(&x, 1, c, -INFINITY);
    }
    twin_set(&x, 2, 17, -INFINITY);
    twin_upload(&x);
    compare_partial(&x, targets_random(3, 3000));
}

static void partial_nan(void)
{
    struct twin x = twin_random(MEG_DTYPE_BF16, 4, 2500, 4);

    twin_set(&x, 0, 2499, NAN);
    twin_set(&x, 2, 0, NAN);
    twin_set(&x, 3, 1200, INFINITY);
    twin_upload(&x);
    compare_partial(&x, targets_random(4, 2500));
}

static void combine(void)
{
    static const int64_t lengths[] = { 1, 127, 129, 400 };
    static const float z_losses[] = { 0, 0.03f };

    for (int i = 0; i < 4; i++)
        for (int64_t nparts = 1; nparts <= 3; nparts++)
            for (int z = 0; z < 2; z++) {
                const int64_t n = lengths[i];
                struct twin part = twin_random(MEG_DTYPE_F32, 2 * nparts, n, 0);
                const struct twin out = twin_output(MEG_DTYPE_F32, 2, n, 0);
                struct twin_bytes target;
                int32_t ids[400];

                for (int64_t r = 0; r < n; r++)
                    ids[r] = (int32_t)op_below(5) - 1;
                target = twin_bytes(ids, (size_t)n * sizeof *ids);
                for (int64_t k = 0; k < 2 * nparts; k += 2)
                    for (int64_t r = 0; r < n; r++)
                        twin_set(&part, k, r, 60 * twin_get(&part, k, r));
                if (nparts > 1)
                    twin_set(&part, 0, 0, -INFINITY);
                twin_upload(&part);
                MEG_CALL(cpu, NULL, xent_combine, .loss = out.host.p, .lse = (float *)out.host.p + n,
                         .part = part.host.p, .target = target.host, .nparts = nparts, .n = n, .z_loss = z_losses[z]);
                MEG_CALL(gpu, stream, xent_combine, .loss = out.dev.p, .lse = (float *)out.dev.p + n,
                         .part = part.dev.p, .target = target.dev, .nparts = nparts, .n = n, .z_loss = z_losses[z]);
                expect_near(&out, 1e-6, "loss and lse");
            }
}

/* The weights of n rows in both memories: those that a bit mask selects. */
enum { MASK = 1, SCALE = 2, LOSS_SCALE = 4, ALL_WEIGHTS = 7 };
static void random_weights(struct meg_loss_weight *host, struct meg_loss_weight *dev, int64_t n, int weights)
{
    const struct twin mask = twin_random(MEG_DTYPE_F32, 1, n, 0);
    const struct twin_bytes scale = twin_bytes(&(double){ 0.37 }, sizeof(double));
    const struct twin_bytes loss_scale = twin_bytes(&(double){ 1024 }, sizeof(double));

    *host = *dev = (struct meg_loss_weight){ 0 };
    if (weights & MASK)
        host->mask = mask.host.p, dev->mask = mask.dev.p;
    if (weights & SCALE)
        host->scale = scale.host, dev->scale = scale.dev;
    if (weights & LOSS_SCALE)
        host->loss_scale = loss_scale.host, dev->loss_scale = loss_scale.dev;
}

/* Call xent_bwd of the CPU and the CUDA backend, both with the lse that the CPU computed, and compare the gradients. */
static void compare_bwd(const struct twin *x, struct twin_bytes target, float z_loss, int weights)
{
    const int64_t n = x->host.rows;
    const enum meg_dtype t = x->host.dtype;
    struct twin lse = twin_output(MEG_DTYPE_F32, 2, n, 0);
    struct meg_loss_weight host, dev;

    random_weights(&host, &dev, n, weights);
    MEG_CALL(cpu, NULL, xent_partial, .part = lse.host.p, .logits = x->host, .target = target.host, .v0 = V0);
    twin_upload(&lse);
    MEG_CALL(cpu, NULL, xent_bwd, .logits = x->host, .lse = lse.host.p, .target = target.host, .v0 = V0,
             .z_loss = z_loss, .weight = host);
    MEG_CALL(gpu, stream, xent_bwd, .logits = x->dev, .lse = lse.dev.p, .target = target.dev, .v0 = V0,
             .z_loss = z_loss, .weight = dev);
    expect_near(x, t == MEG_DTYPE_F32 ? 1e-6 : op_tolerance(t), "gradient");
}

static void bwd_shapes(void)
{
    for (int k = 0; k < TYPES; k++)
        for (int i = 0; i < SHAPES; i++) {
            const struct twin x = logits_random(types[k], ROWS, shapes[i].v, shapes[i].pad);

            compare_bwd(&x, targets_random(ROWS, shapes[i].v), 0, 0);
        }
}

static void bwd_weights(void)
{
    for (int k = 0; k < TYPES; k++)
        for (int i = 0; i < 16; i++) {
            const struct twin x = logits_random(types[k], 6, 300, 4);

            compare_bwd(&x, targets_random(6, 300), i & 8 ? 1e-3f : 0, i & ALL_WEIGHTS);
        }
}

/*
 * Without a target on this shard, the gradient is the softmax.  With a target, an error of the softmax would be small
 * compared with the gradient of the target's logit.
 */
static void bwd_softmax(void)
{
    for (int k = 0; k < TYPES; k++) {
        const struct twin x = logits_random(types[k], 2, 9000, 0);
        const int32_t target[2] = { 0, V0 + 9000 };

        compare_bwd(&x, twin_bytes(target, sizeof target), 0, 0);
    }
}

/* The gradient of an ignored row is 0, even if its logits are not finite. */
static void bwd_ignored(void)
{
    struct twin x = twin_random(MEG_DTYPE_F32, 2, 2100, 3);
    const int32_t target[2] = { -1, V0 + 1 };

    for (int64_t c = 0; c < 2100; c++)
        twin_set(&x, 0, c, c % 2 ? NAN : INFINITY);
    twin_upload(&x);
    compare_bwd(&x, twin_bytes(target, sizeof target), 0, 0);
}

/*
 * Call xent_fwd_bwd of both backends, as on a GPU of compute capability cc with one multiprocessor, on which a block
 * processes several rows.  Compare the gradients with tolerance tol.
 */
static void compare_fwd_bwd(const struct twin *x, struct twin_bytes target, float z_loss, int weights, int cc,
                            double tol)
{
    const struct meg_cuda_device device = meg_cuda_device;
    const struct twin loss = twin_output(MEG_DTYPE_F32, 1, x->host.rows, 0);
    struct meg_loss_weight host, dev;

    random_weights(&host, &dev, x->host.rows, weights);
    meg_cuda_device.num_sms = 1;
    meg_cuda_device.cc = cc;
    MEG_CALL(cpu, NULL, xent_fwd_bwd, .loss = loss.host.p, .logits = x->host, .target = target.host, .z_loss = z_loss,
             .weight = host);
    MEG_CALL(gpu, stream, xent_fwd_bwd, .loss = loss.dev.p, .logits = x->dev, .target = target.dev, .z_loss = z_loss,
             .weight = dev);
    meg_cuda_device = device;
    expect_near(&loss, 4e-5, "loss");
    expect_near(x, tol, "gradient");
}

static double gradient_tolerance(enum meg_dtype t)
{
    return t == MEG_DTYPE_F32 ? 4e-5 : op_tolerance(t); /* 4e-5: the tolerance of lse */
}

/* Return targets of n rows for v logits: the last id, the first, an ignored row, and random ids. */
static struct twin_bytes unsplit_targets(int64_t n, int64_t v)
{
    int32_t target[64];

    for (int64_t r = 0; r < n; r++)
        target[r] = r == 0 ? (int32_t)v - 1 : r == 1 ? 0 : r == 2 ? -1 : (int32_t)op_below(v);
    return twin_bytes(target, (size_t)n * sizeof *target);
}

static void fwd_bwd_shapes(void)
{
    for (int k = 0; k < TYPES; k++)
        for (int i = 0; i < SHAPES; i++) {
            const int64_t n = shapes[i].v < 1000 ? 40 : 7;
            const struct twin x = logits_random(types[k], n, shapes[i].v, shapes[i].pad);

            compare_fwd_bwd(&x, unsplit_targets(n, shapes[i].v), 0, 0, 90, gradient_tolerance(types[k]));
        }
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
            compare_fwd_bwd(&x, unsplit_targets(n, rows[i].v), 0, 0, rows[i].cc, 2e-4 + gradient_tolerance(rows[i].t));
    }
}

static void fwd_bwd_weights(void)
{
    for (int k = 0; k < TYPES; k++)
        for (int i = 0; i < 16; i++) {
            const struct twin x = logits_random(types[k], 12, 1100, 4);

            compare_fwd_bwd(&x, unsplit_targets(12, 1100), i & 8 ? 1e-3f : 0, i & ALL_WEIGHTS, 90,
                            gradient_tolerance(types[k]));
        }
}

/*
 * With a large z-loss, the gradient is almost the softmax.  Otherwise, an error of the softmax would be small compared
 * with the gradient of the target's logit.
 */
static void fwd_bwd_softmax(void)
{
    for (int k = 0; k < TYPES; k++) {
        const struct twin x = twin_random(types[k], 3, 9003, 5);

        compare_fwd_bwd(&x, unsplit_targets(3, 9003), 1e4f, 0, 90, gradient_tolerance(types[k]));
    }
}

/*
 * Ignored rows before, between and after others have the loss 0 and the gradient 0, even if their logits are not
 * finite.
 */
static void fwd_bwd_ignored(void)
{
    for (int64_t pad = 4; pad <= 5; pad++) {
        const int32_t target[10] = { -1, -1, -1, 7, -1, -1, 0, 2099, -1, -1 };
        struct twin x = twin_random(MEG_DTYPE_F32, 10, 2100, pad);

        for (int64_t r = 0; r < 10; r++)
            for (int64_t c = 0; c < 2100 && target[r] < 0; c++)
                twin_set(&x, r, c, c % 2 ? NAN : INFINITY);
        twin_upload(&x);
        compare_fwd_bwd(&x, twin_bytes(target, sizeof target), 1e-3f, 0, 90, 4e-5);
    }
}

static void fwd_bwd_not_finite(void)
{
    const int32_t target[6] = { 0, 1, 1201, 2499, 3, 4 };

    for (int k = 0; k < TYPES; k++) {
        struct twin x = twin_random(types[k], 6, 2500, 4);

        twin_set(&x, 0, 2499, NAN);
        twin_set(&x, 1, 0, NAN);
        twin_set(&x, 2, 1200, INFINITY);
        for (int64_t c = 0; c < 2500; c++) {
            if (c != 2499)
                twin_set(&x, 3, c, -INFINITY);
            twin_set(&x, 4, c, -INFINITY);
            if (c > 4)
                twin_set(&x, 5, c, -INFINITY);
        }
        twin_upload(&x);
        compare_fwd_bwd(&x, twin_bytes(target, sizeof target), 0, 0, 90, gradient_tolerance(types[k]));
    }
}

static void no_rows(void)
{
    const struct twin x = twin_output(MEG_DTYPE_BF16, 0, 10, 0), part = twin_output(MEG_DTYPE_F32, 1, 2, 0);
    const struct twin_bytes target = twin_bytes("", 1);
    const struct meg_loss_weight weight = { 0 };

    MEG_CALL(gpu, stream, xent_partial, .part = part.dev.p, .logits = x.dev, .target = target.dev);
    MEG_CALL(gpu, stream, xent_combine, .loss = part.dev.p, .lse = part.dev.p, .part = part.dev.p, .target = target.dev,
             .nparts = 1);
    MEG_CALL(gpu, stream, xent_bwd, .logits = x.dev, .lse = part.dev.p, .target = target.dev, .weight = weight);
    MEG_CALL(gpu, stream, xent_fwd_bwd, .loss = part.dev.p, .logits = x.dev, .target = target.dev, .weight = weight);
    expect_equal(&part, "part");
}

const struct check_case cases_xent[] = {
    { "xent_partial: shapes and types", partial_shapes },
    { "xent_partial: each logit counts once", partial_counts },
    { "xent_partial: logits of -infinity", partial_infinite },
    { "xent_partial: logits that are not finite", partial_nan },
    { "xent_combine: parts and z-loss", combine },
    { "xent_bwd: shapes and types", bwd_shapes },
    { "xent_bwd: mask, loss scale and z-loss", bwd_weights },
    { "xent_bwd: softmax without a target", bwd_softmax },
    { "xent_bwd: ignored rows", bwd_ignored },
    { "xent_fwd_bwd: shapes and types", fwd_bwd_shapes },
    { "xent_fwd_bwd: rows that do not fit into shared memory once or twice", fwd_bwd_long },
    { "xent_fwd_bwd: mask, loss scale and z-loss", fwd_bwd_weights },
    { "xent_fwd_bwd: softmax", fwd_bwd_softmax },
    { "xent_fwd_bwd: ignored rows", fwd_bwd_ignored },
    { "xent_fwd_bwd: logits that are not finite", fwd_bwd_not_finite },
    { "xent_*: no rows", no_rows },
    { NULL, NULL },
};
