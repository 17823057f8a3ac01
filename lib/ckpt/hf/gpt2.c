/*
 * Hugging Face's GPT-2: names, layouts and settings of GPT2LMHeadModel.  Its linears are Conv1D,
 * [in, out]; c_attn has all queries, then all keys, then all values.
 */
#include <string.h>

#include "base/log.h"
#include "base/num.h"
#include "ckpt/internal.h"
#include "io/json.h"

#define OURS "decoder.layers.#."
#define THEIRS "transformer.h.#."
/* clang-format off */
static const struct ckpt_rename names[] = {
    { "embedding.word_embeddings.weight", "transformer.wte.weight", CKPT_SAME },
    { "embedding.position_embeddings.weight", "transformer.wpe.weight", CKPT_SAME },
    { OURS "input_layernorm.weight", THEIRS "ln_1.weight", CKPT_SAME },
    { OURS "input_layernorm.bias", THEIRS "ln_1.bias", CKPT_SAME },
    { OURS "self_attention.linear_qkv.weight", THEIRS "attn.c_attn.weight", CKPT_QKV_TRANSPOSED },
    { OURS "self_attention.linear_qkv.bias", THEIRS "attn.c_attn.bias", CKPT_QKV },
    { OURS "self_attention.linear_proj.weight", THEIRS "attn.c_proj.weight", CKPT_TRANSPOSED },
    { OURS "self_attention.linear_proj.bias", THEIRS "attn.c_proj.bias", CKPT_SAME },
    { OURS "pre_mlp_layernorm.weight", THEIRS "ln_2.weight", CKPT_SAME },
    { OURS "pre_mlp_layernorm.bias", THEIRS "ln_2.bias", CKPT_SAME },
    { OURS "mlp.linear_fc1.weight", THEIRS "mlp.c_fc.weight", CKPT_TRANSPOSED },
    { OURS "mlp.linear_fc1.bias", THEIRS "mlp.c_fc.bias", CKPT_SAME },
    { OURS "mlp.linear_fc2.weight", THEIRS "mlp.c_proj.weight", CKPT_TRANSPOSED },
    { OURS "mlp.linear_fc2.bias", THEIRS "mlp.c_proj.bias", CKPT_SAME },
    { "decoder.final_layernorm.weight", "transformer.ln_f.weight", CKPT_SAME },
    { "decoder.final_layernorm.bias", "transformer.ln_f.bias", CKPT_SAME },
    { "output_layer.weight", "lm_head.weight", CKPT_SAME },
    { 0 }
};
/* clang-format on */
/* the causal mask */
static const char *const ignored[] = { THEIRS "attn.bias", THEIRS "attn.masked_bias", NULL };
static const struct ckpt_format format = { "hf", names, "transformer.", ignored };

/* Settings that change the result and that our GPT does not have: each with the value it may have. */
static const struct {
    const char *key;
    bool value;
} fixed[] = { { "scale_attn_weights", true },
              { "scale_attn_by_inverse_layer_idx", false },
              { "add_cross_attention", false } };

static int read_activation(struct meg_gpt_conf *m, const json_t *config, const char *from, struct meg_err *e)
{
    const char *name = "gelu_new";
    int r = meg_json_get_str(config, "activation_function", MEG_JSON_OPTIONAL, &name, from, e);

    if (r < 0)
        return r;
    m->bias_gelu_fusion = strcmp(name, "gelu") != 0;
    if (m->bias_gelu_fusion && strcmp(name, "gelu_new") && strcmp(name, "gelu_pytorch_tanh") &&
        strcmp(name, "gelu_fast"))
        return meg_fail(e, MEG_EFORMAT,
                        "%s: activation_function %.40s; known are gelu_new, gelu_pytorch_tanh, gelu_fast, gelu", from,
                        name);
    return 0;
}

static int read_config(struct meg_gpt_conf *m, const json_t *config, const char *from, struct meg_err *e)
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
        (r = read_activation(m, config, from, e)) < 0)
        return r;
    m->is_untied = !is_tied;
    embd_dropout = m->hidden_dropout;
    if ((r = meg_json_get_f64(config, "embd_pdrop", MEG_JSON_OPTIONAL, &embd_dropout, from, e)) < 0)
        return r;
    if (embd_dropout != m->hidden_dropout)
        meg_warn("%s: embd_pdrop %g is not resid_pdrop %g; --hidden-dropout is both, and becomes %g", from,
                 embd_dropout, m->hidden_dropout, m->hidden_dropout);
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        bool is = fixed[i].value;

        if ((r = meg_json_get_bool(config, fixed[i].key, MEG_JSON_OPTIONAL, &is, from, e)) < 0)
            return r;
        if (is != fixed[i].value)
            return meg_fail(e, MEG_EFORMAT, "%s: %s is %s, and only %s can be computed", from, fixed[i].key,
                            is ? "true" : "false", fixed[i].value ? "true" : "false");
    }
    return 0;
}

static const char *cannot(const struct meg_gpt_conf *m)
{
    if (m->kv_channels * m->num_attention_heads != m->hidden_size)
        return "its heads have hidden size / heads channels, and --kv-channels is another number";
    if (m->normalization != MEG_NORM_LAYER || m->swiglu || !m->has_bias)
        return "it has LayerNorm, GELU and biases";
    if (m->num_query_groups != m->num_attention_heads)
        return "it has a key head for each query head";
    return NULL;
}

static json_t *config_of(const struct meg_gpt_conf *m)
{
    json_t *c = json_object();

    json_object_set_new(c, "activation_function", json_string(m->bias_gelu_fusion ? "gelu_new" : "gelu"));
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
const struct ckpt_hf_family ckpt_hf_gpt2 = { model_types, &format, read_config, cannot, config_of };
