/*
 * conf.h - the architecture of a model, arranged as in Megatron-LM.  A GPT is the decoder of GPT-2 (Radford et al.
 * 2019) or, with other settings, of Llama (Touvron et al. 2023):
 *   x = drop(word[token] + position[i]); with rotary positions there is no position table
 *   each layer: m = x + drop(attn(norm(x))); x = m + drop(mlp(norm(m)))
 *   logits = norm(x) w_out^T; w_out is the word embedding unless untied
 * BERT is described in model/bert.c, and T5, an encoder and a decoder, in model/t5.c.  Weights are [out, in].  As in
 * Megatron core, the rows of the qkv weight are grouped by key-value group: the group's query heads, its key head, its
 * value head.  The vocabulary has no padding rows.
 */
#pragma once
#include "nn/attn/self_attention.h"
#include "nn/mlp.h"
#include "option/opt.h"
#include "parallel/mesh.h"
#include "params/param.h"

/* Indices of the families (model/family.h), in the order of the choices of --model. */
enum meg_model_family { MEG_FAMILY_GPT, MEG_FAMILY_BERT, MEG_FAMILY_T5 };
enum meg_position_embedding {
    MEG_POSITION_LEARNED,
    MEG_POSITION_ROPE,
    MEG_POSITION_RELATIVE,
    MEG_POSITION_ALIBI,
    MEG_POSITION_YARN
};
enum meg_activation_func {
    MEG_ACTIVATION_FUNC_GELU,
    MEG_ACTIVATION_FUNC_GELU_TANH,
    MEG_ACTIVATION_FUNC_QUICK_GELU,
    MEG_ACTIVATION_FUNC_RELU,
    MEG_ACTIVATION_FUNC_SQUARED_RELU,
    MEG_ACTIVATION_FUNC_SILU
};
enum meg_glu_activation { MEG_GLU_ACTIVATION_NONE, MEG_GLU_ACTIVATION_GEGLU, MEG_GLU_ACTIVATION_REGLU };

enum meg_norm_placement {
    MEG_NORM_PLACEMENT_PRE,     /* x + f(norm(x)) */
    MEG_NORM_PLACEMENT_POST,    /* norm(x + f(x)); Vaswani et al. 2017 */
    MEG_NORM_PLACEMENT_OUTPUT,  /* x + norm(f(x)); OLMo 2 */
    MEG_NORM_PLACEMENT_SANDWICH /* x + norm(f(norm(x))); Gemma 2 */
};
enum meg_parallel_residual {
    MEG_PARALLEL_RESIDUAL_NONE,
    MEG_PARALLEL_RESIDUAL_SHARED_NORM, /* x + attn(y) + mlp(y), y = norm(x) */
    MEG_PARALLEL_RESIDUAL_TWO_NORMS    /* x + attn(norm1(x)) + mlp(norm2(x)) */
};

/* Rotary positions (model/rope.h). */
struct meg_rotary_conf {
    bool is_used;         /* same as --position-embedding-type rope */
    double base, percent; /* fraction of the columns of a head that are rotated */
    double base_window;   /* base, without scaling, of layers with a window; NaN: these layers are like the others */
    bool is_interleaved;
    double interpolation;     /* NaN before meg_model_conf_check: 1 */
    const char *no_rope_freq; /* the layers without rotary positions (model/layer_pattern.h); NULL: none */
    bool is_scaled;           /* divide the frequencies of long wavelengths by scaling_factor, as in Llama 3.1 */
    double scaling_factor, low_freq_factor, high_freq_factor;
    int64_t scaling_original; /* length of the context before the extension, here and below */
    double yarn_factor, yarn_beta_fast, yarn_beta_slow, mscale, mscale_all_dim;
    double yarn_attention_factor; /* NaN: derived from mscale and mscale_all_dim */
    bool yarn_rounds;             /* round the first and last interpolated pair */
    int64_t yarn_original;
    const char *long_factors, *short_factors; /* of LongRoPE: numbers for the column pairs; NULL: not LongRoPE */
    int64_t longrope_original;
    double temperature_beta; /* multiply queries by 1 + beta ln(1 + floor(position / temperature_floor)) */
    int64_t temperature_floor;
};

