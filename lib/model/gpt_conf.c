/* GPT's settings, what follows from them, and the parameter table. */
#include <math.h>
#include <stdio.h>
#include <string.h>
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
    { "group-query-attention", 0, MEG_BOOL(C, group_query_attention), NULL, "no",
      "let several query heads share a key and value head" },
    { "num-query-groups", 0, MEG_I64(C, num_query_groups), "N", NULL,
      "key and value heads of --group-query-attention (1)" },
    { "position-embedding-type", 0, MEG_STR(C, position_embedding_type), "learned_absolute|rope", "learned_absolute",
      "a learned table, or queries and keys turned by their position" },
    { "use-rotary-position-embeddings", 0, MEG_BOOL(C, use_rotary), NULL, "no",
      "the same as --position-embedding-type rope" },
    { "rotary-base", 0, MEG_F64(C, rotary_base), "X", "10000", "base of rotary wavelengths" },
    { "rotary-percent", 0, MEG_F64(C, rotary_percent), "X", "1.0", "part of each head that is turned" },
    { "rotary-interleaved", 0, MEG_BOOL(C, rotary_interleaved), NULL, "no",
      "turn neighbouring columns together instead of halves" },
    { "rotary-seq-len-interpolation-factor", 0, MEG_I64(C, rotary_interpolation), "N", NULL, "divide positions by N" },
    { "use-rope-scaling", 0, MEG_BOOL(C, use_rope_scaling), NULL, "no",
      "stretch long rotary wavelengths as Llama 3 does" },
    { "rope-scaling-factor", 0, MEG_F64(C, rope_scaling_factor), "X", "8", "by how much --use-rope-scaling does" },
    { "normalization", 0, MEG_STR(C, normalization), "LayerNorm|RMSNorm", "LayerNorm", "kind of norm" },
    { "norm-epsilon", 0, MEG_F64(C, norm_epsilon), "X", "1e-05", "added to the variance in a norm" },
    MEG_ALIAS("layernorm-epsilon", "norm-epsilon"),
    { "init-method-std", 0, MEG_F64(C, init_method_std), "X", "0.02", "standard deviation of initial weights" },
    { "init-method-xavier-uniform", 0, MEG_BOOL(C, init_method_xavier_uniform), NULL, "no",
      "initial weights uniform by fan in and fan out instead" },
    { "untie-embeddings-and-output-weights", 0, MEG_BOOL(C, is_untied), NULL, "no",
      "give the output layer weights of its own" },
    { "swiglu", 0, MEG_BOOL(C, swiglu), NULL, "no", "a gated linear unit with SiLU instead of GELU" },
    { "disable-bias-linear", 0, MEG_STORE_FALSE(C, has_bias), NULL, "no", "no biases in linear layers" },
    { "add-qkv-bias", 0, MEG_BOOL(C, add_qkv_bias), NULL, "no",
      "with --disable-bias-linear: biases of queries, keys and values all the same" },
    { "no-bias-gelu-fusion", 0, MEG_STORE_FALSE(C, bias_gelu_fusion), NULL, "no",
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
    if (v > INT32_MAX)
        return meg_fail(e, MEG_EUSAGE, "--%s: %lld, must be at most %d", name, (long long)v, INT32_MAX);
    return 0;
}

static int want_in(double v, double lo, double hi, const char *name, struct meg_err *e)
{
    if (v >= lo && v < hi)
        return 0;
    return meg_fail(e, MEG_EUSAGE, "--%s: %g, must be at least %g and less than %g", name, v, lo, hi);
}

static int check_groups(struct meg_gpt_conf *c, struct meg_err *e)
{
    if (!c->group_query_attention) {
        if (c->num_query_groups != MEG_UNSET && c->num_query_groups != c->num_attention_heads)
            return meg_fail(e, MEG_EUSAGE, "--num-query-groups: %lld, needs --group-query-attention",
                            (long long)c->num_query_groups);
        c->num_query_groups = c->num_attention_heads;
    }
    if (c->num_query_groups == MEG_UNSET)
        c->num_query_groups = 1;
    if (c->num_query_groups < 1 || c->num_attention_heads % c->num_query_groups)
        return meg_fail(e, MEG_EUSAGE, "--num-query-groups: %lld, must divide --num-attention-heads %lld",
                        (long long)c->num_query_groups, (long long)c->num_attention_heads);
    return 0;
}

