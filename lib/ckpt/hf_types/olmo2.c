/* olmo2.c - OLMo 2: Llama with norms of the outputs of attention and MLP, and of the queries and keys of a token. */
#include "ckpt/hf_types/rows.h"

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("unset", "unset"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("yes"),
    CKPT_HF_ROPE("10000"),
    { "rms_norm_eps", "norm-epsilon", "1e-05", NULL },
    { "hidden_act", "=", "\"silu\"", NULL },
    { "attention_bias", "=", "false", NULL },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_olmo2 = { .model_type = "olmo2",
                                              .class_name = "Olmo2ForCausalLM",
                                              .options = CKPT_HF_LLAMA_OPTIONS
                                              "norm-placement = output\nqk-layernorm = yes\nqk-norm-scope = width\n",
                                              .rows = rows,
                                              .format = &ckpt_hf_gemma2_format };
