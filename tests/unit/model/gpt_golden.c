/*
 * gpt_golden.c - gpt2-tiny, llama-tiny and qwen3-tiny against independent float64 implementations
 * (golden/models/README.md): loss, logits, every gradient, and the loss and gradient norm under other options.  The
 * tolerances of logits and gradients are ten times the error of the reference's own float32 run.
 */
#include "golden_model.h"
#include "tiny_gpt.h"

enum { S = 32, B = 2, N = S * B, V = 128, H = 64, A = 4, D = H / A };

struct input {
    int32_t tokens[N], labels[N], position[N], position_reset[N], doc_start[N];
    float mask[N], mask_eod[N];
};

static struct meg_model_conf gpt2(void)
{
    return tiny_gpt(2, H, 4 * H, A, 64, V);
}

static struct meg_model_conf llama(void)
{
    struct meg_model_conf c = tiny_gpt(2, H, 160, A, 64, V);

    c.group_query_attention = true;
    c.attn.g = 2;
    c.position_embedding_type = MEG_POSITION_ROPE;
    c.normalization = MEG_NORM_RMS;
    c.swiglu = c.is_untied = true;
    c.has_bias = false;
    return c;
}

static struct meg_model_conf qwen3(void)
{
    struct meg_model_conf c = tiny_gpt(2, 48, 96, A, 64, 96);

    c.attn.d = D;
    c.group_query_attention = true;
    c.attn.g = 2;
    c.position_embedding_type = MEG_POSITION_ROPE;
    c.rotary.base = 1e6;
    c.normalization = MEG_NORM_RMS;
    c.norm_epsilon = 1e-6;
    c.attn.qk_layernorm = c.swiglu = c.is_untied = true;
    c.has_bias = false;
    return c;
}

/* Return the row of a [b,s] tensor that corresponds to row r of an [s,b] tensor. */
static int hf_token(int r)
{
    return r % B * S + r / B;
}

static void read_input(struct input *x, const char *dir)
{
    struct golden_file g = golden_open(in_dir(dir, "inputs.safetensors"));
    int64_t n;
    const int64_t *tokens = golden_tensor(&g, "tokens", "I64", &n), *labels = golden_tensor(&g, "labels", "I64", &n);
    const float *mask = golden_tensor(&g, "loss_mask", "F32", &n);

    assert_int_equal(n, N);
    for (int r = 0; r < N; r++) {
        x->tokens[r] = (int32_t)tokens[hf_token(r)];
        x->labels[r] = (int32_t)labels[hf_token(r)];
        x->position[r] = r / B;
        x->mask[r] = mask[hf_token(r)];
    }
    golden_close(&g);
}

/* Return a batch over the arrays of x, without documents and dropout. */
static struct meg_batch batch_of(struct input *x)
{
    struct meg_batch b = { .s = S, .b = B, .tokens = x->tokens, .labels = x->labels };

    b.position_ids = x->position;
    b.loss_mask = x->mask;
    return b;
}

/* Read masks and positions of gpt2-tiny as made by --reset-position-ids, --reset-attention-mask and --eod-mask-loss. */
static void read_documents(struct input *x)
{
    struct golden_file g = golden_open(in_dir("gpt2-tiny", "inputs.safetensors"));
    int64_t n;
    const int64_t *reset = golden_tensor(&g, "position_ids_reset", "I64", &n);
    const float *mask_eod = golden_tensor(&g, "loss_mask_eod", "F32", &n);
    const int32_t *allowed = golden_tensor(&g, "attention_allowed_reset", "I32", &n);

    assert_int_equal(n, B * S * S);
    for (int r = 0; r < N; r++) {
        const int32_t *row = allowed + (r % B * S + r / B) * S;
        int first = 0;

        x->position_reset[r] = (int32_t)reset[hf_token(r)];
        x->mask_eod[r] = mask_eod[hf_token(r)];
        while (!row[first])
            first++;
        for (int j = 0; j < S; j++)
            assert_int_equal(row[j], j >= first && j <= r / B);
        x->doc_start[r] = first;
    }
    golden_close(&g);
}

