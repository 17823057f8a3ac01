/*
 * low_rank.c - a family of models for tests/low_rank.t that is not in the library: GPT whose linear layers have
 * low-rank adapters of rank 4.  All other parameters are frozen.  A program that is linked with this file accepts
 * --model low-rank.
 */
#include <string.h>
#include "model/family.h"
#include "nn/attn/self_attention.h"
#include "nn/low_rank.h"
#include "nn/mlp.h"

static struct meg_low_rank adapter;

static bool is_factor(const struct meg_param *row)
{
    return strstr(row->name, ".adapter.");
}

static void describe(struct meg_model_desc *d, const struct meg_model_conf *c)
{
    meg_gpt_family.describe(d, c);
    d->is_trained = is_factor;
    adapter = meg_low_rank(4, 8);
    for (int i = 0; i < d->nblocks; i++) {
        if (d->block[i].type == &meg_attn_block)
            ((struct meg_attn_conf *)d->block[i].conf)->linear = &adapter.variant;
        if (d->block[i].type == &meg_mlp_block)
            ((struct meg_mlp_conf *)d->block[i].conf)->linear = &adapter.variant;
    }
}

static const struct meg_family low_rank = { "low-rank",      "GPT with low-rank adapters",
                                            MEG_SAMPLES_GPT, "context-parallel-size",
                                            describe,        NULL };

__attribute__((constructor)) static void add_low_rank(void)
{
    meg_family_add(&low_rank);
}
