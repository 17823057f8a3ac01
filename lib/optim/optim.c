/* optim.c - the optimizer step on one rank's shard: gradient clipping, norms over the model. */
#include "optim/optim.h"
#include <math.h>
#include <stdlib.h>
#include "base/mem.h"
#include "placement/placement.h"

/* Return whether the optimizer has f32 main parameters.  The array is empty on a rank that updates no elements. */
static bool has_main_params(const struct meg_optim_conf *c, const struct meg_model_run *run)
{
    return run->dtype != MEG_DTYPE_F32 && c->main_params_dtype == MEG_DTYPE_F32;
}

void meg_optim_memory_size(struct meg_optim_memory *m, const struct meg_optim_conf *c, const struct meg_params *params,
                           const struct meg_layout *l, const struct meg_model_run *run)
{
    const size_t n = (size_t)meg_zero_shard_numel(params, l);

    m->state = 0;
    for (int i = 0; i < meg_optimizer_of(c)->nstates; i++)
        m->state += n * meg_dtype_size(meg_optimizer_state_dtype(c, i));
    m->main = has_main_params(c, run) ? n * sizeof(float) : 0;
    m->grads = run->shards_grads ? n * meg_dtype_size(run->grad_dtype) : 0;
    m->params = run->shards_params ? meg_zero_shard_nbytes(params, l, run->dtype) : 0;
}

/* ---- the elements of one bucket shard ------------------------------------------------------------ */

/* Return bucket shard v of an array that concatenates the bucket shards; `base` is the beginning of the array. */
static struct meg_array in_shards(void *base, enum meg_dtype dtype, const struct meg_zero_bucket_shard *v)
{
    return (struct meg_array){ meg_element(base, v->shard_offset, dtype), dtype };
}

/* Return the parameters of bucket shard v, as the model uses them. */
static struct meg_array param_shard(const struct meg_optim *o, const struct meg_zero_bucket_shard *v)
{
    const struct meg_zero_shard *s = &o->shard;
    const enum meg_dtype dtype = o->model->run.dtype;

    return (struct meg_array){ s->params ? meg_params_shard_element(o->params, s->range, s->nbucket_shards, s->params,
                                                                    v->shard_offset, dtype)
                                         : meg_params_element(o->params, o->model->w, v->begin, dtype),
                               meg_params_dtype(o->params, v->begin, dtype) };
}

/* Return the parameters of bucket shard v that the optimizer updates.  Frozen parameters have no main parameters. */
static struct meg_array main_shard(const struct meg_optim *o, const struct meg_zero_bucket_shard *v)
{
    return o->buf.main && v->begin < o->params->grad_numel ? in_shards(o->buf.main, MEG_DTYPE_F32, v)
                                                           : param_shard(o, v);
}

/* Return the gradients of bucket shard v. */
static struct meg_array grad_shard(const struct meg_optim *o, const struct meg_zero_bucket_shard *v)
{
    const enum meg_dtype dtype = o->model->run.grad_dtype;

    if (o->shard.grads)
        return in_shards(o->shard.grads, dtype, v);
    return (struct meg_array){ meg_element(o->model->g, v->begin, dtype), dtype };
}

/* ---- creation ------------------------------------------------------------------------------------ */

static struct meg_param_span span_of(const struct meg_optim *o, const struct meg_zero_param_range *r)
{
    return meg_param_span_at(&o->params->row[r->row], r->span);
}

/*
 * Return whether this rank counts the elements of a range in sums over the model (all_reduce_sum), so that each
 * trained element is counted once.  Without ZeRO, a model-parallel group may have several replicas, and the first one
 * counts.
 */
static bool is_summed(const struct meg_optim *o, const struct meg_zero_param_range *r)
{
    const struct meg_layout *l = &o->mesh->layout;
    const struct meg_param *row = &o->params->row[r->row];
    const bool is_counted = meg_param_is_counted(row, span_of(o, r).is_tp_replica, o->mesh);

    return !row->is_frozen && is_counted &&
           (l->zero.nshards || meg_layout_stage_rank(l, o->mesh->coords) % meg_layout_mp_size(l) <
                                   meg_layout_replica_size(l, row->dp_group));
}

/*
 * List the parameter ranges that this rank counts in norms over the model.  Ranges with only padding (zeros) between
 * them are merged.
 */
