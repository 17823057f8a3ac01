/*
 * gpt_types.c - a GPT in bf16 and f16 against the same weights in f32: loss and gradients of all tensors.  Gradients in
 * f16 have a loss scale.  The results have equal bits for one thread and several.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "cpu/cpu.h"
#include "model/model.h"
#include "tiny_gpt.h"

enum { S = 40, B = 3, N = S * B, V = 97, H = 64, A = 4, L = 3, F = 160 };

/* Types of parameters, residual stream and gradients, and the allowed relative error of loss and gradients. */
static const struct types {
    enum meg_dtype dtype, residual, grad;
    double tol;
} modes[] = {
    { MEG_DTYPE_BF16, MEG_DTYPE_BF16, MEG_DTYPE_F32, 0x1p-6 },
    { MEG_DTYPE_BF16, MEG_DTYPE_F32, MEG_DTYPE_F32, 0x1p-6 },
    { MEG_DTYPE_F16, MEG_DTYPE_F16, MEG_DTYPE_F16, 0x1p-9 },
    { MEG_DTYPE_F16, MEG_DTYPE_F32, MEG_DTYPE_F32, 0x1p-9 },
};

static struct meg_model_conf conf(int is_llama)
{
    struct meg_model_conf c = tiny_gpt(L, H, F, A, S, V);

    c.init_method_std = 0.08;
    c.attn.dropout = c.hidden_dropout = 0.1;
    if (is_llama) {
        struct meg_err e;

        c.swiglu = true;
        c.has_bias = false;
        c.normalization = MEG_NORM_RMS;
        c.position_embedding_type = MEG_POSITION_ROPE;
        c.group_query_attention = true;
        c.attn.g = 2;
        c.is_untied = true;
        assert_int_equal(meg_model_conf_check(&c, &e), 0);
    }
    return c;
}

static struct meg_model *make(const struct meg_model_conf *c, const struct types *k)
{
    const struct meg_model_run run = { .s = S,
                                       .b = B,
                                       .is_training = true,
                                       .seed = 7,
                                       .dtype = k->dtype,
                                       .residual_dtype = k->residual,
                                       .grad_dtype = k->grad };
    struct meg_model *g;
    struct meg_err e;

    if (meg_model_create(&g, c, &run, meg_device_cpu(), &meg_mesh_one, &e) < 0)
        fail_msg("%s", e.msg);
    return g;
}

/* Return the loss of one micro-batch; write its gradients, converted to f32 and divided by the loss scale, to out. */
static double gradients(struct meg_model *g, double scale, float *out)
{
    int32_t tokens[N], labels[N], position[N];
    int64_t sample[B] = { 3, 11, 4 };
    const struct meg_batch x = {
        .s = S, .b = B, .tokens = tokens, .labels = labels, .position_ids = position, .sample_id = sample
    };
    double loss;

    for (int r = 0; r < N; r++) {
        tokens[r] = (r * r + 5 * r) % V;
        labels[r] = (r * 7 + 3) % V;
        position[r] = r / B;
    }
    meg_model_zero_grads(g);
    loss = meg_model_forward_backward(g, &x, scale / N) / N;
    MEG_CALL(g->op, NULL, cast, .dst = out, .dst_type = MEG_DTYPE_F32, .src = g->g, .src_type = g->run.grad_dtype,
             .n = g->params.flat_numel);
    for (int64_t i = 0; i < g->params.flat_numel; i++)
        out[i] = (float)(out[i] / scale);
    return loss;
}

static void check_tensor(const struct meg_param *row, const float *got, const float *want, const struct types *k)
{
    double off = 0, size = 0;

    for (int64_t i = row->offset; i < row->offset + row->numel; i++) {
        off += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        size += (double)want[i] * want[i];
    }
    if (!(sqrt(off / size) <= k->tol))
        fail_msg("%s, residual %s: the gradient of %s is off by %g of its norm", meg_dtype_name(k->dtype),
                 meg_dtype_name(k->residual), row->name, sqrt(off / size));
}

static void check(const struct meg_model_conf *c, const struct types *k)
{
    static const struct types f32 = { MEG_DTYPE_F32, MEG_DTYPE_F32, MEG_DTYPE_F32, 0 };
    const double scale = k->grad == MEG_DTYPE_F16 ? 4096 : 1;
    struct meg_model *in_f32 = make(c, &f32), *in_half = make(c, k);
    const int64_t n = in_f32->params.flat_numel;
    float *want = malloc((size_t)n * sizeof *want), *got = malloc((size_t)n * sizeof *got);
    float *again = malloc((size_t)n * sizeof *again);
    double loss, loss32;

    meg_model_init(in_f32, 1234);
    MEG_CALL(in_f32->op, NULL, cast, .dst = in_half->w, .dst_type = k->dtype, .src = in_f32->w,
             .src_type = MEG_DTYPE_F32, .n = n);
    MEG_CALL(in_f32->op, NULL, cast, .dst = in_f32->w, .dst_type = MEG_DTYPE_F32, .src = in_half->w,
             .src_type = k->dtype, .n = n);
    loss32 = gradients(in_f32, 1, want);
    loss = gradients(in_half, scale, got);
    omp_set_num_threads(1);
    assert_true(gradients(in_half, scale, again) == loss);
    omp_set_num_threads(2);
    assert_memory_equal(got, again, (size_t)n * sizeof *got);
    if (!(fabs(loss - loss32) <= k->tol * loss32))
        fail_msg("%s, residual %s: loss %g instead of %g", meg_dtype_name(k->dtype), meg_dtype_name(k->residual), loss,
                 loss32);
    for (int i = 0; i < in_f32->params.n; i++)
        check_tensor(&in_f32->params.row[i], got, want, k);
    free(want);
    free(got);
    free(again);
    meg_model_close(in_f32);
    meg_model_close(in_half);
}

static void gpt2_in_bf16_and_f16_agrees_with_f32(void **state)
{
    const struct meg_model_conf c = conf(0);

    (void)state;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        check(&c, &modes[i]);
}

static void llama_in_bf16_and_f16_agrees_with_f32(void **state)
{
    const struct meg_model_conf c = conf(1);

    (void)state;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        check(&c, &modes[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(gpt2_in_bf16_and_f16_agrees_with_f32),
                                        cmocka_unit_test(llama_in_bf16_and_f16_agrees_with_f32) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
