/* stage_table.c - the stage table: the layers of each pipeline stage and chunk, computed from the options. */
#include <inttypes.h>
#include <stdlib.h>
#include "base/mem.h"
#include "parallel/internal.h"

/*
 * Return the number of units that are divided over the stages.  A layer is a unit.  The embedding and the loss are
 * units if the options --account-for-embedding-in-pipeline-split and --account-for-loss-in-pipeline-split count them.
 */
static int64_t num_units(const struct meg_layout_conf *c, int64_t layers)
{
    return layers + c->counts_embedding + c->counts_loss;
}

/* Return whether options set the number of layers of the first or of the last stage. */
static bool is_uneven(const struct meg_layout_conf *c)
{
    return c->first_layers != MEG_UNSET || c->last_layers != MEG_UNSET;
}

/* Check that the layers, plus one each for the embedding and the loss if they count, divide by the stages. */
static int check_equal_stages(const struct meg_layout_conf *c, int64_t layers, struct meg_err *e)
{
    const int64_t units = num_units(c, layers);

    if (units % c->pipeline == 0)
        return 0;
    if (units == layers)
        return meg_fail(e, MEG_EUSAGE,
                        "--num-layers %" PRId64 ": must be a multiple of --pipeline-model-parallel-size %" PRId64,
                        layers, c->pipeline);
    return meg_fail(e, MEG_EUSAGE,
                    "--num-layers %" PRId64 ": with --account-for-%s-in-pipeline-split%s it counts as %" PRId64
                    ", which must be a multiple of --pipeline-model-parallel-size %" PRId64,
                    layers, c->counts_embedding ? "embedding" : "loss",
                    c->counts_embedding && c->counts_loss ? " and --account-for-loss-in-pipeline-split" : "", units,
                    c->pipeline);
}

/* Check the options that set the number of layers of the first or of the last stage. */
static int check_uneven_stages(const struct meg_layout_conf *c, int64_t layers, struct meg_err *e)
{
    int64_t rest = layers, stages = c->pipeline;
    const struct {
        const char *option;
        int64_t v;
    } uneven[] = {
        { "decoder-first-pipeline-num-layers", c->first_layers },
        { "decoder-last-pipeline-num-layers", c->last_layers },
    };

    if (c->counts_embedding || c->counts_loss)
        return meg_fail(e, MEG_EUSAGE,
                        "--account-for-%s-in-pipeline-split: cannot be combined with "
                        "--decoder-first-pipeline-num-layers or --decoder-last-pipeline-num-layers",
                        c->counts_embedding ? "embedding" : "loss");
    for (int i = 0; i < 2; i++) {
        if (uneven[i].v == MEG_UNSET)
            continue;
        if (uneven[i].v < 1)
            return layout_refuse(uneven[i].option, uneven[i].v, e, "must be at least 1");
        if (uneven[i].v > layers)
            return layout_refuse(uneven[i].option, uneven[i].v, e, "must be at most --num-layers %" PRId64, layers);
        if (c->pipeline < 2)
            return layout_refuse(uneven[i].option, uneven[i].v, e,
                                 "requires --pipeline-model-parallel-size of 2 or more");
        rest -= uneven[i].v;
        stages--;
    }
    if (stages == 0 && rest != 0)
        return meg_fail(e, MEG_EUSAGE,
                        "--num-layers %" PRId64 ": must be %" PRId64
                        ", the sum of --decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers, with "
                        "--pipeline-model-parallel-size 2",
                        layers, layers - rest);
    if (rest < stages)
        return meg_fail(e, MEG_EUSAGE,
                        "--num-layers %" PRId64 ": must be at least %" PRId64 ", which is %" PRId64
                        " for --decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers, and one for "
                        "each other pipeline stage (%" PRId64 ")",
                        layers, layers - rest + stages, layers - rest, stages);
    if (stages > 0 && rest % stages)
        return meg_fail(e, MEG_EUSAGE,
                        "--num-layers %" PRId64 ": %" PRId64
                        " layers remain after --decoder-first-pipeline-num-layers and "
                        "--decoder-last-pipeline-num-layers, and cannot be divided equally over the other %" PRId64
                        " pipeline stages",
                        layers, rest, stages);
    return 0;
}

