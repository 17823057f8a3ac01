/*
 * layout_search.c - search of parallel layouts.  Tensor-parallel sizes are at most the number of ranks per node,
 * pipeline-parallel sizes divide the number of layers, context-parallel sizes are powers of two, and expert-parallel
 * sizes divide the number of experts of a layer.  With context parallelism, each rank has at least MIN_CP_TOKENS tokens
 * of a sequence.  A combination of sizes is tried if the product of the sizes divides the number of ranks, and the
 * weights and gradients fit in memory.
 *
 * For each combination, the search tries layouts with and without sequence parallelism, numbers of chunks that divide
 * the layers of a stage, and micro-batches of 1, 2, 4, ... samples.  Each candidate has the least recomputation that
 * fits in memory.  Candidates are ranked by a step time that is estimated without simulation of the pipeline schedule.
 * Only the best MAX_CANDIDATES are simulated.
 */
#include "plan/layout_search.h"
#include <inttypes.h>
#include <stdlib.h>
#include "base/mem.h"
#include "plan/cost.h"
#include "plan/memory_check.h"

enum {
    MAX_CANDIDATES = 16,
    MAX_PRINTED = 5,
    MIN_CP_TOKENS = 1024 /* minimum number of tokens of a sequence per rank, if context parallelism is used */
};

/* A layout that --plan tries. */
struct candidate {
    struct meg_layout_conf layout;
    int64_t micro; /* micro-batch size */
    enum meg_recompute recompute;
    double memory; /* bytes of device memory on the rank that needs the most */
    struct meg_cost_time time;
};

/*
 * Counts, and the settings on which they depend.  Counts do not depend on pipeline parallelism, data parallelism or
 * recomputation of complete layers.
 */
struct counted {
    int64_t tp, cp, ep, micro;
    bool has_sp, is_selective;
    struct meg_cost_counts *counts;
};

struct search {
    const struct meg_train_job *job;
    const struct meg_hardware *hw;
    int64_t world_size, layers, num_tried;
    int64_t experts;          /* num_experts */
    double memory;            /* bytes available per rank */
    struct meg_params params; /* of the model */
    double weight_nbytes;     /* bytes of the parameters and gradients of the model */
    double sequence_flops;    /* of the model (struct meg_cost_model) */
    struct candidate best[MAX_CANDIDATES];
    int nbest; /* number of candidates in best, which are ordered by time.step */
    struct counted *counted;
    int ncounted;
};

/* Return n if it is a valid count, else 1.  Invalid options are rejected later. */
static int64_t clamp_factor(int64_t n)
{
    return n >= 1 && n <= INT32_MAX ? n : 1;
}

void meg_plan_reset_layout(struct meg_train_job *job, int64_t world_size)
{
    struct meg_layout_conf *l = &job->layout;
    struct meg_train_conf *c = &job->train;

    l->tensor = l->pipeline = l->context = l->expert = 1;
    l->expert_tensor = MEG_UNSET;
    l->sequence_parallel = false;
    l->split_rank = MEG_UNSET;
    l->virtual_layers = l->virtual_stages = l->first_layers = l->last_layers = l->microbatch_group_size = MEG_UNSET;
    l->counts_embedding = l->counts_loss = false;
    l->stage_string = NULL;
    l->schedule = MEG_PIPE_AUTO;
    l->cp_comm_types.n = l->hierarchical_cp_sizes.n = 0;
    job->zero.use_distributed_optimizer = job->zero.overlap_grad_reduce = job->zero.overlap_param_gather = false;
    job->zero.num_instances = 1;
    job->zero.zero_stage = MEG_UNSET;
    job->zero.use_torch_fsdp2 = false;
    if (c->global_batch_size == MEG_UNSET)
        c->global_batch_size = clamp_factor(c->micro_batch_size) * clamp_factor(world_size);
    c->micro_batch_size = 1;
    c->recompute_activations = c->distribute_saved_activations = false;
    c->recompute_granularity = MEG_RECOMPUTE_GRANULARITY_UNSET;
    c->recompute_method = MEG_RECOMPUTE_METHOD_UNSET;
    c->recompute_layers = MEG_UNSET;
}

