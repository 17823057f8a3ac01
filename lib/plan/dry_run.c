/* dry_run.c - the report of --dry-run: a run's model, layout, memory, communication, time, data and checkpoints. */
#include "plan/dry_run.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "model/family.h"
#include "plan/cost.h"
#include "plan/memory_check.h"

static double mib(double nbytes)
{
    return nbytes / (1 << 20);
}

static bool has_decoder(const struct meg_run_spec *s)
{
    return s->model_run.s_enc > 0;
}

/* Print the model and the length of the run. */
static void print_run(const struct meg_run_spec *s, FILE *f)
{
    const struct meg_train_conf *c = &s->job->train;
    const struct meg_model_conf *m = &s->job->model;

    fprintf(f, "model        %s: ", meg_family_of(m)->title);
    if (has_decoder(s))
        fprintf(f, "%" PRId64 " encoder and %" PRId64 " decoder layers", m->num_layers, m->decoder_num_layers);
    else
        fprintf(f, "%" PRId64 " layers", m->num_layers);
    fprintf(
        f, ", hidden %" PRId64 ", feed-forward %" PRId64 ", %" PRId64 " heads of %" PRId64 ", vocabulary %" PRId64 "\n",
        m->hidden_size, m->mlp.f, m->attn.a, m->attn.d, m->vocab_size);
    if (s->num_tokens != m->vocab_size)
        fprintf(f, "             the vocabulary size is that of the checkpoint; the tokenizer has %" PRId64 " tokens\n",
                s->num_tokens);
    fprintf(f, "run          %" PRId64 " iterations, micro-batch %" PRId64 ", global batch %" PRId64, s->train_iters,
            s->batch.micro, s->batch.global);
    if (has_decoder(s))
        fprintf(f, ", encoder sequence %" PRId64 ", decoder sequence %" PRId64 "\n", c->seq_length,
                c->decoder_seq_length);
    else
        fprintf(f, ", sequence %" PRId64 "\n", c->seq_length);
    if (s->batch.rampup_samples)
        fprintf(f, "ramp-up      from %" PRId64 " by %" PRId64 " over %" PRId64 " samples\n", s->batch.start,
                s->batch.increment, s->batch.rampup_samples);
}

/*
 * Print a line for each group of parameters with the same weight decay and learning rate, one for frozen parameters,
 * and one for all parameters.
 */
static void print_params(const struct meg_params *p, FILE *f)
{
    static const char *const name[] = { "weights", "biases and norms, no decay", "embedding and output",
                                        "embedding and output", "frozen" };

    fprintf(f, "\n%-30s %8s %14s\n", "parameters", "tensors", "elements");
    for (int group = 0; group < 5; group++) {
        int64_t tensors = 0, elements = 0;

        for (int i = 0; i < p->n; i++)
            if (group == (p->row[i].is_frozen ? 4 : 2 * p->row[i].is_decoupled + !p->row[i].is_decayed)) {
                tensors++;
                elements += p->row[i].numel;
            }
        if (tensors)
            fprintf(f, "  %-28s %8" PRId64 " %14" PRId64 "\n", name[group], tensors, elements);
    }
    fprintf(f, "  %-28s %8d %14" PRId64 "\n", "all", p->n, p->numel);
}

/* ---- representative ranks, one of each type of stage ---- */

struct stage_cost {
    int64_t stage;
    double memory[MEG_COST_MEM_TYPES], comm[MEG_COST_GROUPS]; /* bytes */
};

/* Print the heading of a table with a column for each of n stages. */
static void print_stages(const char *title, const char *unit, const struct stage_cost *c, int n, FILE *f)
{
    if (n == 1) {
        fprintf(f, "\n%-30s %8s\n", title, unit);
        return;
    }
    fprintf(f, "\n%s, %-*s", title, 28 - (int)strlen(title), unit);
    for (int i = 0; i < n; i++)
        fprintf(f, "  stage %-3" PRId64, c[i].stage);
    fputc('\n', f);
}

