/*
 * layers.c - members of config.json on which layers depend: windows, and layers without rotary positions.
 *
 * A window of W tokens contains the query itself, so --window-size is W-1,0.  A pattern is read as the list of all
 * layers, whatever its notation in config.json.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "ckpt/hf/internal.h"
#include "io/json.h"
#include "model/attention_conf.h"
#include "model/layer_pattern.h"

static int64_t num_layers(const struct meg_model_conf *m)
{
    return m->num_layers >= 1 && m->num_layers <= 99999 ? m->num_layers : 0;
}

static void set_option(struct meg_model_conf *m, const char *name, const char *text)
{
    struct meg_str line = { 0 };

    meg_str_printf(&line, "%s = %s\n", name, text);
    ckpt_hf_set_options(m, line.s);
    meg_str_free(&line);
}

/* Set the option to the list of the layers, which is 1 where is_set, with this `arg`, returns true. */
static void set_pattern(struct meg_model_conf *m, const char *name, bool is_set(const void *arg, int64_t i),
                        const void *arg)
{
    const int64_t n = num_layers(m);
    struct meg_str list = { 0 };

    for (int64_t i = 0; i < n; i++)
        meg_str_printf(&list, "%s%d", i ? "," : "[", is_set(arg, i));
    meg_str_printf(&list, "]");
    if (n > 0)
        set_option(m, name, list.s);
    meg_str_free(&list);
}

/* ---- windows ---- */

/* Return the number of tokens in a window, or 0 if there is none. */
static int64_t window_of(const struct meg_model_conf *m)
{
    const int64_t left = m->attn.window_size ? strtoll(m->attn.window_size, NULL, 10) : -1;

    return left < 0 ? 0 : left + 1;
}

static int read_window(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    const char *key;
    const json_t *v = ckpt_hf_member(r, row, &key);
    int64_t tokens = v ? 0 : strtoll(row->def, NULL, 10);
    int code = meg_json_get_i64(r->object, key, MEG_JSON_OPTIONAL, &tokens, r->from, r->e);
    char text[32];

    if (code < 0)
        return code;
    if (tokens < 0 || tokens == 1 || tokens > INT32_MAX)
        return meg_fail(r->e, MEG_EFORMAT, "%s: %s is %" PRId64 ", expected null or from 2 to %d", r->from, key, tokens,
                        INT32_MAX);
    snprintf(text, sizeof text, "%" PRId64 ",0", tokens - 1);
    if (tokens > 0)
        set_option(r->m, "window-size", text);
    return 0;
}

/* Without a window, the member is null or, unless the option of the row is "=", missing. */
static json_t *write_window(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    const int64_t tokens = window_of(m);

    return tokens > 0 ? json_integer(tokens) : row->option ? json_null() : NULL;
}

/* Read whether there are windows. */
static int read_use_window(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    bool is_used = false;
    int code = ckpt_hf_read_bool(r, row->key, &is_used);

    if (!is_used)
        r->m->attn.window_size = NULL;
    return code;
}

static json_t *write_use_window(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    (void)row;
    return json_boolean(window_of(m) > 0);
}

static bool is_from(const void *first, int64_t i)
{
    return i >= *(const int64_t *)first;
}

/* Read the number of layers before the first one with a window. */
static int read_first_window(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    int64_t first = strtoll(row->def, NULL, 10);
    int code = meg_json_get_i64(r->object, row->key, MEG_JSON_OPTIONAL, &first, r->from, r->e);

    if (code == 0 && r->m->attn.window_size)
        set_pattern(r->m, "window-attn-skip-freq", is_from, &first);
    return code;
}

static json_t *write_first_window(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    int64_t i = 0;

    (void)row;
    while (i < m->num_layers && meg_attention_window(m, i) == 0)
        i++;
    return window_of(m) > 0 ? json_integer(i) : NULL;
}

/* ---- types of layers ---- */

/* The names of layers with and without a window. */
static const char *const window_name[2][2] = { { "sliding_attention", "full_attention" }, { "local", "global" } };

/* The types of the layers: a list of their names, or of letters L and G that is repeated; or each nth layer is full. */
struct layer_types {
    const json_t *list;
    const char *letters;
    int64_t period;
};

static bool has_window(const void *arg, int64_t i)
{
    const struct layer_types *t = arg;
    const char *name = json_string_value(json_array_get(t->list, (size_t)i));

    if (t->list)
        return name && (strcmp(name, window_name[0][0]) == 0 || strcmp(name, window_name[1][0]) == 0);
    return t->letters ? t->letters[(size_t)i % strlen(t->letters)] == 'L' : t->period < 1 || (i + 1) % t->period != 0;
}

static bool has_no_window(const void *arg, int64_t i)
{
    return !has_window(arg, i);
}

static int check_list(const struct ckpt_hf_reader *r, const char *key, const json_t *list)
{
    const json_t *type;
    size_t i;

    if (json_array_size(list) != (size_t)num_layers(r->m))
        return meg_fail(r->e, MEG_EFORMAT, "%s: %s has %zu elements, expected one for each of %" PRId64 " layers",
                        r->from, key, json_array_size(list), r->m->num_layers);
    json_array_foreach(list, i, type)
    {
        const char *name = json_string_value(type) ? json_string_value(type) : "";
        bool is_known = false;

        for (int k = 0; k < 4; k++)
            is_known |= strcmp(name, window_name[k / 2][k % 2]) == 0;
        if (!is_known)
            return meg_fail(r->e, MEG_EFORMAT,
                            "%s: %s: layer %zu is %.40s, but only full_attention and sliding_attention are supported",
                            r->from, key, i, *name ? name : "no string");
    }
    return 0;
}

