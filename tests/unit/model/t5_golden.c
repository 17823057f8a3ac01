/*
 * t5_golden.c - T5 with learned and with relative positions, T5 v1.1 and T5 v1.0, against an independent float64
 * implementation (tests/data/golden/README.md): loss, logits, every gradient, five steps of AdamW, and losses and
 * gradient norm under other options.  The tolerances of logits and gradients are ten times the error of the
 * reference's own float32 run.  Decoding with a KV cache must result in the logits of the complete sequences and in
 * the greedy tokens of Hugging Face.
 */
#include "golden_model.h"
#include "ckpt/ckpt.h"
#include "model/decode.h"
#include "tensor/token_sampler.h"
#include "tiny_gpt.h"

enum { S_ENC_MAX = 32, S = 16, B = 3, N = S * B, V_MAX = 128 };

/* ---- names of Hugging Face --------------------------------------------------------------------------- */

/*
 * Return the tensor and the row that correspond to row o of a parameter in a reference with the names of Megatron core.
 * Only the names of output_layer differ from meg's: they begin with "lm_head.".
 */
static struct hf_row core_row(const char *name, int64_t o)
{
    struct hf_row p = { .row = o };

    snprintf(p.name, sizeof p.name, "%s%s", strncmp(name, "output_layer.", 13) ? "" : "lm_head.", name);
    return p;
}

/* A parameter of a layer, and its name in Hugging Face.  %d is the index of the sublayer of the MLP. */
static const struct {
    const char *core, *hf;
} layer_names[] = {
    { "input_layernorm.weight", "layer.0.layer_norm.weight" },
    { "self_attention.linear_proj.weight", "layer.0.SelfAttention.o.weight" },
    { "pre_cross_attn_layernorm.weight", "layer.1.layer_norm.weight" },
    { "cross_attention.linear_q.weight", "layer.1.EncDecAttention.q.weight" },
    { "cross_attention.linear_proj.weight", "layer.1.EncDecAttention.o.weight" },
    { "pre_mlp_layernorm.weight", "layer.%d.layer_norm.weight" },
    { "mlp.linear_fc2.weight", "layer.%d.DenseReluDense.wo.weight" },
};

static const struct {
    const char *core, *hf;
} other_names[] = {
    { "embedding.word_embeddings.weight", "shared.weight" },
    { "encoder_relative_pos_emb.relative_attention_bias.weight",
      "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight" },
    { "decoder_relative_pos_emb.relative_attention_bias.weight",
      "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight" },
    { "encoder.final_layernorm.weight", "encoder.final_layer_norm.weight" },
    { "decoder.final_layernorm.weight", "decoder.final_layer_norm.weight" },
    { "output_layer.weight", "lm_head.weight" },
};

/* Head size, and width of the gate of the MLP; 0: no gate. */
struct widths {
    int64_t d, gate;
};

/*
 * If the rows of the parameter `rest` of a layer are those of several tensors of Hugging Face, set p->name to the
 * tensor that has row p->row, and p->row to the row in this tensor.  Otherwise return false.
 */
static bool packed_row(struct hf_row *p, const char *rest, const char *block, int mlp, struct widths w)
{
    static const char qkv[] = "qkv", kv[] = "kv";
    const int64_t o = p->row;

    if (!strcmp(rest, "self_attention.linear_qkv.weight")) {
        p->row = o / (3 * w.d) * w.d + o % w.d;
        snprintf(p->name, sizeof p->name, "%s.layer.0.SelfAttention.%c.weight", block, qkv[o / w.d % 3]);
    } else if (!strcmp(rest, "cross_attention.linear_kv.weight")) {
        p->row = o / (2 * w.d) * w.d + o % w.d;
        snprintf(p->name, sizeof p->name, "%s.layer.1.EncDecAttention.%c.weight", block, kv[o / w.d % 2]);
    } else if (!strcmp(rest, "mlp.linear_fc1.weight")) {
        snprintf(p->name, sizeof p->name, "%s.layer.%d.DenseReluDense.wi", block, mlp);
        if (w.gate) {
            p->row = o % w.gate;
            strcat(p->name, o < w.gate ? "_0" : "_1");
        }
        strcat(p->name, ".weight");
    } else {
        return false;
    }
    return true;
}