static void print_mib(double nbytes, int n, FILE *f)
{
    fprintf(f, n == 1 ? " %8.1f" : " %10.1f", mib(nbytes));
}

/* Return the number of layers of virtual stage k. */
static int64_t virtual_stage_layers(const struct meg_layout *l, int64_t k)
{
    int64_t first, n;

    meg_layout_layers(l, k % l->pp, k / l->pp, &first, &n);
    return n;
}

/*
 * Print the number of layers of each virtual stage, in order, unless all have the same number.  N*K means K consecutive
 * virtual stages of N layers.
 */
static void print_virtual_stages(const struct meg_layout *l, FILE *f)
{
    const int64_t nvirtual = l->pp * l->vp;

    for (int64_t k = 0, end; k < nvirtual; k = end) {
        for (end = k + 1; end < nvirtual && virtual_stage_layers(l, end) == virtual_stage_layers(l, k);)
            end++;
        if (end - k == nvirtual)
            return;
        fprintf(f, "%s %" PRId64, k == 0 ? l->vp > 1 ? "layers       by chunk:" : "layers       by stage:" : "",
                virtual_stage_layers(l, k));
        if (end - k > 1)
            fprintf(f, "*%" PRId64, end - k);
    }
    fputc('\n', f);
}

static void print_layout(const struct meg_layout *l, FILE *f)
{
    fprintf(f, "layout       %" PRId64 " rank%s", meg_layout_world(l), meg_layout_world(l) == 1 ? "" : "s");
    if (meg_layout_world(l) > 1)
        fprintf(f, ": tensor %" PRId64 "%s, context %" PRId64 ", pipeline %" PRId64 ", data %" PRId64, l->tp,
                l->has_sp ? " with sequence" : "", l->cp, l->pp, l->dp);
    if (meg_layout_has_expert_groups(l))
        fprintf(f, "; experts: tensor %" PRId64 ", expert %" PRId64 ", data %" PRId64, l->etp, l->ep,
                meg_layout_dp_size(l, MEG_DP_EXPERT));
    if (l->vp > 1)
        fprintf(f, "; %" PRId64 " chunks a stage", l->vp);
    fputc('\n', f);
    print_virtual_stages(l, f);
}

/* Print the memory of types [begin, end).  Omit a type that needs no memory on any stage. */
static void print_types(int begin, int end, const char *suffix, const struct stage_cost *c, int n, FILE *f)
{
    for (int k = begin; k < end; k++) {
        char name[64];
        double total = 0;

        for (int i = 0; i < n; i++)
            total += c[i].memory[k];
        if (total == 0)
            continue;
        snprintf(name, sizeof name, "%s%s", meg_cost_memory_name[k], suffix);
        fprintf(f, "  %-28s", name);
        for (int i = 0; i < n; i++)
            print_mib(c[i].memory[k], n, f);
        fputc('\n', f);
    }
}

/* Print a table of the memory that a rank needs, with a column for each of n stages. */
static void print_memory(const struct meg_run_spec *s, const struct meg_hardware *hw, const struct stage_cost *c, int n,
                         FILE *f)
{
    const double overhead = hw->memory > 0 ? hw->reserved_memory : meg_memory_overhead(s);
    const int ndevice = meg_cost_num_device_types(hw->memory == 0);
    double most = 0;
    int fullest = 0;

    print_stages("memory", "MiB", c, n, f);
    print_types(0, ndevice, "", c, n, f);
    fprintf(f, "  %-28s", "program and libraries");
    for (int i = 0; i < n; i++)
        print_mib(overhead, n, f);
    fprintf(f, "\n  %-28s", "all");
    for (int i = 0; i < n; i++) {
        double sum = overhead;

        for (int k = 0; k < ndevice; k++)
            sum += c[i].memory[k];
        print_mib(sum, n, f);
        if (sum > most) {
            most = sum;
            fullest = i;
        }
    }
    fputc('\n', f);
    if (n > 1)
        fprintf(f, "  most: stage %" PRId64 "\n", c[fullest].stage);
    if (hw->memory > 0 && most > hw->memory)
        fprintf(f, "  does not fit: a rank has %.0f MiB\n", mib(hw->memory));
    print_types(ndevice, MEG_COST_MEM_TYPES, " (host)", c, n, f);
}

