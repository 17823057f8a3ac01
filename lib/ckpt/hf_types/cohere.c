/* cohere.c - Cohere's Command R: attention and MLP of one LayerNorm without bias, and a factor of the logits. */
#include "ckpt/hf_types/rows.h"

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("unset", "unset"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("no"),
    CKPT_HF_ROPE("500000"),
    { "layer_norm_eps", "norm-epsilon", "1e-05", NULL },
    { "hidden_act", "=", "\"silu\"", NULL },
    { "attention_bias", "=", "false", NULL },
    { "use_qk_norm", "=", "false", NULL },
    { "logit_scale", "logit-multiplier", "0.0625", NULL },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_cohere = {
    .model_type = "cohere",
    .class_name = "CohereForCausalLM",
    .options = "position-embedding-type = rope\nrotary-interleaved = yes\nnorm-no-bias = yes\nswiglu = yes\n"
               "parallel-residual = shared-norm\ndisable-bias-linear = yes\nhidden-dropout = 0\n",
    .rows = rows,
    .format = &ckpt_hf_llama_format
};
