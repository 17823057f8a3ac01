/* check_optim.c - cases of adamw, sgd and step_finish. */
#include <stddef.h>
#include <string.h>
#include "check.h"

enum { SEED = 42 };

/* Arrays of an optimizer step; each begins at element `shift` of its twin. */
struct arrays {
    struct twin w, g, state[2], copy; /* host.p is NULL if an array is absent */
    int64_t shift;
};

static struct meg_array array_of(struct meg_mat m, int64_t shift)
{
    return (struct meg_array){ m.p ? meg_element(m.p, shift, m.dtype) : NULL, m.dtype };
}

static struct meg_update_arrays host_arrays(const struct arrays *a)
{
    return (struct meg_update_arrays){
        .w = array_of(a->w.host, a->shift),
        .g = array_of(a->g.host, a->shift),
        .state = { array_of(a->state[0].host, a->shift), array_of(a->state[1].host, a->shift) },
        .copy = array_of(a->copy.host, a->shift),
        .seed = SEED,
    };
}

static struct meg_update_arrays dev_arrays(const struct arrays *a)
{
    return (struct meg_update_arrays){
        .w = array_of(a->w.dev, a->shift),
        .g = array_of(a->g.dev, a->shift),
        .state = { array_of(a->state[0].dev, a->shift), array_of(a->state[1].dev, a->shift) },
        .copy = array_of(a->copy.dev, a->shift),
        .seed = SEED,
    };
}

/* The types of the arrays.  MEG_DTYPE_I32 as the type of the copy means that there is no copy. */
struct types {
    enum meg_dtype w, g, state[2], copy;
};

static struct arrays arrays_new(const struct types *t, int64_t n, int64_t shift, bool has_second_state)
{
    struct arrays a = { .shift = shift };

    a.w = twin_random(t->w, 1, n + shift, 0);
    a.g = twin_random(t->g, 1, n + shift, 0);
    a.state[0] = twin_random(t->state[0], 1, n + shift, 0);
    if (has_second_state) {
        a.state[1] = twin_random(t->state[1], 1, n + shift, 0);
        for (int64_t i = 0; i < n + shift; i++) /* the second moment is not negative */
            twin_set(&a.state[1], 0, i, fabsf(twin_get(&a.state[1], 0, i)));
        twin_upload(&a.state[1]);
    }
    if (t->copy != MEG_DTYPE_I32)
        a.copy = twin_output(t->copy, 1, n + shift, 0);
    return a;
}

/*
 * Compare an array.  A difference in the last bit of f32 changes the result of stochastic rounding to bf16 with a
 * probability of about 2^-16 per element.  With other random numbers, the relative error would be about 3e-3.
 */
static void expect_array(const struct twin *x, const char *what)
{
    if (x->host.p)
        expect_near(x, x->host.dtype == MEG_DTYPE_F32 ? 1e-6 : 2e-4, what);
}

static void expect_arrays(const struct arrays *a)
{
    expect_array(&a->w, "w");
    expect_equal(&a->g, "g");
    expect_array(&a->state[0], "state 0");
    expect_array(&a->state[1], "state 1");
    expect_array(&a->copy, "copy");
}

/* Hyper-parameters with which an update changes each array by much more than the tolerance. */
static const struct meg_step_hparams hparams = {
    .lr = { 0.2f, 0.07f },
    .weight_decay = 0.3f,
    .adam_c1 = 0.5f,
    .adam_c2 = 0.4f,
    .grad_scale = 0.7f,
    .update = (INT64_C(5) << 32) + 3,
};

static void compare_adamw(const struct arrays *a, const struct meg_update_range *range, int nranges,
                          const struct meg_step_hparams *h)
{
    const struct meg_update_arrays host = host_arrays(a), dev = dev_arrays(a);
    const struct meg_adam adam = { 0.8f, 0.6f, 0.01f };
    const struct twin_bytes r = twin_bytes(range, (size_t)nranges * sizeof *range), step = twin_bytes(h, sizeof *h);

    MEG_CALL(cpu, NULL, adamw, .arrays = &host, .range = r.host, .nranges = nranges, .adam = &adam, .step = step.host);
    MEG_CALL(gpu, stream, adamw, .arrays = &dev, .range = r.dev, .nranges = nranges, .adam = &adam, .step = step.dev);
    expect_arrays(a);
}

