/* usage.c - compare the memory and communication of a run with the cost model. */
#include <string.h>
#include "plan/usage_vs_plan.h"
#include "train/trainer.h"

/* Collect the memory used in each arena and the bytes that this rank sent in the last step. */
static struct meg_usage_vs_plan measure_usage(const struct meg_trainer *t)
{
    const struct meg_model_memory *m = &t->model->used;
    struct meg_usage_vs_plan u = { .memory = { [MEG_COST_MEM_PARAMS] = (double)m->params,
                                               [MEG_COST_MEM_GRADS] = (double)m->grads,
                                               [MEG_COST_MEM_ACTIVATIONS] = (double)m->activations,
                                               [MEG_COST_MEM_WORKSPACE] = (double)m->workspace,
                                               [MEG_COST_MEM_PIPELINE] = (double)t->pipeline.memory_size } };

    if (t->optim) {
        const struct meg_optim_memory *o = &t->optim->used;

        u.memory[MEG_COST_MEM_PARAMS] += (double)o->params;
        u.memory[MEG_COST_MEM_GRADS] += (double)o->grads;
        u.memory[MEG_COST_MEM_MAIN_PARAMS] = (double)o->main;
        u.memory[MEG_COST_MEM_OPTIM] = (double)o->state;
    }
    memcpy(u.comm, t->comm_bytes, sizeof u.comm);
    return u;
}

void meg_train_compare_usage(const struct meg_trainer *t, double start_nbytes)
{
    struct meg_usage_vs_plan u = measure_usage(t);

    meg_usage_vs_plan_predict(&u, &t->spec, t->mesh.coords, t->comm_num_micro);
    meg_usage_vs_plan_log(&u, t->mesh.world, start_nbytes);
    if (t->job->usage)
        *t->job->usage = u;
}
