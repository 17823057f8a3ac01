/*
 * GPT against the float64 forward pass of ref_gpt.h, and its gradients against central differences of that pass:
 * one case for each option that changes what is computed, dropout included.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "cpu/cpu.h"
#include "ref_gpt.h"
#include "tiny_gpt.h"

enum { S = 6, B = 3, N = S * B, V = 23, H = 16, A = 4, L = 2, F = 24, POSITIONS = 4096 };

static const uint32_t seed = 7;
static int64_t sample[B] = { 40, 3, (int64_t)1 << 33 | 41 };

struct input {
    int32_t tokens[N], labels[N], position[N], doc_start[N];
    float mask[N];
};

/*
 * Create three sequences, two of which have two documents; positions are 700 apart, so that low rotary frequencies have
 * an effect.
 */
static struct meg_batch batch(struct input *x)
{
    struct meg_batch b = { .s = S,
                           .b = B,
                           .tokens = x->tokens,
                           .labels = x->labels,
                           .position_ids = x->position,
                           .doc_start = x->doc_start,
                           .loss_mask = x->mask,
                           .sample_id = sample };

    for (int r = 0; r < N; r++) {
        const int t = r / B, i = r % B, start = i == 1 && t >= 4 ? 4 : i == 2 && t >= 2 ? 2 : 0;

        x->tokens[r] = (r * 5 + i) % V;
        x->labels[r] = (r * 7 + 3) % V;
        x->doc_start[r] = start;
        x->position[r] = (t - start) * 700;
        x->mask[r] = r % 5 != 2;
    }
    return b;
}

static struct meg_model_conf conf(const char *options)
{
    struct meg_model_conf c = tiny_gpt(L, H, F, A, POSITIONS, V);
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, &c }, { 0 } };
    struct meg_err e;

    c.attn.d = c.attn.g = MEG_UNSET;
    if (meg_opt_apply(groups, options, "test", &e) < 0 || meg_model_conf_check(&c, &e) < 0)
        fail_msg("%s", e.msg);
    return c;
}

static struct meg_model *make(const struct meg_model_conf *c)
{
    const struct meg_model_run run = { .s = S, .b = B, .is_training = true, .seed = seed };
    struct meg_model *g;
    struct meg_err e;

    if (meg_model_create(&g, c, &run, meg_device_cpu(), &meg_mesh_one, &e) < 0)
        fail_msg("%s", e.msg);
    meg_model_init(g, 1234);
    for (int i = 0; i < g->params.n; i++) /* vary biases and norm weights, so that they have an effect */
        for (int64_t j = 0; g->params.row[i].ndim == 1 && j < g->params.row[i].numel; j++)
            ((float *)g->w)[g->params.row[i].offset + j] += 0.1f * (float)((i * 7 + j * 3) % 11 - 5);
    return g;
}

/* Compare some gradients of each tensor with central differences of the reference, and require all to be finite. */
static void check_gradients(const char *name, const struct meg_model *g, struct ref_gpt *ref, double *w, double scale)
{
    const float *grad = g->g;
    const double step = 1e-5;
    double most = 0;

    for (int64_t k = 0; k < g->params.flat_numel; k++) {
        assert_true(isfinite(grad[k]));
        most = fmax(most, fabs((double)grad[k]));
    }
    for (int i = 0; i < g->params.n; i++) {
        const struct meg_param *row = &g->params.row[i];

        for (int64_t j = 0; j < row->numel; j += 1 + row->numel / 9) {
            const int64_t k = row->offset + j;
            const double at = w[k];
            double slope;

            w[k] = at + step;
            slope = ref_loss(ref);
            w[k] = at - step;
            slope = (slope - ref_loss(ref)) / (2 * step) * scale;
            w[k] = at;
            if (!(fabs(grad[k] - slope) <= 2e-6 * most))
                fail_msg("%s: gradient %lld of %s is %.9g, not %.9g; the largest is %g", name, (long long)j, row->name,
                         (double)grad[k], slope, most);
        }
    }
}

