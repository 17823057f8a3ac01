#include "tokenizer/megatron_release.h"

#include <string.h>

#include "base/err.h"

#define TO_0_14 .has_bert = true, .has_llama2_bos = true, .has_spm_specials = true, .has_hf_template = true
#define FROM_0_15 .finds_specials = true, .has_seven_specials = true, .has_pad = true, .is_surplus_apart = true
#define FROM_0_18                                                                                                      \
    FROM_0_15, .keywords = MEG_TOK_KWARGS_0_18, .is_pad_apart = true, .has_hf_template = true,                         \
               .is_null_end_counted = true

static const struct meg_megatron_release releases[] = {
    { "0.10", TO_0_14, .renormalizes = true },
    { "0.11", TO_0_14, .is_surplus_apart = true },
    { "0.12", TO_0_14, .is_surplus_apart = true },
    { "0.13", TO_0_14, .is_surplus_apart = true },
    { "0.14", TO_0_14, .is_surplus_apart = true },
    { "0.15", FROM_0_15, .keywords = MEG_TOK_KWARGS_0_15 },
    { "0.16", FROM_0_15, .keywords = MEG_TOK_KWARGS_0_16, .is_pad_apart = true },
    { "0.17", FROM_0_15, .keywords = MEG_TOK_KWARGS_0_17, .is_pad_apart = true, .has_hf_template = true },
    { "0.18", FROM_0_18 },
    { "0.19", FROM_0_18 },
};

const struct meg_megatron_release *meg_megatron_release_find(const char *name)
{
    size_t i = 0;

    while (name && i < sizeof releases / sizeof *releases && strcmp(releases[i].name, name) != 0)
        i++;
    MEG_ASSERT(i < sizeof releases / sizeof *releases);
    return &releases[i];
}
