/* config.c - read and write config.json by the rows of a family. */
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/num.h"
#include "ckpt/hf/internal.h"
#include "io/json.h"

/* Members that do not affect the outputs of a model, or that the tokenizer and generation read. */
static const char *const harmless[] = {
    /* the class and the version of the program */
    "architectures", "model_type", "vocab_size", "torch_dtype", "dtype", "transformers_version", "torchscript",
    "_name_or_path", "_commit_hash", "auto_map", "_attn_implementation*", "attn_implementation", "use_bfloat16",
    "tf_legacy_loss", "pruned_heads", "pretraining_tp", "use_cache", "gradient_checkpointing", "unsloth_*",
    "chunk_size_feed_forward", "is_composition", "tokenizer_class", "finetuning_task", "task_specific_params",
    /* training */
    "initializer_*", "*_dropout", "*_pdrop",
    /* outputs and heads of classifiers */
    "id2label", "label2id", "num_labels", "problem_type", "return_dict*", "output_*", "is_decoder",
    "is_encoder_decoder", "tie_encoder_decoder", "cross_attention_hidden_size", "summary_*",
    /* generation */
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "mask_token_id", "prefix",
    "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "max_length", "min_length", "do_sample",
    "early_stopping", "num_beams", "num_beam_groups", "num_return_sequences", "diversity_penalty", "temperature",
    "top_k", "top_p", "typical_p", "length_penalty", "repetition_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "bad_words_ids", "suppress_tokens",
    "begin_suppress_tokens", "remove_invalid_values"
};

/* Members of any model type with one supported value. */
static const struct ckpt_hf_row refused[] = { { "quantization_config", NULL, "null",
                                                NULL }, /* the weights are packed */
                                              { "add_cross_attention", NULL, "false", NULL },
                                              { "use_bidirectional_attention", NULL, "false", NULL },
                                              { "prefix_lm", NULL, "false", NULL },
                                              { "is_causal", NULL, "true", NULL },
                                              { 0 } };

/* Return the option called name [n]. */
static const struct meg_opt *find_option(const char *name, size_t n)
{
    const struct meg_opt *opt = meg_model_opts;

    while (opt->name && (strncmp(opt->name, name, n) != 0 || opt->name[n]))
        opt++;
    MEG_ASSERT(opt->name);
    return opt;
}

static const struct meg_opt *option_of(const struct ckpt_hf_row *row)
{
    const char *name = row->option + (row->option[0] == '!');

    return find_option(name, strlen(name));
}

void ckpt_hf_set_options(struct meg_model_conf *m, const char *options)
{
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, m }, { 0 } };

    for (const char *line = options; *line; line += strcspn(line, "\n"), line += *line == '\n')
        find_option(line, strcspn(line, " =\n")); /* meg_opt_apply ignores unknown names */
    MEG_ASSERT(meg_opt_apply(groups, options, "options of the type", NULL) == 0);
}

/* ---- names of members ---- */

/* Return the length of the name at the beginning of the list "A|B". */
static size_t name_length(const char *names)
{
    return strcspn(names, "|");
}

static bool is_named(const char *names, const char *key)
{
    for (size_t n;; names += n + 1) {
        n = name_length(names);
        if (strncmp(names, key, n) == 0 && !key[n])
            return true;
        if (!names[n])
            return false;
    }
}

json_t *ckpt_hf_member(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row, const char **key)
{
    const char *name;
    json_t *v;

    json_object_foreach((json_t *)r->object, name, v)
    {
        if (is_named(row->key, name)) {
            *key = name;
            return v;
        }
    }
    *key = row->key;
    return NULL;
}

static bool is_in(const struct ckpt_hf_row *rows, const char *key)
{
    for (; rows->key; rows++)
        if (is_named(rows->key, key))
            return true;
    return false;
}

static bool is_harmless(const char *key)
{
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (fnmatch(harmless[i], key, 0) == 0)
            return true;
    return false;
}

int ckpt_hf_check_keys(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *const *tables, const char *parent)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)r->object, key, v)
    {
        bool is_known = is_harmless(key);

        for (const struct ckpt_hf_row *const *t = tables; *t && !is_known; t++)
            is_known = is_in(*t, key);
        if (!is_known)
            return meg_fail(r->e, MEG_EFORMAT,
                            "%s: unknown member %s%s%.60s, which may affect the model; to convert the model without "
                            "it, use meg-convert with --ignore-config-keys %s%s%.60s",
                            r->from, parent ? parent : "", parent ? "." : "", key, parent ? parent : "",
                            parent ? "." : "", key);
    }
    return 0;
}

void ckpt_hf_remove_keys(json_t *config, const char *list)
{
    char *copy = strdup(list ? list : ""), *save = NULL;

    for (char *key = strtok_r(copy, ",", &save); key; key = strtok_r(NULL, ",", &save)) {
        char *dot = strchr(key, '.');

        if (dot)
            *dot = 0;
        json_object_del(dot ? json_object_get(config, key) : config, dot ? dot + 1 : key);
    }
    free(copy);
}

