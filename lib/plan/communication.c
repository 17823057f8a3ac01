/*
 * What the ranks of a run send.  Each formula stands for the calls of one file: nn/linear.c and nn/sequence_parallel.c,
 * nn/cp_attention.c, nn/cp_kv_exchange.c and nn/cp_all_to_all.c, nn/embedding.c, nn/lm_head.c, parallel/pipeline.c, optim/zero/grad_reduce.c,
 * optim/optim.c and train/step.c.
 */
#include <string.h>
#include "plan/internal.h"

const char *const meg_cost_group_name[MEG_COST_GROUPS] = { "tensor-parallel", "context-parallel", "pipeline",
                                                           "data-parallel",   "model-parallel",   "embedding" };

static double size_of(enum meg_dtype t)
{
    return (double)meg_dtype_size(t);
}

/* ---- a micro-batch in a layer ----------------------------------------------------------------- */

/* Rows of the residual stream, gathered or summed once. */
static double rows_sent(const struct meg_cost_model *p, enum meg_dtype t)
{
    const struct meg_layout *l = &p->layout;
    const double nbytes = (double)(cost_local_rows(p).m * p->model->hidden_size) * size_of(t);

    return l->has_sp ? meg_comm_volume_sharded(l->tp, nbytes) : meg_comm_volume_all_reduce(l->tp, nbytes);
}

/*
 * Two column and two row linears.  With sequence parallelism rows are gathered before and summed after each pair,
 * and backward gathers what went into a column linear once more, for the gradient of its weight.
 */
struct cost_comm cost_tp_comm(const struct meg_cost_model *p, bool defers_wgrad)
{
    const double once = rows_sent(p, p->run.dtype);
    struct cost_comm s = { 0 };

    if (!p->layout.has_sp)
        return (struct cost_comm){ 2 * once, 2 * once, 0 };
    s.fwd = 4 * once;
    s.bwd_input = 4 * once;
    s.bwd_weight = (defers_wgrad ? 4 : 2) * once;
    return s;
}

struct cost_comm cost_cp_comm(const struct meg_cost_model *p, int64_t i)
{
    const struct meg_layout *l = &p->layout;
    const struct meg_gpt_conf *c = p->model;
    const enum meg_cp_comm_type kind = meg_layout_cp_comm_type(l, i);
    const double n = (double)cost_local_rows(p).n, e = size_of(p->run.dtype), d = (double)c->kv_channels;
    const double a = (double)(c->num_attention_heads / l->tp), g = (double)(c->num_query_groups / l->tp);
    const int64_t a2a_size = kind == MEG_CP_A2A ? l->cp : kind == MEG_CP_A2A_P2P ? l->cp_near : 1;
    const int64_t ring_size = l->cp / a2a_size;
    const double h = (double)a2a_size, keys = n * 2 * g * d;
    const double qkv = meg_comm_volume_sharded(a2a_size, n * (a + 2 * g) * d / h * e);
    const double out = meg_comm_volume_sharded(a2a_size, n * a * d / h * e);
    const double stats = meg_comm_volume_sharded(a2a_size, n * a / h * sizeof(float));
    const double starts = meg_comm_volume_sharded(a2a_size, n * sizeof(int32_t));
    const double meet = meg_comm_volume_sharded(ring_size, keys * e);
    const double home = kind == MEG_CP_ALL_GATHER ? meg_comm_volume_sharded(ring_size, keys * sizeof(float))
                        : ring_size > 1           ? (double)ring_size * keys * sizeof(float)
                                                  : 0;
    const double again = p->run.recompute == MEG_RECOMPUTE_SELECTIVE ? starts + meet + out : 0;

    return (struct cost_comm){ qkv + starts + meet + out, again + starts + stats + out + meet + home + qkv, 0 };
}

struct cost_comm cost_embedding_comm(const struct meg_cost_model *p)
{
    const double once = rows_sent(p, p->run.residual_dtype);

    return (struct cost_comm){ once, p->layout.has_sp ? once : 0, 0 };
}

/* All of it is part of the backward step: logits, what a row's probabilities are divided by, and the gradient. */
struct cost_comm cost_lm_head_comm(const struct meg_cost_model *p)
{
    const double once = rows_sent(p, p->run.dtype), n = (double)cost_local_rows(p).n;
    const double parts = meg_comm_volume_sharded(p->layout.tp, 2 * n * sizeof(float));

    return (struct cost_comm){ 0, (p->layout.has_sp ? 2 : 1) * once + parts, 0 };
}

