/* family.c - the list of families. */
#include "model/family.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FAMILIES = 8 };

static const struct meg_family *families[MAX_FAMILIES] = {
    [MEG_FAMILY_GPT] = &meg_gpt_family, [MEG_FAMILY_BERT] = &meg_bert_family, [MEG_FAMILY_T5] = &meg_t5_family
};
char meg_family_choices[64] = "gpt|bert|t5";

const struct meg_family *meg_family_of(const struct meg_model_conf *c)
{
    MEG_ASSERT(families[c->family]);
    return families[c->family];
}

int meg_family_check_options(const struct meg_model_conf *c, const struct meg_optgroup *groups, struct meg_err *e)
{
    const struct meg_family *own = meg_family_of(c);
    struct meg_str names = { 0 };
    int r = 0;

    for (; groups->title; groups++)
        for (const struct meg_opt *row = groups->rows; groups->conf && row->name && r == 0; row++) {
            char *value = meg_opt_value(row, groups->conf);
            const bool is_set = meg_opt_is_set(row, value);

            for (int i = 0; i < MAX_FAMILIES && families[i] && is_set; i++)
                if (meg_opt_is_listed(families[i]->options, row->name, value))
                    meg_str_printf(&names, "%s%s", names.n ? " or " : "", families[i]->name);
            if (names.n && !meg_opt_is_listed(own->options, row->name, value))
                r = meg_fail(e, MEG_EUSAGE, "the model cannot be a %s: --%s%s%s is not supported; use --model %s",
                             own->title, row->name, row->metavar ? " " : "", row->metavar ? value : "", names.s);
            names.n = 0;
            free(value);
        }
    meg_str_free(&names);
    return r;
}

void meg_family_add(const struct meg_family *f)
{
    const size_t used = strlen(meg_family_choices);
    int n = 0;

    while (n < MAX_FAMILIES && families[n])
        n++;
    MEG_ASSERT_LT(n, MAX_FAMILIES);
    families[n] = f;
    MEG_ASSERT_LT(used + strlen(f->name) + 1, sizeof meg_family_choices);
    snprintf(meg_family_choices + used, sizeof meg_family_choices - used, "|%s", f->name);
}
