/*
 * GPT against a float64 forward pass in plain loops, and its gradients against central differences
 * of that pass.  Everything is small enough for the reference to be read next to the paper.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/mem.h"
#include "cpu/cpu.h"
#include "model/gpt.h"
#include "tiny_gpt.h"

enum { S = 6, B = 3, N = S * B, V = 23, H = 16, A = 4, D = H / A, L = 2, F = 40 };

static struct meg_gpt_conf conf(void)
{
    return tiny_gpt(L, H, F, A, S, V);
}

static struct meg_gpt *make(const struct meg_gpt_conf *c, bool is_training)
{
    const struct meg_gpt_run run = { .s = S, .b = B, .is_training = is_training, .seed = 7 };
    struct meg_gpt *g;
    struct meg_err e;

    assert_int_equal(meg_gpt_create(&g, c, &run, meg_cpu_ops(), &meg_mesh_one, &e), 0);
    meg_gpt_init(g, 1234);
    for (int i = 0; i < g->params.n; i++)            /* biases and norm weights that matter */
        if (g->params.row[i].ndim == 1)
            for (int64_t j = 0; j < g->params.row[i].numel; j++)
                ((float *)g->w)[g->params.row[i].offset + j] += 0.1f * (float)((i * 7 + j * 3) % 11 - 5);
    return g;
}

struct input {
    int32_t tokens[N], labels[N], position[N], doc_start[N];
    float mask[N];
    int64_t sample[B];
};

static struct meg_gpt_batch batch(struct input *x)
{
    struct meg_gpt_batch b = { .s = S, .b = B, .tokens = x->tokens, .labels = x->labels, .position = x->position,
                               .doc_start = x->doc_start, .loss_mask = x->mask };

    for (int t = 0; t < S; t++)
        for (int i = 0; i < B; i++) {
            const int r = t * B + i, start = i == 1 && t >= 4 ? 4 : i == 2 && t >= 2 ? 2 : 0;

            x->tokens[r] = (r * 5 + i) % V;
            x->labels[r] = (r * 7 + 3) % V;
            x->doc_start[r] = start;
            x->position[r] = t - start;
            x->mask[r] = r % 5 != 2;
        }
    return b;
}

/* ---- the reference ----------------------------------------------------------------------- */

static const double *W(const struct meg_gpt *g, const double *w, const char *fmt, ...)
{
    char name[96];
    va_list ap;
    const struct meg_param *row;

    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    row = meg_params_find(&g->params, name);
    assert_non_null(row);
    return w + row->offset;
}

static void ref_linear(double *y, const double *x, const double *w, const double *b, int out, int in)
{
    for (int r = 0; r < N; r++)
        for (int o = 0; o < out; o++) {
            double sum = b ? b[o] : 0;

            for (int i = 0; i < in; i++)
                sum += x[r * in + i] * w[o * in + i];
            y[r * out + o] = sum;
        }
}

static void ref_norm(double *y, const double *x, const double *w, const double *b)
{
    for (int r = 0; r < N; r++) {
        double mean = 0, var = 0;

        for (int i = 0; i < H; i++)
            mean += x[r * H + i] / H;
        for (int i = 0; i < H; i++)
            var += (x[r * H + i] - mean) * (x[r * H + i] - mean) / H;
        for (int i = 0; i < H; i++)
            y[r * H + i] = (x[r * H + i] - mean) / sqrt(var + 1e-5) * w[i] + b[i];
    }
}

static void ref_attention(double *o, const double *qkv, const int32_t *doc_start)
{
    for (int t = 0; t < S; t++)
        for (int i = 0; i < B; i++)
            for (int a = 0; a < A; a++) {
                const double *q = qkv + (t * B + i) * 3 * H + a * 3 * D;
                double p[S], sum = 0;

                for (int j = doc_start[t * B + i]; j <= t; j++) {
                    const double *k = qkv + (j * B + i) * 3 * H + a * 3 * D + D;
                    double dot = 0;

                    for (int c = 0; c < D; c++)
                        dot += q[c] * k[c];
                    sum += p[j] = exp(dot / sqrt(D));
                }
                for (int c = 0; c < D; c++) {
                    double v = 0;

                    for (int j = doc_start[t * B + i]; j <= t; j++)
                        v += p[j] / sum * qkv[(j * B + i) * 3 * H + a * 3 * D + 2 * D + c];
                    o[(t * B + i) * H + a * D + c] = v;
                }
            }
}