/* Return the number of units of a stage. */
static int64_t stage_units(const struct meg_layout_conf *c, int64_t layers, int64_t stage)
{
    int64_t rest = num_units(c, layers), stages = c->pipeline;

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

/* Check that v, the value of an option, divides the number of layers of each stage. */
static int check_divides_stages(const char *option, int64_t v, const struct meg_layout_conf *c, int64_t layers,
                                struct meg_err *e)
{
    const int64_t distinct[] = { 0, 1, c->pipeline - 1 }; /* the stages between the first and the last are equal */

    for (int i = 0; i < 3; i++) {
        const int64_t n = stage_units(c, layers, distinct[i]);

        if (n % v && is_uneven(c))
            return layout_refuse(option, v, e,
                                 "must divide the number of layers of each stage, but stage %" PRId64 " has %" PRId64,
                                 distinct[i], n);
        if (n % v)
            return layout_refuse(option, v, e, "must divide the number of layers per stage, %" PRId64 "%s", n,
                                 c->counts_embedding || c->counts_loss
                                     ? ", including the embedding or the loss, which count as layers"
                                     : "");
    }
    return 0;
}

/* Check the options of virtual stages, and set *vp to the number of model chunks per stage. */
static int check_virtual(int64_t *vp, const struct meg_layout_conf *c, int64_t layers, struct meg_err *e)
{
    const bool by_layers = c->virtual_layers != MEG_UNSET, by_stages = c->virtual_stages != MEG_UNSET;
    const char *option = by_layers ? "num-layers-per-virtual-pipeline-stage" : "num-virtual-stages-per-pipeline-rank";
    const int64_t v = by_layers ? c->virtual_layers : c->virtual_stages;
    int r;

    *vp = 1;
    if (!by_layers && !by_stages)
        return 0;
    if (by_layers && by_stages)
        return layout_refuse(option, v, e, "cannot be combined with --num-virtual-stages-per-pipeline-rank");
    if (v < 1)
        return layout_refuse(option, v, e, "must be at least 1");
    if (c->pipeline < 2)
        return layout_refuse(option, v, e, "requires --pipeline-model-parallel-size of 2 or more");
    if (by_layers && is_uneven(c))
        return layout_refuse(option, v, e,
                             "cannot be combined with --decoder-first-pipeline-num-layers or "
                             "--decoder-last-pipeline-num-layers; use --num-virtual-stages-per-pipeline-rank");
    if ((r = check_divides_stages(option, v, c, layers, e)) < 0)
        return r;
    *vp = by_layers ? stage_units(c, layers, 0) / v : v;
    return 0;
}

/*
 * Compute the stage table.  The units of a stage are divided equally over the chunks of the stage.  If embedding and
 * loss are counted, they are the first and the last unit.
 */
static int64_t *make_stage_table(const struct meg_layout_conf *c, int64_t layers, int64_t vp)
{
    const int64_t nvirtual = c->pipeline * vp;
    int64_t *first_layer = meg_new((size_t)(nvirtual + 1) * sizeof *first_layer);

    for (int64_t k = 0; k < nvirtual; k++)
        first_layer[k + 1] = first_layer[k] + stage_units(c, layers, k % c->pipeline) / vp -
                             (c->counts_embedding && k == 0) - (c->counts_loss && k == nvirtual - 1);
    MEG_ASSERT_EQ(first_layer[nvirtual], layers);
    return first_layer;
}

/* ---- the option --pipeline-model-parallel-layout ---------------------------------------------- */

/* Return the first option given, other than --pipeline-model-parallel-layout, that divides the layers, or NULL. */
static const char *given_division(const struct meg_layout_conf *c)
{
    const struct {
        const char *option;
        bool is_given;
    } division[] = {
        { "num-layers-per-virtual-pipeline-stage", c->virtual_layers != MEG_UNSET },
        { "num-virtual-stages-per-pipeline-rank", c->virtual_stages != MEG_UNSET },
        { "decoder-first-pipeline-num-layers", c->first_layers != MEG_UNSET },
        { "decoder-last-pipeline-num-layers", c->last_layers != MEG_UNSET },
        { "account-for-embedding-in-pipeline-split", c->counts_embedding },
        { "account-for-loss-in-pipeline-split", c->counts_loss },
    };

    for (size_t i = 0; i < sizeof division / sizeof *division; i++)
        if (division[i].is_given)
            return division[i].option;
    return NULL;
}

/* Check the number of virtual stages, and the number of their layers. */
static int check_virtual_stages(const struct meg_layout_conf *c, const int64_t *nlayers, int64_t nvirtual,
                                int64_t layers, struct meg_err *e)
{
    int64_t sum = 0;

    for (int64_t k = 0; k < nvirtual; k++)
        sum += nlayers[k];
    if (c->pipeline == 1 && nvirtual > 1)
        return meg_fail(e, MEG_EUSAGE,
                        "--pipeline-model-parallel-layout %s: has %" PRId64
                        " virtual stages, which require --pipeline-model-parallel-size of 2 or more",
                        c->stage_string, nvirtual);
    if (nvirtual % c->pipeline)
        return meg_fail(e, MEG_EUSAGE,
                        "--pipeline-model-parallel-layout %s: has %" PRId64
                        " virtual stages, expected a multiple of --pipeline-model-parallel-size %" PRId64,
                        c->stage_string, nvirtual, c->pipeline);
    if (sum != layers)
        return meg_fail(e, MEG_EUSAGE,
                        "--pipeline-model-parallel-layout %s: has %" PRId64
                        " layers (t), expected --num-layers %" PRId64,
                        c->stage_string, sum, layers);
    return 0;
}

/*
 * Make the stage table that --pipeline-model-parallel-layout describes, with the arguments of stage_table_make.
 */
static int make_described_table(int64_t **first_layer, int64_t *vp, const struct meg_layout_conf *c, int64_t layers,
                                struct meg_err *e)
{
    const char *other = given_division(c);
    int64_t *nlayers, *first, nvirtual;
    int r;

    if (other)
        return meg_fail(e, MEG_EUSAGE, "--pipeline-model-parallel-layout %s: cannot be combined with --%s",
                        c->stage_string, other);
    if ((r = stage_string_parse(&nlayers, &nvirtual, c->stage_string, e)) < 0)
        return r;
    if ((r = check_virtual_stages(c, nlayers, nvirtual, layers, e)) == 0) {
        *vp = nvirtual / c->pipeline;
        *first_layer = first = meg_new((size_t)(nvirtual + 1) * sizeof *first);
        for (int64_t k = 0; k < nvirtual; k++)
            first[k + 1] = first[k] + nlayers[k];
    }
    free(nlayers);
    return r;
}

/* ---- an encoder and a decoder ------------------------------------------------------------------- */

/*
 * Divide the layers of a stack equally over `stages` stages, the first of which begins at layer first_layer[0].  Set
 * first_layer[1] to first_layer[stages].  If the layers cannot be divided equally, the error message names `option`.
 */
static int divide_stack(int64_t *first_layer, int64_t layers, int64_t stages, const char *option, struct meg_err *e)
{
    if (layers % stages)
        return meg_fail(e, MEG_EUSAGE,
                        "--%s %" PRId64 ": must be a multiple of %" PRId64
                        ", the number of pipeline stages among which these layers are divided",
                        option, layers, stages);
    for (int64_t k = 0; k < stages; k++)
        first_layer[k + 1] = first_layer[k] + layers / stages;
    return 0;
}

/* Make the stage table of an encoder and a decoder, with the arguments of stage_table_make. */
static int make_encoder_decoder_table(int64_t **first_layer, const struct meg_layout_conf *c,
                                      const struct meg_layout_model *m, struct meg_err *e)
{
    const int64_t split = c->split_rank, decoder_layers = m->layers - m->encoder_layers;
    const char *other = given_division(c);
    int64_t *first;
    int r;

    if (!other && c->stage_string)
        other = "pipeline-model-parallel-layout";
    if (other)
        return meg_fail(e, MEG_EUSAGE, "--%s: cannot be combined with a model of an encoder and a decoder", other);
    if (split != MEG_UNSET && (split < 1 || split >= c->pipeline))
        return layout_refuse("pipeline-model-parallel-split-rank", split, e,
                             "must be at least 1 and less than --pipeline-model-parallel-size %" PRId64, c->pipeline);
    first = meg_new((size_t)(c->pipeline + 1) * sizeof *first);
    if (split == MEG_UNSET)
        r = divide_stack(first, m->layers, c->pipeline, "num-layers plus --decoder-num-layers", e);
    else if ((r = divide_stack(first, m->encoder_layers, split, "num-layers", e)) == 0)
        r = divide_stack(first + split, decoder_layers, c->pipeline - split, "decoder-num-layers", e);
    if (r < 0)
        free(first);
    else
        *first_layer = first;
    return r;
}

int stage_table_make(int64_t **first_layer, int64_t *vp, const struct meg_layout_conf *c,
                     const struct meg_layout_model *m, struct meg_err *e)
{
    int r;

    *vp = 1;
    if (m->encoder_layers)
        return make_encoder_decoder_table(first_layer, c, m, e);
    if (c->split_rank != MEG_UNSET)
        return layout_refuse("pipeline-model-parallel-split-rank", c->split_rank, e,
                             "requires a model of an encoder and a decoder (--model t5)");
    if (c->stage_string)
        return make_described_table(first_layer, vp, c, m->layers, e);
    r = is_uneven(c) ? check_uneven_stages(c, m->layers, e) : check_equal_stages(c, m->layers, e);
    if (r < 0 || (r = check_virtual(vp, c, m->layers, e)) < 0)
        return r;
    *first_layer = make_stage_table(c, m->layers, *vp);
    return 0;
}