int64_t cost_recomputed_layers(const struct meg_gpt_run *run, int64_t n, int64_t *inputs)
{
    const int64_t k = run->recompute_num_layers;

    *inputs = 0;
    switch (run->recompute) {
    case MEG_RECOMPUTE_UNIFORM: *inputs = (n + k - 1) / k; return n;
    case MEG_RECOMPUTE_BLOCK: return *inputs = k < n ? k : n;
    default: return 0;
    }
}

static double sum(struct cost_comm s)
{
    return s.fwd + s.bwd_input + s.bwd_weight;
}

/* ---- a step ----------------------------------------------------------------------------------- */

/* Bytes of a tied embedding's gradient that a rank adds the other end's to: all, or its slice. */
static double tied_grad_nbytes(const struct meg_params *rows, const struct meg_param *row, const struct meg_layout *l)
{
    int b = 0;

    if (!l->zero.nshards)
        return (double)row->shard_numel;
    while (rows->bucket[b].begin != row->offset)
        b++;
    return (double)meg_zero_bucket_shard_numel(rows, l, b);
}

/* Bytes of a section's gather, unless it is there already. */
static double layer_gather_nbytes(int there[MEG_UNSHARDED_BUFFERS], const struct meg_cost_model *p,
                                  const struct meg_params *rows, int section)
{
    const struct meg_elem_range s = rows->layer_group[section];
    const int turn = meg_unsharded_buffer(rows, section);

    if (there[turn] == section)
        return 0;
    there[turn] = section;
    return meg_comm_volume_sharded(p->layout.zero.nshards,
                                   (double)((s.end - s.begin) / p->layout.zero.nshards) * size_of(p->run.dtype));
}

/* Sections that take turns, read as the micro-batches of a step go through them: model/gpt_forward_backward.c. */
static double zero3_gather_nbytes(const struct meg_cost_model *p, const struct meg_params *rows)
{
    const int layers = rows->nlayer_groups - 2;
    const int group = p->run.recompute == MEG_RECOMPUTE_UNIFORM ? (int)p->run.recompute_num_layers : 1;
    int there[MEG_UNSHARDED_BUFFERS] = { -1, -1, -1, -1 };
    double sent = 0;

    for (int64_t m = 0; m < p->schedule.microbatches; m++) {
        for (int i = 0; i <= layers + 1; i++)
            sent += layer_gather_nbytes(there, p, rows, i);
        for (int i = layers; i > 0; i--) {
            if (i == layers || i % group == 0)
                for (int k = (i - 1) / group * group + 1; k <= i; k++)
                    sent += layer_gather_nbytes(there, p, rows, k);
            sent += layer_gather_nbytes(there, p, rows, i);
        }
    }
    return sent;
}

struct cost_step_comm cost_count_step_comm(const struct meg_cost_model *p, struct meg_rank_coords at)
{
    const struct meg_layout *l = &p->layout;
    const double e = size_of(p->run.grad_dtype);
    const int64_t copies = l->dp * l->cp;
    struct cost_step_comm s = { 0 };
    struct meg_params rows;
    struct meg_mesh mesh;

    meg_mesh_init_dry(&mesh, l, meg_layout_rank(l, at));
    meg_gpt_params(&rows, p->model, &mesh);
    s.updated = (double)meg_zero_shard_numel(&rows, l);
    if (l->zero.nshards) {
        s.sums = meg_comm_volume_sharded(l->zero.nshards, s.updated * e) +
                 meg_comm_volume_all_reduce(copies / l->zero.nshards, s.updated * e);
        s.gather = meg_comm_volume_sharded(l->zero.nshards, s.updated * size_of(p->run.dtype));
    } else {
        s.sums = meg_comm_volume_all_reduce(copies, s.updated * e);
    }
    for (int i = 0; i < rows.n; i++) {
        const struct meg_param *row = &rows.row[i];

        if (row->shard_numel && l->has_sp && row->tp_axis < 0)
            s.replicated += meg_comm_volume_all_reduce(l->tp, (double)row->shard_numel * e);
        if (row->shard_numel && l->pp > 1 && row->reduce_group == MEG_PARAM_TIED)
            s.tied += meg_comm_volume_all_reduce(2, tied_grad_nbytes(&rows, row, l) * e);
    }
    if (l->zero.stage >= 2) {
        const double passes = (double)p->schedule.microbatches;

        s.sums = passes * meg_comm_volume_sharded(l->zero.nshards, s.updated * e) +
                 meg_comm_volume_all_reduce(copies / l->zero.nshards, s.updated * e);
        s.replicated *= passes;
    }
    if (l->zero.stage == 3)
        s.gather = zero3_gather_nbytes(p, &rows);
    meg_params_free(&rows);
    return s;
}

