/*
 * Five AdamW steps of gpt2-tiny against reference data (tests/data/golden/models, described by
 * tests/data/golden/README.md): the loss before each step and after the last, the gradient norm before clipping, and
 * norm, first and last element of each parameter.
 *
 * The gradient of a key bias is mathematically zero.  In the reference, which is in fp64, it is a rounding error of
 * about 1e-18, far below Adam's epsilon.  In fp32, Adam turns the rounding error into a step of full size, so the key
 * third of each qkv bias is not compared.
 */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>
#include "ckpt/safetensors.h"
#include "golden_device.h"
#include "optim/optim.h"
#include "reference.h"

enum { S = 32, B = 2, HEADS = 4, D = 16 };

static struct meg_st *open_st(const char *name)
{
    char file[512];
    struct meg_st *st = NULL;

    snprintf(file, sizeof file, "models/gpt2-tiny/%s.safetensors", name);
    assert_int_equal(meg_st_open(&st, golden(file), NULL), 0);
    return st;
}

/* Read a [batch, seq] tensor of i64 into [seq, batch] of i32. */
static void read_ids(int32_t *out, const struct meg_st *st, const char *name)
{
    const struct meg_st_tensor *t = meg_st_find(st, name);
    int64_t v[B * S];

    assert_int_equal(t->nbytes, sizeof v);
    memcpy(v, t->data, sizeof v);
    for (int i = 0; i < B; i++)
        for (int j = 0; j < S; j++)
            out[j * B + i] = (int32_t)v[i * S + j];
}

static struct meg_model *open_model(void)
{
    struct meg_model_conf c = { 0 };
    struct meg_model_run run = { .s = S, .b = B, .is_training = true };
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, &c }, { 0 } };
    struct meg_model *g = NULL;
    struct meg_st *st = open_st("mcore");
    float *host;

    meg_opt_defaults(groups);
    c.num_layers = 2;
    c.hidden_size = HEADS * D;
    c.attn.a = HEADS;
    c.max_position_embeddings = 64;
    c.vocab_size = 128;
    c.attn.dropout = c.hidden_dropout = 0;
    assert_int_equal(meg_model_conf_check(&c, NULL), 0);
    assert_int_equal(meg_model_create(&g, &c, &run, golden_device(), &meg_mesh_one, NULL), 0);
    host = meg_new((size_t)g->params.flat_numel * sizeof *host);
    assert_int_equal(st->n, g->params.n);
    for (int i = 0; i < g->params.n; i++) {
        const struct meg_param *p = &g->params.row[i];
        const struct meg_st_tensor *t = meg_st_find(st, p->name);
        assert_non_null(t);
        assert_int_equal(t->nbytes, (size_t)p->numel * sizeof(float));
        memcpy(host + p->offset, t->data, (size_t)t->nbytes);
    }
    set_weights(g, host);
    free(host);
    meg_st_close(st);
    return g;
}

/* Print the name of a parameter in the reference to out [n]. */
static void hf_name(char *out, size_t n, const char *name)
{
    static const char *const part[][2] = {
        { "embedding.word_embeddings.weight", "wte.weight" },
        { "embedding.position_embeddings.weight", "wpe.weight" },
        { "decoder.final_layernorm", "ln_f" },
        { "input_layernorm", "ln_1" },
        { "pre_mlp_layernorm", "ln_2" },
        { "self_attention.linear_qkv", "attn.c_attn" },
        { "self_attention.linear_proj", "attn.c_proj" },
        { "mlp.linear_fc1", "mlp.c_fc" },
        { "mlp.linear_fc2", "mlp.c_proj" },
    };
    int layer, at = 0;
    char head[32] = "";

    if (sscanf(name, "decoder.layers.%d.%n", &layer, &at) == 1 && at > 0)
        snprintf(head, sizeof head, "h.%d.", layer);
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        size_t len = strlen(part[i][0]);
        if (!strncmp(name + at, part[i][0], len)) {
            snprintf(out, n, "transformer.%s%s%s", head, part[i][1], name + at + len);
            return;
        }
    }
    fail_msg("no other name of %s", name);
}

/*
 * If keys is true, return the sum of squares of the keys of a qkv bias, whose rows are q, k, v of each head, or 0 for
 * any other parameter; else return the sum of squares of all other elements.
 */
