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
#ifndef MEG_MODEL_CONF_H
#define MEG_MODEL_CONF_H
#include "nn/attn/self_attention.h"
#include "nn/mlp.h"
#include "option/opt.h"
#include "parallel/mesh.h"
#include "params/param.h"

/* Indices of the families (model/family.h), in the order of the choices of --model. */
enum meg_model_family { MEG_FAMILY_GPT, MEG_FAMILY_BERT, MEG_FAMILY_T5 };
enum meg_position_embedding { MEG_POSITION_LEARNED, MEG_POSITION_ROPE, MEG_POSITION_RELATIVE, MEG_POSITION_YARN };
enum meg_activation_func { MEG_ACTIVATION_FUNC_GELU, MEG_ACTIVATION_FUNC_RELU };
enum meg_glu_activation { MEG_GLU_ACTIVATION_NONE, MEG_GLU_ACTIVATION_GEGLU, MEG_GLU_ACTIVATION_REGLU };

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
    enum meg_norm normalization;
    struct meg_rotary_conf rotary;
    double norm_epsilon, init_method_std;
    bool init_method_xavier_uniform;
    bool is_untied; /* --untie-embeddings-and-output-weights */
    bool swiglu;
    enum meg_glu_activation glu_activation;   /* gated linear unit other than SwiGLU */
    enum meg_activation_func activation_func; /* of an MLP that is not gated */
    double logits_scale;                      /* factor of the input of the output layer (T5); not above 0: 1 */
    bool has_bias; /* attention and MLP have biases; if it is false, only qkv can have one (add_qkv_bias) */
    bool add_qkv_bias;
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
    return c->swiglu || c->glu_activation != MEG_GLU_ACTIVATION_NONE;
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

#endif
