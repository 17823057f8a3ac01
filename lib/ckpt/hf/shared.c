/* shared.c - conversions of members of config.json that several model types have. */
#include "base/log.h"
#include "ckpt/hf/internal.h"
#include "io/json.h"

/* Llama is supported with biases in all linear layers or in none. */
static int read_mlp_bias(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    bool mlp = false;
    int code = ckpt_hf_read_bool(r, row->key, &mlp);

    if (code < 0 || mlp == r->m->has_bias)
        return code;
    return meg_fail(r->e, MEG_EFORMAT, "%s: attention_bias is %s but mlp_bias is %s; only equal values are supported",
                    r->from, mlp ? "false" : "true", mlp ? "true" : "false");
}

static json_t *write_mlp_bias(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    (void)row;
    return json_boolean(m->has_bias);
}

const struct ckpt_hf_convert ckpt_hf_mlp_bias = { .read = read_mlp_bias, .write = write_mlp_bias };

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

const struct ckpt_hf_convert ckpt_hf_embd_pdrop = { .read = read_embd_pdrop };
static const struct ckpt_hf_choice gelus[] = { CKPT_HF_GELUS("no-bias-gelu-fusion = no",
                                                             "no-bias-gelu-fusion = yes\nopenai-gelu = no") };
const struct ckpt_hf_convert ckpt_hf_gelu = { .choices = gelus };

#define ACTIVATION(name) "activation-func = " name
#define EXACT ACTIVATION("gelu") "\nno-bias-gelu-fusion = yes\nopenai-gelu = no"
static const struct ckpt_hf_choice activations[] = { { "gelu_pytorch_tanh", ACTIVATION("gelu-tanh") },
                                                     { "gelu_new", ACTIVATION("gelu-tanh") },
                                                     { "gelu_fast", ACTIVATION("gelu-tanh") },
                                                     { "gelu_accurate", ACTIVATION("gelu-tanh") },
                                                     { "gelu_python_tanh", ACTIVATION("gelu-tanh") },
                                                     { "gelu", EXACT },
                                                     { "gelu_python", EXACT },
                                                     { "quick_gelu", ACTIVATION("quick-gelu") },
                                                     { "relu", ACTIVATION("relu") },
                                                     { "relu2", ACTIVATION("squared-relu") },
                                                     { "silu", ACTIVATION("silu") },
                                                     { "swish", ACTIVATION("silu") },
                                                     { 0 } };
const struct ckpt_hf_convert ckpt_hf_activation = { .choices = activations };
