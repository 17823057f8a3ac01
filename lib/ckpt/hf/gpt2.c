/*
 * gpt2.c - Hugging Face's GPT-2: tensor names, layouts and config.json of GPT2LMHeadModel.
 *
 * GPT-2's linear layers are Conv1D with weights [in, out]; c_attn has all queries, then all keys, then all values.
 */
#include <string.h>
#include "base/log.h"
#include "base/num.h"
#include "ckpt/hf/internal.h"
#include "io/json.h"

#define NATIVE "decoder.layers.#."
#define FOREIGN "transformer.h.#."
/* clang-format off */
static const struct ckpt_rename names[] = {
    { "embedding.word_embeddings.weight", "transformer.wte.weight", CKPT_SAME },
    { "embedding.position_embeddings.weight", "transformer.wpe.weight", CKPT_SAME },
    { NATIVE "input_layernorm.weight", FOREIGN "ln_1.weight", CKPT_SAME },
    { NATIVE "input_layernorm.bias", FOREIGN "ln_1.bias", CKPT_SAME },
    { NATIVE "self_attention.linear_qkv.weight", FOREIGN "attn.c_attn.weight", CKPT_QKV_TRANSPOSED },
    { NATIVE "self_attention.linear_qkv.bias", FOREIGN "attn.c_attn.bias", CKPT_QKV },
    { NATIVE "self_attention.linear_proj.weight", FOREIGN "attn.c_proj.weight", CKPT_TRANSPOSED },
    { NATIVE "self_attention.linear_proj.bias", FOREIGN "attn.c_proj.bias", CKPT_SAME },
    { NATIVE "pre_mlp_layernorm.weight", FOREIGN "ln_2.weight", CKPT_SAME },
    { NATIVE "pre_mlp_layernorm.bias", FOREIGN "ln_2.bias", CKPT_SAME },
    { NATIVE "mlp.linear_fc1.weight", FOREIGN "mlp.c_fc.weight", CKPT_TRANSPOSED },
    { NATIVE "mlp.linear_fc1.bias", FOREIGN "mlp.c_fc.bias", CKPT_SAME },
    { NATIVE "mlp.linear_fc2.weight", FOREIGN "mlp.c_proj.weight", CKPT_TRANSPOSED },
    { NATIVE "mlp.linear_fc2.bias", FOREIGN "mlp.c_proj.bias", CKPT_SAME },
    { "decoder.final_layernorm.weight", "transformer.ln_f.weight", CKPT_SAME },
    { "decoder.final_layernorm.bias", "transformer.ln_f.bias", CKPT_SAME },
    { "output_layer.weight", "lm_head.weight", CKPT_SAME },
    { 0 }
};
/* clang-format on */
/* Buffers of the causal mask, which older versions of transformers store with the weights. */
static const char *const ignored[] = { FOREIGN "attn.bias", FOREIGN "attn.masked_bias", NULL };
static const struct ckpt_format format = {
    .name = "hf", .rename = names, .prefix = "transformer.", .ignored = ignored
};

/* Settings that change the output; meg's GPT supports only these values. */
static const struct ckpt_hf_fixed fixed[] = { { "scale_attn_weights", true },
                                              { "scale_attn_by_inverse_layer_idx", false },
                                              { "add_cross_attention", false },
                                              { 0 } };

