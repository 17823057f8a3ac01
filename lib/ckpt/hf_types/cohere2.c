/* cohere2.c - Cohere 2: Cohere with rotary positions only in the layers with a window. */
#include "ckpt/hf_types/rows.h"

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("unset", "unset"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("no"),
    CKPT_HF_ROPE("10000"),
    { "layer_norm_eps", "norm-epsilon", "1e-05", NULL },
    { "hidden_act", "=", "\"silu\"", NULL },
    { "attention_bias", "=", "false", NULL },
    { "use_qk_norm", "=", "false", NULL },
    { "logit_scale", "logit-multiplier", "0.0625", NULL },
    { "sliding_window", "=", "4096", &ckpt_hf_window },
    { "sliding_window_pattern|_sliding_window_pattern", "no-rope-freq", "4", &ckpt_hf_window_pattern },
    { "layer_types", "no-rope-freq", NULL, &ckpt_hf_layer_types },
    { "order_of_interleaved_layers", NULL, NULL, NULL },
    { "position_embedding_type", NULL, NULL, NULL },
    { "rotary_pct", NULL, "1", NULL },
    { "use_embedding_sharing", NULL, NULL, NULL },
    { "use_gated_activation", NULL, "true", NULL },
    { "use_parallel_block", NULL, "true", NULL },
    { "use_parallel_embedding", NULL, NULL, NULL },
    { "cache_implementation", NULL, NULL, NULL },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_cohere2 = {
    .model_type = "cohere2",
    .class_name = "Cohere2ForCausalLM",
    .options = "position-embedding-type = rope\nrotary-interleaved = yes\nnorm-no-bias = yes\nswiglu = "
               "yes\nparallel-residual = shared-norm\ndisable-bias-linear = yes\nhidden-dropout = 0\n",
    .rows = rows,
    .format = &ckpt_hf_llama_format
};
