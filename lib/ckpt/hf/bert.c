/*
 * bert.c - Hugging Face's BertForPreTraining and BertForMaskedLM (type bert), MegatronBertForPreTraining and
 * MegatronBertForMaskedLM (type megatron-bert).  A masked language model has neither binary head nor pooler.
 *
 * Megatron-BERT has norms before attention and MLP.  The original BERT has norms after them.  The norms of the original
 * BERT are those of --apply-residual-connection-post-layernorm under other names: the norm of the embeddings is the
 * input norm of layer 0, the output norm of layer i is the input norm of layer i + 1, and the output norm of the last
 * layer is the final norm.  Only dropout differs: Hugging Face applies dropout to the embeddings after their norm.
 */
#include <inttypes.h>
#include <string.h>
#include "base/log.h"
#include "ckpt/hf/internal.h"
#include "io/json.h"

#define NATIVE "encoder.layers.#."
#define FOREIGN "bert.encoder.layer.#."
/* clang-format off */
#define NORM(native, foreign) \
    { native ".weight", foreign ".weight", CKPT_SAME }, \
    { native ".bias", foreign ".bias", CKPT_SAME }
#define LINEAR NORM
#define COMMON \
    { "embedding.word_embeddings.weight", "bert.embeddings.word_embeddings.weight", CKPT_SAME }, \
    { "embedding.position_embeddings.weight", "bert.embeddings.position_embeddings.weight", CKPT_SAME }, \
    { "embedding.tokentype_embeddings.weight", "bert.embeddings.token_type_embeddings.weight", CKPT_SAME }, \
    { NATIVE "self_attention.linear_qkv.weight", FOREIGN "attention.self.query.weight", CKPT_Q }, \
    { NATIVE "self_attention.linear_qkv.weight", FOREIGN "attention.self.key.weight", CKPT_K }, \
    { NATIVE "self_attention.linear_qkv.weight", FOREIGN "attention.self.value.weight", CKPT_V }, \
    { NATIVE "self_attention.linear_qkv.bias", FOREIGN "attention.self.query.bias", CKPT_Q }, \
    { NATIVE "self_attention.linear_qkv.bias", FOREIGN "attention.self.key.bias", CKPT_K }, \
    { NATIVE "self_attention.linear_qkv.bias", FOREIGN "attention.self.value.bias", CKPT_V }, \
    LINEAR(NATIVE "self_attention.linear_proj", FOREIGN "attention.output.dense"), \
    LINEAR(NATIVE "mlp.linear_fc1", FOREIGN "intermediate.dense"), \
    LINEAR(NATIVE "mlp.linear_fc2", FOREIGN "output.dense"), \
    LINEAR("lm_head.dense", "cls.predictions.transform.dense"), \
    NORM("lm_head.layer_norm", "cls.predictions.transform.LayerNorm"), \
    { "output_layer.weight", "cls.predictions.decoder.weight", CKPT_SAME }, \
    { "output_layer.bias", "cls.predictions.bias", CKPT_SAME }, \
    LINEAR("pooler.dense", "bert.pooler.dense"), \
    LINEAR("binary_head", "cls.seq_relationship")

static const struct ckpt_rename post_norm_names[] = {
    COMMON,
    NORM("encoder.layers.0.input_layernorm", "bert.embeddings.LayerNorm"),
    NORM(NATIVE "input_layernorm", "bert.encoder.layer.#-1.output.LayerNorm"),
    NORM(NATIVE "pre_mlp_layernorm", FOREIGN "attention.output.LayerNorm"),
    NORM("encoder.final_layernorm", "bert.encoder.layer.#-1.output.LayerNorm"),
    { 0 }
};

static const struct ckpt_rename pre_norm_names[] = {
    COMMON,
    NORM(NATIVE "input_layernorm", FOREIGN "attention.ln"),
    NORM(NATIVE "pre_mlp_layernorm", FOREIGN "ln"),
    NORM("encoder.final_layernorm", "bert.encoder.ln"),
    { 0 }
};
/* clang-format on */
/* Without binary head, the pooler is not used. */
static const char *const ignored[] = { "bert.embeddings.position_ids", "bert.embeddings.token_type_ids",
                                       "bert.pooler.dense.weight", "bert.pooler.dense.bias", NULL };
static const struct ckpt_rename copies[] = { { "output_layer.bias", "cls.predictions.decoder.bias", CKPT_SAME },
                                             { 0 } };
