/*
 * communication.c - cost model of communication: the bytes that a rank sends.  The bytes that a micro-batch sends
 * within the model are counted in a simulated run (count_model.h).  The formulas of this file compute the bytes of the
 * collectives and transfers in these files: parallel/pipeline.c, optim/zero/grad_reduce.c, optim/zero/layerwise.c,
 * optim/optim.c and train/step.c.
 */
#include <string.h>
#include "plan/internal.h"

const char *const meg_cost_group_name[MEG_COST_GROUPS] = { "tensor-parallel", "context-parallel",
                                                           "expert-parallel", "expert tensor-parallel",
                                                           "pipeline",        "data-parallel",
                                                           "model-parallel",  "embedding" };

static double size_of(enum meg_dtype t)
{
    return (double)meg_dtype_size(t);
}

/* ---- a step ----------------------------------------------------------------------------------- */

int64_t cost_tie_size(const struct meg_layout *l, int k)
{
    int64_t n = 0;

    for (int64_t stage = 0; stage < l->pp; stage++)
        n += meg_layout_has_tie(l, stage, k);
    return n;
}

/*
 * Return the number of elements of a tied parameter's gradient that a rank reduces between stages.  With a distributed
 * optimizer, if the parameter begins a bucket, the rank reduces only its shard of this bucket.  Otherwise, the rank
 * reduces all elements of the parameter.
 */
static double tied_grad_numel(const struct meg_params *params, const struct meg_param *row, const struct meg_layout *l)
{
    for (int b = 0; b < params->nbuckets && l->zero.nshards; b++)
        if (params->bucket[b].range.begin == row->offset)
            return (double)meg_zero_bucket_shard_numel(params, l, b);
    return (double)row->shard_numel;
}

/* ZeRO-3: the bytes of all-gathers of layer groups.  resident[i] is the layer group in unsharded buffer i. */
struct gathers {
    const struct meg_cost_model *cost;
    int resident[MEG_UNSHARDED_BUFFERS];
    double nbytes;
};

/* Count the all-gather of a layer group, unless its unsharded buffer already contains it. */
static void count_gather(void *user, int layer_group, int next, bool is_backward)
{
    struct gathers *g = user;
    const struct meg_params *p = g->cost->params;
    const int buffer = meg_unsharded_buffer(p, layer_group);

    (void)next, (void)is_backward;
    if (g->resident[buffer] == layer_group)
        return;
    g->resident[buffer] = layer_group;
    for (int b = 0; b < p->nbuckets; b++) {
        const struct meg_bucket *q = &p->bucket[b];
        const int64_t n = meg_zero_bucket_shard_numel(p, &g->cost->layout, b);

        if (q->layer_group == layer_group)
            g->nbytes +=
                meg_comm_volume_sharded((q->range.end - q->range.begin) / n,
                                        (double)n * size_of(meg_params_dtype(p, q->range.begin, g->cost->run.dtype)));
    }
}

/*
 * With ZeRO-3, return the bytes of all all-gathers of layer groups in a step.  The bytes are counted for two
 * micro-batches, because those of all micro-batches after the first one are equal.
 */
static double zero3_gather_nbytes(const struct meg_cost_model *cost)
{
    struct gathers g = { cost, { -1, -1, -1, -1 }, 0 };
    const struct meg_model_hooks hooks = { .user = &g, .params_needed = count_gather };
    double first;

    cost_run_hooks(cost, &hooks);
    first = g.nbytes;
    cost_run_hooks(cost, &hooks);
    return first + (double)(cost->schedule.microbatches - 1) * (g.nbytes - first);
}

/*
 * Add the bytes of the reduction of gradients and of the all-gather of parameters for the buckets of a data-parallel
 * group.  With shards, a step has num_reduces reduce-scatters over the shards and one all-reduce over the optimizer
 * instances, otherwise one all-reduce and no all-gather.
 */
static void add_dp_comm(struct cost_step_comm *s, const struct meg_cost_model *cost, enum meg_dp_group group,
                        double num_reduces)
{
    const struct meg_layout *l = &cost->layout;
    const struct meg_params *params = cost->params;
    const int64_t size = meg_layout_dp_size(l, group), nshards = meg_layout_num_shards(l, group);
    const double e = size_of(cost->run.grad_dtype);
    double n = 0, nbytes = 0; /* elements that the rank updates */

    for (int b = 0; b < params->nbuckets; b++)
        if (params->bucket[b].dp_group == group && params->bucket[b].range.begin < params->grad_numel) {
            const double numel = (double)meg_zero_bucket_shard_numel(params, l, b);

            n += numel;
            nbytes += numel * size_of(meg_params_dtype(params, params->bucket[b].range.begin, cost->run.dtype));
        }
    s->num_updated += n;
    if (nshards == 0) {
        s->grad_reduce += meg_comm_volume_all_reduce(size, n * e);
        return;
    }
    s->grad_reduce +=
        num_reduces * meg_comm_volume_sharded(nshards, n * e) + meg_comm_volume_all_reduce(size / nshards, n * e);
    s->param_gather += meg_comm_volume_sharded(nshards, nbytes);
}

struct cost_step_comm cost_count_step_comm(const struct meg_cost_model *cost, struct meg_rank_coords at)
{
    const struct meg_layout *l = &cost->layout;
    const double e = size_of(cost->run.grad_dtype);
    const double num_reduces = l->zero.stage >= 2 ? (double)cost->schedule.microbatches : 1;
    struct meg_params *params = cost->params;
    struct cost_step_comm s = { 0 };
    struct meg_mesh mesh;

