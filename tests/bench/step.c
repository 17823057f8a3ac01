/*
 * step T B STEPS [LAYERS HIDDEN HEADS VOCAB [DROPOUT]] - time the training step of a GPT-2-shaped model
 * (124M unless told otherwise): forward and backward, the gradient's norm, AdamW; random weights and tokens.
 * Prints one JSON line: medians in ms, tokens/s, model GF/s by tokens * (6 N + 12 L h T) with N without
 * the position table and without causal halving, AdamW's GB/s at 28 bytes a parameter, peak MiB.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "cpu/cpu.h"
#include "model/gpt.h"

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

int main(int argc, char **argv)
{
    const int64_t t = arg(argv, argc, 1, 64), b = arg(argv, argc, 2, 4), n = t * b;
    const int steps = (int)arg(argv, argc, 3, 5);
    const double dropout = argc > 8 ? atof(argv[8]) : 0.0;
    struct meg_gpt_conf c = {
        .num_layers = arg(argv, argc, 4, 12), .hidden_size = arg(argv, argc, 5, 768),
        .num_attention_heads = arg(argv, argc, 6, 12), .vocab_size = arg(argv, argc, 7, 50257),
        .ffn_hidden_size = MEG_UNSET, .kv_channels = MEG_UNSET, .max_position_embeddings = t,
        .position_embedding_type = "learned_absolute", .normalization = "LayerNorm", .norm_epsilon = 1e-5,
        .init_method_std = 0.02, .bias_gelu_fusion = true, .attention_dropout = dropout, .hidden_dropout = dropout,
    };
    const struct meg_gpt_run run = { t, b, true, 1 };
    const struct meg_ops *op = meg_cpu_ops();
    const struct meg_adam adam = { 0.9f, 0.95f, 1e-8f };
    struct meg_step step = { { 1e-4f, 1e-4f }, 0.1f, 0.1f, 0.05f, 1.0f, 0, 0 };
    struct meg_gpt *g;
    struct meg_gpt_batch x = { t, b, NULL, NULL, NULL, NULL, NULL, NULL };
    struct meg_range *range;
    struct meg_err e;
    struct rusage usage;
    int32_t *token = meg_new((size_t)(3 * n) * sizeof *token);
    int64_t *sample = meg_new((size_t)b * sizeof *sample);
    double *pass = meg_new((size_t)(steps * 3) * sizeof *pass), *opt = pass + steps, *all = opt + steps, loss = 0.0;
    double nparams, gflop;
    float *m, *v;
    int nranges;

    if (meg_gpt_conf_check(&c, &e) < 0 || meg_gpt_create(&g, &c, &run, op, &meg_mesh_one, &e) < 0)
        meg_die_err(&e);
    meg_gpt_init(g, 1);
    nranges = meg_params_ranges(&g->params, &range);
    m = op->alloc((size_t)g->params.flat * sizeof *m);
    v = op->alloc((size_t)g->params.flat * sizeof *v);
    if (!m || !v)
        meg_die(MEG_EFAIL, "out of memory");
    srand(1);
    for (int64_t i = 0; i < n; i++) {
        token[i] = (int32_t)(rand() % c.vocab_size);
        token[n + i] = (int32_t)(rand() % c.vocab_size);
        token[2 * n + i] = (int32_t)(i / b);
    }
    x.tokens = token;
    x.labels = token + n;
    x.position = token + 2 * n;
    x.sample = dropout > 0.0 ? sample : NULL;
    for (int i = -1; i < steps; i++) {
        const double t0 = meg_now_s();
        double t1, t2, sum;
        loss = meg_gpt_grad(g, &x, 1.0 / (double)n) / (double)n;
        t1 = meg_now_s();
        op->sumsq(NULL, &sum, g->g, g->params.flat);
        op->adamw(NULL, g->w, g->g, m, v, range, nranges, &adam, &step);
        t2 = meg_now_s();
        if (i >= 0) {
            pass[i] = t1 - t0;
            opt[i] = t2 - t1;
            all[i] = t2 - t0;
        }
    }
    {
        double *only = meg_new(9 * sizeof *only);
        step.lr[0] = step.lr[1] = 0.0f;
        for (int i = 0; i < 9; i++) {
            const double t0 = meg_now_s();
            op->adamw(NULL, g->w, g->g, m, v, range, nranges, &adam, &step);
            only[i] = meg_now_s() - t0;
        }
        getrusage(RUSAGE_SELF, &usage);
        nparams = (double)(g->params.numel - c.max_position_embeddings * c.hidden_size);
        gflop = (double)n * (6.0 * nparams + 12.0 * (double)(c.num_layers * c.hidden_size * t)) / 1e9;
        printf("{\"T\":%lld,\"B\":%lld,\"params\":%.0f,\"step_ms\":%.2f,\"grad_ms\":%.2f,\"opt_ms\":%.2f,"
               "\"tokens_per_s\":%.1f,\"gflops\":%.1f,\"adamw_gb_s\":%.1f,\"peak_mib\":%ld,\"loss\":%.4f}\n",
               (long long)t, (long long)b, nparams, 1e3 * median(all, steps), 1e3 * median(pass, steps),
               1e3 * median(opt, steps), (double)n / all[steps / 2], gflop / all[steps / 2],
               28.0 * (double)g->params.numel / median(only, 9) / 1e9, usage.ru_maxrss / 1024, loss);
        free(only);
    }
    op->release(m);
    op->release(v);
    meg_gpt_close(g);
    free(range);
    free(token);
    free(sample);
    free(pass);
    return meg_finish();
}
