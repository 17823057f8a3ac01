/*
 * t5.c - Hugging Face's T5ForConditionalGeneration: T5 v1.0 (Raffel et al. 2020) and v1.1 (Shazeer 2020).
 *
 * T5 has RMSNorm, linear layers without biases, and attention scores with a relative bias and without scaling.
 * In v1.0, the MLP has ReLU, the output layer is tied to the word embedding, and the input of the output layer is
 * divided by the square root of d_model.  In v1.1, the MLP is gated, and the output layer has its own weight.
 */
#include <math.h>
#include <string.h>
#include "base/log.h"
#include "ckpt/hf/internal.h"
#include "io/json.h"

/* clang-format off */
#define NATIVE(stack) stack ".layers.#."
#define FOREIGN(stack, sublayer) stack ".block.#.layer." sublayer "."
#define STACK(stack) \
    { stack "_relative_pos_emb.relative_attention_bias.weight", \
      stack ".block.0.layer.0.SelfAttention.relative_attention_bias.weight", CKPT_SAME }, \
    { NATIVE(stack) "input_layernorm.weight", FOREIGN(stack, "0") "layer_norm.weight", CKPT_SAME }, \
    { NATIVE(stack) "self_attention.linear_qkv.weight", FOREIGN(stack, "0") "SelfAttention.q.weight", CKPT_Q }, \
    { NATIVE(stack) "self_attention.linear_qkv.weight", FOREIGN(stack, "0") "SelfAttention.k.weight", CKPT_K }, \
    { NATIVE(stack) "self_attention.linear_qkv.weight", FOREIGN(stack, "0") "SelfAttention.v.weight", CKPT_V }, \
    { NATIVE(stack) "self_attention.linear_proj.weight", FOREIGN(stack, "0") "SelfAttention.o.weight", CKPT_SAME }, \
    { stack ".final_layernorm.weight", stack ".final_layer_norm.weight", CKPT_SAME }
#define CROSS(stack) \
    { NATIVE(stack) "pre_cross_attn_layernorm.weight", FOREIGN(stack, "1") "layer_norm.weight", CKPT_SAME }, \
    { NATIVE(stack) "cross_attention.linear_q.weight", FOREIGN(stack, "1") "EncDecAttention.q.weight", CKPT_SAME }, \
    { NATIVE(stack) "cross_attention.linear_kv.weight", FOREIGN(stack, "1") "EncDecAttention.k.weight", CKPT_K }, \
    { NATIVE(stack) "cross_attention.linear_kv.weight", FOREIGN(stack, "1") "EncDecAttention.v.weight", CKPT_V }, \
    { NATIVE(stack) "cross_attention.linear_proj.weight", FOREIGN(stack, "1") "EncDecAttention.o.weight", CKPT_SAME }
#define MLP(stack, sublayer) \
    { NATIVE(stack) "pre_mlp_layernorm.weight", FOREIGN(stack, sublayer) "layer_norm.weight", CKPT_SAME }, \
    { NATIVE(stack) "mlp.linear_fc2.weight", FOREIGN(stack, sublayer) "DenseReluDense.wo.weight", CKPT_SAME }
#define FC1(stack, sublayer, suffix, remap) \
    { NATIVE(stack) "mlp.linear_fc1.weight", FOREIGN(stack, sublayer) "DenseReluDense.wi" suffix ".weight", remap }
#define COMMON \
    { "embedding.word_embeddings.weight", "shared.weight", CKPT_SAME }, \
    STACK("encoder"), MLP("encoder", "1"), \
    STACK("decoder"), CROSS("decoder"), MLP("decoder", "2"), \
    { "output_layer.weight", "lm_head.weight", CKPT_SAME }

