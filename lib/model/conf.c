/* conf.c - options of a model and their checks. */
#include "model/conf.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "model/attention_conf.h"
#include "model/internal.h"
#include "option/check.h"

#define C struct meg_model_conf

const struct meg_opt meg_model_opts[] = {
    { "model", 0, MEG_ENUM(C, family), meg_family_choices, "gpt",
      "family of models: gpt (decoder, such as GPT-2 or Llama), bert (encoder) or t5 (encoder and decoder)" },
    { "num-layers", 0, MEG_I64(C, num_layers), "N", NULL,
      "number of transformer layers; with --model t5: of the encoder" },
    MEG_ALIAS("encoder-num-layers", "num-layers"),
    { "decoder-num-layers", 0, MEG_I64(C, decoder_num_layers), "N", NULL,
      "number of layers of the decoder of T5; default: --num-layers" },
    { "hidden-size", 0, MEG_I64(C, hidden_size), "N", NULL, "width of the residual stream (hidden size)" },
    { "ffn-hidden-size", 0, MEG_I64(C, mlp.f), "N", NULL,
      "inner width of the MLP; default: 4 x --hidden-size; with --swiglu: 8/3 x --hidden-size, rounded down to a "
      "multiple of 64" },
    { "num-attention-heads", 0, MEG_I64(C, attn.a), "N", NULL, "number of attention heads" },
    { "kv-channels", 0, MEG_I64(C, attn.d), "N", NULL,
      "number of channels per attention head; default: --hidden-size / --num-attention-heads" },
    { "max-position-embeddings", 0, MEG_I64(C, max_position_embeddings), "N", NULL,
      "maximum sequence length in tokens" },
    { "group-query-attention", 0, MEG_BOOL(C, group_query_attention), NULL, "no",
      "use grouped-query attention, in which several query heads use the same key and value head" },
    { "num-query-groups", 0, MEG_I64(C, attn.g), "N", NULL,
      "number of key and value heads; requires --group-query-attention; default: 1" },
    { "position-embedding-type", 0, MEG_ENUM(C, position_embedding_type), "learned_absolute|rope|relative|alibi|yarn",
      "learned_absolute",
      "position embedding: a learned table, rotation of queries and keys (RoPE), a bias of attention scores that "
      "depends on the distance, either learned (T5) or linear (ALiBi), or RoPE that YaRN scales" },
    { "relative-attention-num-buckets", 0, MEG_I64(C, relative_attention_num_buckets), "N", "32",
      "number of buckets of distances with --position-embedding-type relative" },
    { "relative-attention-max-distance", 0, MEG_I64(C, relative_attention_max_distance), "N", "128",
      "with --position-embedding-type relative: all distances of N or more tokens are in one bucket, "
      "in the encoder one for each direction" },
    { "position-embedding-offset", 0, MEG_I64(C, position_embedding_offset), "N", "0",
      "number of unused rows before that of the first position in the learned position embedding (OPT: 2)" },
    { "window-size", 0, MEG_STR(C, attn.window_size), "L,R", NULL,
      "each query attends only to itself and to the L tokens before it (sliding-window attention); R must be 0 or -1; "
      "-1 for L means no limit" },
    { "window-attn-skip-freq", 0, MEG_STR(C, attn.window_attn_skip_freq), "PATTERN", NULL,
      "layers with a window: a number N, if every Nth layer has none, or a list with a 1 for each layer with a window "
      "and a 0 for each other layer; default: all layers" },
    { "use-rotary-position-embeddings", 0, MEG_BOOL(C, rotary.is_used), NULL, "no",
      "same as --position-embedding-type rope" },
    { "rotary-base", 0, MEG_F64(C, rotary.base), "X", "10000", "base of the RoPE frequencies (theta)" },
    { "rotary-base-window", 0, MEG_F64(C, rotary.base_window), "X", NULL,
      "base of the RoPE frequencies, without any scaling, in the layers with a window; default: as in other layers" },
    { "rotary-percent", 0, MEG_F64(C, rotary.percent), "X", "1.0",
      "fraction of the channels of each head that RoPE rotates" },
    { "rotary-interleaved", 0, MEG_BOOL(C, rotary.is_interleaved), NULL, "no",
      "rotate pairs of adjacent channels instead of pairs from both halves of the rotated channels" },
    { "no-rope-freq", 0, MEG_STR(C, rotary.no_rope_freq), "PATTERN", NULL,
      "layers without RoPE: a number N for every Nth layer, or a list with a 1 for each layer without RoPE and a 0 for "
      "each other layer; default: none" },
    { "rotary-seq-len-interpolation-factor", 0, MEG_F64(C, rotary.interpolation), "X", NULL,
      "divide positions by X in RoPE" },
    { "use-rope-scaling", 0, MEG_BOOL(C, rotary.is_scaled), NULL, "no",
      "scale the long wavelengths of RoPE as Llama 3.1 does" },
    { "rope-scaling-factor", 0, MEG_F64(C, rotary.scaling_factor), "X", "8",
      "factor by which --use-rope-scaling multiplies the long wavelengths of RoPE" },
    { "rope-scaling-low-freq-factor", 0, MEG_F64(C, rotary.low_freq_factor), "X", "1",
      "with --use-rope-scaling: wavelengths that turn less than X times over the original context are multiplied" },
    { "rope-scaling-high-freq-factor", 0, MEG_F64(C, rotary.high_freq_factor), "X", "4",
      "with --use-rope-scaling: wavelengths that turn more than X times over the original context are unchanged" },
    { "rope-scaling-original-max-position-embeddings", 0, MEG_I64(C, rotary.scaling_original), "N", "8192",
      "with --use-rope-scaling: length of the original context in tokens" },
    { "yarn-original-max-position-embeddings", 0, MEG_I64(C, rotary.yarn_original), "N", NULL,
      "length in tokens of the context that YaRN extends; required with --position-embedding-type yarn" },
    { "rotary-scaling-factor", 0, MEG_F64(C, rotary.yarn_factor), "X", "1",
      "factor by which YaRN multiplies the long wavelengths of RoPE" },
    { "yarn-beta-fast", 0, MEG_F64(C, rotary.yarn_beta_fast), "X", "32",
      "YaRN keeps wavelengths that turn more than X times over the original context" },
    { "yarn-beta-slow", 0, MEG_F64(C, rotary.yarn_beta_slow), "X", "1",
      "YaRN multiplies wavelengths that turn less than X times over the original context" },
    { "yarn-correction-range-round-to-int", 0, MEG_BOOL(C, rotary.yarn_rounds), NULL, "yes",
      "round the bounds of the channels that YaRN interpolates" },
    MEG_NEGATED("no-yarn-correction-range-round-to-int", C, rotary.yarn_rounds),
    { "mscale", 0, MEG_F64(C, rotary.mscale), "X", "1",
      "YaRN multiplies queries and keys by 0.1 X ln(--rotary-scaling-factor) + 1" },
    { "mscale-all-dim", 0, MEG_F64(C, rotary.mscale_all_dim), "X", "0",
      "YaRN divides queries and keys by 0.1 X ln(--rotary-scaling-factor) + 1" },
    { "yarn-attention-factor", 0, MEG_F64(C, rotary.yarn_attention_factor), "X", NULL,
      "factor by which YaRN multiplies queries and keys, instead of --mscale and --mscale-all-dim" },
    { "rope-long-factors", 0, MEG_STR(C, rotary.long_factors), "LIST", NULL,
      "LongRoPE: factors of the wavelengths of RoPE, one for each pair of channels, separated by commas, in sequences "
      "longer than --rope-original-max-position-embeddings" },
    { "rope-short-factors", 0, MEG_STR(C, rotary.short_factors), "LIST", NULL,
      "LongRoPE: factors of the wavelengths of RoPE in other sequences" },
    { "rope-original-max-position-embeddings", 0, MEG_I64(C, rotary.longrope_original), "N", NULL,
      "length in tokens of the context that LongRoPE extends" },
    { "attn-temperature-beta", 0, MEG_F64(C, rotary.temperature_beta), "X", "0",
      "multiply queries, after RoPE, by 1 + X ln(1 + floor(position / N)), where N is --attn-temperature-floor" },
    { "attn-temperature-floor", 0, MEG_I64(C, rotary.temperature_floor), "N", NULL,
      "first position at which --attn-temperature-beta has an effect" },
    { "normalization", 0, MEG_ENUM(C, normalization), "LayerNorm|RMSNorm", "LayerNorm", "type of normalization layer" },
    { "apply-layernorm-1p", 0, MEG_BOOL(C, apply_layernorm_1p), NULL, "no",
      "store the weights of norms, LayerNorm or RMSNorm, as their differences from 1 (Gemma, Nemotron)" },
    { "norm-no-bias", 0, MEG_BOOL(C, norm_no_bias), NULL, "no", "omit the biases of LayerNorm" },
    { "norm-no-weight", 0, MEG_BOOL(C, norm_no_weight), NULL, "no",
      "omit the weights of norms (OLMo); with LayerNorm, requires --norm-no-bias" },
    { "norm-epsilon", 0, MEG_F64(C, norm_epsilon), "X", "1e-05",
      "epsilon added to the variance in normalization layers" },
    MEG_ALIAS("layernorm-epsilon", "norm-epsilon"),
    { "norm-placement", 0, MEG_ENUM(C, norm_placement), "pre|post|output|sandwich", "pre",
      "norms of a layer: before attention and MLP, after each residual addition, of the outputs of attention and MLP, "
      "or both before and of the outputs" },
    { "parallel-residual", 0, MEG_ENUM(C, parallel_residual), "none|shared-norm|two-norms", "none",
      "let attention and MLP read the same residual stream, with one norm (GPT-J) or with a norm each (GPT-NeoX)" },
    { "embed-layernorm", 0, MEG_BOOL(C, embed_layernorm), NULL, "no",
      "normalize the word embedding before positions are added (BLOOM)" },
    { "embedding-multiplier", 0, MEG_STR(C, embedding_multiplier), "FACTOR", "1",
      "multiply the word embedding by a number, or by the square root of --hidden-size if FACTOR is sqrt (Gemma)" },
    { "residual-multiplier", 0, MEG_F64(C, residual_multiplier), "X", "1.0",
      "multiply the outputs of attention and MLP by X before the residual addition (Granite)" },
    { "qk-layernorm", 0, MEG_BOOL(C, attn.qk_layernorm), NULL, "no",
      "normalize queries and keys, by default each head before RoPE, with one weight for all heads (Qwen3)" },
    { "qk-norm-scope", 0, MEG_ENUM(C, attn.qk_norm_scope), "head|per-head-weight|width", "head",
      "with --qk-layernorm: normalize each head, with one weight for all heads or with one for each of them, or "
      "normalize all heads of a token together" },
    { "qk-norm-after-rope", 0, MEG_BOOL(C, attn.qk_norm_after_rope), NULL, "no",
      "with --qk-layernorm: normalize after RoPE instead of before" },
    { "init-method-std", 0, MEG_F64(C, init_method_std), "X", "0.02", "standard deviation of the initial weights" },
    { "init-method-xavier-uniform", 0, MEG_BOOL(C, init_method_xavier_uniform), NULL, "no",
      "draw initial weights from the Xavier uniform distribution instead of a normal distribution" },
    { "untie-embeddings-and-output-weights", 0, MEG_BOOL(C, is_untied), NULL, "no",
      "use separate weights for the word embedding and the output layer" },
    { "swiglu", 0, MEG_BOOL(C, swiglu), NULL, "no",
      "use SwiGLU, a gated linear unit with SiLU, instead of GELU in the MLP" },
    { "glu-activation", 0, MEG_ENUM(C, glu_activation), "none|geglu|reglu", "none",
      "use a gated linear unit with GELU or ReLU in the MLP" },
    { "quick-geglu", 0, MEG_BOOL(C, quick_geglu), NULL, "no",
      "use a gated linear unit with x / (1 + exp(-1.702 x)) in the MLP" },
    { "squared-relu", 0, MEG_BOOL(C, squared_relu), NULL, "no",
      "use squared ReLU in an MLP without gated linear unit" },
    { "activation-func", 0, MEG_ENUM(C, activation_func), "gelu|gelu-tanh|quick-gelu|relu|squared-relu|silu", "gelu",
      "activation function of the MLP" },
    { "gated-linear-unit", 0, MEG_BOOL(C, gated_linear_unit), NULL, "no",
      "use a gated linear unit with --activation-func in the MLP" },
    { "glu-linear-offset", 0, MEG_F64(C, glu_linear_offset), "X", "0",
      "add X to the factor of a gated linear unit that has no activation function" },
    { "activation-func-clamp-value", 0, MEG_F64(C, activation_func_clamp_value), "X", NULL,
      "clamp the inputs of a gated linear unit: the gate to at most X, the other factor to [-X, X]" },
    { "softmax-scale", 0, MEG_F64(C, attn.scale), "X", NULL,
      "multiply attention scores by X before the softmax; default: 1 / sqrt(--kv-channels)" },
    { "clip-qkv", 0, MEG_F64(C, attn.clip), "X", NULL,
      "limit each element of queries, keys and values to the range from -X to X; default: no limit" },
    { "softmax-type", 0, MEG_ENUM(C, attn.softmax_type), "vanilla|off-by-one|learnable", "vanilla",
      "softmax of the attention scores: as usual, with 1 added to the denominator, or with the exponential of a "
      "trained number of each head added (attention sink)" },
    { "attn-logit-softcapping", 0, MEG_F64(C, attn.softcap), "X", NULL,
      "limit attention scores to the range from -X to X by X * tanh(score / X); default: no limit" },
    { "final-logit-softcapping", 0, MEG_F64(C, logit_softcap), "X", NULL,
      "limit the logits to the range from -X to X by X * tanh(logit / X); default: no limit" },
    { "logit-multiplier", 0, MEG_F64(C, logit_multiplier), "X", NULL,
      "multiply the input of the output layer, and so the logits without their bias, by X; default: 1" },
    MEG_ALIAS("logits-scale", "logit-multiplier"),
    { "disable-bias-linear", 0, MEG_STORE_FALSE(C, has_bias), NULL, "no",
      "omit the biases of linear layers, except in the heads of BERT" },
    { "add-qkv-bias", 0, MEG_BOOL(C, add_qkv_bias), NULL, "no",
      "keep the biases of queries, keys and values with --disable-bias-linear" },
    { "add-proj-bias", 0, MEG_BOOL(C, add_proj_bias), NULL, "no",
      "keep the bias of the attention output with --disable-bias-linear" },
    { "add-mlp-bias", 0, MEG_BOOL(C, add_mlp_bias), NULL, "no",
      "keep the biases of the MLP with --disable-bias-linear" },
    { "add-output-bias", 0, MEG_BOOL(C, add_output_bias), NULL, "no", "add a bias to the output layer (--model gpt)" },
    { "no-bias-gelu-fusion", 0, MEG_STORE_FALSE(C, bias_gelu_fusion), NULL, "no",
      "use exact GELU (erf) instead of the tanh approximation" },
    { "openai-gelu", 0, MEG_BOOL(C, openai_gelu), NULL, "no",
      "use the tanh approximation of GELU, also in the language-model head of BERT and with --glu-activation" },
    { "attention-dropout", 0, MEG_F64(C, attn.dropout), "P", "0.1", "dropout probability of attention weights" },
    { "hidden-dropout", 0, MEG_F64(C, hidden_dropout), "P", "0.1",
      "dropout probability after the embedding, attention, cross-attention and MLP" },
    { "apply-residual-connection-post-layernorm", 0, MEG_BOOL(C, residual_from_norm), NULL, "no",
      "add the output of attention and MLP to the output of the norm before them, as the original BERT does" },
    { "bert-no-binary-head", 0, MEG_STORE_FALSE(C, bert_binary_head), NULL, "no",
      "omit the head that predicts the order of segments and, unless --num-tokentypes is given, token types "
      "(--model bert)" },
    { "num-tokentypes", 0, MEG_I64(C, num_tokentypes), "N", NULL,
      "number of token types of BERT, which distinguish segments; default: 2, or 0 with --bert-no-binary-head" },
    { 0 },
};

