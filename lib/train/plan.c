/* --dry-run: what a run would hold, do, read and write. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "train/internal.h"

static double mib(double nbytes)
{
    return nbytes / (1 << 20);
}

static void print_run(const struct trainer *t, FILE *f)
{
    const struct meg_train_conf *c = &t->job->train;
    const struct meg_gpt_conf *m = &t->job->model;

    fprintf(f,
            "model        GPT: %" PRId64 " layers, hidden %" PRId64 ", feed-forward %" PRId64 ", %" PRId64
            " heads of %" PRId64 ", vocabulary %" PRId64 "\n",
            m->num_layers, m->hidden_size, m->ffn_hidden_size, m->num_attention_heads, m->kv_channels, m->vocab_size);
    fprintf(f,
            "run          %" PRId64 " iterations, micro-batch %" PRId64 ", global batch %" PRId64 ", sequence %" PRId64
            "\n",
            t->iters, t->plan.micro, t->plan.global, c->seq_length);
    if (t->plan.rampup_samples)
        fprintf(f, "ramp-up      from %" PRId64 " by %" PRId64 " over %" PRId64 " samples\n", t->plan.start,
                t->plan.increment, t->plan.rampup_samples);
}

/* A line for each kind of parameter that the optimizer treats alike. */
static void print_params(const struct meg_params *p, FILE *f)
{
    fprintf(f, "\n%-30s %8s %14s\n", "parameters", "tensors", "elements");
    for (int kind = 0; kind < 4; kind++) {
        int64_t tensors = 0, elements = 0;
        int decayed = !(kind & 1), decoupled = kind >> 1;

        for (int i = 0; i < p->n; i++)
            if (p->row[i].is_decayed == decayed && p->row[i].is_decoupled == decoupled) {
                tensors++;
                elements += p->row[i].numel;
            }
        if (tensors)
            fprintf(f, "  %-28s %8" PRId64 " %14" PRId64 "\n",
                    decoupled ? "embedding and output"
                    : decayed ? "weights"
                              : "biases and norms, no decay",
                    tensors, elements);
    }
    fprintf(f, "  %-28s %8d %14" PRId64 "\n", "all", p->n, p->numel);
}

/* ---- what a rank of each kind has ---- */

struct column {
    int64_t stage;
    double memory[MEG_COST_MEM_TYPES], sent[MEG_COST_GROUPS];
};

static void print_stages(const char *title, const char *unit, const struct column *c, int n, FILE *f)
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

static void print_layout(const struct meg_layout *l, FILE *f)
{
    fprintf(f, "layout       %" PRId64 " rank%s", meg_layout_world(l), meg_layout_world(l) == 1 ? "" : "s");
    if (meg_layout_world(l) > 1)
        fprintf(f, ": tensor %" PRId64 "%s, context %" PRId64 ", pipeline %" PRId64 ", data %" PRId64, l->tp,
                l->has_sp ? " with sequence" : "", l->cp, l->pp, l->dp);
    if (l->vp > 1)
        fprintf(f, "; %" PRId64 " chunks a stage", l->vp);
    fputc('\n', f);
}

/* Without an option for it times and memory are those of this machine. */
static void print_memory(const struct trainer *t, const struct meg_hardware *hw, const struct column *c, int n, FILE *f)
{
    const double process = hw->memory > 0 ? hw->reserve : meg_memory_overhead(t);
    double most = 0;
    int worst = 0;

    print_stages("memory", "MiB", c, n, f);
    for (int k = 0; k < MEG_COST_MEM_TYPES; k++) {
        double here = 0;

        for (int i = 0; i < n; i++)
            here += c[i].memory[k];
        if (here == 0)
            continue;
        fprintf(f, "  %-28s", meg_cost_memory_name[k]);
        for (int i = 0; i < n; i++)
            fprintf(f, n == 1 ? " %8.1f" : " %10.1f", mib(c[i].memory[k]));
        fputc('\n', f);
    }
    fprintf(f, "  %-28s", "program and libraries");
    for (int i = 0; i < n; i++)
        fprintf(f, n == 1 ? " %8.1f" : " %10.1f", mib(process));
    fprintf(f, "\n  %-28s", "all");
    for (int i = 0; i < n; i++) {
        double sum = process;

        for (int k = 0; k < MEG_COST_MEM_TYPES; k++)
            sum += c[i].memory[k];
        fprintf(f, n == 1 ? " %8.1f" : " %10.1f", mib(sum));
        if (sum > most) {
            most = sum;
            worst = i;
        }
    }
    fputc('\n', f);
    if (n > 1)
        fprintf(f, "  most: stage %" PRId64 "\n", c[worst].stage);
    if (hw->memory > 0 && most > hw->memory)
        fprintf(f, "  does not fit: a rank has %.0f MiB\n", mib(hw->memory));
}

static void print_sent(const struct column *c, int n, FILE *f)
{
    print_stages("sent by a rank in a step", "MiB", c, n, f);
    for (int k = 0; k < MEG_COST_GROUPS; k++) {
        double most = 0;

        for (int i = 0; i < n; i++)
            most = c[i].sent[k] > most ? c[i].sent[k] : most;
        if (most == 0)
            continue;
        fprintf(f, "  %-28s", meg_cost_group_name[k]);
        for (int i = 0; i < n; i++)
            fprintf(f, n == 1 ? " %8.1f" : " %10.1f", mib(c[i].sent[k]));
        fputc('\n', f);
    }
}

