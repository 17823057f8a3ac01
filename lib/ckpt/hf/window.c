/* window.c - members of config.json that say which layers have a window, which lack rotary positions, and which biases. */
#include <inttypes.h>
#include <string.h>
#include "ckpt/hf/internal.h"
#include "io/json.h"
#include "model/attention_conf.h"

/* ---- windows ---- */

/*
 * The member sliding_window is the number of keys that a query attends to, with its own, by default 4096; null: no
 * window.  A window that covers all positions is none.
 */
static int read_window(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    int64_t tokens = 4096;
    char option[64];
    int code;

    (void)row;
    if (json_is_null(json_object_get(r->object, "sliding_window")))
        return 0;
    code = meg_json_get_i64(r->object, "sliding_window", MEG_JSON_OPTIONAL, &tokens, r->from, r->e);
    if (code == 0 && tokens < 2)
        return meg_fail(r->e, MEG_EFORMAT, "%s: sliding_window is %" PRId64 ", expected null or at least 2", r->from,
                        tokens);
    if (code < 0 || tokens >= r->m->max_position_embeddings)
        return code;
    snprintf(option, sizeof option, "window-size = %" PRId64 ",0\n", tokens - 1);
    ckpt_hf_set_options(r->m, option);
    return 0;
}

/* Return the window of the layers that have one, in tokens before a query; 0: none has one. */
static int64_t window_of(const struct meg_model_conf *m)
{
    int64_t window = 0;

    for (int64_t i = 0; i < m->num_layers && window == 0; i++)
        window = meg_attention_window(m, i);
    return window;
}

static json_t *write_window(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    const int64_t window = window_of(m);

    (void)row;
    return window > 0 ? json_integer(window + 1) : json_null();
}

/* Write the window of a type whose other members can disable it. */
static json_t *write_window_size(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    return window_of(m) > 0 ? write_window(m, row) : NULL;
}

/* Set an option to the list of a property of all layers.  A number of layers that will be refused has no list. */
static void set_pattern(const struct ckpt_hf_reader *r, const char *option, bool (*has)(const void *arg, int64_t i),
                        const void *arg)
{
    struct meg_str line = { 0 };

    if (r->m->num_layers < 1 || r->m->num_layers > 99999)
        return;
    meg_str_printf(&line, "%s = ", option);
    for (int64_t i = 0; i < r->m->num_layers; i++)
        meg_str_printf(&line, "%c%d", i ? ',' : '[', has(arg, i));
    meg_str_printf(&line, "]\n");
    ckpt_hf_set_options(r->m, line.s);
    meg_str_free(&line);
}

static bool is_at_least(const void *arg, int64_t i)
{
    return i >= *(const int64_t *)arg;
}

/* Qwen has a window only if use_sliding_window is true, in the layers from max_window_layers on. */
static int read_qwen_window(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    int64_t first = 28;
    bool is_used = false;
    int code = ckpt_hf_read_bool(r, row->key, &is_used);

    if (code < 0 || !is_used || (code = read_window(r, row)) < 0 ||
        (code = meg_json_get_i64(r->object, "max_window_layers", MEG_JSON_OPTIONAL, &first, r->from, r->e)) < 0)
        return code;
    if (r->m->attn.window_size)
        set_pattern(r, "window-attn-skip-freq", is_at_least, &first);
    return 0;
}

static json_t *write_has_window(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    (void)row;
    return json_boolean(window_of(m) > 0);
}

static bool is_sliding(const void *arg, int64_t i)
{
    const char *type = json_string_value(json_array_get(arg, (size_t)i));

    return type && strcmp(type, "sliding_attention") == 0;
}

/* layer_types lists the type of attention of each layer.  Without a window, sliding_attention is full attention. */
static int read_layer_types(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    json_t *types = NULL, *type;
    size_t i;
    int code = meg_json_get_array(r->object, row->key, MEG_JSON_OPTIONAL, &types, r->from, r->e);

    if (code < 0 || !types)
        return code;
    json_array_foreach(types, i, type)
    {
        const char *name = json_string_value(type) ? json_string_value(type) : "no string";

        if (strcmp(name, "full_attention") != 0 && !is_sliding(types, (int64_t)i))
            return meg_fail(r->e, MEG_EFORMAT,
                            "%s: layer_types: layer %zu is %.40s, but only full_attention and sliding_attention are "
                            "supported",
                            r->from, i, name);
    }
    if ((int64_t)json_array_size(types) != r->m->num_layers)
        return meg_fail(r->e, MEG_EFORMAT, "%s: layer_types has %zu elements, expected %" PRId64, r->from,
                        json_array_size(types), r->m->num_layers);
    if (r->m->attn.window_size)
        set_pattern(r, "window-attn-skip-freq", is_sliding, types);
    return 0;
}