/* ---- a member with the value of an option ---- */

int ckpt_hf_read_bool(const struct ckpt_hf_reader *r, const char *key, bool *out)
{
    return meg_json_get_bool(r->object, key, MEG_JSON_OPTIONAL, out, r->from, r->e);
}

/* Set the option to its value for a missing or null member. */
static void set_default(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row, bool is_null)
{
    const struct meg_opt *opt = option_of(row);
    const size_t n = name_length(row->def);
    struct meg_str text = { 0 };

    if (is_null && row->def[n])
        meg_str_printf(&text, "%s", row->def + n + 1);
    else
        meg_str_printf(&text, "%.*s", (int)n, row->def);
    if (strcmp(text.s, "unset") == 0)
        meg_opt_reset(opt, r->m);
    else if (text.n > 0)
        MEG_ASSERT(meg_opt_set(opt, r->m, text.s, NULL) == 0);
    meg_str_free(&text);
}

/* Read a number into an option that is a string, such as --embedding-multiplier. */
static int read_text(const struct ckpt_hf_reader *r, const struct meg_opt *opt, const char *key)
{
    double x = 0;
    int code = meg_json_get_f64(r->object, key, MEG_JSON_REQUIRED, &x, r->from, r->e);
    struct meg_str text = { 0 };

    meg_str_printf(&text, "%.17g", x);
    if (code == 0)
        MEG_ASSERT(meg_opt_set(opt, r->m, text.s, NULL) == 0);
    meg_str_free(&text);
    return code;
}

static int read_value(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    const bool is_opposite = row->option[0] == '!';
    const struct meg_opt *opt = option_of(row);
    void *field = (char *)r->m + opt->offset;
    const char *key;
    const json_t *v = ckpt_hf_member(r, row, &key);
    bool is_set;
    int code;

    if (row->def && (!v || json_is_null(v))) {
        set_default(r, row, v != NULL);
        return 0;
    }
    if (!v)
        return meg_fail(r->e, MEG_EFORMAT, "%s: \"%.*s\" is missing", r->from, (int)name_length(key), key);
    if (opt->type == MEG_OPT_I64)
        return meg_json_get_i64(r->object, key, MEG_JSON_REQUIRED, field, r->from, r->e);
    if (opt->type == MEG_OPT_F64)
        return meg_json_get_f64(r->object, key, MEG_JSON_REQUIRED, field, r->from, r->e);
    if (opt->type == MEG_OPT_STR)
        return read_text(r, opt, key);
    code = meg_json_get_bool(r->object, key, MEG_JSON_REQUIRED, &is_set, r->from, r->e);
    if (code == 0)
        *(bool *)field = is_set != is_opposite;
    return code;
}

static json_t *write_value(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    const struct meg_opt *opt = option_of(row);
    const void *field = (const char *)m + opt->offset;

    switch (opt->type) {
    case MEG_OPT_I64: return json_integer(*(const int64_t *)field);
    case MEG_OPT_F64: return isnan(*(const double *)field) ? json_null() : json_real(*(const double *)field);
    case MEG_OPT_STR: return *(const char *const *)field ? json_real(atof(*(const char *const *)field)) : json_null();
    default: return json_boolean(*(const bool *)field != (row->option[0] == '!'));
    }
}

/* ---- a member with one supported value ---- */

static int check_constant(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    const char *key;
    const json_t *v = ckpt_hf_member(r, row, &key);
    struct meg_str text = { 0 };
    double expected;
    int code = 0;

    if (!v || json_is_null(v) ||
        (json_is_number(v) && meg_parse_f64(row->def, &expected) && json_number_value(v) == expected))
        return 0;
    meg_json_dump(v, 0, &text);
    if (strcmp(text.s, row->def) != 0)
        code = meg_fail(r->e, MEG_EFORMAT, "%s: %s is %.60s, but only %s is supported", r->from, key, text.s, row->def);
    meg_str_free(&text);
    return code;
}

/* ---- a member that names a choice ---- */

static int read_choice(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    const struct ckpt_hf_choice *c = row->convert->choices;
    struct meg_str known = { 0 }, text = { 0 };
    const char *key, *name = row->def;
    const json_t *v = ckpt_hf_member(r, row, &key);
    int code = 0;

    if (v && !json_is_null(v)) {
        meg_json_dump(v, 0, &text);
        name = json_is_string(v) ? json_string_value(v) : text.s;
    }
    for (; c->name && strcmp(c->name, name) != 0; c++)
        meg_str_printf(&known, "%s%s", known.n == 0 ? "" : c[1].name ? ", " : " or ", c->name);
    if (c->name)
        ckpt_hf_set_options(r->m, c->options);
    else
        code = meg_fail(r->e, MEG_EFORMAT, "%s: unsupported %s %.40s; expected %s", r->from, key, name, known.s);
    meg_str_free(&known);
    meg_str_free(&text);
    return code;
}