static double squares(const struct meg_param *p, const float *w, bool keys)
{
    bool is_qkv_bias = strstr(p->name, "linear_qkv.bias") != NULL;
    double sum = 0;

    for (int64_t i = 0; i < p->numel; i++)
        if ((is_qkv_bias && i / D % 3 == 1) == keys)
            sum += (double)w[i] * w[i];
    return sum;
}

static void near(const char *what, double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * fabs(want)))
        fail_msg("%s: %.10g, want %.10g", what, got, want);
}

static void check_weights(const struct meg_model *g, const double *key_squares, const json_t *after)
{
    float *weights = copy_to_host(g, g->w);

    for (int i = 0; i < g->params.n; i++) {
        const struct meg_param *p = &g->params.row[i];
        const float *w = weights + p->offset;
        const json_t *want;
        char name[128];
        double l2;

        hf_name(name, sizeof name, p->name);
        want = json_object_get(after, name);
        l2 = json_number_value(json_object_get(want, "l2"));
        assert_true(l2 > 0);
        near(p->name, sqrt(squares(p, w, false)), sqrt(l2 * l2 - key_squares[i]), 1e-5);
        near(p->name, w[0], json_number_value(json_object_get(want, "first")), 1e-4);
        near(p->name, w[p->numel - 1], json_number_value(json_object_get(want, "last")), 1e-4);
    }
    free(weights);
}

static void five_steps(void **state)
{
    const struct meg_optim_rates rates = { 1e-3, 1e-3, 0.1 };
    const struct meg_optim_step one_step = { .rates = { rates, rates }, .has_grad_norm = true };
    const struct meg_optim_conf conf = {
        .optimizer = MEG_OPTIMIZER_ADAM, .adam_beta1 = 0.9, .adam_beta2 = 0.95, .adam_eps = 1e-8, .clip_grad = 1
    };
    const struct meg_zero_conf zero = { .num_instances = 1 };
    int32_t tokens[B * S], labels[B * S], position[B * S];
    float mask[B * S];
    struct meg_batch x = {
        .s = S, .b = B, .tokens = tokens, .labels = labels, .position_ids = position, .loss_mask = mask
    };
    double den = 0, key_squares[64];
    struct meg_optim *o = NULL;
    const json_t *want;
    struct meg_model *g;
    struct meg_st *in;
    json_t *expected;
    float *weights;

    (void)state;
    assert_non_null(expected = json_load_file(golden("models/gpt2-tiny/expected.json"), 0, NULL));
    want = json_object_get(expected, "adamw");
    in = open_st("inputs");
    read_ids(tokens, in, "tokens");
    read_ids(labels, in, "labels");
    read_ids(position, in, "position_ids");
    for (int i = 0; i < B; i++)
        for (int j = 0; j < S; j++) {
            memcpy(&mask[j * B + i],
                   (const char *)meg_st_find(in, "loss_mask")->data + sizeof(float) * (size_t)(i * S + j),
                   sizeof(float));
            den += mask[j * B + i];
        }
    g = open_model();
    weights = copy_to_host(g, g->w);
    for (int i = 0; i < g->params.n; i++)
        key_squares[i] = squares(&g->params.row[i], weights + g->params.row[i].offset, true);
    free(weights);
    assert_int_equal(meg_optim_create(&o, &conf, &zero, g, NULL), 0);

    for (size_t step = 0; step <= 5; step++) {
        double loss;

        meg_optim_begin(o, 1, false);
        loss = meg_model_forward_backward(g, &x, 1 / den) / den;
        near("loss", loss, json_number_value(json_array_get(json_object_get(want, "loss_before_step_f64"), step)),
             1e-6);
        if (step == 5)
            break;
        meg_optim_reduce_grads(o);
        meg_optim_decide(o, &one_step);
        meg_optim_update(o);
        meg_optim_end(o);
        near("norm", meg_optim_result(o)->grad_norm,
             json_number_value(json_array_get(json_object_get(want, "grad_norm_f64"), step)), 1e-5);
    }
    check_weights(g, key_squares, json_object_get(want, "after_5_steps"));
    meg_optim_close(o);
    meg_model_close(g);
    meg_st_close(in);
    json_decref(expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(five_steps) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
