/*
 * Cost model of communication: the bytes that a rank sends.  The formulas count the collectives and transfers in these
 * files: nn/linear.c, nn/sequence_parallel.c, nn/cp_attention.c, nn/cp_kv_exchange.c, nn/cp_all_to_all.c,
 * nn/embedding.c, nn/lm_head.c, nn/binary_head.c, parallel/pipeline.c, optim/zero/grad_reduce.c, optim/optim.c and
 * train/step.c.
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

/*
 * Return the bytes of one collective on the residual stream: an all-gather or reduce-scatter with sequence parallelism,
 * else an all-reduce.
 */
static double residual_volume(const struct meg_cost_model *cost, enum meg_dtype t)
{
    const struct meg_layout *l = &cost->layout;
    const double nbytes = (double)(cost_local_rows(cost).residual_rows * cost->model->hidden_size) * size_of(t);

    return l->has_sp ? meg_comm_volume_sharded(l->tp, nbytes) : meg_comm_volume_all_reduce(l->tp, nbytes);
}

/*
 * A layer has two pairs of a column-parallel and a row-parallel linear.  Without sequence parallelism, each pair has
 * one all-reduce in the forward pass and one in the backward pass.  With sequence parallelism, each pair has an
 * all-gather and a reduce-scatter in each pass.  For the weight gradients, each pair all-gathers the input of the
 * column-parallel linear.  If weight gradients are deferred, each pair all-gathers the output gradient of the
 * row-parallel linear a second time.
 */
struct cost_comm cost_tp_comm(const struct meg_cost_model *cost, bool defers_wgrad)
{
    const double once = residual_volume(cost, cost->run.dtype);
    struct cost_comm s = { 0 };

    if (!cost->layout.has_sp)
        return (struct cost_comm){ 2 * once, 2 * once, 0 };
    s.fwd = 4 * once;
    s.bwd_input = 4 * once;
    s.bwd_weight = (defers_wgrad ? 4 : 2) * once;
    return s;
}

struct cost_comm cost_cp_comm(const struct meg_cost_model *cost, int64_t i)
{
    const struct meg_layout *l = &cost->layout;
    const enum meg_cp_comm_type type = meg_layout_cp_comm_type(l, i);
    const struct meg_model_widths w = meg_model_layer_widths(cost->model, l->tp);
    const double n = (double)cost_local_rows(cost).rows, e = size_of(cost->run.dtype);
    const int64_t a2a_size = type == MEG_CP_A2A ? l->cp : type == MEG_CP_A2A_P2P ? l->a2a_size : 1;
    const int64_t ring_size = l->cp / a2a_size;
    const double h = (double)a2a_size, kv = n * 2 * (double)w.kv;
    const double qkv = meg_comm_volume_sharded(a2a_size, n * (double)w.qkv / h * e);
    const double out = meg_comm_volume_sharded(a2a_size, n * (double)w.q / h * e);
    const double stats = meg_comm_volume_sharded(a2a_size, n * (double)w.a / h * sizeof(float));
    const double doc_starts = cost->has_doc_start ? meg_comm_volume_sharded(a2a_size, n * sizeof(int32_t)) : 0;
    const double kv_fetch = meg_comm_volume_sharded(ring_size, kv * e);
    const double kv_grad_return = type == MEG_CP_ALL_GATHER ? meg_comm_volume_sharded(ring_size, kv * sizeof(float))
                                  : ring_size > 1           ? (double)ring_size * kv * sizeof(float)
                                                            : 0;
    const double recomputed = cost->run.recompute == MEG_RECOMPUTE_SELECTIVE ? doc_starts + kv_fetch + out : 0;

    return (struct cost_comm){ qkv + doc_starts + kv_fetch + out,
                               recomputed + doc_starts + stats + out + kv_fetch + kv_grad_return + qkv, 0 };
}

struct cost_comm cost_embedding_comm(const struct meg_cost_model *cost)
{
    const double once = residual_volume(cost, cost->run.residual_dtype);

    return (struct cost_comm){ once, cost->layout.has_sp ? once : 0, 0 };
}

/*
 * The language-model head computes logits, loss and gradients in the backward step, and communicates only there.  With
 * sequence parallelism, it all-gathers its input.  In either case, it all-gathers the softmax statistics (two f32 per
 * token) and reduces the input gradient.  With sequence parallelism, the binary head of BERT all-gathers a row per
 * sequence.
 */
struct cost_comm cost_heads_comm(const struct meg_cost_model *cost)
{
    const double once = residual_volume(cost, cost->run.dtype), n = (double)cost_local_rows(cost).rows;
    const double softmax = meg_comm_volume_sharded(cost->layout.tp, 2 * n * sizeof(float));
    const double row = (double)(cost->run.b * cost->model->hidden_size) * size_of(cost->run.dtype);
    const double first_rows = cost->layout.has_sp ? meg_comm_volume_sharded(cost->layout.tp, row) : 0;

    return (struct cost_comm){ 0,
                               (cost->layout.has_sp ? 2 : 1) * once + softmax + cost->num_sequence_heads * first_rows,
                               0 };
}