int meg_model_check_positive(int64_t v, const char *name, struct meg_err *e)
{
    if (v == MEG_UNSET)
        return meg_fail(e, MEG_EUSAGE, "--%s is required", name);
    if (v < 1)
        return meg_fail(e, MEG_EUSAGE, "--%s %" PRId64 ": must be at least 1", name, v);
    if (v > INT32_MAX)
        return meg_fail(e, MEG_EUSAGE, "--%s %" PRId64 ": must be at most %d", name, v, INT32_MAX);
    return 0;
}

int meg_model_check_range(double v, double lo, double hi, const char *name, struct meg_err *e)
{
    if (v >= lo && v < hi)
        return 0;
    if (isinf(hi))
        return meg_fail(e, MEG_EUSAGE, "--%s %g: must be finite and at least %g", name, v, lo);
    return meg_fail(e, MEG_EUSAGE, "--%s %g: must be at least %g and less than %g", name, v, lo, hi);
}

/* Check a factor, which is NaN or 0 if it is unset. */
static int check_factor(double v, const char *name, struct meg_err *e)
{
    if (v < 0 || isinf(v))
        return meg_fail(e, MEG_EUSAGE, "--%s %g: must be positive and finite", name, v);
    return 0;
}

static int check_groups(struct meg_model_conf *c, struct meg_err *e)
{
    if (!c->group_query_attention) {
        if (c->attn.g != MEG_UNSET && c->attn.g != c->attn.a)
            return meg_fail(e, MEG_EUSAGE, "--num-query-groups %" PRId64 ": requires --group-query-attention",
                            c->attn.g);
        c->attn.g = c->attn.a;
    }
    if (c->attn.g == MEG_UNSET)
        c->attn.g = 1;
    if (c->attn.g < 1)
        return meg_fail(e, MEG_EUSAGE, "--num-query-groups %" PRId64 ": must be at least 1", c->attn.g);
    if (c->attn.a % c->attn.g)
        return meg_fail(e, MEG_EUSAGE, "--num-query-groups %" PRId64 ": must divide --num-attention-heads %" PRId64,
                        c->attn.g, c->attn.a);
    return 0;
}

