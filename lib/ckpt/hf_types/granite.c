/* granite.c - Granite: Llama with factors of the embedding, the residual branches, the scores and the logits. */
#include <math.h>
#include <stdio.h>
#include "ckpt/hf_types/rows.h"
#include "io/json.h"

static int read_embedding_multiplier(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    double x = 1;
    char option[60];
    int code = meg_json_get_f64(r->object, row->key, MEG_JSON_OPTIONAL, &x, r->from, r->e);

    snprintf(option, sizeof option, "embedding-multiplier = %.17g\n", x);
    if (code == 0)
        ckpt_hf_set_options(r->m, option);
    return code;
}

static json_t *write_embedding_multiplier(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    (void)row;
    return json_real(meg_model_embedding_multiplier(m));
}

/* Logits are divided by logits_scaling. */
static int read_logits_scaling(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    double x = 1;
    int code = meg_json_get_f64(r->object, row->key, MEG_JSON_OPTIONAL, &x, r->from, r->e);

    if (code == 0 && !(x > 0))
        return meg_fail(r->e, MEG_EFORMAT, "%s: logits_scaling is %g, expected a positive number", r->from, x);
    r->m->logit_multiplier = 1 / x;
    return code;
}

/* Write the number with few digits that is read as the same factor, if there is one. */
static json_t *write_logits_scaling(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    const double factor = meg_model_logit_multiplier(m), rounded = round(1e6 / factor) / 1e6;

    (void)row;
    return json_real(rounded > 0 && 1 / rounded == factor ? rounded : 1 / factor);
}

static const struct ckpt_hf_convert embedding = { .read = read_embedding_multiplier,
                                                  .write = write_embedding_multiplier };
static const struct ckpt_hf_convert logits = { .read = read_logits_scaling, .write = write_logits_scaling };
/* clang-format off */
static const struct ckpt_hf_row rows[] = {
    CKPT_HF_SIZES,
    CKPT_HF_HEADS("unset", "unset"),
    CKPT_HF_TRAINING,
    CKPT_HF_TIED("yes"),
    CKPT_HF_ROPE("10000"),
    { "rms_norm_eps", "norm-epsilon", "1e-06", NULL },
    { "hidden_act", "=", "\"silu\"", NULL },
    CKPT_HF_BIASES,
    { "embedding_multiplier", NULL, NULL, &embedding },
    { "attention_multiplier", "softmax-scale", "1", NULL },
    { "residual_multiplier", "residual-multiplier", "1", NULL },
    { "logits_scaling", NULL, NULL, &logits },
    { 0 }
};
/* clang-format on */

const struct ckpt_hf_family ckpt_hf_granite = { .model_type = "granite",
                                                .class_name = "GraniteForCausalLM",
                                                .options = CKPT_HF_LLAMA_OPTIONS,
                                                .rows = rows,
                                                .format = &ckpt_hf_llama_format };
