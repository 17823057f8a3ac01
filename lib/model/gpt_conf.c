/* GPT's settings, what follows from them, and the parameter table. */
#include <math.h>
#include <stdio.h>
#include "model/gpt.h"

#define C struct meg_gpt_conf

const struct meg_opt meg_gpt_opts[] = {
    { "num-layers", 0, MEG_I64(C, num_layers), "N", NULL, "transformer layers" },
    { "hidden-size", 0, MEG_I64(C, hidden_size), "N", NULL, "width of the residual stream" },
    { "ffn-hidden-size", 0, MEG_I64(C, ffn_hidden_size), "N", NULL, "width inside the MLP (4 x hidden size)" },
    { "num-attention-heads", 0, MEG_I64(C, num_attention_heads), "N", NULL, "attention heads" },
    { "kv-channels", 0, MEG_I64(C, kv_channels), "N", NULL, "size of a head (hidden size / heads)" },
    { "max-position-embeddings", 0, MEG_I64(C, max_position_embeddings), "N", NULL,
      "rows of the position table: the longest sequence" },
    { "position-embedding-type", 0, MEG_STR(C, position_embedding_type), "learned_absolute", "learned_absolute",
      "how positions are told" },
    { "normalization", 0, MEG_STR(C, normalization), "LayerNorm", "LayerNorm", "kind of norm" },
    { "norm-epsilon", 0, MEG_F64(C, norm_epsilon), "X", "1e-05", "added to the variance in a norm" },
    MEG_ALIAS("layernorm-epsilon", "norm-epsilon"),
    { "init-method-std", 0, MEG_F64(C, init_method_std), "X", "0.02", "standard deviation of initial weights" },
    { "init-method-xavier-uniform", 0, MEG_BOOL(C, init_method_xavier_uniform), NULL, "no",
      "initial weights uniform by fan in and fan out instead" },
    { "untie-embeddings-and-output-weights", 0, MEG_BOOL(C, is_untied), NULL, "no",
      "give the output layer weights of its own" },
    { "no-bias-gelu-fusion", 0, MEG_NOT(C, bias_gelu_fusion), NULL, "no",
      "exact GELU (erf) instead of the tanh form" },
    { "attention-dropout", 0, MEG_F64(C, attention_dropout), "P", "0.1", "dropout of attention probabilities" },
    { "hidden-dropout", 0, MEG_F64(C, hidden_dropout), "P", "0.1",
      "dropout after the embedding, the attention and the MLP" },
    { 0 },
};

static int want(int64_t v, const char *name, struct meg_err *e)
{
    if (v == MEG_UNSET)
        return meg_fail(e, MEG_EUSAGE, "--%s is required", name);
    if (v < 1)
        return meg_fail(e, MEG_EUSAGE, "--%s: %lld, must be at least 1", name, (long long)v);
    return 0;
}

static int want_in(double v, double lo, double hi, const char *name, struct meg_err *e)
{
    if (v >= lo && v < hi)
        return 0;
    return meg_fail(e, MEG_EUSAGE, "--%s: %g, must be at least %g and less than %g", name, v, lo, hi);
}

int meg_gpt_conf_check(struct meg_gpt_conf *c, struct meg_err *e)
{
    int r;

    if ((r = want(c->num_layers, "num-layers", e)) < 0 || (r = want(c->hidden_size, "hidden-size", e)) < 0 ||
        (r = want(c->num_attention_heads, "num-attention-heads", e)) < 0 ||
        (r = want(c->max_position_embeddings, "max-position-embeddings", e)) < 0)
        return r;
    if (c->kv_channels == MEG_UNSET) {
        if (c->hidden_size % c->num_attention_heads)
            return meg_fail(e, MEG_EUSAGE,
                            "--hidden-size: %lld is no multiple of --num-attention-heads %lld; "
                            "change one or give --kv-channels",
                            (long long)c->hidden_size, (long long)c->num_attention_heads);
        c->kv_channels = c->hidden_size / c->num_attention_heads;
    }
    if (c->ffn_hidden_size == MEG_UNSET)
        c->ffn_hidden_size = 4 * c->hidden_size;
    if ((r = want(c->kv_channels, "kv-channels", e)) < 0 ||
        (r = want(c->ffn_hidden_size, "ffn-hidden-size", e)) < 0 ||
        (r = want_in(c->norm_epsilon, 0, 1, "norm-epsilon", e)) < 0 ||
        (r = want_in(c->init_method_std, 0, HUGE_VAL, "init-method-std", e)) < 0 ||
        (r = want_in(c->attention_dropout, 0, 1, "attention-dropout", e)) < 0 ||
        (r = want_in(c->hidden_dropout, 0, 1, "hidden-dropout", e)) < 0)
        return r;
    return 0;
}

