/*
 * blocks.c - what a description can say of a block, by a family that is not in the library: a norm after the mixer, no
 * norm before it, a factor of the output, parallel blocks with biases or a norm, and a block with a loss.  The losses
 * are compared with a reference in f64, and gradients with finite differences of this reference.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "model/decode.h"
#include "model/family.h"
#include "nn/attn/self_attention.h"
#include "nn/lm_head.h"
#include "nn/mlp.h"
#include "loss_block.h"
#include "tiny_gpt.h"

enum { S = 3, B = 2, N = S * B, V = 11, H = 8, F = 12, L = 2 };

static bool has_attention; /* the first block is attention instead of an MLP */

/* Three types of MLPs, whose parameters have different names. */
static void bind(struct meg_binder *b, void *weights, const void *conf, const struct meg_block_env *env,
                 const char *name)
{
    const size_t n = strlen(b->prefix);

    assert_true(n + strlen(name) < sizeof b->prefix);
    memcpy(b->prefix + n, name, strlen(name) + 1);
    meg_mlp_block.bind(b, weights, conf, env);
    b->prefix[n] = '\0';
}

static void bind_second(struct meg_binder *b, void *weights, const void *conf, const struct meg_block_env *env)
{
    bind(b, weights, conf, env, "second.");
}

static void bind_third(struct meg_binder *b, void *weights, const void *conf, const struct meg_block_env *env)
{
    bind(b, weights, conf, env, "third.");
}

static struct meg_block_type second, third;

static void describe(struct meg_model_desc *d, const struct meg_model_conf *c)
{
    const struct meg_lm_head_conf head = { .h = H, .v = V, .tied = "embedding.word_embeddings.weight" };
    const struct meg_attn_conf attn = { .h = H, .a = 2, .g = 2, .d = H / 2, .std = d->std, .std_out = d->std };
    struct loss_conf loss = { .h = H, .positions = S, .std = d->std };
    struct meg_mlp_conf mlp = { .h = H, .f = F, .act = MEG_ACT_TANH, .std = d->std, .std_out = d->std };

    second = third = meg_mlp_block;
    second.bind = bind_second;
    third.bind = bind_third;
    d->inputs = MEG_BATCH_GPT_FIELDS;
    d->embedding_multiplier = 0.75;
    d->has_embed_norm = true;
    d->first_position = 2;
    d->positions += d->first_position;
    meg_desc_add_stack(d, "final_norm");
    if (has_attention)
        meg_desc_add_block(d, &meg_attn_block, &attn, sizeof attn, "a_norm", MEG_DROP_ATTN_OUT);
    else
        meg_desc_add_block(d, &meg_mlp_block, &mlp, sizeof mlp, "a_norm", MEG_DROP_ATTN_OUT);
    meg_desc_add_block(d, &second, &mlp, sizeof mlp, NULL, MEG_DROP_MLP_OUT);
    d->block[0].post_norm = "a_post";
    d->block[1].post_norm = "b_post";
    d->block[0].scale = 0.5f;
    meg_desc_add_layers(d, &(struct meg_block_list){ 0, 2 }, 1, L, "sandwich");
    mlp.has_bias = true;
    meg_desc_add_block(d, &meg_mlp_block, &mlp, sizeof mlp, "c_norm", MEG_DROP_ATTN_OUT);
    meg_desc_add_block(d, &second, &mlp, sizeof mlp, NULL, MEG_DROP_MLP_OUT);
    mlp.has_bias = false;
    meg_desc_add_block(d, &third, &mlp, sizeof mlp, "e_norm", MEG_DROP_MLP_OUT);
    d->block[3].is_parallel = d->block[4].is_parallel = true;
    d->block[4].scale = 3;
    d->block[4].post_norm = "e_post";
    meg_desc_add_head(d, &meg_lm_head, &head, sizeof head, "lm loss");
    loss.loss = meg_desc_add_loss(d, "position loss", false);
    meg_desc_add_block(d, &loss_block, &loss, sizeof loss, NULL, MEG_DROP_MLP_OUT);
    d->block[5].is_parallel = true;
    meg_desc_add_layers(d, &(struct meg_block_list){ 2, 4 }, 1, c->num_layers - L, "parallel");
}