/* Return the tensor and the row that correspond to row o of a parameter in a reference with Hugging Face's names. */
static struct hf_row hf_t5_row(const char *name, int64_t o, struct widths w)
{
    struct hf_row p = { .row = o };
    int layer = -1, skipped = 0, mlp = strncmp(name, "decoder", 7) ? 1 : 2;
    char block[32], stack[8];
    const char *rest;

    for (size_t i = 0; i < sizeof other_names / sizeof *other_names; i++)
        if (!strcmp(name, other_names[i].core)) {
            snprintf(p.name, sizeof p.name, "%s", other_names[i].hf);
            return p;
        }
    assert_int_equal(sscanf(name, "%7[a-z].layers.%d.%n", stack, &layer, &skipped), 2);
    rest = name + skipped;
    snprintf(block, sizeof block, "%s.block.%d", stack, layer);
    if (packed_row(&p, rest, block, mlp, w))
        return p;
    for (size_t i = 0; i < sizeof layer_names / sizeof *layer_names; i++)
        if (!strcmp(rest, layer_names[i].core)) {
            int n = snprintf(p.name, sizeof p.name, "%s.", block);

            snprintf(p.name + n, sizeof p.name - (size_t)n, layer_names[i].hf, mlp);
            return p;
        }
    fail_msg("no Hugging Face name for %s", name);
    return p;
}

static struct hf_row v1_1_row(const char *name, int64_t o)
{
    return hf_t5_row(name, o, (struct widths){ 16, 96 });
}

static struct hf_row v1_0_row(const char *name, int64_t o)
{
    return hf_t5_row(name, o, (struct widths){ 8, 0 });
}

/* ---- models and inputs ------------------------------------------------------------------------------- */

struct input {
    int32_t tokens[N], labels[N], position[N], enc_tokens[S_ENC_MAX * B], enc_position[S_ENC_MAX * B],
        enc_key_length[B];
    float mask[N];
    double num_tokens;
};

/* A model and the directory of its reference numbers in tests/data/golden/models. */
struct tiny_t5 {
    const char *dir;
    struct hf_row (*hf_row_of)(const char *name, int64_t o);
    struct meg_model_conf conf;
    int s_enc;
};

static struct tiny_t5 learned(void)
{
    struct tiny_t5 t = { "t5-learned-tiny", core_row, tiny_gpt(2, 64, 128, 4, 64, 128), 32 };

    t.conf.family = MEG_FAMILY_T5;
    t.conf.decoder_num_layers = 2;
    return t;
}

static struct tiny_t5 relative(void)
{
    struct tiny_t5 t = learned();

    t.dir = "t5-relative-tiny";
    t.conf.position_embedding_type = MEG_POSITION_RELATIVE;
    t.conf.relative_attention_num_buckets = 8;
    t.conf.relative_attention_max_distance = 20;
    return t;
}

static struct tiny_t5 v1_1(void)
{
    struct tiny_t5 t = relative();

    t.dir = "t5-v1_1-tiny";
    t.hf_row_of = v1_1_row;
    t.conf.mlp.f = 96;
    t.conf.normalization = MEG_NORM_RMS;
    t.conf.norm_epsilon = 1e-6;
    t.conf.has_bias = false;
    t.conf.glu_activation = MEG_GLU_ACTIVATION_GEGLU;
    t.conf.openai_gelu = true;
    t.conf.is_untied = true;
    t.conf.attn.scale = 1;
    return t;
}

static struct tiny_t5 v1_0(void)
{
    struct tiny_t5 t = v1_1();