/* A weight matrix cut along split, or with split -1 whole on every rank. */
static struct meg_param *weight(struct meg_params *p, const struct meg_gpt_conf *c, int section, const char *name,
                                int64_t rows, int64_t cols, int split, double std)
{
    const int64_t dim[] = { rows, cols };
    struct meg_param *row = meg_params_add(p, section, 2, dim, "%s", name);

    row->split = split;
    row->is_decayed = 1;
    row->init = c->init_method_xavier_uniform ? MEG_INIT_XAVIER : MEG_INIT_NORMAL;
    row->std = std;
    return row;
}

static void vector(struct meg_params *p, int section, const char *layer, const char *name, int64_t n, int split,
                   enum meg_param_init init)
{
    struct meg_param *row = meg_params_add(p, section, 1, &n, "%s%s", layer, name);

    row->split = split;
    row->init = init;
}

static void lnorm(struct meg_params *p, int section, const char *layer, const char *name, int64_t h)
{
    char full[64];

    snprintf(full, sizeof full, "%s.weight", name);
    vector(p, section, layer, full, h, -1, MEG_INIT_ONE);
    snprintf(full, sizeof full, "%s.bias", name);
    vector(p, section, layer, full, h, -1, MEG_INIT_ZERO);
}

/* A linear: column ones are cut by rows and their bias with them, row ones by columns. */
static void linear(struct meg_params *p, const struct meg_gpt_conf *c, int section, const char *layer,
                   const char *name, int64_t out, int64_t in, int split, double std)
{
    char full[96];

    snprintf(full, sizeof full, "%s%s.weight", layer, name);
    weight(p, c, section, full, out, in, split, std);
    snprintf(full, sizeof full, "%s.bias", name);
    vector(p, section, layer, full, out, split == 0 ? 0 : -1, MEG_INIT_ZERO);
}

void meg_gpt_params(struct meg_params *p, const struct meg_gpt_conf *c)
{
    const int64_t h = c->hidden_size, ad = c->num_attention_heads * c->kv_channels, f = c->ffn_hidden_size;
    const double std = c->init_method_std, std_out = std / sqrt(2.0 * (double)c->num_layers);
    const int head = (int)c->num_layers + 1;
    struct meg_param *row;

    *p = (struct meg_params){ 0 };
    row = weight(p, c, 0, "embedding.word_embeddings.weight", c->vocab_size, h, 0, std);
    row->is_decoupled = 1;
    row->group = c->is_untied ? MEG_GROUP_DENSE : MEG_GROUP_TIED;
    weight(p, c, 0, "embedding.position_embeddings.weight", c->max_position_embeddings, h, -1, std);

    for (int i = 0; i < c->num_layers; i++) {
        char layer[40];

        snprintf(layer, sizeof layer, "decoder.layers.%d.", i);
        lnorm(p, 1 + i, layer, "input_layernorm", h);
        linear(p, c, 1 + i, layer, "self_attention.linear_qkv", 3 * ad, h, 0, std);
        linear(p, c, 1 + i, layer, "self_attention.linear_proj", h, ad, 1, std_out);
        lnorm(p, 1 + i, layer, "pre_mlp_layernorm", h);
        linear(p, c, 1 + i, layer, "mlp.linear_fc1", f, h, 0, std);
        linear(p, c, 1 + i, layer, "mlp.linear_fc2", h, f, 1, std_out);
    }

    lnorm(p, head, "decoder.", "final_layernorm", h);
    if (c->is_untied)
        weight(p, c, head, "output_layer.weight", c->vocab_size, h, 0, std)->is_decoupled = 1;
    meg_params_place(p);
}

double meg_gpt_flops(const struct meg_gpt_conf *c, int64_t batch, int64_t s)
{
    const double h = (double)c->hidden_size, ad = (double)(c->num_attention_heads * c->kv_channels);
    const double per_layer = 4 * h * ad + 2 * (double)s * ad + 2 * h * (double)c->ffn_hidden_size;

    return 6 * (double)batch * (double)s * ((double)c->num_layers * per_layer + h * (double)c->vocab_size);
}