static void set_recompute(struct meg_train_conf *c, enum meg_recompute r)
{
    const bool is_full = r == MEG_RECOMPUTE_UNIFORM;

    c->recompute_granularity = is_full                        ? MEG_RECOMPUTE_GRANULARITY_FULL
                               : r == MEG_RECOMPUTE_SELECTIVE ? MEG_RECOMPUTE_GRANULARITY_SELECTIVE
                                                              : MEG_RECOMPUTE_GRANULARITY_UNSET;
    c->recompute_method = is_full ? MEG_RECOMPUTE_METHOD_UNIFORM : MEG_RECOMPUTE_METHOD_UNSET;
    c->recompute_layers = is_full ? 1 : MEG_UNSET;
}

/*
 * Return the FLOPs, bytes and times of a candidate (meg_cost_count).  Reuse the counts of an earlier candidate that
 * differs only in settings on which they do not depend (struct counted).
 */
static struct meg_cost_counts *counts_of(struct search *s, const struct meg_cost_model *m)
{
    struct counted *c;

    for (int i = 0; i < s->ncounted; i++) {
        c = &s->counted[i];
        if (c->tp == m->layout.tp && c->cp == m->layout.cp && c->ep == m->layout.ep && c->micro == m->run.b &&
            c->has_sp == m->layout.has_sp && c->is_selective == (m->run.recompute == MEG_RECOMPUTE_SELECTIVE))
            return c->counts;
    }
    s->counted = meg_realloc_array(s->counted, (size_t)s->ncounted + 1, sizeof *s->counted);
    c = &s->counted[s->ncounted++];
    *c = (struct counted){ m->layout.tp,     m->layout.cp,     m->layout.ep,
                           m->run.b,         m->layout.has_sp, m->run.recompute == MEG_RECOMPUTE_SELECTIVE,
                           meg_cost_count(m) };
    return c->counts;
}

/*
 * Return whether there are several data- or context-parallel ranks.  If so, they use the distributed optimizer with
 * overlap of its communication.
 */
static bool has_data_parallel(const struct meg_layout_conf *l, int64_t world_size)
{
    return world_size > l->tensor * l->pipeline;
}

/* Print a row of the table of layouts. */
static void print_candidate(const struct candidate *c, int64_t world_size, FILE *f)
{
    const struct meg_layout_conf *l = &c->layout;
    const char *recomputed = c->recompute == MEG_RECOMPUTE_NONE        ? "nothing"
                             : c->recompute == MEG_RECOMPUTE_SELECTIVE ? "selective"
                                                                       : "full";

    fprintf(f,
            "%5" PRId64 "%c %7" PRId64 " %8" PRId64 " %6" PRId64 " %6" PRId64 " %5" PRId64
            " %-10s %8.1f %6.1f%% %9.4g %5.1f%%\n",
            l->tensor, l->sequence_parallel ? 's' : ' ', l->context, l->pipeline,
            l->virtual_stages == MEG_UNSET ? 1 : l->virtual_stages, world_size / (l->tensor * l->context * l->pipeline),
            c->micro, recomputed, c->memory / (1 << 30), 100 * c->time.bubble, c->time.step, 100 * c->time.mfu);
}

/* Print the options of a layout. */
static void print_options(const struct candidate *c, int64_t world_size, FILE *f)
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
    if (has_data_parallel(l, world_size))
        fprintf(f, " --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather");
    if (c->recompute == MEG_RECOMPUTE_SELECTIVE)
        fprintf(f, " --recompute-activations");
    if (c->recompute == MEG_RECOMPUTE_UNIFORM)
        fprintf(f, " --recompute-granularity full --recompute-method uniform --recompute-num-layers 1");
    fputc('\n', f);
}

/*
 * Set *job to the options of a candidate, and *m to the cost model, which borrows job.  Return a negative code if the
 * options are invalid; otherwise free m->layout with meg_layout_free.
 */
