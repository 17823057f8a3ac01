/* opt.c - OPT: GPT-2 with ReLU, and positions from the third row of their table on. */
#include <inttypes.h>
#include "ckpt/hf_types/rows.h"
#include "io/json.h"

#define FOREIGN "model.decoder.layers.#."
/* clang-format off */
static const struct ckpt_rename names[] = {
    { "embedding.word_embeddings.weight", "model.decoder.embed_tokens.weight", CKPT_SAME },
    { "embedding.position_embeddings.weight", "model.decoder.embed_positions.weight", CKPT_SAME },
    CKPT_HF_BOTH(CKPT_HF_LAYER "input_layernorm", FOREIGN "self_attn_layer_norm", CKPT_SAME),
    CKPT_HF_QKV(FOREIGN "self_attn.q_proj", FOREIGN "self_attn.k_proj", FOREIGN "self_attn.v_proj"),
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_proj", FOREIGN "self_attn.out_proj", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "pre_mlp_layernorm", FOREIGN "final_layer_norm", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc1", FOREIGN "fc1", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc2", FOREIGN "fc2", CKPT_SAME),
    CKPT_HF_BOTH("decoder.final_layernorm", "model.decoder.final_layer_norm", CKPT_SAME),
    { "output_layer.weight", "lm_head.weight", CKPT_SAME },
    { 0 }
};
/* clang-format on */
static const char *const ignored[] = { NULL };
static const struct ckpt_format format = { .name = "hf", .rename = names, .prefix = "model.", .ignored = ignored };

/* Read word_embed_proj_dim, the width of the embedding. */
static int read_width(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    int64_t width = r->m->hidden_size;
    int code = meg_json_get_i64(r->object, row->key, MEG_JSON_OPTIONAL, &width, r->from, r->e);

    if (code == 0 && width != r->m->hidden_size)
        return meg_fail(r->e, MEG_EFORMAT,
                        "%s: word_embed_proj_dim is %" PRId64 ", but only hidden_size, %" PRId64 ", is supported",
                        r->from, width, r->m->hidden_size);
    return code;
}

static json_t *write_width(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    (void)row;
    return json_integer(m->hidden_size);
}

static const struct ckpt_hf_convert width = { .read = read_width, .write = write_width };
/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    { "num_hidden_layers", "num-layers", NULL, NULL },
    { "hidden_size", "hidden-size", NULL, NULL },
    { "ffn_dim", "ffn-hidden-size", NULL, NULL },
    { "num_attention_heads", "num-attention-heads", NULL, NULL },
    { "max_position_embeddings", "max-position-embeddings", NULL, NULL },
    { "dropout", "hidden-dropout", "0.1", NULL },
    { "attention_dropout", "attention-dropout", "0", NULL },
    { "init_std", "init-method-std", "", NULL },
    CKPT_HF_TIED("no"),
    { "activation_function", "=", "\"relu\"", NULL },
    { "word_embed_proj_dim", NULL, NULL, &width },
    { "do_layer_norm_before", "=", "true", NULL },
    { "enable_bias", "=", "true", NULL },
    { "layer_norm_elementwise_affine", "=", "true", NULL },
    { "_remove_final_layer_norm", "=", "false", NULL },
    { "layerdrop", NULL, NULL, NULL },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_opt = { .model_type = "opt",
                                            .class_name = "OPTForCausalLM",
                                            .options = "position-embedding-offset = 2\nactivation-func = relu\n",
                                            .rows = rows,
                                            .format = &format };
