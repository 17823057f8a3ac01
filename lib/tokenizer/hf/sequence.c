/* What the parts of a tokenizer.json share: a type, and sequences that hold parts of their own kind. */
#include <string.h>

#include "io/json.h"
#include "tokenizer/hf/internal.h"

int meg_hf_get_type(const json_t *part, const char **type, const char *from, struct meg_err *e)
{
    if (!json_is_object(part))
        return meg_fail(e, MEG_EFORMAT, "%s: an object with a type is expected", from);
    return meg_json_get_str(part, "type", MEG_JSON_REQUIRED, type, from, e);
}

int meg_hf_unknown_type(const char *type, const char *from, struct meg_err *e)
{
    return meg_fail(e, MEG_EFORMAT, "%s: type '%s' is not known here", from, type);
}

int meg_hf_get_string(const json_t *part, const char *key, const char *otherwise, struct meg_str *out, const char *from,
                      struct meg_err *e)
{
    const char *s = otherwise;
    int r = meg_json_get_str(part, key, otherwise ? MEG_JSON_OPTIONAL : MEG_JSON_REQUIRED, &s, from, e);

    if (r == MEG_OK)
        meg_str_add(out, s, s == otherwise ? strlen(s) : json_string_length(json_object_get(part, key)));
    return r;
}

static int load(const struct meg_hf_sequence *p, const json_t *part, int depth, void *to, const char *from,
                struct meg_err *e)
{
    const char *type;
    const json_t *item;
    json_t *list;
    size_t i;
    int kind = 0, r = meg_hf_get_type(part, &type, from, e);

    if (r < 0)
        return r;
    if (strcmp(type, "Sequence") == 0) {
        if (depth == 0)
            return meg_fail(e, MEG_EFORMAT, "%s: sequences inside of sequences, too many", from);
        if ((r = meg_json_get_array(part, p->list, MEG_JSON_REQUIRED, &list, from, e)) < 0)
            return r;
        json_array_foreach(list, i, item)
        {
            if ((r = load(p, item, depth - 1, to, from, e)) < 0)
                return r;
        }
        return MEG_OK;
    }
    while (kind < p->n && strcmp(type, p->type[kind]) != 0)
        kind++;
    return kind < p->n ? p->add(to, kind, part, from, e) : meg_hf_unknown_type(type, from, e);
}

int meg_hf_sequence_load(const struct meg_hf_sequence *p, const json_t *part, void *to, const char *from,
                         struct meg_err *e)
{
    return load(p, part, 8, to, from, e);
}
