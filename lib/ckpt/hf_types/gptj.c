/*
 * gptj.c - GPT-J: attention and MLP read the same norm, RoPE rotates adjacent channels, and only the MLP and the output
 * layer have biases.
 */
#include <inttypes.h>
#include "ckpt/hf_types/rows.h"
#include "io/json.h"

#define FOREIGN "transformer.h.#."
/* clang-format off */
static const struct ckpt_rename names[] = {
    { "embedding.word_embeddings.weight", "transformer.wte.weight", CKPT_SAME },
    CKPT_HF_BOTH(CKPT_HF_LAYER "input_layernorm", FOREIGN "ln_1", CKPT_SAME),
    CKPT_HF_QKV(FOREIGN "attn.q_proj", FOREIGN "attn.k_proj", FOREIGN "attn.v_proj"),
    CKPT_HF_BOTH(CKPT_HF_LAYER "self_attention.linear_proj", FOREIGN "attn.out_proj", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc1", FOREIGN "mlp.fc_in", CKPT_SAME),
    CKPT_HF_BOTH(CKPT_HF_LAYER "mlp.linear_fc2", FOREIGN "mlp.fc_out", CKPT_SAME),
    CKPT_HF_BOTH("decoder.final_layernorm", "transformer.ln_f", CKPT_SAME),
    CKPT_HF_BOTH("output_layer", "lm_head", CKPT_SAME),
    { 0 }
};
/* clang-format on */
static const char *const ignored[] = { FOREIGN "attn.bias", FOREIGN "attn.masked_bias", FOREIGN "attn.causal_mask",
                                       NULL };
static const struct ckpt_format format = {
    .name = "hf", .rename = names, .prefix = "transformer.", .ignored = ignored
};

static double head_size(const struct meg_model_conf *m)
{
    return (double)m->hidden_size / (double)m->attn.a;
}

/* Read rotary_dim, the number of channels of a head that are rotated: 64 if it is missing, and all if it is null. */
static int read_rotary_dim(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    const json_t *v = json_object_get(r->object, row->key);
    const double d = head_size(r->m);
    int64_t dim = json_is_null(v) ? (int64_t)d : 64;
    int code = meg_json_get_i64(r->object, row->key, MEG_JSON_OPTIONAL, &dim, r->from, r->e);

    if (code < 0)
        return code;
    if (!(dim >= 2 && dim % 2 == 0 && (double)dim <= d))
        return meg_fail(r->e, MEG_EFORMAT,
                        "%s: rotary_dim is %" PRId64 ", expected an even number from 2 to the size of a head, %g",
                        r->from, dim, d);
    r->m->rotary.percent = (double)dim / d;
    return 0;
}

static json_t *write_rotary_dim(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    (void)row;
    return json_integer(2 * meg_model_rope_half(m));
}

/* Without biases of attention, the GELU of the default is exact. */
static const struct ckpt_hf_choice gelus[] = { CKPT_HF_GELUS("activation-func = gelu-tanh",
                                                             "activation-func = gelu\nopenai-gelu = no") };
static const struct ckpt_hf_convert gelu = { .choices = gelus },
                                    rotary_dim = { .read = read_rotary_dim, .write = write_rotary_dim };

/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_GPT2_SIZES,
    CKPT_HF_TIED("yes"),
    { "layer_norm_epsilon", "norm-epsilon", "1e-05", NULL },
    { "rotary", NULL, "true", NULL },
    { "rotary_dim", NULL, NULL, &rotary_dim },
    { "activation_function", NULL, "gelu_new", &gelu },
    { "scale_attn_weights", NULL, "true", NULL },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_gptj = {
    .model_type = "gptj",
    .class_name = "GPTJForCausalLM",
    .options = "position-embedding-type = rope\nrotary-interleaved = yes\nparallel-residual = shared-norm\n"
               "disable-bias-linear = yes\nadd-mlp-bias = yes\nadd-output-bias = yes\n",
    .rows = rows,
    .format = &format
};
