/* check_ops.c - the cases of tests/ops: compare the results of the CUDA backend with those of the CPU. */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "check.h"
#include "cuda/internal.h"

/* The memory of the tensors of a call. */
struct call {
    struct twin_bytes memory[OP_MAX_TENSORS];
    void *own[OP_MAX_TENSORS]; /* allocations of single tensors, or NULL */
};

/*
 * Move a tensor of integers to the end of an allocation, where the test double finds that a kernel reads too much, such
 * as positions behind those of the rows.
 */
static void *move_to_end(struct twin_bytes *x)
{
    enum { ALIGN = 256 };
    const size_t total = (x->nbytes + ALIGN - 1) / ALIGN * ALIGN;
    char *p = gpu->alloc(total);

    x->dev = p + total - x->nbytes;
    gpu->upload(stream, x->dev, x->host, x->nbytes);
    return p;
}

/*
 * Call the operation on the device and, if is_on_both is set, on the CPU.  If alias >= 0, this input is also the output
 * `output`.
 */
static struct call call(struct op_call *c, bool is_on_both, int alias, int output)
{
    const size_t nbytes[] = { op_workspace_nbytes(c, cpu), op_workspace_nbytes(c, gpu) };
    const size_t most = nbytes[0] > nbytes[1] ? nbytes[0] : nbytes[1];
    void *host[OP_MAX_TENSORS], *dev[OP_MAX_TENSORS], *const nan = memset(meg_new(most), 0xff, most);
    const struct twin_bytes workspace = twin_bytes(nan, most);
    struct call x = { 0 };
    struct op_args a;

    free(nan);

    for (int i = 0; i < c->n; i++) {
        x.memory[i] = twin_bytes(c->tensor[i].init, c->tensor[i].nbytes);
        if (c->tensor[i].dtype > MEG_DTYPE_F64 && c->tensor[i].nbytes)
            x.own[i] = move_to_end(&x.memory[i]);
        host[i] = x.memory[i].host;
        dev[i] = x.memory[i].dev;
    }
    if (alias >= 0)
        dev[output] = dev[alias];
    if (is_on_both) {
        a = op_args_of(c, cpu, host, workspace.host);
        c->test->call(cpu, NULL, a.args);
        op_args_free(&a);
    }
    a = op_args_of(c, gpu, dev, workspace.dev);
    c->test->call(gpu, stream, a.args);
    op_args_free(&a);
    return x;
}

static void release(struct call *x)
{
    for (int i = 0; i < OP_MAX_TENSORS; i++)
        if (x->own[i])
            gpu->release(x->own[i]);
}

/* Compare each member of structs; the reference has the tolerances. */
static void expect_structs(const struct op_tensor *t, const char *host, const char *dev)
{
    double *const got = op_values(t, dev), *const want = op_values(t, host);

    for (int64_t i = 0; i < t->numel; i++)
        if (got[i] != want[i] && !(isnan(got[i]) && isnan(want[i])) && !(fabs(got[i] - want[i]) <= t->tol[i]))
            check_fail("%s: member %d of struct %d is %.17g, not %.17g", t->name, (int)(i % t->size[1]),
                       (int)(i / t->size[1]), got[i], want[i]);
    free(got);
    free(want);
}

/* Compare a result of the device with that of the CPU. */
static void expect_result(const struct op_call *c, const struct op_tensor *t, const char *host, const char *dev)
{
    const double tol = c->test->cuda ? c->test->cuda(c, t) : op_tolerance(t->dtype);
    const int64_t cols = t->ndims && t->numel ? t->size[t->ndims - 1] : 1;
    double *const got = op_values(t, dev), *const want = op_values(t, host);
    struct difference d = { 0 };

    for (int64_t i = 0; i < t->numel; i++)
        difference_add(&d, i / cols, i % cols, got[i], want[i]);
    if (tol > 0 || memcmp(dev, host, t->nbytes) != 0)
        expect_small(&d, tol > 0 ? tol : -1, t->name);
    free(got);
    free(want);
}

static void compare(struct op_call *c)
{
    struct call x = call(c, true, -1, 0), y;
    char *dev[OP_MAX_TENSORS], *p;
    int output;

    for (int i = 0; i < c->n; i++)
        if (c->tensor[i].role & MEG_ROLE_OUT && c->tensor[i].format && !c->tensor[i].want)
            op_reference(c);
    for (int i = 0; i < c->n; i++) {
        const struct op_tensor *t = &c->tensor[i];

        dev[i] = meg_new(t->nbytes);
        twin_bytes_read(dev[i], &x.memory[i]);
        if (t->role & MEG_ROLE_OUT && t->format)
            expect_structs(t, x.memory[i].host, dev[i]);
        else if (t->role & MEG_ROLE_OUT)
            expect_result(c, t, x.memory[i].host, dev[i]);
        else if (memcmp(dev[i], t->init, t->nbytes) != 0)
            check_fail("%s: the input has changed", t->name);
        if (!op_is_padding_intact(t, dev[i]))
            check_fail("%s: the padding has changed", t->name);
    }
    for (int i = 0; i < c->n; i++)
        if (op_may_be_in_place(c, i, &output)) {
            y = call(c, false, i, output);
            for (int k = 0; k < c->n; k++)
                if (c->tensor[k].role & MEG_ROLE_OUT) {
                    p = meg_new(c->tensor[k].nbytes);
                    twin_bytes_read(p, &y.memory[k == output ? i : k]);
                    if (memcmp(p, dev[k], c->tensor[k].nbytes) != 0)
                        check_fail("%s differs if %s is in place", c->tensor[k].name, c->tensor[i].name);
                    free(p);
                }
            release(&y);
        }
    for (int i = 0; i < c->n; i++)
        free(dev[i]);
    release(&x);
}

void check_op(struct op_call *c, const struct op_group *g)
{
    const int num_sms = meg_cuda_device.num_sms;
    const bool is_deterministic = meg_cuda_device.is_deterministic;

    if (g && g->num_sms)
        meg_cuda_device.num_sms = g->num_sms;
    meg_cuda_device.is_deterministic |= g && g->is_untimed;
    compare(c);
    meg_cuda_device.num_sms = num_sms;
    meg_cuda_device.is_deterministic = is_deterministic;
}
