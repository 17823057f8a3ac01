#include "optim/optim.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

static bool is_sgd(const struct meg_optim_conf *c)
{
    return !strcmp(c->optimizer, "sgd");
}

void meg_optim_memory_size(struct meg_optim_memory *m, const struct meg_optim_conf *c, const struct meg_params *params,
                           const struct meg_layout *l, const struct meg_gpt_run *run)
{
    const size_t n = (size_t)meg_zero_shard_numel(params, l), nbytes = n * sizeof(float);

    m->state = nbytes * (is_sgd(c) ? 1 : 2);
    m->main = run->dtype == MEG_DTYPE_F32 && !run->shards_params ? 0 : nbytes;
    m->main_grad = run->grad_dtype == MEG_DTYPE_F32 && !run->shards_grads ? 0 : nbytes;
    m->grads = run->grad_dtype == MEG_DTYPE_F32 || !run->shards_grads ? 0 : n * meg_dtype_size(run->grad_dtype);
    m->params = run->dtype == MEG_DTYPE_F32 || !run->shards_params ? 0 : n * meg_dtype_size(run->dtype);
}

/* ---- where pieces lie ----------------------------------------------------------------------- */

/* Of a model's flat buffer. */
static void *flat(void *base, enum meg_dtype t, const struct meg_zero_bucket_shard *v)
{
    return meg_element(base, v->begin, t);
}

void *meg_optim_param_shards(const struct meg_optim *o)
{
    return !o->model->run.shards_params ? NULL : o->param_shards ? o->param_shards : o->main;
}

/* A piece of the parameters in the model's type. */
static void *w_of(const struct meg_optim *o, const struct meg_zero_bucket_shard *v)
{
    const enum meg_dtype t = o->model->run.dtype;
    void *slices = meg_optim_param_shards(o);

    return slices ? meg_element(slices, v->shard_offset, t) : flat(o->model->w, t, v);
}

static float *main_of(const struct meg_optim *o, const struct meg_zero_bucket_shard *v)
{
    return o->main ? o->main + v->shard_offset : flat(o->model->w, MEG_DTYPE_F32, v);
}

static float *grad_of(const struct meg_optim *o, const struct meg_zero_bucket_shard *v)
{
    return o->main_grad ? o->main_grad + v->shard_offset : flat(o->model->g, MEG_DTYPE_F32, v);
}

/* ---- making --------------------------------------------------------------------------------- */

/* Runs of the pieces whose rows this rank counts, joined where only a gap is between them. */
static void count(struct meg_optim *o)
{
    const struct meg_zero_shard *s = &o->shard;

    o->norm_ranges = meg_new(((size_t)s->nparam_ranges + 1) * sizeof *o->norm_ranges);
    for (int i = 0; i < s->nparam_ranges; i++) {
        const struct meg_zero_param_range *r = &s->param_range[i];
        struct meg_zero_param_range *last = o->num_norm_ranges ? &o->norm_ranges[o->num_norm_ranges - 1] : NULL;

        if (!meg_param_is_counted(&o->params->row[r->row], o->mesh))
            continue;
        if (last && last->bucket_shard == r->bucket_shard && r->begin - last->end < MEG_PARAM_ALIGN)
            last->end = r->end;
        else
            o->norm_ranges[o->num_norm_ranges++] = *r;
    }
}

static void poll(struct meg_optim *o)
{
    meg_reducer_poll(&o->reducer);
    meg_gatherer_poll(&o->gatherer);
    meg_layer_reducer_poll(&o->layer_reducer);
    meg_layer_gatherer_poll(&o->layer_gatherer);
}

static void reads(void *user, int section, int next, bool is_backward)
{
    struct meg_optim *o = user;

    if (o->model->run.shards_params)
        meg_layer_gatherer_unshard(&o->layer_gatherer, section, next);
    else
        meg_gatherer_wait(&o->gatherer, section);
    if (o->model->run.shards_grads && is_backward)
        meg_layer_reducer_prepare(&o->layer_reducer, section);
    poll(o);
}

static void wrote(void *user, int section)
{
    struct meg_optim *o = user;

    if (o->model->run.shards_grads)
        meg_layer_reducer_grads_ready(&o->layer_reducer, section);
    else
        meg_reducer_grads_ready(&o->reducer, section);
    poll(o);
}