static void compare_sgd(const struct arrays *a, const struct meg_update_range *range, int nranges,
                        const struct meg_step_hparams *h)
{
    const struct meg_update_arrays host = host_arrays(a), dev = dev_arrays(a);
    const struct twin_bytes r = twin_bytes(range, (size_t)nranges * sizeof *range), step = twin_bytes(h, sizeof *h);

    MEG_CALL(cpu, NULL, sgd, .arrays = &host, .range = r.host, .nranges = nranges, .momentum = 0.8f, .step = step.host);
    MEG_CALL(gpu, stream, sgd, .arrays = &dev, .range = r.dev, .nranges = nranges, .momentum = 0.8f, .step = step.dev);
    expect_arrays(a);
}

/*
 * Ranges with complete chunks of 2048 elements and with parts of chunks, with one row and with several.  Two of them
 * are not at multiples of 8 in the unsharded parameter.
 */
enum { N = 9000 };
static const struct meg_update_range ranges[] = {
    { 0, 1, 1.0f, 1.0f, 0, 4, 0, 0, 1, 1 },           { 8, 4133, 0.0f, 1.0f, 0, 3, 0, 0, 5000, 0 },
    { 4133, 4250, 1.0f, 0.5f, 1, 2, 3, 70, 37, 53 },  { 4300, 4300, 1.0f, 1.0f, 0, 9, 0, 0, 1, 1 },
    { 4352, 6540, 1.0f, 2.0f, 0, 1, 12, 9, 5000, 0 }, { 6544, 8999, 0.5f, 1.0f, 1, 7, 8, 64, 24, 48 },
};
enum { RANGES = sizeof ranges / sizeof *ranges };

/* Call f for each combination of types of w, g and the states; the type of the copy changes from one to the next. */
static void for_each_types(void (*f)(const struct types *t), int nstates)
{
    static const enum meg_dtype copies[] = { MEG_DTYPE_I32, MEG_DTYPE_BF16, MEG_DTYPE_F16, MEG_DTYPE_F32 };
    int i = 0;

    for (int w = MEG_DTYPE_F32; w <= MEG_DTYPE_BF16; w++)
        for (int s0 = MEG_DTYPE_F32; s0 <= MEG_DTYPE_BF16; s0++)
            for (int s1 = MEG_DTYPE_F32; s1 <= (nstates > 1 ? MEG_DTYPE_BF16 : MEG_DTYPE_F32); s1++)
                for (int g = MEG_DTYPE_F32; g <= MEG_DTYPE_F16; g++)
                    f(&(struct types){ w, g, { s0, s1 }, copies[i++ % 4] });
}

static void adamw_of_types(const struct types *t)
{
    const struct arrays a = arrays_new(t, N, 0, true);

    compare_adamw(&a, ranges, RANGES, &hparams);
}

static void adamw_types(void)
{
    for_each_types(adamw_of_types, 2);
}

static const struct types all_f32 = { 0, 0, { 0, 0 }, MEG_DTYPE_BF16 }, all_bf16 = {
    MEG_DTYPE_BF16, MEG_DTYPE_BF16, { MEG_DTYPE_BF16, MEG_DTYPE_BF16 }, MEG_DTYPE_I32
};

static void adamw_unaligned(void)
{
    struct arrays a = arrays_new(&all_f32, N, 1, true);

    compare_adamw(&a, ranges, RANGES, &hparams);
    a = arrays_new(&all_bf16, N, 5, true);
    compare_adamw(&a, ranges, RANGES, &hparams);
}

/* Round stochastically in ranges that do not begin at a multiple of 8, cross rows, or begin at element 2^32. */
static void adamw_positions(void)
{
    static const struct meg_update_range single[] = {
        { 0, 300, 1.0f, 1.0f, 0, 11, 0, INT64_C(1) << 32, 8, 24 },
        { 0, 300, 1.0f, 1.0f, 0, 11, 5, 0, 9, 24 },
        { 0, 300, 1.0f, 1.0f, 0, 11, 0, 3, 800, 0 },
        { 3, 303, 1.0f, 1.0f, 0, 11, 0, 0, 800, 0 },
        { 0, 4096, 1.0f, 1.0f, 0, 11, 0, 8, 16, 20 },
        { 0, 4096, 1.0f, 1.0f, 0, 11, 1, 0, 5000, 0 },
        { 0, 4096, 1.0f, 1.0f, 0, 11, 0, 1, 5000, 0 },
        { 0, 4096, 1.0f, 1.0f, 0, 11, 16, 0, 20, 24 },
        { 0, 4096, 1.0f, 1.0f, 0, 11, 16, 0, 24, 32 },
        { 3, 4500, 1.0f, 1.0f, 0, 11, 16, 0, 24, 32 },
    };

    for (size_t i = 0; i < sizeof single / sizeof *single; i++) {
        const struct arrays a = arrays_new(&all_bf16, single[i].end, 0, true);

        compare_adamw(&a, single + i, 1, &hparams);
    }
}