/* Set *x to the value of --embedding-multiplier; "sqrt" is the square root of the hidden size. */
static bool read_embedding_multiplier(const struct meg_model_conf *c, double *x)
{
    const char *text = c->embedding_multiplier;
    char *end;

    *x = text && strcmp(text, "sqrt") != 0 ? strtod(text, &end) : text ? sqrt((double)c->hidden_size) : 1;
    return !text || strcmp(text, "sqrt") == 0 || (end != text && !*end && *x > 0 && isfinite(*x));
}

double meg_model_embedding_multiplier(const struct meg_model_conf *c)
{
    double x;

    MEG_ASSERT(read_embedding_multiplier(c, &x));
    return x;
}

static int check_residual(const struct meg_model_conf *c, struct meg_err *e)
{
    const bool is_pre = c->norm_placement == MEG_NORM_PLACEMENT_PRE;
    const bool norms_output = meg_model_norms_output(c), is_sandwich = norms_output && meg_model_norms_input(c);
    const bool is_parallel = c->parallel_residual != MEG_PARALLEL_RESIDUAL_NONE;
    const bool has_output_bias = c->has_bias || c->add_proj_bias || c->add_mlp_bias;
    double x;
    const struct meg_opt_rule rules[] = {
        { !read_embedding_multiplier(c, &x), "embedding-multiplier", ": must be a positive number or sqrt" },
        { norms_output && has_output_bias, "norm-placement",
          ": the norm follows an output without bias; use --disable-bias-linear without --add-proj-bias and "
          "--add-mlp-bias" },
        { meg_model_residual_multiplier(c) != 1 && has_output_bias, "residual-multiplier",
          ": requires --disable-bias-linear without --add-proj-bias and --add-mlp-bias" },
        { is_parallel && !is_pre && !is_sandwich, "parallel-residual", ": requires --norm-placement pre or sandwich" },
        { c->residual_from_norm && (!is_pre || is_parallel), "apply-residual-connection-post-layernorm",
          ": cannot be combined with --norm-placement or --parallel-residual" },
        { c->position_embedding_offset < 0 || c->position_embedding_offset > INT32_MAX, "position-embedding-offset",
          ": must be from 0 to 2147483647" },
        { 0 },
    };

    return meg_opt_check_rules(rules, meg_model_opts, c, e);
}