    t.dir = "t5-v1_0-tiny";
    t.hf_row_of = v1_0_row;
    t.conf.hidden_size = 48;
    t.conf.attn.d = 8;
    t.conf.mlp.f = 64;
    t.conf.vocab_size = 96;
    t.conf.glu_activation = MEG_GLU_ACTIVATION_NONE;
    t.conf.activation_func = MEG_ACTIVATION_FUNC_RELU;
    t.conf.is_untied = false;
    t.conf.logit_multiplier = 1 / sqrt(48);
    t.s_enc = 28;
    return t;
}

/* Return the row of a [b,s] tensor that corresponds to row r of an [s,b] tensor. */
static int batch_first(int r, int s)
{
    return r % B * s + r / B;
}

static void read_input(struct input *x, const char *dir)
{
    struct golden_file g = golden_open(in_dir(dir, "inputs.safetensors"));
    int64_t n;
    const int64_t *decoder = golden_tensor(&g, "text_dec", "I64", &n);
    const int64_t *labels = golden_tensor(&g, "labels", "I64", &n);
    const float *mask = golden_tensor(&g, "loss_mask", "F32", &n);
    const int64_t *encoder, *padding;
    int s_enc;

    assert_int_equal(n, N);
    encoder = golden_tensor(&g, "text_enc", "I64", &n);
    padding = golden_tensor(&g, "enc_padding_mask", "I64", &n);
    memset(x, 0, sizeof *x);
    s_enc = (int)n / B;
    for (int r = 0; r < N; r++) {
        x->tokens[r] = (int32_t)decoder[batch_first(r, S)];
        x->mask[r] = mask[batch_first(r, S)];
        x->labels[r] = x->mask[r] != 0 ? (int32_t)labels[batch_first(r, S)] : -1;
        x->position[r] = r / B;
        x->num_tokens += (double)x->mask[r];
    }
    for (int r = 0; r < n; r++) {
        x->enc_tokens[r] = (int32_t)encoder[batch_first(r, s_enc)];
        x->enc_position[r] = r / B;
        x->enc_key_length[r % B] += (int32_t)padding[batch_first(r, s_enc)];
    }
    golden_close(&g);
}

static struct meg_batch batch_of(struct input *x, const struct tiny_t5 *t)
{
    return (struct meg_batch){ .s = S,
                               .b = B,
                               .s_enc = t->s_enc,
                               .tokens = x->tokens,
                               .labels = x->labels,
                               .position_ids = x->position,
                               .loss_mask = x->mask,
                               .enc_tokens = x->enc_tokens,
                               .enc_position_ids = x->enc_position,
                               .enc_key_length = x->enc_key_length };
}

static struct meg_model *create(const struct tiny_t5 *t)
{
    const struct meg_model_run run = { .s = S, .s_enc = t->s_enc, .b = B, .is_training = true, .seed = 1 };

    return create_from_golden(&t->conf, &run, t->dir, t->hf_row_of);
}

/* ---- tests ------------------------------------------------------------------------------------------- */

/* Compare loss, logits of tokens that are not padding, and every gradient. */
static void check_model(const struct tiny_t5 *t)
{
    json_t *want = golden_json(in_dir(t->dir, "expected.json"));
    struct golden_file tensors = golden_open(in_dir(t->dir, "expected.safetensors"));
    struct meg_model *g = create(t);
    struct input in;
    struct meg_batch x = batch_of(&in, t);
    static float logits[N * V_MAX];
    const int64_t v = t->conf.vocab_size;
    const float *expected;
    double most, loss;
    int64_t n;

    read_input(&in, t->dir);
    expected = golden_tensor(&tensors, "logits", "F32", &n);
    most = 10 * number(json_object_get(want, "f32_vs_f64_output_max_abs"), "logits");
    meg_model_logits(g, &x, logits);
    for (int r = 0; r < N; r++)
        for (int k = 0; k < v && in.mask[r] != 0; k++)
            close_to(logits[r * v + k], expected[batch_first(r, S) * v + k], most, "logit");
    meg_model_zero_grads(g);
    loss = meg_model_forward_backward(g, &x, 1 / in.num_tokens) / in.num_tokens;
    close_to(loss, number(want, "loss_f64"), 1e-6 * number(want, "loss_f64"), "loss");
    check_gradients(g, &tensors, json_object_get(want, "grads"), t->hf_row_of);
    close_to(grad_norm(g), number(want, "grad_global_norm"), 1e-6 * number(want, "grad_global_norm"), "gradient norm");
    meg_model_close(g);
    golden_close(&tensors);
    json_decref(want);
}