static int read_config(struct meg_model_conf *m, const json_t *config, const char *from, struct meg_err *e)
{
    double embd_dropout;
    bool is_tied = true;
    int r;

    m->ffn_hidden_size = MEG_UNSET;
    m->norm_epsilon = 1e-5;
    m->attention_dropout = m->hidden_dropout = 0.1;
    if ((r = meg_json_get_i64(config, "n_layer", MEG_JSON_REQUIRED, &m->num_layers, from, e)) < 0 ||
        (r = meg_json_get_i64(config, "n_embd", MEG_JSON_REQUIRED, &m->hidden_size, from, e)) < 0 ||
        (r = meg_json_get_i64(config, "n_head", MEG_JSON_REQUIRED, &m->num_attention_heads, from, e)) < 0 ||
        (r = meg_json_get_i64(config, "n_inner", MEG_JSON_OPTIONAL, &m->ffn_hidden_size, from, e)) < 0 ||
        (r = meg_json_get_i64(config, "n_positions", MEG_JSON_REQUIRED, &m->max_position_embeddings, from, e)) < 0 ||
        (r = meg_json_get_i64(config, "vocab_size", MEG_JSON_REQUIRED, &m->vocab_size, from, e)) < 0 ||
        (r = meg_json_get_f64(config, "layer_norm_epsilon", MEG_JSON_OPTIONAL, &m->norm_epsilon, from, e)) < 0 ||
        (r = meg_json_get_f64(config, "initializer_range", MEG_JSON_OPTIONAL, &m->init_method_std, from, e)) < 0 ||
        (r = meg_json_get_f64(config, "attn_pdrop", MEG_JSON_OPTIONAL, &m->attention_dropout, from, e)) < 0 ||
        (r = meg_json_get_f64(config, "resid_pdrop", MEG_JSON_OPTIONAL, &m->hidden_dropout, from, e)) < 0 ||
        (r = meg_json_get_bool(config, "tie_word_embeddings", MEG_JSON_OPTIONAL, &is_tied, from, e)) < 0 ||
        (r = ckpt_hf_read_gelu(&m->bias_gelu_fusion, config, "activation_function", "gelu_new", from, e)) < 0)
        return r;
    m->is_untied = !is_tied;
    embd_dropout = m->hidden_dropout;
    if ((r = meg_json_get_f64(config, "embd_pdrop", MEG_JSON_OPTIONAL, &embd_dropout, from, e)) < 0)
        return r;
    if (embd_dropout != m->hidden_dropout)
        meg_warn("%s: embd_pdrop %g differs from resid_pdrop %g; --hidden-dropout, used for both, is set to %g", from,
                 embd_dropout, m->hidden_dropout, m->hidden_dropout);
    return ckpt_hf_check_fixed(config, fixed, from, e);
}

static const char *unsupported_reason(const struct meg_model_conf *m)
{
    if (m->residual_from_norm)
        return "the format has no --apply-residual-connection-post-layernorm";
    if (m->kv_channels * m->num_attention_heads != m->hidden_size)
        return "GPT-2 requires --kv-channels equal to --hidden-size / --num-attention-heads";
    if (m->normalization != MEG_NORM_LAYER || m->swiglu || !m->has_bias)
        return "GPT-2 requires LayerNorm, GELU and biases";
    if (m->num_query_groups != m->num_attention_heads)
        return "GPT-2 requires one key and value head per query head";
    return NULL;
}

static json_t *make_config(const struct meg_model_conf *m)
{
    json_t *c = json_object();

    json_object_set_new(c, "activation_function",
                        json_string(m->bias_gelu_fusion || m->openai_gelu ? "gelu_new" : "gelu"));
    json_object_set_new(c, "architectures", json_pack("[s]", "GPT2LMHeadModel"));
    json_object_set_new(c, "attn_pdrop", json_real(m->attention_dropout));
    json_object_set_new(c, "embd_pdrop", json_real(m->hidden_dropout));
    json_object_set_new(c, "initializer_range", json_real(m->init_method_std));
    json_object_set_new(c, "layer_norm_epsilon", json_real(m->norm_epsilon));
    json_object_set_new(c, "model_type", json_string("gpt2"));
    json_object_set_new(c, "n_ctx", json_integer(m->max_position_embeddings));
    json_object_set_new(c, "n_embd", json_integer(m->hidden_size));
    json_object_set_new(c, "n_head", json_integer(m->num_attention_heads));
    json_object_set_new(c, "n_inner", json_integer(m->ffn_hidden_size));
    json_object_set_new(c, "n_layer", json_integer(m->num_layers));
    json_object_set_new(c, "n_positions", json_integer(m->max_position_embeddings));
    json_object_set_new(c, "resid_pdrop", json_real(m->hidden_dropout));
    json_object_set_new(c, "tie_word_embeddings", json_boolean(!m->is_untied));
    json_object_set_new(c, "vocab_size", json_integer(m->vocab_size));
    return c;
}

static const char *const model_types[] = { "gpt2", NULL };
const struct ckpt_hf_family ckpt_hf_gpt2 = { .model_types = model_types,
                                             .format = &format,
                                             .read_config = read_config,
                                             .unsupported_reason = unsupported_reason,
                                             .make_config = make_config };