const char *ckpt_hf_choice_of(const struct meg_model_conf *m, const struct ckpt_hf_choice *choices,
                              const char *preferred)
{
    const char *best = NULL;
    int fewest = INT32_MAX;

    for (; choices->name; choices++) {
        struct meg_model_conf chosen = *m;
        int n;

        ckpt_hf_set_options(&chosen, choices->options);
        n = 2 * ckpt_list_lost_options(NULL, m, &chosen) - (preferred && strcmp(choices->name, preferred) == 0);
        best = n < fewest ? choices->name : best;
        fewest = n < fewest ? n : fewest;
    }
    return best;
}

static json_t *write_choice(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    const char *name = ckpt_hf_choice_of(m, row->convert->choices, row->def);
    json_t *v = json_loads(name, JSON_DECODE_ANY, NULL);

    return v ? v : json_string(name);
}

/* ---- config.json ---- */

static bool is_constant(const struct ckpt_hf_row *row)
{
    return !row->option || strcmp(row->option, "=") == 0;
}

/* Read a member that is an object, or, if it is missing, the defaults of its members. */
static int read_object(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    const struct ckpt_hf_row *const tables[] = { row->convert->members, NULL };
    json_t *none = json_object(), *object = none;
    struct ckpt_hf_reader o = *r;
    int code = meg_json_get_object(r->object, row->key, MEG_JSON_OPTIONAL, &object, r->from, r->e);

    o.object = object;
    if (code == 0 && (code = ckpt_hf_check_keys(&o, tables, row->key)) == 0)
        code = ckpt_hf_read_rows(&o, row->convert->members);
    json_decref(none);
    return code;
}

int ckpt_hf_read_rows(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    int code = 0;

    for (; row->key && code == 0; row++)
        if (row->convert && row->convert->read)
            code = row->convert->read(r, row);
        else if (row->convert && row->convert->members)
            code = read_object(r, row);
        else if (row->convert && row->convert->choices)
            code = read_choice(r, row);
        else if (!is_constant(row))
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
    const struct ckpt_hf_row *const tables[] = { family->rows, refused, NULL };
    int r;

    meg_opt_defaults(groups);
    ckpt_hf_set_options(m, family->options);
    if ((r = ckpt_hf_check_keys(&reader, tables, NULL)) < 0 || (r = ckpt_hf_read_rows(&reader, family->rows)) < 0 ||
        (r = ckpt_hf_read_rows(&reader, refused)) < 0)
        return r;
    m->group_query_attention = m->attn.g != MEG_UNSET && m->attn.g != m->attn.a;
    if (m->add_qkv_bias && m->add_proj_bias && m->add_mlp_bias) {
        m->has_bias = true;
        m->add_qkv_bias = m->add_proj_bias = m->add_mlp_bias = false;
    }
    return meg_json_get_i64(config, "vocab_size", MEG_JSON_REQUIRED, &m->vocab_size, from, e);
}

/* Return the value of a member, or NULL if the member is not written. */
static json_t *write_row(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    if (row->convert && row->convert->write)
        return row->convert->write(m, row);
    if (row->convert && row->convert->choices)
        return write_choice(m, row);
    if (row->convert && row->convert->members) {
        json_t *o = json_object();

        ckpt_hf_write_rows(o, m, row->convert->members);
        return o;
    }
    if (!row->option)
        return NULL;
    return is_constant(row) ? json_loads(row->def, JSON_DECODE_ANY, NULL) : write_value(m, row);
}

void ckpt_hf_write_rows(json_t *o, const struct meg_model_conf *m, const struct ckpt_hf_row *rows)
{
    for (; rows->key; rows++) {
        json_t *v = write_row(m, rows);

        if (v)
            json_object_setn_new(o, rows->key, name_length(rows->key), v);
    }
}

json_t *ckpt_hf_make_config(const struct ckpt_hf_family *family, const struct meg_model_conf *m)
{
    json_t *config = json_pack("{s:s,s:I,s:[s]}", "model_type", family->model_type, "vocab_size",
                               (json_int_t)m->vocab_size, "architectures", family->class_name);
    json_t *constants = json_loads(family->constants ? family->constants : "{}", 0, NULL);
    struct meg_model_conf biases = *m;

    json_object_update(config, constants);
    json_decref(constants);
    if (m->has_bias) /* members of config.json select single biases */
        biases.add_qkv_bias = biases.add_proj_bias = biases.add_mlp_bias = true;
    ckpt_hf_write_rows(config, &biases, family->rows);
    return config;
}
