/* config.c - read and write config.json by the rows of a family. */
#include <string.h>
#include "base/num.h"
#include "ckpt/hf/internal.h"
#include "io/json.h"

static const struct meg_opt *option_of(const struct ckpt_hf_row *row)
{
    const struct meg_opt *opt = meg_model_opts;

    while (opt->name && strcmp(opt->name, row->option + (row->option[0] == '!')) != 0)
        opt++;
    MEG_ASSERT(opt->name);
    return opt;
}

static void set_options(struct meg_model_conf *m, const char *options)
{
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, m }, { 0 } };

    MEG_ASSERT(meg_opt_apply(groups, options, "family", NULL) == 0);
}

/* ---- a member with the value of an option ---- */

int ckpt_hf_read_bool(const struct ckpt_hf_reader *r, const char *key, bool *out)
{
    return meg_json_get_bool(r->object, key, MEG_JSON_OPTIONAL, out, r->from, r->e);
}

static int read_value(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    const enum meg_json_presence presence = row->def ? MEG_JSON_OPTIONAL : MEG_JSON_REQUIRED;
    const bool is_opposite = row->option[0] == '!';
    const struct meg_opt *opt = option_of(row);
    void *field = (char *)r->m + opt->offset;
    bool is_set;
    int code;

    if (row->def && *row->def)
        MEG_ASSERT(meg_opt_set(opt, r->m, row->def, NULL) == 0);
    if (opt->type == MEG_OPT_I64)
        return meg_json_get_i64(r->object, row->key, presence, field, r->from, r->e);
    if (opt->type == MEG_OPT_F64)
        return meg_json_get_f64(r->object, row->key, presence, field, r->from, r->e);
    is_set = *(bool *)field != is_opposite;
    code = meg_json_get_bool(r->object, row->key, presence, &is_set, r->from, r->e);
    *(bool *)field = is_set != is_opposite;
    return code;
}

static json_t *write_value(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    const struct meg_opt *opt = option_of(row);
    const void *field = (const char *)m + opt->offset;

    switch (opt->type) {
    case MEG_OPT_I64: return json_integer(*(const int64_t *)field);
    case MEG_OPT_F64: return json_real(*(const double *)field);
    default: return json_boolean(*(const bool *)field != (row->option[0] == '!'));
    }
}

/* ---- a member with one supported value ---- */

static int check_constant(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    const json_t *v = json_object_get(r->object, row->key);
    struct meg_str text = { 0 };
    double expected;
    int code = 0;

    if (!v || json_is_null(v) ||
        (json_is_number(v) && meg_parse_f64(row->def, &expected) && json_number_value(v) == expected))
        return 0;
    meg_json_dump(v, 0, &text);
    if (strcmp(text.s, row->def) != 0)
        code = meg_fail(r->e, MEG_EFORMAT, "%s: %s is %.60s, but only %s is supported", r->from, row->key, text.s,
                        row->def);
    meg_str_free(&text);
    return code;
}

/* ---- a member that names a choice ---- */

static int read_choice(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    const struct ckpt_hf_choice *c = row->convert->choices;
    struct meg_str known = { 0 };
    const char *name = row->def;
    int code = meg_json_get_str(r->object, row->key, MEG_JSON_OPTIONAL, &name, r->from, r->e);

    for (; code == 0 && c->name && strcmp(c->name, name) != 0; c++)
        meg_str_printf(&known, "%s%s", known.n == 0 ? "" : c[1].name ? ", " : " or ", c->name);
    if (code == 0 && c->name)
        set_options(r->m, c->options);
    else if (code == 0)
        code = meg_fail(r->e, MEG_EFORMAT, "%s: unsupported %s %.40s; expected %s", r->from, row->key, name, known.s);
    meg_str_free(&known);
    return code;
}

const char *ckpt_hf_choice_of(const struct meg_model_conf *m, const struct ckpt_hf_choice *choices)
{
    const char *best = NULL;
    int fewest = INT32_MAX;

    for (; choices->name; choices++) {
        struct meg_model_conf chosen = *m;
        int n;

        set_options(&chosen, choices->options);
        n = ckpt_list_lost_options(NULL, m, &chosen);
        best = n < fewest ? choices->name : best;
        fewest = n < fewest ? n : fewest;
    }
    return best;
}

/* ---- config.json ---- */

int ckpt_hf_read_rows(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    int code = 0;

    for (; row->key && code == 0; row++)
        if (row->convert && row->convert->read)
            code = row->convert->read(r, row);
        else if (row->convert && row->convert->choices)
            code = read_choice(r, row);
        else if (row->option)
            code = read_value(r, row);
        else if (row->def)
            code = check_constant(r, row);
    return code;
}

int ckpt_hf_read_config(struct meg_model_conf *m, const struct ckpt_hf_family *family, const json_t *config,
                        const char *from, struct meg_err *e)
{
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, m }, { 0 } };
    const struct ckpt_hf_reader reader = { m, config, from, e };
    int r = 0;

    meg_opt_defaults(groups);
    set_options(m, family->options);
    for (int i = 0; i < CKPT_HF_TABLES && family->rows[i] && r == 0; i++)
        r = ckpt_hf_read_rows(&reader, family->rows[i]);
    if (r == 0)
        r = meg_json_get_i64(config, "vocab_size", MEG_JSON_REQUIRED, &m->vocab_size, from, e);
    m->group_query_attention = m->attn.g != MEG_UNSET && m->attn.g != m->attn.a;
    return r;
}

/* Return the value of a member, or NULL if the member is not written. */
static json_t *write_row(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    if (row->convert && row->convert->write)
        return row->convert->write(m, row);
    if (row->convert && row->convert->choices)
        return json_string(ckpt_hf_choice_of(m, row->convert->choices));
    return row->option ? write_value(m, row) : NULL;
}

json_t *ckpt_hf_make_config(const struct ckpt_hf_family *family, const struct meg_model_conf *m)
{
    json_t *config = json_loads(family->constants, 0, NULL);

    json_object_set_new(config, "model_type", json_string(family->model_type));
    json_object_set_new(config, "vocab_size", json_integer(m->vocab_size));
    for (int i = 0; i < CKPT_HF_TABLES && family->rows[i]; i++)
        for (const struct ckpt_hf_row *row = family->rows[i]; row->key; row++) {
            json_t *v = write_row(m, row);

            if (v)
                json_object_set_new(config, row->key, v);
        }
    return config;
}