int64_t cost_recomputed_layers(const struct meg_model_run *run, int64_t n, int64_t *inputs)
{
    const int64_t k = run->recompute_num_layers;

    *inputs = 0;
    switch (run->recompute) {
    case MEG_RECOMPUTE_UNIFORM: *inputs = (n + k - 1) / k; return n;
    case MEG_RECOMPUTE_BLOCK: return *inputs = k < n ? k : n;
    default: return 0;
    }
}

static double total(struct cost_comm s)
{
    return s.fwd + s.bwd_input + s.bwd_weight;
}

/* ---- a step ----------------------------------------------------------------------------------- */

/*
 * Return the number of elements of a tied embedding's gradient that a rank reduces between the first and the last
 * stage.  Without a distributed optimizer, a rank reduces all elements.  With a distributed optimizer, a rank reduces
 * only the elements of its shard.
 */
static double tied_grad_numel(const struct meg_params *params, const struct meg_param *row, const struct meg_layout *l)
{
    int b = 0;

    if (!l->zero.nshards)
        return (double)row->shard_numel;
    while (params->bucket[b].begin != row->offset)
        b++;
    return (double)meg_zero_bucket_shard_numel(params, l, b);
}

/*
 * Return the bytes of the all-gather of a layer group, or 0 if the group's unsharded buffer already contains it.
 * resident[i] is the layer group in unsharded buffer i.
 */
static double layer_gather_nbytes(int resident[MEG_UNSHARDED_BUFFERS], const struct meg_cost_model *cost,
                                  const struct meg_params *params, int layer_group)
{
    const struct meg_elem_range s = params->layer_group[layer_group];
    const int buffer = meg_unsharded_buffer(params, layer_group);

    if (resident[buffer] == layer_group)
        return 0;
    resident[buffer] = layer_group;
    return meg_comm_volume_sharded(cost->layout.zero.nshards,
                                   (double)((s.end - s.begin) / cost->layout.zero.nshards) * size_of(cost->run.dtype));
}

/*
 * ZeRO-3: return the bytes of all all-gathers of layer groups in a step.  The loops follow the order in which
 * model/forward_backward.c reads the groups.
 */
static double zero3_gather_nbytes(const struct meg_cost_model *cost, const struct meg_params *params)
{
    const int layers = params->nlayer_groups - 2;
    const int group = cost->run.recompute == MEG_RECOMPUTE_UNIFORM ? (int)cost->run.recompute_num_layers : 1;
    int resident[MEG_UNSHARDED_BUFFERS] = { -1, -1, -1, -1 };
    double sent = 0;

    for (int64_t m = 0; m < cost->schedule.microbatches; m++) {
        for (int i = 0; i <= layers + 1; i++)
            sent += layer_gather_nbytes(resident, cost, params, i);
        for (int i = layers; i > 0; i--) {
            if (i == layers || i % group == 0)
                for (int k = (i - 1) / group * group + 1; k <= i; k++)
                    sent += layer_gather_nbytes(resident, cost, params, k);
            sent += layer_gather_nbytes(resident, cost, params, i);
        }
    }
    return sent;
}

struct cost_step_comm cost_count_step_comm(const struct meg_cost_model *cost, struct meg_rank_coords at)
{
    const struct meg_layout *l = &cost->layout;
    const double e = size_of(cost->run.grad_dtype);
    const int64_t dp_replicas = l->dp * l->cp;
    struct cost_step_comm s = { 0 };
    struct meg_params params;
    struct meg_mesh mesh;

    meg_mesh_init_dry(&mesh, l, meg_layout_rank(l, at));
    meg_model_params(&params, cost->model, &mesh);
    s.num_updated = (double)meg_zero_shard_numel(&params, l);
    if (l->zero.nshards) {
        s.grad_reduce = meg_comm_volume_sharded(l->zero.nshards, s.num_updated * e) +
                        meg_comm_volume_all_reduce(dp_replicas / l->zero.nshards, s.num_updated * e);
        s.param_gather = meg_comm_volume_sharded(l->zero.nshards, s.num_updated * size_of(cost->run.dtype));
    } else {
        s.grad_reduce = meg_comm_volume_all_reduce(dp_replicas, s.num_updated * e);
    }
    for (int i = 0; i < params.n; i++) {
        const struct meg_param *row = &params.row[i];

        if (row->shard_numel && l->has_sp && row->tp_axis < 0)
            s.sp_grad_reduce += meg_comm_volume_all_reduce(l->tp, (double)row->shard_numel * e);
        if (row->shard_numel && l->pp > 1 && row->tie >= 0)
            s.embedding_grad += meg_comm_volume_all_reduce(2, tied_grad_numel(&params, row, l) * e);
    }
    if (l->zero.stage >= 2) {
        const double num_micro = (double)cost->schedule.microbatches;

        s.grad_reduce = num_micro * meg_comm_volume_sharded(l->zero.nshards, s.num_updated * e) +
                        meg_comm_volume_all_reduce(dp_replicas / l->zero.nshards, s.num_updated * e);
        s.sp_grad_reduce *= num_micro;
    }
    if (l->zero.stage == 3)
        s.param_gather = zero3_gather_nbytes(cost, &params);
    meg_params_free(&params);
    return s;
}

