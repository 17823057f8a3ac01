/* internlm2.c - InternLM2: Llama with other names, and queries, keys and values in one tensor as in Megatron. */
#include "ckpt/hf_types/rows.h"

#define FOREIGN "model.layers.#."
/* clang-format off */
static const struct ckpt_rename names[] = {
    { "embedding.word_embeddings.weight", "model.tok_embeddings.weight", CKPT_SAME },
    CKPT_HF_BOTH(CKPT_HF_LAYER "input_layernorm", FOREIGN "attention_norm", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_qkv", FOREIGN "attention.wqkv", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_proj", FOREIGN "attention.wo", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "pre_mlp_layernorm", FOREIGN "ffn_norm", CKPT_SAME),
    CKPT_HF_GATED(FOREIGN "feed_forward.w1", FOREIGN "feed_forward.w3", FOREIGN "feed_forward.w2"),
    CKPT_HF_BOTH("decoder.final_layernorm", "model.norm", CKPT_SAME),
    { "output_layer.weight", "output.weight", CKPT_SAME },
    { 0 }
};
/* clang-format on */
static const char *const ignored[] = { FOREIGN "attention.rotary_emb.inv_freq", NULL };
static const struct ckpt_format format = { .name = "hf", .rename = names, .prefix = "model.", .ignored = ignored };

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("unset", "unset"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("yes"),
    CKPT_HF_ROPE("10000"),
    { "rms_norm_eps", "norm-epsilon", "1e-06", NULL },
    { "hidden_act", "=", "\"silu\"", NULL },
    { "bias", "=", "false", NULL },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_internlm2 = { .model_type = "internlm2",
                                                  .class_name = "InternLM2ForCausalLM",
                                                  .options = CKPT_HF_LLAMA_OPTIONS,
                                                  .rows = rows,
                                                  .format = &format };
