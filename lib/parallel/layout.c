/* layout.c - rank coordinates, and the rules that a layout must satisfy. */
#include "parallel/layout.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/int64.h"
#include "parallel/internal.h"

#define C struct meg_layout_conf
const struct meg_opt meg_layout_opts[] = {
    { "tensor-model-parallel-size", 0, MEG_I64(C, tensor), "N", "1",
      "number of tensor-parallel ranks, which shard the weights of each layer" },
    { "pipeline-model-parallel-size", 0, MEG_I64(C, pipeline), "N", "1",
      "number of pipeline stages, over which the layers are divided" },
    { "context-parallel-size", 0, MEG_I64(C, context), "N", "1",
      "number of context-parallel ranks, which shard each sequence" },
    { "expert-model-parallel-size", 0, MEG_I64(C, expert), "N", "1",
      "number of expert-parallel ranks, which shard the experts of a layer" },
    { "expert-tensor-parallel-size", 0, MEG_I64(C, expert_tensor), "N", NULL,
      "number of ranks that shard the weights of an expert; default: the tensor-parallel size" },
    { "cp-comm-type", 0, MEG_LIST(C, cp_comm_types), "p2p|all_gather|a2a|a2a+p2p...", "p2p",
      "communication type of context parallelism: one for all layers, or one per layer" },
    { "hierarchical-context-parallel-sizes", 0, MEG_LIST(C, hierarchical_cp_sizes), "A2A RING", NULL,
      "sizes of the all-to-all group and of the ring with --cp-comm-type a2a+p2p" },
    { "sequence-parallel", 0, MEG_BOOL(C, sequence_parallel), NULL, "no",
      "shard the activations of norms, dropout and residuals over the tensor-parallel ranks, along the sequence "
      "dimension" },
    { "num-layers-per-virtual-pipeline-stage", 0, MEG_I64(C, virtual_layers), "N", NULL,
      "number of layers per model chunk (virtual stage), for the interleaved schedule" },
    { "num-virtual-stages-per-pipeline-rank", 0, MEG_I64(C, virtual_stages), "N", NULL,
      "number of model chunks (virtual stages) per pipeline rank, for the interleaved schedule" },
    { "microbatch-group-size-per-virtual-pipeline-stage", 0, MEG_I64(C, microbatch_group_size), "N", NULL,
      "number of micro-batches that a stage processes with a model chunk before it continues with the next chunk; "
      "default: the number of stages" },
    { "pipeline-schedule", 0, MEG_ENUM(C, schedule), "1f1b|interleaved|zb-h1", NULL,
      "order of the forward and backward passes; default: interleaved if a stage has several model chunks, else 1f1b" },
    { "decoder-first-pipeline-num-layers", 0, MEG_I64(C, first_layers), "N", NULL,
      "number of layers of the first stage; the rest is divided equally over the other stages" },
    { "decoder-last-pipeline-num-layers", 0, MEG_I64(C, last_layers), "N", NULL,
      "number of layers of the last stage; the rest is divided equally over the other stages" },
    { "account-for-embedding-in-pipeline-split", 0, MEG_BOOL(C, counts_embedding), NULL, "no",
      "count the embedding as one layer when the layers are divided over the stages" },
    { "account-for-loss-in-pipeline-split", 0, MEG_BOOL(C, counts_loss), NULL, "no",
      "count the output layer and the loss as one layer when the layers are divided over the stages" },
    { "pipeline-model-parallel-layout", 0, MEG_STR(C, stage_string), "LAYOUT", NULL,
      "contents of each virtual stage, such as 'Et|(tt|)*3L': E embedding, t layer, L loss, "
      "| end of a stage, (...)*N repetition" },
    MEG_ALIAS("num-layers-in-first-pipeline-stage", "decoder-first-pipeline-num-layers"),
    MEG_ALIAS("num-layers-in-last-pipeline-stage", "decoder-last-pipeline-num-layers"),
    { "pipeline-model-parallel-split-rank", 0, MEG_I64(C, split_rank), "N", NULL,
      "first pipeline stage of the decoder of T5; default: the layers of encoder and decoder together are divided "
      "equally over the stages" },
    { "use-tp-pp-dp-mapping", 0, MEG_BOOL(C, pp_before_dp), NULL, "no",
      "number the ranks in the order tensor, context, pipeline, data instead of tensor, context, data, pipeline" },
    { 0 }
};
#undef C