static int check_rotary(struct meg_gpt_conf *c, struct meg_err *e)
{
    int r;

    if (c->use_rotary)
        c->position_embedding_type = "rope";
    if (strcmp(c->position_embedding_type, "rope"))
        return 0;
    if (c->rotary_interpolation == MEG_UNSET)
        c->rotary_interpolation = 1;
    if ((r = want(c->rotary_interpolation, "rotary-seq-len-interpolation-factor", e)) < 0 ||
        (r = want_in(c->rotary_base, 1, HUGE_VAL, "rotary-base", e)) < 0 ||
        (r = want_in(c->rope_scaling_factor, 1, HUGE_VAL, "rope-scaling-factor", e)) < 0)
        return r;
    if (!(c->rotary_percent > 0 && c->rotary_percent <= 1))
        return meg_fail(e, MEG_EUSAGE, "--rotary-percent: %g, must be above 0 and at most 1", c->rotary_percent);
    if ((int64_t)((double)c->kv_channels * c->rotary_percent) < 2)
        return meg_fail(e, MEG_EUSAGE, "--rotary-percent: %g of the %lld columns of a head leaves none to turn",
                        c->rotary_percent, (long long)c->kv_channels);
    if ((int64_t)((double)c->kv_channels * c->rotary_percent) % 2)
        return meg_fail(e, MEG_EUSAGE,
                        "--rotary-percent: %g of the %lld columns of a head is an odd number; they turn in pairs",
                        c->rotary_percent, (long long)c->kv_channels);
    return 0;
}

/* So many layers have names of their own in a checkpoint, and so many parameters every product in 64 bits. */
static int check_size(const struct meg_gpt_conf *c, struct meg_err *e)
{
    const double h = (double)c->hidden_size, d = (double)c->kv_channels, f = (double)c->ffn_hidden_size;
    const double layer = h * d * 2 * (double)(c->num_attention_heads + c->num_query_groups) + 3 * h * f;
    const double n = layer * (double)c->num_layers + h * (double)(2 * c->vocab_size + c->max_position_embeddings);

    if (c->num_layers > 99999)
        return meg_fail(e, MEG_EUSAGE, "--num-layers: %lld, must be at most 99999", (long long)c->num_layers);
    if (n > 0x1p48)
        return meg_fail(
            e, MEG_EUSAGE,
            "--num-layers %lld and --hidden-size %lld make about %.2g parameters; at most %.2g can be counted",
            (long long)c->num_layers, (long long)c->hidden_size, n, 0x1p48);
    return 0;
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
        c->ffn_hidden_size = c->swiglu ? 4 * c->hidden_size * 2 / 3 / 64 * 64 : 4 * c->hidden_size;
    if ((r = want(c->kv_channels, "kv-channels", e)) < 0 || (r = want(c->ffn_hidden_size, "ffn-hidden-size", e)) < 0 ||
        (r = want_in(c->norm_epsilon, 0, 1, "norm-epsilon", e)) < 0 ||
        (r = want_in(c->init_method_std, 0, HUGE_VAL, "init-method-std", e)) < 0 ||
        (r = want_in(c->attention_dropout, 0, 1, "attention-dropout", e)) < 0 ||
        (r = want_in(c->hidden_dropout, 0, 1, "hidden-dropout", e)) < 0)
        return r;
    if ((r = check_groups(c, e)) < 0 || (r = check_rotary(c, e)) < 0)
        return r;
    return check_size(c, e);
}

enum meg_norm meg_gpt_norm(const struct meg_gpt_conf *c)
{
    return strcmp(c->normalization, "RMSNorm") ? MEG_NORM_LAYER : MEG_NORM_RMS;
}

bool meg_gpt_is_rotary(const struct meg_gpt_conf *c)
{
    return !strcmp(c->position_embedding_type, "rope");
}

/* A weight matrix cut along split, or with split -1 whole on every rank. */
static struct meg_param *weight(struct meg_params *p, const struct meg_gpt_conf *c, int section, const char *name,
                                int64_t rows, int64_t cols, int split, double std)
{
    const int64_t dim[] = { rows, cols };
    struct meg_param *row = meg_params_add(p, section, 2, dim, "%s", name);

    row->tp_axis = split;
    row->is_decayed = 1;
    row->init = c->init_method_xavier_uniform ? MEG_INIT_XAVIER : MEG_INIT_NORMAL;
    row->std = std;
    return row;
}

