/*
 * rules.c - the rules of placements (tensor/op_row.h) agree with the f64 references of tests/ops: an output depends
 * only on the factors and terms of its rule, and is linear in each factor that may be a partial sum, without the terms.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include "../../ops/ops.h"
#include "base/mem.h"

static const struct rule {
    const char *op, *outputs, *factors, *linear, *terms, *complete, *stacked;
} rules[] = {
#define MEG_PLACEMENT_RULE(op, outputs, ...) { #op, outputs, __VA_ARGS__ },
#include "tensor/ops_attention.h"
#include "tensor/ops_layer.h"
#include "tensor/ops_optim.h"
};

enum { INOUT = MEG_ROLE_IN | MEG_ROLE_OUT };

static int num_checks; /* pairs of an output and an input */

/* Call the reference, and return a copy of the results of an output. */
static double *results(struct op_call *c, const struct op_tensor *out)
{
    const size_t nbytes = (size_t)out->numel * sizeof *out->want;

    for (int i = 0; i < c->n; i++)
        if (c->tensor[i].role & MEG_ROLE_OUT)
            memcpy(c->tensor[i].want, c->tensor[i].v, (size_t)c->tensor[i].numel * sizeof *c->tensor[i].want);
    c->test->ref(c);
    return memcpy(meg_new(nbytes), out->want, nbytes);
}

static void scale(struct op_tensor *t, double factor)
{
    for (int64_t i = 0; i < t->numel; i++)
        t->v[i] *= factor;
}

/*
 * Check how an output changes if an input is halved: not at all, or by the factor `want`.  If is_sum is set, the output
 * is added to its previous values, of which it is no function.
 */
static void check_half(struct op_call *c, const struct op_tensor *out, struct op_tensor *in, double want, bool is_sum)
{
    double *const before = results(c, out), *after;

    scale(in, 0.5);
    after = results(c, out);
    scale(in, 2);
    num_checks++;
    for (int64_t i = 0; i < out->numel && is_sum; i++) {
        before[i] -= out->v[i];
        after[i] -= out->v[i];
    }
    for (int64_t i = 0; i < out->numel; i++)
        if (!(isnan(before[i]) && isnan(after[i])) && /* the mean of RMSNorm is not written */
            !(fabs(after[i] - want * before[i]) <= 1e-12 * (fabs(before[i]) + (is_sum ? fabs(out->v[i]) : 0))))
            fail_msg("%s: with half of %s, %s[%lld] is %g times %g; its rule says %g; %s", c->test->row->name, in->name,
                     out->name, (long long)i, after[i] / before[i], before[i], want, op_describe(c));
    free(before);
    free(after);
}

/* Return whether a rule names an input, or names an output whose rule names it. */
static bool names(const struct op_call *c, const struct rule *rule, const char *input)
{
    bool is_named = op_contains(rule->factors, input) || op_contains(rule->terms, input);

    for (size_t r = 0; r < LEN(rules); r++)
        for (int i = 0; i < c->n && !strcmp(rules[r].op, rule->op); i++)
            if (c->tensor[i].role == MEG_ROLE_OUT && op_contains(rules[r].outputs, c->tensor[i].name) &&
                op_contains(rule->factors, c->tensor[i].name))
                is_named |= op_contains(rules[r].factors, input) || op_contains(rules[r].terms, input);
    return is_named;
}

/* Check that an output does not depend on known inputs that its rule does not name. */
static void check_dependence(struct op_call *c, const struct rule *rule, const struct op_tensor *out,
                             const bool is_known[])
{
    for (int i = 0; i < c->n; i++) {
        struct op_tensor *const in = &c->tensor[i];

        if (is_known[i] && in != out && !names(c, rule, in->name))
            check_half(c, out, in, 1, false);
    }
}

/*
 * Check that an output is linear in inputs of which it may be a partial sum.  The terms become 0.  If delta of attn_bwd
 * is given, the outputs are linear in d_o and delta together, and delta may not be a partial sum.
 */
static void check_linear(struct op_call *c, const struct rule *rule, const struct op_tensor *out, const bool is_known[])
{
    const bool is_sum = out->role == INOUT && !op_contains(c->test->added, out->name) && !names(c, rule, out->name);

    if (c->test == &op_test_attn_bwd && op_find(c, "delta"))
        return;
    for (int i = 0; i < c->n; i++)
        if (op_contains(rule->terms, c->tensor[i].name))
            scale(&c->tensor[i], 0);
    for (int i = 0; i < c->n; i++)
        if (is_known[i] && op_contains(rule->linear, c->tensor[i].name))
            check_half(c, out, &c->tensor[i], 0.5, is_sum);
}

/*
 * Return whether a call is small and finite, half of a result is exact, unlike that of small numbers in f16, and no
 * activation function is applied to the sum of the linear factors and of previous values.
 */
static bool is_checked(const struct op_call *c)
{
    if (c->test == &op_test_linear_fwd && ((const struct meg_linear_fwd_args *)c->args)->act != MEG_ACT_NONE)
        return false;
    for (int i = 0; i < c->n; i++) {
        if (c->tensor[i].numel > 3000 || c->tensor[i].dtype == MEG_DTYPE_F16 ||
            (c->test->ref_adds && c->tensor[i].role == INOUT))
            return false;
        for (int64_t k = 0; k < c->tensor[i].numel && c->tensor[i].role & MEG_ROLE_IN; k++)
            if (!isfinite(c->tensor[i].v[k]))
                return false;
    }
    return true;
}

static void check_rules(struct op_call *c)
{
    bool is_known[OP_MAX_TENSORS] = { false }; /* inputs other than tables, which all ranks have */

    if (!is_checked(c))
        return;
    op_reference(c);
    for (int i = 0; i < c->n; i++)
        is_known[i] = c->tensor[i].role & MEG_ROLE_IN && c->tensor[i].dtype <= MEG_DTYPE_F16 && !c->tensor[i].field &&
                      !op_contains("cos sin", c->tensor[i].name);
    for (int pass = 0; pass < 2; pass++)
        for (size_t r = 0; r < LEN(rules); r++)
            for (int i = 0; i < c->n && !strcmp(rules[r].op, c->test->row->name); i++)
                if (c->tensor[i].role & MEG_ROLE_OUT && op_contains(rules[r].outputs, c->tensor[i].name))
                    (pass == 0 ? check_dependence : check_linear)(c, &rules[r], &c->tensor[i], is_known);
}

static void rules_agree_with_the_references(void **state)
{
    const struct op_test *t;

    (void)state;
    op_run = check_rules;
    for (int i = 0; (t = op_test_at(i)); i++)
        for (const struct op_group *g = t->group; g->what; g++) {
            op_seed(1, t->row->name);
            if (!g->is_cpu_only)
                g->cases();
        }
    print_message("# %d pairs of an output and an input\n", num_checks);
    assert_in_range(num_checks, 1000, 1000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_agree_with_the_references),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
