/* starcoder2.c - StarCoder2: LayerNorm, rotary positions, and an MLP with GELU. */
#include "ckpt/hf_types/rows.h"

#define FOREIGN "model.layers.#."
/* clang-format off */
static const struct ckpt_rename names[] = {
    { "embedding.word_embeddings.weight", "model.embed_tokens.weight", CKPT_SAME },
    CKPT_HF_BOTH(CKPT_HF_LAYER "input_layernorm", FOREIGN "input_layernorm", CKPT_SAME),
    CKPT_HF_QKV(FOREIGN "self_attn.q_proj", FOREIGN "self_attn.k_proj", FOREIGN "self_attn.v_proj"),
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_proj", FOREIGN "self_attn.o_proj", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "pre_mlp_layernorm", FOREIGN "post_attention_layernorm", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc1", FOREIGN "mlp.c_fc", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc2", FOREIGN "mlp.c_proj", CKPT_SAME),
    CKPT_HF_BOTH("decoder.final_layernorm", "model.norm", CKPT_SAME),
    { "output_layer.weight", "lm_head.weight", CKPT_SAME },
    { 0 }
};
/* clang-format on */
static const char *const ignored[] = { FOREIGN "self_attn.rotary_emb.inv_freq", NULL };
static const struct ckpt_format format = { .name = "hf", .rename = names, .prefix = "model.", .ignored = ignored };

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("2", "unset"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("no"),
    CKPT_HF_ROPE("10000"),
    { "norm_epsilon", "norm-epsilon", "1e-05", NULL },
    { "hidden_act", NULL, "gelu_pytorch_tanh", &ckpt_hf_gelu },
    { "use_bias", "=", "true", NULL },
    { "mlp_type", NULL, "\"default\"", NULL },
    { "norm_type", NULL, "\"layer_norm\"", NULL },
    { "sliding_window", "=", "0", &ckpt_hf_window },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_starcoder2 = { .model_type = "starcoder2",
                                                   .class_name = "Starcoder2ForCausalLM",
                                                   .options = "position-embedding-type = rope\nhidden-dropout = 0\n",
                                                   .rows = rows,
                                                   .format = &format };