static void vector(struct meg_params *p, int section, const char *layer, const char *name, int64_t n, int split,
                   enum meg_init_method init)
{
    struct meg_param *row = meg_params_add(p, section, 1, &n, "%s%s", layer, name);

    row->tp_axis = split;
    row->init = init;
}

static void norm(struct meg_params *p, const struct meg_gpt_conf *c, int section, const char *layer, const char *name)
{
    char full[64];

    snprintf(full, sizeof full, "%s.weight", name);
    vector(p, section, layer, full, c->hidden_size, -1, MEG_INIT_ONE);
    if (meg_gpt_norm(c) == MEG_NORM_RMS)
        return;
    snprintf(full, sizeof full, "%s.bias", name);
    vector(p, section, layer, full, c->hidden_size, -1, MEG_INIT_ZERO);
}

/* A linear: column ones are cut by rows and their bias with them, row ones by columns. */
static void linear(struct meg_params *p, const struct meg_gpt_conf *c, int section, const char *layer, const char *name,
                   int64_t out, int64_t in, int split, double std, bool has_bias)
{
    char full[96];

    snprintf(full, sizeof full, "%s%s.weight", layer, name);
    weight(p, c, section, full, out, in, split, std);
    if (!has_bias)
        return;
    snprintf(full, sizeof full, "%s.bias", name);
    vector(p, section, layer, full, out, split == 0 ? 0 : -1, MEG_INIT_ZERO);
}

void meg_gpt_params(struct meg_params *p, const struct meg_gpt_conf *c, const struct meg_mesh *mesh)
{
    const int64_t h = c->hidden_size, ad = c->num_attention_heads * c->kv_channels, f = c->ffn_hidden_size;
    const int64_t qkv = ad + 2 * c->num_query_groups * c->kv_channels;
    const double std = c->init_method_std, std_out = std / sqrt(2.0 * (double)c->num_layers);
    const int head = (int)c->num_layers + 1;
    struct meg_param *row;

    *p = (struct meg_params){ 0 };
    row = weight(p, c, 0, "embedding.word_embeddings.weight", c->vocab_size, h, 0, std);
    row->is_decoupled = 1;
    row->reduce_group = c->is_untied ? MEG_PARAM_DENSE : MEG_PARAM_TIED;
    if (!meg_gpt_is_rotary(c))
        weight(p, c, 0, "embedding.position_embeddings.weight", c->max_position_embeddings, h, -1, std);

    for (int i = 0; i < c->num_layers; i++) {
        char layer[40];

        snprintf(layer, sizeof layer, "decoder.layers.%d.", i);
        norm(p, c, 1 + i, layer, "input_layernorm");
        linear(p, c, 1 + i, layer, "self_attention.linear_qkv", qkv, h, 0, std, c->has_bias || c->add_qkv_bias);
        linear(p, c, 1 + i, layer, "self_attention.linear_proj", h, ad, 1, std_out, c->has_bias);
        norm(p, c, 1 + i, layer, "pre_mlp_layernorm");
        linear(p, c, 1 + i, layer, "mlp.linear_fc1", c->swiglu ? 2 * f : f, h, 0, std, c->has_bias);
        for (int k = 0; c->swiglu && k < 1 + c->has_bias; k++)
            p->row[p->n - 1 - k].nblocks = 2;
        linear(p, c, 1 + i, layer, "mlp.linear_fc2", h, f, 1, std_out, c->has_bias);
    }

    norm(p, c, head, "decoder.", "final_layernorm");
    if (c->is_untied)
        weight(p, c, head, "output_layer.weight", c->vocab_size, h, 0, std)->is_decoupled = 1;
    meg_params_shard(p, mesh);
}

double meg_gpt_flops(const struct meg_gpt_conf *c, int64_t batch, int64_t s)
{
    const double h = (double)c->hidden_size, ad = (double)(c->num_attention_heads * c->kv_channels);
    const double shared = (double)c->num_query_groups / (double)c->num_attention_heads;
    const double mlp = (c->swiglu ? 3 : 2) * h * (double)c->ffn_hidden_size;
    const double per_layer = 2 * (1 + shared) * h * ad + 2 * (double)s * ad + mlp;

    return 6 * (double)batch * (double)s * ((double)c->num_layers * per_layer + h * (double)c->vocab_size);
}