/* Micro-batches through the layers of a stage. */
static void layers_sent(double nbytes[MEG_COST_GROUPS], const struct meg_cost_model *p, int64_t stage)
{
    const struct meg_layout *l = &p->layout;
    const struct meg_gpt_run run = meg_run_spec_stage(&p->run, &p->schedule, stage);
    const struct cost_comm tensor = cost_tp_comm(p, run.defers_wgrad);
    const double kept = meg_comm_volume_sharded(l->tp, (double)(cost_local_rows(p).m / l->tp * p->model->hidden_size) *
                                                           size_of(run.residual_dtype));
    int64_t first, n, inputs;

    for (int64_t chunk = 0; chunk < l->vp; chunk++) {
        meg_layout_layers(l, stage, chunk, &first, &n);
        const int64_t again = cost_recomputed_layers(&run, n, &inputs);

        nbytes[MEG_COST_GROUP_TP] += (double)n * sum(tensor) + (double)again * tensor.fwd;
        if (run.distribute_saved_activations) /* what was received from another stage is still there */
            nbytes[MEG_COST_GROUP_TP] += (double)(inputs - !meg_layout_is_first(stage, chunk)) * kept;
        for (int64_t i = 0; i < n; i++) {
            const struct cost_comm context = cost_cp_comm(p, first + i);

            nbytes[MEG_COST_GROUP_CP] += sum(context);
            if (i < again)
                nbytes[MEG_COST_GROUP_CP] += context.fwd;
        }
    }
    if (stage == 0)
        nbytes[MEG_COST_GROUP_TP] += sum(cost_embedding_comm(p));
    if (stage == l->pp - 1)
        nbytes[MEG_COST_GROUP_TP] += sum(cost_lm_head_comm(p));
}

void meg_cost_comm_volume(double nbytes[MEG_COST_GROUPS], const struct meg_cost_model *p, struct meg_rank_coords at)
{
    const struct meg_layout *l = &p->layout;
    const struct cost_step_comm once = cost_count_step_comm(p, at);
    const double number = (double)sizeof(double);
    const double boundary = (double)(cost_local_rows(p).m * p->model->hidden_size) * size_of(p->run.residual_dtype);
    const int64_t leave = l->vp - (at.pp == l->pp - 1), come = l->vp - (at.pp == 0);

    memset(nbytes, 0, MEG_COST_GROUPS * sizeof *nbytes);
    layers_sent(nbytes, p, at.pp);
    nbytes[MEG_COST_GROUP_PP] = l->pp > 1 ? (double)(leave + come) * boundary : 0;
    for (int i = 0; i < MEG_COST_GROUPS; i++)
        nbytes[i] *= (double)p->schedule.microbatches;

    nbytes[MEG_COST_GROUP_TP] += once.replicated;
    nbytes[MEG_COST_GROUP_PP] += meg_comm_volume_all_reduce(l->pp, number);
    nbytes[MEG_COST_GROUP_DP_CP] = once.sums + once.gather + meg_comm_volume_all_reduce(l->dp * l->cp, 2 * number);
    if (l->zero.nshards)
        nbytes[MEG_COST_GROUP_DP_CP] += meg_comm_volume_all_reduce(l->zero.nshards, p->sums * number);
    nbytes[MEG_COST_GROUP_MP] = meg_comm_volume_all_reduce(l->tp * l->pp, p->sums * number);
    nbytes[MEG_COST_GROUP_EMBEDDING] = once.tied;
}

void meg_cost_comm_volume_measured(double nbytes[MEG_COST_GROUPS], const struct meg_mesh *m)
{
    nbytes[MEG_COST_GROUP_TP] = m->tp->nbytes_sent;
    nbytes[MEG_COST_GROUP_CP] = m->cp->nbytes_sent + m->cp_near->nbytes_sent + m->cp_far->nbytes_sent;
    nbytes[MEG_COST_GROUP_PP] = m->pp->nbytes_sent;
    nbytes[MEG_COST_GROUP_DP_CP] =
        m->dp_cp->nbytes_sent + m->copies->nbytes_sent + m->slices->nbytes_sent + m->same->nbytes_sent;
    nbytes[MEG_COST_GROUP_MP] = m->model->nbytes_sent;
    nbytes[MEG_COST_GROUP_EMBEDDING] = m->ends->nbytes_sent;
}