static const struct ckpt_rename names[] = {
    COMMON,
    FC1("encoder", "1", "", CKPT_SAME),
    FC1("decoder", "2", "", CKPT_SAME),
    { 0 }
};
static const struct ckpt_rename gated_names[] = {
    COMMON,
    FC1("encoder", "1", "_0", CKPT_GATE),
    FC1("encoder", "1", "_1", CKPT_UP),
    FC1("decoder", "2", "_0", CKPT_GATE),
    FC1("decoder", "2", "_1", CKPT_UP),
    { 0 }
};
/* clang-format on */
/* Old files have a relative bias of cross-attention, which Hugging Face does not use. */
static const char *const ignored[] = { "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight", NULL };
static const struct ckpt_rename copies[] = {
    { "embedding.word_embeddings.weight", "encoder.embed_tokens.weight", CKPT_SAME },
    { "embedding.word_embeddings.weight", "decoder.embed_tokens.weight", CKPT_SAME },
    { 0 }
};
#define ADVICE "; the checkpoint must have the tensors of T5ForConditionalGeneration: encoder, decoder and output layer"

/* Return whether the input of the output layer is divided by the square root of the hidden size. */
static bool has_scaled_output(const struct meg_model_conf *m)
{
    return fabs(m->logits_scale * sqrt((double)m->hidden_size) - 1) < 1e-6;
}

/*
 * transformers 4 scales each tied output layer.  If a tied output layer is not scaled, an export therefore writes the
 * output weight and declares it untied, which is the same model in transformers 4 and 5.
 */
static bool copies_output_weight(const struct meg_model_conf *m)
{
    return !m->is_untied && !has_scaled_output(m);
}

static const struct ckpt_format format = { .name = "hf",
                                           .rename = names,
                                           .ignored = ignored,
                                           .copies = copies,
                                           .copies_output_weight = copies_output_weight,
                                           .advice = ADVICE };
static const struct ckpt_format gated_format = { .name = "hf",
                                                 .rename = gated_names,
                                                 .ignored = ignored,
                                                 .copies = copies,
                                                 .copies_output_weight = copies_output_weight,
                                                 .advice = ADVICE };

/* ---- config.json ---- */

/* A value of feed_forward_proj, and the options that it sets. */
static const struct activation {
    const char *name, *function;
    bool swiglu;
    enum meg_glu_activation glu;
    enum meg_activation_func func;
    bool is_tanh; /* GELU is the tanh approximation */
} activations[] = {
    { "relu", "relu", false, MEG_GLU_ACTIVATION_NONE, MEG_ACTIVATION_FUNC_RELU, false },
    { "gelu", "gelu", false, MEG_GLU_ACTIVATION_NONE, MEG_ACTIVATION_FUNC_GELU, false },
    { "gelu_new", "gelu_new", false, MEG_GLU_ACTIVATION_NONE, MEG_ACTIVATION_FUNC_GELU, true },
    { "gated-gelu", "gelu_new", false, MEG_GLU_ACTIVATION_GEGLU, MEG_ACTIVATION_FUNC_GELU, true },
    { "gated-relu", "relu", false, MEG_GLU_ACTIVATION_REGLU, MEG_ACTIVATION_FUNC_GELU, false },
    { "gated-silu", "silu", true, MEG_GLU_ACTIVATION_NONE, MEG_ACTIVATION_FUNC_GELU, false },
};
enum { NACTIVATIONS = sizeof activations / sizeof *activations };

static int read_activation(struct meg_model_conf *m, const json_t *config, const char *from, struct meg_err *e)
{
    const char *name = "relu";
    int r = meg_json_get_str(config, "feed_forward_proj", MEG_JSON_OPTIONAL, &name, from, e);

    for (int i = 0; r == 0 && i < NACTIVATIONS; i++)
        if (strcmp(activations[i].name, name) == 0) {
            m->swiglu = activations[i].swiglu;
            m->glu_activation = activations[i].glu;
            m->activation_func = activations[i].func;
            m->openai_gelu = activations[i].is_tanh;
            return 0;
        }
    return r < 0 ? r
                 : meg_fail(e, MEG_EFORMAT,
                            "%s: unsupported feed_forward_proj %.40s; expected relu, gelu, gelu_new, gated-gelu, "
                            "gated-relu or gated-silu",
                            from, name);
}

/* Return the activation of a model, or NULL if the format does not have it. */
static const struct activation *activation_of(const struct meg_model_conf *m)
{
    for (int i = 0; i < NACTIVATIONS; i++) {
        const struct activation *a = &activations[i];
        const bool is_gelu = strstr(a->name, "gelu") != NULL;

        if (a->swiglu == m->swiglu && a->glu == m->glu_activation && a->func == m->activation_func &&
            (!is_gelu || a->is_tanh == m->openai_gelu))
            return a;
    }
    return NULL;
}