/*
 * Add the bytes that a rank of a stage sends for one micro-batch in its tensor- and context-parallel groups: those of
 * the stage's layers, on the first stage also those of the embedding, and on the last stage also those of the head.
 */
static void add_layer_comm(double nbytes[MEG_COST_GROUPS], const struct meg_cost_model *cost, int64_t stage)
{
    const struct meg_layout *l = &cost->layout;
    const struct meg_model_run run = meg_run_spec_stage(&cost->run, &cost->schedule, stage);
    const struct cost_comm tensor = cost_tp_comm(cost, run.defers_wgrad);
    const double saved = meg_comm_volume_sharded(
        l->tp,
        (double)(cost_local_rows(cost).residual_rows / l->tp * cost->model->hidden_size) * size_of(run.residual_dtype));
    int64_t first, n, inputs;

    for (int64_t chunk = 0; chunk < l->vp; chunk++) {
        meg_layout_layers(l, stage, chunk, &first, &n);
        const int64_t num_recomputed = cost_recomputed_layers(&run, n, &inputs);

        nbytes[MEG_COST_GROUP_TP] += (double)n * total(tensor) + (double)num_recomputed * tensor.fwd;
        if (run.distribute_saved_activations && n > 0) /* the input received from another stage needs no all-gather */
            nbytes[MEG_COST_GROUP_TP] += (double)(inputs - !meg_layout_is_first(stage, chunk)) * saved;
        for (int64_t i = 0; i < n; i++) {
            const struct cost_comm context = cost_cp_comm(cost, first + i);

            nbytes[MEG_COST_GROUP_CP] += total(context);
            if (i < num_recomputed)
                nbytes[MEG_COST_GROUP_CP] += context.fwd;
        }
    }
    if (stage == 0)
        nbytes[MEG_COST_GROUP_TP] += total(cost_embedding_comm(cost));
    if (stage == l->pp - 1)
        nbytes[MEG_COST_GROUP_TP] += total(cost_heads_comm(cost));
}

void meg_cost_comm_volume(double nbytes[MEG_COST_GROUPS], const struct meg_cost_model *cost, struct meg_rank_coords at)
{
    const struct meg_layout *l = &cost->layout;
    const struct cost_step_comm once = cost_count_step_comm(cost, at);
    const double scalar = (double)sizeof(double);
    const double boundary_nbytes =
        (double)(cost_local_rows(cost).residual_rows * cost->model->hidden_size) * size_of(cost->run.residual_dtype);
    const int64_t num_activations = l->vp - (at.pp == l->pp - 1), num_grads = l->vp - (at.pp == 0);

    memset(nbytes, 0, MEG_COST_GROUPS * sizeof *nbytes);
    add_layer_comm(nbytes, cost, at.pp);
    nbytes[MEG_COST_GROUP_PP] = l->pp > 1 ? (double)(num_activations + num_grads) * boundary_nbytes : 0;
    for (int i = 0; i < MEG_COST_GROUPS; i++)
        nbytes[i] *= (double)cost->schedule.microbatches;

    nbytes[MEG_COST_GROUP_TP] += once.sp_grad_reduce;
    nbytes[MEG_COST_GROUP_PP] += meg_comm_volume_all_reduce(l->pp, cost->num_losses * scalar);
    nbytes[MEG_COST_GROUP_DP_CP] = once.grad_reduce + once.param_gather +
                                   meg_comm_volume_all_reduce(l->dp * l->cp, (1 + cost->num_losses) * scalar);
    if (l->zero.nshards)
        nbytes[MEG_COST_GROUP_DP_CP] += meg_comm_volume_all_reduce(l->zero.nshards, cost->num_scalar_reduces * scalar);
    nbytes[MEG_COST_GROUP_MP] = meg_comm_volume_all_reduce(l->tp * l->pp, cost->num_scalar_reduces * scalar);
    nbytes[MEG_COST_GROUP_EMBEDDING] = once.embedding_grad;
}

void meg_cost_comm_volume_measured(double nbytes[MEG_COST_GROUPS], const struct meg_mesh *m)
{
    nbytes[MEG_COST_GROUP_TP] = m->tp->nbytes_sent;
    nbytes[MEG_COST_GROUP_CP] = m->cp->nbytes_sent + m->cp_a2a->nbytes_sent + m->cp_ring->nbytes_sent;
    nbytes[MEG_COST_GROUP_PP] = m->pp->nbytes_sent;
    nbytes[MEG_COST_GROUP_DP_CP] =
        m->dp_cp->nbytes_sent + m->dp_grad->nbytes_sent + m->dp_shard->nbytes_sent + m->dp_replica->nbytes_sent;
    nbytes[MEG_COST_GROUP_MP] = m->mp->nbytes_sent;
    nbytes[MEG_COST_GROUP_EMBEDDING] = 0;
    for (int k = 0; k < MEG_MAX_TIES; k++)
        nbytes[MEG_COST_GROUP_EMBEDDING] += m->tied[k]->nbytes_sent;
}