static void list_norm_ranges(struct meg_optim *o)
{
    const struct meg_zero_shard *s = &o->shard;
    struct meg_zero_param_range *last = NULL; /* the range before range i, if it is counted */

    o->norm_ranges = meg_new(((size_t)s->nparam_ranges + 1) * sizeof *o->norm_ranges);
    for (int i = 0; i < s->nparam_ranges; i++) {
        const struct meg_zero_param_range *r = &s->param_range[i];

        if (!is_summed(o, r)) {
            last = NULL;
        } else if (last && last->bucket_shard == r->bucket_shard) {
            last->end = r->end;
        } else {
            last = &o->norm_ranges[o->num_norm_ranges++];
            *last = *r;
        }
    }
}

/*
 * Upload the table of parameter ranges that this rank updates (struct meg_update_range): bounds, multipliers, and
 * positions in the unsharded parameters.
 */
static void upload_ranges(struct meg_optim *o)
{
    const struct meg_zero_shard *s = &o->shard;
    struct meg_update_range *range = meg_new(((size_t)s->nparam_ranges + 1) * sizeof *range);

    for (int i = 0; i < s->nparam_ranges; i++) {
        const struct meg_zero_param_range *r = &s->param_range[i];
        const struct meg_param *row = &o->params->row[r->row];
        const struct meg_param_span span = span_of(o, r);

        range[i].begin = r->begin;
        range[i].end = r->end;
        range[i].wd_mult = row->is_decayed ? 1 : 0;
        range[i].lr_mult = 1;
        range[i].lr_index = row->is_decoupled;
        range[i].row = (uint32_t)r->row;
        range[i].first = s->bucket_shard[r->bucket_shard].begin + r->begin - row->offset - span.begin;
        range[i].base = span.base;
        range[i].cols = span.cols;
        range[i].ld = span.ld;
    }
    o->op->upload(o->stream, o->ranges, range, (size_t)s->nparam_ranges * sizeof *range);
    free(range);
}

/* Declare the placements of the shards of parameters that are not in the model's flat buffer. */
static void place_shards(const struct meg_optim *o)
{
    for (int i = 0; i < o->shard.nparam_ranges; i++) {
        const struct meg_zero_param_range *r = &o->shard.param_range[i];
        const struct meg_zero_bucket_shard *v = &o->shard.bucket_shard[r->bucket_shard];
        const struct meg_param *row = &o->params->row[r->row];
        const struct meg_array x[] = { main_shard(o, v), param_shard(o, v) };

        for (int k = o->buf.main ? 0 : 1; k < (o->shard.params ? 2 : 1); k++)
            meg_placement_param_shard(row, meg_element(x[k].p, r->begin, x[k].dtype), r->end - r->begin, x[k].dtype,
                                      o->mesh->dp[row->dp_group].shard);
    }
}

static void on_params_needed(void *user, int group, int next, bool is_backward)
{
    meg_zero_params_needed(&((struct meg_optim *)user)->sync, group, next, is_backward);
}

static void on_grads_ready(void *user, int group)
{
    meg_zero_grads_ready(&((struct meg_optim *)user)->sync, group);
}

static int allocate(struct meg_optim *o, const struct meg_optim_conf *c, struct meg_err *e)
{
    const size_t n = (size_t)o->shard.numel;
    const struct meg_device *d = o->model->device;
    struct meg_optim_buffers *b = &o->buf;
    struct meg_optim_memory *m = &o->used;
    bool is_short;

    meg_optim_memory_size(m, c, o->params, &o->mesh->layout, &o->model->run);
    is_short = !(o->record = o->op->alloc(sizeof *o->record));
    for (int i = 0; i < MEG_MAX_QUEUED_STEPS; i++)
        is_short |= !(o->result[i] = o->op->alloc_pinned(sizeof *o->result[i]));
    for (int i = 0; i < o->optimizer->nstates; i++)
        is_short |= !(b->state[i] = o->op->alloc(n * meg_dtype_size(o->state_dtype[i])));
    is_short |= has_main_params(c, &o->model->run) && !(b->main = o->op->alloc(m->main));
    is_short |= m->grads && !(o->shard.grads = meg_mesh_alloc(o->mesh, d, m->grads));
    is_short |= m->params && !(o->shard.params = meg_mesh_alloc(o->mesh, d, m->params));
    is_short |= meg_nan_guard_init(&o->nan_guard, o->params, o->model->device) < 0;
    is_short |= meg_tp_grads_init(&o->tp_grads, o->mesh, o->params, d, o->model->run.grad_dtype) < 0;
    is_short |= !(o->ranges = o->op->alloc(((size_t)o->shard.nparam_ranges + 1) * sizeof *o->ranges));
    if (is_short)
        return meg_fail(e, MEG_EFAIL,
                        "out of memory: the optimizer requires %.1f MiB; use more data-parallel ranks with "
                        "--use-distributed-optimizer, or --zero-stage 2 or 3",
                        (double)(m->params + m->grads + m->main + m->state) / 0x1p20);
    return 0;
}

