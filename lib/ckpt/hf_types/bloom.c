/* bloom.c - BLOOM: ALiBi, and a norm of the embedding. */
#include "ckpt/hf_types/rows.h"

#define FOREIGN "transformer.h.#."
/* clang-format off */
static const struct ckpt_rename names[] = {
    { "embedding.word_embeddings.weight", "transformer.word_embeddings.weight", CKPT_SAME },
    CKPT_HF_BOTH("embedding.word_embeddings.norm", "transformer.word_embeddings_layernorm", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "input_layernorm", FOREIGN "input_layernorm", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_qkv", FOREIGN "self_attention.query_key_value", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_proj", FOREIGN "self_attention.dense", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "pre_mlp_layernorm", FOREIGN "post_attention_layernorm", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc1", FOREIGN "mlp.dense_h_to_4h", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc2", FOREIGN "mlp.dense_4h_to_h", CKPT_SAME),
    CKPT_HF_BOTH("decoder.final_layernorm", "transformer.ln_f", CKPT_SAME),
    { "output_layer.weight", "lm_head.weight", CKPT_SAME },
    { 0 }
};
/* clang-format on */
static const struct ckpt_format format = { .name = "hf", .rename = names, .prefix = "transformer." };

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    { "n_layer|num_hidden_layers", "num-layers", NULL, NULL },
    { "hidden_size|n_embed", "hidden-size", NULL, NULL },
    { "n_head|num_attention_heads", "num-attention-heads", NULL, NULL },
    { "seq_length", "max-position-embeddings", "2048", NULL },
    CKPT_HF_TRAINING,
    { "hidden_dropout", "hidden-dropout", "0", NULL },
    { "layer_norm_epsilon", "norm-epsilon", "1e-05", NULL },
    CKPT_HF_TIED("no"),
    { "apply_residual_connection_post_layernorm", "=", "false", NULL },
    { "slow_but_exact", NULL, NULL, NULL },
    { "n_inner", NULL, "null", NULL },
    { "offset_alibi", NULL, NULL, NULL },
    { "attention_softmax_in_fp32", NULL, NULL, NULL },
    { "bias_dropout_fusion", NULL, NULL, NULL },
    { "masked_softmax_fusion", NULL, NULL, NULL },
    { "skip_bias_add", NULL, NULL, NULL },
    { "skip_bias_add_qkv", NULL, NULL, NULL },
    { "unk_token_id", NULL, NULL, NULL },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_bloom = { .model_type = "bloom",
                                              .class_name = "BloomForCausalLM",
                                              .options = "position-embedding-type = alibi\nembed-layernorm = yes\n",
                                              .rows = rows,
                                              .format = &format };
