/*
 * blocks.c - a family of models for tests/toy.t that is not in the library: layers as those of Gemma 2 and Granite
 * (norms before and after attention, and factors), OLMo 2 (norms only after it), GPT-J (attention and MLP of one norm)
 * and GPT-NeoX (a norm each), one after the other; that of GPT-J also adds to a loss.  A program that is linked with
 * this file accepts --model blocks.
 */
#include "model/family.h"
#include "nn/attn/self_attention.h"
#include "nn/lm_head.h"
#include "nn/mlp.h"
#include "../unit/loss_block.h"

static void describe(struct meg_model_desc *d, const struct meg_model_conf *c)
{
    const struct meg_lm_head_conf head = { .h = d->h, .v = d->v, .tied = "embedding.word_embeddings.weight" };
    const struct meg_block_list pattern[] = { { 0, 2 }, { 2, 2 }, { 4, 3 }, { 7, 2 } };
    struct loss_conf loss = { .h = d->h, .positions = c->max_position_embeddings, .std = d->std };
    struct meg_attn_conf attn = c->attn;
    struct meg_mlp_conf mlp = c->mlp;

    attn.h = mlp.h = d->h;
    attn.std = attn.std_out = mlp.std = mlp.std_out = d->std;
    mlp.act = MEG_ACT_GELU_TANH;
    d->inputs = MEG_BATCH_GPT_FIELDS;
    d->std = 0.3; /* embeddings of positions as large as normalized words */
    d->embedding_multiplier = 2;
    d->has_embed_norm = true;
    d->first_position = 2;
    d->positions += d->first_position;
    meg_desc_add_stack(d, "decoder.final_norm");
    for (int i = 0; i < 3; i++) { /* sandwich norm, norms after the mixers, parallel mixers */
        struct meg_block *block;

        attn.has_proj_bias = mlp.has_bias = i == 2;
        meg_desc_add_block(d, &meg_attn_block, &attn, sizeof attn, i == 1 ? NULL : "attn_norm", MEG_DROP_ATTN_OUT);
        meg_desc_add_block(d, &meg_mlp_block, &mlp, sizeof mlp, i == 0 ? "mlp_norm" : NULL, MEG_DROP_MLP_OUT);
        block = &d->block[2 * i];
        block[0].post_norm = i == 2 ? NULL : "attn_post_norm";
        block[1].post_norm = i == 1 ? "mlp_post_norm" : NULL;
        block[0].scale = i == 0 ? 0.5f : 0;
        block[1].scale = i == 0 ? 0.75f : 0;
        block[1].is_parallel = i == 2;
    }
    meg_desc_add_head(d, &meg_lm_head, &head, sizeof head, "lm loss");
    loss.loss = meg_desc_add_loss(d, "position loss", false);
    meg_desc_add_block(d, &loss_block, &loss, sizeof loss, NULL, MEG_DROP_MLP_OUT);
    meg_desc_add_block(d, &meg_attn_block, &attn, sizeof attn, "attn_norm", MEG_DROP_ATTN_OUT);
    meg_desc_add_block(d, &meg_mlp_block, &mlp, sizeof mlp, "mlp_norm", MEG_DROP_MLP_OUT);
    d->block[6].is_parallel = d->block[8].is_parallel = true;
    meg_desc_add_layers(d, pattern, 4, c->num_layers, "decoder");
}

static const struct meg_family blocks = {
    "blocks", "blocks", MEG_SAMPLES_GPT, "context-parallel-size", describe, NULL
};

__attribute__((constructor)) static void add_blocks(void)
{
    meg_family_add(&blocks);
}
