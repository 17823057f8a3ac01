/*
 * memory.c - cost model of memory on a rank: the arenas of model and optimizer, and the buffers of communication and
 * saves.
 */
#include <math.h>
#include "ckpt/ckpt.h"
#include "parallel/pipeline.h"
#include "plan/cost.h"
#include "plan/internal.h"

const char *const meg_cost_memory_name[MEG_COST_MEM_TYPES] = {
    [MEG_COST_MEM_PARAMS] = "parameters",
    [MEG_COST_MEM_GRADS] = "gradients",
    [MEG_COST_MEM_MAIN_PARAMS] = "main parameters",
    [MEG_COST_MEM_OPTIM] = "optimizer state",
    [MEG_COST_MEM_ACTIVATIONS] = "activations",
    [MEG_COST_MEM_WORKSPACE] = "workspace",
    [MEG_COST_MEM_PIPELINE] = "pipeline",
    [MEG_COST_MEM_COMM_WORKSPACE] = "receive buffers",
    [MEG_COST_MEM_ASYNC_SAVE] = "asynchronous save",
};

/* Return the bytes of a pipeline stage's send and receive buffers for activations and their gradients. */
static double pipeline_nbytes(const struct meg_cost_model *cost, const struct meg_mesh *mesh)
{
    struct meg_pipe_schedule schedule;
    int64_t groups, group;
    const struct meg_pipe_schedule_conf c = cost_short_schedule(&cost->schedule, &groups, &group);
    double n;

    meg_pipe_schedule_make(&schedule, &c, (int)mesh->coords.pp);
    n = (double)meg_pipe_nbytes(&schedule, cost->counts->boundary, cost->counts->nboundary);
    meg_pipe_schedule_free(&schedule);
    return n;
}

/*
 * Return the bytes that a background save copies: weights and, if the optimizer is saved, main parameters and optimizer
 * state.  `o` has the sizes of main parameters and optimizer state.  Return 0 if saves do not run in the background.
 */
static double async_save_nbytes(const struct meg_cost_model *cost, const struct meg_params *params,
                                const struct meg_mesh *mesh, const struct meg_optim_memory *o)
{
    const struct meg_layout *l = &cost->layout;
    const int64_t state_nbytes = meg_zero_shard_numel(params, l) * (int64_t)sizeof(float);
    const int64_t nstates = cost->saves_optim && state_nbytes ? (int64_t)(o->main + o->state) / state_nbytes : 0;
    const struct meg_ckpt_shard weights = { .dtype = cost->run.dtype };
    struct meg_ckpt_shard state = { .name = MEG_CKPT_MAIN_PARAMS };
    struct meg_zero_shard shard;
    int64_t nbytes;

    if (!cost->is_async_save)
        return 0;
    meg_zero_shard_make(&shard, params, l, mesh->coords);
    if (l->zero.nshards) {
        state.ranges = shard.range;
        state.nranges = shard.nupdated;
        state.replica = (int)(meg_layout_dp_cp_rank(l, mesh->coords) / l->zero.nshards);
        state.nreplicas = (int)(l->dp * l->cp / l->zero.nshards);
    }
    nbytes =
        meg_ckpt_write_nbytes(params, mesh, &weights, 1) + nstates * meg_ckpt_write_nbytes(params, mesh, &state, 1);
    meg_zero_shard_free(&shard);
    return (double)nbytes;
}

/* Return the bytes of the receive buffers of collectives on the gradients of a data-parallel group. */
static double grad_workspace_nbytes(const struct meg_layout *l, const struct meg_params *params,
                                    enum meg_dp_group group, enum meg_dtype grad)
{
    const int64_t size = meg_layout_dp_size(l, group), nshards = meg_layout_num_shards(l, group);
    double bucket = 0; /* elements of the largest bucket */

