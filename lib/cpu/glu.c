/* isa: baseline v3 v4 */
/* glu.c - gated linear units, act(gate) * (up + offset), and their gradients. */
#include "cpu/row.h"
#include "cpu/vmath.h"

enum { ROWS = 8 }; /* rows per task */

/* Inline a function into each loop that DEFINE defines, where `type` and is_plain are constants. */
#define INLINE static inline __attribute__((always_inline))

/* Return act(a) for the activation function `type`. */
INLINE float act(enum meg_glu_type type, float a)
{
    switch (type) {
    case MEG_GLU_QUICK_GELU: return a / (1.0f + vexp(-1.702f * a));
    case MEG_GLU_GELU_TANH: return vgelu_tanh(a);
    case MEG_GLU_GELU_ERF: return vgelu_erf(a);
    case MEG_GLU_RELU: return a < 0.0f ? 0.0f : a;
    case MEG_GLU_SQUARED_RELU: return a < 0.0f ? 0.0f : a * a;
    default: return a / (1.0f + vexp(-a)); /* MEG_GLU_SILU */
    }
}

/* Set *da and *du to the gradients of a and u, given d, the gradient of y = act(a) * u. */
INLINE void unit_bwd(enum meg_glu_type type, float *da, float *du, float a, float u, float d)
{
    const float alpha = type == MEG_GLU_QUICK_GELU ? 1.702f : 1.0f;
    float s;

    switch (type) {
    case MEG_GLU_GELU_TANH:
        *da = d * u * vgelu_tanh_grad(a);
        *du = d * vgelu_tanh(a);
        break;
    case MEG_GLU_GELU_ERF:
        *da = d * u * vgelu_erf_grad(a);
        *du = d * vgelu_erf(a);
        break;
    case MEG_GLU_RELU:
        *da = a <= 0.0f ? 0.0f : d * u;
        *du = d * act(type, a);
        break;
    case MEG_GLU_SQUARED_RELU:
        *da = a <= 0.0f ? 0.0f : d * u * (2.0f * a);
        *du = d * act(type, a);
        break;
    default: /* act(a) = a * s, s = 1 / (1 + exp(-alpha * a)) */
        s = 1.0f / (1.0f + vexp(-(alpha * a)));
        *da = d * u * s * (1.0f + alpha * a * (1.0f - s));
        *du = d * a * s;
    }
}

/* Return the limit of a unit, infinity if it has none. */
static float limit_of(const struct meg_glu *unit)
{
    return unit->limit > 0.0f ? unit->limit : INFINITY;
}

INLINE float clamp(float x, float least, float most)
{
    x = x > most ? most : x;
    return x < least ? least : x;
}

/* Compute the rows of y in [r0, r0 + ROWS).  If is_plain is set, the unit has no limit and no offset. */
INLINE void fwd_rows(enum meg_glu_type type, bool is_plain, const struct meg_glu_fwd_args *args, int64_t r0)
{
    const struct meg_mat y = args->y, x = args->x;
    const float limit = limit_of(args->unit), offset = args->unit->offset;

    for (int64_t r = r0; r < meg_min64(r0 + ROWS, x.rows); r++)
        for (int64_t c0 = 0; c0 < y.cols; c0 += COL_BLOCK) {
            const int64_t n = meg_min64(COL_BLOCK, y.cols - c0);
            float gb[COL_BLOCK], ub[COL_BLOCK], yb[COL_BLOCK], *o = row_out(y, r, c0, yb);
            const float *gate = row_read(x, r, c0, n, gb), *up = row_read(x, r, y.cols + c0, n, ub);
#pragma omp simd
            for (int64_t c = 0; c < n; c++)
                o[c] = is_plain ? act(type, gate[c]) * up[c]
                                : act(type, clamp(gate[c], -INFINITY, limit)) * (clamp(up[c], -limit, limit) + offset);
            row_store(y, r, c0, n, o);
        }
}