static int make_cost_model(struct meg_cost_model *m, struct meg_train_job *job, struct search *s,
                           const struct candidate *c)
{
    struct meg_run_spec spec;
    struct meg_err e;
    int r;

    *job = *s->job;
    job->layout = c->layout;
    job->zero.use_distributed_optimizer = job->zero.overlap_grad_reduce = job->zero.overlap_param_gather =
        has_data_parallel(&c->layout, s->world_size);
    job->train.micro_batch_size = c->micro;
    set_recompute(&job->train, c->recompute);
    if ((r = meg_run_spec_make(&spec, job, s->world_size, &e)) < 0 || (r = meg_run_spec_fit_model(&spec, &e)) < 0) {
        meg_layout_free(&spec.layout);
        return r;
    }
    meg_cost_model_init(m, &spec, meg_batch_max_microbatches(&spec.batch));
    m->params = &s->params;
    m->sequence_flops = s->sequence_flops;
    m->counts = counts_of(s, m);
    return 0;
}

/* Insert a candidate in order of step time.  If there are MAX_CANDIDATES already, drop the last one. */
static void insert(struct search *s, const struct candidate *c)
{
    int i = s->nbest < MAX_CANDIDATES ? s->nbest++ : MAX_CANDIDATES - 1;

    for (; i > 0 && s->best[i - 1].time.step > c->time.step; i--)
        s->best[i] = s->best[i - 1];
    s->best[i] = *c;
}

static bool is_too_slow(const struct search *s, double seconds)
{
    return s->nbest == MAX_CANDIDATES && seconds >= s->best[MAX_CANDIDATES - 1].time.step;
}

/*
 * Estimate the time and the memory of a candidate.  Return false if it is too slow to be among the best; time and
 * memory are then undefined.
 */
static bool estimate(struct search *s, struct candidate *c, const struct meg_cost_model *m)
{
    if (is_too_slow(s, meg_cost_time_bound(m)))
        return false;
    meg_cost_step_time(&c->time, m, false);
    if (is_too_slow(s, c->time.step))
        return false;
    c->memory = meg_cost_max_memory(m);
    return true;
}

/*
 * Insert a candidate with the least recomputation that fits in memory.  Do not insert a candidate that has invalid
 * options or is too slow.  Return false if the candidate does not fit even with full recomputation.
 */
static bool try_recompute(struct search *s, struct candidate *c)
{
    static const enum meg_recompute types[] = { MEG_RECOMPUTE_NONE, MEG_RECOMPUTE_SELECTIVE, MEG_RECOMPUTE_UNIFORM };

    for (int i = 0; i < 3; i++) {
        struct meg_train_job job;
        struct meg_cost_model m;
        bool is_estimated;

        c->recompute = types[i];
        s->num_tried++;
        if (make_cost_model(&m, &job, s, c) < 0)
            return true;
        is_estimated = estimate(s, c, &m);
        meg_layout_free(&m.layout);
        if (!is_estimated)
            return true;
        if (c->memory <= s->memory) {
            insert(s, c);
            return true;
        }
    }
    return false;
}

/* Try micro-batches of 1, 2, 4, ... samples while they divide the samples per data-parallel rank and fit in memory. */
static void try_micro_batches(struct search *s, struct candidate *c)
{
    const int64_t dp = s->world_size / (c->layout.tensor * c->layout.context * c->layout.pipeline);
    const int64_t samples = s->job->train.global_batch_size / dp;

    if (s->job->train.global_batch_size % dp)
        return;
    for (c->micro = 1; c->micro <= samples && samples % c->micro == 0; c->micro *= 2)
        if (!try_recompute(s, c))
            return;
}

static void try_virtual_stages(struct search *s, struct candidate *c)
{
    const int64_t layers = s->layers / c->layout.pipeline;

    for (int64_t v = 1; v <= layers; v++) {
        if (layers % v || (v > 1 && c->layout.pipeline == 1))
            continue;
        c->layout.virtual_stages = v > 1 ? v : MEG_UNSET;
        try_micro_batches(s, c);
    }
}

