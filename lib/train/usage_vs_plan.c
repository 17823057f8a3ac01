/* The run as the planner sees it, and what its ranks send and hold beside what was planned. */
#include <math.h>
#include <string.h>
#include "base/log.h"
#include "base/mem.h"
#include "train/internal.h"

struct meg_cost_model meg_plan_cost_model(const struct trainer *t, int64_t num_micro)
{
    const struct meg_train_job *job = t->job;
    const struct meg_train_conf *c = &job->train;
    struct meg_cost_model p = { .model = &job->model, .optim = &job->optim, .layout = t->mesh->layout };

    p.schedule = meg_train_pipeline_schedule(job, &p.layout, num_micro);
    p.schedule.is_forward_only = c->skip_train;
    p.run.s = c->seq_length;
    p.run.b = c->micro_batch_size;
    p.run.is_training = !c->skip_train;
    p.run.seed = t->dropout_seed;
    p.run.shards_grads = p.run.is_training && p.layout.zero.stage >= 2;
    p.run.shards_params = p.run.is_training && p.layout.zero.stage >= 3;
    p.run.dtype = t->precision.params;
    p.run.residual_dtype = t->precision.residual;
    p.run.grad_dtype = t->precision.grads;
    p.run.recompute = meg_train_recompute(c);
    p.run.recompute_num_layers = c->recompute_layers == MEG_UNSET ? 0 : c->recompute_layers;
    p.run.distribute_saved_activations = c->distribute_saved;
    p.is_on_hosts = meg_hardware_find(c->hardware)->memory == 0;
    p.overlaps_sums = job->share.overlap_grad_reduce;
    p.overlaps_gather = job->share.overlap_param_gather;
    p.copies_state = job->ckpt.save && job->ckpt.async_save && !c->skip_train;
    p.copies_optim = job->ckpt.save_optim;
    p.sums = (job->optim.clip_grad > 0 || c->check_for_nan || t->scaler.type) + job->log.log_num_zeros +
             job->log.log_params_norm;
    return p;
}

int meg_train_measured_step(struct trainer *t, struct meg_step_result *s, struct meg_err *e)
{
    double before[MEG_COST_GROUPS], after[MEG_COST_GROUPS];
    int r;

    meg_cost_comm_volume_measured(before, t->mesh);
    if ((r = meg_train_step(t, s, e)) < 0)
        return r;
    meg_cost_comm_volume_measured(after, t->mesh);
    for (int i = 0; i < MEG_COST_GROUPS; i++)
        t->sent[i] = after[i] - before[i];
    t->sent_num_micro = s->batch.num_micro;
    return 0;
}

void meg_usage_vs_plan_measure(const struct trainer *t, struct meg_usage_vs_plan *a)
{
    const struct meg_cost_model most = meg_plan_cost_model(t, meg_batch_max_microbatches(&t->plan));
    const struct meg_cost_model last = meg_plan_cost_model(t, t->sent_num_micro);
    const struct meg_gpt_memory *m = &t->model->used;

    *a = (struct meg_usage_vs_plan){ .held = { [MEG_COST_MEM_PARAMS] = (double)m->params,
                                               [MEG_COST_MEM_GRADS] = (double)m->grads,
                                               [MEG_COST_MEM_ACTIVATIONS] = (double)m->activations,
                                               [MEG_COST_MEM_WORKSPACE] = (double)m->workspace,
                                               [MEG_COST_MEM_PIPELINE] = (double)t->walk.arena.high } };
    if (t->optim) {
        const struct meg_optim_memory *o = &t->optim->used;

        a->held[MEG_COST_MEM_PARAMS] += (double)o->params;
        a->held[MEG_COST_MEM_GRADS] += (double)o->grads;
        a->held[MEG_COST_MEM_MAIN_PARAMS] = (double)o->main;
        a->held[MEG_COST_MEM_MAIN_GRADS] = (double)o->main_grad;
        a->held[MEG_COST_MEM_OPTIM] = (double)o->state;
    }
    meg_cost_memory(a->held_planned, &most, t->mesh->at);
    if (t->sent_num_micro == 0)
        return;
    memcpy(a->sent, t->sent, sizeof a->sent);
    meg_cost_comm_volume(a->sent_planned, &last, t->mesh->at);
}

/* Numbers of all ranks and what was planned for them: the largest of each, and of what is between the two. */
struct pairs {
    double counted[MEG_COST_MEM_TYPES], planned[MEG_COST_MEM_TYPES], apart[MEG_COST_MEM_TYPES];
};

static struct pairs largest(const struct trainer *t, const double *counted, const double *planned, int n)
{
    struct pairs p = { 0 };

    for (int i = 0; i < n; i++) {
        p.counted[i] = counted[i];
        p.planned[i] = planned[i];
        p.apart[i] = fabs(counted[i] - planned[i]);
    }
    meg_all_reduce(t->mesh->world, &p, sizeof p / sizeof(double), MEG_DTYPE_F64, MEG_REDUCE_MAX);
    return p;
}

static void log_comm_usage(const struct trainer *t, const struct meg_usage_vs_plan *a)
{
    const struct pairs p = largest(t, a->sent, a->sent_planned, MEG_COST_GROUPS);
    struct meg_str text = { 0 };

    for (int i = 0; i < MEG_COST_GROUPS; i++) {
        if (p.counted[i] == 0 && p.planned[i] == 0)
            continue;
        meg_str_printf(&text, "%s%s %.0f bytes", text.n ? "; " : "", meg_cost_group_name[i], p.counted[i]);
        if (p.apart[i] < MEG_USAGE_VS_PLAN_ROUNDING)
            meg_str_printf(&text, ", as planned");
        else
            meg_str_printf(&text, ", where %.0f were planned", p.planned[i]);
    }
    if (text.n && meg_train_is_rank0(t))
        meg_debug("sent in a step: %s", text.s);
    meg_str_free(&text);
}

/* The process, and arenas that were not what was planned. */
static void log_memory_usage(const struct trainer *t, const struct meg_usage_vs_plan *a, double start_nbytes)
{
    enum { MOST, SINCE, PLANNED, NUMBERS };
    const struct pairs p = largest(t, a->held, a->held_planned, MEG_COST_MEM_ARENAS);
    struct meg_str text = { 0 };
    double v[NUMBERS] = { meg_memory_peak_rss() };

    v[SINCE] = v[MOST] - start_nbytes;
    for (int i = 0; i < MEG_COST_MEM_TYPES; i++)
        v[PLANNED] += a->held_planned[i];
    meg_all_reduce(t->mesh->world, v, NUMBERS, MEG_DTYPE_F64, MEG_REDUCE_MAX);
    meg_str_printf(&text, "memory: %.1f MiB at most, %.1f of it since the start, where %.1f were planned",
                   v[MOST] / (1 << 20), v[SINCE] / (1 << 20), v[PLANNED] / (1 << 20));
    for (int i = 0; i < MEG_COST_MEM_ARENAS; i++)
        if (p.apart[i] > 0)
            meg_str_printf(&text, "; %s %.0f bytes, where %.0f were planned", meg_cost_memory_name[i], p.counted[i],
                           p.planned[i]);
    if (meg_train_is_rank0(t))
        meg_debug("%s", text.s);
    meg_str_free(&text);
}

void meg_usage_vs_plan_log(const struct trainer *t, const struct meg_usage_vs_plan *a, double start_nbytes)
{
    log_comm_usage(t, a);
    log_memory_usage(t, a, start_nbytes);
}
