/*
 * gpt2-tiny against an independent float64 implementation (golden/models/README.md): loss, logits, every
 * gradient, and the loss and gradient norm under other options.  Tolerances are ten times the error that the
 * reference's own float32 run makes.
 */
#include <math.h>
#include "golden.h"
#include "base/mem.h"
#include "cpu/cpu.h"
#include "model/gpt.h"

enum { S = 32, B = 2, N = S * B, V = 128, H = 64, A = 4, D = H / A };
#define DIR "models/gpt2-tiny/"

struct input {
    int32_t tokens[N], labels[N], position[N], position_reset[N], doc_start[N];
    float mask[N], mask_eod[N];
};

/* Row [s,b] of a [b,s] tensor. */
static int from(int r)
{
    return r % B * S + r / B;
}

static void read_input(struct input *x)
{
    struct golden_file g = golden_open(DIR "inputs.safetensors");
    int64_t n;
    const int64_t *tokens = golden_tensor(&g, "tokens", "I64", &n), *labels = golden_tensor(&g, "labels", "I64", &n);
    const int64_t *position = golden_tensor(&g, "position_ids", "I64", &n);
    const int64_t *reset = golden_tensor(&g, "position_ids_reset", "I64", &n);
    const float *mask = golden_tensor(&g, "loss_mask", "F32", &n);
    const float *mask_eod = golden_tensor(&g, "loss_mask_eod", "F32", &n);
    const int32_t *allowed = golden_tensor(&g, "attention_allowed_reset", "I32", &n);

    assert_int_equal(n, B * S * S);
    for (int r = 0; r < N; r++) {
        const int32_t *row = allowed + (r % B * S + r / B) * S;
        int first = 0;

        x->tokens[r] = (int32_t)tokens[from(r)];
        x->labels[r] = (int32_t)labels[from(r)];
        x->position[r] = (int32_t)position[from(r)];
        x->position_reset[r] = (int32_t)reset[from(r)];
        x->mask[r] = mask[from(r)];
        x->mask_eod[r] = mask_eod[from(r)];
        while (!row[first])
            first++;
        for (int j = 0; j < S; j++)
            assert_int_equal(row[j], j >= first && j <= r / B);
        x->doc_start[r] = first;
    }
    golden_close(&g);
}

static struct meg_gpt *tiny(bool is_exact_gelu, double eps)
{
    struct meg_gpt_conf c = { .num_layers = 2, .hidden_size = H, .ffn_hidden_size = MEG_UNSET, .num_attention_heads = A,
                              .kv_channels = MEG_UNSET, .max_position_embeddings = 64, .vocab_size = V,
                              .norm_epsilon = eps, .bias_gelu_fusion = !is_exact_gelu };
    const struct meg_gpt_run run = { S, B, true, 1 };
    struct golden_file w = golden_open(DIR "mcore.safetensors");
    struct meg_gpt *g;
    struct meg_err e;

    assert_int_equal(meg_gpt_conf_check(&c, &e), 0);
    assert_int_equal(meg_gpt_create(&g, &c, &run, meg_cpu_ops(), &meg_mesh_one, &e), 0);
    for (int i = 0; i < g->params.n; i++) {
        const struct meg_param *row = &g->params.row[i];
        int64_t n;
        const void *p = golden_tensor(&w, row->name, "F32", &n);

        assert_int_equal(n, row->numel);
        memcpy(g->w + row->offset, p, (size_t)n * sizeof(float));
    }
    assert_int_equal(json_object_size(w.header), g->params.n + (json_object_get(w.header, "__metadata__") != NULL));
    golden_close(&w);
    return g;
}

/* |got - want| <= most, and both are numbers. */
static void close_to(double got, double want, double most, const char *what)
{
    if (!(fabs(got - want) <= most))
        fail_msg("%s: %.10g, wanted %.10g to within %.2g", what, got, want, most);
}

static double number(const json_t *j, const char *key)
{
    const json_t *v = json_object_get(j, key);

    if (!json_is_number(v))
        fail_msg("no number %s", key);
    return json_number_value(v);
}

static double mask_sum(const float *mask)
{
    double sum = 0;

    for (int r = 0; r < N; r++)
        sum += mask[r];
    return sum;
}

static double grad_norm(const struct meg_gpt *g)
{
    double squares;

    g->op->sumsq(NULL, &squares, g->g, g->params.flat);
    return sqrt(squares);
}

/* Hugging Face's name of a parameter; *is_linear: its weight is the transpose of ours. */
static void hf_name(char *out, size_t n, const char *name, bool *is_linear)
{
    static const char *const part[][3] = {
        { "input_layernorm", "ln_1", "" },     { "self_attention.linear_qkv", "attn.c_attn", "T" },
        { "self_attention.linear_proj", "attn.c_proj", "T" },
        { "pre_mlp_layernorm", "ln_2", "" },   { "mlp.linear_fc1", "mlp.c_fc", "T" },
        { "mlp.linear_fc2", "mlp.c_proj", "T" },
    };
    const char *kind = strrchr(name, '.');
    int layer;

    *is_linear = false;
    if (sscanf(name, "decoder.layers.%d.", &layer) == 1) {
        for (size_t i = 0; i < sizeof part / sizeof *part; i++)
            if (strstr(name, part[i][0])) {
                *is_linear = *part[i][2] && !strcmp(kind, ".weight");
                snprintf(out, n, "transformer.h.%d.%s%s", layer, part[i][1], kind);
                return;
            }
    } else {
        snprintf(out, n, "transformer.%s%s", strstr(name, "word_emb") ? "wte" : strstr(name, "position") ? "wpe" : "ln_f",
                 kind);
        return;
    }
    fail_msg("no Hugging Face name for %s", name);
}

