/* gpt.c - the blocks of a GPT: the decoder of GPT-2 or, with other options, of Llama (model/conf.h). */
#include <math.h>
#include "model/desc.h"
#include "nn/attention.h"
#include "nn/lm_head.h"
#include "nn/mlp.h"

void meg_gpt_describe(struct meg_model_desc *d, const struct meg_model_conf *c)
{
    const double std_out = c->init_method_std / sqrt(2.0 * (double)c->num_layers);
    const struct meg_attn_conf attn = {
        c->hidden_size, c->num_attention_heads,         c->num_query_groups, c->kv_channels,      c->init_method_std,
        std_out,        c->has_bias || c->add_qkv_bias, c->has_bias,         c->attention_dropout
    };
    const struct meg_mlp_conf mlp = {
        .h = c->hidden_size,
        .f = c->ffn_hidden_size,
        .is_gated = c->swiglu,
        .act = c->bias_gelu_fusion && c->has_bias ? MEG_ACT_GELU_TANH : MEG_ACT_GELU_ERF,
        .glu = { .type = MEG_GLU_SILU },
        .std = c->init_method_std,
        .std_out = std_out,
        .has_bias = c->has_bias,
    };
    const struct meg_lm_head_conf head = {
        .h = c->hidden_size,
        .v = c->vocab_size,
        .tied = c->is_untied ? NULL : "embedding.word_embeddings.weight",
        .std = c->init_method_std,
    };
    int first;

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
    d->final_norm = "decoder.final_layernorm";
    d->is_untied = c->is_untied;
    first = meg_desc_add_block(d, &meg_attn_block, &attn, sizeof attn, "input_layernorm", MEG_DROP_ATTN_OUT);
    meg_desc_add_block(d, &meg_mlp_block, &mlp, sizeof mlp, "pre_mlp_layernorm", MEG_DROP_MLP_OUT);
    for (int64_t i = 0; i < c->num_layers; i++)
        meg_desc_add_layer(d, first, 2, "decoder", i);
    meg_desc_add_head(d, &meg_lm_head, &head, sizeof head, "lm loss");
}
