#include "optim/optim.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

static bool is_sgd(const struct meg_optim_conf *c)
{
    return !strcmp(c->optimizer, "sgd");
}

size_t meg_optim_nbytes(const struct meg_optim_conf *c, int64_t flat)
{
    return (size_t)flat * sizeof(float) * (is_sgd(c) ? 1 : 2);
}

/* The spans of the flat buffer whose rows this rank counts; their number. */
static int counted_spans(struct meg_span **out, const struct meg_params *p, const struct meg_mesh *mesh)
{
    struct meg_span *v = meg_new(((size_t)p->n + 1) * sizeof *v);
    int n = 0;

    for (int i = p->n; i-- > 0;) {
        const struct meg_param *row = &p->row[i];
        const int64_t end = i > 0 ? p->row[i - 1].offset : p->flat;

        if (!meg_param_is_counted(row, mesh))
            continue;
        if (n > 0 && v[n - 1].end == row->offset)
            v[n - 1].end = end;
        else
            v[n++] = (struct meg_span){ row->offset, end };
    }
    *out = v;
    return n;
}

int meg_optim_create(struct meg_optim **out, const struct meg_optim_conf *c, const struct meg_gpt *model,
                     struct meg_err *e)
{
    const struct meg_ops *op = model->op;
    const struct meg_params *params = &model->params;
    struct meg_optim *o = meg_new(sizeof *o);
    int r = 0;

    o->op = op;
    o->mesh = model->mesh;
    o->params = params;
    o->w = model->w;
    o->g = model->g;
    o->ncounted = counted_spans(&o->counted, params, o->mesh);
    o->is_sgd = is_sgd(c);
    o->adam.beta1 = (float)c->adam_beta1;
    o->adam.beta2 = (float)c->adam_beta2;
    o->adam.eps = (float)c->adam_eps;
    o->momentum = (float)c->sgd_momentum;
    o->clip = (float)c->clip_grad;
    o->nranges = meg_params_ranges(params, &o->range);
    o->nstates = o->is_sgd ? 1 : 2;
    o->state_name[0] = o->is_sgd ? "momentum_buffer" : "exp_avg";
    o->state_name[1] = o->is_sgd ? NULL : "exp_avg_sq";
    o->step = op->alloc(sizeof *o->step);
    o->scalar = op->alloc(sizeof(double));
    for (int i = 0; i < o->nstates; i++)
        o->state[i] = op->alloc((size_t)params->flat * sizeof(float));
    if (!o->step || !o->scalar || !o->state[0] || (o->nstates > 1 && !o->state[1])) {
        r = meg_fail(e, MEG_EFAIL, "optimizer: no memory for %zu bytes of state",
                     meg_optim_nbytes(c, params->flat));
        goto out;
    }
    *out = o;
    o = NULL;
out:
    meg_optim_close(o);
    return r;
}

void meg_optim_close(struct meg_optim *o)
{
    if (!o)
        return;
    for (int i = 0; i < 2; i++)
        if (o->state[i])
            o->op->release(o->state[i]);
    if (o->step)
        o->op->release(o->step);
    if (o->scalar)
        o->op->release(o->scalar);
    free(o->range);
    free(o->counted);
    free(o);
}

/* Sum over tensor-parallel ranks what each has of rows that all have, when they saw other positions. */
static void add_up_positions(struct meg_optim *o)
{
    for (int i = 0; i < o->params->n; i++) {
        const struct meg_param *p = &o->params->row[i];

        if (p->held && p->split < 0)
            meg_all_reduce(o->mesh->tp, o->g + p->offset, p->held, MEG_DTYPE_F32, MEG_SUM);
    }
}

/* Sum both stages' gradients of the tied embedding. */
static void add_up_ends(struct meg_optim *o)
{
    for (int i = 0; i < o->params->n; i++) {
        const struct meg_param *p = &o->params->row[i];

        if (p->held && p->group == MEG_GROUP_TIED)
            meg_all_reduce(o->mesh->ends, o->g + p->offset, p->held, MEG_DTYPE_F32, MEG_SUM);
    }
}

void meg_optim_add_up(struct meg_optim *o)
{
    meg_all_reduce(o->mesh->dp_cp, o->g, o->params->flat, MEG_DTYPE_F32, MEG_SUM);
    if (o->mesh->layout.has_sp)
        add_up_positions(o);
    if (o->mesh->ends->size > 1)
        add_up_ends(o);
}

static double sumsq(struct meg_optim *o, const float *x, int64_t n)
{
    double sum;

    o->op->sumsq(NULL, o->scalar, x, MEG_DTYPE_F32, n);
    o->op->download(NULL, &sum, o->scalar, sizeof sum);
    return sum;
}

/* Over the whole model, each parameter once. */
static double norm(struct meg_optim *o, const float *flat)
{
    double sum = 0;

    for (int i = 0; i < o->ncounted; i++)
        sum += sumsq(o, flat + o->counted[i].begin, o->counted[i].end - o->counted[i].begin);
    meg_all_reduce(o->mesh->model, &sum, 1, MEG_DTYPE_F64, MEG_SUM);
    return sqrt(sum);
}

double meg_optim_grad_norm(struct meg_optim *o, double scale)
{
    return scale * norm(o, o->g);
}

double meg_optim_params_norm(struct meg_optim *o)
{
    return norm(o, o->w);
}

int64_t meg_optim_num_zeros(struct meg_optim *o)
{
    int64_t zeros, sum = 0;

    for (int i = 0; i < o->params->n; i++) {
        const struct meg_param *p = &o->params->row[i];

        if (!meg_param_is_counted(p, o->mesh))
            continue;
        o->op->count_zeros(NULL, o->scalar, o->g + p->offset, MEG_DTYPE_F32, p->held);
        o->op->download(NULL, &zeros, o->scalar, sizeof zeros);
        sum += zeros;
    }
    meg_all_reduce(o->mesh->model, &sum, 1, MEG_DTYPE_I64, MEG_SUM);
    return sum;
}

const struct meg_param *meg_optim_nonfinite(struct meg_optim *o)
{
    if (isfinite(sumsq(o, o->g, o->params->flat)))
        return NULL;
    for (int i = o->params->n - 1; i >= 0; i--) {
        const struct meg_param *p = &o->params->row[i];

        if (p->held && !isfinite(sumsq(o, o->g + p->offset, p->held)))
            return p;
    }
    return NULL;
}

void meg_optim_update(struct meg_optim *o, const struct meg_optim_rates *r, double norm)
{
    struct meg_step step = { 0 };
    double clip = o->clip / (norm + 1e-6);

    o->t++;
    step.lr[0] = (float)r->lr;
    step.lr[1] = (float)r->decoupled_lr;
    step.weight_decay = (float)r->weight_decay;
    step.adam_c1 = (float)(1 - pow(o->adam.beta1, (double)o->t));
    step.adam_c2 = (float)(1 - pow(o->adam.beta2, (double)o->t));
    step.grad_scale = (float)(o->clip > 0 && clip < 1 ? r->grad_scale * clip : r->grad_scale);
    step.is_first = o->t == 1;
    o->op->upload(NULL, o->step, &step, sizeof step);
    if (o->is_sgd)
        o->op->sgd(NULL, o->w, o->g, o->state[0], o->range, o->nranges, o->momentum, o->step);
    else
        o->op->adamw(NULL, o->w, o->g, o->state[0], o->state[1], o->range, o->nranges, &o->adam,
                     o->step);
}