/* Update more ranges than the grid has blocks, so that a block processes several. */
static void adamw_many_ranges(void)
{
    enum { MANY = 700 };
    struct meg_update_range many[MANY];
    struct arrays a;
    int64_t end = 0;

    for (int i = 0; i < MANY; i++) {
        many[i] = ranges[1];
        many[i].begin = end + op_below(8);
        many[i].end = many[i].begin + op_below(20);
        many[i].row = (uint32_t)i;
        many[i].lr_mult = 1.0f / (float)(1 + i % 3);
        end = many[i].end;
    }
    a = arrays_new(&all_bf16, end, 0, true);
    compare_adamw(&a, many, MANY, &hparams);
}

/* Update a range with more chunks than the grid has blocks, so that a block processes several. */
static void adamw_large(void)
{
    enum { LARGE = 1200000 };
    const struct meg_update_range range = { 0, LARGE, 1.0f, 1.0f, 0, 4, 0, 0, LARGE, 0 };
    const struct arrays a = arrays_new(&all_f32, LARGE, 0, true);

    compare_adamw(&a, &range, 1, &hparams);
}

/* NaN and Inf remain in the states; other elements are not affected. */
static void adamw_nonfinite(void)
{
    struct types t = all_bf16;

    t.g = MEG_DTYPE_F32;
    for (int k = 0; k < 2; k++) {
        struct arrays a = arrays_new(&t, N, 0, true);

        twin_set(&a.g, 0, 9, __builtin_nanf("0x3fffff")); /* 0x7fffffff, the NaN that GPUs compute */
        twin_set(&a.g, 0, 3000, INFINITY);
        twin_upload(&a.g);
        twin_set(&a.w, 0, 4200, -INFINITY);
        twin_upload(&a.w);
        compare_adamw(&a, ranges, RANGES, &hparams);
        t = all_f32;
    }
}

static void expect_unchanged(const struct arrays *a)
{
    expect_equal(&a->w, "w");
    expect_equal(&a->state[0], "state 0");
    if (a->state[1].host.p)
        expect_equal(&a->state[1], "state 1");
    expect_equal(&a->copy, "copy");
}

/* A skipped step, and a step without ranges, change nothing. */
static void adamw_skip(void)
{
    const struct arrays a = arrays_new(&all_f32, N, 0, true);
    struct meg_step_hparams h = hparams;

    h.skip = 1;
    h.grad_scale = NAN;
    compare_adamw(&a, ranges, RANGES, &h);
    h.skip = 0;
    compare_adamw(&a, ranges, 0, &h);
    expect_unchanged(&a);
}

/* In the first update, the momentum is not read. */
static void sgd_of_types(const struct types *t)
{
    struct meg_step_hparams h = hparams;
    struct arrays a = arrays_new(t, N, 0, false);

    compare_sgd(&a, ranges, RANGES, &h);
    a = arrays_new(t, N, 0, false);
    a.state[0] = twin_output(t->state[0], 1, N, 0);
    h.update = 1;
    compare_sgd(&a, ranges, RANGES, &h);
}

static void sgd_types(void)
{
    for_each_types(sgd_of_types, 1);
}

static void sgd_skip(void)
{
    const struct arrays a = arrays_new(&all_f32, N, 0, false);
    struct meg_step_hparams h = hparams;

    h.skip = 1;
    compare_sgd(&a, ranges, RANGES, &h);
    expect_unchanged(&a);
}

/* ---- step_finish ---- */

enum { PARAMS = 101 };

/* Return the nbytes of a record that begin at `offset`. */
static struct twin_bytes field(const struct twin_bytes *record, size_t offset, size_t nbytes)
{
    return (struct twin_bytes){ (char *)record->host + offset, (char *)record->dev + offset, nbytes };
}

/*
 * Call step_finish of both backends and compare the records.  Gradient `at` has the sum of squares `nonfinite`; if `at`
 * is -1, all sums are finite.
 */
