/*
 * step T B STEPS [f32|bf16 [OPTION...]] - time the training step of a model as meg-train runs it (bf16: with --bf16):
 * forward, backward, gradient norm, AdamW; weights and inputs are random.  The options are those of meg-train for the
 * network, and --vocab-size; the default is GPT-2 124M without dropout.  Print one JSON line: threads; CPU seconds per
 * second of all steps but the first; medians in ms of the step and its parts; tokens/s; GFLOP/s by the formula
 * tokens * (6 N + 12 L h T), where N excludes the position table and causal attention is not halved; AdamW's GB/s at 28
 * bytes per parameter (f32); peak resident memory.
 */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include "base/clock.h"
#include "base/mem.h"
#include "cpu/cpu.h"
#include "model/model.h"
#include "optim/optim.h"
#include "run/precision.h"

enum { PASS, NORM, UPDATE, STEP, PARTS };

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

static int64_t arg(char **argv, int argc, int i, int64_t otherwise)
{
    return i < argc ? atoll(argv[i]) : otherwise;
}

/* Return the sum of the user and system time of this process, in seconds. */
static double cpu_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* Fill an array of ids with random numbers below v.  Do nothing if id is NULL: the model does not read the array. */
static void set_random(int32_t *id, int64_t n, int64_t v)
{
    for (int64_t i = 0; id && i < n; i++)
        id[i] = (int32_t)(rand() % v);
}

/* Allocate and fill the arrays that a model reads.  Sequences are not padded, and all losses count. */
static void make_batch(struct meg_batch *x, const struct meg_model *g, int64_t t, int64_t b, bool has_dropout)
{
    const int64_t n = t * b, v = g->conf.vocab_size;
    const unsigned unused = has_dropout ? 0 : 1u << MEG_BATCH_SAMPLE_ID;

    meg_batch_alloc(x, t, t, b, meg_model_inputs(g) & ~unused & ~(1u << MEG_BATCH_LOSS_MASK), NULL);
    srand(1);
    set_random(x->tokens, n, v);
    set_random(x->labels, n, v);
    set_random(x->sentence_order, b, 2);
    set_random(x->enc_tokens, n, v);
    for (int64_t i = 0; i < n; i++) {
        x->position_ids[i] = (int32_t)(i / b);
        if (x->enc_position_ids)
            x->enc_position_ids[i] = (int32_t)(i / b);
        if (x->token_types)
            x->token_types[i] = i >= n / 2;
    }
    for (int64_t i = 0; i < b; i++) {
        if (x->key_length)
            x->key_length[i] = (int32_t)t;
        if (x->enc_key_length)
            x->enc_key_length[i] = (int32_t)t;
        if (x->sample_id)
            x->sample_id[i] = i;
    }
}

/* Read the options, and set the defaults of GPT-2 124M. */
static void read_options(struct meg_model_conf *c, const struct meg_optgroup *groups, int argc, char **argv)
{
    meg_opt_parse(groups, "T B STEPS [f32|bf16 [OPTION...]]", "Time a training step.", argc, argv);
    if (c->num_layers == MEG_UNSET)
        c->num_layers = 12;
    if (c->hidden_size == MEG_UNSET)
        c->hidden_size = 768;
    if (c->attn.a == MEG_UNSET)
        c->attn.a = 12;
    if (!meg_opt_was_given(&c->attn.dropout))
        c->attn.dropout = 0.0;
    if (!meg_opt_was_given(&c->hidden_dropout))
        c->hidden_dropout = 0.0;
}