int meg_optim_create(struct meg_optim **out, const struct meg_optim_conf *c, const struct meg_zero_conf *zero,
                     struct meg_model *model, struct meg_err *e)
{
    struct meg_optim *o = meg_new(sizeof *o);
    int r;

    o->op = model->op;
    o->stream = model->device->compute;
    o->model = model;
    o->mesh = model->mesh;
    o->params = &model->params;
    o->optimizer = meg_optimizer_of(c);
    for (int i = 0; i < o->optimizer->nstates; i++)
        o->state_dtype[i] = meg_optimizer_state_dtype(c, i);
    o->adam.beta1 = (float)c->adam_beta1;
    o->adam.beta2 = (float)c->adam_beta2;
    o->adam.eps = (float)c->adam_eps;
    o->momentum = (float)c->sgd_momentum;
    o->clip = (float)c->clip_grad;
    meg_zero_shard_make(&o->shard, o->params, &o->mesh->layout, o->mesh->coords);
    list_norm_ranges(o);
    if ((r = allocate(o, c, e)) < 0) {
        meg_optim_close(o);
        return r;
    }
    meg_zero_sync_init(&o->sync, zero, model, &o->nan_guard, &o->tp_grads, &o->shard);
    for (int i = 0; i < MEG_MAX_QUEUED_STEPS; i++)
        o->result_done[i] = o->op->event_create();
    upload_ranges(o);
    place_shards(o);
    meg_optim_restore(o, 0, &(struct meg_scaler){ .type = MEG_SCALER_NONE, .scale = 1 });
    model->loss_scale = &o->record->scaler.scale;
    model->hooks = (struct meg_model_hooks){ o, on_params_needed, on_grads_ready };
    *out = o;
    return 0;
}

void meg_optim_close(struct meg_optim *o)
{
    const struct meg_device *d;

    if (!o)
        return;
    d = o->model->device;
    meg_zero_sync_free(&o->sync);
    meg_graphs_free(&o->graphs, d);
    for (int i = 0; i < o->optimizer->nstates; i++)
        o->op->release(o->buf.state[i]);
    o->op->release(o->ranges);
    o->op->release(o->buf.main);
    meg_mesh_release(o->mesh, d, o->shard.params);
    meg_mesh_release(o->mesh, d, o->shard.grads);
    meg_nan_guard_free(&o->nan_guard);
    meg_tp_grads_free(&o->tp_grads);
    o->op->release(o->record);
    for (int i = 0; i < MEG_MAX_QUEUED_STEPS; i++) {
        o->op->release_pinned(o->result[i]);
        if (o->result_done[i])
            o->op->event_destroy(o->result_done[i]);
    }
    meg_zero_shard_free(&o->shard);
    free(o->norm_ranges);
    free(o);
}

/* ---- main parameters ----------------------------------------------------------------------------- */

/* Set the main parameters, if there are any, to the model's parameters. */
static void set_main(const struct meg_optim *o)
{
    for (int k = 0; k < o->shard.nupdated && o->buf.main; k++) {
        const struct meg_zero_bucket_shard *v = &o->shard.bucket_shard[k];
        const struct meg_array main = main_shard(o, v), param = param_shard(o, v);

        MEG_CALL(o->op, o->stream, cast, .dst = main.p, .dst_type = main.dtype, .src = param.p, .src_type = param.dtype,
                 .n = v->end - v->begin);
    }
}

void meg_optim_finish_param_sync(struct meg_optim *o)
{
    meg_zero_finish_param_sync(&o->sync);
}

void meg_optim_reload_params(struct meg_optim *o, bool has_main)
{
    if (!has_main)
        set_main(o);
    meg_zero_params_loaded(&o->sync);
}

void meg_optim_restore(struct meg_optim *o, int64_t step_count, const struct meg_scaler *scaler)
{
    const struct meg_step_record record = { .scaler = *scaler, .num_updates = step_count };

    MEG_ASSERT_EQ(o->num_read, o->num_ended);
    o->step_count = step_count;
    o->op->upload(o->stream, o->record, &record, sizeof record);
}