static const struct meg_family blocks = { "blocks", "blocks", MEG_SAMPLES_GPT, NULL, describe, NULL };

static struct meg_model *make(bool attends, struct meg_model_run run)
{
    static bool is_added;
    struct meg_model_conf c = tiny_gpt(2 * L, H, F, 2, S, V);
    struct meg_model *g;
    struct meg_err e;

    if (!is_added)
        meg_family_add(&blocks);
    is_added = true;
    has_attention = attends;
    c.family = MEG_FAMILY_T5 + 1;
    c.normalization = MEG_NORM_RMS;
    run.s = S;
    run.b = B;
    if (meg_model_create(&g, &c, &run, meg_device_cpu(), &meg_mesh_one, &e) < 0)
        fail_msg("%s", e.msg);
    meg_model_init(g, 5);
    for (int64_t i = 0; i < g->params.flat_numel && run.dtype == MEG_DTYPE_F32; i++) /* norms are not 1, biases not 0 */
        ((float *)g->w)[i] += 0.1f * sinf((float)i);
    return g;
}

static struct meg_batch batch(void)
{
    static int32_t tokens[N], labels[N], position[N];

    for (int r = 0; r < N; r++) {
        tokens[r] = (r * r + 5 * r) % V;
        labels[r] = (r * 7 + 3) % V;
        position[r] = r / B;
    }
    return (struct meg_batch){ .s = S, .b = B, .tokens = tokens, .labels = labels, .position_ids = position };
}

/* ---- the reference ---- */

/* The weights of a model in f64, by name.  Return NULL if there is no parameter of this name. */
struct weights {
    const struct meg_params *params;
    double *w;
};

static const double *find(const struct weights *w, const char *prefix, const char *name)
{
    char full[100];
    const struct meg_param *row;

    snprintf(full, sizeof full, "%s%s", prefix, name);
    row = meg_params_find(w->params, full);
    return row ? w->w + row->offset : NULL;
}

static void rms_norm(double *y, const double *x, const double *w)
{
    double sum = 0;

    for (int i = 0; i < H; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < H; i++)
        y[i] = x[i] / sqrt(sum / H + 1e-5) * w[i];
}

static void linear(double *y, const double *x, const double *w, const double *bias, int out, int in)
{
    for (int o = 0; o < out; o++) {
        y[o] = bias ? bias[o] : 0;
        for (int i = 0; i < in; i++)
            y[o] += w[o * in + i] * x[i];
    }
}

/* Compute y = fc2(tanh(fc1(x))) of the MLP whose names begin with prefix. */
static void mlp(double *y, const double *x, const struct weights *w, const char *prefix)
{
    double mid[F];

    linear(mid, x, find(w, prefix, "mlp.linear_fc1.weight"), find(w, prefix, "mlp.linear_fc1.bias"), F, H);
    for (int i = 0; i < F; i++)
        mid[i] = tanh(mid[i]);
    linear(y, mid, find(w, prefix, "mlp.linear_fc2.weight"), find(w, prefix, "mlp.linear_fc2.bias"), H, F);
}

static void add(double *x, double factor, const double *y)
{
    for (int i = 0; i < H; i++)
        x[i] += factor * y[i];
}

/* Return the loss of a row with v logits. */
static double cross_entropy(const double *logits, int v, int target, double z_loss)
{
    double sum = 0;

    for (int i = 0; i < v; i++)
        sum += exp(logits[i]);
    return log(sum) - logits[target] + z_loss * log(sum) * log(sum);
}