int main(int argc, char **argv)
{
    const int64_t t = arg(argv, argc, 1, 64), b = arg(argv, argc, 2, 4), n = t * b;
    const int steps = (int)arg(argv, argc, 3, 5);
    const char *dtype = argc > 4 ? argv[4] : "f32";
    struct meg_model_conf c;
    struct meg_optim_conf oc;
    struct meg_precision_conf pc;
    struct meg_precision precision;
    struct meg_scaler scaler;
    const struct meg_zero_conf zero = { .num_instances = 1 };
    const struct meg_opt bench_opts[] = {
        { "vocab-size", 0, MEG_I64(struct meg_model_conf, vocab_size), "N", "50257", "size of the vocabulary" }, { 0 }
    };
    const struct meg_optgroup groups[] = { { "network", meg_model_opts, &c },
                                           { "vocabulary", bench_opts, &c },
                                           { "optimizer", meg_optim_opts, &oc },
                                           { "precision", meg_precision_opts, &pc },
                                           { 0 } };
    const struct meg_optim_rates rates = { 1e-4, 1e-4, 0.1 };
    const struct meg_optim_step step = { .rates = { rates, rates }, .has_grad_norm = true };
    struct meg_model_run run = { .s = t, .s_enc = t, .b = b, .is_training = true, .seed = 1 };
    struct meg_batch x;
    struct meg_model *g;
    struct meg_optim *o;
    struct meg_err e;
    struct rusage usage;
    double *part[PARTS], nparams, gflop, loss = 0.0, began_s = 0.0, began_cpu_s = 0.0, cpu_share;

    read_options(&c, groups, argc > 4 ? argc - 4 : 1, argc > 4 ? argv + 4 : argv);
    c.max_position_embeddings = t;
    pc.bf16 = strcmp(dtype, "bf16") == 0;
    if (meg_precision_make(&precision, &scaler, &pc, &e) < 0)
        meg_die_err(&e);
    run.dtype = precision.params;
    run.residual_dtype = precision.residual;
    run.grad_dtype = precision.grads;
    if (meg_model_conf_check(&c, &e) < 0 || meg_model_create(&g, &c, &run, meg_device_cpu(), &meg_mesh_one, &e) < 0 ||
        meg_optim_create(&o, &oc, &zero, g, &e) < 0)
        meg_die_err(&e);
    meg_optim_init(o, 1);
    make_batch(&x, g, t, b, c.attn.dropout > 0.0 || c.hidden_dropout > 0.0);
    for (int k = 0; k < PARTS; k++)
        part[k] = meg_new((size_t)steps * sizeof *part[k]);

    for (int i = -1; i < steps; i++) { /* the first step is not counted */
        double at[PARTS];
        if (i == 0) {
            began_s = meg_now_s();
            began_cpu_s = cpu_s();
        }
        at[0] = meg_now_s();
        meg_optim_begin(o, 1, false);
        loss = meg_model_forward_backward(g, &x, 1.0 / (double)n) / (double)n;
        at[1] = meg_now_s();
        meg_optim_reduce_grads(o);
        meg_optim_decide(o, &step);
        at[2] = meg_now_s();
        meg_optim_update(o);
        meg_optim_end(o);
        meg_optim_result(o);
        at[3] = meg_now_s();
        for (int k = 0; i >= 0 && k < STEP; k++)
            part[k][i] = at[k + 1] - at[k];
        if (i >= 0)
            part[STEP][i] = at[3] - at[0];
    }
    cpu_share = (cpu_s() - began_cpu_s) / (meg_now_s() - began_s);
    for (int k = 0; k < PARTS; k++)
        part[k][0] = median(part[k], steps);
    getrusage(RUSAGE_SELF, &usage);
    nparams = (double)(g->params.numel - (meg_model_is_rotary(&c) ? 0 : c.max_position_embeddings * c.hidden_size));
    gflop = (double)n *
            (6.0 * nparams + 12.0 * (double)((c.num_layers + 2 * c.decoder_num_layers) * c.hidden_size * t)) / 1e9;
    printf("{\"dtype\":\"%s\",\"T\":%lld,\"B\":%lld,\"params\":%.0f,\"threads\":%d,\"cpu_share\":%.2f,\"step_ms\":%.2f,"
           "\"pass_ms\":%.2f,\"norm_ms\":%.2f,\"adamw_ms\":%.2f,\"tokens_per_s\":%.1f,\"gflops\":%.1f,",
           dtype, (long long)t, (long long)b, nparams, omp_get_max_threads(), cpu_share, 1e3 * part[STEP][0],
           1e3 * part[PASS][0], 1e3 * part[NORM][0], 1e3 * part[UPDATE][0], (double)n / part[STEP][0],
           gflop / part[STEP][0]);
    if (!pc.bf16)
        printf("\"adamw_gb_per_s\":%.1f,", 28.0 * (double)g->params.numel / part[UPDATE][0] / 1e9);
    printf("\"peak_mib\":%ld,\"loss\":%.4f}\n", usage.ru_maxrss / 1024, loss);

    for (int k = 0; k < PARTS; k++)
        free(part[k]);
    meg_batch_free(&x);
    meg_optim_close(o);
    meg_model_close(g);
    return meg_close_stdout();
}