/*
 * Read the layers with a window: a list of types, the period of layers without one, or letters.  If the member is
 * missing, `def` is the period; NULL: the layers remain as they are.  If the option of the row is "no-rope-freq",
 * layers without a window have no rotary positions, but if it is "=no-rope-freq", only if other layers have a window.
 */
static int read_layer_types(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    const char *key;
    const json_t *v = ckpt_hf_member(r, row, &key);
    struct layer_types t = { .list = json_is_array(v) ? v : NULL, .letters = json_string_value(v) };
    int code = t.list ? check_list(r, key, t.list) : 0;

    if (code < 0)
        return code;
    if (!v || json_is_null(v)) {
        if (!row->def)
            return 0;
        t.period = strtoll(row->def, NULL, 10);
    } else if (!t.list && !t.letters &&
               (code = meg_json_get_i64(r->object, key, MEG_JSON_REQUIRED, &t.period, r->from, r->e)) < 0) {
        return code;
    }
    if (t.letters && (!*t.letters || t.letters[strspn(t.letters, "LG")]))
        return meg_fail(r->e, MEG_EFORMAT, "%s: %s is %.40s, expected letters L and G", r->from, key, t.letters);
    if (r->m->attn.window_size)
        set_pattern(r->m, "window-attn-skip-freq", has_window, &t);
    if (row->option && (row->option[0] != '=' || r->m->attn.window_size))
        set_pattern(r->m, "no-rope-freq", has_no_window, &t);
    return 0;
}

static json_t *write_list(const struct meg_model_conf *m, const char *const name[2])
{
    json_t *list = json_array();

    for (int64_t i = 0; i < m->num_layers; i++)
        json_array_append_new(list, json_string(name[meg_attention_window(m, i) == 0]));
    return list;
}

static json_t *write_layer_types(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    return window_of(m) > 0 || row->def ? write_list(m, window_name[0]) : NULL;
}

static json_t *write_nothing(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    (void)m;
    (void)row;
    return NULL;
}

/* GPT-Neo: a list of a list of types and the number of its repetitions. */
static int read_attention_types(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    json_t *list = json_array(), *part, *all = NULL;
    int code = meg_json_get_array(r->object, row->key, MEG_JSON_REQUIRED, &all, r->from, r->e);
    const struct layer_types t = { .list = list };
    size_t i;

    json_array_foreach(all, i, part)
    {
        for (json_int_t n = json_integer_value(json_array_get(part, 1));
             n-- > 0 && json_array_size(list) <= (size_t)num_layers(r->m);)
            json_array_extend(list, json_array_get(part, 0));
    }
    if (code == 0 && (code = check_list(r, row->key, list)) == 0)
        set_pattern(r->m, "window-attn-skip-freq", has_window, &t);
    json_decref(list);
    return code;
}

static json_t *write_attention_types(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    (void)row;
    return json_pack("[[o,i]]", write_list(m, window_name[1]), 1);
}

/* ---- rotary positions ---- */

static bool is_zero(const void *list, int64_t i)
{
    return json_integer_value(json_array_get(list, (size_t)i)) == 0;
}

static bool is_multiple(const void *period, int64_t i)
{
    return (i + 1) % *(const int64_t *)period == 0;
}

/* SmolLM3: a list with 0 for layers without rotary positions, which are the ones with a window if there is any. */
static int read_rotates(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    json_t *list = NULL;
    int64_t period = strtoll(row->def, NULL, 10);
    int code = meg_json_get_array(r->object, row->key, MEG_JSON_OPTIONAL, &list, r->from, r->e);

    if (code < 0 ||
        (code = meg_json_get_i64(r->object, "no_rope_layer_interval", MEG_JSON_OPTIONAL, &period, r->from, r->e)) < 0)
        return code;
    if (period < 1 || (list && json_array_size(list) != (size_t)num_layers(r->m)))
        return meg_fail(r->e, MEG_EFORMAT, "%s: %s must have one element for each of %" PRId64 " layers", r->from,
                        row->key, r->m->num_layers);
    set_pattern(r->m, "no-rope-freq", list ? is_zero : is_multiple, list ? (const void *)list : &period);
    if (r->m->attn.window_size)
        set_pattern(r->m, "window-attn-skip-freq", list ? is_zero : is_multiple, list ? (const void *)list : &period);
    return 0;
}

static json_t *write_rotates(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    const char *none = m->rotary.no_rope_freq;
    json_t *list = json_array();

    (void)row;
    for (int64_t i = 0; i < m->num_layers; i++)
        json_array_append_new(list, json_integer(!none || !meg_layer_pattern_at(none, i, true)));
    return list;
}

const struct ckpt_hf_convert ckpt_hf_window = { .read = read_window, .write = write_window },
                             ckpt_hf_use_window = { .read = read_use_window, .write = write_use_window },
                             ckpt_hf_first_window = { .read = read_first_window, .write = write_first_window },
                             ckpt_hf_layer_types = { .read = read_layer_types, .write = write_layer_types },
                             ckpt_hf_window_pattern = { .read = read_layer_types, .write = write_nothing },
                             ckpt_hf_attention_types = { .read = read_attention_types, .write = write_attention_types },
                             ckpt_hf_rotates = { .read = read_rotates, .write = write_rotates };