/* The member is not written for a model without windows, in which all layers have full attention. */
static json_t *write_layer_types(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    json_t *types = window_of(m) > 0 ? json_array() : NULL;

    (void)row;
    for (int64_t i = 0; types && i < m->num_layers; i++)
        json_array_append_new(types,
                              json_string(meg_attention_window(m, i) > 0 ? "sliding_attention" : "full_attention"));
    return types;
}

/* Versions of transformers that do not read layer_types expect the windows in the layers from this one on. */
static json_t *write_first_window(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    int64_t i = 0;

    (void)row;
    while (i < m->num_layers && meg_attention_window(m, i) == 0)
        i++;
    return i < m->num_layers ? json_integer(i) : NULL;
}

/* ---- layers without rotary positions ---- */

static bool has_no_rope(const void *arg, int64_t i)
{
    return json_integer_value(json_array_get(arg, (size_t)i)) == 0;
}

/*
 * SmolLM3's no_rope_layers has a 1 for each layer with rotary positions.  If it is missing or null, every
 * no_rope_layer_interval-th layer has none.
 */
static int read_rope_layers(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    json_t *layers = NULL;
    int64_t interval = 4;
    char option[64];
    int code = meg_json_get_array(r->object, row->key, MEG_JSON_OPTIONAL, &layers, r->from, r->e);

    if (code < 0 ||
        (code = meg_json_get_i64(r->object, "no_rope_layer_interval", MEG_JSON_OPTIONAL, &interval, r->from, r->e)) < 0)
        return code;
    if (interval < 1)
        return meg_fail(r->e, MEG_EFORMAT, "%s: no_rope_layer_interval is %" PRId64 ", expected at least 1", r->from,
                        interval);
    if (layers && (int64_t)json_array_size(layers) != r->m->num_layers)
        return meg_fail(r->e, MEG_EFORMAT, "%s: no_rope_layers has %zu elements, expected %" PRId64, r->from,
                        json_array_size(layers), r->m->num_layers);
    snprintf(option, sizeof option, "no-rope-freq = %" PRId64 "\n", interval);
    if (layers)
        set_pattern(r, "no-rope-freq", has_no_rope, layers);
    else
        ckpt_hf_set_options(r->m, option);
    return 0;
}

static json_t *write_rope_layers(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    json_t *layers = json_array();

    (void)row;
    for (int64_t i = 0; i < m->num_layers; i++)
        json_array_append_new(layers, json_integer(meg_attention_rope_set(m, i) != MEG_ROPE_NONE));
    return layers;
}

/* SmolLM3's layers without rotary positions have the window, if use_sliding_window is true. */
static int read_smollm3_window(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    bool is_used = false;
    int code = ckpt_hf_read_bool(r, row->key, &is_used);

    if (code < 0 || !is_used || !json_object_get(r->object, "sliding_window") || (code = read_window(r, row)) < 0)
        return code;
    if (r->m->attn.window_size) {
        json_t *layers = write_rope_layers(r->m, row);

        set_pattern(r, "window-attn-skip-freq", has_no_rope, layers);
        json_decref(layers);
    }
    return 0;
}

/* ---- biases ---- */

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

const struct ckpt_hf_convert ckpt_hf_window = { .read = read_window, .write = write_window };
const struct ckpt_hf_convert ckpt_hf_window_size = { .write = write_window_size };
const struct ckpt_hf_convert ckpt_hf_qwen_window = { .read = read_qwen_window, .write = write_has_window };
const struct ckpt_hf_convert ckpt_hf_first_window = { .write = write_first_window };
const struct ckpt_hf_convert ckpt_hf_smollm3_window = { .read = read_smollm3_window, .write = write_has_window };
const struct ckpt_hf_convert ckpt_hf_layer_types = { .read = read_layer_types, .write = write_layer_types };
const struct ckpt_hf_convert ckpt_hf_rope_layers = { .read = read_rope_layers, .write = write_rope_layers };
const struct ckpt_hf_convert ckpt_hf_mlp_bias = { .read = read_mlp_bias, .write = write_mlp_bias };