static int check_norm(const struct meg_model_conf *c, struct meg_err *e)
{
    const bool is_rms = c->normalization == MEG_NORM_RMS;
    const struct meg_opt_rule rules[] = {
        { c->attn.qk_layernorm && c->norm_no_weight, "qk-layernorm", ": cannot be combined with --norm-no-weight" },
        { c->attn.qk_norm_scope == MEG_QK_NORM_PER_HEAD_WEIGHT && !is_rms, "qk-norm-scope",
          ": requires --normalization RMSNorm" },
        { c->attn.qk_norm_after_rope && !meg_model_is_rotary(c), "qk-norm-after-rope",
          ": requires --position-embedding-type rope or yarn" },
        { c->attn.qk_norm_after_rope && c->rotary.temperature_beta != 0, "qk-norm-after-rope",
          ": cannot be combined with --attn-temperature-beta, because the norm removes this factor" },
        { c->norm_no_weight && c->apply_layernorm_1p, "norm-no-weight",
          ": cannot be combined with --apply-layernorm-1p, because there are no weights to store" },
        { c->norm_no_weight && !is_rms && !c->norm_no_bias, "norm-no-weight",
          ": requires --norm-no-bias, or --normalization RMSNorm" },
        { 0 },
    };

    return meg_opt_check_rules(rules, meg_model_opts, c, e);
}