static void loss_logits_and_every_gradient(void **state)
{
    const struct tiny_t5 models[] = { learned(), relative(), v1_1(), v1_0() };

    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        check_model(&models[i]);
}

static void loss_under_other_options(void **state)
{
    struct tiny_t5 models[] = { learned(), relative() };

    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct tiny_t5 *t = &models[i];
        json_t *want = golden_json(in_dir(t->dir, "expected.json")), *variants = json_object_get(want, "variants"), *v;
        struct meg_model *g;
        struct input in;
        struct meg_batch x = batch_of(&in, t);
        double loss;

        t->conf.bias_gelu_fusion = false;
        g = create(t);
        read_input(&in, t->dir);
        assert_int_equal(json_array_size(variants), 1);
        v = json_array_get(variants, 0);
        assert_string_equal(json_string_value(json_object_get(v, "name")), "no-bias-gelu-fusion");
        loss = meg_model_forward_backward(g, &x, 1 / in.num_tokens) / in.num_tokens;
        close_to(loss, number(v, "loss_f64"), 1e-6 * loss, "loss");
        close_to(grad_norm(g), number(v, "grad_global_norm_f64"), 1e-5 * number(v, "grad_global_norm_f64"), "norm");
        meg_model_close(g);
        json_decref(want);
    }
}

/* A batch and the number of its tokens with a loss. */
struct counted_batch {
    struct meg_batch x;
    double num_tokens;
};

static double mean_loss_pass(struct meg_model *g, void *batch)
{
    const struct counted_batch *b = batch;

    meg_model_zero_grads(g);
    return meg_model_forward_backward(g, &b->x, 1 / b->num_tokens) / b->num_tokens;
}

static void five_steps_of_adamw(void **state)
{
    const struct tiny_t5 models[] = { learned(), relative(), v1_1(), v1_0() };

    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const struct tiny_t5 *t = &models[i];
        struct meg_model *g = create(t);
        struct input in;
        struct counted_batch b = { batch_of(&in, t), 0 };

        read_input(&in, t->dir);
        b.num_tokens = in.num_tokens;
        check_five_steps(g, t->dir, mean_loss_pass, &b, t->hf_row_of);
        meg_model_close(g);
    }
}

/* A model loaded from a checkpoint directory in Hugging Face format has the loss of the reference. */
static void losses_of_the_loaded_folders(void **state)
{
    const struct tiny_t5 models[] = { v1_1(), v1_0() };

    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const struct tiny_t5 *t = &models[i];
        const struct meg_model_run run = { .s = S, .s_enc = t->s_enc, .b = B, .is_training = true, .seed = 1 };
        json_t *want = golden_json(in_dir(t->dir, "expected.json"));
        struct meg_ckpt_shard w;
        struct meg_model_conf c;
        struct meg_ckpt *ckpt;
        struct meg_model *g = NULL;
        struct input in;
        struct counted_batch b = { batch_of(&in, t), 0 };
        struct meg_err e;

        if (meg_ckpt_open(&ckpt, golden(in_dir(t->dir, "")), MEG_UNSET, &e) < 0 ||
            meg_ckpt_model_conf(ckpt, &c, &e) < 0 ||
            meg_model_create(&g, &c, &run, golden_device(), &meg_mesh_one, &e) < 0)
            fail_msg("%s", e.msg);
        w = (struct meg_ckpt_shard){ .data = g->w, .device = g->device };
        if (meg_ckpt_load(ckpt, &g->params, &meg_mesh_one, &w, 1, &e) < 0)
            fail_msg("%s", e.msg);
        read_input(&in, t->dir);
        b.num_tokens = in.num_tokens;
        close_to(mean_loss_pass(g, &b), number(want, "loss_f64"), 1e-6 * number(want, "loss_f64"), "loss");
        meg_model_close(g);
        meg_ckpt_close(ckpt);
        json_decref(want);
    }
}

