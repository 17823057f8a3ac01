/* attention_conf.c - checks of the options of attention that depend on the layer. */
#include "model/attention_conf.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "model/layer_pattern.h"

/* Set an option, whose field is a string, to a text that stays allocated until the process ends. */
static void set_text(struct meg_model_conf *c, const char *name, const char *text)
{
    const struct meg_opt *row = meg_model_opts;

    while (strcmp(row->name, name) != 0)
        row++;
    MEG_ASSERT(meg_opt_set(row, c, text, NULL) == 0);
}

/* Check the layer pattern of an option, whose value is `text`, and convert the value to canonical notation. */
static int check_pattern(struct meg_model_conf *c, const char *name, const char *text, struct meg_err *e)
{
    struct meg_str canonical = { 0 };
    int r = text ? meg_layer_pattern_parse(&canonical, text, c->num_layers, name, e) : 0;

    if (canonical.n && strcmp(canonical.s, text) != 0)
        set_text(c, name, canonical.s);
    meg_str_free(&canonical);
    return r;
}

/* Parse the integers L,R.  Return false if the text is anything else. */
static bool parse_pair(const char *text, int64_t *left, int64_t *right)
{
    char *end;

    *left = strtoll(text, &end, 10);
    if (end == text || *end != ',')
        return false;
    text = end + 1;
    *right = strtoll(text, &end, 10);
    return end != text && !*end;
}

static int check_window(struct meg_model_conf *c, struct meg_err *e)
{
    const char *text = c->attn.window_size;
    int64_t left, right;
    char canonical[32];

    if (!text)
        return c->attn.window_attn_skip_freq
                   ? meg_fail(e, MEG_EUSAGE, "--window-attn-skip-freq: requires --window-size")
                   : 0;
    if (!parse_pair(text, &left, &right))
        return meg_fail(e, MEG_EUSAGE, "--window-size %s: must be two integers L,R without blanks, such as 4095,0",
                        text);
    if (left != -1 && (left < 1 || left > INT32_MAX))
        return meg_fail(e, MEG_EUSAGE, "--window-size %s: L must be -1, which means no limit, or from 1 to %d", text,
                        INT32_MAX);
    if (right != 0 && right != -1)
        return meg_fail(e, MEG_EUSAGE, "--window-size %s: R must be 0 or -1, because attention is causal", text);
    snprintf(canonical, sizeof canonical, "%" PRId64 ",0", left);
    if (strcmp(canonical, text) != 0)
        set_text(c, "window-size", canonical);
    return check_pattern(c, "window-attn-skip-freq", c->attn.window_attn_skip_freq, e);
}

int meg_attention_conf_check(struct meg_model_conf *c, struct meg_err *e)
{
    int r = check_window(c, e);

    return r < 0 ? r : check_pattern(c, "no-rope-freq", c->rotary.no_rope_freq, e);
}

/* Return the window of the layers that have one; 0: no layer has one. */
static int64_t window(const struct meg_model_conf *c)
{
    const int64_t left = c->attn.window_size ? strtoll(c->attn.window_size, NULL, 10) : -1;

    return left < 0 ? 0 : left;
}

/*
 * Convert the pattern of an option to a list, or to NULL if all layers have the value `otherwise`.  Return whether any
 * layer has the value 1.
 */
static bool normalize_pattern(struct meg_model_conf *c, const char *name, const char **text, bool of_multiple,
                              bool otherwise)
{
    struct meg_str list = { 0 };
    int64_t ones = 0;

    if (!*text)
        return otherwise;
    for (int64_t i = 0; i < c->num_layers; i++) {
        const bool is_one = meg_layer_pattern_at(*text, i, of_multiple);

        ones += is_one;
        meg_str_printf(&list, "%c%d", i ? ',' : '[', is_one);
    }
    meg_str_printf(&list, "]");
    if (ones == (otherwise ? c->num_layers : 0))
        *text = NULL;
    else
        set_text(c, name, list.s);
    meg_str_free(&list);
    return ones > 0;
}

void meg_attention_conf_normalize(struct meg_model_conf *c)
{
    if (!normalize_pattern(c, "window-attn-skip-freq", &c->attn.window_attn_skip_freq, false, true) || window(c) == 0)
        c->attn.window_size = c->attn.window_attn_skip_freq = NULL;
    normalize_pattern(c, "no-rope-freq", &c->rotary.no_rope_freq, true, false);
}

int64_t meg_attention_window(const struct meg_model_conf *c, int64_t i)
{
    const char *pattern = c->attn.window_attn_skip_freq;

    return !pattern || meg_layer_pattern_at(pattern, i, false) ? window(c) : 0;
}

enum meg_rope_set meg_attention_rope_set(const struct meg_model_conf *c, int64_t i)
{
    if (c->rotary.no_rope_freq && meg_layer_pattern_at(c->rotary.no_rope_freq, i, true))
        return MEG_ROPE_NONE;
    return c->rotary.base_window > 0 && meg_attention_window(c, i) > 0 ? MEG_ROPE_WINDOW : MEG_ROPE_FULL;
}