static double ref_gelu(double x, bool is_tanh)
{
    return is_tanh ? 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))) : 0.5 * x * (1 + erf(x / sqrt(2)));
}

/* sum of loss * mask; logits [N,V] where wanted */
static double ref_loss(const struct meg_gpt *g, const double *w, const struct meg_gpt_batch *x, double *logits_out)
{
    double h[N * H], n[N * H], qkv[N * 3 * H], o[N * H], y[N * H], f[N * F], logits[N * V], loss = 0;

    for (int r = 0; r < N; r++)
        for (int i = 0; i < H; i++)
            h[r * H + i] = W(g, w, "embedding.word_embeddings.weight")[x->tokens[r] * H + i] +
                           W(g, w, "embedding.position_embeddings.weight")[x->position[r] * H + i];
    for (int l = 0; l < L; l++) {
#define P(name) W(g, w, "decoder.layers.%d." name, l)
        ref_norm(n, h, P("input_layernorm.weight"), P("input_layernorm.bias"));
        ref_linear(qkv, n, P("self_attention.linear_qkv.weight"), P("self_attention.linear_qkv.bias"), 3 * H, H);
        ref_attention(o, qkv, x->doc_start);
        ref_linear(y, o, P("self_attention.linear_proj.weight"), P("self_attention.linear_proj.bias"), H, H);
        for (int i = 0; i < N * H; i++)
            h[i] += y[i];
        ref_norm(n, h, P("pre_mlp_layernorm.weight"), P("pre_mlp_layernorm.bias"));
        ref_linear(f, n, P("mlp.linear_fc1.weight"), P("mlp.linear_fc1.bias"), F, H);
        for (int i = 0; i < N * F; i++)
            f[i] = ref_gelu(f[i], g->conf.bias_gelu_fusion);
        ref_linear(y, f, P("mlp.linear_fc2.weight"), P("mlp.linear_fc2.bias"), H, F);
        for (int i = 0; i < N * H; i++)
            h[i] += y[i];
#undef P
    }
    ref_norm(n, h, W(g, w, "decoder.final_layernorm.weight"), W(g, w, "decoder.final_layernorm.bias"));
    ref_linear(logits, n,
               W(g, w, "%s", g->conf.is_untied ? "output_layer.weight" : "embedding.word_embeddings.weight"), NULL, V, H);
    for (int r = 0; r < N; r++) {
        double sum = 0;

        for (int v = 0; v < V; v++)
            sum += exp(logits[r * V + v]);
        loss += (log(sum) - logits[r * V + x->labels[r]]) * x->loss_mask[r];
    }
    if (logits_out)
        memcpy(logits_out, logits, sizeof logits);
    return loss;
}

static double *widen(const struct meg_gpt *g)
{
    double *w = meg_new((size_t)g->params.flat * sizeof *w);

    for (int64_t i = 0; i < g->params.flat; i++)
        w[i] = ((float *)g->w)[i];
    return w;
}

/* ---- tests ------------------------------------------------------------------------------- */

static void close_to(double got, double want, double scale)
{
    if (!(fabs(got - want) <= scale))
        fail_msg("%.9g, wanted %.9g to within %.2g", got, want, scale);
}

