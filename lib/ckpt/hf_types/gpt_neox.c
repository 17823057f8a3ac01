/* gpt_neox.c - GPT-NeoX, such as Pythia: attention and MLP read norms of the same residual stream. */
#include "ckpt/hf_types/rows.h"

#define FOREIGN "gpt_neox.layers.#."
/* clang-format off */
static const struct ckpt_rename names[] = {
    { "embedding.word_embeddings.weight", "gpt_neox.embed_in.weight", CKPT_SAME },
    CKPT_HF_BOTH(CKPT_HF_LAYER "input_layernorm", FOREIGN "input_layernorm", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_qkv", FOREIGN "attention.query_key_value", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_proj", FOREIGN "attention.dense", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "pre_mlp_layernorm", FOREIGN "post_attention_layernorm", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc1", FOREIGN "mlp.dense_h_to_4h", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc2", FOREIGN "mlp.dense_4h_to_h", CKPT_SAME),
    CKPT_HF_BOTH("decoder.final_layernorm", "gpt_neox.final_layer_norm", CKPT_SAME),
    { "output_layer.weight", "embed_out.weight", CKPT_SAME },
    { 0 }
};
/* clang-format on */
static const char *const ignored[] = { FOREIGN "attention.rotary_emb.inv_freq", FOREIGN "attention.bias",
                                       FOREIGN "attention.masked_bias", NULL };
static const struct ckpt_format format = { .name = "hf", .rename = names, .prefix = "gpt_neox.", .ignored = ignored };

static const struct ckpt_hf_choice residuals[] = { { "true", "parallel-residual = two-norms\n" },
                                                   { "false", "parallel-residual = none\n" },
                                                   { 0 } };
static const struct ckpt_hf_convert parallel_residual = { .choices = residuals };
/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_TRAINING,
    { "hidden_dropout", "hidden-dropout", "0", NULL },
    CKPT_HF_TIED("yes"),
    { "rotary_pct|partial_rotary_factor", "rotary-percent", "0.25", NULL },
    { "rotary_emb_base|rope_theta", "rotary-base", "10000", NULL },
    { "rope_scaling", NULL, NULL, &ckpt_hf_rope },
    { "rope_parameters", NULL, NULL, &ckpt_hf_rope_of_v5 },
    { "layer_norm_eps", "norm-epsilon", "1e-05", NULL },
    { "hidden_act", NULL, "gelu", &ckpt_hf_gelu },
    { "attention_bias", NULL, "true", NULL },
    { "use_parallel_residual", NULL, "true", &parallel_residual },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_gpt_neox = { .model_type = "gpt_neox",
                                                 .class_name = "GPTNeoXForCausalLM",
                                                 .options = "position-embedding-type = rope\n",
                                                 .rows = rows,
                                                 .format = &format };
