/* --dry-run: what a run would hold, do, read and write. */
#include <inttypes.h>
#include <stdio.h>
#include "train/internal.h"

/* What a process takes beside its arenas: the program, its libraries, a loader's samples; measured. */
enum { PROCESS_NBYTES = 16 << 20 };

static double mib(double nbytes)
{
    return nbytes / (1 << 20);
}

static void print_run(const struct trainer *t, FILE *f)
{
    const struct meg_train_conf *c = &t->job->train;
    const struct meg_gpt_conf *m = &t->job->model;

    fprintf(f,
            "model        GPT: %" PRId64 " layers, hidden %" PRId64 ", feed-forward %" PRId64
            ", %" PRId64 " heads of %" PRId64 ", vocabulary %" PRId64 "\n",
            m->num_layers, m->hidden_size, m->ffn_hidden_size, m->num_attention_heads,
            m->kv_channels, m->vocab_size);
    fprintf(f,
            "run          %" PRId64 " iterations, micro-batch %" PRId64 ", global batch %" PRId64
            ", sequence %" PRId64 "\n",
            t->iters, t->plan.micro, t->plan.global, c->seq_length);
    if (t->plan.samples)
        fprintf(f, "ramp-up      from %" PRId64 " by %" PRId64 " over %" PRId64 " samples\n",
                t->plan.start, t->plan.increment, t->plan.samples);
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
                    decoupled     ? "embedding and output"
                        : decayed ? "weights"
                                  : "biases and norms, no decay",
                    tensors, elements);
    }
    fprintf(f, "  %-28s %8d %14" PRId64 "\n", "all", p->n, p->numel);
}

static void print_memory(const struct trainer *t, const struct meg_params *p, FILE *f)
{
    const struct meg_train_conf *c = &t->job->train;
    struct meg_gpt_run run = { .s = c->seq_length,
                               .b = c->micro_batch_size,
                               .is_training = !c->skip_train };
    struct meg_gpt_memory m;
    struct meg_optim_memory o = { 0 };
    size_t optim;

    meg_gpt_plan(&m, &t->job->model, &run, &meg_mesh_one);
    if (!c->skip_train)
        meg_optim_plan(&o, &t->job->optim, p, &meg_layout_one, &run);
    optim = o.main + o.main_grad + o.state;
    fprintf(f, "\n%-30s %8s\n", "memory", "MiB");
    const struct {
        const char *name;
        size_t nbytes;
    } line[] = {
        { "parameters", m.params },
        { "gradients", m.grads },
        { "optimizer state", optim },
        { "activations", m.activations },
        { "workspace", m.workspace },
        { "program and libraries", PROCESS_NBYTES },
        { "all", m.params + m.grads + optim + m.activations + m.workspace + PROCESS_NBYTES },
    };
    for (size_t i = 0; i < sizeof line / sizeof *line; i++)
        fprintf(f, "  %-28s %8.1f\n", line[i].name, mib((double)line[i].nbytes));
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
    fprintf(f, "  %-28s %8.2e %14" PRId64 "\n", "the run", flops * (double)samples,
            samples * c->seq_length);
}

static void print_data(const struct trainer *t, FILE *f)
{
    int n;
    const struct meg_data_part *p = meg_run_data_parts(t->data, &n);

    fprintf(f, "\n%-8s %6s %12s %14s %12s %12s %8s  %s\n", "data", "weight", "sequences", "tokens",
            "wanted", "samples", "epochs", "file");
    for (int i = 0; i < n; i++)
        fprintf(f,
                "  %-6s %6.4f %12" PRId64 " %14" PRId64 " %12" PRId64 " %12" PRId64 " %8" PRId64
                "  %s\n",
                meg_split_names[p[i].split], p[i].weight, p[i].end - p[i].begin, p[i].tokens,
                p[i].wanted, p[i].samples, p[i].epochs, p[i].name);
}

static void print_saves(const struct trainer *t, int64_t numel, FILE *f)
{
    const struct meg_train_ckpt_conf *k = &t->job->ckpt;
    const struct meg_train_conf *c = &t->job->train;
    int64_t every = k->save_interval, n = every == MEG_UNSET ? 0 : t->iters / every;
    double nbytes = (double)numel * sizeof(float) * (k->save_optim ? 1 + 3 : 1);

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
    fprintf(f, "%s\n", t->plan.samples ? ", and where the batch grows" : "");
    if (k->keep_last != MEG_UNSET)
        fprintf(f, "  kept                         the newest %" PRId64 "\n", k->keep_last);
}

void meg_train_print_plan(const struct trainer *t, FILE *f)
{
    struct meg_params p = { 0 };

    meg_gpt_params(&p, &t->job->model, &meg_mesh_one);
    print_run(t, f);
    print_params(&p, f);
    print_memory(t, &p, f);
    print_work(t, f);
    print_data(t, f);
    print_saves(t, p.numel, f);
    meg_params_free(&p);
}