/*
 * Read whether the output layer is tied to the word embedding.  The input of the output layer is scaled if the output
 * layer is tied, except in a model without lm_head.weight (fit_tensors).  transformers 5 stores this in
 * scale_decoder_outputs, and always sets tie_word_embeddings to true.
 */
static int read_tie(struct meg_model_conf *m, const json_t *config, const char *from, struct meg_err *e)
{
    bool is_tied = true, is_scaled;
    int r = meg_json_get_bool(config, "tie_word_embeddings", MEG_JSON_OPTIONAL, &is_tied, from, e);

    is_scaled = is_tied;
    if (r < 0 || (r = meg_json_get_bool(config, "scale_decoder_outputs", MEG_JSON_OPTIONAL, &is_scaled, from, e)) < 0)
        return r;
    if (is_scaled && !is_tied)
        return meg_fail(e, MEG_EFORMAT,
                        "%s: scale_decoder_outputs is true and tie_word_embeddings is false, but only tied embeddings "
                        "are supported with scaled outputs",
                        from);
    m->is_untied = !is_scaled;
    if (is_scaled)
        m->logits_scale = 1 / sqrt((double)m->hidden_size);
    return 0;
}

static int read_config(struct meg_model_conf *m, const json_t *config, const char *from, struct meg_err *e)
{
    static const struct ckpt_hf_fixed fixed[] = { { "is_decoder", false }, { "is_encoder_decoder", true }, { 0 } };
    const struct {
        const char *key;
        enum meg_json_presence need;
        int64_t *v;
    } number[] = {
        { "num_layers", MEG_JSON_REQUIRED, &m->num_layers },
        { "num_decoder_layers", MEG_JSON_OPTIONAL, &m->decoder_num_layers },
        { "d_model", MEG_JSON_REQUIRED, &m->hidden_size },
        { "d_ff", MEG_JSON_REQUIRED, &m->ffn_hidden_size },
        { "num_heads", MEG_JSON_REQUIRED, &m->num_attention_heads },
        { "d_kv", MEG_JSON_OPTIONAL, &m->kv_channels },
        { "n_positions", MEG_JSON_OPTIONAL, &m->max_position_embeddings },
        { "relative_attention_num_buckets", MEG_JSON_OPTIONAL, &m->relative_attention_num_buckets },
        { "relative_attention_max_distance", MEG_JSON_OPTIONAL, &m->relative_attention_max_distance },
        { "vocab_size", MEG_JSON_REQUIRED, &m->vocab_size },
    };
    int r;

    m->family = MEG_FAMILY_T5;
    m->position_embedding_type = MEG_POSITION_RELATIVE;
    m->max_position_embeddings = 512; /* the longest sequence of the original T5; the relative bias has no limit */
    m->kv_channels = 64;
    m->normalization = MEG_NORM_RMS;
    m->norm_epsilon = 1e-6;
    m->has_bias = false;
    m->softmax_scale = 1;
    m->hidden_dropout = 0.1;
    for (size_t i = 0; i < sizeof number / sizeof number[0]; i++)
        if ((r = meg_json_get_i64(config, number[i].key, number[i].need, number[i].v, from, e)) < 0)
            return r;
    if ((r = meg_json_get_f64(config, "layer_norm_epsilon", MEG_JSON_OPTIONAL, &m->norm_epsilon, from, e)) < 0 ||
        (r = meg_json_get_f64(config, "dropout_rate", MEG_JSON_OPTIONAL, &m->hidden_dropout, from, e)) < 0 ||
        (r = read_activation(m, config, from, e)) < 0 || (r = read_tie(m, config, from, e)) < 0)
        return r;
    m->attention_dropout = m->hidden_dropout;
    return ckpt_hf_check_fixed(config, fixed, from, e);
}

/*
 * If the files have no lm_head.weight, the output layer is tied to the word embedding, whether or not its input is
 * scaled: transformers 5 saves such a model, with scale_decoder_outputs false.  If tie_word_embeddings is false,
 * lm_head.weight is required.
 */
