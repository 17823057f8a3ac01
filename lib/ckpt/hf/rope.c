/*
 * rope.c - the rotary positions of config.json: the object rope_scaling, or rope_parameters in transformers 5, which
 * also contains rope_theta and partial_rotary_factor.
 */
#include <stdlib.h>
#include <string.h>
#include "base/num.h"
#include "ckpt/hf/internal.h"
#include "io/json.h"

/* ---- YaRN ---- */

static int read_attention_factor(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    return meg_json_get_f64(r->object, row->key, MEG_JSON_OPTIONAL, &r->m->rotary.yarn_attention_factor, r->from, r->e);
}

static json_t *write_attention_factor(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    (void)row;
    return m->rotary.yarn_attention_factor > 0 ? json_real(m->rotary.yarn_attention_factor) : NULL;
}

/* transformers uses the member mscale only together with mscale_all_dim. */
static int read_mscale(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    double all_dim = 0;
    int code = meg_json_get_f64(r->object, "mscale_all_dim", MEG_JSON_OPTIONAL, &all_dim, r->from, r->e);

    if (code < 0 || all_dim == 0)
        return code;
    return meg_json_get_f64(r->object, row->key, MEG_JSON_OPTIONAL, &r->m->rotary.mscale, r->from, r->e);
}

static json_t *write_mscale(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    (void)row;
    return json_real(m->rotary.mscale);
}

/* ---- LongRoPE ---- */

static const char **factors_of(struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    return strcmp(row->key, "long_factor") == 0 ? &m->rotary.long_factors : &m->rotary.short_factors;
}

/* Read a list of numbers to the option with the same name as the member. */
static int read_factors(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    struct meg_str line = { 0 };
    json_t *list = NULL, *x;
    size_t i;
    int code = meg_json_get_array(r->object, row->key, MEG_JSON_REQUIRED, &list, r->from, r->e);

    meg_str_printf(&line, "rope-%.*s-factors = ", (int)strcspn(row->key, "_"), row->key);
    json_array_foreach(list, i, x)
    {
        char number[MEG_DOUBLE_CHARS];

        meg_str_printf(&line, "%s%s", i ? "," : "", meg_fmt_double(number, json_number_value(x)));
    }
    meg_str_printf(&line, "\n");
    if (code == 0)
        ckpt_hf_set_options(r->m, line.s);
    meg_str_free(&line);
    return code;
}

static json_t *write_factors(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    struct meg_model_conf copy = *m;
    const char *text = *factors_of(&copy, row);
    json_t *list = json_array();

    for (char *end; text && *text; text = end + (*end == ','))
        json_array_append_new(list, json_real(strtod(text, &end)));
    return list;
}

static const struct ckpt_hf_convert factors = { .read = read_factors, .write = write_factors };
static const struct ckpt_hf_convert attention_factor = { .read = read_attention_factor,
                                                         .write = write_attention_factor };
static const struct ckpt_hf_convert mscales = { .read = read_mscale, .write = write_mscale };

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
static const struct ckpt_hf_row linear[] = { { "factor", "rotary-seq-len-interpolation-factor", NULL, NULL }, { 0 } };
static const struct ckpt_hf_row llama3[] = {
    { "factor", "rope-scaling-factor", NULL, NULL },
    { "low_freq_factor", "rope-scaling-low-freq-factor", "1", NULL },
    { "high_freq_factor", "rope-scaling-high-freq-factor", "4", NULL },
    { "original_max_position_embeddings", "rope-scaling-original-max-position-embeddings", NULL, NULL },
    { 0 }
};

/* attention_factor replaces the factor that follows from mscale and mscale_all_dim. */
static const struct ckpt_hf_row yarn[] = {
    { "factor", "rotary-scaling-factor", NULL, NULL },
    { "original_max_position_embeddings", "yarn-original-max-position-embeddings", NULL, NULL },
    { "beta_fast", "yarn-beta-fast", "32", NULL },
    { "beta_slow", "yarn-beta-slow", "1", NULL },
    { "truncate", "yarn-correction-range-round-to-int", "yes", NULL },
    { "attention_factor", NULL, NULL, &attention_factor },
    { "mscale", NULL, NULL, &mscales },
    { "mscale_all_dim", "mscale-all-dim", "0", NULL },
    { 0 }
};

/* The original length may also be a member of config.json. */
static const struct ckpt_hf_row longrope[] = {
    { "long_factor", NULL, NULL, &factors },
    { "short_factor", NULL, NULL, &factors },
    { "original_max_position_embeddings", "rope-original-max-position-embeddings", "", NULL },
    { 0 }
};