static int allocate(struct meg_optim *o, const struct meg_optim_conf *c, struct meg_err *e)
{
    const size_t n = (size_t)o->shard.numel;
    struct meg_optim_memory m;
    bool is_short;

    meg_optim_memory_size(&m, c, o->params, &o->mesh->layout, &o->model->run);
    o->step = o->op->alloc(sizeof *o->step);
    o->scalar = o->op->alloc(sizeof(double));
    is_short = !o->step || !o->scalar;
    for (int i = 0; i < o->nstates; i++)
        is_short |= !(o->state[i] = o->op->alloc(m.state / (size_t)o->nstates));
    is_short |= m.main && !(o->main = o->op->alloc(m.main));
    is_short |= m.grads && !(o->grad_shards = o->op->alloc(m.grads));
    is_short |= m.params && !(o->param_shards = o->op->alloc(m.params));
    is_short |= !(o->nan_guard.sum = o->op->alloc(sizeof *o->nan_guard.sum));
    is_short |= m.main_grad && !(o->main_grad = o->op->alloc(m.main_grad));
    if (is_short)
        return meg_fail(e, MEG_EFAIL, "optimizer: no memory for %zu bytes of state",
                        m.params + m.grads + m.main + m.main_grad + m.state);
    o->used.params = o->param_shards ? n * meg_dtype_size(o->model->run.dtype) : 0;
    o->used.grads = o->grad_shards ? n * meg_dtype_size(o->model->run.grad_dtype) : 0;
    o->used.main = o->main ? n * sizeof *o->main : 0;
    o->used.main_grad = o->main_grad ? n * sizeof *o->main_grad : 0;
    o->used.state = (size_t)o->nstates * n * sizeof *o->state[0];
    return 0;
}

/* What passes write and read, by the way the model has it. */
static void connect(struct meg_optim *o, const struct meg_zero_conf *c)
{
    const struct meg_gpt *g = o->model;
    const struct meg_mesh *m = o->mesh;

    o->nan_guard.params = o->params;
    o->nan_guard.op = o->op;
    meg_reducer_init(&o->reducer, m, o->params, &o->nan_guard, g->g, g->run.grad_dtype, c->overlap_grad_reduce);
    meg_reducer_begin(&o->reducer, 0);
    meg_gatherer_init(&o->gatherer, o->params, m->slices, g->w, g->run.dtype);
    o->layer_reducer = (struct meg_layer_reducer){ m,
                                                   o->params,
                                                   o->op,
                                                   &o->nan_guard,
                                                   g->g,
                                                   g->run.grad_dtype,
                                                   o->grad_shards ? o->grad_shards : o->main_grad,
                                                   c->overlap_grad_reduce,
                                                   NULL,
                                                   -1 };
    o->layer_gatherer = (struct meg_layer_gatherer){ .mesh = m,
                                                     .params = o->params,
                                                     .w = g->w,
                                                     .param_shards = meg_optim_param_shards(o),
                                                     .dtype = g->run.dtype,
                                                     .overlaps = c->overlap_param_gather };
    meg_layer_gatherer_invalidate(&o->layer_gatherer);
}

int meg_optim_create(struct meg_optim **out, const struct meg_optim_conf *c, const struct meg_zero_conf *share,
                     struct meg_gpt *model, struct meg_err *e)
{
    struct meg_optim *o = meg_new(sizeof *o);
    int r;

    o->op = model->op;
    o->model = model;
    o->mesh = model->mesh;
    o->params = &model->params;
    o->is_sgd = is_sgd(c);
    o->overlaps_param_gather = share->overlap_param_gather;
    o->adam.beta1 = (float)c->adam_beta1;
    o->adam.beta2 = (float)c->adam_beta2;
    o->adam.eps = (float)c->adam_eps;
    o->momentum = (float)c->sgd_momentum;
    o->clip = (float)c->clip_grad;
    o->nstates = o->is_sgd ? 1 : 2;
    o->state_name[0] = o->is_sgd ? "momentum_buffer" : "exp_avg";
    o->state_name[1] = o->is_sgd ? NULL : "exp_avg_sq";
    meg_zero_shard_make(&o->shard, o->params, &o->mesh->layout, o->mesh->slices->rank);
    count(o);
    if ((r = allocate(o, c, e)) < 0) {
        meg_optim_close(o);
        return r;
    }
    connect(o, share);
    model->hooks = (struct meg_gpt_hooks){ o, reads, wrote };
    *out = o;
    return 0;
}