/* Replace x by the output of a layer.  Return its loss. */
static double layer(double *x, const struct weights *w, int i, int position)
{
    char prefix[40], second_mlp[60], third_mlp[60];
    double y[H], e[H], m[H], n[H], logits[S];

    snprintf(prefix, sizeof prefix, "%s.layers.%d.", i < L ? "sandwich" : "parallel", i);
    snprintf(second_mlp, sizeof second_mlp, "%ssecond.", prefix);
    snprintf(third_mlp, sizeof third_mlp, "%sthird.", prefix);
    if (i < L) {
        rms_norm(y, x, find(w, prefix, "a_norm.weight"));
        mlp(m, y, w, prefix);
        rms_norm(n, m, find(w, prefix, "a_post.weight"));
        add(x, 0.5, n);
        mlp(m, x, w, second_mlp);
        rms_norm(n, m, find(w, prefix, "b_post.weight"));
        add(x, 1, n);
        return 0;
    }
    rms_norm(y, x, find(w, prefix, "c_norm.weight"));
    rms_norm(e, x, find(w, prefix, "e_norm.weight"));
    mlp(m, e, w, third_mlp);
    rms_norm(n, m, find(w, prefix, "e_post.weight"));
    add(x, 3, n);
    mlp(m, y, w, prefix);
    add(x, 1, m);
    mlp(m, y, w, second_mlp);
    add(x, 1, m);
    linear(logits, e, find(w, prefix, "position.weight"), NULL, S, H);
    return cross_entropy(logits, S, position, LOSS_BLOCK_Z);
}

/* Set loss to the sums of both losses of a batch, and return their weighted sum, which is minimized. */
static double reference(const struct weights *w, const struct meg_batch *batch, double loss[2])
{
    const double *word = find(w, "", "embedding.word_embeddings.weight");
    const double *position = find(w, "", "embedding.position_embeddings.weight");

    loss[0] = loss[1] = 0;
    for (int r = 0; r < N; r++) {
        double x[H], y[H] = { 0 }, logits[V];

        add(y, 0.75, word + batch->tokens[r] * H);
        rms_norm(x, y, find(w, "", "embedding.word_embeddings.norm.weight"));
        add(x, 1, position + (batch->position_ids[r] + 2) * H);
        for (int i = 0; i < 2 * L; i++)
            loss[1] += layer(x, w, i, batch->position_ids[r]);
        rms_norm(y, x, find(w, "", "final_norm.weight"));
        linear(logits, y, word, NULL, V, H);
        loss[0] += cross_entropy(logits, V, batch->labels[r], 0);
    }
    return loss[0] + 0.5 * loss[1];
}

/* ---- tests ---- */

static const struct meg_model_run training = { .is_training = true };

static void gradients_agree_with_finite_differences(void **state)
{
    struct meg_model *g = make(false, training);
    const struct meg_batch x = batch();
    struct weights w = { &g->params, calloc((size_t)g->params.flat_numel, sizeof *w.w) };
    const struct meg_loss_factors factors = { .grad = { 1, 0.5 }, .sum = { 1, 2 } };
    const double step = 1e-5;
    double loss[MEG_MAX_LOSSES], want[2];

    (void)state;
    meg_model_zero_loss(g);
    meg_model_forward(g, 0, 0, &x, &factors, NULL, NULL);
    meg_model_backward(g, 0, 0, NULL, NULL);
    meg_model_read_losses(g, loss);
    for (int64_t i = 0; i < g->params.flat_numel; i++)
        w.w[i] = ((const float *)g->w)[i];
    reference(&w, &x, want);
    for (int i = 0; i < 2; i++)
        assert_true(fabs(loss[i] - factors.sum[i] * want[i]) < 1e-5 * want[i]);
    for (int k = 0; k < g->params.n; k++)
        for (int64_t i = 0; i < g->params.row[k].numel; i++) {
            double *at = &w.w[g->params.row[k].offset + i], saved = *at, difference;
            const double got = ((const float *)g->g)[g->params.row[k].offset + i];

            *at = saved + step;
            difference = reference(&w, &x, want);
            *at = saved - step;
            difference = (difference - reference(&w, &x, want)) / (2 * step);
            *at = saved;
            if (!(fabs(got - difference) < 1e-4 + 1e-4 * fabs(difference)))
                fail_msg("gradient %ld of %s is %g instead of %g", (long)i, g->params.row[k].name, got, difference);
        }
    free(w.w);
    meg_model_close(g);
}