const struct meg_layout meg_layout_one = { .tp = 1, .cp = 1, .dp = 1, .pp = 1, .ep = 1, .etp = 1, .vp = 1 };

int64_t meg_layout_world(const struct meg_layout *l)
{
    return l->tp * l->cp * l->dp * l->pp;
}

struct meg_rank_coords meg_layout_coords(const struct meg_layout *l, int64_t rank)
{
    struct meg_rank_coords c;

    c.tp = rank % l->tp;
    rank /= l->tp;
    c.cp = rank % l->cp;
    rank /= l->cp;
    if (l->pp_before_dp) {
        c.pp = rank % l->pp;
        c.dp = rank / l->pp;
    } else {
        c.dp = rank % l->dp;
        c.pp = rank / l->dp;
    }
    return c;
}

int64_t meg_layout_rank(const struct meg_layout *l, struct meg_rank_coords c)
{
    if (l->pp_before_dp)
        return c.tp + l->tp * (c.cp + l->cp * (c.pp + l->pp * c.dp));
    return c.tp + l->tp * (c.cp + l->cp * (c.dp + l->dp * c.pp));
}

int64_t meg_layout_axis_size(const struct meg_layout *l, enum meg_mesh_axis axis)
{
    switch (axis) {
    case MEG_AXIS_TP: return l->tp;
    case MEG_AXIS_EP: return l->ep;
    case MEG_AXIS_ETP: return l->etp;
    default: return 1;
    }
}

int64_t meg_layout_axis_rank(const struct meg_layout *l, struct meg_rank_coords c, enum meg_mesh_axis axis)
{
    switch (axis) {
    case MEG_AXIS_TP: return c.tp;
    case MEG_AXIS_EP: return meg_layout_stage_rank(l, c) / l->etp % l->ep;
    case MEG_AXIS_ETP: return meg_layout_stage_rank(l, c) % l->etp;
    default: return 0;
    }
}

int64_t meg_layout_mp_size(const struct meg_layout *l)
{
    const int64_t experts = meg_layout_replica_size(l, MEG_DP_EXPERT);

    return l->zero.nshards ? experts : meg_lcm64(l->tp, experts);
}

enum meg_cp_comm_type meg_layout_cp_comm_type(const struct meg_layout *l, int64_t layer)
{
    static const char *const names[] = {
        [MEG_CP_P2P] = "p2p", [MEG_CP_ALL_GATHER] = "all_gather", [MEG_CP_A2A] = "a2a", [MEG_CP_A2A_P2P] = "a2a+p2p"
    };
    const char *name = l->cp_comm_types.n > 1 ? l->cp_comm_types.v[layer]
                       : l->cp_comm_types.n   ? l->cp_comm_types.v[0]
                                              : "p2p";
    int type = MEG_CP_P2P;

    while (strcmp(names[type], name) != 0)
        type++;
    return (enum meg_cp_comm_type)type;
}

bool meg_layout_has_group(const struct meg_layout *l, int64_t stage, int64_t layer_group)
{
    if (l->pp == 1)
        return true;
    if (layer_group == 0)
        return stage == 0;
    if (layer_group == l->layers + 1)
        return stage == l->pp - 1;
    for (int64_t chunk = 0; chunk < l->vp; chunk++) {
        int64_t first, n;

        meg_layout_layers(l, stage, chunk, &first, &n);
        if (layer_group - 1 >= first && layer_group - 1 < first + n)
            return true;
    }
    return false;
}

bool meg_layout_has_tie(const struct meg_layout *l, int64_t stage, int k)
{
    const struct meg_tie *tie = &l->tie[k];

    if (l->pp == 1)
        return true;
    MEG_ASSERT_LT(k, l->nties);
    for (size_t u = 0; u < sizeof tie->use / sizeof *tie->use; u++)
        for (int64_t i = tie->use[u].begin; i < tie->use[u].end; i++)
            if (meg_layout_has_group(l, stage, i))
                return true;
    return false;
}

int64_t meg_layout_first_tied_stage(const struct meg_layout *l, int k)
{
    int64_t stage = 0;

    while (!meg_layout_has_tie(l, stage, k))
        stage++;
    return stage;
}