INLINE void bwd_rows(enum meg_glu_type type, bool is_plain, const struct meg_glu_bwd_args *args, int64_t r0)
{
    const struct meg_mat dx = args->dx, dy = args->dy, x = args->x;
    const float limit = limit_of(args->unit), offset = args->unit->offset;

    for (int64_t r = r0; r < meg_min64(r0 + ROWS, x.rows); r++)
        for (int64_t c0 = 0; c0 < dy.cols; c0 += COL_BLOCK) {
            const int64_t n = meg_min64(COL_BLOCK, dy.cols - c0);
            float gb[COL_BLOCK], ub[COL_BLOCK], db[COL_BLOCK], dgb[COL_BLOCK], dub[COL_BLOCK];
            const float *gate = row_read(x, r, c0, n, gb), *up = row_read(x, r, dy.cols + c0, n, ub);
            const float *d = row_read(dy, r, c0, n, db);
            float *dgate = row_out(dx, r, c0, dgb), *dup = row_out(dx, r, dy.cols + c0, dub);
#pragma omp simd
            for (int64_t c = 0; c < n; c++) {
                const float a = gate[c], u = up[c];
                float da, du;

                if (is_plain) {
                    unit_bwd(type, &da, &du, a, u, d[c]);
                } else {
                    unit_bwd(type, &da, &du, clamp(a, -INFINITY, limit), clamp(u, -limit, limit) + offset, d[c]);
                    da = a > limit ? 0.0f : da;
                    du = u > limit || u < -limit ? 0.0f : du;
                }
                dgate[c] = da;
                dup[c] = du;
            }
            row_store(dx, r, c0, n, dgate);
            row_store(dx, r, dy.cols + c0, n, dup);
        }
}

/* Define the loops of a type.  Each loop is a function of its own, so that the compiler vectorizes it for the type. */
#define DEFINE(NAME, TYPE, IS_PLAIN)                                                                                   \
    static __attribute__((noinline)) void fwd_##NAME(const struct meg_glu_fwd_args *a, int64_t r0)                     \
    {                                                                                                                  \
        fwd_rows(TYPE, IS_PLAIN, a, r0);                                                                               \
    }                                                                                                                  \
    static __attribute__((noinline)) void bwd_##NAME(const struct meg_glu_bwd_args *a, int64_t r0)                     \
    {                                                                                                                  \
        bwd_rows(TYPE, IS_PLAIN, a, r0);                                                                               \
    }
#define FOR_EACH_TYPE(F)                                                                                               \
    F(silu, MEG_GLU_SILU)                                                                                              \
    F(quick_gelu, MEG_GLU_QUICK_GELU)                                                                                  \
    F(gelu_tanh, MEG_GLU_GELU_TANH)                                                                                    \
    F(gelu_erf, MEG_GLU_GELU_ERF)                                                                                      \
    F(relu, MEG_GLU_RELU)                                                                                              \
    F(squared_relu, MEG_GLU_SQUARED_RELU)
#define DEFINE_BOTH(NAME, TYPE) DEFINE(NAME, TYPE, true) DEFINE(NAME##_limited, TYPE, false)
FOR_EACH_TYPE(DEFINE_BOTH)

static const struct {
    void (*fwd)(const struct meg_glu_fwd_args *a, int64_t r0);
    void (*bwd)(const struct meg_glu_bwd_args *a, int64_t r0);
} loops[][2] = { /* loops[type][is_plain] */
#define ROW(NAME, TYPE) [TYPE] = { { fwd_##NAME##_limited, bwd_##NAME##_limited }, { fwd_##NAME, bwd_##NAME } },
                 FOR_EACH_TYPE(ROW)
};

static void check(struct meg_mat y, struct meg_mat x)
{
    MEG_ASSERT_EQ(y.rows, x.rows);
    MEG_ASSERT_EQ(x.cols, 2 * y.cols);
}

void MEG_FN(glu_fwd)(struct meg_stream *st, const struct meg_glu_fwd_args *a)
{
    const bool is_plain = limit_of(a->unit) == INFINITY && a->unit->offset == 0.0f;
    (void)st;
    check(a->y, a->x);
#pragma omp parallel for schedule(static, 1)
    for (int64_t r = 0; r < a->x.rows; r += ROWS)
        loops[a->unit->type][is_plain].fwd(a, r);
}

void MEG_FN(glu_bwd)(struct meg_stream *st, const struct meg_glu_bwd_args *a)
{
    const bool is_plain = limit_of(a->unit) == INFINITY && a->unit->offset == 0.0f;
    (void)st;
    check(a->dy, a->x);
    check(a->dy, a->dx);
#pragma omp parallel for schedule(static, 1)
    for (int64_t r = 0; r < a->x.rows; r += ROWS)
        loops[a->unit->type][is_plain].bwd(a, r);
}
