/* shared.c - conversions of members of config.json that several model types have. */
#include <inttypes.h>
#include <string.h>
#include "base/log.h"
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

/* There is no window if the member is null or, with `def` null, missing. */
static int read_mistral_window(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    const json_t *v = json_object_get(r->object, row->key);

    return json_is_null(v) || (!v && strcmp(row->def, "null") == 0) ? 0 : check_window(r, "sliding_window to null");
}

/* Qwen has a window only if use_sliding_window is true. */
static int read_qwen_window(const struct ckpt_hf_reader *r, const struct ckpt_hf_row *row)
{
    bool is_used = false;
    int code = ckpt_hf_read_bool(r, row->key, &is_used);

    return code < 0 || !is_used ? code : check_window(r, "use_sliding_window to false");
}

/* layer_types lists the type of attention of each layer. */
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

static json_t *write_no_window(const struct meg_model_conf *m, const struct ckpt_hf_row *row)
{
    (void)m;
    (void)row;
    return json_false();
}

const struct ckpt_hf_convert ckpt_hf_window = { .read = read_mistral_window };
const struct ckpt_hf_convert ckpt_hf_qwen_window = { .read = read_qwen_window, .write = write_no_window };
const struct ckpt_hf_convert ckpt_hf_layer_types = { .read = read_layer_types };
const struct ckpt_hf_convert ckpt_hf_embd_pdrop = { .read = read_embd_pdrop };
static const struct ckpt_hf_choice gelus[] = { CKPT_HF_GELUS("no-bias-gelu-fusion = no",
                                                             "no-bias-gelu-fusion = yes\nopenai-gelu = no") };
const struct ckpt_hf_convert ckpt_hf_gelu = { .choices = gelus };
