/*
 * gpt2.c - Hugging Face's GPT-2: tensor names, layouts and config.json of GPT2LMHeadModel.
 *
 * GPT-2's linear layers are Conv1D with weights [in, out]; c_attn has all queries, then all keys, then all values.
 */
#include "base/log.h"
#include "ckpt/hf/internal.h"
#include "io/json.h"

#define NATIVE "decoder.layers.#."
#define FOREIGN "transformer.h.#."
/* clang-format off */
static const struct ckpt_rename names[] = {
    { "embedding.word_embeddings.weight", "transformer.wte.weight", CKPT_SAME },
    { "embedding.position_embeddings.weight", "transformer.wpe.weight", CKPT_SAME },
    { NATIVE "input_layernorm.weight", FOREIGN "ln_1.weight", CKPT_SAME },
    { NATIVE "input_layernorm.bias", FOREIGN "ln_1.bias", CKPT_SAME },
    { NATIVE "self_attention.linear_qkv.weight", FOREIGN "attn.c_attn.weight", CKPT_QKV_TRANSPOSED },
    { NATIVE "self_attention.linear_qkv.bias", FOREIGN "attn.c_attn.bias", CKPT_QKV },
    { NATIVE "self_attention.linear_proj.weight", FOREIGN "attn.c_proj.weight", CKPT_TRANSPOSED },
    { NATIVE "self_attention.linear_proj.bias", FOREIGN "attn.c_proj.bias", CKPT_SAME },
    { NATIVE "pre_mlp_layernorm.weight", FOREIGN "ln_2.weight", CKPT_SAME },
    { NATIVE "pre_mlp_layernorm.bias", FOREIGN "ln_2.bias", CKPT_SAME },
    { NATIVE "mlp.linear_fc1.weight", FOREIGN "mlp.c_fc.weight", CKPT_TRANSPOSED },
    { NATIVE "mlp.linear_fc1.bias", FOREIGN "mlp.c_fc.bias", CKPT_SAME },
    { NATIVE "mlp.linear_fc2.weight", FOREIGN "mlp.c_proj.weight", CKPT_TRANSPOSED },
    { NATIVE "mlp.linear_fc2.bias", FOREIGN "mlp.c_proj.bias", CKPT_SAME },
    { "decoder.final_layernorm.weight", "transformer.ln_f.weight", CKPT_SAME },
    { "decoder.final_layernorm.bias", "transformer.ln_f.bias", CKPT_SAME },
    { "output_layer.weight", "lm_head.weight", CKPT_SAME },
    { 0 }
};
/* clang-format on */
/* Buffers of the causal mask, which older versions of transformers store with the weights. */
static const char *const ignored[] = { FOREIGN "attn.bias", FOREIGN "attn.masked_bias", NULL };
static const struct ckpt_format format = {
    .name = "hf", .rename = names, .prefix = "transformer.", .ignored = ignored
};

/* ---- config.json ---- */

/* Read embd_pdrop, which should equal resid_pdrop. */
static int read_embd_pdrop(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    const double p = r->m->hidden_dropout;
    double embd = p;
    int code = meg_json_get_f64(r->object, row->key, MEG_JSON_OPTIONAL, &embd, r->from, r->e);

    if (code == 0 && embd != p)
        meg_warn("%s: embd_pdrop %g differs from resid_pdrop %g; --hidden-dropout, used for both, is set to %g",
                 r->from, embd, p, p);
    return code;
}

static const struct ckpt_hf_choice gelus[] = { CKPT_HF_GELUS("no-bias-gelu-fusion = no",
                                                             "no-bias-gelu-fusion = yes\nopenai-gelu = no") };
static const struct ckpt_hf_convert activation = { .choices = gelus }, embd_pdrop = { .read = read_embd_pdrop };

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    { "n_layer", "num-layers", NULL, NULL },
    { "n_embd", "hidden-size", NULL, NULL },
    { "n_head", "num-attention-heads", NULL, NULL },
    { "n_inner", "ffn-hidden-size", "", NULL },
    { "n_ctx", "max-position-embeddings", "", NULL }, /* an older name of n_positions, which is used */
    { "n_positions", "max-position-embeddings", NULL, NULL },
    { "layer_norm_epsilon", "norm-epsilon", "1e-05", NULL },
    { "initializer_range", "init-method-std", "", NULL },
    { "attn_pdrop", "attention-dropout", "0.1", NULL },
    { "resid_pdrop", "hidden-dropout", "0.1", NULL },
    { "embd_pdrop", "hidden-dropout", NULL, &embd_pdrop },
    { "tie_word_embeddings", "!untie-embeddings-and-output-weights", "no", NULL },
    { "activation_function", NULL, "gelu_new", &activation },
    { "scale_attn_weights", NULL, "true", NULL },
    { "scale_attn_by_inverse_layer_idx", NULL, "false", NULL },
    { "add_cross_attention", NULL, "false", NULL },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_gpt2 = {
    .model_type = "gpt2", .class_name = "GPT2LMHeadModel", .options = "", .rows = rows, .format = &format
};
