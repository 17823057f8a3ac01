/* Rank coordinates, layers per pipeline stage, and the rules that a layout must satisfy. */
#include "parallel/layout.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

#define C struct meg_layout_conf
const struct meg_opt meg_layout_opts[] = {
    { "tensor-model-parallel-size", 0, MEG_I64(C, tensor), "N", "1",
      "number of tensor-parallel ranks, which shard the weights of each layer" },
    { "pipeline-model-parallel-size", 0, MEG_I64(C, pipeline), "N", "1",
      "number of pipeline stages, over which the layers are divided" },
    { "context-parallel-size", 0, MEG_I64(C, context), "N", "1",
      "number of context-parallel ranks, which shard each sequence" },
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
    { "use-tp-pp-dp-mapping", 0, MEG_BOOL(C, pp_before_dp), NULL, "no",
      "number the ranks in the order tensor, pipeline, context, data instead of tensor, context, data, pipeline" },
    { 0 }
};
#undef C

const struct meg_layout meg_layout_one = { .tp = 1, .cp = 1, .dp = 1, .pp = 1, .vp = 1 };

int64_t meg_layout_world(const struct meg_layout *l)
{
    return l->tp * l->cp * l->dp * l->pp;
}

struct meg_rank_coords meg_layout_coords(const struct meg_layout *l, int64_t rank)
{
    struct meg_rank_coords c;

    c.tp = rank % l->tp;
    rank /= l->tp;
    if (l->pp_before_dp) {
        c.pp = rank % l->pp;
        rank /= l->pp;
    }
    c.cp = rank % l->cp;
    rank /= l->cp;
    c.dp = rank % l->dp;
    if (!l->pp_before_dp)
        c.pp = rank / l->dp;
    return c;
}

