/*
 * llama.c - Hugging Face's Llama, Mistral and Qwen2 models, which have the same tensor names and layouts.
 *
 * Qwen2 has biases of queries, keys and values.  Weights of linear layers are [out, in].  RoPE pairs channel i of a
 * head with channel i + head_dim / 2, as meg does without --rotary-interleaved.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "ckpt/hf/internal.h"
#include "io/json.h"

#define NATIVE "decoder.layers.#."
#define FOREIGN "model.layers.#."
/* clang-format off */
static const struct ckpt_rename names[] = {
    { "embedding.word_embeddings.weight", "model.embed_tokens.weight", CKPT_SAME },
    { NATIVE "input_layernorm.weight", FOREIGN "input_layernorm.weight", CKPT_SAME },
    { NATIVE "self_attention.linear_qkv.weight", FOREIGN "self_attn.q_proj.weight", CKPT_Q },
    { NATIVE "self_attention.linear_qkv.weight", FOREIGN "self_attn.k_proj.weight", CKPT_K },
    { NATIVE "self_attention.linear_qkv.weight", FOREIGN "self_attn.v_proj.weight", CKPT_V },
    { NATIVE "self_attention.linear_qkv.bias", FOREIGN "self_attn.q_proj.bias", CKPT_Q },
    { NATIVE "self_attention.linear_qkv.bias", FOREIGN "self_attn.k_proj.bias", CKPT_K },
    { NATIVE "self_attention.linear_qkv.bias", FOREIGN "self_attn.v_proj.bias", CKPT_V },
    { NATIVE "self_attention.linear_proj.weight", FOREIGN "self_attn.o_proj.weight", CKPT_SAME },
    { NATIVE "self_attention.linear_proj.bias", FOREIGN "self_attn.o_proj.bias", CKPT_SAME },
    { NATIVE "pre_mlp_layernorm.weight", FOREIGN "post_attention_layernorm.weight", CKPT_SAME },
    { NATIVE "mlp.linear_fc1.weight", FOREIGN "mlp.gate_proj.weight", CKPT_GATE },
    { NATIVE "mlp.linear_fc1.weight", FOREIGN "mlp.up_proj.weight", CKPT_UP },
    { NATIVE "mlp.linear_fc1.bias", FOREIGN "mlp.gate_proj.bias", CKPT_GATE },
    { NATIVE "mlp.linear_fc1.bias", FOREIGN "mlp.up_proj.bias", CKPT_UP },
    { NATIVE "mlp.linear_fc2.weight", FOREIGN "mlp.down_proj.weight", CKPT_SAME },
    { NATIVE "mlp.linear_fc2.bias", FOREIGN "mlp.down_proj.bias", CKPT_SAME },
    { "decoder.final_layernorm.weight", "model.norm.weight", CKPT_SAME },
    { "output_layer.weight", "lm_head.weight", CKPT_SAME },
    { 0 }
};
/* clang-format on */
static const char *const ignored[] = { FOREIGN "self_attn.rotary_emb.inv_freq", NULL };
static const struct ckpt_format format = { .name = "hf", .rename = names, .prefix = "model.", .ignored = ignored };

/* Check that the member `key` is missing or equal to `expected`, the only supported value. */
static int check_number(const json_t *o, const char *key, double expected, const char *from, struct meg_err *e)
{
    double v = expected;
    int r = meg_json_get_f64(o, key, MEG_JSON_OPTIONAL, &v, from, e);

    if (r == 0 && v != expected)
        r = meg_fail(e, MEG_EFORMAT, "%s: %s is %g, but only %g is supported", from, key, v, expected);
    return r;
}

/* Read the object rope_scaling, or rope_parameters, its name in newer versions of transformers. */
static int read_scaling(struct meg_model_conf *m, const json_t *o, const char *from, struct meg_err *e)
{
    const char *type = "default";
    double factor = 1;
    int r;

    if ((r = meg_json_get_f64(o, "rope_theta", MEG_JSON_OPTIONAL, &m->rotary_base, from, e)) < 0 ||
        (r = meg_json_get_str(o, "type", MEG_JSON_OPTIONAL, &type, from, e)) < 0 ||
        (r = meg_json_get_str(o, "rope_type", MEG_JSON_OPTIONAL, &type, from, e)) < 0 ||
        (r = check_number(o, "partial_rotary_factor", 1, from, e)) < 0 || strcmp(type, "default") == 0)
        return r;
    if ((r = meg_json_get_f64(o, "factor", MEG_JSON_REQUIRED, &factor, from, e)) < 0)
        return r;
    if (strcmp(type, "linear") == 0) {
        if (!(factor >= 1 && factor <= INT32_MAX && factor == floor(factor)))
            return meg_fail(e, MEG_EFORMAT,
                            "%s: the factor of linear rope_scaling is %g, expected an integer of at least 1", from,
                            factor);
        m->rotary_interpolation = (int64_t)factor;
        return 0;
    }
    if (strcmp(type, "llama3") != 0)
        return meg_fail(e, MEG_EFORMAT, "%s: unsupported rope_scaling type %.40s; expected linear or llama3", from,
                        type);
    m->use_rope_scaling = true;
    m->rope_scaling_factor = factor;
    if ((r = check_number(o, "low_freq_factor", 1, from, e)) < 0 ||
        (r = check_number(o, "high_freq_factor", 4, from, e)) < 0)
        return r;
    return check_number(o, "original_max_position_embeddings", 8192, from, e);
}