static void print_comm(const struct stage_cost *c, int n, FILE *f)
{
    print_stages("sent by a rank in a step", "MiB", c, n, f);
    for (int k = 0; k < MEG_COST_GROUPS; k++) {
        double most = 0;

        for (int i = 0; i < n; i++)
            most = c[i].comm[k] > most ? c[i].comm[k] : most;
        if (most == 0)
            continue;
        fprintf(f, "  %-28s", meg_cost_group_name[k]);
        for (int i = 0; i < n; i++)
            print_mib(c[i].comm[k], n, f);
        fputc('\n', f);
    }
}

static void print_time(const struct meg_run_spec *s, const struct meg_cost_model *m, FILE *f)
{
    const struct meg_hardware *hw = m->hw;
    const int64_t tokens = s->batch.global * s->job->train.seq_length;
    struct meg_cost_time t;

    meg_cost_step_time(&t, m, true);
    const double busy = t.gemm + t.attention + t.memory_bound + t.comm;
    const struct {
        const char *name;
        double seconds;
    } line[] = {
        { "matrix products", t.gemm },
        { "attention", t.attention },
        { "memory-bound operations", t.memory_bound },
        { "collectives in layers", t.comm },
        { "pipeline bubble", t.bubble * busy },
        { "gradient reduction", t.grad_reduce },
        { "update", t.update },
        { "all", t.step },
    };
    fprintf(f, "\n%-30s %8s  predicted for %s: %s\n", "time of a step", "s", hw->name, hw->description);
    for (size_t i = 0; i < sizeof line / sizeof *line; i++)
        if (line[i].seconds > 0)
            fprintf(f, "  %-28s %8.3g\n", line[i].name, line[i].seconds);
    fprintf(f, "  %-28s %8.3g\n", has_decoder(s) ? "encoder tokens a second" : "tokens a second",
            (double)tokens / t.step);
    fprintf(f, "  %-28s %7.1f%%\n", "bubble", 100 * t.bubble);
    fprintf(f, "  %-28s %7.1f%%  of %.4g TFLOP/s a rank\n", "model FLOP/s utilization", 100 * t.mfu,
            hw->flops[m->run.dtype] * m->threads / 1e12);
}

/* Print memory and communication of representative ranks, and the time of a step; with --skip-train, only memory. */
static void print_ranks(const struct meg_run_spec *s, FILE *f)
{
    struct stage_cost *c = meg_new((size_t)s->layout.pp * sizeof *c);
    struct meg_cost_model m;
    int n = 0;

    meg_cost_model_make(&m, s, meg_batch_max_microbatches(&s->batch));

    for (int64_t stage = 0; stage < m.layout.pp; stage++) {
        const struct meg_rank_coords at = { .pp = stage };

        if (!meg_cost_is_representative(&m, stage))
            continue;
        c[n].stage = stage;
        meg_cost_memory(c[n].memory, &m, at);
        meg_cost_comm_volume(c[n++].comm, &m, at);
    }
    print_memory(s, m.hw, c, n, f);
    if (!s->job->train.skip_train && meg_layout_world(&m.layout) > 1)
        print_comm(c, n, f);
    if (!s->job->train.skip_train)
        print_time(s, &m, f);
    free(c);
    meg_cost_model_free(&m);
}

