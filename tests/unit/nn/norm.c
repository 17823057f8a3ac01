/* The initial weights of norms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "nn/norm.h"

/* A stored weight of the 1P types is the difference from 1. */
static void all_types_of_norm_start_as_the_identity(void **state)
{
    (void)state;
    for (int type = MEG_NORM_LAYER; type <= MEG_NORM_RMS_1P; type++) {
        struct meg_params p = { 0 };
        struct meg_binder b = { .step = MEG_BIND_ROWS, .params = &p };
        const enum meg_norm t = (enum meg_norm)type;
        struct meg_norm_weights norm = { .type = t, .has_weight = true, .has_bias = !meg_norm_is_rms(t) };
        float w[4];

        meg_bind_norm(&b, &norm, "norm", 4);
        assert_int_equal(p.n, meg_norm_is_rms(norm.type) ? 1 : 2);
        meg_param_init(&p.row[0], 7, 0, 4, w);
        for (int i = 0; i < 4; i++)
            assert_true(w[i] + meg_norm_offset(norm.type, w) == 1);
        for (int k = 1; k < p.n; k++) {
            meg_param_init(&p.row[k], 7, 0, 4, w);
            for (int i = 0; i < 4; i++)
                assert_true(w[i] == 0);
        }
        meg_params_free(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(all_types_of_norm_start_as_the_identity) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
