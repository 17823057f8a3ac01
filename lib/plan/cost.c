/* What the ranks of a run hold. */
#include "plan/cost.h"
#include <string.h>
#include "ckpt/ckpt.h"
#include "parallel/pipeline.h"
#include "plan/internal.h"

const char *const meg_cost_memory_name[MEG_COST_MEM_TYPES] = {
    [MEG_COST_MEM_PARAMS] = "parameters",
    [MEG_COST_MEM_GRADS] = "gradients",
    [MEG_COST_MEM_MAIN_PARAMS] = "main parameters",
    [MEG_COST_MEM_MAIN_GRADS] = "main gradients",
    [MEG_COST_MEM_OPTIM] = "optimizer state",
    [MEG_COST_MEM_ACTIVATIONS] = "activations",
    [MEG_COST_MEM_WORKSPACE] = "workspace",
    [MEG_COST_MEM_PIPELINE] = "pipeline",
    [MEG_COST_MEM_COMM_WORKSPACE] = "arriving messages",
    [MEG_COST_MEM_ASYNC_SAVE] = "copy of a save",
};

struct meg_cost_model meg_cost_model_make(const struct meg_run_spec *s, int64_t num_micro)
{
    const struct meg_train_job *job = s->job;
    const struct meg_train_conf *c = &job->train;
    const bool has_grad_norm = job->optim.clip_grad > 0 || c->check_for_nan || s->scaler.type != MEG_SCALER_NONE;
    struct meg_cost_model m = {
        .model = &job->model, .optim = &job->optim, .layout = s->layout, .schedule = s->schedule, .run = s->model_run
    };

    m.schedule.microbatches = num_micro;
    m.is_on_hosts = meg_hardware_find(c->hardware)->memory == 0;
    m.overlaps_sums = job->zero.overlap_grad_reduce;
    m.overlaps_gather = job->zero.overlap_param_gather;
    m.copies_state = job->ckpt.save && job->ckpt.async_save && !c->skip_train;
    m.copies_optim = job->ckpt.save_optim;
    m.sums = has_grad_norm + job->log.log_num_zeros + job->log.log_params_norm;
    return m;
}

struct meg_pipe_schedule_conf cost_short_schedule(const struct meg_pipe_schedule_conf *c, int64_t *groups,
                                                  int64_t *group)
{
    struct meg_pipe_schedule_conf few = *c;
    int64_t most;

    *group = c->group ? c->group : c->stages;
    most = 4 * *group;
    *groups = c->microbatches > most ? (c->microbatches - most) / *group : 0;
    few.microbatches -= *groups * *group;
    return few;
}

/* Boundary buffers. */
static double pipeline_nbytes(const struct meg_cost_model *p, const struct meg_mesh *mesh)
{
    struct meg_pipe_schedule list;
    int64_t groups, group;
    const struct meg_pipe_schedule_conf c = cost_short_schedule(&p->schedule, &groups, &group);
    const struct meg_pipe_tensor tensor = { cost_local_rows(p).m * p->model->hidden_size, p->run.residual_dtype };
    double n;

    meg_pipe_schedule_make(&list, &c, (int)mesh->at.pp);
    n = (double)meg_pipe_nbytes(&list, &tensor, 1);
    meg_pipe_schedule_free(&list);
    return n;
}