static void print_work(const struct meg_run_spec *s, FILE *f)
{
    const struct meg_train_conf *c = &s->job->train;
    double flops = meg_cost_model_flops(&s->job->model, s->model_run.s, s->model_run.s_enc);
    int64_t samples = c->train_samples == MEG_UNSET ? s->train_iters * s->batch.global : c->train_samples;

    if (c->skip_train)
        return;
    fprintf(f, "\n%-30s %8s %14s\n", "work", "FLOP", has_decoder(s) ? "encoder tokens" : "tokens");
    fprintf(f, "  %-28s %8.2e %14" PRId64 "\n", "a step", flops * (double)s->batch.global,
            s->batch.global * c->seq_length);
    fprintf(f, "  %-28s %8.2e %14" PRId64 "\n", "the run", flops * (double)samples, samples * c->seq_length);
}

static void print_data(const struct meg_data_splits *data, FILE *f)
{
    int n;
    const struct meg_mid_dataset *p = meg_data_splits_mid_datasets(data, &n);

    fprintf(f, "\n%-8s %6s %12s %14s %12s %12s %8s  %s\n", "data", "weight", "sequences", "tokens", "wanted", "samples",
            "epochs", "file");
    for (int i = 0; i < n; i++)
        fprintf(f, "  %-6s %6.4f %12" PRId64 " %14" PRId64 " %12" PRId64 " %12" PRId64 " %8" PRId64 "  %s%s%s%s\n",
                meg_split_names[p[i].split], p[i].weight, p[i].end - p[i].begin, p[i].tokens, p[i].num_samples,
                p[i].samples, p[i].epochs, p[i].name, p[i].group ? " (group " : "", p[i].group ? p[i].group : "",
                p[i].group ? ")" : "");
}

/* Return the bytes of a checkpoint's weights and optimizer state. */
static double checkpoint_nbytes(const struct meg_run_spec *s, const struct meg_params *params)
{
    struct meg_optim_memory o = { 0 };

    if (s->job->ckpt.save_optim)
        meg_optim_memory_size(&o, &s->job->optim, params, &meg_layout_one, &s->model_run);
    return (double)params->numel *
           ((double)meg_dtype_size(s->model_run.dtype) + (double)(o.main + o.state) / (double)params->flat_numel);
}

static void print_checkpoints(const struct meg_run_spec *s, const struct meg_params *params, FILE *f)
{
    const struct meg_train_ckpt_conf *c = &s->job->ckpt;
    const int64_t interval = c->save_interval, n = interval == MEG_UNSET ? 0 : s->train_iters / interval;

    if (!c->save || s->job->train.skip_train) {
        fprintf(f, "\n%-30s none\n", "checkpoints");
        return;
    }
    fprintf(f, "\n%-30s %.1f MiB each, in %s\n", "checkpoints", mib(checkpoint_nbytes(s, params)), c->save);
    fprintf(f, "  at iterations               ");
    for (int64_t i = 1; i <= n && i <= 3; i++)
        fprintf(f, " %" PRId64, i * interval);
    if (n > 4)
        fprintf(f, " ...");
    if (n > 3)
        fprintf(f, " %" PRId64, n * interval);
    if (n == 0 || n * interval != s->train_iters)
        fprintf(f, " %" PRId64, s->train_iters);
    fprintf(f, "%s\n", s->batch.rampup_samples ? ", and where the batch grows" : "");
    if (c->keep_last != MEG_UNSET)
        fprintf(f, "  kept                         the newest %" PRId64 "\n", c->keep_last);
}

void meg_plan_print_dry_run(const struct meg_run_spec *s, const struct meg_data_splits *data, FILE *f)
{
    struct meg_params p = { 0 };

    meg_model_params(&p, &s->job->model, &meg_mesh_one);
    print_run(s, f);
    print_layout(&s->layout, f);
    print_params(&p, f);
    print_work(s, f);
    print_ranks(s, f);
    print_data(data, f);
    print_checkpoints(s, &p, f);
    meg_params_free(&p);
}
