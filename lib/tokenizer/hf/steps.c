/*
 * steps.c - load a normalizer, pre-tokenizer or decoder of a tokenizer.json as a list of steps; nested Sequences are
 * flattened.  The functions that read JSON members are used for the other components, too.
 */
#include <stdlib.h>
#include <string.h>
#include "io/json.h"
#include "tokenizer/hf/internal.h"

enum { MAX_ID = (1 << 24) - 1, MAX_DEPTH = 8 };

int meg_hf_get_type(const json_t *part, const char **type, const char *where, struct meg_err *e)
{
    if (!json_is_object(part))
        return meg_fail(e, MEG_EFORMAT, "%s: expected an object with a \"type\"", where);
    return meg_json_get_str(part, "type", MEG_JSON_REQUIRED, type, where, e);
}

int meg_hf_unknown_type(const char *type, const char *where, struct meg_err *e)
{
    return meg_fail(e, MEG_EFORMAT, "%s: type '%s' is not supported", where, type);
}

int meg_hf_get_id(const json_t *value, const char *what, const char *where, int32_t *id, struct meg_err *e)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > MAX_ID)
        return meg_fail(e, MEG_EFORMAT, "%s: the id of '%s' must be an integer from 0 to %d", where, what, MAX_ID);
    *id = (int32_t)json_integer_value(value);
    return 0;
}

static int get_member(void *step, const struct meg_hf_member *m, const json_t *part, const char *where,
                      struct meg_err *e)
{
    void *field = (char *)step + m->offset;
    const char *s = m->fallback;
    int r;

    switch (m->type) {
    case MEG_HF_BOOL:
        *(bool *)field |= m->fallback != NULL;
        return meg_json_get_bool(part, m->key, MEG_JSON_OPTIONAL, field, where, e);
    case MEG_HF_I64: return meg_json_get_i64(part, m->key, MEG_JSON_OPTIONAL, field, where, e);
    case MEG_HF_STRING:
        *(const char **)field = m->fallback;
        return meg_json_get_str(part, m->key, MEG_JSON_OPTIONAL, field, where, e);
    case MEG_HF_TEXT:
        r = meg_json_get_str(part, m->key, s ? MEG_JSON_OPTIONAL : MEG_JSON_REQUIRED, &s, where, e);
        if (r == 0)
            meg_str_add(field, s, s == m->fallback ? strlen(s) : json_string_length(json_object_get(part, m->key)));
        return r;
    default: return meg_hf_pattern_load(field, part, where, e);
    }
}

static int add_step(struct meg_hf_steps *out, const char *name, const json_t *part, const char *where,
                    struct meg_err *e)
{
    const struct meg_hf_step_class *c = out->type;
    int type = 0, r;
    char *step;

    while (type < c->ntypes && strcmp(name, c->types[type].name) != 0)
        type++;
    if (type == c->ntypes)
        return meg_hf_unknown_type(name, where, e);
    out->v = meg_realloc_array(out->v, (size_t)out->n + 1, c->size);
    step = (char *)out->v + (size_t)out->n++ * c->size;
    memset(step, 0, c->size);
    for (const struct meg_hf_member *m = c->types[type].members; m->key; m++)
        if ((r = get_member(step, m, part, where, e)) < 0)
            return r;
    return c->finish(step, type, where, e);
}

static int add_component(struct meg_hf_steps *out, const json_t *part, int depth, const char *where, struct meg_err *e)
{
    const char *type;
    const json_t *item;
    json_t *list;
    size_t i;
    int r = meg_hf_get_type(part, &type, where, e);

    if (r < 0)
        return r;
    if (strcmp(type, "Sequence") != 0)
        return add_step(out, type, part, where, e);
    if (depth == 0)
        return meg_fail(e, MEG_EFORMAT, "%s: a Sequence is nested more than %d levels deep", where, MAX_DEPTH);
    if ((r = meg_json_get_array(part, out->type->list_key, MEG_JSON_REQUIRED, &list, where, e)) < 0)
        return r;
    json_array_foreach(list, i, item)
    {
        if ((r = add_component(out, item, depth - 1, where, e)) < 0)
            return r;
    }
    return 0;
}

int meg_hf_steps_load(struct meg_hf_steps **out, const struct meg_hf_step_class *type, const json_t *part,
                      const char *where, struct meg_err *e)
{
    struct meg_hf_steps *s = meg_new(sizeof *s);
    int r;

    s->type = type;
    if ((r = add_component(s, part, MAX_DEPTH, where, e)) < 0)
        meg_hf_steps_free(s);
    else
        *out = s;
    return r;
}

void meg_hf_steps_free(struct meg_hf_steps *s)
{
    if (!s)
        return;
    for (int64_t i = 0; i < s->n; i++)
        s->type->free((char *)s->v + (size_t)i * s->type->size);
    free(s->v);
    free(s);
}
