/* Import and export of Hugging Face Llama, Mistral and Qwen2 checkpoints: round trips, settings, refusals. */
#include "ckpt_fixture.h"

/* Create a Llama of 2 layers and 4 heads in 2 query groups; tune, unless NULL, modifies its configuration. */
static void make_llama(struct ckpt_fixture *b, int seed, void (*tune)(struct meg_model_conf *m))
{
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, &b->m }, { 0 } };
    struct meg_err e;

    memset(b, 0, sizeof *b);
    meg_opt_defaults(groups);
    b->m.num_layers = 2;
    b->m.hidden_size = 16;
    b->m.mlp.f = 6;
    b->m.attn.a = 4;
    b->m.group_query_attention = true;
    b->m.attn.g = 2;
    b->m.max_position_embeddings = 8;
    b->m.vocab_size = 11;
    b->m.position_embedding_type = MEG_POSITION_ROPE;
    b->m.normalization = MEG_NORM_RMS;
    b->m.swiglu = true;
    b->m.has_bias = false;
    b->m.is_untied = true;
    b->m.attn.dropout = b->m.hidden_dropout = 0;
    if (tune)
        tune(&b->m);
    if (meg_model_conf_check(&b->m, &e) < 0)
        fail_msg("%s", e.msg);
    meg_model_params(&b->p, &b->m, &meg_mesh_one);
    b->w = new_params(&b->p, seed);
}

static void unchanged(struct meg_model_conf *m)
{
    m->rotary.base = 500000;
}

static void tied_llama3(struct meg_model_conf *m)
{
    m->is_untied = false;
    m->rotary.is_scaled = true;
    m->rotary.scaling_factor = 32;
    m->norm_epsilon = 1e-6;
}

static void wide_heads_interpolated(struct meg_model_conf *m)
{
    m->attn.d = 8;
    m->rotary.interpolation = 2;
}

static void all_biases(struct meg_model_conf *m)
{
    m->has_bias = true;
}

static void attention_biases(struct meg_model_conf *m)
{
    m->add_qkv_bias = m->add_proj_bias = true;
}

static void mlp_biases(struct meg_model_conf *m)
{
    m->add_mlp_bias = true;
}

static void qwen(struct meg_model_conf *m)
{
    m->add_qkv_bias = true;
    m->group_query_attention = false;
    m->attn.g = MEG_UNSET;
}

static void qwen3(struct meg_model_conf *m)
{
    m->attn.qk_layernorm = true;
}

static void llama_round_trip_is_bit_identical(void **state)
{
    static const struct {
        void (*tune)(struct meg_model_conf *m);
        const char *config; /* strings expected in config.json, separated by | */
    } variant[] = {
        { unchanged, "\"LlamaForCausalLM\"|\"rope_theta\": 500000.0|\"rope_scaling\": null" },
        { tied_llama3, "\"rope_type\": \"llama3\"|\"factor\": 32.0|\"rms_norm_eps\": 1e-06" },
        { wide_heads_interpolated, "\"head_dim\": 8|\"linear\"|\"factor\": 2.0" },
        { all_biases, "\"attention_bias\": true|\"mlp_bias\": true" },
        { attention_biases, "\"llama\"|\"attention_bias\": true|\"mlp_bias\": false" },
        { mlp_biases, "\"llama\"|\"attention_bias\": false|\"mlp_bias\": true" },
        { qwen, "\"Qwen2ForCausalLM\"|\"qwen2\"|\"num_key_value_heads\": 4" },
        { qwen3, "\"Qwen3ForCausalLM\"|\"qwen3\"|\"attention_bias\": false" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof variant / sizeof *variant; i++) {
        struct meg_str config;
        struct ckpt_fixture a, b;
        struct meg_ckpt *c;
        struct meg_err e;

        make_llama(&a, 1, variant[i].tune);
        make_llama(&b, 2, variant[i].tune);
        export_hf_ok(&a, "out");
        config = read_bytes("out/config.json");
        assert_contains(config.s, variant[i].config);
        c = open_ok("out", MEG_UNSET);
        if (meg_ckpt_model_conf(c, &b.m, &e) < 0 || load_f32_weights(c, &b.p, b.w, &e) < 0)
            fail_msg("%s", e.msg);
        assert_memory_equal(a.w, b.w, (size_t)a.p.flat_numel * 4);
        assert_same_options(&a.m, &b.m);
        meg_ckpt_close(c);
        meg_str_free(&config);
        free_fixture(&a);
        free_fixture(&b);
    }
}

/* config.json of a small model with a model_type; `more` follows the required members. */
#define CONFIG(type, more)                                                                                             \
    "{\"model_type\":\"" type "\",\"num_hidden_layers\":2,\"hidden_size\":16,"                                         \
    "\"intermediate_size\":6,\"num_attention_heads\":4,\"num_key_value_heads\":2,"                                     \
    "\"max_position_embeddings\":8,\"vocab_size\":11" more "}"
#define LLAMA(more) CONFIG("llama", more)

static void accepts_equivalent_settings(void **state)
{
    static const char *const good[] = {
        LLAMA(""),
        LLAMA(",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000}"),
        LLAMA(",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4},\"head_dim\":null"),
        LLAMA(",\"eos_token_id\":[7,9],\"partial_rotary_factor\":1.0"),
        LLAMA(",\"rope_scaling\":{\"rope_type\":\"longrope\",\"long_factor\":[1,2.5],\"short_factor\":[1,1.5],"
              "\"original_max_position_embeddings\":4}"),
        CONFIG("mistral", ",\"sliding_window\":null"),
        CONFIG("mistral", ""),
        CONFIG("mistral", ",\"sliding_window\":7"),
        CONFIG("ministral", ",\"sliding_window\":7,\"layer_types\":[\"full_attention\",\"sliding_attention\"]"),
        CONFIG("mistral", ",\"sliding_window\":8"),
    };
    struct ckpt_fixture b;
    struct meg_err e;

    (void)state;
    make_llama(&b, 1, NULL);
    export_hf_ok(&b, "set");
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct meg_ckpt *c;

        if (open_with_config(good[i], &c, &e) < 0)
            fail_msg("%s: %s", good[i], e.msg);
        assert_int_equal(meg_ckpt_eod(c), i == 3 ? 7 : -1);
        meg_ckpt_close(c);
    }
    free_fixture(&b);
}

