/* phi.c - Phi-1, 1.5 and 2: attention and MLP read the same norm, and the output layer has a bias. */
#include "ckpt/hf_types/rows.h"

#define FOREIGN "model.layers.#."
/* clang-format off */
static const struct ckpt_rename names[] = {
    { "embedding.word_embeddings.weight", "model.embed_tokens.weight", CKPT_SAME },
    CKPT_HF_BOTH(CKPT_HF_LAYER "input_layernorm", FOREIGN "input_layernorm", CKPT_SAME),
    CKPT_HF_QKV(FOREIGN "self_attn.q_proj", FOREIGN "self_attn.k_proj", FOREIGN "self_attn.v_proj"),
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_proj", FOREIGN "self_attn.dense", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc1", FOREIGN "mlp.fc1", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc2", FOREIGN "mlp.fc2", CKPT_SAME),
    CKPT_HF_BOTH("decoder.final_layernorm", "model.final_layernorm", CKPT_SAME),
    CKPT_HF_BOTH("output_layer", "lm_head", CKPT_SAME),
    { 0 }
};
/* clang-format on */
static const char *const ignored[] = { FOREIGN "self_attn.rotary_emb.inv_freq", NULL };
static const struct ckpt_format format = { .name = "hf", .rename = names, .prefix = "model.", .ignored = ignored };

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    { "num_key_value_heads", "num-query-groups", "unset|unset", NULL },
    CKPT_HF_TRAINING,
    { "resid_pdrop", "hidden-dropout", "0", NULL },
    { "embd_pdrop", "hidden-dropout", NULL, &ckpt_hf_embd_pdrop },
    CKPT_HF_TIED("yes"),
    CKPT_HF_PARTIAL("0.5"),
    CKPT_HF_ROPE("10000"),
    { "layer_norm_eps", "norm-epsilon", "1e-05", NULL },
    { "hidden_act", NULL, "gelu_new", &ckpt_hf_gelu },
    { "qk_layernorm", "=", "false", NULL },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_phi = {
    .model_type = "phi",
    .class_name = "PhiForCausalLM",
    .options = "position-embedding-type = rope\nparallel-residual = shared-norm\nadd-output-bias = yes\n",
    .rows = rows,
    .format = &format
};