void meg_optim_close(struct meg_optim *o)
{
    if (!o)
        return;
    if (o->layer_gatherer.mesh) /* nothing is on its way where not all of it was made */
        meg_optim_finish_param_sync(o);
    for (int i = 0; i < o->nstates; i++)
        o->op->release(o->state[i]);
    o->op->release(o->main);
    o->op->release(o->main_grad);
    o->op->release(o->param_shards);
    o->op->release(o->grad_shards);
    o->op->release(o->nan_guard.sum);
    o->op->release(o->step);
    o->op->release(o->scalar);
    meg_reducer_free(&o->reducer);
    meg_zero_shard_free(&o->shard);
    free(o->norm_ranges);
    free(o);
}

/* ---- main parameters ------------------------------------------------------------------------ */

/* Where main parameters are others than the model's. */
static void cast(struct meg_optim *o, bool gives)
{
    const enum meg_dtype t = o->model->run.dtype;

    for (int k = 0; k < o->shard.nbucket_shards && t != MEG_DTYPE_F32; k++) {
        const struct meg_zero_bucket_shard *v = &o->shard.bucket_shard[k];

        if (gives)
            o->op->cast(NULL, w_of(o, v), t, main_of(o, v), MEG_DTYPE_F32, v->end - v->begin);
        else
            o->op->cast(NULL, main_of(o, v), MEG_DTYPE_F32, w_of(o, v), t, v->end - v->begin);
    }
}

void meg_optim_finish_param_sync(struct meg_optim *o)
{
    meg_gatherer_end(&o->gatherer);
    meg_layer_gatherer_end(&o->layer_gatherer);
}

void meg_optim_reload_params(struct meg_optim *o, bool has_main)
{
    if (!has_main)
        cast(o, false);
    meg_layer_gatherer_invalidate(&o->layer_gatherer);
}

/* Main parameters have changed: so have those that passes read. */
static void sync_model_params(struct meg_optim *o)
{
    cast(o, true);
    if (o->model->run.shards_params) {
        meg_layer_gatherer_end(&o->layer_gatherer);
        meg_layer_gatherer_invalidate(&o->layer_gatherer);
        return;
    }
    meg_gatherer_begin(&o->gatherer);
    if (!o->overlaps_param_gather)
        meg_gatherer_end(&o->gatherer);
}

/* Initial weights of the pieces alone. */
static void init_shards(struct meg_optim *o, uint32_t seed)
{
    for (int i = 0; i < o->shard.nparam_ranges; i++) {
        const struct meg_zero_param_range *r = &o->shard.param_range[i];
        const struct meg_zero_bucket_shard *v = &o->shard.bucket_shard[r->bucket_shard];
        const struct meg_param *row = &o->params->row[r->row];
        const int64_t n = r->end - r->begin;
        float *host = meg_new((size_t)n * sizeof *host);

        meg_param_init_shard(row, seed, v->begin + r->begin - row->offset, n, host);
        o->op->upload(NULL, main_of(o, v) + r->begin, host, (size_t)n * sizeof *host);
        free(host);
    }
    cast(o, true);
}

void meg_optim_init(struct meg_optim *o, uint32_t seed)
{
    if (o->model->run.shards_params)
        init_shards(o, seed);
    else
        meg_gpt_init(o->model, seed);
    cast(o, false);
}

/* ---- gradients ------------------------------------------------------------------------------ */

void meg_optim_begin(struct meg_optim *o, int64_t passes, bool watches)
{
    o->nan_guard.is_on = watches;
    o->nan_guard.found = NULL;
    meg_reducer_begin(&o->reducer, passes);
}

void meg_optim_reduce_grads(struct meg_optim *o)
{
    const enum meg_dtype t = o->model->run.grad_dtype;

    if (o->model->run.shards_grads) {
        meg_layer_reducer_end(&o->layer_reducer);
        if (o->grad_shards) {
            o->op->cast(NULL, o->main_grad, MEG_DTYPE_F32, o->grad_shards, t, o->shard.numel);
            o->op->zero(NULL, o->grad_shards, (size_t)o->shard.numel * meg_dtype_size(t));
        }
        return;
    }
    meg_reducer_end(&o->reducer);
    for (int k = 0; k < o->shard.nbucket_shards && o->main_grad; k++) {
        const struct meg_zero_bucket_shard *v = &o->shard.bucket_shard[k];

        o->op->cast(NULL, grad_of(o, v), MEG_DTYPE_F32, flat(o->model->g, t, v), t, v->end - v->begin);
    }
}

