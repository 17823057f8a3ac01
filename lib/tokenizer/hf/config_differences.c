/* config_differences.c - what the files of a tokenizer contradict each other about. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "tokenizer/hf/config.h"

void meg_hf_config_note(const struct meg_hf_config *h, const char *fmt, ...)
{
    va_list ap, again;
    char *note;
    int n;

    va_start(ap, fmt);
    va_copy(again, ap);
    n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    note = meg_new((size_t)n + 1);
    vsnprintf(note, (size_t)n + 1, fmt, ap);
    va_end(ap);
    meg_log_sanitize(note);
    json_array_append_new(h->differences, json_string(note));
    free(note);
}

void meg_hf_config_note_role(const struct meg_hf_config *h, const char *key, bool is_legacy)
{
    const json_t *other = json_object_get(h->special_map, key), *own = json_object_get(h->config, key);
    const char *in_map = json_string_value(json_is_object(other) ? json_object_get(other, "content") : other);
    const char *in_config = json_string_value(json_is_object(own) ? json_object_get(own, "content") : own);

    if (!other || (!own && is_legacy) || (in_map && in_config && strcmp(in_map, in_config) == 0))
        return;
    meg_hf_config_note(h, "%s is '%s' in special_tokens_map.json and '%s' in tokenizer_config.json; the latter is %s",
                       key, in_map ? in_map : "null",
                       in_config ? in_config
                       : own     ? "null"
                                 : "missing",
                       is_legacy ? "ignored" : "used, because it has added_tokens_decoder");
}

void meg_hf_config_note_differences(const struct meg_hf_config *h, const struct meg_hf_added *added,
                                    const struct meg_hf_token_list *list, unsigned named_in, const char *file)
{
    for (int64_t i = 0; i < list->n; i++) {
        const struct meg_hf_token *t = &list->v[i];
        const struct meg_hf_added_token *a = meg_hf_added_find(added, t->s, t->n);

        if (!a || t->named_in != named_in)
            continue;
        if (a->id != t->given_id)
            meg_hf_config_note(h, "'%s' has id %d; %s has %d", t->s, a->id, file, (int)t->given_id);
        if (a->flags.lstrip != t->flags.lstrip || a->flags.rstrip != t->flags.rstrip ||
            a->flags.single_word != t->flags.single_word)
            meg_hf_config_note(h, "'%s' has other values of lstrip, rstrip or single_word than in %s", t->s, file);
    }
}