/* Check that layer numbers fit into checkpoint file names and element counts into 64 bits. */
static int check_size(const struct meg_model_conf *c, struct meg_err *e)
{
    const double h = (double)c->hidden_size, d = (double)c->attn.d, f = (double)c->mlp.f;
    const double layer = h * d * 2 * (double)(c->attn.a + c->attn.g) + 3 * h * f;
    const double cross = h * d * 4 * (double)c->attn.a;
    const double layers = layer * (double)c->num_layers + (layer + cross) * (double)c->decoder_num_layers;
    const double n = layers + h * (double)(2 * c->vocab_size + c->max_position_embeddings);

    if (meg_model_all_layers(c) > 99999)
        return meg_fail(e, MEG_EUSAGE,
                        "--num-layers %" PRId64 ": the model would have %" PRId64 " layers; the limit is 99999",
                        c->num_layers, meg_model_all_layers(c));
    if (n > 0x1p48)
        return meg_fail(e, MEG_EUSAGE,
                        "--num-layers %" PRId64 " and --hidden-size %" PRId64
                        ": the model would have about %.2g parameters; the limit is %.2g",
                        c->num_layers, c->hidden_size, n, 0x1p48);
    return 0;
}

/* Return whether the GELU of the MLP is the tanh form. */
static bool has_tanh_gelu(const struct meg_model_conf *c, bool is_gated)
{
    return c->openai_gelu || (!is_gated && c->bias_gelu_fusion && c->has_bias);
}

