#include "optim/optim.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

static bool is_sgd(const struct meg_optim_conf *c)
{
    return !strcmp(c->optimizer, "sgd");
}

void meg_optim_plan(struct meg_optim_memory *m, const struct meg_optim_conf *c, const struct meg_params *params,
                    const struct meg_layout *l, const struct meg_gpt_run *run)
{
    const size_t nbytes = (size_t)meg_share_elements(params, l) * sizeof(float);

    m->state = nbytes * (is_sgd(c) ? 1 : 2);
    m->main = run->dtype == MEG_DTYPE_F32 ? 0 : nbytes;
    m->main_grad = run->grad == MEG_DTYPE_F32 ? 0 : nbytes;
}

/* ---- where pieces lie ----------------------------------------------------------------------- */

/* Of a model's flat buffer. */
static void *flat(void *base, enum meg_dtype t, const struct meg_piece *v)
{
    return (char *)base + (size_t)v->begin * meg_dtype_size(t);
}

static float *main_of(const struct meg_optim *o, const struct meg_piece *v)
{
    return o->main ? o->main + v->at : flat(o->model->w, MEG_DTYPE_F32, v);
}

static float *grad_of(const struct meg_optim *o, const struct meg_piece *v)
{
    return o->main_grad ? o->main_grad + v->at : flat(o->model->g, MEG_DTYPE_F32, v);
}

/* ---- making --------------------------------------------------------------------------------- */

/* Runs of the pieces whose rows this rank counts, joined where only a gap is between them. */
static void count(struct meg_optim *o)
{
    const struct meg_share *s = &o->share;

    o->counted = meg_new(((size_t)s->nruns + 1) * sizeof *o->counted);
    for (int i = 0; i < s->nruns; i++) {
        const struct meg_share_run *r = &s->run[i];
        struct meg_share_run *last = o->ncounted ? &o->counted[o->ncounted - 1] : NULL;

        if (!meg_param_is_counted(&o->params->row[r->row], o->mesh))
            continue;
        if (last && last->piece == r->piece && r->begin - last->end < MEG_PARAM_ALIGN)
            last->end = r->end;
        else
            o->counted[o->ncounted++] = *r;
    }
}

static void reads(void *user, int section, bool is_backward)
{
    struct meg_optim *o = user;

    (void)is_backward;
    meg_gatherer_reads(&o->gatherer, section);
    meg_reducer_poll(&o->reducer);
}

static void wrote(void *user, int section)
{
    struct meg_optim *o = user;

    meg_reducer_wrote(&o->reducer, section);
}

static int allocate(struct meg_optim *o, const struct meg_optim_conf *c, struct meg_err *e)
{
    struct meg_optim_memory m;
    bool is_short;

    meg_optim_plan(&m, c, o->params, &o->mesh->layout, &o->model->run);
    o->step = o->op->alloc(sizeof *o->step);
    o->scalar = o->op->alloc(sizeof(double));
    is_short = !o->step || !o->scalar;
    for (int i = 0; i < o->nstates; i++)
        is_short |= !(o->state[i] = o->op->alloc(m.state / (size_t)o->nstates));
    is_short |= m.main && !(o->main = o->op->alloc(m.main));
    is_short |= m.main_grad && !(o->main_grad = o->op->alloc(m.main_grad));
    if (is_short)
        return meg_fail(e, MEG_EFAIL, "optimizer: no memory for %zu bytes of state", m.state + m.main + m.main_grad);
    return 0;
}

int meg_optim_create(struct meg_optim **out, const struct meg_optim_conf *c, const struct meg_share_conf *share,
                     struct meg_gpt *model, struct meg_err *e)
{
    struct meg_optim *o = meg_new(sizeof *o);
    int r;

    o->op = model->op;
    o->model = model;
    o->mesh = model->mesh;
    o->params = &model->params;
    o->is_sgd = is_sgd(c);
    o->overlaps_gather = share->overlap_param_gather;
    o->adam.beta1 = (float)c->adam_beta1;
    o->adam.beta2 = (float)c->adam_beta2;
    o->adam.eps = (float)c->adam_eps;
    o->momentum = (float)c->sgd_momentum;
    o->clip = (float)c->clip_grad;
    o->nstates = o->is_sgd ? 1 : 2;
    o->state_name[0] = o->is_sgd ? "momentum_buffer" : "exp_avg";
    o->state_name[1] = o->is_sgd ? NULL : "exp_avg_sq";
    meg_share_make(&o->share, o->params, &o->mesh->layout, o->mesh->slices->rank);
    count(o);
    meg_reducer_init(&o->reducer, o->mesh, o->params, o->op, model->g, model->run.grad,
                     share->overlap_grad_reduce);
    meg_gatherer_init(&o->gatherer, o->params, o->mesh->slices, model->w, model->run.dtype);
    if ((r = allocate(o, c, e)) < 0) {
        meg_optim_close(o);
        return r;
    }
    meg_reducer_begin(&o->reducer, 0, false);
    model->hooks = (struct meg_gpt_hooks){ o, reads, wrote };
    *out = o;
    return 0;
}