/* Where row o of our tensor stands in theirs: qkv rows are grouped by head here, q, k, v thirds there. */
static int64_t their_row(const char *name, int64_t o)
{
    const int64_t head = o / (3 * D), part = o / D % 3;

    return strstr(name, "linear_qkv") ? part * H + head * D + o % D : o;
}

static void loss_logits_and_every_gradient(void **state)
{
    json_t *want = golden_json(DIR "expected.json");
    struct golden_file tensors = golden_open(DIR "expected.safetensors");
    const json_t *grads = json_object_get(want, "grads");
    struct meg_gpt *g = tiny(false, 1e-5);
    struct input in;
    struct meg_gpt_batch x = { S, B, in.tokens, in.labels, in.position, NULL, in.mask, NULL };
    const double loss = number(want, "loss_f64");
    float logits[N * V];
    const float *expected;
    double most, den;
    int64_t n;

    (void)state;
    read_input(&in);
    den = mask_sum(in.mask);
    close_to(meg_gpt_loss(g, &x, NULL) / den, loss, 1e-6 * loss, "loss");

    meg_gpt_logits(g, &x, logits);
    expected = golden_tensor(&tensors, "logits", "F32", &n);
    most = 10 * number(json_object_get(want, "f32_vs_f64_output_max_abs"), "logits");
    for (int r = 0; r < N; r++)
        for (int v = 0; v < V; v++)
            close_to(logits[r * V + v], expected[from(r) * V + v], most, "logit");

    close_to(meg_gpt_grad(g, &x, 1 / den) / den, loss, 1e-6 * loss, "loss while training");
    for (int i = 0; i < g->params.n; i++) {
        const struct meg_param *row = &g->params.row[i];
        const int64_t cols = row->ndim > 1 ? row->dim[1] : 1, rows = row->dim[0];
        char name[96], full[128];
        bool is_linear;

        hf_name(name, sizeof name, row->name, &is_linear);
        snprintf(full, sizeof full, "grad.%s", name);
        expected = golden_tensor(&tensors, full, "F32", &n);
        assert_int_equal(n, row->numel);
        most = 10 * number(json_object_get(grads, name), "f32_max_abs_err");
        for (int64_t o = 0; o < rows; o++)
            for (int64_t c = 0; c < cols; c++) {
                const int64_t at = their_row(row->name, o);

                close_to(g->g[row->offset + o * cols + c], expected[is_linear ? c * rows + at : at * cols + c], most, full);
            }
    }
    close_to(grad_norm(g), number(want, "grad_global_norm"), 1e-6 * number(want, "grad_global_norm"), "gradient norm");
    meg_gpt_close(g);
    golden_close(&tensors);
    json_decref(want);
}

static void other_options(void **state)
{
    static const struct {
        const char *name;
        bool has_mask, has_positions, has_documents, is_exact_gelu;
        double eps;
    } variant[] = {
        { "eod-mask-loss", true, false, false, false, 1e-5 },
        { "reset-position-ids", false, true, false, false, 1e-5 },
        { "reset-attention-mask", false, false, true, false, 1e-5 },
        { "all-three", true, true, true, false, 1e-5 },
        { "exact-gelu", false, false, false, true, 1e-5 },
        { "eps-1e-2", false, false, false, false, 1e-2 },
    };
    json_t *want = golden_json(DIR "expected.json"), *v;
    struct input in;

    (void)state;
    read_input(&in);
    for (size_t i = 0; i < sizeof variant / sizeof *variant; i++) {
        const float *mask = variant[i].has_mask ? in.mask_eod : in.mask;
        const struct meg_gpt_batch x = { S, B, in.tokens, in.labels,
                                         variant[i].has_positions ? in.position_reset : in.position,
                                         variant[i].has_documents ? in.doc_start : NULL, mask, NULL };
        struct meg_gpt *g = tiny(variant[i].is_exact_gelu, variant[i].eps);
        const double den = mask_sum(mask);
        size_t k;
        int found = 0;

        json_array_foreach(json_object_get(want, "variants"), k, v) {
            if (strcmp(json_string_value(json_object_get(v, "name")), variant[i].name))
                continue;
            found++;
            close_to(meg_gpt_grad(g, &x, 1 / den) / den, number(v, "loss_f64"), 1e-6 * number(v, "loss_f64"),
                     variant[i].name);
            close_to(grad_norm(g), number(v, "grad_global_norm_f64"), 1e-5 * number(v, "grad_global_norm_f64"),
                     variant[i].name);
        }
        assert_int_equal(found, 1);
        meg_gpt_close(g);
    }
    json_decref(want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_logits_and_every_gradient),
        cmocka_unit_test(other_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