static void print_time(const struct trainer *t, const struct meg_cost_model *p, const struct meg_hardware *hw, FILE *f)
{
    const int64_t tokens = t->plan.global * t->job->train.seq_length;
    struct meg_cost_time s;

    meg_cost_step_time(&s, p, hw, meg_plan_threads(hw), true);
    const double busy = s.products + s.attention + s.passes + s.collectives;
    const struct {
        const char *name;
        double seconds;
    } line[] = {
        { "matrix products", s.products },
        { "attention", s.attention },
        { "passes over memory", s.passes },
        { "collectives in layers", s.collectives },
        { "bubble of the pipeline", s.bubble * busy },
        { "sums of gradients", s.reduction },
        { "update", s.update },
        { "all", s.step },
    };
    fprintf(f, "\n%-30s %8s  predicted for %s: %s\n", "time of a step", "s", hw->name, hw->what);
    for (size_t i = 0; i < sizeof line / sizeof *line; i++)
        if (line[i].seconds > 0)
            fprintf(f, "  %-28s %8.3g\n", line[i].name, line[i].seconds);
    fprintf(f, "  %-28s %8.3g\n", "tokens a second", (double)tokens / s.step);
    fprintf(f, "  %-28s %7.1f%%\n", "bubble", 100 * s.bubble);
    fprintf(f, "  %-28s %7.1f%%  of %.4g TFLOP/s a rank\n", "model FLOP/s utilization", 100 * s.mfu,
            hw->flops[p->run.dtype] * meg_plan_threads(hw) / 1e12);
}

/* Memory, messages and time of the ranks. */
static void print_ranks(const struct trainer *t, FILE *f)
{
    const struct meg_hardware *hw = meg_hardware_find(t->job->train.hardware);
    const struct meg_cost_model p = meg_plan_cost_model(t, meg_batch_max_microbatches(&t->plan));
    struct meg_rank_coords at[3];
    struct column c[3];
    const int n = meg_cost_representatives(at, &p.layout);

    for (int i = 0; i < n; i++) {
        c[i].stage = at[i].pp;
        meg_cost_memory(c[i].memory, &p, at[i]);
        meg_cost_comm_volume(c[i].sent, &p, at[i]);
    }
    print_memory(t, hw, c, n, f);
    if (t->job->train.skip_train)
        return;
    if (meg_layout_world(&p.layout) > 1)
        print_sent(c, n, f);
    print_time(t, &p, hw, f);
}

static void print_work(const struct trainer *t, FILE *f)
{
    const struct meg_train_conf *c = &t->job->train;
    double flops = meg_gpt_flops(&t->job->model, 1, c->seq_length);
    int64_t samples = c->train_samples == MEG_UNSET ? t->iters * t->plan.global : c->train_samples;

    if (c->skip_train)
        return;
    fprintf(f, "\n%-30s %8s %14s\n", "work", "FLOP", "tokens");
    fprintf(f, "  %-28s %8.2e %14" PRId64 "\n", "a step", flops * (double)t->plan.global,
            t->plan.global * c->seq_length);
    fprintf(f, "  %-28s %8.2e %14" PRId64 "\n", "the run", flops * (double)samples, samples * c->seq_length);
}

static void print_data(const struct trainer *t, FILE *f)
{
    int n;
    const struct meg_mid_dataset *p = meg_data_splits_mid_datasets(t->data, &n);

    fprintf(f, "\n%-8s %6s %12s %14s %12s %12s %8s  %s\n", "data", "weight", "sequences", "tokens", "wanted", "samples",
            "epochs", "file");
    for (int i = 0; i < n; i++)
        fprintf(f, "  %-6s %6.4f %12" PRId64 " %14" PRId64 " %12" PRId64 " %12" PRId64 " %8" PRId64 "  %s\n",
                meg_split_names[p[i].split], p[i].weight, p[i].end - p[i].begin, p[i].tokens, p[i].wanted, p[i].samples,
                p[i].epochs, p[i].name);
}

static void print_saves(const struct trainer *t, const struct meg_params *params, FILE *f)
{
    const struct meg_train_ckpt_conf *k = &t->job->ckpt;
    const struct meg_train_conf *c = &t->job->train;
    int64_t every = k->save_interval, n = every == MEG_UNSET ? 0 : t->iters / every;
    const struct meg_cost_model p = meg_plan_cost_model(t, meg_batch_max_microbatches(&t->plan));
    struct meg_optim_memory o = { 0 };
    double nbytes;

    if (k->save_optim)
        meg_optim_memory_size(&o, &t->job->optim, params, &meg_layout_one, &p.run);
    nbytes = (double)params->numel *
             ((double)meg_dtype_size(p.run.dtype) + (double)(o.main + o.state) / (double)params->flat_numel);
    if (!k->save || c->skip_train) {
        fprintf(f, "\n%-30s none\n", "checkpoints");
        return;
    }
    fprintf(f, "\n%-30s %.1f MiB each, in %s\n", "checkpoints", mib(nbytes), k->save);
    fprintf(f, "  at iterations               ");
    for (int64_t i = 1; i <= n && i <= 3; i++)
        fprintf(f, " %" PRId64, i * every);
    if (n > 4)
        fprintf(f, " ...");
    if (n > 3)
        fprintf(f, " %" PRId64, n * every);
    if (n == 0 || n * every != t->iters)
        fprintf(f, " %" PRId64, t->iters);
    fprintf(f, "%s\n", t->plan.rampup_samples ? ", and where the batch grows" : "");
    if (k->keep_last != MEG_UNSET)
        fprintf(f, "  kept                         the newest %" PRId64 "\n", k->keep_last);
}

void meg_plan_print_dry_run(const struct trainer *t, FILE *f)
{
    struct meg_params p = { 0 };

    meg_gpt_params(&p, &t->job->model, &meg_mesh_one);
    print_run(t, f);
    print_layout(&t->mesh->layout, f);
    print_params(&p, f);
    print_work(t, f);
    print_ranks(t, f);
    print_data(t, f);
    print_saves(t, &p, f);
    meg_params_free(&p);
}
