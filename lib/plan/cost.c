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
    const bool is_gpu = meg_hardware_find(c->hardware)->memory > 0;
    const bool has_grad_norm = job->optim.clip_grad > 0 || c->check_for_nan || s->scaler.type != MEG_SCALER_NONE;
    struct meg_cost_model m = { .model = &job->model,
                                .optim = &job->optim,
                                .op = is_gpu ? meg_device_gpu_ops() : meg_device_current()->op,
                                .layout = s->layout,
                                .schedule = s->schedule,
                                .run = s->model_run };

    count_heads(&m);
    m.schedule.microbatches = num_micro;
    m.uses_host_comm = !is_gpu && meg_device_current()->op->is_host_memory;
    m.overlaps_grad_reduce = job->zero.overlap_grad_reduce;
    m.overlaps_param_gather = job->zero.overlap_param_gather;
    m.has_doc_start = job->data.reset_attention_mask;
    m.is_async_save = job->ckpt.save && job->ckpt.async_save && !c->skip_train;
    m.saves_optim = job->ckpt.save_optim;
    m.num_scalar_reduces = has_grad_norm + job->log.log_num_zeros + job->log.log_params_norm;
    return m;
}

/* Return whether each chunk of stage a has as many layers as the same chunk of stage b. */
static bool have_equal_layers(const struct meg_layout *l, int64_t a, int64_t b)
{
    for (int64_t chunk = 0; chunk < l->vp; chunk++) {
        int64_t first, na, nb;

        meg_layout_layers(l, a, chunk, &first, &na);
        meg_layout_layers(l, b, chunk, &first, &nb);
        if (na != nb)
            return false;
    }
    return true;
}

bool meg_cost_is_representative(const struct meg_layout *l, int64_t stage)
{
    for (int64_t earlier = 1; earlier < stage && stage < l->pp - 1; earlier++)
        if (have_equal_layers(l, earlier, stage))
            return false;
    return true;
}
