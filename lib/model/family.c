/* family.c - the list of families. */
#include "model/family.h"
#include <stdio.h>
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