void meg_layout_free(struct meg_layout *l)
{
    free(l->first_layer);
    l->first_layer = NULL;
}

/* ---- rules ---------------------------------------------------------------------------------- */

int layout_refuse(const char *option, int64_t v, struct meg_err *e, const char *fmt, ...)
{
    char rule[200];

    MEG_FORMAT_ARGS(rule, fmt);
    return meg_fail(e, MEG_EUSAGE, "--%s %" PRId64 ": %s", option, v, rule);
}

static int check_sizes(const struct meg_layout_conf *c, int64_t world, struct meg_err *e)
{
    const struct {
        const char *option;
        int64_t v;
    } size[] = {
        { "tensor-model-parallel-size", c->tensor },
        { "pipeline-model-parallel-size", c->pipeline },
        { "context-parallel-size", c->context },
        { "expert-model-parallel-size", c->expert },
        { "expert-tensor-parallel-size", c->expert_tensor },
    };
    double model = 1; /* product of the sizes of dense parameters; exact up to 2^53 */

    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        if (size[i].v == MEG_UNSET)
            continue;
        if (size[i].v < 1)
            return layout_refuse(size[i].option, size[i].v, e, "must be at least 1");
        if (size[i].v > world)
            return layout_refuse(size[i].option, size[i].v, e, "must be at most %" PRId64 ", the number of ranks",
                                 world);
        if (i < 3)
            model *= (double)size[i].v;
    }
    if (model > (double)world || model > 0x1p53 || world % (int64_t)model)
        return meg_fail(e, MEG_EUSAGE,
                        "--tensor-model-parallel-size %" PRId64 " times --pipeline-model-parallel-size %" PRId64
                        " times --context-parallel-size %" PRId64
                        " is %.0f, which does not divide the number of ranks, %" PRId64,
                        c->tensor, c->pipeline, c->context, model, world);
    return 0;
}

/* Check the groups of experts. */
static int check_experts(const struct meg_layout *l, const struct meg_layout_conf *c, struct meg_err *e)
{
    const int64_t ranks = l->tp * l->cp * l->dp;

    if (ranks % (l->ep * l->etp))
        return meg_fail(e, MEG_EUSAGE,
                        "--expert-model-parallel-size %" PRId64 " times the tensor-parallel size of experts, %" PRId64
                        ", must divide the number of ranks of a pipeline stage, %" PRId64,
                        l->ep, l->etp, ranks);
    if (l->etp != l->tp && l->tp > 1 && !c->sequence_parallel)
        return layout_refuse("expert-tensor-parallel-size", l->etp, e,
                             "must be --tensor-model-parallel-size %" PRId64 " without --sequence-parallel", l->tp);
    return 0;
}

static int check_tensor(const struct meg_layout_conf *c, const struct meg_layout_model *m, struct meg_err *e)
{
    const int64_t tp = c->tensor;

    if (m->heads % tp)
        return layout_refuse("tensor-model-parallel-size", tp, e, "must divide --num-attention-heads %" PRId64,
                             m->heads);
    if (m->groups % tp)
        return layout_refuse("tensor-model-parallel-size", tp, e, "must divide --num-query-groups %" PRId64, m->groups);
    if (m->has_wide_qk_norm && tp > 1)
        return layout_refuse("tensor-model-parallel-size", tp, e,
                             "must be 1 with --qk-norm-scope width, because a norm includes all heads");
    if (m->ffn % tp)
        return layout_refuse("tensor-model-parallel-size", tp, e, "must divide --ffn-hidden-size %" PRId64, m->ffn);
    if (m->vocab < tp)
        return layout_refuse("tensor-model-parallel-size", tp, e,
                             "must be at most %" PRId64 ", the size of the vocabulary", m->vocab);
    if (c->sequence_parallel && m->s % (tp * c->context))
        return layout_refuse("seq-length", m->s, e,
                             "must be a multiple of %" PRId64
                             ", the tensor-parallel size times the context-parallel size, with --sequence-parallel",
                             tp * c->context);
    if (c->sequence_parallel && m->s_decoder % tp)
        return layout_refuse("decoder-seq-length", m->s_decoder, e,
                             "must be a multiple of %" PRId64 ", the tensor-parallel size, with --sequence-parallel",
                             tp);
    return 0;
}

