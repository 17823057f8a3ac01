/* seed_oss.c - Seed-OSS: Llama with biases of queries, keys and values. */
#include "ckpt/hf_types/rows.h"

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("8", "128"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("yes"),
    CKPT_HF_ROPE("10000"),
    { "rms_norm_eps", "norm-epsilon", "1e-06", NULL },
    { "hidden_act", "=", "\"silu\"", NULL },
    { "attention_bias", "add-qkv-bias", "yes", NULL },
    { "attention_out_bias", "add-proj-bias", "no", NULL },
    { "mlp_bias", "add-mlp-bias", "no", NULL },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_seed_oss = { .model_type = "seed_oss",
                                                 .class_name = "SeedOssForCausalLM",
                                                 .options = CKPT_HF_LLAMA_OPTIONS,
                                                 .rows = rows,
                                                 .format = &ckpt_hf_llama_format };
