/*
 * steps.c - load a normalizer, pre-tokenizer or decoder of a tokenizer.json as a list of steps; nested Sequences are
 * flattened.
 */
#include <stdlib.h>
#include <string.h>
#include "io/json.h"
#include "tokenizer/hf/internal.h"

enum { MAX_DEPTH = 8 };

static int add_step(struct meg_hf_steps *out, const struct meg_hf_step_class *c, const char *name, const json_t *part,
                    const char *where, struct meg_err *e)
{
    int type = 0;
    char *step;

    while (type < c->ntypes && strcmp(name, c->types[type]) != 0)
        type++;
    if (type == c->ntypes)
        return meg_hf_unknown_type(name, where, e);
    out->v = meg_realloc_array(out->v, (size_t)out->n + 1, c->size);
    step = (char *)out->v + (size_t)out->n++ * c->size;
    memset(step, 0, c->size);
    return c->load(step, type, part, where, e);
}

static int add_component(struct meg_hf_steps *out, const struct meg_hf_step_class *c, const json_t *part, int depth,
                         const char *where, struct meg_err *e)
{
    const char *type;
    const json_t *item;
    json_t *list;
    size_t i;
    int r = meg_hf_get_type(part, &type, where, e);

    if (r < 0)
        return r;
    if (strcmp(type, "Sequence") != 0)
        return add_step(out, c, type, part, where, e);
    if (depth == 0)
        return meg_fail(e, MEG_EFORMAT, "%s: a Sequence is nested more than %d levels deep", where, MAX_DEPTH);
    if ((r = meg_json_get_array(part, c->list_key, MEG_JSON_REQUIRED, &list, where, e)) < 0)
        return r;
    json_array_foreach(list, i, item)
    {
        if ((r = add_component(out, c, item, depth - 1, where, e)) < 0)
            return r;
    }
    return 0;
}

int meg_hf_steps_load(struct meg_hf_steps *out, const struct meg_hf_step_class *c, const json_t *part,
                      const char *where, struct meg_err *e)
{
    int r;

    *out = (struct meg_hf_steps){ 0 };
    if ((r = add_component(out, c, part, MAX_DEPTH, where, e)) < 0) {
        meg_hf_steps_free(out->v, out->n, c);
        *out = (struct meg_hf_steps){ 0 };
    }
    return r;
}

void meg_hf_steps_free(void *v, int64_t n, const struct meg_hf_step_class *c)
{
    for (int64_t i = 0; i < n; i++)
        c->free((char *)v + (size_t)i * c->size);
    free(v);
}