static void try_sizes(struct search *s, int64_t tp, int64_t cp, int64_t pp)
{
    struct candidate c = { .layout = s->job->layout };

    if (s->world_size % (tp * cp * pp) || s->layers % pp)
        return;
    c.layout.tensor = tp;
    c.layout.context = cp;
    c.layout.pipeline = pp;
    for (int64_t ep = 1; ep <= s->experts; ep++) {
        if (s->experts % ep || s->world_size / (tp * pp) % ep || s->weight_nbytes / (double)(tp * pp * ep) > s->memory)
            continue;
        c.layout.expert = ep;
        for (int sp = 0; sp < (tp > 1 ? 2 : 1); sp++) {
            c.layout.sequence_parallel = sp;
            try_virtual_stages(s, &c);
        }
    }
}

/* Return the number of experts of a layer, or 1 if the model has none. */
static int64_t num_experts(const struct meg_params *p)
{
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->row[i].ndim; k++)
            if (p->row[i].sharding[k].part[0].axis == MEG_AXIS_EP)
                return p->row[i].sharding[k].part[0].n;
    return 1;
}

static int by_step_time(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    return (x->time.step > y->time.step) - (x->time.step < y->time.step);
}

static void search(struct search *s)
{
    const int64_t world = s->world_size, seq_length = s->job->train.seq_length;

    for (int64_t tp = 1; tp <= world && tp <= s->hw->ranks_per_node; tp++)
        for (int64_t cp = 1; tp * cp <= world && (cp == 1 || seq_length / cp >= MIN_CP_TOKENS); cp *= 2)
            for (int64_t pp = 1; tp * cp * pp <= world && pp <= s->layers; pp++)
                try_sizes(s, tp, cp, pp);
    for (int i = 0; i < s->nbest; i++) { /* estimate again, with a simulation of the schedule */
        struct meg_train_job job;
        struct meg_cost_model m;

        make_cost_model(&m, &job, s, &s->best[i]);
        meg_cost_step_time(&s->best[i].time, &m, true);
        meg_layout_free(&m.layout);
    }
    qsort(s->best, (size_t)s->nbest, sizeof *s->best, by_step_time);
    for (int i = 0; i < s->ncounted; i++)
        meg_cost_counts_free(s->counted[i].counts);
    free(s->counted);
}

int meg_plan_print_layouts(const struct meg_run_spec *spec, int64_t world_size, FILE *f, struct meg_err *e)
{
    const struct meg_hardware *hw = meg_hardware_find(spec->job->train.hardware);
    const struct meg_model_run *run = &spec->model_run;
    struct search s = { .job = spec->job, .hw = hw, .world_size = world_size, .layers = spec->layout.layers };

    s.memory = hw->memory > 0 ? hw->memory - hw->reserved_memory : meg_memory_available(world_size);
    meg_model_params(&s.params, &spec->job->model, &meg_mesh_one);
    s.experts = num_experts(&s.params);
    s.weight_nbytes = (double)s.params.numel * (double)(meg_dtype_size(run->dtype) + meg_dtype_size(run->grad_dtype));
    s.sequence_flops = meg_cost_model_flops(&spec->job->model, run->s, run->s_enc);
    search(&s);
    meg_params_free(&s.params);
    if (s.nbest == 0)
        return meg_fail(e, MEG_EFAIL,
                        "--plan: none of %" PRId64 " layouts of %" PRId64 " ranks on %s is valid and fits in %.1f GiB "
                        "per rank; use more ranks, a smaller model or sequence, or a different --global-batch-size",
                        s.num_tried, world_size, hw->name, s.memory / (1 << 30));
    fprintf(f, "the fastest layouts of %" PRId64 " ranks on %s (%s), of %" PRId64 " tried; batch %" PRId64 "\n\n",
            world_size, hw->name, hw->description, s.num_tried, spec->job->train.global_batch_size);
    fprintf(f, "  %6s %7s %8s %6s %6s %5s %-10s %8s %7s %9s %6s\n", "tensor", "context", "pipeline", "chunks", "data",
            "micro", "recomputed", "GiB", "bubble", "s a step", "MFU");
    for (int i = 0; i < s.nbest && i < MAX_PRINTED; i++) {
        fprintf(f, "%d ", i + 1);
        print_candidate(&s.best[i], world_size, f);
    }
    fputc('\n', f);
    for (int i = 0; i < s.nbest && i < MAX_PRINTED; i++) {
        fprintf(f, "%d", i + 1);
        print_options(&s.best[i], world_size, f);
    }
    return 0;
}
