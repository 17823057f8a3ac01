/* transformer.c - the parts of descriptions that the families of transformers have in common. */
#include <math.h>
#include <stdlib.h>
#include "base/mem.h"
#include "model/attention_conf.h"
#include "model/desc.h"
#include "nn/attn/cross_attention.h"
#include "nn/attn/self_attention.h"
#include "nn/mlp.h"

void meg_desc_set_common(struct meg_model_desc *d, const struct meg_model_conf *c)
{
    d->h = c->hidden_size;
    d->v = c->vocab_size;
    d->positions = c->position_embedding_type == MEG_POSITION_LEARNED ? c->max_position_embeddings : 0;
    d->init = c->init_method_xavier_uniform ? meg_init_xavier : meg_init_normal;
    d->std = c->init_method_std;
    d->norm = c->normalization;
    d->norm_eps = c->norm_epsilon;
    d->hidden_dropout = c->hidden_dropout;
    meg_rope_describe(d->rope, c);
    d->is_untied = c->is_untied;
}

/* Return the configuration of attention in layer i. */
static struct meg_attn_conf attention(const struct meg_model_conf *c, const struct meg_transformer *t, int64_t i,
                                      double std_out)
{
    const bool is_relative = c->position_embedding_type == MEG_POSITION_RELATIVE;
    struct meg_attn_conf attn = c->attn;

    attn.h = c->hidden_size;
    attn.std = c->init_method_std;
    attn.std_out = std_out;
    attn.has_qkv_bias = c->has_bias || c->add_qkv_bias;
    attn.has_proj_bias = c->has_bias;
    attn.rope = (int)meg_attention_rope_set(c, i);
    attn.window = meg_attention_window(c, i);
    attn.is_bidirectional = t->is_bidirectional;
    attn.buckets = is_relative ? c->relative_attention_num_buckets : 0;
    return attn;
}

static enum meg_act activation(const struct meg_model_conf *c)
{
    if (c->activation_func == MEG_ACTIVATION_FUNC_RELU)
        return MEG_ACT_RELU;
    return c->openai_gelu || (c->bias_gelu_fusion && c->has_bias) ? MEG_ACT_GELU_TANH : MEG_ACT_GELU_ERF;
}

static struct meg_mlp_conf mlp(const struct meg_model_conf *c, double std_out)
{
    const enum meg_glu_type geglu = c->openai_gelu ? MEG_GLU_GELU_TANH : MEG_GLU_GELU_ERF;
    struct meg_mlp_conf mlp = c->mlp;

    mlp.h = c->hidden_size;
    mlp.is_gated = meg_model_is_gated(c);
    mlp.act = activation(c);
    mlp.glu.type = c->glu_activation == MEG_GLU_ACTIVATION_GEGLU   ? geglu
                   : c->glu_activation == MEG_GLU_ACTIVATION_REGLU ? MEG_GLU_RELU
                                                                   : MEG_GLU_SILU;
    mlp.std = c->init_method_std;
    mlp.std_out = std_out;
    mlp.has_bias = c->has_bias;
    return mlp;
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
        d->block[k].residual_from_norm = c->residual_from_norm;
    return (struct meg_block_list){ first, d->nblocks - first };
}

/* Layers of the same type have the same blocks. */
void meg_desc_add_transformer(struct meg_model_desc *d, const struct meg_model_conf *c, const struct meg_transformer *t)
{
    struct meg_block_list *layer = meg_new((size_t)t->layers * sizeof *layer);
    struct meg_block_list of_type[2 * MEG_ROPE_SETS] = { { 0 } };

    for (int64_t i = 0; i < t->layers; i++) {
        const int has_window = meg_attention_window(c, i) > 0, type = 2 * meg_attention_rope_set(c, i) + has_window;

        if (of_type[type].n == 0)
            of_type[type] = add_blocks(d, c, t, i);
        layer[i] = of_type[type];
    }
    meg_desc_add_layers(d, layer, (int)t->layers, t->layers, t->name);
    free(layer);
}
