/* check_elementwise.c - cases of activation functions and biases, which linear layers compute, and of uploads. */
#include <stdlib.h>
#include "check.h"
#include "cuda/internal.h"

enum { TYPES = MEG_DTYPE_F16 + 1 };

/*
 * Shapes.  The first has rows at multiples of 16 bytes and only complete vectors.  The next two have an incomplete last
 * vector.  The fourth has rows at addresses that are not multiples of 16.  The others have more columns than a block
 * and more rows than a grid.
 */
static const struct shape {
    int64_t rows, cols, pad;
} shapes[] = { { 3, 64, 8 }, { 2, 12, 4 }, { 3, 20, 12 }, { 5, 13, 2 }, { 2, 2056, 0 }, { 4099, 3, 0 } };
enum { SMALL_SHAPES = 4, SHAPES = sizeof shapes / sizeof *shapes };

/* Return a matrix of random values in [-range, range). */
static struct twin random_twin(enum meg_dtype t, struct shape s, float range)
{
    struct twin x = twin_random(t, s.rows, s.cols, s.pad);

    for (int64_t r = 0; r < s.rows; r++)
        for (int64_t c = 0; c < s.cols; c++)
            twin_set(&x, r, c, range * twin_get(&x, r, c));
    twin_upload(&x);
    return x;
}

/* ---- activation functions and biases ---- */

/* Compare meg_cuda_act_fwd with formulas in f64. */
static void act_fwd_one(enum meg_dtype ty, enum meg_dtype tx, enum meg_act act, struct shape s, bool is_in_place)
{
    const struct twin x = random_twin(tx, s, 6);
    struct twin y = is_in_place ? x : twin_output(ty, s.rows, s.cols, s.pad + 8);

    meg_cuda_act_fwd(stream, y.dev, x.dev, act);
    for (int64_t r = 0; r < s.rows; r++)
        for (int64_t c = 0; c < s.cols; c++)
            twin_set(&y, r, c, (float)op_act(act, (double)twin_get(&x, r, c)));
    expect_near(&y, op_tolerance(y.host.dtype), "y");
}

static void act_fwd_types(void)
{
    for (int act = 0; act < MEG_ACTS; act++)
        for (int i = 0; i < TYPES * TYPES; i++)
            for (int s = 0; s < SMALL_SHAPES; s++) {
                act_fwd_one((enum meg_dtype)(i / TYPES), (enum meg_dtype)(i % TYPES), (enum meg_act)act, shapes[s],
                            false);
                act_fwd_one((enum meg_dtype)(i % TYPES), (enum meg_dtype)(i % TYPES), (enum meg_act)act, shapes[s],
                            true);
            }
}

static void act_fwd_shapes(void)
{
    for (int s = SMALL_SHAPES; s < SHAPES; s++) {
        act_fwd_one(MEG_DTYPE_BF16, MEG_DTYPE_BF16, MEG_ACT_GELU_TANH, shapes[s], false);
        act_fwd_one(MEG_DTYPE_BF16, MEG_DTYPE_F32, MEG_ACT_GELU_TANH, shapes[s], false);
    }
    act_fwd_one(MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_ACT_GELU_TANH, (struct shape){ 0, 8, 0 }, false);
}

/* The relative error of small results is small too. */
static void act_fwd_tails(void)
{
    for (int act = MEG_ACT_GELU_TANH; act <= MEG_ACT_GELU_ERF; act++)
        for (int i = 0; i < 32; i++) {
            struct twin x = twin_output(MEG_DTYPE_F32, 1, 1, 0), y = twin_output(MEG_DTYPE_F32, 1, 1, 0);
            const float v = -0.25f * (float)i;

            twin_set(&x, 0, 0, v);
            twin_upload(&x);
            meg_cuda_act_fwd(stream, y.dev, x.dev, (enum meg_act)act);
            twin_set(&y, 0, 0, (float)op_act((enum meg_act)act, (double)v));
            expect_near(&y, 3e-5, "y");
        }
}

static void add_bias_one(enum meg_dtype ty, enum meg_dtype tb, struct shape s, int64_t offset)
{
    struct twin y = random_twin(ty, s, 1), b = twin_random(tb, 1, s.cols + offset, 0);

    meg_cuda_add_bias(stream, y.dev, meg_element(b.dev.p, offset, tb), tb);
    for (int64_t r = 0; r < s.rows; r++)
        for (int64_t c = 0; c < s.cols; c++)
            twin_set(&y, r, c, twin_get(&y, r, c) + twin_get(&b, 0, offset + c));
    expect_equal(&y, "y");
}

static void add_bias(void)
{
    for (int i = 0; i < TYPES * TYPES; i++)
        for (int s = 0; s < SMALL_SHAPES; s++)
            add_bias_one((enum meg_dtype)(i / TYPES), (enum meg_dtype)(i % TYPES), shapes[s], 0);
    for (int s = 0; s < SHAPES; s++)
        add_bias_one(MEG_DTYPE_F32, MEG_DTYPE_BF16, shapes[s], 1);
}

/* Upload more numbers than cuda.c has staging buffers, while another operation delays the copies. */
static void uploads(void)
{
    enum { N = 1000 };
    const struct twin other = twin_random(MEG_DTYPE_F32, 400, 1000, 0);
    struct twin x = twin_output(MEG_DTYPE_F32, 1, N, 0);

    meg_cuda_act_fwd(stream, other.dev, other.dev, MEG_ACT_GELU_ERF);
    for (int i = 0; i < N; i++) {
        const float v = (float)i;

        twin_set(&x, 0, i, v);
        gpu->upload(stream, meg_element(x.dev.p, i, MEG_DTYPE_F32), &v, sizeof v);
    }
    expect_equal(&x, "uploaded numbers");
}

const struct check_case cases_elementwise[] = {
    { "act_fwd: types and activation functions", act_fwd_types }, { "act_fwd: shapes", act_fwd_shapes },
    { "act_fwd: small results are accurate", act_fwd_tails },     { "add_bias: types and shapes", add_bias },
    { "upload: more numbers than staging buffers", uploads },     { NULL, NULL },
};