/* ---- decoding with a KV cache ------------------------------------------------------------------------ */

/* A sequence of a batch: the tokens of the encoder, without padding, and of the decoder. */
struct sequence {
    int32_t encoder[S_ENC_MAX], decoder[S];
    int64_t s_enc;
};

static struct sequence sequence_of(const struct input *x, int i)
{
    struct sequence q = { .s_enc = x->enc_key_length[i] };

    for (int64_t t = 0; t < q.s_enc; t++)
        q.encoder[t] = x->enc_tokens[t * B + i];
    for (int t = 0; t < S; t++)
        q.decoder[t] = x->tokens[t * B + i];
    return q;
}

static struct meg_model *create_for_inference(const struct tiny_t5 *t)
{
    const struct meg_model_run run = { .s = 1, .s_enc = 1, .b = 1, .positions = 1 };

    return create_from_golden(&t->conf, &run, t->dir, t->hf_row_of);
}

/* Compute the logits [S,v] of a sequence without a cache. */
static void complete_logits(struct meg_model *g, const struct sequence *q, float *logits)
{
    struct sequence copy = *q;
    int32_t position[S_ENC_MAX];
    struct meg_err e;

    for (int i = 0; i < S_ENC_MAX; i++)
        position[i] = i;
    assert_int_equal(meg_model_reserve(g, S_ENC_MAX, S_ENC_MAX, &e), 0);
    meg_model_logits(g,
                     &(struct meg_batch){ .s = S,
                                          .b = 1,
                                          .s_enc = q->s_enc,
                                          .tokens = copy.decoder,
                                          .position_ids = position,
                                          .enc_tokens = copy.encoder,
                                          .enc_position_ids = position },
                     logits);
}

static void logits_close(const float *got, const float *want, int64_t v, double most)
{
    for (int64_t k = 0; k < v; k++)
        close_to((double)got[k], (double)want[k], most, "logit");
}

static const struct meg_decode_conf returns_logits = { .returns_logits = true };

/*
 * Decode two sequences, whose encoder inputs and prefilled prefixes have different lengths.  Then decode the second
 * one alone, in the slot of the first, whose memory is reused.
 */
static void check_decoding(const struct tiny_t5 *t)
{
    json_t *want = golden_json(in_dir(t->dir, "expected.json"));
    const double most = 10 * number(json_object_get(want, "f32_vs_f64_output_max_abs"), "logits");
    const int64_t v = t->conf.vocab_size, slots[] = { 2, 0 };
    struct meg_model *g = create_for_inference(t), *complete = create_for_inference(t);
    struct meg_model_kv_cache *cache = meg_model_kv_cache_create(g, 3, &returns_logits);
    static float all[2][S * V_MAX], other[V_MAX];
    struct meg_decode_output step;
    struct sequence q[2];
    struct input in;
    struct meg_err e;

    read_input(&in, t->dir);
    for (int i = 0; i < 2; i++) {
        q[i] = sequence_of(&in, i);
        complete_logits(complete, &q[i], all[i]);
    }
    assert_true(q[0].s_enc != q[1].s_enc);
    assert_int_equal(meg_model_encode(g, cache, 2, q[0].encoder, q[0].s_enc, &e), 0);
    assert_int_equal(meg_model_prefill(g, cache,
                                       &(struct meg_prefill){ .slot = 2, .tokens = q[0].decoder, .n = 3, .s = S },
                                       &step, &e),
                     0);
    logits_close(step.logits, all[0] + 2 * v, v, most);
    assert_int_equal(meg_model_encode(g, cache, 0, q[1].encoder, q[1].s_enc, &e), 0);
    assert_int_equal(meg_model_prefill(g, cache,
                                       &(struct meg_prefill){ .slot = 0, .tokens = q[1].decoder, .n = 1, .s = S }, NULL,
                                       &e),
                     0);
    for (int k = 1; k < S - 2; k++) {
        step = meg_model_decode(g, cache, slots, (int32_t[]){ q[0].decoder[2 + k], q[1].decoder[k] }, 2, NULL);
        logits_close(step.logits, all[0] + (2 + k) * v, v, most);
        logits_close(step.logits + v, all[1] + k * v, v, most);
    }
    assert_int_equal(meg_model_kv_cache_len(cache, 2), S);
    memcpy(other, step.logits + v, (size_t)v * sizeof *other);
    assert_int_equal(meg_model_encode(g, cache, 2, q[1].encoder, q[1].s_enc, &e), 0);
    assert_int_equal(meg_model_prefill(g, cache,
                                       &(struct meg_prefill){ .slot = 2, .tokens = q[1].decoder, .n = 1, .s = S }, NULL,
                                       &e),
                     0);
    for (int k = 1; k < S - 2; k++)
        step = meg_model_decode(g, cache, slots, &q[1].decoder[k], 1, NULL);
    assert_memory_equal(step.logits, other, (size_t)v * sizeof *other);
    meg_model_kv_cache_close(cache);
    meg_model_close(complete);
    meg_model_close(g);
    json_decref(want);
}

