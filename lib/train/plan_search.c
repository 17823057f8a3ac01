/*
 * --plan: layouts that fit the memory, fastest first.  All sizes that divide the ranks are tried, with each
 * micro-batch that divides the batch, and of what can be recomputed the least that fits.  Candidates are compared
 * by a bound that needs no schedule played; the schedules of the best are.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "train/internal.h"

enum { KEPT = 16, SHOWN = 5, SHORTEST = 1024 }; /* a context-parallel rank's part of a sequence */

struct candidate {
    struct meg_layout_conf layout;
    int64_t micro;
    enum meg_recompute recompute;
    double memory;
    struct meg_cost_time time;
};

struct search {
    const struct trainer *t;
    const struct meg_hardware *hw;
    int64_t world, tried;
    double room, weights;        /* bytes: of a rank; of parameters and gradients, of all */
    struct candidate best[KEPT]; /* fastest first */
    int n;
};

/* A count to multiply by: what cannot be one is refused later, and 1 here. */
static int64_t factor(int64_t n)
{
    return n >= 1 && n <= INT32_MAX ? n : 1;
}

void meg_plan_reset_layout(struct meg_train_job *job, int64_t ranks)
{
    struct meg_layout_conf *l = &job->layout;
    struct meg_train_conf *c = &job->train;

    l->tensor = l->pipeline = l->context = 1;
    l->sequence_parallel = false;
    l->virtual_layers = l->virtual_stages = l->first_layers = l->last_layers = l->group_size = MEG_UNSET;
    l->schedule = NULL;
    l->cp_kinds.n = l->cp_sizes.n = 0;
    job->share.use_distributed_optimizer = job->share.overlap_grad_reduce = job->share.overlap_param_gather = false;
    job->share.num_instances = 1;
    job->share.zero_stage = MEG_UNSET;
    job->share.use_torch_fsdp2 = false;
    if (c->global_batch_size == MEG_UNSET)
        c->global_batch_size = factor(c->micro_batch_size) * factor(ranks);
    c->micro_batch_size = 1;
    c->recompute_activations = c->distribute_saved = false;
    c->recompute_granularity = c->recompute_method = NULL;
    c->recompute_layers = MEG_UNSET;
}

static void set_recompute(struct meg_train_conf *c, enum meg_recompute r)
{
    const bool is_full = r == MEG_RECOMPUTE_UNIFORM;

    c->recompute_granularity = is_full ? "full" : r == MEG_RECOMPUTE_SELECTIVE ? "selective" : NULL;
    c->recompute_method = is_full ? "uniform" : NULL;
    c->recompute_layers = is_full ? 1 : MEG_UNSET;
}

/* Ranks that hold the same weights share the optimizer's work, and overlap it. */
static bool has_data_parallel(const struct meg_layout_conf *l, int64_t world)
{
    return world > l->tensor * l->pipeline;
}

/* The run with a candidate's settings; job is the caller's.  Negative where they break a rule. */
static int make_cost_model(struct meg_cost_model *p, struct meg_train_job *job, const struct search *s,
                           const struct candidate *c)
{
    struct trainer t = { .job = job, .mesh = &t.grid, .precision = s->t->precision };
    struct meg_err e;
    int r;

    *job = *s->t->job;
    job->layout = c->layout;
    job->share.use_distributed_optimizer = job->share.overlap_grad_reduce = job->share.overlap_param_gather =
        has_data_parallel(&c->layout, s->world);
    job->train.micro_batch_size = c->micro;
    set_recompute(&job->train, c->recompute);
    if ((r = meg_layout_make(&t.grid.layout, &job->layout, s->world, &e)) < 0 ||
        (r = meg_train_conf_check(&job->train, t.grid.layout.dp, &t.plan, &t.iters, &e)) < 0 ||
        (r = meg_train_fit_layout(&t, &e)) < 0)
        return r;
    *p = meg_plan_cost_model(&t, meg_batch_max_microbatches(&t.plan));
    p->model = &s->t->job->model;
    p->optim = &s->t->job->optim;
    return 0;
}

/* Keep a candidate in its place, if it is among the best. */
static void keep(struct search *s, const struct candidate *c)
{
    int i = s->n < KEPT ? s->n++ : KEPT - 1;

    for (; i > 0 && s->best[i - 1].time.step > c->time.step; i--)
        s->best[i] = s->best[i - 1];
    s->best[i] = *c;
}

static bool is_too_slow(const struct search *s, double seconds)
{
    return s->n == KEPT && seconds >= s->best[KEPT - 1].time.step;
}

/* Keep a candidate with the least to recompute that fits; false when nothing does. */
static bool try(struct search *s, struct candidate *c)
{
    static const enum meg_recompute ways[] = { MEG_RECOMPUTE_NONE, MEG_RECOMPUTE_SELECTIVE, MEG_RECOMPUTE_UNIFORM };
    const int threads = meg_plan_threads(s->hw);

    for (int i = 0; i < 3; i++) {
        struct meg_train_job job;
        struct meg_cost_model p;

        c->recompute = ways[i];
        s->tried++;
        if (make_cost_model(&p, &job, s, c) < 0 || is_too_slow(s, meg_cost_time_bound(&p, s->hw, threads)))
            return true;
        meg_cost_step_time(&c->time, &p, s->hw, threads, false);
        if (is_too_slow(s, c->time.step))
            return true;
        if ((c->memory = meg_cost_max_memory(&p)) <= s->room) {
            keep(s, c);
            return true;
        }
    }
    return false;
}