int64_t meg_layout_rank(const struct meg_layout *l, struct meg_rank_coords c)
{
    if (l->pp_before_dp)
        return c.tp + l->tp * (c.pp + l->pp * (c.cp + l->cp * c.dp));
    return c.tp + l->tp * (c.cp + l->cp * (c.dp + l->dp * c.pp));
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

void meg_layout_free(struct meg_layout *l)
{
    free(l->first_layer);
    l->first_layer = NULL;
}

/* ---- rules ---------------------------------------------------------------------------------- */

/* Fail with the message "--option v: rule". */
static int refuse(const char *option, int64_t v, struct meg_err *e, const char *fmt, ...) MEG_PRINTF(4, 5);
static int refuse(const char *option, int64_t v, struct meg_err *e, const char *fmt, ...)
{
    char rule[200];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(rule, sizeof rule, fmt, ap);
    va_end(ap);
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
    };
    double model = 1; /* product of the sizes; exact up to 2^53 */

    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        if (size[i].v < 1)
            return refuse(size[i].option, size[i].v, e, "must be at least 1");
        if (size[i].v > world)
            return refuse(size[i].option, size[i].v, e, "must be at most %" PRId64 ", the number of ranks", world);
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

static int check_tensor(const struct meg_layout_conf *c, const struct meg_layout_model *m, struct meg_err *e)
{
    const int64_t tp = c->tensor;

    if (m->heads % tp)
        return refuse("tensor-model-parallel-size", tp, e, "must divide --num-attention-heads %" PRId64, m->heads);
    if (m->groups % tp)
        return refuse("tensor-model-parallel-size", tp, e, "must divide --num-query-groups %" PRId64, m->groups);
    if (m->ffn % tp)
        return refuse("tensor-model-parallel-size", tp, e, "must divide --ffn-hidden-size %" PRId64, m->ffn);
    if (m->vocab < tp)
        return refuse("tensor-model-parallel-size", tp, e, "must be at most %" PRId64 ", the size of the vocabulary",
                      m->vocab);
    if (c->sequence_parallel && m->s % (tp * c->context))
        return refuse("seq-length", m->s, e,
                      "must be a multiple of %" PRId64
                      ", the tensor-parallel size times the context-parallel size, with --sequence-parallel",
                      tp * c->context);
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
        return refuse("context-parallel-size", cp, e, "twice this size, %" PRId64 ", must divide --seq-length %" PRId64,
                      2 * cp, m->s);
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

/* Check the options of virtual stages, and set *vp to the number of model chunks per stage. */
static int check_virtual(int64_t *vp, const struct meg_layout_conf *c, int64_t layers, struct meg_err *e)
{
    const bool by_layers = c->virtual_layers != MEG_UNSET, by_stages = c->virtual_stages != MEG_UNSET;
    const char *option = by_layers ? "num-layers-per-virtual-pipeline-stage" : "num-virtual-stages-per-pipeline-rank";
    const int64_t v = by_layers ? c->virtual_layers : c->virtual_stages, stage = layers / c->pipeline;

    *vp = 1;
    if (!by_layers && !by_stages)
        return 0;
    if (by_layers && by_stages)
        return refuse(option, v, e, "cannot be combined with --num-virtual-stages-per-pipeline-rank");
    if (v < 1)
        return refuse(option, v, e, "must be at least 1");
    if (c->pipeline < 2)
        return refuse(option, v, e, "requires --pipeline-model-parallel-size of 2 or more");
    if (c->first_layers != MEG_UNSET || c->last_layers != MEG_UNSET)
        return refuse(option, v, e,
                      "cannot be combined with --decoder-first-pipeline-num-layers or "
                      "--decoder-last-pipeline-num-layers");
    if (stage % v)
        return refuse(option, v, e, "must divide the number of layers per stage, %" PRId64, stage);
    *vp = by_layers ? stage / v : v;
    return 0;
}

static int check_stages(const struct meg_layout_conf *c, int64_t layers, struct meg_err *e)
{
    int64_t rest = layers, stages = c->pipeline;
    const struct {
        const char *option;
        int64_t v;
    } uneven[] = {
        { "decoder-first-pipeline-num-layers", c->first_layers },
        { "decoder-last-pipeline-num-layers", c->last_layers },
    };

    for (int i = 0; i < 2; i++) {
        if (uneven[i].v == MEG_UNSET)
            continue;
        if (uneven[i].v < 1)
            return refuse(uneven[i].option, uneven[i].v, e, "must be at least 1");
        if (c->pipeline < 2)
            return refuse(uneven[i].option, uneven[i].v, e, "requires --pipeline-model-parallel-size of 2 or more");
        rest -= uneven[i].v;
        stages--;
    }
    if (stages == c->pipeline && layers % stages)
        return meg_fail(e, MEG_EUSAGE,
                        "--num-layers %" PRId64 ": must be a multiple of --pipeline-model-parallel-size %" PRId64,
                        layers, c->pipeline);
    if (stages == 0 && rest != 0)
        return meg_fail(e, MEG_EUSAGE,
                        "--num-layers %" PRId64 ": must be %" PRId64
                        ", the sum of --decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers, with "
                        "--pipeline-model-parallel-size 2",
                        layers, layers - rest);
    if (rest < stages)
        return meg_fail(e, MEG_EUSAGE,
                        "--num-layers %" PRId64 ": at least %" PRId64 " are required: %" PRId64
                        " by --decoder-first-pipeline-num-layers and "
                        "--decoder-last-pipeline-num-layers, and one on each of the other %" PRId64 " pipeline stage%s",
                        layers, layers - rest + stages, layers - rest, stages, stages == 1 ? "" : "s");
    if (stages > 0 && rest % stages)
        return meg_fail(e, MEG_EUSAGE,
                        "--num-layers %" PRId64 ": %" PRId64
                        " layers remain after --decoder-first-pipeline-num-layers and "
                        "--decoder-last-pipeline-num-layers, and cannot be divided equally over the other %" PRId64
                        " pipeline stages",
                        layers, rest, stages);
    return 0;
}

/* ---- the stage table ---------------------------------------------------------------------------- */

/* Return the number of layers of a stage. */
static int64_t stage_layers(const struct meg_layout_conf *c, int64_t layers, int64_t stage)
{
    int64_t rest = layers, stages = c->pipeline;

    if (c->first_layers != MEG_UNSET) {
        if (stage == 0)
            return c->first_layers;
        rest -= c->first_layers;
        stages--;
    }
    if (c->last_layers != MEG_UNSET) {
        if (stage == c->pipeline - 1)
            return c->last_layers;
        rest -= c->last_layers;
        stages--;
    }
    return rest / stages;
}

/* Compute the stage table.  The layers of a stage are divided equally over the chunks of the stage. */
static int64_t *make_stage_table(const struct meg_layout_conf *c, int64_t layers, int64_t vp)
{
    int64_t *first_layer = meg_new((size_t)(c->pipeline * vp + 1) * sizeof *first_layer);

    for (int64_t k = 0; k < c->pipeline * vp; k++)
        first_layer[k + 1] = first_layer[k] + stage_layers(c, layers, k % c->pipeline) / vp;
    MEG_ASSERT_EQ(first_layer[c->pipeline * vp], layers);
    return first_layer;
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
    return 0;
}

int meg_layout_set_model(struct meg_layout *l, const struct meg_layout_conf *c, const struct meg_layout_model *m,
                         struct meg_err *e)
{
    int r;

    if ((r = check_tensor(c, m, e)) < 0 || (r = check_context(l, c, m, e)) < 0 ||
        (r = check_stages(c, m->layers, e)) < 0 || (r = check_virtual(&l->vp, c, m->layers, e)) < 0)
        return r;
    l->layers = m->layers;
    l->first_layer = make_stage_table(c, m->layers, l->vp);
    return 0;
}