/* Check losses and, if has_gradients, gradients under options, lines of a config file; return the training loss. */
static double check(const char *name, const char *options, bool has_gradients)
{
    const struct meg_model_conf c = conf(options);
    struct meg_model *g = make(&c);
    double *w = meg_new((size_t)g->params.flat_numel * sizeof *w), want, got;
    struct input in;
    struct meg_batch x = batch(&in);
    struct ref_gpt ref = { &c, &g->params, w, seed, &x };
    const double scale = 0.37;

    for (int64_t i = 0; i < g->params.flat_numel; i++)
        w[i] = ((float *)g->w)[i];
    got = meg_model_forward_backward(g, &x, scale);
    want = ref_loss(&ref);
    if (!(fabs(got - want) <= 1e-6 * want))
        fail_msg("%s: loss %.9g, not %.9g", name, got, want);
    if (has_gradients)
        check_gradients(name, g, &ref, w, scale);
    x.sample_id = NULL;
    want = ref_loss(&ref);
    if (!(fabs(meg_model_loss(g, &x, NULL) - want) <= 1e-6 * want))
        fail_msg("%s: evaluated loss %.9g, not %.9g", name, meg_model_loss(g, &x, NULL), want);
    free(w);
    meg_model_close(g);
    return got;
}

#define ROTARY "position-embedding-type = rope\nrotary-base = 3e5\nkv-channels = 8\n"
#define LLAMA                                                                                                          \
    ROTARY "swiglu = yes\nnormalization = RMSNorm\ndisable-bias-linear = yes\n"                                        \
           "untie-embeddings-and-output-weights = yes\ngroup-query-attention = yes\nnum-query-groups = 2\n"
#define SHARP "disable-bias-linear = yes\ninit-method-std = 0.5\n"
#define YARN                                                                                                           \
    ROTARY "position-embedding-type = yarn\nrotary-scaling-factor = 8\nyarn-original-max-position-embeddings = 512\n"
#define LONGROPE(original)                                                                                             \
    "rope-long-factors = 1.5,20,3,1\nrope-short-factors = 1,2,1.25,1\n"                                                \
    "rope-original-max-position-embeddings = " original "\n"
#define TEMPERATURE "attn-temperature-beta = 0.5\nattn-temperature-floor = 700\n"
#define DROP "hidden-dropout = 0.3\nattention-dropout = 0.2\n"