/* With ZeRO-3, initialize only this rank's shard of the parameters. */
static void init_shard(struct meg_optim *o, uint32_t seed)
{
    for (int i = 0; i < o->shard.nparam_ranges; i++) {
        const struct meg_zero_param_range *r = &o->shard.param_range[i];
        const struct meg_zero_bucket_shard *v = &o->shard.bucket_shard[r->bucket_shard];
        const struct meg_param *row = &o->params->row[r->row];
        const int64_t n = r->end - r->begin;
        const struct meg_array to = param_shard(o, v);
        float *host = meg_new((size_t)n * sizeof *host);

        meg_param_init_shard(row, seed, v->begin + r->begin - row->offset, n, host);
        meg_dtype_from_f32(host, to.dtype, host, n);
        o->op->upload(o->stream, meg_element(to.p, r->begin, to.dtype), host, (size_t)n * meg_dtype_size(to.dtype));
        free(host);
    }
}

void meg_optim_init(struct meg_optim *o, uint32_t seed)
{
    if (o->model->run.shards_params)
        init_shard(o, seed);
    else
        meg_model_init(o->model, seed);
    set_main(o);
}

/* ---- gradients ----------------------------------------------------------------------------------- */

void meg_optim_begin(struct meg_optim *o, int64_t num_passes, bool check_finite)
{
    o->op->zero(o->stream, &o->record->sums, sizeof o->record->sums);
    meg_model_zero_grads(o->model);
    meg_nan_guard_begin(&o->nan_guard, check_finite);
    meg_zero_begin(&o->sync, num_passes);
}

void meg_optim_reduce_grads(struct meg_optim *o)
{
    meg_zero_reduce_grads(&o->sync);
}

/* ---- sums over the model --------------------------------------------------------------------------- */

/*
 * Sum one value in device memory over the ranks that hold different shards of the model or of its gradients: over mp,
 * and then over the ranks with different shards of the same experts.  With ZeRO, these two sums cover all ranks of an
 * optimizer instance, and therefore all shards of the dense parameters.
 */
static void all_reduce_sum(struct meg_optim *o, void *sum, enum meg_dtype dtype)
{
    meg_all_reduce(o->mesh->mp, o->stream, sum, 1, dtype, MEG_REDUCE_SUM);
    meg_all_reduce(o->mesh->dp[MEG_DP_EXPERT].shard, o->stream, sum, 1, dtype, MEG_REDUCE_SUM);
}

/*
 * Increase *sum by the sum of squares of the parameters or gradients in o->norm_ranges.  shard() returns the array of
 * one bucket shard of this rank.
 */
static void sum_squares(const struct meg_optim *o, double *sum,
                        struct meg_array (*shard)(const struct meg_optim *o, const struct meg_zero_bucket_shard *v))
{
    for (int i = 0; i < o->num_norm_ranges; i++) {
        const struct meg_zero_param_range *r = &o->norm_ranges[i];
        const struct meg_array x = shard(o, &o->shard.bucket_shard[r->bucket_shard]);

        MEG_CALL(o->op, o->stream, sumsq, .out = sum, .x = meg_element(x.p, r->begin, x.dtype), .type = x.dtype,
                 .n = r->end - r->begin);
    }
}

static void sum_squares_of_grads(const void *optim)
{
    const struct meg_optim *o = *(struct meg_optim *const *)optim;

    sum_squares(o, &o->record->sums.grad_sumsq, grad_shard);
}

void meg_optim_sum_params(struct meg_optim *o)
{
    double *sum = &o->record->sums.param_sumsq;

    sum_squares(o, sum, main_shard);
    all_reduce_sum(o, sum, MEG_DTYPE_F64);
}

void meg_optim_count_zeros(struct meg_optim *o)
{
    int64_t *sum = &o->record->sums.num_zeros;

    for (int i = 0; i < o->shard.nparam_ranges; i++) {
        const struct meg_zero_param_range *r = &o->shard.param_range[i];
        const struct meg_array g = grad_shard(o, &o->shard.bucket_shard[r->bucket_shard]);

        if (is_summed(o, r))
            MEG_CALL(o->op, o->stream, count_zeros, .out = sum, .x = meg_element(g.p, r->begin, g.dtype),
                     .type = g.dtype, .n = r->end - r->begin);
    }
    all_reduce_sum(o, sum, MEG_DTYPE_I64);
}