    for (int i = 0; i < params->nbuckets; i++)
        if (params->bucket[i].dp_group == group && params->bucket[i].range.begin < params->grad_numel)
            bucket = fmax(bucket, (double)(params->bucket[i].range.end - params->bucket[i].range.begin));
    if (nshards == 0)
        return meg_comm_workspace_all_reduce(size, bucket, grad);
    return meg_comm_workspace_reduce_scatter(nshards, bucket / (double)nshards, grad) +
           meg_comm_workspace_all_reduce(size / nshards, bucket / (double)nshards, grad);
}

/* Return the bytes of the receive buffers of collectives: within the model, and on gradients. */
static double comm_workspace_nbytes(const struct meg_cost_model *cost, const struct meg_params *params)
{
    const struct meg_layout *l = &cost->layout;
    const int64_t nshards = l->zero.nshards;
    const enum meg_dtype grad = cost->run.grad_dtype;
    double tied[MEG_MAX_TIES] = { 0 }, sum = cost->counts->recv_nbytes;

    for (int i = 0; i < params->n; i++) {
        const struct meg_param *row = &params->row[i];

        if (row->tie >= 0)
            tied[row->tie] = fmax(tied[row->tie], (double)row->shard_numel);
    }
    for (int k = 0; k < l->nties; k++)
        sum += meg_comm_workspace_all_reduce(cost_tie_size(l, k), tied[k] / (double)(nshards ? nshards : 1), grad);
    for (int i = 0; i < MEG_DP_GROUPS; i++)
        sum += grad_workspace_nbytes(l, params, (enum meg_dp_group)i, grad);
    return sum;
}

void meg_cost_memory(double nbytes[MEG_COST_MEM_TYPES], const struct meg_cost_model *cost, struct meg_rank_coords at)
{
    const struct meg_model_run run = meg_run_spec_stage(&cost->run, &cost->schedule, at.pp);
    struct meg_model_memory m;
    struct meg_optim_memory o = { 0 };
    struct meg_mesh mesh;

    meg_mesh_init_dry(&mesh, &cost->layout, meg_layout_rank(&cost->layout, at));
    meg_model_memory_size(&m, cost->model, &run, cost->op, &mesh);
    meg_params_shard(cost->params, &mesh);
    nbytes[MEG_COST_MEM_PARAMS] = (double)m.params;
    nbytes[MEG_COST_MEM_GRADS] = (double)m.grads;
    if (run.is_training)
        meg_optim_memory_size(&o, cost->optim, cost->params, &cost->layout, &run);
    nbytes[MEG_COST_MEM_PARAMS] += (double)o.params;
    nbytes[MEG_COST_MEM_GRADS] += (double)o.grads;
    nbytes[MEG_COST_MEM_MAIN_PARAMS] = (double)o.main;
    nbytes[MEG_COST_MEM_OPTIM] = (double)o.state;
    nbytes[MEG_COST_MEM_ACTIVATIONS] = (double)m.activations;
    nbytes[MEG_COST_MEM_WORKSPACE] = (double)m.workspace;
    nbytes[MEG_COST_MEM_PIPELINE] = pipeline_nbytes(cost, &mesh);
    nbytes[MEG_COST_MEM_COMM_WORKSPACE] =
        cost->uses_host_comm && run.is_training ? comm_workspace_nbytes(cost, cost->params) : 0;
    nbytes[MEG_COST_MEM_ASYNC_SAVE] = async_save_nbytes(cost, cost->params, &mesh, &o);
}

double meg_cost_max_memory(const struct meg_cost_model *cost)
{
    double most = 0;

    for (int64_t stage = 0; stage < cost->layout.pp; stage++) {
        double nbytes[MEG_COST_MEM_TYPES], sum = 0;

        if (!meg_cost_is_representative(cost, stage))
            continue;
        meg_cost_memory(nbytes, cost, (struct meg_rank_coords){ .pp = stage });
        for (int k = 0; k < meg_cost_num_device_types(cost->uses_host_comm); k++)
            sum += nbytes[k];
        most = fmax(most, sum);
    }
    return most;
}
