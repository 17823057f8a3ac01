/*
 * ops.c - the cases of tests/ops on the CPU: results of each instruction set and number of threads against the f64
 * references, and references of gradients against central differences of the forward reference.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include "../../ops/ops.h"
#include "base/mem.h"
#include "cpu/internal.h"
#include "sanitized.h"

enum { GUARD = 64 };

/* ---- central differences ---- */

/* Return the tensor of a call of which another is the gradient, dX or d_X, or NULL.  X may be in a struct. */
static struct op_tensor *find_of_gradient(struct op_call *c, const struct op_tensor *d)
{
    const char *x = d->name + (d->name[1] == '_' ? 2 : 1);

    for (int i = 0; i < c->n && *d->name == 'd'; i++) {
        const char *in_struct = strchr(c->tensor[i].name, '.');

        if (!strcmp(in_struct ? in_struct + 1 : c->tensor[i].name, x))
            return &c->tensor[i];
    }
    return NULL;
}

/* Return the sum of dY * Y over the outputs Y of a forward operation and the inputs dY of its backward operation. */
static double forward_loss(struct op_call *bwd, struct op_call *fwd)
{
    double sum = 0;

    fwd->test->ref(fwd);
    for (int i = 0; i < bwd->n; i++) {
        const struct op_tensor *const dy = &bwd->tensor[i], *const y = find_of_gradient(fwd, dy);

        for (int64_t k = 0; y && y->role & MEG_ROLE_OUT && k < y->numel; k++)
            sum += dy->v[k] * y->want[k];
    }
    return sum;
}

static double loss(struct op_call *bwd, struct op_call *fwd)
{
    return fwd ? forward_loss(bwd, fwd) : bwd->test->loss(bwd);
}

/* Compare elements of gradient dx of the reference with differences of loss() at x. */
static void check_gradient(struct op_call *bwd, struct op_call *fwd, const struct op_tensor *dx, struct op_tensor *x)
{
    enum { SAMPLES = 6 };
    const double h = 1e-4;

    for (int s = 0; s < SAMPLES && s < x->numel; s++) {
        const int64_t i = x->numel <= SAMPLES ? s : op_below(x->numel);
        const double x0 = x->v[i];
        double at[5], got;

        for (int k = 0; k < 5; k++) {
            x->v[i] = x0 + (k - 2) * h;
            at[k] = loss(bwd, fwd);
        }
        x->v[i] = x0;
        got = (8 * (at[3] - at[1]) - (at[4] - at[0])) / (12 * h);
        if (fabs(at[4] - 2 * at[2] + at[0]) > 0.1 * h * (1 + fabs(got))) /* a kink */
            continue;
        if (!(fabs(got - dx->want[i]) <= 1e-6 * (1 + fabs(got))))
            fail_msg("the reference of %s[%lld] is %.12g, but differences give %.12g; %s", dx->name, (long long)i,
                     dx->want[i], got, op_describe(bwd));
    }
}

/* Return whether differences of the forward reference are the gradients of a call, and take little time. */
static bool has_differences(const struct op_call *bwd)
{
    if (bwd->test->work && bwd->test->work(bwd) > 20000)
        return false;
    for (int i = 0; i < bwd->n; i++) {
        const struct op_tensor *t = &bwd->tensor[i];
        const bool is_added = t->role & MEG_ROLE_OUT ? t->role & MEG_ROLE_IN : !strcmp(t->name, "skip");

        if ((is_added && !bwd->test->loss) || t->numel > 20000)
            return false;
        for (int64_t k = 0; k < t->numel; k++)
            if (t->role & MEG_ROLE_IN && !isfinite(t->v[k]))
                return false;
    }
    return bwd->test->loss || bwd->test->grad_of;
}

/* Return whether the inputs that are outputs of the forward operation have its results, rounded to f32 at most. */
static bool has_results_of(struct op_call *fwd, struct op_call *bwd)
{
    fwd->test->ref(fwd);
    for (int i = 0; i < fwd->n; i++) {
        const struct op_tensor *const y = &fwd->tensor[i];
        const double *const v = y->role & MEG_ROLE_OUT ? op_in(bwd, y->name) : NULL;

        for (int64_t k = 0; v && k < y->numel; k++)
            if (!(fabs(v[k] - y->want[k]) <= 2 * EPS * (1 + fabs(y->want[k]))))
                return false;
    }
    return true;
}

