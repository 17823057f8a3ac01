/* post_processor.c - the ids that the post-processor of a tokenizer.json adds before and after a text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "io/json.h"
#include "tokenizer/hf/files.h"

void meg_hf_add_template_ids(struct meg_hf_files *f, bool is_before, const int32_t *ids, int64_t n)
{
    struct meg_ids *to = is_before ? &f->template_before : &f->template_after;

    if (n == 0)
        return;
    meg_ids_reserve(to, n);
    if (is_before)
        memmove(to->v + n, to->v, (size_t)to->n * sizeof *ids);
    memcpy(is_before ? to->v : to->v + to->n, ids, (size_t)n * sizeof *ids);
    to->n += n;
}

enum { MAX_TEMPLATE_IDS = 4096 }; /* real templates have a few ids; they are added to each text */

static int add_special_ids(const json_t *post, const char *name, struct meg_ids *ids, const char *where,
                           struct meg_err *e)
{
    const json_t *list = json_object_get(json_object_get(json_object_get(post, "special_tokens"), name), "ids");
    size_t i;
    const json_t *id;
    int r;

    if (!json_is_array(list))
        return meg_fail(e, MEG_EFORMAT, "%s: special_tokens has no array of ids for '%s'", where, name);
    json_array_foreach(list, i, id)
    {
        if (ids->n == MAX_TEMPLATE_IDS)
            return meg_fail(e, MEG_EFORMAT,
                            "%s: the template adds more than %d ids to a side of each text, expected a few; remove "
                            "repeated tokens from \"single\"",
                            where, MAX_TEMPLATE_IDS);
        meg_ids_reserve(ids, 1);
        if ((r = meg_hf_get_id(id, name, where, &ids->v[ids->n], e)) < 0)
            return r;
        ids->n++;
    }
    return 0;
}

static int load_template(struct meg_hf_files *f, const json_t *post, const char *where, struct meg_err *e)
{
    struct meg_ids side[2] = { { 0 }, { 0 } };
    bool is_after = false;
    size_t i;
    const json_t *item;
    json_t *single;
    int r = meg_json_get_array(post, "single", MEG_JSON_REQUIRED, &single, where, e);

    if (r < 0)
        return r;
    json_array_foreach(single, i, item)
    {
        const char *name = json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));

        if (name)
            r = add_special_ids(post, name, &side[is_after], where, e);
        else if (!json_object_get(item, "Sequence"))
            r = meg_fail(e, MEG_EFORMAT, "%s: single[%zu] is neither a SpecialToken nor a Sequence", where, i);
        else if (is_after)
            r = meg_fail(e, MEG_EFORMAT, "%s: single[%zu] is a second Sequence; expected only one", where, i);
        else
            is_after = true;
        if (r < 0)
            break;
    }
    if (r == 0 && !is_after)
        r = meg_fail(e, MEG_EFORMAT, "%s: \"single\" has no Sequence", where);
    if (r == 0) {
        meg_hf_add_template_ids(f, true, side[0].v, side[0].n);
        meg_hf_add_template_ids(f, false, side[1].v, side[1].n);
    }
    free(side[0].v);
    free(side[1].v);
    return r;
}

/*
 * Load BertProcessing or RobertaProcessing, which add the token cls before the text and the token sep after it.  The
 * members "cls" and "sep" are arrays [token, id].
 */
static int load_cls_sep(struct meg_hf_files *f, const json_t *post, const char *where, struct meg_err *e)
{
    for (int side = 0; side < 2; side++) {
        const char *key = side ? "sep" : "cls";
        int32_t id;
        int r = meg_hf_get_id(json_array_get(json_object_get(post, key), 1), key, where, &id, e);

        if (r < 0)
            return r;
        meg_hf_add_template_ids(f, side == 0, &id, 1);
    }
    return 0;
}

/*
 * Load a post-processor or a Sequence of post-processors, nested up to `depth` levels deep.  Reject a post-processor
 * that adds tokens and follows a TemplateProcessing: the template produces several sequences, and each sequence would
 * get these tokens.
 */
static int load_post_processor(struct meg_hf_files *f, const json_t *post, int depth, bool *has_template,
                               const char *where, struct meg_err *e)
{
    const char *type;
    size_t i;
    const json_t *item;
    json_t *list;
    bool is_template, is_cls_sep;
    int r = meg_hf_get_type(post, &type, where, e);

    if (r < 0)
        return r;
    is_template = strcmp(type, "TemplateProcessing") == 0;
    is_cls_sep = strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0;
    if ((is_template || is_cls_sep) && *has_template)
        return meg_fail(e, MEG_EFORMAT, "%s: a %s after a TemplateProcessing is not supported", where, type);
    *has_template |= is_template;
    if (is_template)
        return load_template(f, post, where, e);
    if (is_cls_sep)
        return load_cls_sep(f, post, where, e);
    if (strcmp(type, "ByteLevel") == 0)
        return 0;
    if (strcmp(type, "Sequence") != 0 || depth == 0)
        return meg_hf_unknown_type(type, where, e);
    if ((r = meg_json_get_array(post, "processors", MEG_JSON_REQUIRED, &list, where, e)) < 0)
        return r;
    json_array_foreach(list, i, item)
    {
        if ((r = load_post_processor(f, item, depth - 1, has_template, where, e)) < 0)
            return r;
    }
    return 0;
}

int meg_hf_load_post_processor(struct meg_hf_files *f, const json_t *post, const char *where, struct meg_err *e)
{
    bool has_template = false;

    return load_post_processor(f, post, 8, &has_template, where, e);
}
