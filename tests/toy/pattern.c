/*
 * pattern.c - a family of models for tests/pattern.t that is not in the library: GPT in which only every other layer
 * has attention.  A program that is linked with this file accepts --model pattern.
 */
#include "model/family.h"

static void describe(struct meg_model_desc *d, const struct meg_model_conf *c)
{
    static const struct meg_block_list pattern[] = { { 0, 2 }, { 1, 1 } }; /* attention and MLP, MLP */

    meg_gpt_family.describe(d, c);
    d->stack[0].end = d->nlayers = 0;
    meg_desc_add_layers(d, pattern, 2, c->num_layers, "decoder");
}

static const struct meg_family family = {
    "pattern", "pattern", MEG_SAMPLES_GPT, "context-parallel-size", describe, NULL
};

__attribute__((constructor)) static void add_pattern(void)
{
    meg_family_add(&family);
}
