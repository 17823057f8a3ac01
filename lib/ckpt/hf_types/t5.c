/*
 * t5.c - Hugging Face's T5ForConditionalGeneration: T5 v1.0 (Raffel et al. 2020) and v1.1 (Shazeer 2020).
 *
 * T5 has RMSNorm, linear layers without biases, and attention scores with a relative bias and without scaling.
 * In v1.0, the MLP has ReLU, the output layer is tied to the word embedding, and the input of the output layer is
 * divided by the square root of d_model.  In v1.1, the MLP is gated, and the output layer has its own weight.
 */
#include <math.h>
#include <string.h>
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
    return fabs(m->logit_multiplier * sqrt((double)m->hidden_size) - 1) < 1e-6;
}

/*
 * transformers 4 scales each tied output layer.  If a tied output layer is not scaled, an export therefore writes the
 * output weight and declares it untied, which is the same model in transformers 4 and 5.
 */
static bool copies_output_weight(const struct meg_model_conf *m)
{
    return !m->is_untied && !has_scaled_output(m);
}

#define FORMAT(names)                                                                                                  \
    {                                                                                                                  \
        .name = "hf", .rename = names, .ignored = ignored, .copies = copies,                                           \
        .copies_output_weight = copies_output_weight, .advice = ADVICE                                                 \
    }
static const struct ckpt_format format = FORMAT(names), gated_format = FORMAT(gated_names);

/* ---- config.json ---- */

#define MLP_OPTIONS(swiglu, glu, func, tanh)                                                                           \
    "swiglu = " swiglu "\nglu-activation = " glu "\nactivation-func = " func "\nopenai-gelu = " tanh
static const struct ckpt_hf_choice activations[] = { { "relu", MLP_OPTIONS("no", "none", "relu", "no") },
                                                     { "gated-gelu", MLP_OPTIONS("no", "geglu", "gelu", "yes") },
                                                     { "gated-relu", MLP_OPTIONS("no", "reglu", "gelu", "no") },
                                                     { "gated-silu", MLP_OPTIONS("yes", "none", "gelu", "no") },
                                                     { "gelu", MLP_OPTIONS("no", "none", "gelu", "no") },
                                                     { "gelu_new", MLP_OPTIONS("no", "none", "gelu", "yes") },
                                                     { 0 } };

/* Write the two parts of feed_forward_proj: whether it is gated, and its function.  That of gated-gelu is gelu_new. */
static json_t *write_part(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    const char *name = ckpt_hf_choice_of(m, activations, NULL);
    const size_t n = strncmp(name, "gated-", 6) == 0 ? 6 : 0;

    if (strcmp(row->key, "is_gated_act") == 0)
        return json_boolean(n > 0);
    return json_string(strcmp(name, "gated-gelu") == 0 ? "gelu_new" : name + n);
}

/*
 * Read whether the output layer is tied to the word embedding.  The input of the output layer is scaled if the output
 * layer is tied, except in a model without lm_head.weight (fit_tensors).  transformers 5 stores this in
 * scale_decoder_outputs, and always sets tie_word_embeddings to true.
 */
static int read_scaled(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    bool is_tied = true, is_scaled;
    int code = ckpt_hf_read_bool(r, "tie_word_embeddings", &is_tied);

    is_scaled = is_tied;
    if (code < 0 || (code = ckpt_hf_read_bool(r, row->key, &is_scaled)) < 0)
        return code;
    if (is_scaled && !is_tied)
        return meg_fail(r->e, MEG_EFORMAT,
                        "%s: scale_decoder_outputs is true and tie_word_embeddings is false, but only tied embeddings "
                        "are supported with scaled outputs",
                        r->from);
    r->m->is_untied = !is_scaled;
    if (is_scaled)
        r->m->logit_multiplier = 1 / sqrt((double)r->m->hidden_size);
    return 0;
}

static json_t *write_scaled(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    (void)row;
    return json_boolean(!m->is_untied && has_scaled_output(m));
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

static const char *approximate(struct meg_model_conf *m)
{
    if (m->is_untied)
        return NULL;
    if (has_scaled_output(m)) {
        m->logit_multiplier = 1 / sqrt((double)m->hidden_size); /* the value that read_scaled sets */
        return NULL;
    }
    m->is_untied = true;
    return "the output layer is tied to the word embedding and not scaled, but transformers 4 scales tied output "
           "layers: lm_head.weight, a copy of the word embedding, is written, with tie_word_embeddings false";
}

static const struct ckpt_hf_convert activation = { .choices = activations }, part = { .write = write_part },
                                    scaled = { .read = read_scaled, .write = write_scaled },
                                    tied = { .write = write_scaled };

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    { "num_layers", "num-layers", NULL, NULL },
    { "num_decoder_layers", "decoder-num-layers", "", NULL },
    { "d_model", "hidden-size", NULL, NULL },
    { "d_ff", "ffn-hidden-size", NULL, NULL },
    { "num_heads", "num-attention-heads", NULL, NULL },
    { "d_kv", "kv-channels", "64", NULL },
    { "n_positions", "max-position-embeddings", "512", NULL }, /* the original limit; the relative bias has none */
    { "relative_attention_num_buckets", "relative-attention-num-buckets", "", NULL },
    { "relative_attention_max_distance", "relative-attention-max-distance", "", NULL },
    { "layer_norm_epsilon", "norm-epsilon", "1e-06", NULL },
    { "dropout_rate", "attention-dropout", "0.1", NULL },
    { "dropout_rate", "hidden-dropout", "0.1", NULL },
    { "feed_forward_proj", NULL, "relu", &activation },
    { "dense_act_fn", NULL, NULL, &part },
    { "is_gated_act", NULL, NULL, &part },
    { "scale_decoder_outputs", NULL, NULL, &scaled },
    { "tie_word_embeddings", NULL, NULL, &tied },
    { "is_decoder", NULL, "false", NULL },
    { "is_encoder_decoder", NULL, "true", NULL },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_t5 = {
    .model_type = "t5",
    .class_name = "T5ForConditionalGeneration",
    .options = "model = t5\nposition-embedding-type = relative\nnormalization = RMSNorm\ndisable-bias-linear = yes\n"
               "softmax-scale = 1\n",
    .rows = rows,
    .constants = "{\"decoder_start_token_id\": 0, "
                 "\"eos_token_id\": 1, \"initializer_factor\": 1.0, \"is_encoder_decoder\": true, "
                 "\"pad_token_id\": 0}",
    .format = &format,
    .gated_format = &gated_format,
    .fit_tensors = fit_tensors,
    .approximate = approximate,
    .bos_key = "decoder_start_token_id"
};
