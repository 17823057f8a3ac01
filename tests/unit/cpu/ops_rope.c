/* ops_rope.c - rotary position embedding against f64; the inverse rotation, which gradients use, restores the input. */
#include "ops.h"
#include "tensor/half.h"

enum { S = 5, B = 3, G = 2, HEADS = 3, D = 22, LD = G * (HEADS + 1) * D + 3, POSITIONS = 40 };

struct rope {
    float x[S * B * LD], cos[POSITIONS * D / 2], sin[POSITIONS * D / 2];
    int32_t position[S * B];
    int64_t half;
    int is_interleaved;
};

static void fill(struct rope *r, int64_t half, int is_interleaved)
{
    r->half = half;
    r->is_interleaved = is_interleaved;
    for (int64_t i = 0; i < S * B * LD; i++)
        r->x[i] = (float)rnd();
    for (int64_t i = 0; i < POSITIONS * half; i++) {
        const double angle = 9.0 * rnd();
        r->cos[i] = (float)cos(angle);
        r->sin[i] = (float)sin(angle);
    }
    for (int i = 0; i < S * B; i++)
        r->position[i] = (i * 7) % POSITIONS;
}

static void rotate(const struct meg_ops *ops, struct rope *r, float sign)
{
    const struct meg_heads x = { r->x, MEG_DTYPE_F32, B * LD, LD, (HEADS + 1) * D, D };
    MEG_CALL(ops, NULL, rope, .x = x, .s = S, .b = B, .g = G, .heads = HEADS, .half = r->half,
             .is_interleaved = r->is_interleaved, .cos = r->cos, .sin = r->sin, .position = r->position, .sign = sign);
}

/* Return column c of a head after rotation; columns after the rotated pairs are unchanged. */
static double want(const struct rope *r, const float *before, int64_t row, int64_t c)
{
    const int64_t pair = r->is_interleaved ? c / 2 : c % r->half, first = r->is_interleaved ? 2 * pair : pair;
    const int64_t second = r->is_interleaved ? first + 1 : first + r->half;
    const double co = r->cos[r->position[row] * r->half + pair], si = r->sin[r->position[row] * r->half + pair];
    if (c >= 2 * r->half)
        return before[c];
    return c == first ? before[first] * co - before[second] * si : before[second] * co + before[first] * si;
}

static void check(const struct meg_ops *ops, int64_t half, int is_interleaved)
{
    static struct rope r;
    float *before;
    uint64_t h[2] = { 0, 0 };
    fill(&r, half, is_interleaved);
    before = copy_new(r.x, S * B * LD);
    for (int k = 0; k < 2; k++) {
        memcpy(r.x, before, sizeof r.x);
        omp_set_num_threads(k ? 2 : 1);
        rotate(ops, &r, 1.0f);
        digest(h + k, r.x, sizeof r.x);
    }
    assert_int_equal(h[0], h[1]);
    for (int64_t row = 0; row < S * B; row++)
        for (int64_t c = 0; c < LD; c++) {
            const int64_t head = c / D % (HEADS + 1), at0 = row * LD + c / D * D;
            const int is_ours = c < G * (HEADS + 1) * D && head < HEADS;
            near(r.x[row * LD + c], is_ours ? want(&r, before + at0, row, c % D) : before[row * LD + c],
                 is_ours ? 4 * EPS : 0.0, "x", row, c);
        }
    rotate(ops, &r, -1.0f);
    for (int64_t i = 0; i < S * B * LD; i++)
        near(r.x[i], before[i], 8 * EPS, "turned back", i / LD, i % LD);
    free(before);
}

static void halves_and_adjacent(const struct meg_ops *ops)
{
    check(ops, D / 2, 0);
    check(ops, D / 2, 1);
    check(ops, 3, 0);
    check(ops, 3, 1);
}

/* bf16 and f16 inputs are converted exactly; outputs are rounded once. */
static void half_types(const struct meg_ops *ops)
{
    static struct rope r;
    static uint16_t x[S * B * LD];
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
        const enum meg_dtype t = is_bf16 ? MEG_DTYPE_BF16 : MEG_DTYPE_F16;
        const struct meg_heads heads = { x, t, B * LD, LD, (HEADS + 1) * D, D };
        fill(&r, D / 2, 0);
        for (int64_t i = 0; i < S * B * LD; i++) {
            x[i] = is_bf16 ? meg_to_bf16(r.x[i]) : meg_to_f16(r.x[i]);
            r.x[i] = is_bf16 ? meg_from_bf16(x[i]) : meg_from_f16(x[i]);
        }
        rotate(ops, &r, 1.0f);
        MEG_CALL(ops, NULL, rope, .x = heads, .s = S, .b = B, .g = G, .heads = HEADS, .half = r.half, .cos = r.cos,
                 .sin = r.sin, .position = r.position, .sign = 1.0f);
        for (int64_t i = 0; i < S * B * LD; i++)
            assert_int_equal(x[i], is_bf16 ? meg_to_bf16(r.x[i]) : meg_to_f16(r.x[i]));
    }
}

int main(void)
{
    static const struct ops_case cases[] = { { "rotary embedding agrees with f64", halves_and_adjacent },
                                             { "bf16 and f16 are rounded once", half_types } };
    return run_cases(cases, LEN(cases));
}