enum meg_act meg_model_act(const struct meg_model_conf *c)
{
    static const enum meg_act acts[] = { MEG_ACT_GELU_ERF, MEG_ACT_GELU_TANH,    MEG_ACT_QUICK_GELU,
                                         MEG_ACT_RELU,     MEG_ACT_SQUARED_RELU, MEG_ACT_SILU };

    if (c->swiglu)
        return MEG_ACT_SILU;
    if (c->quick_geglu)
        return MEG_ACT_QUICK_GELU;
    if (c->squared_relu)
        return MEG_ACT_SQUARED_RELU;
    if (c->glu_activation == MEG_GLU_ACTIVATION_REGLU)
        return MEG_ACT_RELU;
    return c->activation_func == MEG_ACTIVATION_FUNC_GELU && has_tanh_gelu(c, meg_model_is_gated(c))
               ? MEG_ACT_GELU_TANH
               : acts[c->activation_func];
}

/* Select an activation function by the option that is specific to it, if there is one. */
static void set_activation(struct meg_model_conf *c, enum meg_activation_func func, bool is_gated)
{
    bool is_specific;

    if (func == MEG_ACTIVATION_FUNC_GELU_TANH && c->family != MEG_FAMILY_BERT && !has_tanh_gelu(c, is_gated))
        c->openai_gelu = true; /* in a BERT, this would change the head */
    if (func == MEG_ACTIVATION_FUNC_GELU_TANH && has_tanh_gelu(c, is_gated))
        func = MEG_ACTIVATION_FUNC_GELU;
    c->swiglu = is_gated && func == MEG_ACTIVATION_FUNC_SILU;
    c->quick_geglu = is_gated && func == MEG_ACTIVATION_FUNC_QUICK_GELU;
    c->squared_relu = !is_gated && func == MEG_ACTIVATION_FUNC_SQUARED_RELU;
    c->glu_activation = is_gated && func == MEG_ACTIVATION_FUNC_GELU   ? MEG_GLU_ACTIVATION_GEGLU
                        : is_gated && func == MEG_ACTIVATION_FUNC_RELU ? MEG_GLU_ACTIVATION_REGLU
                                                                       : MEG_GLU_ACTIVATION_NONE;
    is_specific = c->swiglu || c->quick_geglu || c->squared_relu || c->glu_activation != MEG_GLU_ACTIVATION_NONE;
    c->activation_func = is_specific ? MEG_ACTIVATION_FUNC_GELU : func;
    c->gated_linear_unit = is_gated && !is_specific;
}