static void fit_tensors(struct meg_model_conf *m, struct meg_ckpt *c)
{
    struct meg_st *st;

    if (!json_is_false(json_object_get(c->state, "tie_word_embeddings")) &&
        !ckpt_find_tensor(c, 0, "lm_head.weight", &st))
        m->is_untied = false;
}

static const char *unsupported_reason(const struct meg_model_conf *m)
{
    if (m->position_embedding_type != MEG_POSITION_RELATIVE)
        return "the format requires --position-embedding-type relative";
    if (m->normalization != MEG_NORM_RMS || m->has_bias || m->add_qkv_bias)
        return "the format requires RMSNorm and no biases";
    if (m->softmax_scale != 1)
        return "the format requires --softmax-scale 1";
    if (!activation_of(m))
        return "the format requires --openai-gelu with --glu-activation geglu";
    if (m->logits_scale > 0 && m->logits_scale != 1 && (m->is_untied || !has_scaled_output(m)))
        return "the format requires a --logits-scale of 1 or, without --untie-embeddings-and-output-weights, of 1 "
               "divided by the square root of --hidden-size";
    return NULL;
}

static json_t *make_config(const struct meg_model_conf *m)
{
    const struct activation *a = activation_of(m);
    const bool is_scaled = !m->is_untied && has_scaled_output(m);
    json_t *c = json_object();

    if (copies_output_weight(m))
        meg_warn("the output layer is tied to the word embedding and not scaled, but transformers 4 scales tied output "
                 "layers: lm_head.weight, a copy of the word embedding, is written, with tie_word_embeddings false");
    json_object_set_new(c, "architectures", json_pack("[s]", "T5ForConditionalGeneration"));
    json_object_set_new(c, "d_ff", json_integer(m->ffn_hidden_size));
    json_object_set_new(c, "d_kv", json_integer(m->kv_channels));
    json_object_set_new(c, "d_model", json_integer(m->hidden_size));
    json_object_set_new(c, "decoder_start_token_id", json_integer(0));
    json_object_set_new(c, "dense_act_fn", json_string(a->function));
    json_object_set_new(c, "dropout_rate", json_real(m->hidden_dropout));
    json_object_set_new(c, "eos_token_id", json_integer(1));
    json_object_set_new(c, "feed_forward_proj", json_string(a->name));
    json_object_set_new(c, "initializer_factor", json_real(1));
    json_object_set_new(c, "is_encoder_decoder", json_true());
    json_object_set_new(c, "is_gated_act", json_boolean(meg_model_is_gated(m)));
    json_object_set_new(c, "layer_norm_epsilon", json_real(m->norm_epsilon));
    json_object_set_new(c, "model_type", json_string("t5"));
    json_object_set_new(c, "n_positions", json_integer(m->max_position_embeddings));
    json_object_set_new(c, "num_decoder_layers", json_integer(m->decoder_num_layers));
    json_object_set_new(c, "num_heads", json_integer(m->num_attention_heads));
    json_object_set_new(c, "num_layers", json_integer(m->num_layers));
    json_object_set_new(c, "pad_token_id", json_integer(0));
    json_object_set_new(c, "relative_attention_max_distance", json_integer(m->relative_attention_max_distance));
    json_object_set_new(c, "relative_attention_num_buckets", json_integer(m->relative_attention_num_buckets));
    json_object_set_new(c, "scale_decoder_outputs", json_boolean(is_scaled));
    json_object_set_new(c, "tie_word_embeddings", json_boolean(is_scaled));
    json_object_set_new(c, "vocab_size", json_integer(m->vocab_size));
    return c;
}

static const char *const model_types[] = { "t5", NULL };
const struct ckpt_hf_family ckpt_hf_t5 = { .model_types = model_types,
                                           .format = &format,
                                           .gated_format = &gated_format,
                                           .read_config = read_config,
                                           .fit_tensors = fit_tensors,
                                           .unsupported_reason = unsupported_reason,
                                           .make_config = make_config,
                                           .bos_key = "decoder_start_token_id" };
