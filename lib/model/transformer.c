/* transformer.c - what the families of transformers have in common: layers of attention and MLP. */
#include <math.h>
#include "model/desc.h"
#include "nn/attention.h"
#include "nn/mlp.h"

void meg_desc_set_common(struct meg_model_desc *d, const struct meg_model_conf *c)
{
    d->h = c->hidden_size;
    d->v = c->vocab_size;
    d->positions = meg_model_is_rotary(c) ? 0 : c->max_position_embeddings;
    d->init = c->init_method_xavier_uniform ? MEG_INIT_XAVIER : MEG_INIT_NORMAL;
    d->std = c->init_method_std;
    d->norm = c->normalization;
    d->norm_eps = c->norm_epsilon;
    d->hidden_dropout = c->hidden_dropout;
    d->rope.half = meg_model_rope_half(c);
    d->rope.positions = c->max_position_embeddings;
    d->rope.base = c->rotary_base;
    d->rope.interpolation = (double)c->rotary_interpolation;
    d->rope.scaling_factor = c->use_rope_scaling ? c->rope_scaling_factor : 0;
    d->rope.is_interleaved = c->rotary_interleaved;
    d->is_untied = c->is_untied;
}

void meg_desc_add_transformer(struct meg_model_desc *d, const struct meg_model_conf *c, const char *name,
                              bool is_bidirectional)
{
    const double std_out = c->init_method_std / sqrt(2.0 * (double)c->num_layers);
    const struct meg_attn_conf attn = {
        .h = c->hidden_size,
        .a = c->num_attention_heads,
        .g = c->num_query_groups,
        .d = c->kv_channels,
        .std = c->init_method_std,
        .std_out = std_out,
        .has_qkv_bias = c->has_bias || c->add_qkv_bias,
        .has_proj_bias = c->has_bias,
        .dropout = c->attention_dropout,
        .is_bidirectional = is_bidirectional,
    };
    const struct meg_mlp_conf mlp = {
        .h = c->hidden_size,
        .f = c->ffn_hidden_size,
        .is_gated = c->swiglu,
        .act = c->openai_gelu || (c->bias_gelu_fusion && c->has_bias) ? MEG_ACT_GELU_TANH : MEG_ACT_GELU_ERF,
        .glu = { .type = MEG_GLU_SILU },
        .std = c->init_method_std,
        .std_out = std_out,
        .has_bias = c->has_bias,
    };
    const int first = meg_desc_add_block(d, &meg_attn_block, &attn, sizeof attn, "input_layernorm", MEG_DROP_ATTN_OUT);

    meg_desc_add_block(d, &meg_mlp_block, &mlp, sizeof mlp, "pre_mlp_layernorm", MEG_DROP_MLP_OUT);
    for (int i = first; i < d->nblocks; i++)
        d->block[i].is_post_norm = c->is_post_norm;
    for (int64_t i = 0; i < c->num_layers; i++)
        meg_desc_add_layer(d, first, 2, name);
}
