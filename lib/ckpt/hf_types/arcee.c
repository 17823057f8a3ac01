/* arcee.c - Arcee: Llama with squared ReLU instead of SwiGLU. */
#include "ckpt/hf_types/rows.h"

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("unset", "unset"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("yes"),
    CKPT_HF_ROPE("10000"),
    { "rms_norm_eps", "norm-epsilon", "1e-05", NULL },
    { "hidden_act", "=", "\"relu2\"", NULL },
    CKPT_HF_BIASES,
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_arcee = {
    .model_type = "arcee",
    .class_name = "ArceeForCausalLM",
    .options = "position-embedding-type = rope\nnormalization = RMSNorm\nsquared-relu = yes\n"
               "disable-bias-linear = yes\nhidden-dropout = 0\n",
    .rows = rows,
    .format = &ckpt_hf_nemotron_format
};