static int check_activation(struct meg_model_conf *c, struct meg_err *e)
{
    const struct {
        const char *option;
        bool is_set, is_gated;
        enum meg_activation_func func;
    } specific[] = {
        { "glu-activation", c->glu_activation == MEG_GLU_ACTIVATION_GEGLU, true, MEG_ACTIVATION_FUNC_GELU },
        { "glu-activation", c->glu_activation == MEG_GLU_ACTIVATION_REGLU, true, MEG_ACTIVATION_FUNC_RELU },
        { "quick-geglu", c->quick_geglu, true, MEG_ACTIVATION_FUNC_QUICK_GELU },
        { "squared-relu", c->squared_relu, false, MEG_ACTIVATION_FUNC_SQUARED_RELU },
        { "swiglu", c->swiglu, true, MEG_ACTIVATION_FUNC_SILU },
    };
    const char *other = c->activation_func != MEG_ACTIVATION_FUNC_GELU ? "activation-func" : NULL;
    enum meg_activation_func func = c->activation_func;
    bool is_gated = c->gated_linear_unit;

    for (size_t i = 0; i < sizeof specific / sizeof *specific; i++) {
        if (!specific[i].is_set)
            continue;
        if (!other && is_gated && !specific[i].is_gated)
            other = "gated-linear-unit";
        if (other)
            return meg_fail(e, MEG_EUSAGE, "--%s: cannot be combined with --%s", other, specific[i].option);
        other = specific[i].option;
        func = specific[i].func;
        is_gated = specific[i].is_gated;
    }
    if (!isfinite(c->glu_linear_offset))
        return meg_fail(e, MEG_EUSAGE, "--glu-linear-offset %g: must be finite", c->glu_linear_offset);
    if (!is_gated && (c->glu_linear_offset != 0 || c->activation_func_clamp_value > 0))
        return meg_fail(e, MEG_EUSAGE, "--%s: requires a gated linear unit, such as --swiglu",
                        c->glu_linear_offset != 0 ? "glu-linear-offset" : "activation-func-clamp-value");
    set_activation(c, func, is_gated);
    return 0;
}

int meg_model_conf_check(struct meg_model_conf *c, struct meg_err *e)
{
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, c }, { 0 } };
    const struct meg_family *f = meg_family_of(c);
    int r;

    if ((r = meg_family_check_options(c, groups, e)) < 0 ||
        (r = meg_model_check_positive(c->num_layers, "num-layers", e)) < 0 ||
        (r = meg_model_check_positive(c->hidden_size, "hidden-size", e)) < 0 ||
        (r = meg_model_check_positive(c->attn.a, "num-attention-heads", e)) < 0 ||
        (r = meg_model_check_positive(c->max_position_embeddings, "max-position-embeddings", e)) < 0)
        return r;
    if (c->attn.d == MEG_UNSET) {
        if (c->hidden_size % c->attn.a)
            return meg_fail(e, MEG_EUSAGE,
                            "--hidden-size %" PRId64 ": must be a multiple of --num-attention-heads %" PRId64
                            "; change one of them or set --kv-channels",
                            c->hidden_size, c->attn.a);
        c->attn.d = c->hidden_size / c->attn.a;
    }
    if ((r = check_activation(c, e)) < 0)
        return r;
    if (c->mlp.f == MEG_UNSET)
        c->mlp.f = c->swiglu ? 4 * c->hidden_size * 2 / 3 / 64 * 64 : 4 * c->hidden_size;
    if ((r = meg_model_check_positive(c->attn.d, "kv-channels", e)) < 0 ||
        (r = meg_model_check_positive(c->mlp.f, "ffn-hidden-size", e)) < 0 ||
        (r = meg_model_check_range(c->norm_epsilon, 0, 1, "norm-epsilon", e)) < 0 ||
        (r = meg_model_check_range(c->init_method_std, 0, HUGE_VAL, "init-method-std", e)) < 0 ||
        (r = meg_model_check_range(c->attn.dropout, 0, 1, "attention-dropout", e)) < 0 ||
        (r = meg_model_check_range(c->hidden_dropout, 0, 1, "hidden-dropout", e)) < 0 ||
        (r = check_factor(c->attn.scale, "softmax-scale", e)) < 0 ||
        (r = check_factor(c->attn.clip, "clip-qkv", e)) < 0 ||
        (r = check_factor(c->attn.softcap, "attn-logit-softcapping", e)) < 0 ||
        (r = check_factor(c->logit_softcap, "final-logit-softcapping", e)) < 0 ||
        (r = check_factor(c->residual_multiplier, "residual-multiplier", e)) < 0 ||
        (r = check_factor(c->logit_multiplier, "logit-multiplier", e)) < 0 ||
        (r = check_factor(c->activation_func_clamp_value, "activation-func-clamp-value", e)) < 0)
        return r;
    if ((r = check_groups(c, e)) < 0 || (r = meg_rotary_conf_check(c, e)) < 0 ||
        (r = meg_attention_conf_check(c, e)) < 0)
        return r;
    if ((r = check_norm(c, e)) < 0 || (r = check_residual(c, e)) < 0)
        return r;
    if (f->check && (r = f->check(c, e)) < 0)
        return r;
    c->decoder_num_layers = c->decoder_num_layers == MEG_UNSET ? 0 : c->decoder_num_layers;
    c->num_tokentypes = c->num_tokentypes == MEG_UNSET ? 0 : c->num_tokentypes;
    return check_size(c, e);
}

