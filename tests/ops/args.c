/* args.c - the arguments of an operation that a call describes, on a device (ops.h). */
#include <stdlib.h>
#include "base/mem.h"
#include "ops.h"

/* Create the plan of a linear layer. */
static void add_plan(struct op_args *a, struct op_call *c)
{
    const struct meg_linear_desc desc = c->test->plan(c);
    const char *why = "no reason";

    a->plan = a->op->linear_create(&desc, &why);
    if (!a->plan)
        meg_die(MEG_EFAIL, "no plan: %s; %s", why, op_describe(c));
    memcpy(a->args + op_field_of(c->test->row, "plan")->offset, &a->plan, sizeof a->plan);
}

size_t op_workspace_nbytes(const struct op_call *c, const struct meg_ops *op)
{
    return c->test->workspace ? c->test->workspace(op, c->args) : 0;
}

struct op_args op_args_of(struct op_call *c, const struct meg_ops *op, void *const memory[], void *workspace)
{
    struct op_args a = { .args = memcpy(meg_new(c->test->nbytes), c->args, c->test->nbytes), .op = op };
    const struct meg_op_field *field[8];

    for (int i = 0; i < c->n; i++) {
        const struct op_tensor *x = &c->tensor[i];
        const void *p = (char *)memory[i] + x->first + (size_t)x->origin * meg_dtype_size(x->dtype);
        char *at = a.args;
        int k = 0;

        if (x->field) {
            while (k < a.nhosts && field[k] != x->field)
                k++;
            if (k == a.nhosts) {
                field[a.nhosts++] = x->field;
                a.host[k] = memcpy(meg_new(x->field->nbytes), meg_op_pointer(x->field, c->args), x->field->nbytes);
                memcpy(a.args + x->field->offset, &a.host[k], sizeof a.host[k]);
            }
            at = a.host[k];
        }
        memcpy(at + x->offset, &p, sizeof p);
    }
    if (c->test->plan)
        add_plan(&a, c);
    if (c->test->workspace) {
        const struct meg_workspace w = { workspace, op_workspace_nbytes(c, op) };

        memcpy(a.args + c->test->workspace_at, &w, sizeof w);
    }
    return a;
}

void op_args_free(struct op_args *a)
{
    for (int i = 0; i < a->nhosts; i++)
        free(a->host[i]);
    if (a->plan)
        a->op->linear_destroy(a->plan);
    free(a->args);
}
