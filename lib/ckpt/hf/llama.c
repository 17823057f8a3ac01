/*
 * llama.c - Hugging Face's Llama, Mistral, Qwen2 and Qwen3 models, which have the same tensor names and layouts.
 *
 * Qwen2 has biases of queries, keys and values; Qwen3 has norms of queries and keys instead.  Weights of linear layers
 * are [out, in].  RoPE pairs channel i of a head with channel i + head_dim / 2, as meg does without
 * --rotary-interleaved.
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
    { NATIVE "self_attention.q_layernorm.weight", FOREIGN "self_attn.q_norm.weight", CKPT_SAME },
    { NATIVE "self_attention.k_layernorm.weight", FOREIGN "self_attn.k_norm.weight", CKPT_SAME },
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

/* ---- config.json ---- */

/* Members of rope_scaling if its type is llama3. */
static const struct ckpt_hf_row llama3_rows[] = { { "factor", "rope-scaling-factor", NULL, NULL },
                                                  { "low_freq_factor", NULL, "1", NULL },
                                                  { "high_freq_factor", NULL, "4", NULL },
                                                  { "original_max_position_embeddings", NULL, "8192", NULL },
                                                  { 0 } };

static int read_linear_scaling(const struct ckpt_hf_reader *r)
{
    double factor = 1;
    int code = meg_json_get_f64(r->object, "factor", MEG_JSON_REQUIRED, &factor, r->from, r->e);

    if (code == 0 && !(factor >= 1 && factor <= INT32_MAX && factor == floor(factor)))
        return meg_fail(r->e, MEG_EFORMAT,
                        "%s: the factor of linear rope_scaling is %g, expected an integer of at least 1", r->from,
                        factor);
    r->m->rotary.interpolation = (int64_t)factor;
    return code;
}

/* Read the object rope_scaling, or rope_parameters, its name in newer versions of transformers. */
static int read_rope(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    static const struct ckpt_hf_row members[] = { { "rope_theta", "rotary-base", "", NULL },
                                                  { "partial_rotary_factor", NULL, "1", NULL },
                                                  { 0 } };
    struct ckpt_hf_reader o = *r;
    const char *type = "default";
    json_t *object = NULL;
    int code = meg_json_get_object(r->object, row->key, MEG_JSON_OPTIONAL, &object, r->from, r->e);

    o.object = object;
    if (code < 0 || !object || (code = ckpt_hf_read_rows(&o, members)) < 0 ||
        (code = meg_json_get_str(object, "type", MEG_JSON_OPTIONAL, &type, r->from, r->e)) < 0 ||
        (code = meg_json_get_str(object, "rope_type", MEG_JSON_OPTIONAL, &type, r->from, r->e)) < 0 ||
        strcmp(type, "default") == 0)
        return code;
    if (strcmp(type, "linear") == 0)
        return read_linear_scaling(&o);
    r->m->rotary.is_scaled = strcmp(type, "llama3") == 0;
    if (r->m->rotary.is_scaled)
        return ckpt_hf_read_rows(&o, llama3_rows);
    return meg_fail(r->e, MEG_EFORMAT, "%s: unsupported rope_scaling type %.40s; expected linear or llama3", r->from,
                    type);
}

static json_t *write_rope(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    (void)row;
    if (m->rotary.is_scaled)
        return json_pack("{s:f,s:f,s:f,s:i,s:s}", "factor", m->rotary.scaling_factor, "high_freq_factor", 4.0,
                         "low_freq_factor", 1.0, "original_max_position_embeddings", 8192, "rope_type", "llama3");
    if (m->rotary.interpolation > 1)
        return json_pack("{s:f,s:s}", "factor", (double)m->rotary.interpolation, "rope_type", "linear");
    return json_null();
}

/*
 * Refuse sliding-window attention unless the window covers all positions.  The member sliding_window is the size of the
 * window in tokens, by default 4096.  `remedy` is the end of the message.
 */
static int check_window(const struct ckpt_hf_reader *r, const char *remedy)
{
    int64_t tokens = 4096;
    int code = meg_json_get_i64(r->object, "sliding_window", MEG_JSON_OPTIONAL, &tokens, r->from, r->e);

    if (code < 0 || tokens >= r->m->max_position_embeddings)
        return code;
    return meg_fail(r->e, MEG_EFORMAT,
                    "%s: sliding-window attention over %" PRId64
                    " tokens is not supported, because max_position_embeddings, %" PRId64
                    ", is larger; if no text is longer than the window, set %s",
                    r->from, tokens, r->m->max_position_embeddings, remedy);
}

/* Mistral has no window if sliding_window is null. */
static int read_mistral_window(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    return json_is_null(json_object_get(r->object, row->key)) ? 0 : check_window(r, "sliding_window to null");
}