static void a_kv_cache_does_not_change_the_logits(void **state)
{
    struct tiny_t5 models[] = { learned(), relative(), v1_1(), v1_0(), learned() };

    (void)state;
    models[4].conf.position_embedding_type = MEG_POSITION_ROPE;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        check_decoding(&models[i]);
}

static void greedy_tokens_equal_those_of_hugging_face(void **state)
{
    const struct tiny_t5 t = v1_0();
    json_t *want = golden_json(in_dir(t.dir, "expected.json")), *one;
    struct meg_model *g = create_for_inference(&t);
    struct meg_model_kv_cache *cache = meg_model_kv_cache_create(g, 1, &returns_logits);
    struct meg_decode_output out;
    struct input in;
    struct meg_err e;
    size_t i;

    (void)state;
    read_input(&in, t.dir);
    json_array_foreach(json_object_get(want, "generate"), i, one)
    {
        const struct sequence q = sequence_of(&in, (int)number(one, "encoder_row"));
        const json_t *tokens = json_object_get(one, "greedy_tokens"),
                     *logprobs = json_object_get(one, "greedy_logprobs");
        const size_t n = json_array_size(tokens);
        int32_t id = (int32_t)number(one, "decoder_start");

        assert_int_equal(meg_model_encode(g, cache, 0, q.encoder, q.s_enc, &e), 0);
        assert_int_equal(meg_model_prefill(g, cache,
                                           &(struct meg_prefill){ .slot = 0, .tokens = &id, .n = 1, .s = (int64_t)n },
                                           &out, &e),
                         0);
        for (size_t k = 0; k < n; k++) {
            if (k > 0)
                out = meg_model_decode(g, cache, (int64_t[]){ 0 }, &id, 1, NULL);
            id = meg_most_likely(out.logits, t.conf.vocab_size);
            assert_int_equal(id, json_integer_value(json_array_get(tokens, k)));
            close_to((double)out.logits[id] - meg_logsumexp(out.logits, t.conf.vocab_size),
                     json_number_value(json_array_get(logprobs, k)), 1e-5, "log-probability");
        }
    }
    assert_int_equal(i, 2);
    meg_model_kv_cache_close(cache);
    meg_model_close(g);
    json_decref(want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_logits_and_every_gradient),
        cmocka_unit_test(loss_under_other_options),
        cmocka_unit_test(five_steps_of_adamw),
        cmocka_unit_test(losses_of_the_loaded_folders),
        cmocka_unit_test(a_kv_cache_does_not_change_the_logits),
        cmocka_unit_test(greedy_tokens_equal_those_of_hugging_face),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