static int read_positions(struct meg_model_conf *m, const json_t *config, const char *from, struct meg_err *e)
{
    static const char *const key[] = { "rope_scaling", "rope_parameters" };
    int r;

    m->position_embedding_type = MEG_POSITION_ROPE;
    if ((r = meg_json_get_f64(config, "rope_theta", MEG_JSON_OPTIONAL, &m->rotary_base, from, e)) < 0 ||
        (r = check_number(config, "partial_rotary_factor", 1, from, e)) < 0)
        return r;
    for (int i = 0; i < 2; i++) {
        json_t *o = NULL;

        if ((r = meg_json_get_object(config, key[i], MEG_JSON_OPTIONAL, &o, from, e)) < 0 ||
            (o && (r = read_scaling(m, o, from, e)) < 0))
            return r;
    }
    return 0;
}

/*
 * Refuse sliding-window attention unless the window covers all positions.  The member sliding_window is the size of the
 * window in tokens, by default 4096.  Mistral has no window if sliding_window is null; Qwen2 has a window only if
 * use_sliding_window is true; Llama never has one.
 */
static int check_window(const struct meg_model_conf *m, const json_t *config, const char *type, const char *from,
                        struct meg_err *e)
{
    const json_t *window = json_object_get(config, "sliding_window");
    bool is_used = strcmp(type, "mistral") == 0 && !(window && json_is_null(window));
    int64_t tokens = 4096;
    int r;

    if (strcmp(type, "qwen2") == 0 &&
        (r = meg_json_get_bool(config, "use_sliding_window", MEG_JSON_OPTIONAL, &is_used, from, e)) < 0)
        return r;
    if (!is_used)
        return 0;
    if ((r = meg_json_get_i64(config, "sliding_window", MEG_JSON_OPTIONAL, &tokens, from, e)) < 0 ||
        tokens >= m->max_position_embeddings)
        return r;
    return meg_fail(e, MEG_EFORMAT,
                    "%s: sliding-window attention over %" PRId64
                    " tokens is not supported, because max_position_embeddings, %" PRId64
                    ", is larger; if no text is longer than the window, set %s",
                    from, tokens, m->max_position_embeddings,
                    strcmp(type, "qwen2") == 0 ? "use_sliding_window to false" : "sliding_window to null");
}

/*
 * Read the bias settings.  Llama is supported with biases in all linear layers or in none.  Qwen2 has only biases of
 * queries, keys and values.
 */
static int read_biases(struct meg_model_conf *m, const json_t *config, const char *type, const char *from,
                       struct meg_err *e)
{
    bool attention = false, mlp = false;
    int r;

    m->add_qkv_bias = strcmp(type, "qwen2") == 0;
    m->has_bias = false;
    if (m->add_qkv_bias)
        return 0;
    if ((r = meg_json_get_bool(config, "attention_bias", MEG_JSON_OPTIONAL, &attention, from, e)) < 0 ||
        (r = meg_json_get_bool(config, "mlp_bias", MEG_JSON_OPTIONAL, &mlp, from, e)) < 0)
        return r;
    if (attention != mlp)
        return meg_fail(e, MEG_EFORMAT, "%s: attention_bias is %s but mlp_bias is %s; only equal values are supported",
                        from, attention ? "true" : "false", mlp ? "true" : "false");
    m->has_bias = attention;
    return 0;
}