/* Parse and check --hierarchical-context-parallel-sizes.  Set size if the option is given. */
static int check_cp_sizes(int64_t size[2], const struct meg_layout_conf *c, struct meg_err *e)
{
    for (int i = 0; i < c->hierarchical_cp_sizes.n; i++) {
        char *end;

        size[i] = strtoll(c->hierarchical_cp_sizes.v[i], &end, 10);
        if (*end || size[i] < 1)
            return meg_fail(e, MEG_EUSAGE, "--hierarchical-context-parallel-sizes: '%s' is not a positive integer",
                            c->hierarchical_cp_sizes.v[i]);
    }
    if (c->hierarchical_cp_sizes.n && (size[0] > c->context || size[1] > c->context || size[0] * size[1] != c->context))
        return meg_fail(e, MEG_EUSAGE,
                        "--hierarchical-context-parallel-sizes %s %s: the product must equal "
                        "--context-parallel-size %" PRId64,
                        c->hierarchical_cp_sizes.v[0], c->hierarchical_cp_sizes.v[1], c->context);
    return 0;
}

static int check_context(struct meg_layout *l, const struct meg_layout_conf *c, const struct meg_layout_model *m,
                         struct meg_err *e)
{
    const int64_t cp = c->context, groups = m->groups / c->tensor;
    int64_t size[2];
    const int r = check_cp_sizes(size, c, e);

    if (r < 0)
        return r;
    l->cp_comm_types = c->cp_comm_types;
    if (c->cp_comm_types.n > 1 && c->cp_comm_types.n != m->layers)
        return meg_fail(e, MEG_EUSAGE,
                        "--cp-comm-type: found %" PRId64 " values, expected 1 or one per layer (--num-layers %" PRId64
                        ")",
                        c->cp_comm_types.n, m->layers);
    if (m->s % (2 * cp) && cp > 1)
        return layout_refuse("context-parallel-size", cp, e,
                             "twice this size, %" PRId64 ", must divide --seq-length %" PRId64, 2 * cp, m->s);
    for (int64_t i = 0; i < c->cp_comm_types.n && cp > 1; i++) {
        const enum meg_cp_comm_type type = meg_layout_cp_comm_type(l, i);
        int64_t a2a_size = type == MEG_CP_A2A ? cp : 1;

        if (type == MEG_CP_A2A_P2P && c->hierarchical_cp_sizes.n == 0)
            return meg_fail(e, MEG_EUSAGE, "--cp-comm-type a2a+p2p: requires --hierarchical-context-parallel-sizes");
        if (type == MEG_CP_A2A_P2P)
            a2a_size = l->a2a_size = size[0];
        if (groups % a2a_size)
            return meg_fail(e, MEG_EUSAGE,
                            "--cp-comm-type %s: the size of the all-to-all group, %" PRId64
                            ", must divide the number of query groups per tensor-parallel rank, %" PRId64,
                            c->cp_comm_types.v[i], a2a_size, groups);
    }
    return 0;
}

int meg_layout_make(struct meg_layout *l, const struct meg_layout_conf *c, int64_t world, struct meg_err *e)
{
    const int r = check_sizes(c, world, e);

    if (r < 0)
        return r;
    *l = meg_layout_one;
    l->tp = c->tensor;
    l->cp = c->context;
    l->pp = c->pipeline;
    l->dp = world / (l->tp * l->cp * l->pp);
    l->has_sp = c->sequence_parallel && l->tp > 1;
    l->pp_before_dp = c->pp_before_dp;
    l->ep = c->expert;
    l->etp = c->expert_tensor == MEG_UNSET ? l->tp : c->expert_tensor;
    return check_experts(l, c, e);
}

int meg_layout_set_model(struct meg_layout *l, const struct meg_layout_conf *c, const struct meg_layout_model *m,
                         struct meg_err *e)
{
    int r;

    if ((r = check_tensor(c, m, e)) < 0 || (r = check_context(l, c, m, e)) < 0 ||
        (r = stage_table_make(&l->first_layer, &l->vp, c, m, e)) < 0)
        return r;
    l->layers = m->layers;
    return 0;
}
