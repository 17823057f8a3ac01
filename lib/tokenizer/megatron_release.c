/*
 * megatron_release.c - differences between releases of Megatron Core in token ids, blend sizes and index cache
 * descriptions.
 */
#include "tokenizer/megatron_release.h"
#include <string.h>
#include "base/err.h"

#define TO_0_14 .has_bert = true, .has_llama2_bos = true, .has_spm_special_tokens = true, .has_hf_template = true
#define FROM_0_15                                                                                                      \
    .parses_special_tokens = true, .needs_seven_special_tokens = true, .has_pad = true, .blend_sizes_with_surplus = true
#define FROM_0_18                                                                                                      \
    FROM_0_15, .kwargs = MEG_TOK_KWARGS_0_18, .unsets_shared_pad = true, .has_hf_template = true,                      \
               .null_vocab_includes_eod = true

static const struct meg_megatron_release releases[] = {
    { "0.10", TO_0_14, .renormalizes = true },
    { "0.11", TO_0_14, .blend_sizes_with_surplus = true },
    { "0.12", TO_0_14, .blend_sizes_with_surplus = true },
    { "0.13", TO_0_14, .blend_sizes_with_surplus = true },
    { "0.14", TO_0_14, .blend_sizes_with_surplus = true },
    { "0.15", FROM_0_15, .kwargs = MEG_TOK_KWARGS_0_15 },
    { "0.16", FROM_0_15, .kwargs = MEG_TOK_KWARGS_0_16, .unsets_shared_pad = true },
    { "0.17", FROM_0_15, .kwargs = MEG_TOK_KWARGS_0_17, .unsets_shared_pad = true, .has_hf_template = true },
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