/* Micro-batches of a layout, until one takes too much. */
static void try_micro(struct search *s, struct candidate *c)
{
    const int64_t ranks = s->world / (c->layout.tensor * c->layout.context * c->layout.pipeline);
    const int64_t samples = s->t->job->train.global_batch_size / ranks;

    if (s->t->job->train.global_batch_size % ranks)
        return;
    for (c->micro = 1; c->micro <= samples && samples % c->micro == 0; c->micro *= 2)
        if (!try(s, c))
            return;
}

static void try_chunks(struct search *s, struct candidate *c)
{
    const int64_t layers = s->t->job->model.num_layers / c->layout.pipeline;

    for (int64_t v = 1; v <= layers; v++) {
        if (layers % v || (v > 1 && c->layout.pipeline == 1))
            continue;
        c->layout.virtual_stages = v > 1 ? v : MEG_UNSET;
        try_micro(s, c);
    }
}

static void search(struct search *s)
{
    const struct trainer *t = s->t;

    for (int64_t tp = 1; tp <= s->world && tp <= s->hw->node; tp++) {
        for (int64_t cp = 1; tp * cp <= s->world && (cp == 1 || t->job->train.seq_length / cp >= SHORTEST); cp *= 2) {
            for (int64_t pp = 1; tp * cp * pp <= s->world && pp <= t->job->model.num_layers; pp++) {
                struct candidate c = { .layout = t->job->layout };

                if (s->world % (tp * cp * pp) || t->job->model.num_layers % pp ||
                    s->weights / (double)(tp * pp) > s->room)
                    continue;
                c.layout.tensor = tp;
                c.layout.context = cp;
                c.layout.pipeline = pp;
                for (int sp = 0; sp < (tp > 1 ? 2 : 1); sp++) {
                    c.layout.sequence_parallel = sp;
                    try_chunks(s, &c);
                }
            }
        }
    }
}

static int compare(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    return (x->time.step > y->time.step) - (x->time.step < y->time.step);
}

/* Play the schedules of those that are left, and sort them by what that gives. */
static void play(struct search *s)
{
    for (int i = 0; i < s->n; i++) {
        struct meg_train_job job;
        struct meg_cost_model p;

        make_cost_model(&p, &job, s, &s->best[i]);
        meg_cost_step_time(&s->best[i].time, &p, s->hw, meg_plan_threads(s->hw), true);
    }
    qsort(s->best, (size_t)s->n, sizeof *s->best, compare);
}

static const char *recomputed(enum meg_recompute r)
{
    return r == MEG_RECOMPUTE_NONE ? "nothing" : r == MEG_RECOMPUTE_SELECTIVE ? "selective" : "full";
}

static void print_options(const struct candidate *c, int64_t world, FILE *f)
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
    if (has_data_parallel(l, world))
        fprintf(f, " --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather");
    if (c->recompute == MEG_RECOMPUTE_SELECTIVE)
        fprintf(f, " --recompute-activations");
    if (c->recompute == MEG_RECOMPUTE_UNIFORM)
        fprintf(f, " --recompute-granularity full --recompute-method uniform --recompute-num-layers 1");
    fputc('\n', f);
}

static double weights(const struct trainer *t)
{
    const struct meg_cost_model p = meg_plan_cost_model(t, 1);
    struct meg_params rows;
    double n;

    meg_gpt_params(&rows, p.model, &meg_mesh_one);
    n = (double)rows.numel * (double)(meg_dtype_size(p.run.dtype) + meg_dtype_size(p.run.grad_dtype));
    meg_params_free(&rows);
    return n;
}

int meg_plan_print_layouts(const struct trainer *t, FILE *f, struct meg_err *e)
{
    const struct meg_train_conf *c = &t->job->train;
    struct search s = { .t = t, .hw = meg_hardware_find(c->hardware) };

    s.world = meg_train_world_size(t);
    s.room = s.hw->memory > 0 ? s.hw->memory - s.hw->reserve : meg_memory_available(s.world);
    s.weights = weights(t);
    search(&s);
    if (s.n == 0)
        return meg_fail(e, MEG_EFAIL,
                        "--plan: of %" PRId64 " layouts of %" PRId64 " ranks on %s none fits in %.1f GiB "
                        "a rank; more ranks, or a smaller model or sequence, may",
                        s.tried, s.world, s.hw->name, s.room / (1 << 30));
    play(&s);
    fprintf(f, "the fastest layouts of %" PRId64 " ranks on %s (%s), of %" PRId64 " looked at; batch %" PRId64 "\n\n",
            s.world, s.hw->name, s.hw->what, s.tried, c->global_batch_size);
    fprintf(f, "  %6s %7s %8s %6s %6s %5s %-10s %8s %7s %9s %6s\n", "tensor", "context", "pipeline", "chunks", "data",
            "micro", "recomputed", "GiB", "bubble", "s a step", "MFU");
    for (int i = 0; i < s.n && i < SHOWN; i++) {
        const struct candidate *b = &s.best[i];
        const struct meg_layout_conf *l = &b->layout;

        fprintf(f,
                "%d %5" PRId64 "%c %7" PRId64 " %8" PRId64 " %6" PRId64 " %6" PRId64 " %5" PRId64
                " %-10s %8.1f %6.1f%% %9.4g %5.1f%%\n",
                i + 1, l->tensor, l->sequence_parallel ? 's' : ' ', l->context, l->pipeline,
                l->virtual_stages == MEG_UNSET ? 1 : l->virtual_stages,
                s.world / (l->tensor * l->context * l->pipeline), b->micro, recomputed(b->recompute),
                b->memory / (1 << 30), 100 * b->time.bubble, b->time.step, 100 * b->time.mfu);
    }
    fputc('\n', f);
    for (int i = 0; i < s.n && i < SHOWN; i++) {
        fprintf(f, "%d", i + 1);
        print_options(&s.best[i], s.world, f);
    }
    return 0;
}