/* Options that must change the loss when they are added to the options `to`. */
static const struct {
    const char *name, *to, *options;
} cases[] = {
    { "no-bias-gelu-fusion", "", "no-bias-gelu-fusion = yes\n" },
    { "untie-embeddings-and-output-weights", "", "untie-embeddings-and-output-weights = yes\n" },
    { "norm-epsilon", "", "norm-epsilon = 0.1\n" },
    { "norm-epsilon of RMSNorm", "normalization = RMSNorm\n", "norm-epsilon = 0.1\n" },
    { "normalization", "", "normalization = RMSNorm\n" },
    { "disable-bias-linear", "", "disable-bias-linear = yes\n" },
    { "add-qkv-bias", "disable-bias-linear = yes\n", "add-qkv-bias = yes\n" },
    { "add-proj-bias", "disable-bias-linear = yes\n", "add-proj-bias = yes\n" },
    { "add-mlp-bias", "disable-bias-linear = yes\n", "add-mlp-bias = yes\n" },
    { "add-output-bias", "", "add-output-bias = yes\n" },
    { "swiglu", "", "swiglu = yes\n" },
    { "activation-func gelu", "disable-bias-linear = yes\n", "activation-func = gelu-tanh\n" },
    { "activation-func quick-gelu", "", "activation-func = quick-gelu\n" },
    { "activation-func relu", "", "activation-func = relu\n" },
    { "activation-func silu", "", "activation-func = silu\n" },
    { "squared-relu", "", "squared-relu = yes\n" },
    { "quick-geglu", "", "quick-geglu = yes\n" },
    { "gated-linear-unit", "", "gated-linear-unit = yes\n" },
    { "gated squared-relu", "", "gated-linear-unit = yes\nactivation-func = squared-relu\n" },
    { "gated gelu-tanh", "gated-linear-unit = yes\n", "activation-func = gelu-tanh\n" },
    { "gated relu", "gated-linear-unit = yes\n", "activation-func = relu\n" },
    { "glu-linear-offset", "swiglu = yes\n", "glu-linear-offset = 0.7\n" },
    { "activation-func-clamp-value", "quick-geglu = yes\n", "activation-func-clamp-value = 0.05\n" },
    { "kv-channels", "", "kv-channels = 6\n" },
    { "group-query-attention", "", "group-query-attention = yes\nnum-query-groups = 2\n" },
    { "num-query-groups", "group-query-attention = yes\n", "num-query-groups = 2\n" },
    { "use-rotary-position-embeddings", "", "use-rotary-position-embeddings = yes\n" },
    { "rotary-base", "use-rotary-position-embeddings = yes\n", "rotary-base = 3e5\n" },
    { "rotary-percent", ROTARY, "rotary-percent = 0.5\n" },
    { "rotary-interleaved", ROTARY, "rotary-interleaved = yes\n" },
    { "rotary-seq-len-interpolation-factor", ROTARY, "rotary-seq-len-interpolation-factor = 3\n" },
    { "use-rope-scaling", ROTARY, "use-rope-scaling = yes\n" },
    { "rope-scaling-factor", ROTARY "use-rope-scaling = yes\n", "rope-scaling-factor = 2\n" },
    { "alibi", ROTARY, "position-embedding-type = alibi\n" },
    { "alibi, heads not a power of two", "num-attention-heads = 6\nkv-channels = 4\n",
      "position-embedding-type = alibi\n" },
    { "clip-qkv", SHARP, "clip-qkv = 0.9\n" },
    { "clip-qkv like Llama", LLAMA SHARP "qk-layernorm = yes\n", "clip-qkv = 0.9\n" },
    { "softmax-type off-by-one", "", "softmax-type = off-by-one\n" },
    { "softmax-type learnable", "", "softmax-type = learnable\n" },
    { "attn-logit-softcapping", SHARP, "attn-logit-softcapping = 0.5\n" },
    { "final-logit-softcapping", SHARP, "final-logit-softcapping = 0.7\n" },
    { "all terms of scores like Llama", LLAMA, "softmax-type = learnable\nattn-logit-softcapping = 0.5\n" },
    { "apply-layernorm-1p", "", "apply-layernorm-1p = yes\nnorm-epsilon = 0.1\n" },
    { "apply-layernorm-1p with RMSNorm", LLAMA "qk-layernorm = yes\n",
      "apply-layernorm-1p = yes\nnorm-epsilon = 0.1\n" },
    { "norm-no-bias", "", "norm-no-bias = yes\nnorm-epsilon = 0.1\n" },
    { "norm-no-weight", "norm-no-bias = yes\n", "norm-no-weight = yes\nnorm-epsilon = 0.1\n" },
    { "norm-no-weight with RMSNorm", LLAMA, "norm-no-weight = yes\nnorm-epsilon = 0.1\n" },
    { "norm-placement post", "", "norm-placement = post\n" },
    { "norm-placement output", LLAMA, "norm-placement = output\n" },
    { "norm-placement sandwich", LLAMA, "norm-placement = sandwich\n" },
    { "parallel-residual shared-norm", "", "parallel-residual = shared-norm\n" },
    { "parallel-residual two-norms", "", "parallel-residual = two-norms\n" },
    { "parallel-residual and sandwich", LLAMA "norm-placement = sandwich\n", "parallel-residual = two-norms\n" },
    { "embed-layernorm", "", "embed-layernorm = yes\n" },
    { "embedding-multiplier", "", "embedding-multiplier = 3\n" },
    { "embedding-multiplier sqrt", LLAMA, "embedding-multiplier = sqrt\n" },
    { "residual-multiplier", LLAMA, "residual-multiplier = 0.25\n" },
    { "logit-multiplier", "", "logit-multiplier = 0.5\n" },
    { "position-embedding-offset", "", "position-embedding-offset = 2\n" },
    { "qk-layernorm", LLAMA, "qk-layernorm = yes\n" },
    { "qk-layernorm with LayerNorm", "", "qk-layernorm = yes\n" },
    { "qk-norm-scope per-head-weight", LLAMA "qk-layernorm = yes\n", "qk-norm-scope = per-head-weight\n" },
    { "qk-norm-scope width", LLAMA "qk-layernorm = yes\n", "qk-norm-scope = width\n" },
    { "qk-norm-scope width with LayerNorm", "qk-layernorm = yes\n", "qk-norm-scope = width\n" },
    { "qk-norm-after-rope", LLAMA "qk-layernorm = yes\n", "qk-norm-after-rope = yes\n" },
    { "window-size", "", "window-size = 1,0\n" },
    { "window-attn-skip-freq", "window-size = 1,-1\n", "window-attn-skip-freq = 2\n" },
    { "a list of layers", "window-size = 2,0\n", "window-attn-skip-freq = [0]*1+([1])\n" },
    { "a window like Mistral", LLAMA DROP, "window-size = 2,0\n" },
    { "rotary-base-window", ROTARY "window-size = 2,0\nuse-rope-scaling = yes\n", "rotary-base-window = 3e5\n" },
    { "base of some layers", ROTARY "window-size = 2,0\n", "rotary-base-window = 10\nwindow-attn-skip-freq = 2\n" },
    { "no-rope-freq", ROTARY, "no-rope-freq = 2\n" },
    { "no-rope-freq of Llama", LLAMA, "no-rope-freq = 1,0\n" },
    { "factor of interpolation", ROTARY, "rotary-seq-len-interpolation-factor = 1.5\n" },
    { "rope-scaling-low-freq-factor", ROTARY "use-rope-scaling = yes\n", "rope-scaling-low-freq-factor = 0.25\n" },
    { "rope-scaling-high-freq-factor", ROTARY "use-rope-scaling = yes\n", "rope-scaling-high-freq-factor = 64\n" },
    { "rope-scaling-original-max-position-embeddings", ROTARY "use-rope-scaling = yes\n",
      "rope-scaling-original-max-position-embeddings = 500\n" },
    { "YaRN", ROTARY, YARN },
    { "yarn-beta-fast", YARN, "yarn-beta-fast = 3\n" },
    { "yarn-beta-slow", YARN, "yarn-beta-slow = 0.125\n" },
    { "no-yarn-correction-range-round-to-int", YARN, "no-yarn-correction-range-round-to-int = yes\n" },
    { "mscale", YARN, "mscale = 3\n" },
    { "mscale-all-dim", YARN, "mscale-all-dim = 2\n" },
    { "yarn-attention-factor", YARN "mscale = 3\n", "yarn-attention-factor = 0.5\n" },
    { "yarn with a base for windows", YARN "window-size = 2,0\n",
      "rotary-base-window = 3e5\nwindow-attn-skip-freq = 2\n" },
    { "LongRoPE, short", ROTARY, LONGROPE("4000") },
    { "LongRoPE, long", ROTARY LONGROPE("4000") "init-method-std = 0.1\n", LONGROPE("5") },
    { "attn-temperature-beta", ROTARY, TEMPERATURE },
    { "temperature of unrotated layers", LLAMA TEMPERATURE, "no-rope-freq = 2\n" },
    { "temperature with YaRN", LLAMA YARN, TEMPERATURE },
    { "attn-temperature-floor", LLAMA TEMPERATURE, "attn-temperature-floor = 1400\n" },
    { "like Llama", ROTARY, LLAMA },
    { "hidden-dropout", "", "hidden-dropout = 0.3\n" },
    { "attention-dropout", "", "attention-dropout = 0.2\n" },
    { "both dropouts", "hidden-dropout = 0.3\n", DROP },
    { "both dropouts like Llama", LLAMA, DROP },
};

static void agrees_with_the_reference_under_each_option(void **state)
{
    char all[1000];

    (void)state;
    check("defaults", "", true);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double with, without;

        snprintf(all, sizeof all, "%s%s", cases[i].to, cases[i].options);
        with = check(cases[i].name, all, true);
        without = check(cases[i].name, cases[i].to, false);
        if (!(fabs(with - without) > 5e-6 * without))
            fail_msg("%s changes nothing: loss %.9g with it, %.9g without", cases[i].name, with, without);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_reference_under_each_option),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