static void check_gradients(struct op_call *bwd)
{
    struct op_call *fwd;

    if (!has_differences(bwd))
        return;
    fwd = op_forward_of(bwd);
    if (fwd && !has_results_of(fwd, bwd)) {
        op_call_free(fwd);
        return;
    }
    for (int i = 0; i < bwd->n; i++) {
        struct op_tensor *const dx = &bwd->tensor[i], *x = fwd ? find_of_gradient(fwd, dx) : dx;
        const bool is_replaced = !fwd && dx->role & MEG_ROLE_IN;

        if (dx->role & MEG_ROLE_OUT && x && (fwd || is_replaced))
            check_gradient(bwd, fwd, dx, x);
    }
    if (fwd)
        op_call_free(fwd);
}

/* ---- values ---- */

/*
 * Return whether a result of type t is a rounded number that differs from the reference by at most tol.  A value that
 * is not a number may be infinite, and is undefined if tol is infinite.
 */
static bool agrees(enum meg_dtype t, double got, double want, double tol)
{
    if (isinf(tol))
        return true;
    if (isnan(want))
        return !isfinite(got);
    if (IS_SANITIZED) /* loops have no vector instructions, so that long sums have one partial sum instead of many */
        tol *= 4;
    if (t == MEG_DTYPE_F32 || t > MEG_DTYPE_F16)
        return got == want || fabs(got - want) <= tol;
    return op_rounded(t, want - tol) <= got && got <= op_rounded(t, want + tol);
}

static void check_result(const char *run, const struct op_call *c, const struct op_tensor *t, const char *memory)
{
    double *const got = op_values(t, memory);

    for (int64_t i = 0; i < t->numel; i++)
        if (!agrees(t->dtype, got[i], t->want[i], t->tol[i]))
            fail_msg("%s: %s[%lld] is %.9g, expected %.9g: the error is %.3g, allowed is %.3g before rounding; %s", run,
                     t->name, (long long)i, got[i], t->want[i], fabs(got[i] - t->want[i]), t->tol[i], op_describe(c));
    free(got);
}

/* Return a copy of the memory of a tensor, aligned to 64 bytes, with guards before and after it. */
static char *memory_new(const struct op_tensor *t)
{
    const size_t total = (t->nbytes + 3 * GUARD - 1) / GUARD * GUARD;
    char *p = aligned_alloc(GUARD, total);

    memset(p, 0xff, total);
    memcpy(p + GUARD, t->init, t->nbytes);
    return p + GUARD;
}

static void check_guards(const char *run, const struct op_tensor *t, const char *p)
{
    char guard[GUARD];

    memset(guard, 0xff, sizeof guard);
    if (memcmp(p - GUARD, guard, GUARD) != 0 || memcmp(p + t->nbytes, guard, GUARD) != 0)
        fail_msg("%s: memory before or behind %s has changed", run, t->name);
}

static void check_memory(const char *run, const struct op_tensor *t, const char *p)
{
    check_guards(run, t, p);
    if (!op_is_padding_intact(t, p))
        fail_msg("%s: padding of %s has changed", run, t->name);
    if (!(t->role & MEG_ROLE_OUT) && memcmp(p, t->init, t->nbytes) != 0)
        fail_msg("%s: the input %s has changed", run, t->name);
}

/* How to call an operation: an input that is also output `output`, or -1; with other operations (op_test.parts). */
struct way {
    int alias, output;
    bool in_parts;
};

/* Call the operation of a table, and leave the results in memory[].  One thread uses the workspace up to its end. */
static void call(const struct meg_ops *ops, struct op_call *c, char *memory[], struct way way)
{
    struct op_tensor w = { .name = "the workspace", .nbytes = op_workspace_nbytes(c, ops) };
    char *workspace;
    void *p[OP_MAX_TENSORS];
    struct op_args a;

    w.init = memset(meg_new(w.nbytes), 0xff, w.nbytes);
    workspace = memory_new(&w);

    for (int i = 0; i < c->n; i++)
        p[i] = memory[i] = memory_new(&c->tensor[i]);
    if (way.alias >= 0)
        p[way.output] = memory[way.alias];
    a = op_args_of(c, ops, p, workspace);
    (way.in_parts ? c->test->parts : c->test->call)(ops, NULL, a.args);
    op_args_free(&a);
    check_guards("workspace", &w, workspace);
    if (omp_get_max_threads() == 1 && w.nbytes >= 4 && !memcmp(workspace + w.nbytes - 4, w.init, 4))
        fail_msg("the end of the workspace, %zu bytes, is not used; %s", w.nbytes, op_describe(c));
    free(w.init);
    free(workspace - GUARD);
}