/* Run with other settings.  Return whether loss and gradients have the same bits. */
static bool equals_training(bool attends, struct meg_model_run run)
{
    struct meg_model *g = make(attends, training), *other = make(attends, run);
    const struct meg_batch x = batch();
    const double want = meg_model_forward_backward(g, &x, 1), got = meg_model_forward_backward(other, &x, 1);
    const bool is_equal = want == got && memcmp(g->g, other->g, (size_t)g->params.flat_numel * sizeof(float)) == 0;

    meg_model_close(g);
    meg_model_close(other);
    return is_equal;
}

static void recomputation_and_deferred_weight_gradients_change_no_bit(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_true(equals_training(i, (struct meg_model_run){ .is_training = true, .defers_wgrad = true }));
        assert_true(equals_training(i, (struct meg_model_run){ .is_training = true,
                                                               .recompute = MEG_RECOMPUTE_UNIFORM,
                                                               .recompute_num_layers = 3 }));
        assert_true(
            equals_training(i, (struct meg_model_run){ .is_training = true, .recompute = MEG_RECOMPUTE_SELECTIVE }));
    }
}

/* A mixer without a norm reads the residual stream in the type of activations. */
static void bf16_with_a_residual_stream_in_f32_agrees_with_f32(void **state)
{
    struct meg_model *g = make(true, training);
    struct meg_model *half = make(true, (struct meg_model_run){ .is_training = true, .dtype = MEG_DTYPE_BF16 });
    const struct meg_batch x = batch();
    double want, got;

    (void)state;
    MEG_CALL(g->op, NULL, cast, .dst = half->w, .dst_type = MEG_DTYPE_BF16, .src = g->w, .src_type = MEG_DTYPE_F32,
             .n = g->params.flat_numel);
    want = meg_model_forward_backward(g, &x, 1);
    got = meg_model_forward_backward(half, &x, 1);
    assert_true(fabs(got - want) < 0.02 * want);
    for (int k = 0; k < g->params.n; k++) {
        const struct meg_param *row = &g->params.row[k];
        double off = 0, size = 0;

        for (int64_t i = row->offset; i < row->offset + row->numel; i++) {
            const double d = ((const float *)half->g)[i], f = ((const float *)g->g)[i];

            off += (d - f) * (d - f);
            size += f * f;
        }
        if (!(off < 0.01 * size))
            fail_msg("the gradient of %s is off by %g of its norm", row->name, sqrt(off / size));
    }
    meg_model_close(g);
    meg_model_close(half);
}

/* Decoding token by token computes the logits of the complete sequence. */
static void decoding_computes_the_logits_of_complete_sequences(void **state)
{
    const struct meg_decode_conf conf = { .returns_logits = true };
    struct meg_model *g = make(true, (struct meg_model_run){ 0 });
    struct meg_model_kv_cache *c = meg_model_kv_cache_create(g, B, &conf);
    const struct meg_batch x = batch();
    float logits[N * V];
    struct meg_err e;

    (void)state;
    meg_model_logits(g, &x, logits);
    for (int64_t i = 0; i < B; i++) {
        const int32_t tokens[S] = { x.tokens[i], x.tokens[B + i], x.tokens[2 * B + i] };
        const struct meg_prefill prompt = { .slot = i, .tokens = tokens, .n = 1, .s = S };
        struct meg_decode_output out;

        assert_int_equal(meg_model_prefill(g, c, &prompt, &out, &e), 0);
        for (int64_t t = 0; t < S; t++) {
            if (t > 0)
                out = meg_model_decode(g, c, &i, tokens + t, 1, NULL);
            for (int64_t v = 0; v < V; v++)
                assert_true(fabsf(out.logits[v] - logits[(t * B + i) * V + v]) < 1e-5f);
        }
    }
    meg_model_kv_cache_close(c);
    meg_model_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_agree_with_finite_differences),
        cmocka_unit_test(recomputation_and_deferred_weight_gradients_change_no_bit),
        cmocka_unit_test(bf16_with_a_residual_stream_in_f32_agrees_with_f32),
        cmocka_unit_test(decoding_computes_the_logits_of_complete_sequences),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