/* Qwen has a window only if use_sliding_window is true. */
static int read_qwen_window(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    bool is_used = false;
    int code = ckpt_hf_read_bool(r, row->key, &is_used);

    return code < 0 || !is_used ? code : check_window(r, "use_sliding_window to false");
}

/* Llama is supported with biases in all linear layers or in none. */
static int read_mlp_bias(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    bool mlp = false;
    int code = ckpt_hf_read_bool(r, row->key, &mlp);

    if (code < 0 || mlp == r->m->has_bias)
        return code;
    return meg_fail(r->e, MEG_EFORMAT, "%s: attention_bias is %s but mlp_bias is %s; only equal values are supported",
                    r->from, mlp ? "false" : "true", mlp ? "true" : "false");
}

static const struct ckpt_hf_convert rope = { .read = read_rope, .write = write_rope },
                                    rope_of_v5 = { .read = read_rope }, mlp_bias = { .read = read_mlp_bias },
                                    mistral_window = { .read = read_mistral_window },
                                    qwen_window = { .read = read_qwen_window };

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    { "num_hidden_layers", "num-layers", NULL, NULL },
    { "hidden_size", "hidden-size", NULL, NULL },
    { "intermediate_size", "ffn-hidden-size", NULL, NULL },
    { "num_attention_heads", "num-attention-heads", NULL, NULL },
    { "num_key_value_heads", "num-query-groups", "", NULL },
    { "head_dim", "kv-channels", "", NULL },
    { "max_position_embeddings", "max-position-embeddings", NULL, NULL },
    { "hidden_act", NULL, "\"silu\"", NULL },
    { "rms_norm_eps", "norm-epsilon", "1e-06", NULL },
    { "initializer_range", "init-method-std", "", NULL },
    { "attention_dropout", "attention-dropout", "0", NULL },
    { "tie_word_embeddings", "!untie-embeddings-and-output-weights", "yes", NULL },
    { "rope_theta", "rotary-base", "", NULL },
    { "partial_rotary_factor", NULL, "1", NULL },
    { "rope_scaling", NULL, NULL, &rope },
    { "rope_parameters", NULL, NULL, &rope_of_v5 },
    { 0 }
};
#define BIASES \
    { "attention_bias", "disable-bias-linear", "yes", NULL }, { "mlp_bias", "disable-bias-linear", NULL, &mlp_bias }
static const struct ckpt_hf_row llama_rows[] = { BIASES, { 0 } };
static const struct ckpt_hf_row mistral_rows[] = { BIASES, { "sliding_window", NULL, NULL, &mistral_window }, { 0 } };
/* clang-format on */
static const struct ckpt_hf_row qwen2_rows[] = { { "use_sliding_window", NULL, NULL, &qwen_window }, { 0 } };
static const struct ckpt_hf_row qwen3_rows[] = { { "head_dim", "kv-channels", "128", NULL },
                                                 { "attention_bias", NULL, "false", NULL },
                                                 { "use_sliding_window", NULL, NULL, &qwen_window },
                                                 { 0 } };

#define OPTIONS                                                                                                        \
    "position-embedding-type = rope\nnormalization = RMSNorm\nswiglu = yes\ndisable-bias-linear = yes\n"               \
    "hidden-dropout = 0\n"
const struct ckpt_hf_family ckpt_hf_llama = {
    .model_type = "llama",
    .class_prefix = "Llama",
    .options = OPTIONS,
    .rows = { rows, llama_rows },
    .constants = "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_act\": \"silu\"}",
    .format = &format
};
/* Its models are written as llama, which has the same layers. */
const struct ckpt_hf_family ckpt_hf_mistral = { .model_type = "mistral",
                                                .class_prefix = "Mistral",
                                                .options = OPTIONS,
                                                .rows = { rows, mistral_rows },
                                                .constants = "{}",
                                                .format = &format };
const struct ckpt_hf_family ckpt_hf_qwen2 = {
    .model_type = "qwen2",
    .class_prefix = "Qwen2",
    .options = OPTIONS "add-qkv-bias = yes\n",
    .rows = { rows, qwen2_rows },
    .constants = "{\"architectures\": [\"Qwen2ForCausalLM\"], \"hidden_act\": \"silu\", \"use_sliding_window\": false}",
    .format = &format
};
const struct ckpt_hf_family ckpt_hf_qwen3 = {
    .model_type = "qwen3",
    .class_prefix = "Qwen3",
    .options = OPTIONS "qk-layernorm = yes\n",
    .rows = { rows, qwen3_rows },
    .constants = "{\"architectures\": [\"Qwen3ForCausalLM\"], \"attention_bias\": false, \"hidden_act\": \"silu\", "
                 "\"use_sliding_window\": false}",
    .format = &format
};
