#include "plan/cost.h"
#include "device/device.h"
#include "model/desc.h"

static void count_heads(struct meg_cost_model *m)
{
    struct meg_model_desc d;

    meg_model_describe(&d, m->model);
    m->num_losses = d.nheads;
    for (int i = 0; i < d.nheads; i++)
        m->num_sequence_heads += d.head[i].type->is_per_sequence;
    meg_model_desc_free(&d);
}

struct meg_cost_model meg_cost_model_make(const struct meg_run_spec *s, int64_t num_micro)
{
    const struct meg_train_job *job = s->job;
    const struct meg_train_conf *c = &job->train;
    const bool has_grad_norm = job->optim.clip_grad > 0 || c->check_for_nan || s->scaler.type != MEG_SCALER_NONE;
    struct meg_cost_model m = { .model = &job->model,
                                .optim = &job->optim,
                                .op = meg_device_current()->op,
                                .layout = s->layout,
                                .schedule = s->schedule,
                                .run = s->model_run };

    count_heads(&m);
    m.schedule.microbatches = num_micro;
    m.uses_host_comm = meg_hardware_find(c->hardware)->memory == 0;
    m.overlaps_grad_reduce = job->zero.overlap_grad_reduce;
    m.overlaps_param_gather = job->zero.overlap_param_gather;
    m.has_doc_start = job->data.reset_attention_mask;
    m.is_async_save = job->ckpt.save && job->ckpt.async_save && !c->skip_train;
    m.saves_optim = job->ckpt.save_optim;
    m.num_scalar_reduces = has_grad_norm + job->log.log_num_zeros + job->log.log_params_norm;
    return m;
}

int meg_cost_representatives(struct meg_rank_coords at[3], const struct meg_layout *l)
{
    const int64_t stage[] = { 0, 1, l->pp - 1 };
    int n = 0;

    for (int i = 0; i < 3; i++)
        if (stage[i] < l->pp && (n == 0 || stage[i] > at[n - 1].pp))
            at[n++] = (struct meg_rank_coords){ .pp = stage[i] };
    return n;
}