static void compare_finish(const struct meg_step_record *r, const struct meg_step_conf *c, int at, double nonfinite)
{
    enum {
        RESULTS = offsetof(struct meg_step_record, loss),
        HPARAMS = offsetof(struct meg_step_record, hparams),
        SCALE = HPARAMS + offsetof(struct meg_step_hparams, grad_scale),
        SKIP = HPARAMS + offsetof(struct meg_step_hparams, skip),
        UPDATE = HPARAMS + offsetof(struct meg_step_hparams, update),
    };
    const struct twin_bytes record = twin_bytes(r, sizeof *r);
    const struct twin_bytes norms = field(&record, RESULTS, (MEG_MAX_LOSSES + 1) * sizeof(double));
    const struct twin_bytes flags = field(&record, RESULTS + norms.nbytes, HPARAMS - RESULTS - norms.nbytes);
    const struct twin_bytes before = field(&record, HPARAMS, SCALE - HPARAMS);
    const struct twin_bytes skip = field(&record, SKIP, sizeof r->hparams.skip);
    const struct twin_bytes after = field(&record, UPDATE, sizeof *r - UPDATE);
    const struct twin_bytes sums = field(&record, 0, RESULTS);
    struct twin scale = { { (char *)record.host + SCALE, MEG_DTYPE_F32, 1, 1, 1 },
                          { (char *)record.dev + SCALE, MEG_DTYPE_F32, 1, 1, 1 } };
    struct meg_step_conf host = *c, dev = *c;
    struct twin_bytes grad_sum;
    double grads[PARAMS];

    for (int i = 0; i < PARAMS; i++)
        grads[i] = op_uniform();
    if (at >= 0)
        grads[at] = nonfinite;
    grad_sum = twin_bytes(grads, sizeof grads);
    host.grad_sum = grad_sum.host;
    dev.grad_sum = grad_sum.dev;
    MEG_CALL(cpu, NULL, step_finish, .record = record.host, .conf = &host);
    MEG_CALL(gpu, stream, step_finish, .record = record.dev, .conf = &dev);
    memset(&dev, 0xff, sizeof dev); /* the caller may reuse it */
    expect_equal_bytes(&sums, "sums");
    expect_near_f64(&norms, 1e-14, "losses and norm");
    expect_equal_bytes(&flags, "flags");
    expect_equal_bytes(&before, "lr, weight_decay and adam_c");
    expect_near(&scale, 1e-6, "grad_scale");
    expect_equal_bytes(&skip, "skip");
    expect_equal_bytes(&after, "update, scaler and num_updates");
}

static void step_finish(void)
{
    const double norms[] = { 9.0, 1e8, NAN, INFINITY };
    struct meg_step_conf c = { .num_updates = 7, .num_params = PARAMS };
    struct meg_step_record r;

    memset(&r, 0, sizeof r);
    c.candidate[0] = hparams;
    c.candidate[1] = hparams;
    c.candidate[1].lr[0] = 0.3f;
    c.candidate[1].update++;
    for (int i = 0; i < 256; i++) {
        r.sums = (struct meg_step_sums){ .loss_divisor = i & 1 ? 37 : 0, .loss = { 80.5, 20.25 } };
        r.sums.grad_sumsq = norms[i >> 1 & 3];
        r.num_updates = 7 + (i >> 3 & 1);
        c.has_grad_norm = i & 2;
        c.clip_grad = i & 16 ? 1 : 0;
        c.is_per_token = i & 32;
        c.skips_nonfinite = i & 64;
        r.scaler = (struct meg_scaler){ .type = i % 3, .scale = 1024, .min_scale = 1, .window = 5 };
        r.scaler.hysteresis = 2;
        r.scaler.hysteresis_tracker = 1 + i % 2;
        r.scaler.growth_tracker = i & 128 ? 4 : 1;
        c.num_params = i % 5 == 0 ? 0 : PARAMS - i % 5;
        compare_finish(&r, &c, i % 4 ? (int)op_below(PARAMS) : -1, i & 4 ? NAN : INFINITY);
    }
}

const struct check_case cases_optim[] = {
    { "adamw: types", adamw_types },
    { "adamw: unaligned arrays", adamw_unaligned },
    { "adamw: random numbers depend on the position in the unsharded parameter", adamw_positions },
    { "adamw: more ranges than blocks", adamw_many_ranges },
    { "adamw: more chunks than blocks", adamw_large },
    { "adamw: NaN and Inf", adamw_nonfinite },
    { "adamw: nothing to do", adamw_skip },
    { "sgd: types, and the first update", sgd_types },
    { "sgd: nothing to do", sgd_skip },
    { "step_finish: scalers, clipping, skipped steps and gradients that are not finite", step_finish },
    { 0 },
};
