/* layout_candidate.c - print the layouts that --plan found. */
#include "plan/layout_candidate.h"
#include <inttypes.h>

bool plan_has_data_parallel(const struct meg_layout_conf *l, int64_t world_size)
{
    return world_size > l->tensor * l->pipeline;
}

static const char *recompute_name(enum meg_recompute r)
{
    return r == MEG_RECOMPUTE_NONE ? "nothing" : r == MEG_RECOMPUTE_SELECTIVE ? "selective" : "full";
}

void plan_print_candidate(const struct plan_candidate *c, int64_t world_size, FILE *f)
{
    const struct meg_layout_conf *l = &c->layout;

    fprintf(f,
            "%5" PRId64 "%c %7" PRId64 " %8" PRId64 " %6" PRId64 " %6" PRId64 " %5" PRId64
            " %-10s %8.1f %6.1f%% %9.4g %5.1f%%\n",
            l->tensor, l->sequence_parallel ? 's' : ' ', l->context, l->pipeline,
            l->virtual_stages == MEG_UNSET ? 1 : l->virtual_stages, world_size / (l->tensor * l->context * l->pipeline),
            c->micro, recompute_name(c->recompute), c->memory / (1 << 30), 100 * c->time.bubble, c->time.step,
            100 * c->time.mfu);
}

void plan_print_options(const struct plan_candidate *c, int64_t world_size, FILE *f)
{
    const struct meg_layout_conf *l = &c->layout;

    fprintf(f, "  --micro-batch-size %" PRId64, c->micro);
    if (l->tensor > 1)
        fprintf(f, " --tensor-model-parallel-size %" PRId64 "%s", l->tensor,
                l->sequence_parallel ? " --sequence-parallel" : "");
    if (l->context > 1)
        fprintf(f, " --context-parallel-size %" PRId64, l->context);
    if (l->pipeline > 1)
        fprintf(f, " --pipeline-model-parallel-size %" PRId64, l->pipeline);
    if (l->virtual_stages != MEG_UNSET)
        fprintf(f, " --num-virtual-stages-per-pipeline-rank %" PRId64, l->virtual_stages);
    if (l->expert > 1)
        fprintf(f, " --expert-model-parallel-size %" PRId64, l->expert);
    if (plan_has_data_parallel(l, world_size))
        fprintf(f, " --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather");
    if (c->recompute == MEG_RECOMPUTE_SELECTIVE)
        fprintf(f, " --recompute-activations");
    if (c->recompute == MEG_RECOMPUTE_UNIFORM)
        fprintf(f, " --recompute-granularity full --recompute-method uniform --recompute-num-layers 1");
    fputc('\n', f);
}