#define ADVICE                                                                                                         \
    "; expected the tensors of BertForPreTraining or BertForMaskedLM: the encoder and the "                            \
    "language-model head (cls.predictions), and with the binary head (cls.seq_relationship) the pooler"
static const char *const head[] = { "lm_head.dense.weight",    "lm_head.dense.bias", "lm_head.layer_norm.weight",
                                    "lm_head.layer_norm.bias", "output_layer.bias",  NULL };
/* Heads of BertForSequenceClassification, -TokenClassification, -MultipleChoice and -QuestionAnswering. */
static const char *const other_heads[] = { "classifier.weight", "classifier.bias", "qa_outputs.weight",
                                           "qa_outputs.bias", NULL };
static const struct ckpt_format post_norm_format = { .name = "hf",
                                                     .rename = post_norm_names,
                                                     .prefix = "bert.",
                                                     .ignored = ignored,
                                                     .copies = copies,
                                                     .advice = ADVICE,
                                                     .head = head,
                                                     .other_heads = other_heads };
static const struct ckpt_format pre_norm_format = { .name = "hf",
                                                    .rename = pre_norm_names,
                                                    .prefix = "bert.",
                                                    .ignored = ignored,
                                                    .copies = copies,
                                                    .advice = ADVICE,
                                                    .head = head,
                                                    .other_heads = other_heads };

/* ---- config.json ---- */

/* Read hidden_act, the activation of both the layers and the language-model head in Hugging Face's models. */
static int read_activation(struct meg_model_conf *m, const json_t *config, const char *from, struct meg_err *e)
{
    const int r = ckpt_hf_read_gelu(&m->openai_gelu, config, "hidden_act", "gelu", from, e);

    m->bias_gelu_fusion = m->openai_gelu;
    return r;
}

/* Refuse settings that change the output and that meg's BERT does not have. */
static int check_fixed(const json_t *config, const char *from, struct meg_err *e)
{
    static const struct ckpt_hf_fixed fixed[] = {
        { "is_decoder", false }, { "add_cross_attention", false }, { "tie_word_embeddings", true }, { 0 }
    };
    const char *position = "absolute";
    int r = meg_json_get_str(config, "position_embedding_type", MEG_JSON_OPTIONAL, &position, from, e);

    if (r < 0)
        return r;
    if (strcmp(position, "absolute") != 0)
        return meg_fail(e, MEG_EFORMAT, "%s: unsupported position_embedding_type %.40s; expected absolute", from,
                        position);
    return ckpt_hf_check_fixed(config, fixed, from, e);
}

/* The model has the binary head if the files have it.  Any of the tensors of the language-model head requires all. */
static void fit_tensors(struct meg_model_conf *m, struct meg_ckpt *c)
{
    struct meg_st *st;

    m->bert_binary_head = ckpt_find_tensor(c, 0, "cls.seq_relationship.weight", &st) != NULL;
    c->lacks_head = !ckpt_has_tensor_with_prefix(c, "cls.predictions.");
}

static int read_config(struct meg_model_conf *m, const json_t *config, const char *from, struct meg_err *e)
{
    const struct {
        const char *key;
        int64_t *v;
    } number[] = {
        { "num_hidden_layers", &m->num_layers },
        { "hidden_size", &m->hidden_size },
        { "intermediate_size", &m->ffn_hidden_size },
        { "num_attention_heads", &m->num_attention_heads },
        { "max_position_embeddings", &m->max_position_embeddings },
        { "vocab_size", &m->vocab_size },
    };
    const char *type = "";
    int r;

    m->family = MEG_FAMILY_BERT;
    m->norm_epsilon = 1e-12;
    m->num_tokentypes = 2;
    m->attention_dropout = m->hidden_dropout = 0.1;
    for (size_t i = 0; i < sizeof number / sizeof number[0]; i++)
        if ((r = meg_json_get_i64(config, number[i].key, MEG_JSON_REQUIRED, number[i].v, from, e)) < 0)
            return r;
    if ((r = meg_json_get_str(config, "model_type", MEG_JSON_REQUIRED, &type, from, e)) < 0 ||
        (r = meg_json_get_f64(config, "layer_norm_eps", MEG_JSON_OPTIONAL, &m->norm_epsilon, from, e)) < 0 ||
        (r = meg_json_get_f64(config, "initializer_range", MEG_JSON_OPTIONAL, &m->init_method_std, from, e)) < 0 ||
        (r = meg_json_get_f64(config, "attention_probs_dropout_prob", MEG_JSON_OPTIONAL, &m->attention_dropout, from,
                              e)) < 0 ||
        (r = meg_json_get_f64(config, "hidden_dropout_prob", MEG_JSON_OPTIONAL, &m->hidden_dropout, from, e)) < 0 ||
        (r = meg_json_get_i64(config, "type_vocab_size", MEG_JSON_OPTIONAL, &m->num_tokentypes, from, e)) < 0 ||
        (r = read_activation(m, config, from, e)) < 0)
        return r;
    m->residual_from_norm = strcmp(type, "bert") == 0;
    return check_fixed(config, from, e);
}