void meg_optim_sum_losses(struct meg_optim *o, double loss_divisor)
{
    struct meg_step_sums *s = &o->record->sums;
    const int64_t n = meg_model_num_losses(o->model);

    o->op->copy(o->stream, s->local_loss, o->model->loss_sum, sizeof s->local_loss);
    o->op->copy(o->stream, s->loss, o->model->loss_sum, sizeof s->loss);
    o->op->upload(o->stream, &s->loss_divisor, &loss_divisor, sizeof loss_divisor);
    meg_placement_declare(&s->loss_divisor, sizeof loss_divisor, o->mesh->dp_cp, MEG_PLACEMENT_UNKNOWN,
                          MEG_PLACEMENT_PARTIAL);
    /*
     * Over the data- and context-parallel ranks, sum loss_divisor and the losses, which follow it in memory.  Over the
     * pipeline stages, on which loss_divisor is equal, sum only the losses.
     */
    meg_all_reduce(o->mesh->dp_cp, o->stream, &s->loss_divisor, 1 + n, MEG_DTYPE_F64, MEG_REDUCE_SUM);
    meg_all_reduce(o->mesh->pp, o->stream, s->loss, n, MEG_DTYPE_F64, MEG_REDUCE_SUM);
}

/* ---- the step ------------------------------------------------------------------------------------ */

/* Return the hyper-parameters of update number `step`, counted from 1. */
static struct meg_step_hparams hparams(const struct meg_optim *o, const struct meg_optim_rates *r, int64_t step)
{
    const struct meg_step_hparams h = {
        .lr = { (float)r->lr, (float)r->decoupled_lr },
        .weight_decay = (float)r->weight_decay,
        .adam_c1 = (float)(1 - pow(o->adam.beta1, (double)step)),
        .adam_c2 = (float)(1 - pow(o->adam.beta2, (double)step)),
        .update = step,
    };

    return h;
}

/*
 * Call run(&o), as a graph if the model uses graphs.  The arguments of the operations are equal in all steps.
 */
static void run_graph(struct meg_optim *o, void (*run)(const void *optim))
{
    if (o->model->run.uses_graphs)
        meg_graphs_run(&o->graphs, o->model->device, run, &o, sizeof o);
    else
        run(&o);
}

void meg_optim_decide(struct meg_optim *o, const struct meg_optim_step *s)
{
    const struct meg_step_conf conf = {
        .candidate = { hparams(o, &s->rates[0], o->step_count + 1), hparams(o, &s->rates[1], o->step_count + 2) },
        .num_updates = o->step_count,
        .clip_grad = o->clip,
        .has_grad_norm = s->has_grad_norm,
        .is_per_token = s->is_per_token,
        .skips_nonfinite = s->skips_nonfinite,
        .grad_sum = o->nan_guard.sums,
        .num_params = o->nan_guard.is_on ? o->params->n : 0,
    };

    if (s->has_grad_norm) {
        run_graph(o, sum_squares_of_grads);
        all_reduce_sum(o, &o->record->sums.grad_sumsq, MEG_DTYPE_F64);
    }
    MEG_CALL(o->op, o->stream, step_finish, .record = o->record, .conf = &conf);
}

static void update_shards(const void *optim)
{
    const struct meg_optim *o = *(struct meg_optim *const *)optim;

    for (int k = 0; k < o->shard.nupdated; k++) {
        const struct meg_zero_bucket_shard *v = &o->shard.bucket_shard[k];
        const struct meg_array param = param_shard(o, v);
        struct meg_update_arrays x = { .w = main_shard(o, v), .g = grad_shard(o, v), .seed = o->model->run.seed };

        if (x.w.p != param.p)
            x.copy = param;
        for (int i = 0; i < o->optimizer->nstates; i++)
            x.state[i] = in_shards(o->buf.state[i], o->state_dtype[i], v);
        o->optimizer->update(o, &x, o->ranges + v->first_range, v->nranges);
    }
}

void meg_optim_update(struct meg_optim *o)
{
    run_graph(o, update_shards);
    meg_zero_params_updated(&o->sync);
}

void meg_optim_end(struct meg_optim *o)
{
    const int64_t i = o->num_ended++ % MEG_MAX_QUEUED_STEPS;

    MEG_ASSERT_LE(o->num_ended - o->num_read, MEG_MAX_QUEUED_STEPS);
    o->op->download(o->stream, o->result[i], o->record, sizeof *o->record);
    o->op->event_record(o->stream, o->result_done[i]);
}

const struct meg_step_record *meg_optim_result(struct meg_optim *o)
{
    const int64_t i = o->num_read++ % MEG_MAX_QUEUED_STEPS;

    MEG_ASSERT_LE(o->num_read, o->num_ended);
    meg_device_wait(o->model->device, o->result_done[i]);
    o->step_count = o->result[i]->num_updates;
    return o->result[i];
}
