/* shared.c - conversions of members of config.json that several model types have. */
#include <math.h>
#include <stdlib.h>
#include "base/log.h"
#include "ckpt/hf/internal.h"
#include "io/json.h"

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

static int read_inverse_root(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    double x = atof(row->def);
    int code = meg_json_get_f64(r->object, row->key, MEG_JSON_OPTIONAL, &x, r->from, r->e);

    if (code == 0 && !(x > 0 && isfinite(x)))
        return meg_fail(r->e, MEG_EFORMAT, "%s: %s is %g, expected a positive number", r->from, row->key, x);
    r->m->attn.scale = 1 / sqrt(x);
    return code;
}

/* Write the integer that is read as the same scale, if there is one. */
static json_t *write_inverse_root(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    const double scale = m->attn.scale > 0 ? m->attn.scale : 1 / sqrt((double)m->attn.d);
    const double x = 1 / (scale * scale), rounded = round(x);

    (void)row;
    return rounded < 0x1p31 && 1 / sqrt(rounded) == scale ? json_integer((json_int_t)rounded) : json_real(x);
}

const struct ckpt_hf_convert ckpt_hf_inverse_root = { .read = read_inverse_root, .write = write_inverse_root };

static int read_rotary_dim(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    int64_t dim = atoll(row->def);
    int code = meg_json_get_i64(r->object, row->key, MEG_JSON_OPTIONAL, &dim, r->from, r->e);

    if (!json_is_null(json_object_get(r->object, row->key)))
        r->m->rotary.percent = (double)dim * (double)r->m->attn.a / (double)r->m->hidden_size;
    return code;
}

static json_t *write_rotary_dim(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    (void)row;
    return json_integer((json_int_t)((double)m->attn.d * m->rotary.percent));
}

const struct ckpt_hf_convert ckpt_hf_rotary_dim = { .read = read_rotary_dim, .write = write_rotary_dim };
