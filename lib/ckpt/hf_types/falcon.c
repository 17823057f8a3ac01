/*
 * falcon.c - Falcon: attention and MLP read the same residual stream.  Falcon-7B has one norm for both and one head of
 * keys and values.  The "new decoder architecture" of Falcon-40B has two norms, and several heads of keys and values.
 */
#include <string.h>
#include "ckpt/hf_types/rows.h"
#include "io/json.h"

#define FOREIGN "transformer.h.#."
/* clang-format off */
#define NAMES(attn_norm, mlp_norm) { \
    { "embedding.word_embeddings.weight", "transformer.word_embeddings.weight", CKPT_SAME }, \
    CKPT_HF_BOTH(CKPT_HF_LAYER "input_layernorm", FOREIGN attn_norm, CKPT_SAME), \
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_qkv", FOREIGN "self_attention.query_key_value", CKPT_SAME), \
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_proj", FOREIGN "self_attention.dense", CKPT_SAME), \
    CKPT_HF_BOTH(CKPT_HF_LAYER "pre_mlp_layernorm", FOREIGN mlp_norm, CKPT_SAME), \
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc1", FOREIGN "mlp.dense_h_to_4h", CKPT_SAME), \
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc2", FOREIGN "mlp.dense_4h_to_h", CKPT_SAME), \
    CKPT_HF_BOTH("decoder.final_layernorm", "transformer.ln_f", CKPT_SAME), \
    { "output_layer.weight", "lm_head.weight", CKPT_SAME }, \
    { 0 } }
/* clang-format on */
static const struct ckpt_rename names[] = NAMES("input_layernorm", "post_attention_layernorm");
static const struct ckpt_rename two_norm_names[] = NAMES("ln_attn", "ln_mlp");
static const struct ckpt_format format = { .name = "hf", .rename = names, .prefix = "transformer." };
static const struct ckpt_format two_norm_format = { .name = "hf", .rename = two_norm_names, .prefix = "transformer." };

static bool is_new(const struct meg_model_conf *m)
{
    return m->parallel_residual == MEG_PARALLEL_RESIDUAL_TWO_NORMS ||
           (m->parallel_residual == MEG_PARALLEL_RESIDUAL_SHARED_NORM && m->attn.g != 1 && m->attn.g != m->attn.a);
}

/*
 * Read new_decoder_architecture and the members that depend on it.  With it, attention and MLP have two norms, or one
 * if num_ln_in_parallel_attn is 1, and num_kv_heads is the number of heads of keys and values.  Without it,
 * parallel_attn selects one norm for both instead of sequential layers, and multi_query selects one head of keys and
 * values instead of as many as heads of queries.
 */
static int read_architecture(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    bool is_new = false, is_parallel = true, is_multi_query = true;
    int64_t num_norms = 2, num_kv_heads = r->m->attn.a;
    int code;

    if ((code = ckpt_hf_read_bool(r, row->key, &is_new)) < 0 ||
        (code = ckpt_hf_read_bool(r, "parallel_attn", &is_parallel)) < 0 ||
        (code = ckpt_hf_read_bool(r, "multi_query", &is_multi_query)) < 0 ||
        (code = meg_json_get_i64(r->object, "num_ln_in_parallel_attn", MEG_JSON_OPTIONAL, &num_norms, r->from, r->e)) <
            0 ||
        (code = meg_json_get_i64(r->object, "n_head_kv", MEG_JSON_OPTIONAL, &num_kv_heads, r->from, r->e)) < 0 ||
        (code = meg_json_get_i64(r->object, "num_kv_heads", MEG_JSON_OPTIONAL, &num_kv_heads, r->from, r->e)) < 0)
        return code;
    r->m->attn.g = is_new ? num_kv_heads : is_multi_query ? 1 : r->m->attn.a;
    r->m->parallel_residual = is_new && num_norms != 1 ? MEG_PARALLEL_RESIDUAL_TWO_NORMS
                              : is_new || is_parallel  ? MEG_PARALLEL_RESIDUAL_SHARED_NORM
                                                       : MEG_PARALLEL_RESIDUAL_NONE;
    return 0;
}

/* Write one of the members that read_architecture reads. */
static json_t *write_architecture(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    if (strcmp(row->key, "new_decoder_architecture") == 0)
        return json_boolean(is_new(m));
    if (strcmp(row->key, "parallel_attn") == 0)
        return json_boolean(m->parallel_residual != MEG_PARALLEL_RESIDUAL_NONE);
    if (strcmp(row->key, "multi_query") == 0)
        return json_boolean(m->attn.g == 1);
    if (!is_new(m))
        return json_null();
    return json_integer(m->parallel_residual == MEG_PARALLEL_RESIDUAL_TWO_NORMS ? 2 : 1);
}

static int read_nothing(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    (void)r;
    (void)row;
    return 0;
}

static json_t *write_kv_heads(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    (void)row;
    return json_integer(m->attn.g);
}

static const struct ckpt_hf_convert architecture = { .read = read_architecture, .write = write_architecture };
static const struct ckpt_hf_convert part_of_it = { .read = read_nothing, .write = write_architecture };
static const struct ckpt_hf_convert kv_heads = { .read = read_nothing, .write = write_kv_heads };
/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    { "num_hidden_layers|n_layer", "num-layers", NULL, NULL },
    { "hidden_size|n_embed", "hidden-size", NULL, NULL },
    { "num_attention_heads|n_head", "num-attention-heads", NULL, NULL },
    { "ffn_hidden_size", "ffn-hidden-size", "unset", NULL },
    { "max_position_embeddings", "max-position-embeddings", "2048", NULL },
    CKPT_HF_TRAINING,
    { "hidden_dropout", "hidden-dropout", "0", NULL },
    CKPT_HF_TIED("no"),
    CKPT_HF_ROPE("10000"),
    { "layer_norm_epsilon", "norm-epsilon", "1e-05", NULL },
    { "activation", "=", "\"gelu\"", NULL },
    { "bias", "disable-bias-linear", "yes", NULL },
    { "alibi", "=", "false", NULL },
    { "apply_residual_connection_post_layernorm", NULL, "false", NULL },
    { "new_decoder_architecture", NULL, NULL, &architecture },
    { "parallel_attn", NULL, NULL, &part_of_it },
    { "multi_query", NULL, NULL, &part_of_it },
    { "num_ln_in_parallel_attn", NULL, NULL, &part_of_it },
    { "num_kv_heads|n_head_kv", NULL, NULL, &kv_heads },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_falcon = { .model_type = "falcon",
                                               .class_name = "FalconForCausalLM",
                                               .options = "position-embedding-type = rope\nno-bias-gelu-fusion = yes\n",
                                               .rows = rows,
                                               .format = &format,
                                               .two_norm_format = &two_norm_format };
