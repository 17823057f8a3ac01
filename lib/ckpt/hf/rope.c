/*
 * rope.c - the rotary positions of config.json: the object rope_scaling, or rope_parameters in transformers 5, which
 * also contains rope_theta and partial_rotary_factor.
 */
#include <math.h>
#include <string.h>
#include "ckpt/hf/internal.h"
#include "io/json.h"

static int read_linear_factor(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    double factor = 1;
    int code = meg_json_get_f64(r->object, row->key, MEG_JSON_REQUIRED, &factor, r->from, r->e);

    if (code == 0 && !(factor >= 1 && factor <= INT32_MAX && factor == floor(factor)))
        return meg_fail(r->e, MEG_EFORMAT,
                        "%s: the factor of linear rope_scaling is %g, expected an integer of at least 1", r->from,
                        factor);
    r->m->rotary.interpolation = (int64_t)factor;
    return code;
}

static json_t *write_linear_factor(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    (void)row;
    return json_real((double)m->rotary.interpolation);
}

static const struct ckpt_hf_convert linear_factor = { .read = read_linear_factor, .write = write_linear_factor };

/* clang-format off */
/* Members of objects of any type. */
static const struct ckpt_hf_row common[] = {
    { "rope_theta", "rotary-base", "", NULL },
    { "partial_rotary_factor", "rotary-percent", "", NULL },
    { "rope_type", NULL, NULL, NULL },
    { "type", NULL, NULL, NULL },
    { 0 }
};
static const struct ckpt_hf_row none[] = { { 0 } };
static const struct ckpt_hf_row linear[] = { { "factor", NULL, NULL, &linear_factor }, { 0 } };
static const struct ckpt_hf_row llama3[] = {
    { "factor", "rope-scaling-factor", NULL, NULL },
    { "low_freq_factor", "=", "1.0", NULL },
    { "high_freq_factor", "=", "4.0", NULL },
    { "original_max_position_embeddings", "=", "8192", NULL },
    { 0 }
};

/* The types of an object, and the options and members of each.  A model has the first type that loses no option. */
#define UNSCALED "use-rope-scaling = no\n"
static const struct ckpt_hf_choice types[] = {
    { "default", UNSCALED "rotary-seq-len-interpolation-factor = 1\n" },
    { "linear", UNSCALED },
    { "llama3", "use-rope-scaling = yes\nrotary-seq-len-interpolation-factor = 1\n" },
    { 0 }
};
static const struct ckpt_hf_row *const members[] = { none, linear, llama3 };
/* clang-format on */

static int find_type(const struct ckpt_hf_reader *r, const char *type)
{
    struct meg_str known = { 0 };
    int i = 0;

    for (; types[i].name && strcmp(types[i].name, type) != 0; i++)
        meg_str_printf(&known, "%s%s", i == 0 ? "" : types[i + 1].name ? ", " : " or ", types[i].name);
    if (!types[i].name)
        i = meg_fail(r->e, MEG_EFORMAT, "%s: unsupported rope_scaling type %.40s; expected %s", r->from, type, known.s);
    meg_str_free(&known);
    return i;
}

static int read_rope(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    struct ckpt_hf_reader o = *r;
    const char *type = "default";
    json_t *object = NULL;
    int code = meg_json_get_object(r->object, row->key, MEG_JSON_OPTIONAL, &object, r->from, r->e), i;

    o.object = object;
    if (code < 0 || !object || (code = ckpt_hf_read_rows(&o, common)) < 0 ||
        (code = meg_json_get_str(object, "type", MEG_JSON_OPTIONAL, &type, r->from, r->e)) < 0 ||
        (code = meg_json_get_str(object, "rope_type", MEG_JSON_OPTIONAL, &type, r->from, r->e)) < 0 ||
        (i = code = find_type(&o, type)) < 0)
        return code;
    if ((code = ckpt_hf_try_options(r->m, types[i].options, r->from, r->e)) < 0 ||
        (code = ckpt_hf_check_keys(&o, (const struct ckpt_hf_row *const[]){ common, members[i], NULL }, row->key)) < 0)
        return code;
    return ckpt_hf_read_rows(&o, members[i]);
}

static json_t *write_rope(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    const char *type = ckpt_hf_choice_of(m, types, NULL);
    json_t *o;
    int i = 0;

    (void)row;
    while (strcmp(types[i].name, type) != 0)
        i++;
    if (members[i] == none)
        return json_null();
    o = json_pack("{s:s}", "rope_type", type);
    ckpt_hf_write_rows(o, m, members[i]);
    return o;
}

const struct ckpt_hf_convert ckpt_hf_rope = { .read = read_rope, .write = write_rope };
const struct ckpt_hf_convert ckpt_hf_rope_of_v5 = { .read = read_rope };