static struct meg_model *tiny(const char *dir, struct meg_model_conf c)
{
    const struct meg_model_run run = { .s = S, .b = B, .is_training = true, .seed = 1 };
    struct golden_file w = golden_open(in_dir(dir, "mcore.safetensors"));
    struct meg_model *g;
    struct meg_err e;
    float *host;

    if (meg_model_conf_check(&c, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(meg_model_create(&g, &c, &run, golden_device(), &meg_mesh_one, &e), 0);
    host = meg_new((size_t)g->params.flat_numel * sizeof *host);
    for (int i = 0; i < g->params.n; i++) {
        const struct meg_param *row = &g->params.row[i];
        int64_t n;
        const void *p = golden_tensor(&w, row->name, "F32", &n);

        assert_int_equal(n, row->numel);
        memcpy(host + row->offset, p, (size_t)n * sizeof *host);
    }
    set_weights(g, host);
    free(host);
    assert_int_equal(json_object_size(w.header), g->params.n + (json_object_get(w.header, "__metadata__") != NULL));
    golden_close(&w);
    return g;
}

static double mask_sum(const float *mask)
{
    double sum = 0;

    for (int r = 0; r < N; r++)
        sum += mask[r];
    return sum;
}

/* Names of a tensor without the layer prefix. */
struct name {
    const char *megatron, *hf;
};

static const char *hf_name(const struct name *names, const char *megatron)
{
    for (; names->megatron; names++)
        if (!strcmp(names->megatron, megatron))
            return names->hf;
    fail_msg("no Hugging Face name for %s", megatron);
    return NULL;
}

/* Split "decoder.layers.N.REST" into N and REST, other names into -1 and themselves. */
static const char *split_layer(const char *name, int *layer)
{
    int n = 0;

    *layer = -1;
    return sscanf(name, "decoder.layers.%d.%n", layer, &n) == 1 ? name + n : name;
}

static struct hf_row gpt2_row(const char *name, int64_t o)
{
    static const struct name names[] = {
        { "embedding.word_embeddings.weight", "wte.weight" },
        { "embedding.position_embeddings.weight", "wpe.weight" },
        { "input_layernorm.weight", "ln_1.weight" },
        { "input_layernorm.bias", "ln_1.bias" },
        { "self_attention.linear_qkv.weight", "attn.c_attn.weight" },
        { "self_attention.linear_qkv.bias", "attn.c_attn.bias" },
        { "self_attention.linear_proj.weight", "attn.c_proj.weight" },
        { "self_attention.linear_proj.bias", "attn.c_proj.bias" },
        { "pre_mlp_layernorm.weight", "ln_2.weight" },
        { "pre_mlp_layernorm.bias", "ln_2.bias" },
        { "mlp.linear_fc1.weight", "mlp.c_fc.weight" },
        { "mlp.linear_fc1.bias", "mlp.c_fc.bias" },
        { "mlp.linear_fc2.weight", "mlp.c_proj.weight" },
        { "mlp.linear_fc2.bias", "mlp.c_proj.bias" },
        { "decoder.final_layernorm.weight", "ln_f.weight" },
        { "decoder.final_layernorm.bias", "ln_f.bias" },
        { 0 },
    };
    struct hf_row p = { .row = o };
    int layer;
    const char *rest = split_layer(name, &layer);

    if (layer >= 0)
        snprintf(p.name, sizeof p.name, "transformer.h.%d.%s", layer, hf_name(names, rest));
    else
        snprintf(p.name, sizeof p.name, "transformer.%s", hf_name(names, rest));
    p.is_column = strstr(rest, "linear_") && strstr(rest, ".weight");
    if (strstr(rest, "linear_qkv")) /* q, k, v by head; Hugging Face: all q, all k, all v */
        p.row = o / D % 3 * H + o / (3 * D) * D + o % D;
    return p;
}

/* Llama and Qwen3; f is the inner width of the MLP. */
static struct hf_row gated_row(const char *name, int64_t o, int64_t f)
{
    static const struct name names[] = {
        { "embedding.word_embeddings.weight", "model.embed_tokens.weight" },
        { "input_layernorm.weight", "input_layernorm.weight" },
        { "self_attention.linear_proj.weight", "self_attn.o_proj.weight" },
        { "self_attention.q_layernorm.weight", "self_attn.q_norm.weight" },
        { "self_attention.k_layernorm.weight", "self_attn.k_norm.weight" },
        { "pre_mlp_layernorm.weight", "post_attention_layernorm.weight" },
        { "mlp.linear_fc2.weight", "mlp.down_proj.weight" },
        { "decoder.final_layernorm.weight", "model.norm.weight" },
        { "output_layer.weight", "lm_head.weight" },
        { 0 },
    };
    enum { PER = A / 2 + 2 }; /* heads per group: the queries of the group, a key, a value */
    struct hf_row p = { .row = o };
    int layer;
    const char *rest = split_layer(name, &layer), *part;

    if (layer < 0) {
        snprintf(p.name, sizeof p.name, "%s", hf_name(names, rest));
        return p;
    }
    if (strstr(rest, "linear_qkv")) {
        const int64_t group = o / (PER * D), head = o / D % PER;

        part = head < PER - 2    ? "self_attn.q_proj.weight"
               : head == PER - 2 ? "self_attn.k_proj.weight"
                                 : "self_attn.v_proj.weight";
        p.row = (head < PER - 2 ? group * (PER - 2) + head : group) * D + o % D;
    } else if (strstr(rest, "linear_fc1")) {
        part = o < f ? "mlp.gate_proj.weight" : "mlp.up_proj.weight";
        p.row = o % f;
    } else {
        part = hf_name(names, rest);
    }
    snprintf(p.name, sizeof p.name, "model.layers.%d.%s", layer, part);
    return p;
}

static struct hf_row llama_row(const char *name, int64_t o)
{
    return gated_row(name, o, llama().mlp.f);
}

static struct hf_row qwen3_row(const char *name, int64_t o)
{
    return gated_row(name, o, qwen3().mlp.f);
}

/* Check a model with v tokens in its vocabulary, and close it. */
static void check_model(struct meg_model *g, const char *dir, int64_t v, struct hf_row hf_row_of(const char *, int64_t))
{
    json_t *want = golden_json(in_dir(dir, "expected.json"));
    struct golden_file tensors = golden_open(in_dir(dir, "expected.safetensors"));
    struct input in;
    struct meg_batch x = batch_of(&in);
    const double loss = number(want, "loss_f64");
    static float logits[N * V];
    const float *expected;
    double most, den;
    int64_t n;

    read_input(&in, dir);
    den = mask_sum(in.mask);
    close_to(meg_model_loss(g, &x, NULL) / den, loss, 1e-6 * loss, "loss");

    meg_model_logits(g, &x, logits);
    expected = golden_tensor(&tensors, "logits", "F32", &n);
    most = 10 * number(json_object_get(want, "f32_vs_f64_output_max_abs"), "logits");
    for (int r = 0; r < N; r++)
        for (int64_t i = 0; i < v; i++)
            close_to(logits[r * v + i], expected[hf_token(r) * v + i], most, "logit");

    close_to(meg_model_forward_backward(g, &x, 1 / den) / den, loss, 1e-6 * loss, "loss while training");
    check_gradients(g, &tensors, json_object_get(want, "grads"), hf_row_of);
    close_to(grad_norm(g), number(want, "grad_global_norm"), 1e-6 * number(want, "grad_global_norm"), "gradient norm");
    meg_model_close(g);
    golden_close(&tensors);
    json_decref(want);
}

/* Run forward and backward of a batch, and return its mean loss. */
static double train_pass(struct meg_model *g, void *x)
{
    const struct meg_batch *batch = x;
    const double den = mask_sum(batch->loss_mask);

    return meg_model_forward_backward(g, batch, 1 / den) / den;
}

static void llama_five_steps(void **state)
{
    struct meg_model *g = tiny("llama-tiny", llama());
    struct input in;
    struct meg_batch x = batch_of(&in);

    (void)state;
    read_input(&in, "llama-tiny");
    check_five_steps(g, "llama-tiny", train_pass, &x, llama_row);
    meg_model_close(g);
}

static void gpt2_loss_logits_and_every_gradient(void **state)
{
    (void)state;
    check_model(tiny("gpt2-tiny", gpt2()), "gpt2-tiny", V, gpt2_row);
}

static void llama_loss_logits_and_every_gradient(void **state)
{
    (void)state;
    check_model(tiny("llama-tiny", llama()), "llama-tiny", V, llama_row);
}

static void qwen3_loss_logits_and_every_gradient(void **state)
{
    const struct meg_model_run run = { .s = S, .b = B, .is_training = true, .seed = 1 };
    const struct meg_model_conf c = qwen3();

    (void)state;
    check_model(create_from_golden(&c, &run, "qwen3-tiny", qwen3_row), "qwen3-tiny", c.vocab_size, qwen3_row);
}

/* Check loss and gradient norm under the settings of a variant. */
static void check_variant(const char *dir, const char *name, struct meg_model_conf c, const struct meg_batch *x)
{
    json_t *want = golden_json(in_dir(dir, "expected.json")), *v;
    struct meg_model *g = tiny(dir, c);
    const double den = mask_sum(x->loss_mask);
    size_t k;
    int found = 0;

    json_array_foreach(json_object_get(want, "variants"), k, v)
    {
        if (strcmp(json_string_value(json_object_get(v, "name")), name))
            continue;
        found++;
        close_to(meg_model_forward_backward(g, x, 1 / den) / den, number(v, "loss_f64"), 1e-6 * number(v, "loss_f64"),
                 name);
        close_to(grad_norm(g), number(v, "grad_global_norm_f64"), 1e-5 * number(v, "grad_global_norm_f64"), name);
    }
    assert_int_equal(found, 1);
    meg_model_close(g);
    json_decref(want);
}

static void gpt2_under_other_options(void **state)
{
    static const struct {
        const char *name;
        bool has_mask, has_positions, has_documents;
    } masks[] = {
        { "eod-mask-loss", true, false, false },
        { "reset-position-ids", false, true, false },
        { "reset-attention-mask", false, false, true },
        { "all-three", true, true, true },
    };
    struct input in;
    struct meg_model_conf c = gpt2();
    struct meg_batch x = batch_of(&in);

    (void)state;
    read_input(&in, "gpt2-tiny");
    read_documents(&in);
    c.bias_gelu_fusion = false;
    check_variant("gpt2-tiny", "exact-gelu", c, &x);
    c = gpt2();
    c.norm_epsilon = 1e-2;
    check_variant("gpt2-tiny", "eps-1e-2", c, &x);
    c = gpt2();
    c.attn.window_size = "8,0";
    check_variant("gpt2-tiny", "window-8", c, &x);
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        x.loss_mask = masks[i].has_mask ? in.mask_eod : in.mask;
        x.position_ids = masks[i].has_positions ? in.position_reset : in.position;
        x.doc_start = masks[i].has_documents ? in.doc_start : NULL;
        check_variant("gpt2-tiny", masks[i].name, gpt2(), &x);
    }
}

static void llama_under_other_options(void **state)
{
    struct input in;
    struct meg_model_conf c = llama();
    const struct meg_batch x = batch_of(&in);

    (void)state;
    read_input(&in, "llama-tiny");
    c.rotary.percent = 0.5;
    check_variant("llama-tiny", "rotary-percent-0.5", c, &x);
    c = llama();
    c.rotary.base = 500000;
    check_variant("llama-tiny", "rotary-base-500000", c, &x);
    c = llama();
    c.rotary.is_interleaved = true;
    check_variant("llama-tiny", "rotary-interleaved", c, &x);
    c = llama();
    c.rotary.interpolation = 4;
    check_variant("llama-tiny", "rotary-interp-4", c, &x);
    c = llama();
    c.rotary.is_scaled = true;
    check_variant("llama-tiny", "rope-scaling-llama3", c, &x);
    c = llama();
    c.attn.window_size = "8,0";
    check_variant("llama-tiny", "window-8", c, &x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_loss_logits_and_every_gradient),
        cmocka_unit_test(gpt2_under_other_options),
        cmocka_unit_test(llama_loss_logits_and_every_gradient),
        cmocka_unit_test(llama_under_other_options),
        cmocka_unit_test(llama_five_steps),
        cmocka_unit_test(qwen3_loss_logits_and_every_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
