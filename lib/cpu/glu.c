/* isa: baseline v3 v4 */
/* glu.c - gated linear units, act(gate) * (up + offset), and their gradients. */
#include "cpu/act.h"
#include "cpu/row.h"

enum { ROWS = 8 }; /* rows per task */

/* Return the limit of a unit, infinity if it has none. */
static float limit_of(const struct meg_glu *unit)
{
    return unit->limit > 0.0f ? unit->limit : INFINITY;
}

ACT_INLINE float clamp(float x, float least, float most)
{
    x = x > most ? most : x;
    return x < least ? least : x;
}

/* Compute the rows of y in [r0, r0 + ROWS).  If is_plain is set, the unit has no limit and no offset. */
ACT_INLINE void fwd_rows(enum meg_act act, bool is_plain, const struct meg_glu_fwd_args *args, int64_t r0)
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
                o[c] = is_plain ? vact(act, gate[c]) * up[c]
                                : vact(act, clamp(gate[c], -INFINITY, limit)) * (clamp(up[c], -limit, limit) + offset);
            row_store(y, r, c0, n, o);
        }
}

ACT_INLINE void bwd_rows(enum meg_act act, bool is_plain, const struct meg_glu_bwd_args *args, int64_t r0)
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
                const float a = is_plain ? gate[c] : clamp(gate[c], -INFINITY, limit);
                const float u = is_plain ? up[c] : clamp(up[c], -limit, limit) + offset;
                float du, da = vact_bwd(act, a, d[c] * u, d[c], &du);

                if (!is_plain) {
                    da = gate[c] > limit ? 0.0f : da;
                    du = up[c] > limit || up[c] < -limit ? 0.0f : du;
                }
                dgate[c] = da;
                dup[c] = du;
            }
            row_store(dx, r, c0, n, dgate);
            row_store(dx, r, dy.cols + c0, n, dup);
        }
}

/* Define the loops of an activation function, each a function of its own, so that the compiler vectorizes it. */
#define DEFINE(NAME, ACT, IS_PLAIN)                                                                                    \
    static __attribute__((noinline)) void fwd_##NAME(const struct meg_glu_fwd_args *a, int64_t r0)                     \
    {                                                                                                                  \
        fwd_rows(ACT, IS_PLAIN, a, r0);                                                                                \
    }                                                                                                                  \
    static __attribute__((noinline)) void bwd_##NAME(const struct meg_glu_bwd_args *a, int64_t r0)                     \
    {                                                                                                                  \
        bwd_rows(ACT, IS_PLAIN, a, r0);                                                                                \
    }
#define DEFINE_BOTH(NAME, ACT) DEFINE(NAME, ACT, true) DEFINE(NAME##_limited, ACT, false)
FOR_EACH_ACT(DEFINE_BOTH)

static const struct {
    void (*fwd)(const struct meg_glu_fwd_args *a, int64_t r0);
    void (*bwd)(const struct meg_glu_bwd_args *a, int64_t r0);
} loops[MEG_ACTS][2] = { /* loops[act][is_plain] */
#define ROW(NAME, ACT) [ACT] = { { fwd_##NAME##_limited, bwd_##NAME##_limited }, { fwd_##NAME, bwd_##NAME } },
                         FOR_EACH_ACT(ROW)
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
        loops[a->unit->act][is_plain].fwd(a, r);
}

void MEG_FN(glu_bwd)(struct meg_stream *st, const struct meg_glu_bwd_args *a)
{
    const bool is_plain = limit_of(a->unit) == INFINITY && a->unit->offset == 0.0f;
    (void)st;
    check(a->dy, a->x);
    check(a->dy, a->dx);
#pragma omp parallel for schedule(static, 1)
    for (int64_t r = 0; r < a->x.rows; r += ROWS)
        loops[a->unit->act][is_plain].bwd(a, r);
}
