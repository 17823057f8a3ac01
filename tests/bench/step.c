/*
 * step T B STEPS [f32|bf16 [LAYERS HIDDEN HEADS VOCAB [DROPOUT]]] - time the training step of a GPT (default: GPT-2
 * 124M in f32) as meg-train runs it (bf16: with --bf16): forward, backward, gradient norm, AdamW; weights and tokens
 * are random.  Prints one JSON line: threads; CPU seconds per second of all steps but the first; medians in ms of the
 * step and its parts; tokens/s; GF/s by the formula tokens * (6 N + 12 L h T), where N excludes the position table and
 * causal attention is not halved; AdamW's GB/s at 28 bytes per parameter (f32); peak resident memory.
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
#include "optim/precision.h"

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

/* Return the user and system time of this process. */
static double cpu_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* Allocate random tokens and labels, and positions, of n rows of b sequences: [3,n]. */
static int32_t *random_tokens(int64_t n, int64_t b, int64_t v)
{
    int32_t *t = meg_new((size_t)(3 * n) * sizeof *t);
    srand(1);
    for (int64_t i = 0; i < n; i++) {
        t[i] = (int32_t)(rand() % v);
        t[n + i] = (int32_t)(rand() % v);
        t[2 * n + i] = (int32_t)(i / b);
    }
    return t;
}

int main(int argc, char **argv)
{
    const int64_t t = arg(argv, argc, 1, 64), b = arg(argv, argc, 2, 4), n = t * b;
    const int steps = (int)arg(argv, argc, 3, 5);
    const char *dtype = argc > 4 ? argv[4] : "f32";
    const double dropout = argc > 9 ? atof(argv[9]) : 0.0;
    struct meg_model_conf c;
    struct meg_optim_conf oc;
    struct meg_precision_conf pc;
    struct meg_precision precision;
    struct meg_scaler scaler;
    const struct meg_zero_conf zero = { .num_instances = 1 };
    const struct meg_optgroup groups[] = { { "network", meg_model_opts, &c },
                                           { "optimizer", meg_optim_opts, &oc },
                                           { "precision", meg_precision_opts, &pc },
                                           { 0 } };
    const struct meg_optim_rates rates = { 1e-4, 1e-4, 0.1 };
    const struct meg_optim_step step = { .rates = { rates, rates }, .has_grad_norm = true };
    struct meg_model_run run = { .s = t, .b = b, .is_training = true, .seed = 1 };
    struct meg_batch x = { .s = t, .b = b };
    struct meg_model *g;
    struct meg_optim *o;
    struct meg_err e;
    struct rusage usage;
    int32_t *token;
    int64_t *sample = meg_new((size_t)b * sizeof *sample);
    double *part[PARTS], nparams, gflop, loss = 0.0, began_s = 0.0, began_cpu_s = 0.0, cpu_share;

    meg_opt_defaults(groups);
    c.num_layers = arg(argv, argc, 5, 12);
    c.hidden_size = arg(argv, argc, 6, 768);
    c.num_attention_heads = arg(argv, argc, 7, 12);
    c.vocab_size = arg(argv, argc, 8, 50257);
    c.max_position_embeddings = t;
    c.attention_dropout = c.hidden_dropout = dropout;
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
    x.tokens = token = random_tokens(n, b, c.vocab_size);
    x.labels = token + n;
    x.position_ids = token + 2 * n;
    x.sample_id = dropout > 0.0 ? sample : NULL;
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
    nparams = (double)(g->params.numel - c.max_position_embeddings * c.hidden_size);
    gflop = (double)n * (6.0 * nparams + 12.0 * (double)(c.num_layers * c.hidden_size * t)) / 1e9;
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
    free(token);
    free(sample);
    meg_optim_close(o);
    meg_model_close(g);
    return meg_close_stdout();
}