static void check_model(struct meg_gpt_conf c)
{
    struct meg_gpt *g = make(&c, true);
    struct input in;
    const struct meg_gpt_batch x = batch(&in);
    double *w = widen(g), norm = 0;
    const double want = ref_loss(g, w, &x, NULL), scale = 0.37;

    close_to(meg_gpt_loss(g, &x, NULL), want, 2e-6 * want);
    close_to(meg_gpt_grad(g, &x, scale), want, 2e-6 * want);
    for (int64_t i = 0; i < g->params.flat; i++) {
        assert_true(isfinite(((float *)g->g)[i]));
        norm = fmax(norm, fabs(((float *)g->g)[i]));
    }
    for (int i = 0; i < g->params.n; i++) {
        const struct meg_param *row = &g->params.row[i];

        for (int64_t j = 0; j < row->numel; j += 1 + row->numel / 9) {
            const int64_t k = row->offset + j;
            const double at = w[k], step = 1e-5;
            double slope;

            w[k] = at + step;
            slope = ref_loss(g, w, &x, NULL);
            w[k] = at - step;
            slope = (slope - ref_loss(g, w, &x, NULL)) / (2 * step) * scale;
            w[k] = at;
            close_to(((float *)g->g)[k], slope, 2e-6 * norm);
        }
    }
    free(w);
    meg_gpt_close(g);
}

static void agrees_with_the_reference(void **state)
{
    (void)state;
    check_model(conf());
}

static void untied_and_exact_gelu(void **state)
{
    struct meg_gpt_conf c = conf();

    (void)state;
    c.is_untied = true;
    c.bias_gelu_fusion = false;
    check_model(c);
}

static void gradients_add_up_over_micro_batches(void **state)
{
    const struct meg_gpt_conf c = conf();
    struct meg_gpt *g = make(&c, true);
    struct input in;
    const struct meg_gpt_batch x = batch(&in);
    float *once = meg_new((size_t)g->params.flat * sizeof *once);

    (void)state;
    meg_gpt_grad(g, &x, 1);
    memcpy(once, g->g, (size_t)g->params.flat * sizeof *once);
    meg_gpt_grad(g, &x, 1);
    for (int64_t i = 0; i < g->params.flat; i++)
        close_to(((float *)g->g)[i], 2 * (double)once[i], 1e-5 * (1 + fabs((double)once[i])));
    free(once);
    meg_gpt_close(g);
}

static void dropout_follows_the_sample_and_only_that(void **state)
{
    struct meg_gpt_conf c = conf();
    struct input in;
    struct meg_gpt_batch x = batch(&in), one;
    struct meg_gpt *g;
    const int64_t sample[] = { 40, 41, 42 };
    int32_t tokens[S], labels[S], position[S], doc_start[S];
    float mask[S];
    double all, sum = 0;

    (void)state;
    c.attention_dropout = c.hidden_dropout = 0.3;
    g = make(&c, true);
    x.sample = sample;
    all = meg_gpt_grad(g, &x, 1);
    assert_true(fabs(all - meg_gpt_loss(g, &x, NULL)) > 1e-3);
    for (int i = 0; i < B; i++) {                    /* one sequence at a time, in another micro-batch */
        for (int t = 0; t < S; t++) {
            tokens[t] = in.tokens[t * B + i];
            labels[t] = in.labels[t * B + i];
            position[t] = in.position[t * B + i];
            doc_start[t] = in.doc_start[t * B + i];
            mask[t] = in.mask[t * B + i];
        }
        one = (struct meg_gpt_batch){ S, 1, tokens, labels, position, doc_start, mask, sample + i };
        sum += meg_gpt_grad(g, &one, 1);
    }
    close_to(sum, all, 1e-5 * all);
    meg_gpt_close(g);
}