const struct meg_param *meg_optim_nonfinite(const struct meg_optim *o)
{
    return o->nan_guard.found;
}

/* ---- sums ----------------------------------------------------------------------------------- */

/* Over ranks that hold different parts of the model or of its gradients. */
static void add_up(struct meg_optim *o, void *sum, enum meg_dtype t)
{
    meg_all_reduce(o->mesh->model, sum, 1, t, MEG_REDUCE_SUM);
    meg_all_reduce(o->mesh->slices, sum, 1, t, MEG_REDUCE_SUM);
}

static double sumsq(struct meg_optim *o, const float *x, int64_t n)
{
    double sum;

    o->op->sumsq(NULL, o->scalar, x, MEG_DTYPE_F32, n);
    o->op->download(NULL, &sum, o->scalar, sizeof sum);
    return sum;
}

/* Over the whole model, each parameter once. */
static double norm(struct meg_optim *o, float *(*of)(const struct meg_optim *o, const struct meg_zero_bucket_shard *v))
{
    double sum = 0;

    for (int i = 0; i < o->num_norm_ranges; i++) {
        const struct meg_zero_param_range *r = &o->norm_ranges[i];

        sum += sumsq(o, of(o, &o->shard.bucket_shard[r->bucket_shard]) + r->begin, r->end - r->begin);
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

    for (int i = 0; i < o->shard.nparam_ranges; i++) {
        const struct meg_zero_param_range *r = &o->shard.param_range[i];

        if (!meg_param_is_counted(&o->params->row[r->row], o->mesh))
            continue;
        o->op->count_zeros(NULL, o->scalar, grad_of(o, &o->shard.bucket_shard[r->bucket_shard]) + r->begin,
                           MEG_DTYPE_F32, r->end - r->begin);
        o->op->download(NULL, &zeros, o->scalar, sizeof zeros);
        sum += zeros;
    }
    add_up(o, &sum, MEG_DTYPE_I64);
    return sum;
}

/* ---- the step ------------------------------------------------------------------------------- */

void meg_optim_zero_grad(struct meg_optim *o)
{
    const struct meg_gpt_run *run = &o->model->run;

    if (run->shards_grads)
        o->op->zero(NULL, o->main_grad, (size_t)o->shard.numel * sizeof *o->main_grad);
    else
        o->op->zero(NULL, o->model->g, (size_t)o->params->flat_numel * meg_dtype_size(run->grad_dtype));
}

static void update_shard(struct meg_optim *o, const struct meg_zero_bucket_shard *v)
{
    float *w = main_of(o, v), *g = grad_of(o, v), *s0 = o->state[0] + v->shard_offset;

    if (o->is_sgd)
        o->op->sgd(NULL, w, g, s0, v->hparam_range, v->nhparam_ranges, o->momentum, o->step);
    else
        o->op->adamw(NULL, w, g, s0, o->state[1] + v->shard_offset, v->hparam_range, v->nhparam_ranges, &o->adam,
                     o->step);
}

void meg_optim_update(struct meg_optim *o, const struct meg_optim_rates *r, double norm)
{
    struct meg_step_hparams step = { 0 };
    double clip = o->clip / (norm + 1e-6);

    o->step_count++;
    step.lr[0] = (float)r->lr;
    step.lr[1] = (float)r->decoupled_lr;
    step.weight_decay = (float)r->weight_decay;
    step.adam_c1 = (float)(1 - pow(o->adam.beta1, (double)o->step_count));
    step.adam_c2 = (float)(1 - pow(o->adam.beta2, (double)o->step_count));
    step.grad_scale = (float)(o->clip > 0 && clip < 1 ? r->grad_scale * clip : r->grad_scale);
    step.is_first = o->step_count == 1;
    o->op->upload(NULL, o->step, &step, sizeof step);
    for (int k = 0; k < o->shard.nbucket_shards; k++)
        update_shard(o, &o->shard.bucket_shard[k]);
    if (o->mesh->slices->size > 1 || o->main_grad)
        meg_optim_zero_grad(o); /* adamw and sgd have zeroed what they read only */
    sync_model_params(o);
}