static void memory_free(const struct op_call *c, char *memory[])
{
    for (int i = 0; i < c->n; i++)
        free(memory[i] - GUARD);
}

/* Call the operation another way, and compare the outputs with memory[] bit for bit. */
static void check_equal(const char *run, const struct meg_ops *ops, struct op_call *c, char *const memory[],
                        struct way way)
{
    char *other[OP_MAX_TENSORS];

    call(ops, c, other, way);
    for (int i = 0; i < c->n; i++) {
        const struct op_tensor *t = &c->tensor[i];
        const char *p = other[way.alias >= 0 && i == way.output ? way.alias : i];

        if (t->role & MEG_ROLE_OUT && (!way.in_parts || op_contains(c->test->same, t->name)) &&
            !op_is_equal(t, memory[i], p))
            fail_msg("%s: %s differs from the first call; %s", run, t->name, op_describe(c));
        if (way.alias < 0 || (i != way.alias && i != way.output))
            check_memory(run, t, other[i]);
    }
    memory_free(c, other);
}

/* Compare the results of one thread with the reference, and those of two threads, in place and in parts with them. */
static void check_level(const struct meg_ops *ops, int level, struct op_call *c)
{
    static const char *const names[] = { "v4", "v3", "base" };
    char *memory[OP_MAX_TENSORS];
    struct way way = { .alias = -1 };

    omp_set_num_threads(1);
    call(ops, c, memory, way);
    for (int i = 0; i < c->n; i++) {
        check_memory(names[level], &c->tensor[i], memory[i]);
        if (c->tensor[i].role & MEG_ROLE_OUT)
            check_result(names[level], c, &c->tensor[i], memory[i]);
    }
    omp_set_num_threads(2);
    check_equal("two threads", ops, c, memory, way);
    for (way.alias = 0; way.alias < c->n; way.alias++)
        if (op_may_be_in_place(c, way.alias, &way.output))
            check_equal("in place", ops, c, memory, way);
    if (c->test->parts)
        check_equal("in parts", ops, c, memory, (struct way){ .alias = -1, .in_parts = true });
    memory_free(c, memory);
}

static void check_values(struct op_call *c)
{
    op_reference(c);
    check_gradients(c);
    for (int level = 0; level < MEG_CPU_LEVELS; level++)
        if (meg_cpu_level(level))
            check_level(meg_cpu_level(level), level, c);
}

/* ---- groups of cases ---- */

struct group {
    const struct op_test *test;
    const struct op_group *group;
    char name[120];
};

static void run_group(void **state)
{
    const struct group *g = *state;

    op_seed(1, g->name);
    op_run = check_values;
    g->group->cases();
}

/* A plan with a type that the CPU backend does not support, f64, at any position is refused with a reason. */
static void plans_of_other_types_are_refused(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        enum meg_dtype t[4] = { MEG_DTYPE_F32, MEG_DTYPE_BF16, MEG_DTYPE_F16, MEG_DTYPE_F32 };
        const char *why = NULL;

        t[i] = MEG_DTYPE_F64;
        assert_null(meg_cpu_ops()->linear_create(&(struct meg_linear_desc){ 4, 3, 2, t[0], t[1], t[2], t[3] }, &why));
        assert_non_null(strstr(why, "fp32, bf16 and fp16"));
    }
}

int main(void)
{
    enum { MAX_GROUPS = 200 };
    static struct CMUnitTest test[MAX_GROUPS];
    static struct group group[MAX_GROUPS];
    const struct op_test *t;
    size_t n = 0;

    for (int i = 0; (t = op_test_at(i)); i++)
        for (const struct op_group *g = t->group; g->what; g++, n++) {
            group[n] = (struct group){ .test = t, .group = g };
            snprintf(group[n].name, sizeof group[n].name, "%s: %s", t->row->name, g->what);
            test[n] = (struct CMUnitTest){ group[n].name, run_group, NULL, NULL, &group[n] };
        }
    test[n++] = (struct CMUnitTest)cmocka_unit_test(plans_of_other_types_are_refused);
    return _cmocka_run_group_tests("ops", test, n, NULL, NULL);
}
