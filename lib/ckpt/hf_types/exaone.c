/* exaone.c - EXAONE 3: Llama with other names. */
#include "ckpt/hf_types/rows.h"

#define FOREIGN "transformer.h.#."
/* clang-format off */
static const struct ckpt_rename names[] = {
    { "embedding.word_embeddings.weight", "transformer.wte.weight", CKPT_SAME },
    CKPT_HF_BOTH(CKPT_HF_LAYER "input_layernorm", FOREIGN "ln_1", CKPT_SAME),
    CKPT_HF_QKV(FOREIGN "attn.attention.q_proj", FOREIGN "attn.attention.k_proj", FOREIGN "attn.attention.v_proj"),
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_proj", FOREIGN "attn.attention.out_proj", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "pre_mlp_layernorm", FOREIGN "ln_2", CKPT_SAME),
    CKPT_HF_GATED(FOREIGN "mlp.c_fc_0", FOREIGN "mlp.c_fc_1", FOREIGN "mlp.c_proj"),
    CKPT_HF_BOTH("decoder.final_layernorm", "transformer.ln_f", CKPT_SAME),
    { "output_layer.weight", "lm_head.weight", CKPT_SAME },
    { 0 }
};
/* clang-format on */
static const char *const ignored[] = { FOREIGN "attn.attention.rotary.inv_freq", "transformer.rotary.inv_freq", NULL };
static const struct ckpt_format format = {
    .name = "hf", .rename = names, .prefix = "transformer.", .ignored = ignored
};

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    { "num_layers", "num-layers", NULL, NULL },
    { "hidden_size", "hidden-size", NULL, NULL },
    { "intermediate_size", "ffn-hidden-size", NULL, NULL },
    { "num_attention_heads", "num-attention-heads", NULL, NULL },
    { "max_position_embeddings", "max-position-embeddings", NULL, NULL },
    CKPT_HF_HEADS("unset", "unset"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("yes"),
    CKPT_HF_ROPE("10000"),
    { "layer_norm_epsilon", "norm-epsilon", "1e-05", NULL },
    { "activation_function", "=", "\"silu\"", NULL },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_exaone = { .model_type = "exaone",
                                               .class_name = "ExaoneForCausalLM",
                                               .options = CKPT_HF_LLAMA_OPTIONS,
                                               .rows = rows,
                                               .format = &format };