static void check_decoding(struct meg_gpt_conf c)
{
    struct meg_gpt *g = make(&c, false);
    struct meg_gpt_cache *cache;
    struct meg_err e;
    struct input in;
    struct meg_gpt_batch x = batch(&in);
    float all[N * V], last[V], step[2 * V], alone[V];
    int32_t one[B][S];
    const int64_t slots[] = { 2, 0 };

    memset(in.doc_start, 0, sizeof in.doc_start);
    for (int t = 0; t < S; t++)
        for (int i = 0; i < B; i++) {
            in.position[t * B + i] = t;
            one[i][t] = in.tokens[t * B + i];
        }
    meg_gpt_logits(g, &x, all);
    assert_int_equal(meg_gpt_cache_create(&cache, g, S, 3, &e), 0);
    meg_gpt_prefill(g, cache, 2, one[0], 3, last);
    for (int v = 0; v < V; v++)
        close_to(last[v], all[2 * B * V + v], 1e-5);
    meg_gpt_prefill(g, cache, 0, one[1], 1, NULL);
    for (int t = 0; t < 2; t++) {
        const int32_t next[] = { one[0][3 + t], one[1][1 + t] };

        meg_gpt_decode(g, cache, slots, next, 2, step);
        for (int v = 0; v < V; v++) {
            close_to(step[v], all[(3 + t) * B * V + v], 1e-5);
            close_to(step[V + v], all[((1 + t) * B + 1) * V + v], 1e-5);
        }
    }
    assert_int_equal(meg_gpt_cache_len(cache, 2), 5);

    /* the same bits without the other slot */
    meg_gpt_cache_clear(cache, 1);
    meg_gpt_prefill(g, cache, 1, one[1], 1, NULL);
    for (int t = 0; t < 2; t++)
        meg_gpt_decode(g, cache, (int64_t[]){ 1 }, &one[1][1 + t], 1, alone);
    assert_memory_equal(alone, step + V, sizeof alone);
    meg_gpt_cache_close(cache);
    meg_gpt_close(g);
}

static void decoding_gives_the_logits_of_the_whole_sequence(void **state)
{
    struct meg_gpt_conf c = conf();
    struct meg_err e;

    (void)state;
    check_decoding(c);
    c.position_embedding_type = "rope";
    c.normalization = "RMSNorm";
    c.swiglu = c.is_untied = c.group_query_attention = true;
    c.num_query_groups = 2;
    c.has_bias = false;
    assert_int_equal(meg_gpt_conf_check(&c, &e), 0);
    check_decoding(c);
}

static void initial_weights_follow_name_and_element(void **state)
{
    const struct meg_gpt_conf c = conf();
    struct meg_params p;
    float all[V * H], part[10];
    double sum = 0, squares = 0;

    (void)state;
    meg_gpt_params(&p, &c, &meg_mesh_one);
    meg_param_init(&p.row[0], 5, 0, V * H, all);
    meg_param_init(&p.row[0], 5, 100, 10, part);
    assert_memory_equal(part, all + 100, sizeof part);
    for (int i = 0; i < V * H; i++) {
        sum += all[i];
        squares += (double)all[i] * all[i];
    }
    close_to(sum / (V * H), 0, 0.05);
    close_to(sqrt(squares / (V * H)), 0.3, 0.03);
    meg_param_init(&p.row[1], 5, 0, 10, part);
    assert_memory_not_equal(part, all, sizeof part);
    meg_params_free(&p);
}

static void rows_lie_backwards_in_one_buffer(void **state)
{
    const struct meg_gpt_conf c = conf();
    struct meg_params p;
    struct meg_range *range;
    int64_t numel = 0, at = 0;
    int n;

    (void)state;
    meg_gpt_params(&p, &c, &meg_mesh_one);
    for (int i = p.n; i-- > 0;) {
        assert_int_equal(p.row[i].offset % MEG_PARAM_ALIGN, 0);
        assert_true(p.row[i].offset >= at);
        at = p.row[i].offset + p.row[i].numel;
        numel += p.row[i].numel;
    }
    assert_true(p.flat >= at && p.flat - at < MEG_PARAM_ALIGN);
    assert_int_equal(numel, p.numel);
    n = meg_params_ranges(&p, &range);
    assert_int_equal(range[0].begin, 0);
    assert_int_equal(range[n - 1].end, p.flat);
    for (int i = 0; i < p.n; i++)
        for (int j = 0; j < n; j++)
            if (p.row[i].offset >= range[j].begin && p.row[i].offset < range[j].end) {
                assert_true(p.row[i].offset + p.row[i].numel <= range[j].end);
                assert_true((range[j].wd_mult > 0) == (p.row[i].ndim > 1));
            }
    free(range);
    meg_params_free(&p);
}

