/* window.c - sliding windows and biases of config.json that models cannot have yet. */
#include <inttypes.h>
#include <string.h>
#include "ckpt/hf/internal.h"
#include "io/json.h"

/*
 * Refuse sliding-window attention unless the window covers all positions.  The member sliding_window is the size of the
 * window in tokens, by default 4096.  `remedy` is the end of the message.
 */
static int check_window(const struct ckpt_hf_reader *r, const char *remedy)
{
    int64_t tokens = 4096;
    int code = meg_json_get_i64(r->object, "sliding_window", MEG_JSON_OPTIONAL, &tokens, r->from, r->e);

    if (code < 0 || tokens >= r->m->max_position_embeddings)
        return code;
    return meg_fail(r->e, MEG_EFORMAT,
                    "%s: sliding-window attention over %" PRId64
                    " tokens is not supported, because max_position_embeddings, %" PRId64
                    ", is larger; if no text is longer than the window, set %s",
                    r->from, tokens, r->m->max_position_embeddings, remedy);
}

/* Mistral has no window if sliding_window is null. */
static int read_mistral_window(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    return json_is_null(json_object_get(r->object, row->key)) ? 0 : check_window(r, "sliding_window to null");
}

/* Qwen has a window only if use_sliding_window is true. */
static int read_qwen_window(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    bool is_used = false;
    int code = ckpt_hf_read_bool(r, row->key, &is_used);

    return code < 0 || !is_used ? code : check_window(r, "use_sliding_window to false");
}

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

/* layer_types lists the kind of attention of each layer. */
static int read_layer_types(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    json_t *types = NULL, *type;
    size_t i;
    int code = meg_json_get_array(r->object, row->key, MEG_JSON_OPTIONAL, &types, r->from, r->e);

    json_array_foreach(types, i, type)
    {
        const char *name = json_string_value(type) ? json_string_value(type) : "no string";

        if (code == 0 && strcmp(name, "full_attention") != 0)
            code =
                meg_fail(r->e, MEG_EFORMAT, "%s: layer_types: layer %zu is %.40s, but only full_attention is supported",
                         r->from, i, name);
    }
    return code;
}

static json_t *write_no_window(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    (void)m;
    (void)row;
    return json_false();
}

static json_t *write_mlp_bias(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    (void)row;
    return json_boolean(m->has_bias);
}

const struct ckpt_hf_convert ckpt_hf_window = { .read = read_mistral_window };
const struct ckpt_hf_convert ckpt_hf_qwen_window = { .read = read_qwen_window, .write = write_no_window };
const struct ckpt_hf_convert ckpt_hf_layer_types = { .read = read_layer_types };
const struct ckpt_hf_convert ckpt_hf_mlp_bias = { .read = read_mlp_bias, .write = write_mlp_bias };