/* The types of an object, and the options and members of each.  A model has the first type that loses no option. */
#define UNSCALED "use-rope-scaling = no\n"
#define UNYARN "position-embedding-type = rope\n"
#define UNSTRETCHED "rotary-seq-len-interpolation-factor = 1\n"
static const struct ckpt_hf_choice types[] = {
    { "default", UNSCALED UNSTRETCHED UNYARN },
    { "llama3", "use-rope-scaling = yes\n" UNSTRETCHED UNYARN },
    { "linear", UNSCALED UNYARN },
    { "yarn", UNSCALED UNSTRETCHED "position-embedding-type = yarn\n" },
    { "longrope", UNSCALED UNSTRETCHED UNYARN },
    { 0 }
};
static const struct ckpt_hf_row *const members[] = { none, llama3, linear, yarn, longrope };
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

/* Read an object, which may also have the members `more` of the model type. */
static int read_object(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row, const struct ckpt_hf_row *more)
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
    ckpt_hf_set_options(r->m, types[i].options);
    if ((code = ckpt_hf_check_keys(&o, (const struct ckpt_hf_row *const[]){ common, members[i], more, NULL },
                                   row->key)) < 0 ||
        (code = ckpt_hf_read_rows(&o, members[i])) < 0)
        return code;
    if (members[i] == longrope && r->m->rotary.longrope_original == MEG_UNSET &&
        (code = meg_json_get_i64(r->object, "original_max_position_embeddings", MEG_JSON_REQUIRED,
                                 &r->m->rotary.longrope_original, r->from, r->e)) < 0)
        return code;
    return ckpt_hf_read_rows(&o, more);
}

/* In transformers 5, rope_parameters of models with windows may have an object for each type of layer. */
static const struct ckpt_hf_row of_windows[] = { { "rope_theta", "rotary-base-window", "", NULL },
                                                 { "rope_type", NULL, "\"default\"", NULL },
                                                 { 0 } };
static const struct ckpt_hf_convert window_layers = { .members = of_windows };
static const struct ckpt_hf_row by_layer[] = { { "full_attention", NULL, NULL, &ckpt_hf_rope },
                                               { "sliding_attention", NULL, NULL, &window_layers },
                                               { 0 } };

static int read_rope(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    struct ckpt_hf_reader o = *r;
    int code;

    o.object = json_object_get(r->object, row->key);
    if (!json_object_get(o.object, by_layer[0].key))
        return read_object(r, row, none);
    code = ckpt_hf_check_keys(&o, (const struct ckpt_hf_row *const[]){ by_layer, NULL }, row->key);
    return code < 0 ? code : ckpt_hf_read_rows(&o, by_layer);
}

static json_t *write_rope(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    const char *type = m->rotary.long_factors ? "longrope" : ckpt_hf_choice_of(m, types, NULL);
    json_t *o;
    int i = 0;

    (void)row;
    while (strcmp(types[i].name, type) != 0)
        i++;
    if (members[i] == none)
        return json_null();
    o = json_pack("{s:s}", "rope_type", type);
    ckpt_hf_write_rows(o, m, members[i]);
    if (members[i] == longrope) /* the name of this member in files of Phi-3 */
        json_object_set_new(o, "type", json_string(type));
    return o;
}

const struct ckpt_hf_convert ckpt_hf_rope = { .read = read_rope, .write = write_rope };
const struct ckpt_hf_convert ckpt_hf_rope_of_v5 = { .read = read_rope };

/* ---- Ministral 3 ---- */

static const struct ckpt_hf_row temperature[] = { { "llama_4_scaling_beta", "attn-temperature-beta", "0", NULL },
                                                  { "max_position_embeddings", NULL, NULL, NULL },
                                                  { 0 } };

static int read_ministral3(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    int code = read_object(r, row, temperature);

    if (code == 0 && r->m->rotary.temperature_beta != 0)
        r->m->rotary.temperature_floor = r->m->rotary.yarn_original;
    return code;
}

static json_t *write_ministral3(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    json_t *o = write_rope(m, row);

    if (json_is_null(o))
        o = json_pack("{s:s}", "rope_type", "default");
    ckpt_hf_write_rows(o, m, temperature);
    json_object_set_new(o, "type", json_copy(json_object_get(o, "rope_type")));
    json_object_set_new(o, "rope_theta", json_real(m->rotary.base));
    json_object_set_new(o, "max_position_embeddings", json_integer(m->max_position_embeddings));
    return o;
}

const struct ckpt_hf_convert ckpt_hf_rope_of_ministral3 = { .read = read_ministral3, .write = write_ministral3 };
