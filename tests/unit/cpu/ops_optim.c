/* ops_optim.c - the mean of stochastic rounding in optimizer steps; memory. */
#include "ops.h"
#include "tensor/half.h"

/*
 * Stochastic rounding is unbiased: if one update of the same state is repeated with different random bits, the mean of
 * the stored values agrees with the exact value.
 */
static void rounding_is_unbiased(const struct meg_ops *ops)
{
    enum { M = 1961, UPDATES = 4000 };
    static const struct meg_update_range range = { 0, M, 1.0f, 1.0f, 0, 5, 0, 0, M, 0 };
    static const struct meg_adam adam = { 0.9f, 0.999f, 1e-8f };
    static uint16_t w[M], m[M], v[M];
    static float g[M];
    const struct meg_update_arrays x = {
        { w, MEG_DTYPE_BF16 }, { g, MEG_DTYPE_F32 }, { { m, MEG_DTYPE_BF16 }, { v, MEG_DTYPE_BF16 } }, { 0 }, 42
    };
    /* v = 1 decays to 0.999, nearer to 1 than to the next lower bf16: rounding to nearest would not change v */
    const double want = 0.999f, step = 1.0 / 256; /* from 1 to the next lower bf16 */
    double sum = 0;

    for (int64_t u = 1; u <= UPDATES; u++) {
        const struct meg_step_hparams h = { { 1e-3f, 0 }, 0.1f, 0.5f, 0.4f, 1.0f, 0, u };

        for (int i = 0; i < M; i++)
            v[i] = meg_to_bf16(1);
        MEG_CALL(ops, NULL, adamw, .arrays = &x, .range = &range, .nranges = 1, .adam = &adam, .step = &h);
        for (int i = 0; i < M; i++)
            sum += meg_from_bf16(v[i]);
    }
    /* standard deviation of one value: step * sqrt(p (1 - p)) with p = 0.256 */
    near(sum / ((double)UPDATES * M), want, 5 * step * sqrt(0.256 * 0.744 / ((double)UPDATES * M)), "mean", 0, 0);
}

static void memory(const struct meg_ops *ops)
{
    static const size_t sizes[] = { 1, 64, 100, 3u << 20, (9u << 20) + 5 };
    assert_null(ops->alloc(SIZE_MAX - 5));
    for (size_t i = 0; i < LEN(sizes); i++) {
        char *p = ops->alloc(sizes[i]), *q = malloc(sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t k = 0; k < sizes[i]; k++)
            assert_true(p[k] == 0);
        memset(q, 7, sizes[i]);
        ops->upload(NULL, p, q, sizes[i]);
        memset(q, 0, sizes[i]);
        ops->download(NULL, q, p, sizes[i]);
        assert_true(q[0] == 7 && q[sizes[i] - 1] == 7);
        ops->zero(NULL, p, sizes[i]);
        assert_true(p[0] == 0 && p[sizes[i] - 1] == 0);
        ops->release(p);
        free(q);
    }
    ops->release(NULL);
}

int main(void)
{
    static const struct ops_case cases[] = {
        { "stochastic rounding is unbiased", rounding_is_unbiased },
        { "memory is zeroed and aligned", memory },
    };
    return run_cases(cases, LEN(cases));
}
