/*
 * missing_head.c - weights without the language-model head.
 *
 * Hugging Face's BertModel, BertForNextSentencePrediction and classifiers have the encoder of a BERT, but not the head
 * that predicts masked tokens.  As in from_pretrained of transformers, training initialises the head and ignores the
 * heads of classifiers.  Nothing else may read such weights as a model.
 */
#include <string.h>
#include "base/log.h"
#include "ckpt/internal.h"

bool ckpt_has_tensor_with_prefix(const struct meg_ckpt *c, const char *prefix)
{
    for (int i = 0; i < c->nfiles; i++)
        for (int k = 0; k < c->file[i]->n; k++)
            if (strncmp(c->file[i]->t[k].name, prefix, strlen(prefix)) == 0)
                return true;
    return false;
}

static bool is_listed(const char *const *list, const char *name)
{
    for (; list && *list; list++)
        if (strcmp(*list, name) == 0)
            return true;
    return false;
}

bool ckpt_is_missing_head(const struct meg_ckpt *c, const char *native)
{
    return c->lacks_head && is_listed(c->format->head, native);
}

bool ckpt_is_other_head(const struct meg_ckpt *c, const char *foreign)
{
    return c->lacks_head && is_listed(c->format->other_heads, foreign);
}

static void add_name(struct meg_str *list, const char *name)
{
    meg_str_printf(list, "%s%s", list->n ? ", " : "", name);
}

void ckpt_list_missing_head(struct meg_str *out, const struct meg_ckpt *c)
{
    for (const char *const *p = c->format->head; *p; p++)
        add_name(out, *p);
}

bool meg_ckpt_lacks_head(const struct meg_ckpt *c)
{
    return c->lacks_head;
}

int meg_ckpt_check_head(const struct meg_ckpt *c, struct meg_err *e)
{
    return c->lacks_head
               ? meg_fail(e, MEG_EFORMAT,
                          "%.200s: found no language-model head%s; train a new head with meg-train --finetune", c->path,
                          c->format->advice)
               : 0;
}

void meg_ckpt_warn_missing_head(const struct meg_ckpt *c)
{
    struct meg_str head = { 0 }, ignored = { 0 };

    ckpt_list_missing_head(&head, c);
    for (int i = 0; i < c->nfiles; i++)
        for (int k = 0; k < c->file[i]->n; k++)
            if (ckpt_is_other_head(c, c->file[i]->t[k].name))
                add_name(&ignored, c->file[i]->t[k].name);
    meg_warn("%s: found no language-model head; its parameters start with the values of a new model: %s%s%s", c->path,
             head.s, ignored.n ? "; ignored: " : "", ignored.n ? ignored.s : "");
    meg_str_free(&head);
    meg_str_free(&ignored);
}