static const char *unsupported_reason(const struct meg_model_conf *m)
{
    if (meg_model_is_rotary(m))
        return "the format requires learned positions";
    if (m->normalization != MEG_NORM_LAYER || m->swiglu || !m->has_bias)
        return "the format requires LayerNorm, GELU and biases";
    if (m->num_query_groups != m->num_attention_heads)
        return "the format requires one key and value head per query head";
    if (m->kv_channels * m->num_attention_heads != m->hidden_size)
        return "the format requires --kv-channels equal to --hidden-size / --num-attention-heads";
    if (m->is_untied)
        return "the format has no --untie-embeddings-and-output-weights";
    if (m->num_tokentypes == 0)
        return "the format requires token types, which --bert-no-binary-head omits";
    return NULL;
}

/*
 * Return the name of the activation.  If the head has exact GELU and the layers have its tanh approximation, as in
 * Megatron by default, print a warning, because Hugging Face has one setting for both.
 */
static const char *activation_of(const struct meg_model_conf *m)
{
    if (!m->openai_gelu && !m->bias_gelu_fusion)
        return "gelu";
    if (!m->openai_gelu)
        meg_warn("the language-model head has exact GELU and the layers have its tanh approximation, but Hugging "
                 "Face's format has one hidden_act for both: gelu_new is written, which changes the logits slightly");
    return "gelu_new";
}

static json_t *make_config(const struct meg_model_conf *m)
{
    static const char *const class[2][2] = { { "MegatronBertForMaskedLM", "MegatronBertForPreTraining" },
                                             { "BertForMaskedLM", "BertForPreTraining" } };
    json_t *c = json_object();

    json_object_set_new(c, "architectures", json_pack("[s]", class[m->residual_from_norm][m->bert_binary_head]));
    json_object_set_new(c, "attention_probs_dropout_prob", json_real(m->attention_dropout));
    json_object_set_new(c, "hidden_act", json_string(activation_of(m)));
    json_object_set_new(c, "hidden_dropout_prob", json_real(m->hidden_dropout));
    json_object_set_new(c, "hidden_size", json_integer(m->hidden_size));
    json_object_set_new(c, "initializer_range", json_real(m->init_method_std));
    json_object_set_new(c, "intermediate_size", json_integer(m->ffn_hidden_size));
    json_object_set_new(c, "layer_norm_eps", json_real(m->norm_epsilon));
    json_object_set_new(c, "max_position_embeddings", json_integer(m->max_position_embeddings));
    json_object_set_new(c, "model_type", json_string(m->residual_from_norm ? "bert" : "megatron-bert"));
    json_object_set_new(c, "num_attention_heads", json_integer(m->num_attention_heads));
    json_object_set_new(c, "num_hidden_layers", json_integer(m->num_layers));
    json_object_set_new(c, "pad_token_id", json_integer(0));
    json_object_set_new(c, "position_embedding_type", json_string("absolute"));
    json_object_set_new(c, "tie_word_embeddings", json_true());
    json_object_set_new(c, "type_vocab_size", json_integer(m->num_tokentypes));
    json_object_set_new(c, "vocab_size", json_integer(m->vocab_size));
    return c;
}

static const char *const post_norm_types[] = { "bert", NULL }, *const pre_norm_types[] = { "megatron-bert", NULL };
const struct ckpt_hf_family ckpt_hf_bert = { .model_types = post_norm_types,
                                             .format = &post_norm_format,
                                             .read_config = read_config,
                                             .fit_tensors = fit_tensors,
                                             .unsupported_reason = unsupported_reason,
                                             .make_config = make_config,
                                             .is_bert = true };
const struct ckpt_hf_family ckpt_hf_megatron_bert = { .model_types = pre_norm_types,
                                                      .format = &pre_norm_format,
                                                      .read_config = read_config,
                                                      .fit_tensors = fit_tensors,
                                                      .unsupported_reason = unsupported_reason,
                                                      .make_config = make_config,
                                                      .is_bert = true };
