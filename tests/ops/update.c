/* update.c - cases of adamw and sgd: optimizer steps. */
#include "base/philox.h"
#include "ops.h"

enum { SEED = 42, MAX_RANGES = 700 };

/* FIRST_UPDATE: the momentum is not read.  NOT_FINITE: NaN and infinity. */
enum { PLAIN, FIRST_UPDATE, NOT_FINITE };

/* ---- references ---- */

/* What the references of both operations read. */
struct step {
    const struct meg_update_range *range;
    int nranges;
    const struct meg_step_hparams *h;
};

/* Return x, a number of f32, rounded to bf16 with the random bits that base/philox.h assigns to an element. */
static double stochastic(double x, uint32_t row, uint32_t array, int64_t element, int64_t update)
{
    const uint32_t key[2] = { SEED, 0x80000000u + 4 * row + array };
    const uint32_t counter[4] = { (uint32_t)(element / 8), 0, (uint32_t)update, (uint32_t)(update >> 32) };
    union {
        float f;
        uint32_t bits;
    } u = { .f = (float)x };
    uint32_t word[4];

    meg_philox(word, key, counter);
    u.bits = (u.bits + (word[element % 8 / 2] >> element % 2 * 16 & 0xffff)) & 0xffff0000;
    return (double)u.f;
}

/*
 * Set the result of element k of array number `array`, which is in range r, to `want`.  Stochastic rounding of numbers
 * from want - tol to want + tol gives one or two numbers of bf16.
 */
static void set(struct op_tensor *t, uint32_t array, int64_t k, const struct step *s, const struct meg_update_range *r,
                double want, double tol)
{
    const int64_t i = r->first + k - r->begin, element = r->base + i / r->cols * r->ld + i % r->cols;

    t->want[k] = want;
    t->tol[k] = tol;
    if (t->dtype == MEG_DTYPE_BF16 && isfinite(want)) {
        const double low = stochastic(want - tol, r->row, array, element, s->h->update);
        const double high = stochastic(want + tol, r->row, array, element, s->h->update);

        t->want[k] = (low + high) / 2;
        t->tol[k] = fabs(high - low) / 2;
    }
}

/* Set the results of an element of w and its copy. */
static void set_w(struct op_call *c, int64_t k, const struct step *s, const struct meg_update_range *r, double want,
                  double tol)
{
    struct op_tensor *const copy = op_find(c, "arrays.copy");

    set(op_find(c, "arrays.w"), 0, k, s, r, want, tol);
    if (copy) {
        copy->want[k] = want;
        copy->tol[k] = tol;
    }
}

static void adamw_range(struct op_call *c, const struct step *s, const struct meg_update_range *r)
{
    const struct meg_adam *adam = ((const struct meg_adamw_args *)c->args)->adam;
    const double *w = op_in(c, "arrays.w"), *g = op_in(c, "arrays.g");
    struct op_tensor *const m = op_find(c, "arrays.state0"), *const v = op_find(c, "arrays.state1");
    const double b1 = (double)adam->beta1, b2 = (double)adam->beta2,
                 lr = (double)s->h->lr[r->lr_index] * (double)r->lr_mult;

    for (int64_t k = r->begin; k < r->end; k++) {
        const double gk = g[k] * (double)s->h->grad_scale;
        const double mk = b1 * m->v[k] + (1 - b1) * gk, vk = b2 * v->v[k] + (1 - b2) * gk * gk;
        const double u = mk / (double)s->h->adam_c1 / (sqrt(vk / (double)s->h->adam_c2) + (double)adam->eps) +
                         (double)s->h->weight_decay * (double)r->wd_mult * w[k];

        set(m, 1, k, s, r, mk, 4 * EPS);
        set(v, 2, k, s, r, vk, 4 * EPS);
        set_w(c, k, s, r, w[k] - lr * u, 2 * EPS + 16 * EPS * lr * fabs(u));
    }
}

static void adamw_ref(struct op_call *c)
{
    const struct meg_adamw_args *a = c->args;
    const struct step s = { a->range, a->nranges, a->step };

    for (int i = 0; i < s.nranges && !s.h->skip; i++)
        adamw_range(c, &s, &s.range[i]);
}

