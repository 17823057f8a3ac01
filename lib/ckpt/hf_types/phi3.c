/* phi3.c - Phi-3: Llama with queries, keys and values in one tensor, and gate and up in one tensor. */
#include "ckpt/hf_types/rows.h"
#include "io/json.h"

#define FOREIGN "model.layers.#."
/* clang-format off */
static const struct ckpt_rename names[] = {
    { "embedding.word_embeddings.weight", "model.embed_tokens.weight", CKPT_SAME },
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "input_layernorm", FOREIGN "input_layernorm", CKPT_SAME),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "self_attention.linear_qkv", FOREIGN "self_attn.qkv_proj", CKPT_QKV),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "self_attention.linear_proj", FOREIGN "self_attn.o_proj", CKPT_SAME),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "pre_mlp_layernorm", FOREIGN "post_attention_layernorm", CKPT_SAME),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "mlp.linear_fc1", FOREIGN "mlp.gate_up_proj", CKPT_SAME),
    CKPT_HF_WEIGHT(CKPT_HF_LAYER "mlp.linear_fc2", FOREIGN "mlp.down_proj", CKPT_SAME),
    CKPT_HF_WEIGHT("decoder.final_layernorm", "model.norm", CKPT_SAME),
    { "output_layer.weight", "lm_head.weight", CKPT_SAME },
    { 0 }
};
/* clang-format on */
static const char *const ignored[] = { FOREIGN "self_attn.rotary_emb.inv_freq", NULL };
static const struct ckpt_format format = { .name = "hf", .rename = names, .prefix = "model.", .ignored = ignored };

/* Only LongRoPE uses this length, which rope.c reads. */
static json_t *write_original(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    (void)row;
    return m->rotary.long_factors ? json_integer(m->rotary.longrope_original) : NULL;
}

static const struct ckpt_hf_convert original = { .write = write_original };
/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("unset", "unset"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("yes"),
    CKPT_HF_PARTIAL("1"),
    CKPT_HF_ROPE("10000"),
    { "rms_norm_eps", "norm-epsilon", "1e-05", NULL },
    { "hidden_act", "=", "\"silu\"", NULL },
    { "attention_bias", "=", "false", NULL },
    { "original_max_position_embeddings", NULL, NULL, &original },
    { "sliding_window", "=", "0", &ckpt_hf_window },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_phi3 = { .model_type = "phi3",
                                             .class_name = "Phi3ForCausalLM",
                                             .options = CKPT_HF_LLAMA_OPTIONS,
                                             .rows = rows,
                                             .format = &format };