    meg_mesh_init_dry(&mesh, l, meg_layout_rank(l, at));
    meg_params_shard(params, &mesh);
    for (int i = 0; i < MEG_DP_GROUPS; i++)
        add_dp_comm(&s, cost, (enum meg_dp_group)i, num_reduces);
    for (int i = 0; i < params->n; i++) {
        const struct meg_param *row = &params->row[i];
        const int64_t tp = meg_layout_axis_size(l, meg_param_tp_axis(row));
        double *tp_grad_reduce = tp == l->tp ? &s.tp_grad_reduce : &s.etp_grad_reduce;

        for (int64_t k = 0; k < meg_param_num_spans(row); k++) {
            const struct meg_param_span span = meg_param_span_at(row, k);

            if (meg_param_sums_grad_over_tp(row, &span, l))
                *tp_grad_reduce += meg_comm_volume_all_reduce(tp, (double)(span.end - span.begin) * e);
        }
        if (row->shard_numel && l->pp > 1 && row->tie >= 0 && !row->is_frozen)
            s.embedding_grad +=
                meg_comm_volume_all_reduce(cost_tie_size(l, row->tie), tied_grad_numel(params, row, l) * e);
    }
    s.tp_grad_reduce *= num_reduces;
    s.etp_grad_reduce *= num_reduces;
    if (l->zero.stage == 3)
        s.param_gather = zero3_gather_nbytes(cost);
    return s;
}

/* Add the bytes that a rank of a stage sends for one micro-batch within the model and to other stages. */
static void add_model_comm(double nbytes[MEG_COST_GROUPS], const struct meg_cost_model *cost, int64_t stage)
{
    struct cost_part p;

    for (int64_t chunk = 0; chunk < cost->layout.vp; chunk++) {
        const int64_t vstage = chunk * cost->layout.pp + stage;

        cost_count_chunk(&p, cost, stage, chunk);
        for (int i = 0; i < MEG_COST_GROUPS; i++)
            nbytes[i] += p.fwd.sent[i] + p.bwd.sent[i] + p.bwd_weight.sent[i];
        nbytes[MEG_COST_GROUP_PP] += cost_boundary_nbytes(cost, vstage) + cost_boundary_nbytes(cost, vstage + 1);
    }
}

void meg_cost_comm_volume(double nbytes[MEG_COST_GROUPS], const struct meg_cost_model *cost, struct meg_rank_coords at)
{
    const struct meg_layout *l = &cost->layout;
    const struct cost_step_comm once = cost_count_step_comm(cost, at);
    const double scalar = (double)sizeof(double);
    const int num_losses = cost->counts->desc.nlosses;

    memset(nbytes, 0, MEG_COST_GROUPS * sizeof *nbytes);
    add_model_comm(nbytes, cost, at.pp);
    for (int i = 0; i < MEG_COST_GROUPS; i++)
        nbytes[i] *= (double)cost->schedule.microbatches;

    nbytes[MEG_COST_GROUP_TP] += once.tp_grad_reduce;
    nbytes[MEG_COST_GROUP_ETP] += once.etp_grad_reduce;
    nbytes[MEG_COST_GROUP_PP] += meg_comm_volume_all_reduce(l->pp, num_losses * scalar);
    nbytes[MEG_COST_GROUP_DP_CP] =
        once.grad_reduce + once.param_gather + meg_comm_volume_all_reduce(l->dp * l->cp, (1 + num_losses) * scalar);
    if (l->zero.nshards)
        nbytes[MEG_COST_GROUP_DP_CP] +=
            meg_comm_volume_all_reduce(meg_layout_num_shards(l, MEG_DP_EXPERT), cost->num_scalar_reduces * scalar);
    nbytes[MEG_COST_GROUP_MP] =
        meg_comm_volume_all_reduce(meg_layout_mp_size(l) * l->pp, cost->num_scalar_reduces * scalar);
    nbytes[MEG_COST_GROUP_EMBEDDING] = once.embedding_grad;
}

void meg_cost_comm_volume_measured(double nbytes[MEG_COST_GROUPS], const struct meg_mesh *m)
{
    nbytes[MEG_COST_GROUP_TP] = m->tp->nbytes_sent;
    nbytes[MEG_COST_GROUP_CP] = m->cp->nbytes_sent + m->cp_a2a->nbytes_sent + m->cp_ring->nbytes_sent;
    nbytes[MEG_COST_GROUP_EP] = m->ep->nbytes_sent;
    nbytes[MEG_COST_GROUP_ETP] = m->etp == m->tp ? 0 : m->etp->nbytes_sent;
    nbytes[MEG_COST_GROUP_PP] = m->pp->nbytes_sent;
    nbytes[MEG_COST_GROUP_DP_CP] = m->dp_cp->nbytes_sent;
    for (int i = 0; i < (meg_layout_has_expert_groups(&m->layout) ? MEG_DP_GROUPS : 1); i++)
        nbytes[MEG_COST_GROUP_DP_CP] +=
            m->dp[i].grad->nbytes_sent + m->dp[i].shard->nbytes_sent + m->dp[i].replica->nbytes_sent;
    nbytes[MEG_COST_GROUP_MP] = m->mp->nbytes_sent;
    nbytes[MEG_COST_GROUP_EMBEDDING] = 0;
    for (int k = 0; k < MEG_MAX_TIES; k++)
        nbytes[MEG_COST_GROUP_EMBEDDING] += m->tied[k]->nbytes_sent;
}