static void sgd_range(struct op_call *c, const struct step *s, const struct meg_update_range *r)
{
    const double momentum = (double)((const struct meg_sgd_args *)c->args)->momentum;
    const double lr = (double)s->h->lr[r->lr_index] * (double)r->lr_mult;
    const double wd = (double)s->h->weight_decay * (double)r->wd_mult;
    const double *w = op_in(c, "arrays.w"), *g = op_in(c, "arrays.g");
    struct op_tensor *const buf = op_find(c, "arrays.state0");

    for (int64_t k = r->begin; k < r->end; k++) {
        const double gk = g[k] * (double)s->h->grad_scale + wd * w[k];
        const double bk = s->h->update == 1 ? gk : momentum * buf->v[k] + gk;

        set(buf, 1, k, s, r, bk, 6 * EPS);
        set_w(c, k, s, r, w[k] - lr * bk, EPS * (1 + 20 * lr));
    }
}

static void sgd_ref(struct op_call *c)
{
    const struct meg_sgd_args *a = c->args;
    const struct step s = { a->range, a->nranges, a->step };

    for (int i = 0; i < s.nranges && !s.h->skip; i++)
        sgd_range(c, &s, &s.range[i]);
}

/* ---- inputs ---- */

static void fill(struct op_call *c)
{
    double *const w = op_in(c, "arrays.w"), *const g = op_in(c, "arrays.g"), *const m = op_in(c, "arrays.state0");
    struct op_tensor *const v = op_find(c, "arrays.state1");

    for (int64_t i = 0; v && v->v && i < v->numel; i++) /* the second moment is not negative */
        v->v[i] *= v->v[i];
    for (int64_t i = 0; c->variant == FIRST_UPDATE && i < op_find(c, "arrays.state0")->numel; i++)
        m[i] = NAN;
    if (c->variant == NOT_FINITE) {
        g[9] = NAN;
        g[3000] = INFINITY;
        w[4200] = -INFINITY;
    }
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
static const struct meg_adam adam = { 0.8f, 0.6f, 0.01f };

/*
 * Ranges with complete chunks of 2048 elements and with parts of chunks, with one row and with several.  Two of them
 * are not at multiples of 8 in the unsharded parameter.
 */
static const struct meg_update_range ranges[] = {
    { 0, 1, 1.0f, 1.0f, 0, 4, 0, 0, 1, 1 },           { 8, 4133, 0.0f, 1.0f, 0, 3, 0, 0, 5000, 0 },
    { 4133, 4250, 1.0f, 0.5f, 1, 2, 3, 70, 37, 53 },  { 4300, 4300, 1.0f, 1.0f, 0, 9, 0, 0, 1, 1 },
    { 4352, 6540, 1.0f, 2.0f, 0, 1, 12, 9, 5000, 0 }, { 6544, 8999, 0.5f, 1.0f, 1, 7, 8, 64, 24, 48 },
};

/* The types of the arrays.  MEG_DTYPE_I32 as the type of the copy means that there is no copy. */
struct types {
    enum meg_dtype w, g, state[2], copy;
};
static const struct types all_f32 = { 0, 0, { 0, 0 }, MEG_DTYPE_BF16 }, all_bf16 = {
    MEG_DTYPE_BF16, MEG_DTYPE_BF16, { MEG_DTYPE_BF16, MEG_DTYPE_BF16 }, MEG_DTYPE_I32
};

/* Return an array that begins `shift` elements after an aligned address. */
static struct meg_array array(enum meg_dtype t, int64_t shift)
{
    return (struct meg_array){ t == MEG_DTYPE_I32 ? NULL : OFFSET((size_t)shift * meg_dtype_size(t)), t };
}

static struct meg_update_arrays arrays(struct types t, int64_t shift, bool has_second_state)
{
    return (struct meg_update_arrays){ .w = array(t.w, shift),
                                       .g = array(t.g, shift),
                                       .state = { array(t.state[0], shift),
                                                  array(has_second_state ? t.state[1] : MEG_DTYPE_I32, shift) },
                                       .copy = array(t.copy, shift),
                                       .seed = SEED };
}

/* Call f for each combination of types of w, g and the states; the type of the copy changes from one to the next. */
static void for_each_types(void (*f)(struct types t), int nstates)
{
    static const enum meg_dtype copies[] = { MEG_DTYPE_I32, MEG_DTYPE_BF16, MEG_DTYPE_F16, MEG_DTYPE_F32 };
    int i = 0;

    for (int w = MEG_DTYPE_F32; w <= MEG_DTYPE_BF16; w++)
        for (int s0 = MEG_DTYPE_F32; s0 <= MEG_DTYPE_BF16; s0++)
            for (int s1 = MEG_DTYPE_F32; s1 <= (nstates > 1 ? MEG_DTYPE_BF16 : MEG_DTYPE_F32); s1++)
                for (int g = MEG_DTYPE_F32; g < OP_FLOATS; g++)
                    f((struct types){ (enum meg_dtype)w,
                                      (enum meg_dtype)g,
                                      { (enum meg_dtype)s0, (enum meg_dtype)s1 },
                                      copies[i++ % 4] });
}

/*
 * A difference in the last bit of f32 changes the result of stochastic rounding to bf16 with a probability of about
 * 2^-16 per element.  With other random numbers, the relative error would be about 3e-3.
 */
static double update_cuda(const struct op_call *c, const struct op_tensor *t)
{
    (void)c;
    return t->dtype == MEG_DTYPE_F32 ? 1e-6 : 2e-4;
}

/* ---- adamw ---- */

static void adamw_one(int variant, struct meg_update_arrays x, const struct meg_update_range *range, int nranges,
                      const struct meg_step_hparams *h)
{
    OP_CASE(adamw, variant, .arrays = &x, .range = range, .nranges = nranges, .adam = &adam, .step = h);
}

static void adamw_of_types(struct types t)
{
    adamw_one(PLAIN, arrays(t, 0, true), ranges, LEN(ranges), &hparams);
}

static void adamw_types(void)
{
    for_each_types(adamw_of_types, 2);
}

/* Usual hyper-parameters. */
static void adamw_usual(void)
{
    static const struct meg_adam usual = { 0.9f, 0.95f, 1e-8f };
    static const struct meg_step_hparams h = {
        { 1e-3f, 5e-3f }, 0.1f, 1.0f - 0.9f * 0.9f, 1.0f - 0.95f * 0.95f, 0.25f, 0, 2
    };
    static const struct meg_update_range range[] = {
        { 0, 1, 1.0f, 1.0f, 0, 4, 0, 0, 1, 1 },
        { 8, 20000, 0.0f, 1.0f, 0, 3, 0, 0, 50000, 50000 },
        { 20000, 20017, 1.0f, 0.5f, 1, 2, 0, 0, 50000, 50000 },
        { 20032, 50000, 2.0f, 1.0f, 0, 1, 0, 0, 50000, 50000 },
    };
    const struct meg_update_arrays x[] = { arrays(all_f32, 0, true), arrays(all_bf16, 0, true) };

    for (size_t i = 0; i < LEN(x); i++)
        OP_CASE(adamw, PLAIN, .arrays = &x[i], .range = range, .nranges = LEN(range), .adam = &usual, .step = &h);
}

static void adamw_unaligned(void)
{
    adamw_one(PLAIN, arrays(all_f32, 1, true), ranges, LEN(ranges), &hparams);
    adamw_one(PLAIN, arrays(all_bf16, 5, true), ranges, LEN(ranges), &hparams);
}

/* Round stochastically in ranges that do not begin at a multiple of 8, cross rows, or begin at element 2^32. */
static void adamw_positions(void)
{
    static const struct meg_update_range single[] = {
        { 0, 300, 1.0f, 1.0f, 0, 11, 0, INT64_C(1) << 32, 8, 24 },
        { 0, 300, 1.0f, 1.0f, 0, 11, 5, 0, 9, 24 },
        { 0, 300, 1.0f, 1.0f, 0, 11, 0, 3, 800, 0 },
        { 3, 303, 1.0f, 1.0f, 0, 11, 0, 0, 800, 0 },
        { 0, 1073, 1.0f, 1.0f, 0, 5, 0, 11, 29, 53 },
        { 2, 902, 1.0f, 1.0f, 0, 5, 100, 0, 1961, 0 },
        { 0, 4096, 1.0f, 1.0f, 0, 11, 0, 8, 16, 20 },
        { 0, 4096, 1.0f, 1.0f, 0, 11, 1, 0, 5000, 0 },
        { 0, 4096, 1.0f, 1.0f, 0, 11, 0, 1, 5000, 0 },
        { 0, 4096, 1.0f, 1.0f, 0, 11, 16, 0, 20, 24 },
        { 0, 4096, 1.0f, 1.0f, 0, 11, 16, 0, 24, 32 },
        { 3, 4500, 1.0f, 1.0f, 0, 11, 16, 0, 24, 32 },
    };

    for (size_t i = 0; i < LEN(single); i++)
        adamw_one(PLAIN, arrays(all_bf16, 0, true), single + i, 1, &hparams);
}

/* There are more ranges than the grid has blocks, so that a block processes several. */
static void adamw_many_ranges(void)
{
    struct meg_update_range many[MAX_RANGES];
    int64_t end = 0;

    for (int i = 0; i < MAX_RANGES; i++) {
        many[i] = ranges[1];
        many[i].begin = end + op_below(8);
        many[i].end = many[i].begin + op_below(20);
        many[i].row = (uint32_t)i;
        many[i].lr_mult = 1.0f / (float)(1 + i % 3);
        end = many[i].end;
    }
    adamw_one(PLAIN, arrays(all_bf16, 0, true), many, MAX_RANGES, &hparams);
}

/* A range has more chunks than the grid has blocks, so that a block processes several. */
static void adamw_large(void)
{
    enum { LARGE = 1200000 };
    const struct meg_update_range range = { 0, LARGE, 1.0f, 1.0f, 0, 4, 0, 0, LARGE, 0 };

    adamw_one(PLAIN, arrays(all_f32, 0, true), &range, 1, &hparams);
}

/* NaN and infinity remain in the states; other elements are not affected. */
static void adamw_nonfinite(void)
{
    struct types t = all_bf16;

    t.g = MEG_DTYPE_F32;
    adamw_one(NOT_FINITE, arrays(t, 0, true), ranges, LEN(ranges), &hparams);
    adamw_one(NOT_FINITE, arrays(all_f32, 0, true), ranges, LEN(ranges), &hparams);
}

/* A skipped step, and a step without ranges, change nothing. */
static void adamw_skip(void)
{
    struct meg_step_hparams h = hparams;

    h.skip = 1;
    h.grad_scale = NAN;
    adamw_one(PLAIN, arrays(all_f32, 0, true), ranges, LEN(ranges), &h);
    h.skip = 0;
    adamw_one(PLAIN, arrays(all_f32, 0, true), ranges, 0, &h);
}

#define RANGE "qqffiiqqqq"
#define HPARAMS "ffffffixq"

OP_TEST(adamw, .fill = fill, .ref = adamw_ref, .cuda = update_cuda,
        .extra = { { "range", .shape = "nranges", .format = RANGE, .dtype = MEG_DTYPES },
                   { "step", .shape = "1", .format = HPARAMS, .dtype = MEG_DTYPES } },
        .group = { { "types", adamw_types },
                   { "usual hyper-parameters", adamw_usual, .is_cpu_only = true },
                   { "unaligned arrays", adamw_unaligned },
                   { "random numbers depend on the position in the unsharded parameter", adamw_positions },
                   { "more ranges than blocks", adamw_many_ranges },
                   { "more chunks than blocks", adamw_large },
                   { "NaN and infinity", adamw_nonfinite },
                   { "nothing to do", adamw_skip } });

/* ---- sgd ---- */

static void sgd_one(int variant, struct types t, int64_t shift, const struct meg_step_hparams *h)
{
    const struct meg_update_arrays x = arrays(t, shift, false);

    OP_CASE(sgd, variant, .arrays = &x, .range = ranges, .nranges = LEN(ranges), .momentum = 0.8f, .step = h);
}

static void sgd_of_types(struct types t)
{
    struct meg_step_hparams h = hparams;

    sgd_one(PLAIN, t, 0, &h);
    h.update = 1;
    sgd_one(FIRST_UPDATE, t, 0, &h);
}

static void sgd_types(void)
{
    for_each_types(sgd_of_types, 1);
}

/* Usual hyper-parameters. */
static void sgd_usual(void)
{
    struct meg_step_hparams h = { { 1e-2f, 5e-2f }, 0.1f, 0.0f, 0.0f, 0.5f, 0, 1 };

    sgd_one(FIRST_UPDATE, all_f32, 0, &h);
    h.update = 2;
    sgd_one(PLAIN, all_f32, 0, &h);
}

static void sgd_unaligned(void)
{
    sgd_one(PLAIN, all_f32, 1, &hparams);
    sgd_one(PLAIN, all_bf16, 5, &hparams);
}

static void sgd_skip(void)
{
    struct meg_step_hparams h = hparams;

    h.skip = 1;
    sgd_one(PLAIN, all_f32, 0, &h);
}

OP_TEST(sgd, .fill = fill, .ref = sgd_ref, .cuda = update_cuda,
        .extra = { { "range", .shape = "nranges", .format = RANGE, .dtype = MEG_DTYPES },
                   { "step", .shape = "1", .format = HPARAMS, .dtype = MEG_DTYPES } },
        .group = { { "types, and the first update", sgd_types },
                   { "usual hyper-parameters", sgd_usual, .is_cpu_only = true },
                   { "unaligned arrays", sgd_unaligned },
                   { "nothing to do", sgd_skip } });