/* Express the types of GELU in one of the two settings, unless a BERT has two of them. */
static void normalize_gelu(struct meg_model_conf *c)
{
    const bool is_gated = meg_model_is_gated(c);
    const enum meg_act act = meg_model_act(c);

    if (!is_gated && act == MEG_ACT_GELU_TANH)
        c->activation_func = MEG_ACTIVATION_FUNC_GELU;
    c->bias_gelu_fusion = is_gated || act != MEG_ACT_GELU_ERF;
    if (c->family != MEG_FAMILY_BERT && c->glu_activation != MEG_GLU_ACTIVATION_GEGLU)
        c->openai_gelu = false;
}

void meg_model_conf_normalize(struct meg_model_conf *c)
{
    struct meg_model_conf def = { 0 };
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, &def }, { 0 } };

    meg_opt_defaults(groups);
    c->group_query_attention = c->attn.g != c->attn.a;
    if (c->position_embedding_type != MEG_POSITION_RELATIVE) {
        c->relative_attention_num_buckets = def.relative_attention_num_buckets;
        c->relative_attention_max_distance = def.relative_attention_max_distance;
    }
    c->norm_no_bias = c->norm_no_bias && c->normalization != MEG_NORM_RMS;
    if (!c->attn.qk_layernorm) {
        c->attn.qk_norm_scope = def.attn.qk_norm_scope;
        c->attn.qk_norm_after_rope = false;
    }
    meg_attention_conf_normalize(c);
    meg_rotary_conf_normalize(c, &def);
    normalize_gelu(c);
    if (c->add_qkv_bias && c->add_proj_bias && c->add_mlp_bias)
        c->has_bias = true;
    if (c->has_bias)
        c->add_qkv_bias = c->add_proj_bias = c->add_mlp_bias = false;
    if (!(c->attn.scale > 0))
        c->attn.scale = NAN;
    if (!(c->activation_func_clamp_value > 0))
        c->activation_func_clamp_value = NAN;
    if (meg_model_embedding_multiplier(c) == 1)
        c->embedding_multiplier = def.embedding_multiplier;
    if (meg_model_residual_multiplier(c) == 1)
        c->residual_multiplier = def.residual_multiplier;
    if (c->position_embedding_type != MEG_POSITION_LEARNED)
        c->position_embedding_offset = 0;
    if (meg_model_logit_multiplier(c) == 1)
        c->logit_multiplier = NAN;
    if (!(c->attn.clip > 0))
        c->attn.clip = NAN;
    if (!(c->attn.softcap > 0))
        c->attn.softcap = NAN;
    if (!(c->logit_softcap > 0))
        c->logit_softcap = NAN;
}