static int read_config(struct meg_model_conf *m, const json_t *config, const char *from, struct meg_err *e)
{
    const struct {
        const char *key;
        enum meg_json_presence need;
        int64_t *v;
    } number[] = {
        { "num_hidden_layers", MEG_JSON_REQUIRED, &m->num_layers },
        { "hidden_size", MEG_JSON_REQUIRED, &m->hidden_size },
        { "intermediate_size", MEG_JSON_REQUIRED, &m->ffn_hidden_size },
        { "num_attention_heads", MEG_JSON_REQUIRED, &m->num_attention_heads },
        { "num_key_value_heads", MEG_JSON_OPTIONAL, &m->num_query_groups },
        { "head_dim", MEG_JSON_OPTIONAL, &m->kv_channels },
        { "max_position_embeddings", MEG_JSON_REQUIRED, &m->max_position_embeddings },
        { "vocab_size", MEG_JSON_REQUIRED, &m->vocab_size },
    };
    const char *type = "", *act = "silu";
    bool is_tied = false;
    int r;

    m->normalization = MEG_NORM_RMS;
    m->swiglu = true;
    m->norm_epsilon = 1e-6;
    m->attention_dropout = m->hidden_dropout = 0;
    for (size_t i = 0; i < sizeof number / sizeof number[0]; i++)
        if ((r = meg_json_get_i64(config, number[i].key, number[i].need, number[i].v, from, e)) < 0)
            return r;
    if ((r = meg_json_get_str(config, "model_type", MEG_JSON_REQUIRED, &type, from, e)) < 0 ||
        (r = meg_json_get_str(config, "hidden_act", MEG_JSON_OPTIONAL, &act, from, e)) < 0 ||
        (r = meg_json_get_f64(config, "rms_norm_eps", MEG_JSON_OPTIONAL, &m->norm_epsilon, from, e)) < 0 ||
        (r = meg_json_get_f64(config, "initializer_range", MEG_JSON_OPTIONAL, &m->init_method_std, from, e)) < 0 ||
        (r = meg_json_get_f64(config, "attention_dropout", MEG_JSON_OPTIONAL, &m->attention_dropout, from, e)) < 0 ||
        (r = meg_json_get_bool(config, "tie_word_embeddings", MEG_JSON_OPTIONAL, &is_tied, from, e)) < 0 ||
        (r = read_positions(m, config, from, e)) < 0 || (r = read_biases(m, config, type, from, e)) < 0 ||
        (r = check_window(m, config, type, from, e)) < 0)
        return r;
    if (strcmp(act, "silu") != 0)
        return meg_fail(e, MEG_EFORMAT, "%s: unsupported hidden_act %.40s; expected silu", from, act);
    m->is_untied = !is_tied;
    m->group_query_attention = m->num_query_groups != MEG_UNSET && m->num_query_groups != m->num_attention_heads;
    return 0;
}

static const char *unsupported_reason(const struct meg_model_conf *m)
{
    if (m->residual_from_norm)
        return "the format has no --apply-residual-connection-post-layernorm";
    if (m->qk_layernorm)
        return "the format has no --qk-layernorm";
    if (m->normalization != MEG_NORM_RMS || !m->swiglu)
        return "the format requires RMSNorm and SwiGLU";
    if (m->rotary_percent != 1 || m->rotary_interleaved)
        return "the format requires RoPE on all channels of a head, in pairs from both halves of the head";
    if (m->use_rope_scaling && m->rotary_interpolation != 1)
        return "the format cannot combine --use-rope-scaling with --rotary-seq-len-interpolation-factor";
    return NULL;
}

static json_t *make_rope_scaling(const struct meg_model_conf *m)
{
    if (m->use_rope_scaling)
        return json_pack("{s:f,s:f,s:f,s:i,s:s}", "factor", m->rope_scaling_factor, "high_freq_factor", 4.0,
                         "low_freq_factor", 1.0, "original_max_position_embeddings", 8192, "rope_type", "llama3");
    if (m->rotary_interpolation != 1)
        return json_pack("{s:f,s:s}", "factor", (double)m->rotary_interpolation, "rope_type", "linear");
    return json_null();
}

static json_t *make_config(const struct meg_model_conf *m)
{
    const bool is_qwen = !m->has_bias && m->add_qkv_bias;
    json_t *c = json_object();

    json_object_set_new(c, "architectures", json_pack("[s]", is_qwen ? "Qwen2ForCausalLM" : "LlamaForCausalLM"));
    if (!is_qwen)
        json_object_set_new(c, "attention_bias", json_boolean(m->has_bias));
    json_object_set_new(c, "attention_dropout", json_real(m->attention_dropout));
    json_object_set_new(c, "head_dim", json_integer(m->kv_channels));
    json_object_set_new(c, "hidden_act", json_string("silu"));
    json_object_set_new(c, "hidden_size", json_integer(m->hidden_size));
    json_object_set_new(c, "initializer_range", json_real(m->init_method_std));
    json_object_set_new(c, "intermediate_size", json_integer(m->ffn_hidden_size));
    json_object_set_new(c, "max_position_embeddings", json_integer(m->max_position_embeddings));
    if (!is_qwen)
        json_object_set_new(c, "mlp_bias", json_boolean(m->has_bias));
    json_object_set_new(c, "model_type", json_string(is_qwen ? "qwen2" : "llama"));
    json_object_set_new(c, "num_attention_heads", json_integer(m->num_attention_heads));
    json_object_set_new(c, "num_hidden_layers", json_integer(m->num_layers));
    json_object_set_new(c, "num_key_value_heads", json_integer(m->num_query_groups));
    json_object_set_new(c, "rms_norm_eps", json_real(m->norm_epsilon));
    json_object_set_new(c, "rope_scaling", make_rope_scaling(m));
    json_object_set_new(c, "rope_theta", json_real(m->rotary_base));
    json_object_set_new(c, "tie_word_embeddings", json_boolean(!m->is_untied));
    if (is_qwen)
        json_object_set_new(c, "use_sliding_window", json_false());
    json_object_set_new(c, "vocab_size", json_integer(m->vocab_size));
    return c;
}

static const char *const model_types[] = { "llama", "mistral", "qwen2", NULL };
const struct ckpt_hf_family ckpt_hf_llama = { .model_types = model_types,
                                              .format = &format,
                                              .read_config = read_config,
                                              .unsupported_reason = unsupported_reason,
                                              .make_config = make_config };
