/*
 * bert.c - Hugging Face's BertForPreTraining and BertForMaskedLM (type bert), MegatronBertForPreTraining and
 * MegatronBertForMaskedLM (type megatron-bert).  A masked language model has neither binary head nor pooler.
 *
 * Megatron-BERT has norms before attention and MLP.  The original BERT has norms after them.  The norms of the original
 * BERT are those of --apply-residual-connection-post-layernorm under other names: the norm of the embeddings is the
 * input norm of layer 0, the output norm of layer i is the input norm of layer i + 1, and the output norm of the last
 * layer is the final norm.  Only dropout differs: Hugging Face applies dropout to the embeddings after their norm.
 */
#include <string.h>
#include "ckpt/hf/internal.h"

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
#define FORMAT(names)                                                                                                  \
    {                                                                                                                  \
        .name = "hf", .rename = names, .prefix = "bert.", .ignored = ignored, .copies = copies, .advice = ADVICE,      \
        .head = head, .other_heads = other_heads                                                                       \
    }
static const struct ckpt_format post_norm_format = FORMAT(post_norm_names), pre_norm_format = FORMAT(pre_norm_names);

/* ---- config.json ---- */

/* The model has the binary head if the files have it.  Any of the tensors of the language-model head requires all. */
static void fit_tensors(struct meg_model_conf *m, struct meg_ckpt *c)
{
    struct meg_st *st;

    m->bert_binary_head = ckpt_find_tensor(c, 0, "cls.seq_relationship.weight", &st) != NULL;
    c->lacks_head = !ckpt_has_tensor_with_prefix(c, "cls.predictions.");
}

/* The class of the model has the binary head or not.  The tensors determine this as well (fit_tensors). */
static int read_class(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    const char *class = json_string_value(json_array_get(json_object_get(r->object, row->key), 0));

    r->m->bert_binary_head = !class || !strstr(class, "ForMaskedLM");
    return 0;
}

static json_t *write_class(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    static const char *const class[2][2] = { { "MegatronBertForMaskedLM", "MegatronBertForPreTraining" },
                                             { "BertForMaskedLM", "BertForPreTraining" } };

    (void)row;
    return json_pack("[s]", class[m->residual_from_norm][m->bert_binary_head]);
}

/* transformers has an embedding of token types in every BERT. */
static json_t *write_token_types(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    (void)row;
    return m->num_tokentypes > 0 ? json_integer(m->num_tokentypes) : NULL;
}

/*
 * In Megatron by default, the head has exact GELU and the layers have its tanh approximation.  Hugging Face's models
 * have one hidden_act for both.
 */
static const char *approximate(struct meg_model_conf *m)
{
    if (m->openai_gelu || !m->bias_gelu_fusion)
        return NULL;
    m->openai_gelu = true;
    return "the language-model head has exact GELU and the layers have its tanh approximation, but Hugging Face's "
           "format has one hidden_act for both: gelu_new is written, which changes the logits slightly";
}

static const struct ckpt_hf_choice gelus[] = { CKPT_HF_GELUS("openai-gelu = yes\nno-bias-gelu-fusion = no",
                                                             "openai-gelu = no\nno-bias-gelu-fusion = yes") };
static const struct ckpt_hf_convert activation = { .choices = gelus }, token_types = { .write = write_token_types },
                                    class = { .read = read_class, .write = write_class };

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    { "architectures", "bert-no-binary-head", NULL, &class },
    { "num_hidden_layers", "num-layers", NULL, NULL },
    { "hidden_size", "hidden-size", NULL, NULL },
    { "intermediate_size", "ffn-hidden-size", NULL, NULL },
    { "num_attention_heads", "num-attention-heads", NULL, NULL },
    { "max_position_embeddings", "max-position-embeddings", NULL, NULL },
    { "layer_norm_eps", "norm-epsilon", "1e-12", NULL },
    { "initializer_range", "init-method-std", "", NULL },
    { "attention_probs_dropout_prob", "attention-dropout", "0.1", NULL },
    { "hidden_dropout_prob", "hidden-dropout", "0.1", NULL },
    { "type_vocab_size", "num-tokentypes", "2", &token_types },
    { "hidden_act", NULL, "gelu", &activation },
    { "position_embedding_type", NULL, "\"absolute\"", NULL },
    { "is_decoder", NULL, "false", NULL },
    { "add_cross_attention", NULL, "false", NULL },
    { "tie_word_embeddings", NULL, "true", NULL },
    { 0 }
};
/* clang-format on */

#define CONSTANTS "{\"pad_token_id\": 0, \"position_embedding_type\": \"absolute\", \"tie_word_embeddings\": true}"
const struct ckpt_hf_family ckpt_hf_bert = { .model_type = "bert",
                                             .class_name = "BertForPreTraining",
                                             .options =
                                                 "model = bert\napply-residual-connection-post-layernorm = yes\n",
                                             .rows = rows,
                                             .constants = CONSTANTS,
                                             .format = &post_norm_format,
                                             .fit_tensors = fit_tensors,
                                             .approximate = approximate,
                                             .is_bert = true };
const struct ckpt_hf_family ckpt_hf_megatron_bert = { .model_type = "megatron-bert",
                                                      .class_name = "MegatronBertForPreTraining",
                                                      .options = "model = bert\n",
                                                      .rows = rows,
                                                      .constants = CONSTANTS,
                                                      .format = &pre_norm_format,
                                                      .fit_tensors = fit_tensors,
                                                      .approximate = approximate,
                                                      .is_bert = true };