static void training_plans_more_memory_than_decoding(void **state)
{
    const struct meg_gpt_conf c = conf();
    const struct meg_gpt_run train = { .s = S, .b = B, .is_training = true, .seed = 1 },
                             infer = { .s = S, .b = B, .seed = 1 };
    struct meg_gpt_memory a, b;

    (void)state;
    meg_gpt_plan(&a, &c, &train, &meg_mesh_one);
    meg_gpt_plan(&b, &c, &infer, &meg_mesh_one);
    assert_true(a.params == b.params && a.grads == a.params && b.grads == 0);
    assert_true(a.activations > b.activations && a.workspace > b.workspace);
}

static void refuses_what_breaks_a_rule(void **state)
{
    struct meg_gpt_conf c = conf();
    struct meg_err e;

    (void)state;
    c.kv_channels = MEG_UNSET;
    c.num_attention_heads = 3;
    assert_int_equal(meg_gpt_conf_check(&c, &e), MEG_EUSAGE);
    assert_non_null(strstr(e.msg, "--hidden-size: 16 is no multiple of --num-attention-heads 3"));
    c = conf();
    c.hidden_dropout = NAN;
    assert_int_equal(meg_gpt_conf_check(&c, &e), MEG_EUSAGE);
    c = conf();
    c.num_layers = MEG_UNSET;
    assert_int_equal(meg_gpt_conf_check(&c, &e), MEG_EUSAGE);
    assert_string_equal(e.msg, "--num-layers is required");
}

static void refuses_what_cannot_be_counted(void **state)
{
    struct meg_gpt_conf c = conf();
    struct meg_err e;

    (void)state;
    c.num_layers = 100000;
    assert_int_equal(meg_gpt_conf_check(&c, &e), MEG_EUSAGE);
    assert_string_equal(e.msg, "--num-layers: 100000, must be at most 99999");
    c = conf();
    c.hidden_size = (int64_t)1 << 33;
    assert_int_equal(meg_gpt_conf_check(&c, &e), MEG_EUSAGE);
    assert_string_equal(e.msg, "--hidden-size: 8589934592, must be at most 2147483647");
    c = conf();
    c.hidden_size = (int64_t)1 << 24;
    c.ffn_hidden_size = (int64_t)1 << 26;
    assert_int_equal(meg_gpt_conf_check(&c, &e), MEG_EUSAGE);
    assert_non_null(strstr(e.msg, "can be counted"));
}

static void refuses_to_turn_no_column(void **state)
{
    struct meg_gpt_conf c = conf();
    struct meg_err e;

    (void)state;
    c.use_rotary = true;
    c.rotary_percent = 0.01;
    assert_int_equal(meg_gpt_conf_check(&c, &e), MEG_EUSAGE);
    assert_non_null(strstr(e.msg, "--rotary-percent: 0.01 of the"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_reference),
        cmocka_unit_test(untied_and_exact_gelu),
        cmocka_unit_test(gradients_add_up_over_micro_batches),
        cmocka_unit_test(dropout_follows_the_sample_and_only_that),
        cmocka_unit_test(decoding_gives_the_logits_of_the_whole_sequence),
        cmocka_unit_test(initial_weights_follow_name_and_element),
        cmocka_unit_test(rows_lie_backwards_in_one_buffer),
        cmocka_unit_test(training_plans_more_memory_than_decoding),
        cmocka_unit_test(refuses_what_breaks_a_rule),
        cmocka_unit_test(refuses_what_cannot_be_counted),
        cmocka_unit_test(refuses_to_turn_no_column),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