/* Architecture hyper-parameters.  Integers that are not set are MEG_UNSET (see meg_model_conf_check). */
struct meg_model_conf {
    enum meg_model_family family;
    int64_t num_layers;         /* number of layers; T5: of the encoder */
    int64_t decoder_num_layers; /* number of layers of the decoder of T5; 0 in other families */
    int64_t hidden_size;
    struct meg_attn_conf attn; /* the options are set, the other fields are 0 */
    struct meg_mlp_conf mlp;   /* the same */
    bool group_query_attention;
    int64_t max_position_embeddings;
    int64_t vocab_size; /* number of tokens, without padding; from the tokenizer or the checkpoint, not an option */
    enum meg_position_embedding position_embedding_type;
    int64_t relative_attention_num_buckets, relative_attention_max_distance;
    int64_t position_embedding_offset; /* unused first rows of the learned position embedding */
    enum meg_norm normalization;       /* MEG_NORM_LAYER or MEG_NORM_RMS; see apply_layernorm_1p */
    struct meg_rotary_conf rotary;
    bool apply_layernorm_1p, norm_no_bias, norm_no_weight;
    double norm_epsilon, init_method_std;
    bool init_method_xavier_uniform;
    bool is_untied; /* --untie-embeddings-and-output-weights */
    /*
     * Activation function of the MLP, and whether the MLP is gated.  meg_model_conf_check changes each pair that has an
     * option of its own to that option (swiglu, quick_geglu, squared_relu or glu_activation).
     */
    enum meg_activation_func activation_func;
    bool gated_linear_unit, swiglu, quick_geglu, squared_relu;
    enum meg_glu_activation glu_activation;
    double glu_linear_offset, activation_func_clamp_value; /* offset and limit of struct meg_glu; not above 0: none */
    double logit_multiplier;                               /* factor of the input of the output layer; not above 0: 1 */
    double residual_multiplier;       /* factor of the outputs of attention and MLP; not above 0: 1 */
    const char *embedding_multiplier; /* factor of the word embedding: a number, "sqrt", or NULL for 1 */
    bool embed_layernorm;             /* norm of the word embedding */
    enum meg_norm_placement norm_placement;
    enum meg_parallel_residual parallel_residual;
    double logit_softcap; /* --final-logit-softcapping; not above 0: none */
    bool has_bias;        /* attention and MLP have biases; if it is false, only those of the next three fields */
    bool add_qkv_bias, add_proj_bias, add_mlp_bias;
    bool add_output_bias;  /* the output layer has a bias (GPT) */
    bool bias_gelu_fusion; /* with has_bias, the GELU of an MLP without gate is the tanh approximation */
    double hidden_dropout;
    bool openai_gelu;        /* every GELU is the tanh approximation; otherwise exact, except with bias_gelu_fusion */
    bool residual_from_norm; /* --apply-residual-connection-post-layernorm */
    bool bert_binary_head;   /* predict the order of segments (BERT) */
    int64_t num_tokentypes;  /* rows of the embedding of token types (BERT); 0: there is none */
};
extern const struct meg_opt meg_model_opts[];

/*
 * Derive the unset settings and check all settings.  Return MEG_EUSAGE, with a message that names the options, if a
 * rule is violated.
 */
int meg_model_conf_check(struct meg_model_conf *c, struct meg_err *e);
/* Return MEG_EUSAGE, with a message that names the option, unless v is from 1 to INT32_MAX. */
int meg_model_check_positive(int64_t v, const char *option, struct meg_err *e);

/* Return MEG_EUSAGE, with a message that names the option, unless lo <= v < hi. */
int meg_model_check_range(double v, double lo, double hi, const char *option, struct meg_err *e);

/* The functions below require a configuration that meg_model_conf_check has accepted. */

/*
 * Set the settings that do not affect the outputs of this model to their defaults, and those that express the same in
 * several ways to one of them.  Configurations of equal models then differ only in the settings of training.
 */
void meg_model_conf_normalize(struct meg_model_conf *c);

static inline bool meg_model_is_rotary(const struct meg_model_conf *c)
{
    return c->position_embedding_type == MEG_POSITION_ROPE || c->position_embedding_type == MEG_POSITION_YARN;
}

/* Return whether the MLP has a gated linear unit, whose fc1 computes [gate | up]. */
static inline bool meg_model_is_gated(const struct meg_model_conf *c)
{
    return c->swiglu || c->quick_geglu || c->glu_activation != MEG_GLU_ACTIVATION_NONE || c->gated_linear_unit;
}

/* Return the activation function of the MLP. */
enum meg_act meg_model_act(const struct meg_model_conf *c);

/* Return whether there is a norm of the input, or of the output, of attention and MLP. */
static inline bool meg_model_norms_input(const struct meg_model_conf *c)
{
    return c->norm_placement != MEG_NORM_PLACEMENT_OUTPUT;
}

static inline bool meg_model_norms_output(const struct meg_model_conf *c)
{
    return c->norm_placement == MEG_NORM_PLACEMENT_OUTPUT || c->norm_placement == MEG_NORM_PLACEMENT_SANDWICH;
}

/* Return the factor of the word embedding, of the outputs of attention and MLP, or of the input of the output layer. */
double meg_model_embedding_multiplier(const struct meg_model_conf *c);
static inline double meg_model_residual_multiplier(const struct meg_model_conf *c)
{
    return c->residual_multiplier > 0 ? c->residual_multiplier : 1;
}
static inline double meg_model_logit_multiplier(const struct meg_model_conf *c)
{
    return c->logit_multiplier > 0 ? c->logit_multiplier : 1;
}

/* Return the number of layers of all stacks. */
static inline int64_t meg_model_all_layers(const struct meg_model_conf *c)
{
    return c->num_layers + c->decoder_num_layers;
}

/* Return the number of rotated column pairs per head; 0 without rotary positions. */
static inline int64_t meg_model_rope_half(const struct meg_model_conf *c)
{
    return meg_model_is_rotary(c) ? (int64_t)((double)c->attn.d * c->rotary.percent) / 2 : 0;
}

/* Set the ties of a layout (struct meg_tie) from the model. */
void meg_model_set_ties(struct meg_layout *l, const struct meg_model_conf *c);

/* Make the parameter table and compute the shards of the mesh's rank.  Free the table with meg_params_free. */
void meg_model_params(struct meg_params *p, const struct meg_model_conf *c, const struct meg_mesh *mesh);