void meg_optim_close(struct meg_optim *o)
{
    if (!o)
        return;
    for (int i = 0; i < o->nstates; i++)
        o->op->release(o->state[i]);
    o->op->release(o->main);
    o->op->release(o->main_grad);
    o->op->release(o->step);
    o->op->release(o->scalar);
    meg_gatherer_end(&o->gatherer);
    meg_reducer_free(&o->reducer);
    meg_share_free(&o->share);
    free(o->counted);
    free(o);
}

/* ---- main parameters ------------------------------------------------------------------------ */

static void cast(struct meg_optim *o, bool gives)
{
    const enum meg_dtype t = o->model->run.dtype;

    for (int k = 0; k < o->share.npieces && o->main; k++) {
        const struct meg_piece *v = &o->share.piece[k];
        void *w = flat(o->model->w, t, v);

        if (gives)
            o->op->cast(NULL, w, t, main_of(o, v), MEG_DTYPE_F32, v->end - v->begin);
        else
            o->op->cast(NULL, main_of(o, v), MEG_DTYPE_F32, w, t, v->end - v->begin);
    }
}

void meg_optim_take_weights(struct meg_optim *o)
{
    cast(o, false);
}

void meg_optim_give_weights(struct meg_optim *o)
{
    cast(o, true);
    meg_gatherer_begin(&o->gatherer);
    if (!o->overlaps_gather)
        meg_gatherer_end(&o->gatherer);
}

void meg_optim_finish(struct meg_optim *o)
{
    meg_gatherer_end(&o->gatherer);
}

/* ---- gradients ------------------------------------------------------------------------------ */

void meg_optim_begin(struct meg_optim *o, int64_t passes, bool watches)
{
    meg_reducer_begin(&o->reducer, passes, watches);
}

void meg_optim_add_up(struct meg_optim *o)
{
    const enum meg_dtype t = o->model->run.grad;

    meg_reducer_end(&o->reducer);
    for (int k = 0; k < o->share.npieces && o->main_grad; k++) {
        const struct meg_piece *v = &o->share.piece[k];

        o->op->cast(NULL, grad_of(o, v), MEG_DTYPE_F32, flat(o->model->g, t, v), t, v->end - v->begin);
    }
}

const struct meg_param *meg_optim_nonfinite(const struct meg_optim *o)
{
    return o->reducer.nonfinite;
}

/* ---- sums ----------------------------------------------------------------------------------- */

/* Over ranks that hold different parts of the model or of its gradients. */
static void add_up(struct meg_optim *o, void *sum, enum meg_dtype t)
{
    meg_all_reduce(o->mesh->model, sum, 1, t, MEG_SUM);
    meg_all_reduce(o->mesh->slices, sum, 1, t, MEG_SUM);
}

static double sumsq(struct meg_optim *o, const float *x, int64_t n)
{
    double sum;

    o->op->sumsq(NULL, o->scalar, x, MEG_DTYPE_F32, n);
    o->op->download(NULL, &sum, o->scalar, sizeof sum);
    return sum;
}

/* Over the whole model, each parameter once. */
static double norm(struct meg_optim *o, float *(*of)(const struct meg_optim *o, const struct meg_piece *v))
{
    double sum = 0;

    for (int i = 0; i < o->ncounted; i++) {
        const struct meg_share_run *r = &o->counted[i];

        sum += sumsq(o, of(o, &o->share.piece[r->piece]) + r->begin, r->end - r->begin);
    }
    add_up(o, &sum, MEG_DTYPE_F64);
    return sqrt(sum);
}

double meg_optim_grad_norm(struct meg_optim *o, double scale)
{
    return scale * norm(o, grad_of);
}

double meg_optim_params_norm(struct meg_optim *o)
{
    return norm(o, main_of);
}

int64_t meg_optim_num_zeros(struct meg_optim *o)
{
    int64_t zeros, sum = 0;

    for (int i = 0; i < o->share.nruns; i++) {
        const struct meg_share_run *r = &o->share.run[i];

        if (!meg_param_is_counted(&o->params->row[r->row], o->mesh))
            continue;
        o->op->count_zeros(NULL, o->scalar, grad_of(o, &o->share.piece[r->piece]) + r->begin, MEG_DTYPE_F32,
                           r->end - r->begin);
        o->op->download(NULL, &zeros, o->scalar, sizeof zeros);
        sum += zeros;
    }
    add_up(o, &sum, MEG_DTYPE_I64);
    return sum;
}

/* ---- the step ------------------------------------------------------------------------------- */

void meg_optim_skip(struct meg_optim *o)
{
    o->op->zero(NULL, o->model->g, (size_t)o->params->flat * meg_dtype_size(o->model->run.grad));
}

static void update_piece(struct meg_optim *o, const struct meg_piece *v)
{
    float *w = main_of(o, v), *g = grad_of(o, v), *s0 = o->state[0] + v->at;

    if (o->is_sgd)
        o->op->sgd(NULL, w, g, s0, v->range, v->nranges, o->momentum, o->step);
    else
        o->op->adamw(NULL, w, g, s0, o->state[1] + v->at, v->range, v->nranges, &o->adam, o->step);
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
    for (int k = 0; k < o->share.npieces; k++)
        update_piece(o, &o->share.piece[k]);
    if (o->mesh->slices->size > 1 || o->main_grad)
        meg_optim_skip(o);           /* what adamw and sgd have not zeroed */
    meg_optim_give_weights(o);
}
