/* gemma.c - Gemma: Llama with GEGLU, norms that multiply by 1 + weight, and a factor of the embedding. */
#include "ckpt/hf_types/rows.h"

/* transformers computes the tanh approximation for both names. */
static const struct ckpt_hf_choice gelus[] = { { "gelu_pytorch_tanh", "" }, { "gelu", "" }, { 0 } };
static const struct ckpt_hf_convert gelu = { .choices = gelus };
/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("16", "256"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("no"),
    CKPT_HF_ROPE("10000"),
    { "rms_norm_eps", "norm-epsilon", "1e-06", NULL },
    { "hidden_act", NULL, "gelu_pytorch_tanh", &gelu },
    { "hidden_activation", NULL, "\"gelu_pytorch_tanh\"", NULL },
    { "attention_bias", "=", "false", NULL },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_gemma = {
    .model_type = "gemma",
    .class_name = "GemmaForCausalLM",
    .options = "position-embedding-type = rope\nnormalization = RMSNorm\napply-layernorm-1p = yes\n"
               "glu-activation = geglu\nopenai-gelu = yes\ndisable-bias-linear = yes\nembedding-multiplier = sqrt\n"
               "hidden-dropout = 0\n",
    .rows = rows,
    .format = &ckpt_hf_llama_format
};