static void refuses_unsupported_llama_settings(void **state)
{
    static const struct {
        const char *config, *message;
    } bad[] = {
        { LLAMA(",\"hidden_act\":\"gelu\""), "hidden_act is \"gelu\", but only \"silu\"" },
        { LLAMA(",\"hidden_act\":0"), "hidden_act is 0, but only \"silu\"" },
        { LLAMA(",\"attention_bias\":true"), "8 missing|model.layers.0.self_attn.q_proj.bias" },
        { LLAMA(",\"partial_rotary_factor\":0.5"), "partial_rotary_factor is 0.5|only 1" },
        { LLAMA(",\"rope_scaling\":{\"type\":\"linear\",\"factor\":\"2\"}"), "\"factor\"" },
        { LLAMA(",\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":2}"), "dynamic|yarn or longrope" },
        { LLAMA(",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2}"), "\"original_max_position_embeddings\" is" },
        { LLAMA(",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"original_max_position_embeddings\":4,"
                "\"high_freq_factor\":1}"),
          "--rope-scaling-high-freq-factor 1: must be above" },
        { LLAMA(",\"rope_scaling\":{\"rope_type\":\"llama3\"}"), "\"factor\" is missing" },
        { LLAMA(",\"tie_word_embeddings\":true"), "lm_head.weight differs from the word embedding" },
        { LLAMA(",\"head_dim\":8"), "layers.0.self_attn.q_proj.weight has shape [16,16], expected [32,16]" },
        { CONFIG("mistral", ",\"sliding_window\":1"), "sliding_window is 1, expected null or from 2" },
        { CONFIG("mistral", ",\"sliding_window\":\"8\""), "\"sliding_window\"" },
        { CONFIG("qwen2", ",\"layer_types\":[\"full_attention\"]"),
          "layer_types has 1 elements, expected one for each of 2" },
        { CONFIG("qwen2", ",\"layer_types\":[\"full_attention\",\"linear_attention\"]"),
          "layer_types: layer 1 is linear_attention, but only full_attention and sliding_attention" },
        { CONFIG("qwen2", ",\"use_sliding_window\":false,\"sliding_window\":5"), "6 missing" },
        { CONFIG("qwen2", ""), "6 missing|model.layers.0.self_attn.q_proj.bias" },
        { CONFIG("qwen3", ",\"head_dim\":4,\"attention_bias\":true"), "attention_bias is true|only false" },
        { CONFIG("qwen3", ""), "q_proj.weight has shape [16,16], expected [512,16]" }, /* a head has 128 channels */
        { CONFIG("qwen3", ",\"head_dim\":4"), "4 missing|model.layers.0.self_attn.q_norm.weight" },
        { CONFIG("qwen4", ""), "model_type qwen4|gpt2, llama, mistral, qwen2, qwen3" },
    };
    struct ckpt_fixture b;

    (void)state;
    make_llama(&b, 1, NULL);
    export_hf_ok(&b, "set");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_config_refused(bad[i].config, bad[i].message);
    free_fixture(&b);
}

static void learned(struct meg_model_conf *m)
{
    m->position_embedding_type = MEG_POSITION_LEARNED;
}

static void refuses_to_export_what_llama_cannot_express(void **state)
{
    static const struct {
        void (*tune)(struct meg_model_conf *m);
        const char *message;
    } bad[] = {
        { learned,
          "Hugging Face's llama format|--position-embedding-type learned_absolute would be read as rope; use" },
    };
    struct ckpt_fixture b;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        make_llama(&b, 1, bad[i].tune);
        assert_export_refused(&b, bad[i].message);
        free_fixture(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_round_trip_is_bit_identical),
        cmocka_unit_test(accepts_equivalent_settings),
        cmocka_unit_test(refuses_unsupported_llama_settings),
        cmocka_unit_test(refuses_to_export_what_llama_cannot_express),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
