/* names.c - names of files, options and tensors in Megatron's checkpoints. */
#include <stdio.h>
#include <string.h>
#include "ckpt/megatron/megatron.h"

const char *ckpt_rank_file(char buf[64], int64_t t, int64_t p, int64_t stages)
{
    if (stages > 1)
        snprintf(buf, 64, "mp_rank_%02d_%03d/" MEGATRON_FILE, (int)t, (int)p);
    else
        snprintf(buf, 64, "mp_rank_%02d/" MEGATRON_FILE, (int)t);
    return buf;
}

bool ckpt_is_megatron(const char *dir)
{
    return ckpt_path_exists(dir, "mp_rank_00") || ckpt_path_exists(dir, "mp_rank_00_000");
}

const char *ckpt_arg_name(char buf[64], const struct meg_opt *row)
{
    static const char *const other[][2] = { { "disable-bias-linear", "add_bias_linear" },
                                            { "no-bias-gelu-fusion", "bias_gelu_fusion" },
                                            { "bert-no-binary-head", "bert_binary_head" } };

    if (row->type == MEG_OPT_ALIAS || row->type == MEG_OPT_IGNORED || meg_opt_is_negated(row) ||
        strcmp(row->name, "model") == 0 || strcmp(row->name, "num-tokentypes") == 0)
        return NULL;
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++)
        if (strcmp(row->name, other[i][0]) == 0)
            return other[i][1];
    snprintf(buf, 64, "%s", row->name);
    for (char *p = buf; *p; p++)
        if (*p == '-')
            *p = '_';
    return buf;
}

bool ckpt_replace_prefix(struct meg_str *out, const char *name, const struct ckpt_prefix_map *table, bool is_foreign)
{
    for (; table->foreign; table++) {
        const char *from = is_foreign ? table->foreign : table->native;
        const size_t n = strlen(from);

        if (strncmp(name, from, n) == 0) {
            meg_str_printf(out, "%s%s", is_foreign ? table->native : table->foreign, name + n);
            return true;
        }
    }
    return false;
}

/* Names before Megatron core.  The writer uses the first row of each native name; later rows are older names. */
const struct ckpt_prefix_map ckpt_legacy_names[] = { { "input_norm.", "input_layernorm." },
                                                     { "self_attention.query_key_value.",
                                                       "self_attention.linear_qkv." },
                                                     { "attention.query_key_value.", "self_attention.linear_qkv." },
                                                     { "self_attention.dense.", "self_attention.linear_proj." },
                                                     { "attention.dense.", "self_attention.linear_proj." },
                                                     { "post_attention_norm.", "pre_mlp_layernorm." },
                                                     { "post_attention_layernorm.", "pre_mlp_layernorm." },
                                                     { "mlp.dense_h_to_4h.", "mlp.linear_fc1." },
                                                     { "mlp.dense_4h_to_h.", "mlp.linear_fc2." },
                                                     { "final_norm.", "final_layernorm." },
                                                     { 0 } };

/* Names in decoder layers with cross-attention.  This table is searched before ckpt_legacy_names. */
const struct ckpt_prefix_map ckpt_legacy_decoder_names[] = {
    { "post_attention_norm.", "pre_cross_attn_layernorm." },
    { "post_attention_layernorm.", "pre_cross_attn_layernorm." },
    { "inter_attention.query.", "cross_attention.linear_q." },
    { "inter_attention.key_value.", "cross_attention.linear_kv." },
    { "inter_attention.dense.", "cross_attention.linear_proj." },
    { "post_inter_attention_norm.", "pre_mlp_layernorm." },
    { "post_inter_attention_layernorm.", "pre_mlp_layernorm." },
    { 0 }
};

/* The writer uses the first row of each native name; later rows are older names. */
const struct ckpt_prefix_map ckpt_legacy_head_names[] = { { "lm_head.norm.", "lm_head.layer_norm." },
                                                          { "lm_head.layernorm.", "lm_head.layer_norm." },
                                                          { "lm_head.bias", "output_layer.bias" },
                                                          { 0 } };

/* T5Model of Megatron core registers two modules under a second name, so its files have two copies of their tensors. */
const struct ckpt_prefix_map ckpt_t5_copies[] = { { "lm_head.output_layer.", "output_layer." },
                                                  { "position_embeddings.", "embedding.position_embeddings." },
                                                  { 0 } };

/* Transformer Engine fuses a norm with the linear layer after it. */
const struct ckpt_prefix_map ckpt_te_names[] = { { "self_attention.linear_qkv.layer_norm_", "input_layernorm." },
                                                 { "mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm." },
                                                 { 0 } };
