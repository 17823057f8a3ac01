/* ops_math.c - the functions of cpu/vmath.h against f64, for a sample of all floats. */
#include "ops.h"
#include "cpu/vmath.h"

static float of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static double ulp(double y)
{
    const double least = ldexp(1.0, -149);
    return y == 0.0 ? least : fmax(ldexp(1.0, ilogb(y) - 23), least);
}

/* Return the larger error; NaN is treated as infinite. */
static double worse(double a, double b)
{
    return isnan(b) ? INFINITY : fmax(a, b);
}

static void exp_is_within_its_error(void **state)
{
    double worst = 0.0;
    (void)state;
    for (uint64_t u = 0; u < 1ull << 32; u += 397) {
        const float x = of_bits((uint32_t)u), y = vexp(x);
        if (isnan(x))
            assert_true(isnan(y));
        else if (x < -103.98f || x > 88.7229f)
            assert_true(y == (x < 0 ? 0.0f : INFINITY));
        else if (x > -87.3f)
            worst = worse(worst, fabs(y - exp(x)) / ulp(exp(x)));
        else
            assert_true(fabs(y - exp(x)) <= 1.5 * ulp(exp(x)));
    }
    print_message("# exp: %.3f ulp\n", worst);
    assert_true(worst <= 1.1);
    assert_true(vexp(0.0f) == 1.0f && vexp(INFINITY) == INFINITY && vexp(-INFINITY) == 0.0f);
}

static void tanh_is_within_its_error(void **state)
{
    double worst = 0.0;
    (void)state;
    for (uint64_t u = 0; u < 1ull << 32; u += 397) {
        const float x = of_bits((uint32_t)u), y = vtanh(x);
        if (isnan(x))
            assert_true(isnan(y));
        else
            worst = worse(worst, fabs(y - tanh(x)) / ulp(tanh(x)));
    }
    print_message("# tanh: %.3f ulp\n", worst);
    assert_true(worst <= 1.3);
    assert_true(vtanh(INFINITY) == 1.0f && vtanh(-INFINITY) == -1.0f);
}

static double tanh64(double x)
{
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double tanh_grad64(double x)
{
    const double k = sqrt(2.0 / M_PI), t = tanh(k * (x + 0.044715 * x * x * x));
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * k * (1.0 + 3.0 * 0.044715 * x * x);
}

static double erf64(double x)
{
    return 0.5 * x * erfc(-x / sqrt(2.0));
}

static double erf_grad64(double x)
{
    return 0.5 * erfc(-x / sqrt(2.0)) + x * exp(-0.5 * x * x) / sqrt(2.0 * M_PI);
}

/* Return the largest error against f64 in half ulps of max(|x|, 1), the relevant unit for sums of such terms. */
static double worst_of(float (*f)(float), double (*f64)(double))
{
    double worst = 0.0;
    for (uint64_t u = 0; u < 1ull << 32; u += 397) {
        const float x = of_bits((uint32_t)u), y = f(x);
        if (isnan(x))
            assert_true(isnan(y));
        else if (fabsf(x) < 1e18f)
            worst = worse(worst, fabs(y - f64(x)) / (EPS * fmax(1.0, fabs(x))));
    }
    assert_false(isfinite(f(INFINITY)) && f64 != tanh_grad64 && f64 != erf_grad64);
    return worst;
}

static void gelu_is_within_its_error(void **state)
{
    const struct {
        const char *name;
        float (*f)(float);
        double (*f64)(double);
        double allowed;
    } of[] = { { "gelu tanh", vgelu_tanh, tanh64, 3.0 },
               { "gelu tanh'", vgelu_tanh_grad, tanh_grad64, 6.0 },
               { "gelu erf", vgelu_erf, erf64, 3.0 },
               { "gelu erf'", vgelu_erf_grad, erf_grad64, 6.0 } };
    (void)state;
    for (size_t i = 0; i < LEN(of); i++) {
        const double worst = worst_of(of[i].f, of[i].f64);
        print_message("# %s: %.3f half ulps of max(|x|, 1)\n", of[i].name, worst);
        assert_true(worst <= of[i].allowed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_its_error),
        cmocka_unit_test(tanh_is_within_its_error),
        cmocka_unit_test(gelu_is_within_its_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
