/* The run as the planner sees it, and what its ranks send, held against what was planned. */
#include <inttypes.h>
#include <math.h>
#include "base/log.h"
#include "base/mem.h"
#include "train/internal.h"

struct meg_paper meg_train_paper(const struct trainer *t, int64_t num_micro)
{
    const struct meg_train_job *job = t->job;
    const struct meg_train_conf *c = &job->train;
    struct meg_paper p = { .model = &job->model, .optim = &job->optim, .layout = t->mesh->layout };

    p.schedule = meg_train_schedule(job, &p.layout, num_micro);
    p.run.s = c->seq_length;
    p.run.b = c->micro_batch_size;
    p.run.is_training = !c->skip_train;
    p.run.seed = t->dropout_seed;
    p.run.g_takes_turns = p.run.is_training && p.layout.zero >= 2;
    p.run.w_takes_turns = p.run.is_training && p.layout.zero >= 3;
    p.run.dtype = t->precision.params;
    p.run.residual = t->precision.residual;
    p.run.grad = t->precision.grads;
    p.run.recompute = meg_train_recompute(c);
    p.run.recompute_layers = c->recompute_layers == MEG_UNSET ? 0 : c->recompute_layers;
    p.run.distributes_saved = c->distribute_saved;
    p.is_on_hosts = meg_hardware_find(c->hardware)->memory == 0;
    p.overlaps_sums = job->share.overlap_grad_reduce;
    p.overlaps_gather = job->share.overlap_param_gather;
    p.copies_state = job->ckpt.save && job->ckpt.async_save && !c->skip_train;
    p.copies_optim = job->ckpt.save_optim;
    p.sums = (job->optim.clip_grad > 0 || c->check_for_nan || t->scaler.kind) + job->log.log_num_zeros +
        job->log.log_params_norm;
    return p;
}

int meg_train_counted_step(struct trainer *t, struct meg_step_result *s, struct meg_err *e)
{
    double before[MEG_PAPER_GROUPS], after[MEG_PAPER_GROUPS];
    int r;

    meg_paper_counted(before, t->mesh);
    if ((r = meg_train_step(t, s, e)) < 0)
        return r;
    meg_paper_counted(after, t->mesh);
    for (int i = 0; i < MEG_PAPER_GROUPS; i++)
        t->sent[i] = after[i] - before[i];
    t->sent_num_micro = s->batch.num_micro;
    return 0;
}

void meg_train_tell_sent(const struct trainer *t)
{
    enum { COUNTED, PLANNED, APART, KINDS };
    const struct meg_paper p = meg_train_paper(t, t->sent_num_micro);
    double v[KINDS][MEG_PAPER_GROUPS];
    struct meg_str text = { 0 };

    if (t->sent_num_micro == 0)
        return;
    meg_paper_sent(v[PLANNED], &p, t->mesh->at);
    for (int i = 0; i < MEG_PAPER_GROUPS; i++) {
        v[COUNTED][i] = t->sent[i];
        v[APART][i] = fabs(v[PLANNED][i] - v[COUNTED][i]);
    }
    meg_all_reduce(t->mesh->world, v, KINDS * MEG_PAPER_GROUPS, MEG_DTYPE_F64, MEG_MAX);
    for (int i = 0; i < MEG_PAPER_GROUPS; i++) {
        if (v[COUNTED][i] == 0 && v[PLANNED][i] == 0)
            continue;
        meg_str_printf(&text, "%s%s %.0f bytes", text.n ? "; " : "", meg_paper_group_name[i], v[COUNTED][i]);
        if (v[APART][i] < 0.5)
            meg_str_printf(&text, ", as planned");
        else
            meg_str_printf(&text, ", where %.0f were planned", v[PLANNED][i]);
    }
    if (text.n && meg_train_speaks(t))
        meg_debug("sent in a step: %s", text.s);
    meg_str_free(&text);
}