/* What a save in the background copies: o is the memory of the optimizer. */
static double async_save_nbytes(const struct meg_cost_model *p, const struct meg_params *rows,
                                const struct meg_mesh *mesh, const struct meg_optim_memory *o)
{
    const struct meg_layout *l = &p->layout;
    const int64_t i = mesh->at.dp * l->cp + mesh->at.cp, slices = l->zero.nshards ? l->zero.nshards : 1;
    const int64_t kind = meg_zero_shard_numel(rows, l) * (int64_t)sizeof(float); /* bytes of one kind of state */
    const int64_t kinds = p->copies_optim && kind ? (int64_t)(o->main + o->state) / kind : 0;
    const struct meg_ckpt_shard w = { .dtype = p->run.dtype };
    struct meg_ckpt_shard state = { 0 };
    struct meg_zero_shard share;
    int64_t nbytes;

    if (!p->copies_state)
        return 0;
    meg_zero_shard_make(&share, rows, l, (int)(i % slices));
    if (l->zero.nshards) {
        state.ranges = share.range;
        state.nranges = share.nbucket_shards;
        state.replica = (int)(i / slices);
        state.nreplicas = (int)(l->dp * l->cp / slices);
    }
    nbytes = meg_ckpt_write_nbytes(rows, mesh, &w, 1) + kinds * meg_ckpt_write_nbytes(rows, mesh, &state, 1);
    meg_zero_shard_free(&share);
    return (double)nbytes;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* What arrives in the groups that sum large things: rows of layers, gradients, keys. */
static double comm_workspace_nbytes(const struct meg_cost_model *p, const struct meg_params *rows)
{
    const struct meg_layout *l = &p->layout;
    const enum meg_dtype e = p->run.residual_dtype, g = p->run.grad_dtype;
    const double all = (double)(cost_local_rows(p).n * p->model->hidden_size), copies = (double)(l->dp * l->cp);
    const double keys = (double)(cost_local_rows(p).n * 2 * p->model->num_query_groups / l->tp * p->model->kv_channels);
    double bucket = 0, tied = 0, gathered = 0, sum = meg_comm_workspace_all_reduce(l->tp, all, e);

    for (int i = 0; i < rows->nbuckets; i++)
        bucket = larger(bucket, (double)(rows->bucket[i].end - rows->bucket[i].begin));
    for (int i = 0; i < rows->n; i++)
        if (rows->row[i].reduce_group == MEG_PARAM_TIED && l->pp > 1)
            tied = (double)rows->row[i].shard_numel;
    for (int64_t i = 0; i < l->layers && !gathered; i++)
        if (meg_layout_cp_comm_type(l, i) == MEG_CP_ALL_GATHER)
            gathered = meg_comm_workspace_reduce_scatter(l->cp, keys, MEG_DTYPE_F32);
    sum += gathered;
    if (l->zero.nshards)
        sum += meg_comm_workspace_reduce_scatter(l->zero.nshards, bucket / (double)l->zero.nshards, g) +
               meg_comm_workspace_all_reduce((int64_t)copies / l->zero.nshards, bucket / (double)l->zero.nshards, g);
    else
        sum += meg_comm_workspace_all_reduce((int64_t)copies, bucket, g);
    return sum + meg_comm_workspace_all_reduce(2, tied / (double)(l->zero.nshards ? l->zero.nshards : 1), g);
}

void meg_cost_memory(double nbytes[MEG_COST_MEM_TYPES], const struct meg_cost_model *p, struct meg_rank_coords at)
{
    const struct meg_gpt_run run = meg_run_spec_stage(&p->run, &p->schedule, at.pp);
    struct meg_gpt_memory m;
    struct meg_optim_memory o = { 0 };
    struct meg_params rows;
    struct meg_mesh mesh;

    meg_mesh_init_dry(&mesh, &p->layout, meg_layout_rank(&p->layout, at));
    meg_gpt_memory_size(&m, p->model, &run, &mesh);
    meg_gpt_params(&rows, p->model, &mesh);
    nbytes[MEG_COST_MEM_PARAMS] = (double)m.params;
    nbytes[MEG_COST_MEM_GRADS] = (double)m.grads;
    if (run.is_training)
        meg_optim_memory_size(&o, p->optim, &rows, &p->layout, &run);
    nbytes[MEG_COST_MEM_PARAMS] += (double)o.params;
    nbytes[MEG_COST_MEM_GRADS] += (double)o.grads;
    nbytes[MEG_COST_MEM_MAIN_PARAMS] = (double)o.main;
    nbytes[MEG_COST_MEM_MAIN_GRADS] = (double)o.main_grad;
    nbytes[MEG_COST_MEM_OPTIM] = (double)o.state;
    nbytes[MEG_COST_MEM_ACTIVATIONS] = (double)m.activations;
    nbytes[MEG_COST_MEM_WORKSPACE] = (double)m.workspace;
    nbytes[MEG_COST_MEM_PIPELINE] = pipeline_nbytes(p, &mesh);
    nbytes[MEG_COST_MEM_COMM_WORKSPACE] = p->is_on_hosts && run.is_training ? comm_workspace_nbytes(p, &rows) : 0;
    nbytes[MEG_COST_MEM_ASYNC_SAVE] = async_save_nbytes(p, &rows, &mesh, &o);
    meg_params_free(&rows);
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

double meg_cost_max_memory(const struct meg_cost_model *p)
{
    struct meg_rank_coords at[3];
    const int n = meg_cost_representatives(at, &p->layout);
    double most = 0;

    for (int i = 0; i < n; i++) {
        double nbytes[MEG_COST_MEM_TYPES], sum = 0;

        meg_cost_memory(nbytes, p, at[i]);
        for (int k = 0; k < MEG_COST_MEM_TYPES; k++)
            sum += nbytes[k];
        most = sum > most ? sum : most;
    }
    return most;
}
