/* transformer.c - the parts of descriptions that the families of transformers have in common. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "model/attention_conf.h"
#include "model/desc.h"
#include "nn/attn/cross_attention.h"
#include "nn/attn/self_attention.h"
#include "nn/mlp.h"

static enum meg_norm norm_type(const struct meg_model_conf *c)
{
    if (c->normalization == MEG_NORM_RMS)
        return c->apply_layernorm_1p ? MEG_NORM_RMS_1P : MEG_NORM_RMS;
    return c->apply_layernorm_1p ? MEG_NORM_LAYER_1P : MEG_NORM_LAYER;
}

void meg_desc_set_common(struct meg_model_desc *d, const struct meg_model_conf *c)
{
    d->h = c->hidden_size;
    d->v = c->vocab_size;
    if (c->position_embedding_type == MEG_POSITION_LEARNED) {
        d->first_position = c->position_embedding_offset;
        d->positions = d->first_position + c->max_position_embeddings;
    }
    d->has_embed_norm = c->embed_layernorm;
    d->embedding_multiplier = meg_model_embedding_multiplier(c);
    d->rounds_embedding_multiplier = c->embedding_multiplier && strcmp(c->embedding_multiplier, "sqrt") == 0;
    d->init = c->init_method_xavier_uniform ? meg_init_xavier : meg_init_normal;
    d->std = c->init_method_std;
    d->norm = norm_type(c);
    d->norm_has_weight = !c->norm_no_weight;
    d->norm_has_bias = !c->norm_no_bias && !meg_norm_is_rms(d->norm);
    d->norm_eps = c->norm_epsilon;
    d->hidden_dropout = c->hidden_dropout;
    meg_rope_describe(d->rope, c);
    d->alibi_heads = c->position_embedding_type == MEG_POSITION_ALIBI ? c->attn.a : 0;
    d->is_untied = c->is_untied;
}

/* Return the configuration of attention in layer i. */
static struct meg_attn_conf attention(const struct meg_model_conf *c, const struct meg_transformer *t, int64_t i,
                                      double std_out)
{
    const bool is_relative = c->position_embedding_type == MEG_POSITION_RELATIVE;
    struct meg_attn_conf attn = c->attn;

    attn.h = c->hidden_size;
    attn.norm = norm_type(c);
    attn.norm_has_bias = !c->norm_no_bias && !meg_norm_is_rms(attn.norm);
    attn.std = c->init_method_std;
    attn.std_out = std_out;
    attn.has_qkv_bias = c->has_bias || c->add_qkv_bias;
    attn.has_proj_bias = c->has_bias || c->add_proj_bias;
    attn.rope = (int)meg_attention_rope_set(c, i);
    attn.window = meg_attention_window(c, i);
    attn.is_bidirectional = t->is_bidirectional;
    attn.buckets = is_relative ? c->relative_attention_num_buckets : 0;
    return attn;
}

static struct meg_mlp_conf mlp(const struct meg_model_conf *c, double std_out)
{
    const double limit = c->activation_func_clamp_value;
    struct meg_mlp_conf mlp = c->mlp;

    mlp.h = c->hidden_size;
    mlp.is_gated = meg_model_is_gated(c);
    mlp.act = meg_model_act(c);
    mlp.glu = (struct meg_glu){ mlp.act, limit > 0 ? (float)limit : 0, (float)c->glu_linear_offset };
    mlp.std = c->init_method_std;
    mlp.std_out = std_out;
    mlp.has_bias = c->has_bias || c->add_mlp_bias;
    return mlp;
}

/* Set the norms of the output, the factor, and how the output is added to the residual stream. */
static void set_residual(struct meg_block *block, const struct meg_model_conf *c, bool is_mlp)
{
    block->residual_from_norm = c->residual_from_norm || c->norm_placement == MEG_NORM_PLACEMENT_POST;
    block->is_parallel = is_mlp && c->parallel_residual != MEG_PARALLEL_RESIDUAL_NONE;
    if (!meg_model_norms_input(c) || (block->is_parallel && c->parallel_residual == MEG_PARALLEL_RESIDUAL_SHARED_NORM))
        block->norm = NULL;
    if (meg_model_norms_output(c))
        block->post_norm = is_mlp ? "post_mlp_layernorm" : "post_self_attn_layernorm";
    if (meg_model_residual_multiplier(c) != 1)
        block->scale = (float)meg_model_residual_multiplier(c);
}

/* Append the blocks of layer i, and return them. */
static struct meg_block_list add_blocks(struct meg_model_desc *d, const struct meg_model_conf *c,
                                        const struct meg_transformer *t, int64_t i)
{
    const double std_out = c->init_method_std / sqrt(2.0 * (double)c->num_layers);
    const struct meg_attn_conf attn = attention(c, t, i, std_out);
    const struct meg_mlp_conf ffn = mlp(c, std_out);
    const int first = meg_desc_add_block(d, &meg_attn_block, &attn, sizeof attn, "input_layernorm", MEG_DROP_ATTN_OUT);

    if (t->has_cross_attention)
        meg_desc_add_block(d, &meg_cross_attn_block, &attn, sizeof attn, "pre_cross_attn_layernorm",
                           MEG_DROP_CROSS_ATTN_OUT);
    meg_desc_add_block(d, &meg_mlp_block, &ffn, sizeof ffn, "pre_mlp_layernorm", MEG_DROP_MLP_OUT);
    for (int k = first; k < d->nblocks; k++)
        set_residual(&d->block[k], c, k == d->nblocks - 1);
    return (struct meg_block_list){ first, d->nblocks - first };
}

/*
 * Layers of the same type have the same blocks.  With norms after the residual connection, the norm after the last
 * block of a layer is the first norm of the next layer, so the first layer, which lacks it, has its own blocks.
 */
void meg_desc_add_transformer(struct meg_model_desc *d, const struct meg_model_conf *c, const struct meg_transformer *t)
{
    const bool is_post = c->norm_placement == MEG_NORM_PLACEMENT_POST;
    struct meg_block_list *layer = meg_new((size_t)t->layers * sizeof *layer);
    struct meg_block_list of_type[2 * MEG_ROPE_SETS] = { { 0 } };

    for (int64_t i = 0; i < t->layers; i++) {
        const int has_window = meg_attention_window(c, i) > 0, type = 2 * meg_attention_rope_set(c, i) + has_window;

        if (i == 0 && is_post) {
            layer[i] = add_blocks(d, c, t, i);
            d->block[layer[i].first].norm = NULL;
            d->block[layer[i].first].residual_from_norm = false;
            continue;
        }
        if (of_type[type].n == 0)
            of_type[type] = add_blocks(d, c, t, i);
        layer[i] = of_type[type];
    }
    meg_desc_add_layers(d, layer, (int)t->layers, t->layers, t->name);
    free(layer);
}
