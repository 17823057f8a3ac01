/* gpt.c - micro-batches, recomputation, decoding, initial weights, parameter table and option rules of a GPT. */
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
#include "model/desc.h"
#include "model/decode.h"
#include "tiny_gpt.h"

enum { S = 6, B = 3, N = S * B, V = 23, H = 16, A = 4, L = 2, F = 40 };

static struct meg_model_conf conf(void)
{
    return tiny_gpt(L, H, F, A, S, V);
}

static struct meg_model *make_on(const struct meg_device *device, const struct meg_model_conf *c,
                                 const struct meg_model_run *run, const struct meg_mesh *mesh)
{
    struct meg_model *g;
    struct meg_err e;

    assert_int_equal(meg_model_create(&g, c, run, device, mesh, &e), 0);
    meg_model_init(g, 1234);
    for (int i = 0; i < g->params.n; i++) /* vary biases and norm weights, which are constant initially */
        if (g->params.row[i].ndim == 1)
            for (int64_t j = 0; j < g->params.row[i].shard_numel; j++)
                ((float *)g->w)[g->params.row[i].offset + j] += 0.1f * (float)((i * 7 + j * 3) % 11 - 5);
    return g;
}

static struct meg_model *make_run(const struct meg_model_conf *c, const struct meg_model_run *run)
{
    return make_on(meg_device_cpu(), c, run, &meg_mesh_one);
}

static struct meg_model *make(const struct meg_model_conf *c, bool is_training)
{
    const struct meg_model_run run = { .s = S, .b = B, .is_training = is_training, .seed = 7 };

    return make_run(c, &run);
}

struct input {
    int32_t tokens[N], labels[N], position[N], doc_start[N];
    float mask[N];
    int64_t sample[B];
};

static struct meg_batch batch(struct input *x)
{
    struct meg_batch b = { .s = S,
                           .b = B,
                           .tokens = x->tokens,
                           .labels = x->labels,
                           .position_ids = x->position,
                           .doc_start = x->doc_start,
                           .loss_mask = x->mask };

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

/* ---- tests ---- */

static void close_to(double got, double want, double scale)
{
    if (!(fabs(got - want) <= scale))
        fail_msg("%.9g, wanted %.9g to within %.2g", got, want, scale);
}

static float *copy_of_gradients(const struct meg_model *g)
{
    return memcpy(meg_new((size_t)g->params.flat_numel * sizeof(float)), g->g,
                  (size_t)g->params.flat_numel * sizeof(float));
}

/* Recomputed activations, including dropout, equal those of the forward pass. */
static void recomputation_gives_the_same_gradients_bit_for_bit(void **state)
{
    static const struct {
        enum meg_recompute recompute;
        int64_t layers;
    } modes[] = {
        { MEG_RECOMPUTE_SELECTIVE, 0 }, { MEG_RECOMPUTE_UNIFORM, 1 }, { MEG_RECOMPUTE_UNIFORM, 2 },
        { MEG_RECOMPUTE_UNIFORM, 3 },   { MEG_RECOMPUTE_BLOCK, 1 },   { MEG_RECOMPUTE_BLOCK, 2 },
    };
    static int64_t sample[] = { 40, 41, 42 };
    struct meg_model_conf c = tiny_gpt(3, H, F, A, S, V);
    struct input in;
    struct meg_batch x = batch(&in);
    struct meg_model *g;
    float *want;
    double loss;

    (void)state;
    c.attn.dropout = c.hidden_dropout = 0.3;
    x.sample_id = sample;
    g = make(&c, true);
    loss = meg_model_forward_backward(g, &x, 1);
    want = copy_of_gradients(g);
    meg_model_close(g);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        const struct meg_model_run run = { .s = S,
                                           .b = B,
                                           .is_training = true,
                                           .seed = 7,
                                           .recompute = modes[i].recompute,
                                           .recompute_num_layers = modes[i].layers };

        g = make_run(&c, &run);
        assert_true(meg_model_forward_backward(g, &x, 1) == loss);
        if (memcmp(g->g, want, (size_t)g->params.flat_numel * sizeof *want))
            fail_msg("mode %d of %d layers: the gradients differ", (int)modes[i].recompute, (int)modes[i].layers);
        meg_model_close(g);
    }
    free(want);
}

static void deferred_weight_gradients_are_the_same_bit_for_bit(void **state)
{
    static int64_t sample[] = { 40, 41, 42 };
    struct meg_model_run run = { .s = S, .b = B, .is_training = true, .seed = 7 };
    struct meg_model_conf c = conf();
    struct input in;
    struct meg_batch x = batch(&in);

    (void)state;
    x.sample_id = sample;
    for (int has_dropout = 0; has_dropout < 2; has_dropout++) {
        struct meg_model *g;
        float *want;

        c.hidden_dropout = has_dropout ? 0.3 : 0;
        g = make(&c, true);
        meg_model_forward_backward(g, &x, 1);
        want = copy_of_gradients(g);
        meg_model_close(g);
        run.defers_wgrad = true;
        g = make_run(&c, &run);
        meg_model_forward_backward(g, &x, 1);
        assert_memory_equal(g->g, want, (size_t)g->params.flat_numel * sizeof *want);
        meg_model_close(g);
        free(want);
    }
}

/* ---- pipeline stages ---- */

/* Parts of a model of three layers: stage 0 has only the embedding, and stage 2 has no parameters. */
enum { STAGES = 4, CHUNKS = 2, PARTS = STAGES * CHUNKS };
static int64_t first_layer[PARTS + 1] = { 0, 0, 1, 1, 2, 2, 3, 3, 3 };

/* Run forward and backward of a micro-batch through all parts, and return the sum of the losses. */
static double run_parts(struct meg_model *stage[STAGES], const struct meg_batch *x)
{
    static float boundary[PARTS + 1][N * H], grad[PARTS + 1][N * H];
    const struct meg_loss_factors one = { { 1 }, { 1 } };
    struct meg_boundary_tensor tensor[MEG_BOUNDARY_TENSORS];
    void *x_of[PARTS + 1], *dx_of[PARTS + 1];
    double loss[MEG_MAX_LOSSES];

    assert_int_equal(meg_model_boundary(stage[0], tensor), 1);
    assert_int_equal(tensor[0].n, N * H);
    for (int k = 0; k <= PARTS; k++) {
        x_of[k] = boundary[k];
        dx_of[k] = grad[k];
    }
    meg_model_zero_loss(stage[STAGES - 1]);
    for (int k = 0; k < PARTS; k++)
        meg_model_forward(stage[k % STAGES], k / STAGES, k / STAGES, x, &one, k > 0 ? &x_of[k] : NULL,
                          k < PARTS - 1 ? &x_of[k + 1] : NULL);
    for (int k = PARTS - 1; k >= 0; k--)
        meg_model_backward(stage[k % STAGES], k / STAGES, k / STAGES, k < PARTS - 1 ? &dx_of[k + 1] : NULL,
                           k > 0 ? &dx_of[k] : NULL);
    meg_model_read_losses(stage[STAGES - 1], loss);
    return loss[0];
}

/* Compare the gradients of the stages with those of the complete model, and check that each parameter has one stage. */
static void compare_stages(const struct meg_model *all, struct meg_model *stage[STAGES], const char *what)
{
    for (int i = 0; i < all->params.n; i++) {
        const struct meg_param *want = &all->params.row[i];
        int n = 0;

        for (int k = 0; k < STAGES; k++) {
            const struct meg_param *row = &stage[k]->params.row[i];

            if (row->shard_numel == 0)
                continue;
            n++;
            if (memcmp((float *)stage[k]->g + row->offset, (float *)all->g + want->offset,
                       (size_t)want->numel * sizeof(float)))
                fail_msg("%s: the gradients of %s differ", what, row->name);
        }
        assert_int_equal(n, 1);
    }
}

static void chunks_without_layers_give_the_same_gradients_bit_for_bit(void **state)
{
    static const struct {
        const char *name;
        enum meg_recompute recompute;
    } modes[] = { { "no recomputation", MEG_RECOMPUTE_NONE },
                  { "selective recomputation", MEG_RECOMPUTE_SELECTIVE },
                  { "full recomputation", MEG_RECOMPUTE_UNIFORM } };
    static int64_t sample[] = { 40, 41, 42 };
    struct meg_model_conf c = tiny_gpt(3, H, F, A, S, V);
    struct input in;
    struct meg_batch x = batch(&in);

    (void)state;
    c.is_untied = true;
    c.attn.dropout = c.hidden_dropout = 0.3;
    x.sample_id = sample;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        struct meg_model_run run = { .s = S,
                                     .b = B,
                                     .is_training = true,
                                     .seed = 7,
                                     .microbatch_slots = CHUNKS,
                                     .recompute = modes[i].recompute,
                                     .recompute_num_layers = 1 };
        struct meg_mesh mesh[STAGES];
        struct meg_model *all = make_run(&c, &run), *stage[STAGES];
        const double loss = meg_model_forward_backward(all, &x, 1);

        for (int k = 0; k < STAGES; k++) {
            mesh[k] = meg_mesh_one;
            mesh[k].layout.pp = STAGES;
            mesh[k].layout.vp = CHUNKS;
            mesh[k].layout.layers = 3;
            mesh[k].layout.first_layer = first_layer;
            meg_model_set_ties(&mesh[k].layout, &c);
            mesh[k].coords.pp = k;
            stage[k] = make_on(meg_device_cpu(), &c, &run, &mesh[k]);
        }
        assert_true(run_parts(stage, &x) == loss);
        compare_stages(all, stage, modes[i].name);
        for (int k = 0; k < STAGES; k++)
            meg_model_close(stage[k]);
        meg_model_close(all);
    }
}

static int64_t sixteen_rows(int64_t v)
{
    (void)v;
    return 16;
}

/* The language-model head computes the logits of 16 rows, then of the other 2. */
static void chunks_of_logits_give_the_same_loss_and_gradients(void **state)
{
    const struct meg_model_run run = { .s = S, .b = B, .is_training = true, .seed = 7 };
    const struct meg_model_conf c = conf();
    struct meg_ops op = *meg_device_cpu()->op;
    struct meg_device device = *meg_device_cpu();
    struct meg_model *one = make(&c, true), *two;
    struct meg_model_memory memory;
    struct input in;
    const struct meg_batch x = batch(&in);
    double loss;

    (void)state;
    op.logits_rows = sixteen_rows;
    device.op = &op;
    two = make_on(&device, &c, &run, &meg_mesh_one);
    assert_int_equal(meg_model_logit_rows(one), N);
    assert_int_equal(meg_model_logit_rows(two), 16);
    meg_model_memory_size(&memory, &c, &run, &op, &meg_mesh_one);
    assert_true(two->used.workspace == memory.workspace && memory.workspace < one->used.workspace);
    loss = meg_model_forward_backward(one, &x, 1);
    close_to(meg_model_forward_backward(two, &x, 1), loss, 1e-6 * loss);
    for (int64_t i = 0; i < one->params.flat_numel; i++)
        close_to(((float *)two->g)[i], ((float *)one->g)[i], 3e-6 * (1 + fabsf(((float *)one->g)[i])));
    meg_model_close(one);
    meg_model_close(two);
}

static size_t one_mebibyte(const struct meg_attn_desc *desc, enum meg_dtype grad, bool has_param_grads)
{
    assert_true(desc->s_q == S && desc->s_k == S && desc->b == B && desc->a == A && grad == MEG_DTYPE_BF16);
    assert_false(has_param_grads);
    return 1 << 20;
}

static size_t no_workspace(const struct meg_attn_desc *desc, enum meg_dtype grad, bool has_param_grads)
{
    (void)desc, (void)grad, (void)has_param_grads;
    return 0;
}

static void memory_of_training_includes_the_workspace_of_attention(void **state)
{
    struct meg_model_run run = { .s = S, .b = B, .is_training = true, .dtype = MEG_DTYPE_BF16 };
    const struct meg_model_conf c = conf();
    struct meg_ops with = *meg_device_cpu()->op, without = with;
    struct meg_model_memory m, least;

    (void)state;
    with.attn_bwd_nbytes = one_mebibyte;
    without.attn_bwd_nbytes = no_workspace;
    for (int training = 1; training >= 0; training--) {
        run.is_training = training;
        meg_model_memory_size(&m, &c, &run, &with, &meg_mesh_one);
        meg_model_memory_size(&least, &c, &run, &without, &meg_mesh_one);
        assert_int_equal(m.workspace, least.workspace + (training ? 1 << 20 : 0));
        assert_int_equal(m.activations, least.activations);
    }
}

static void gradients_accumulate_over_micro_batches(void **state)
{
    const struct meg_model_conf c = conf();
    struct meg_model *g = make(&c, true);
    struct input in;
    const struct meg_batch x = batch(&in);
    float *once;

    (void)state;
    meg_model_forward_backward(g, &x, 1);
    once = copy_of_gradients(g);
    meg_model_forward_backward(g, &x, 1);
    for (int64_t i = 0; i < g->params.flat_numel; i++)
        close_to(((float *)g->g)[i], 2 * (double)once[i], 1e-5 * (1 + fabs((double)once[i])));
    free(once);
    meg_model_close(g);
}

/* Set all parameter gradients to NaN, but not the padding between them. */
static void fill_gradients_with_nan(struct meg_model *g)
{
    for (int i = 0; i < g->params.n; i++)
        for (int64_t k = 0; k < g->params.row[i].numel; k++)
            ((float *)g->g)[g->params.row[i].offset + k] = NAN;
}

/*
 * Run two micro-batches.  With defers_wgrad, the backward_weight passes follow both backward passes, as in zero-bubble
 * schedules.
 */
static void two_micro_batches(struct meg_model *g, const struct meg_batch *x)
{
    const struct meg_loss_factors one = { { 1 }, { 1 } };

    for (int64_t slot = 0; slot < 2; slot++)
        meg_model_forward(g, 0, slot, x, &one, NULL, NULL);
    for (int64_t slot = 0; slot < 2; slot++)
        meg_model_backward(g, 0, slot, NULL, NULL);
    for (int64_t slot = 0; slot < 2 && g->run.defers_wgrad; slot++)
        meg_model_backward_weight(g, 0, slot);
}

/* The first micro-batch after meg_model_zero_grads does not read the gradients, with any combination of options. */
static void the_first_micro_batch_overwrites_all_gradients(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        struct meg_model_conf c = conf();
        const struct meg_model_run run = {
            .s = S, .b = B, .is_training = true, .microbatch_slots = 2, .defers_wgrad = i & 1
        };
        struct meg_model *g;
        struct input in;
        const struct meg_batch x = batch(&in);
        float *want;

        c.is_untied = i & 2;
        if (i & 4)
            c.normalization = MEG_NORM_RMS;
        g = make_run(&c, &run);
        two_micro_batches(g, &x);
        want = copy_of_gradients(g);
        fill_gradients_with_nan(g);
        meg_model_zero_grads(g);
        two_micro_batches(g, &x);
        assert_memory_equal(g->g, want, (size_t)g->params.flat_numel * sizeof *want);
        free(want);
        meg_model_close(g);
    }
}

static void types_that_the_backend_lacks_are_refused(void **state)
{
    const struct meg_model_conf c = conf();
    const struct meg_model_run run = { .s = S, .b = B, .is_training = true, .grad_dtype = MEG_DTYPE_F64 };
    struct meg_model *g = NULL;
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_model_create(&g, &c, &run, meg_device_cpu(), &meg_mesh_one, &e), MEG_EUSAGE);
    assert_null(g);
    assert_non_null(strstr(e.msg, "linear_qkv.weight [48,16]"));
    assert_non_null(strstr(e.msg, "the CPU supports only fp32, bf16 and fp16"));
}

static void dropout_depends_on_the_sample_id_only(void **state)
{
    struct meg_model_conf c = conf();
    struct input in;
    struct meg_batch x = batch(&in), one;
    struct meg_model *g;
    int64_t sample[] = { 40, 41, 42 };
    int32_t tokens[S], labels[S], position[S], doc_start[S];
    float mask[S];
    double all, sum = 0;

    (void)state;
    c.attn.dropout = c.hidden_dropout = 0.3;
    g = make(&c, true);
    x.sample_id = sample;
    all = meg_model_forward_backward(g, &x, 1);
    assert_true(fabs(all - meg_model_loss(g, &x, NULL)) > 1e-3);
    for (int i = 0; i < B; i++) { /* one sequence per micro-batch */
        for (int t = 0; t < S; t++) {
            tokens[t] = in.tokens[t * B + i];
            labels[t] = in.labels[t * B + i];
            position[t] = in.position[t * B + i];
            doc_start[t] = in.doc_start[t * B + i];
            mask[t] = in.mask[t * B + i];
        }
        one = (struct meg_batch){ .s = S,
                                  .b = 1,
                                  .tokens = tokens,
                                  .labels = labels,
                                  .position_ids = position,
                                  .doc_start = doc_start,
                                  .loss_mask = mask,
                                  .sample_id = sample + i };
        sum += meg_model_forward_backward(g, &one, 1);
    }
    close_to(sum, all, 1e-5 * all);
    meg_model_close(g);
}

static const struct meg_decode_conf returns_logits = { .returns_logits = true };

/*
 * Check that the logits of decoding steps are those of a forward pass, on a backend with these values of decode_rows
 * and pads_decode_steps.
 */
static void check_steps(struct meg_model_conf c, int64_t rows, bool pads)
{
    const struct meg_model_run run = { .s = S, .b = B, .seed = 7 };
    struct meg_device device = *meg_device_cpu();
    struct meg_ops op = *device.op;
    struct meg_model *g;
    struct meg_model_kv_cache *cache;
    struct meg_err e;
    struct input in;
    struct meg_batch x = batch(&in);
    float all[N * V], other[V];
    struct meg_decode_output step;
    int32_t one[B][S];
    const int64_t slots[] = { 2, 0 };

    op.decode_rows = rows;
    op.pads_decode_steps = pads;
    device.op = &op;
    g = make_on(&device, &c, &run, &meg_mesh_one);
    memset(in.doc_start, 0, sizeof in.doc_start);
    for (int t = 0; t < S; t++)
        for (int i = 0; i < B; i++) {
            in.position[t * B + i] = t;
            one[i][t] = in.tokens[t * B + i];
        }
    meg_model_logits(g, &x, all);
    cache = meg_model_kv_cache_create(g, 3, &returns_logits);
    assert_int_equal(
        meg_model_prefill(g, cache, &(struct meg_prefill){ .slot = 2, .tokens = one[0], .n = 3, .s = S }, &step, &e),
        0);
    for (int v = 0; v < V; v++)
        close_to(step.logits[v], all[2 * B * V + v], 1e-5);
    assert_int_equal(
        meg_model_prefill(g, cache, &(struct meg_prefill){ .slot = 0, .tokens = one[1], .n = 1, .s = S }, NULL, &e), 0);
    for (int t = 0; t < 2; t++) {
        const int32_t next[] = { one[0][3 + t], one[1][1 + t] };

        step = meg_model_decode(g, cache, slots, next, 2, NULL);
        for (int v = 0; v < V; v++) {
            close_to(step.logits[v], all[(3 + t) * B * V + v], 1e-5);
            close_to(step.logits[V + v], all[((1 + t) * B + 1) * V + v], 1e-5);
        }
    }
    assert_int_equal(meg_model_kv_cache_len(cache, 2), 5);
    memcpy(other, step.logits + V, sizeof other);

    /* the logits of a sequence have the same bits if it is decoded alone, in a different slot */
    assert_int_equal(
        meg_model_prefill(g, cache, &(struct meg_prefill){ .slot = 1, .tokens = one[1], .n = 1, .s = 3 }, NULL, &e), 0);
    for (int t = 0; t < 2; t++)
        step = meg_model_decode(g, cache, (int64_t[]){ 1 }, &one[1][1 + t], 1, NULL);
    assert_memory_equal(step.logits, other, sizeof other);
    meg_model_kv_cache_close(cache);
    meg_model_close(g);
}

static void check_decoding(struct meg_model_conf c)
{
    const int64_t rows[] = { 1, 3, meg_device_cpu()->op->decode_rows, 64 };

    for (int i = 0; i < 4; i++)
        for (int pads = 0; pads < 2; pads++)
            check_steps(c, rows[i], pads);
}

/*
 * Logits are f32 in any dtype of the weights.  Rounding a weight or activation has a relative error of at most 2^-8
 * (bf16) or 2^-11 (f16).  The error of the logits, relative to the largest one, is less than that of 8 roundings.
 */
static void decoding_in_half_precision_is_close_to_f32(void **state)
{
    static const enum meg_dtype dtype[] = { MEG_DTYPE_BF16, MEG_DTYPE_F16 };
    static const double rounding[] = { 0x1p-8, 0x1p-11 };
    struct meg_model_conf c = conf();
    int32_t ids[S], position[S];
    float want[S * V], last[V];
    struct meg_decode_output step;
    struct meg_model *f32 = make(&c, false);
    struct meg_err e;

    (void)state;
    for (int32_t t = 0; t < S; t++) {
        ids[t] = (5 * t + 3) % V;
        position[t] = t;
    }
    meg_model_logits(f32, &(struct meg_batch){ .s = S, .b = 1, .tokens = ids, .position_ids = position }, want);
    for (int k = 0; k < 2; k++) {
        const struct meg_model_run run = { .s = S, .b = 1, .dtype = dtype[k], .residual_dtype = dtype[k] };
        struct meg_model_kv_cache *cache;
        struct meg_model *g;
        double error = 0, largest = 0;

        assert_int_equal(meg_model_create(&g, &c, &run, meg_device_cpu(), &meg_mesh_one, &e), 0);
        assert_int_equal(g->params.flat_numel, f32->params.flat_numel);
        meg_dtype_from_f32(g->w, dtype[k], f32->w, f32->params.flat_numel);
        cache = meg_model_kv_cache_create(g, 1, &returns_logits);
        assert_int_equal(meg_model_prefill(g, cache,
                                           &(struct meg_prefill){ .slot = 0, .tokens = ids, .n = S - 1, .s = S }, &step,
                                           &e),
                         0);
        memcpy(last, step.logits, sizeof last);
        step = meg_model_decode(g, cache, (int64_t[]){ 0 }, &ids[S - 1], 1, NULL);
        for (int v = 0; v < V; v++) {
            largest = fmax(largest, fabs((double)want[(S - 2) * V + v]));
            error = fmax(error, fabs((double)last[v] - want[(S - 2) * V + v]));
            error = fmax(error, fabs((double)step.logits[v] - want[(S - 1) * V + v]));
        }
        assert_true(error > 0 && error < 8 * rounding[k] * largest);
        meg_model_kv_cache_close(cache);
        meg_model_close(g);
    }
    meg_model_close(f32);
}

/* A prompt of LONG - 1 tokens is prefilled in two chunks, the last of which is smaller than the first. */
static void a_long_prompt_is_prefilled_in_chunks(void **state)
{
    enum { LONG = 2300, MAX = 2400 };
    struct meg_model_conf c = conf();
    const struct meg_model_run run = { .s = 1, .b = 1, .positions = 1 };
    static int32_t ids[LONG], position[LONG];
    float *all = meg_new((size_t)LONG * V * sizeof *all), last[V], first[V];
    struct meg_decode_output out;
    struct meg_model_kv_cache *cache;
    struct meg_model *g;
    struct meg_err e;

    c.max_position_embeddings = MAX;
    c.position_embedding_type = MEG_POSITION_ROPE;
    c.attn.window_size = *state;
    assert_int_equal(meg_model_conf_check(&c, &e), 0);
    assert_int_equal(meg_model_create(&g, &c, &run, meg_device_cpu(), &meg_mesh_one, &e), 0);
    meg_model_init(g, 5);
    for (int32_t i = 0; i < LONG; i++) {
        ids[i] = (i * i + 3 * i) % V;
        position[i] = i;
    }
    cache = meg_model_kv_cache_create(g, 1, &returns_logits);
    assert_int_equal(
        meg_model_prefill(g, cache, &(struct meg_prefill){ .slot = 0, .tokens = ids, .n = 5, .s = 6 }, &out, &e), 0);
    memcpy(first, out.logits, sizeof first);
    assert_int_equal(g->run.s, 5);
    assert_int_equal(meg_model_prefill(g, cache,
                                       &(struct meg_prefill){ .slot = 0, .tokens = ids, .n = LONG - 1, .s = MAX }, NULL,
                                       &e),
                     0);
    assert_in_range(g->run.s, 5, LONG - 2);
    memcpy(last, meg_model_decode(g, cache, (int64_t[]){ 0 }, &ids[LONG - 1], 1, NULL).logits, sizeof last);
    assert_int_equal(meg_model_kv_cache_len(cache, 0), LONG);

    /* a short sequence has the same logits after the buffers have grown */
    assert_int_equal(
        meg_model_prefill(g, cache, &(struct meg_prefill){ .slot = 0, .tokens = ids, .n = 5, .s = 6 }, &out, &e), 0);
    assert_memory_equal(out.logits, first, sizeof first);

    assert_int_equal(meg_model_reserve(g, LONG, LONG, &e), 0);
    meg_model_logits(g, &(struct meg_batch){ .s = LONG, .b = 1, .tokens = ids, .position_ids = position }, all);
    for (int v = 0; v < V; v++)
        close_to(last[v], all[(LONG - 1) * V + v], 1e-5);
    meg_model_kv_cache_close(cache);
    meg_model_close(g);
    free(all);
}

static void decoding_gives_the_logits_of_the_full_sequence(void **state)
{
    struct meg_model_conf c = conf();
    struct meg_err e;

    (void)state;
    check_decoding(c);
    c.position_embedding_type = MEG_POSITION_ROPE;
    c.normalization = MEG_NORM_RMS;
    c.swiglu = c.is_untied = c.group_query_attention = true;
    c.attn.g = 2;
    c.has_bias = false;
    assert_int_equal(meg_model_conf_check(&c, &e), 0);
    check_decoding(c);
    c.attn.window_size = "1,0";
    c.attn.window_attn_skip_freq = "2";
    check_decoding(c);
    c.rotary.base_window = 3;
    c.rotary.no_rope_freq = "[0,1]";
    c.rotary.temperature_beta = 0.5;
    c.rotary.temperature_floor = 2;
    check_decoding(c);
}

/* Check that out has the logits of the last token of a sequence that is run without a KV cache. */
static void check_logits(struct meg_model *g, const float *out, const int32_t *ids, int64_t n)
{
    int32_t position[S] = { 0, 1, 2, 3, 4, 5 };
    const struct meg_batch x = { .s = n, .b = 1, .tokens = (int32_t *)ids, .position_ids = position };
    float all[S * V];

    meg_model_logits(g, &x, all);
    for (int v = 0; v < V; v++)
        close_to(out[v], all[(n - 1) * V + v], 1e-5);
}

/*
 * With LongRoPE, the tables depend on the length of a sequence.  One of two sequences exceeds the original context of
 * three tokens in the first step, the other one in the third.  A third prompt begins above it.
 */
static void decoding_beyond_the_original_context_recomputes_the_keys(void **state)
{
    const struct meg_model_run run = { .s = 1, .b = 1, .positions = 1 };
    const int32_t ids[3][S] = { { 3, 1, 4, 1, 5, 9 }, { 2, 6, 5, 3, 5, 8 }, { 9, 7, 9, 3, 2, 3 } };
    const int64_t slots[] = { 2, 0 };
    struct meg_model_kv_cache *cache;
    struct meg_decode_output out;
    struct meg_model_conf c = conf();
    struct meg_model *g;
    struct meg_err e;

    (void)state;
    c.position_embedding_type = MEG_POSITION_ROPE;
    c.rotary.long_factors = "1.5,7";
    c.rotary.short_factors = "1,3";
    c.rotary.longrope_original = 3;
    c.rotary.base = 10;
    assert_int_equal(meg_model_conf_check(&c, &e), 0);
    g = make_run(&c, &run);
    cache = meg_model_kv_cache_create(g, 3, &returns_logits);
    for (int i = 0; i < 2; i++) {
        const struct meg_prefill prompt = { .slot = slots[i], .tokens = ids[i], .n = 3 - 2 * i, .s = S };

        assert_int_equal(meg_model_prefill(g, cache, &prompt, &out, &e), 0);
        check_logits(g, out.logits, ids[i], prompt.n);
    }
    for (int t = 0; t < 3; t++) {
        float logits[2 * V];

        out = meg_model_decode(g, cache, slots, (const int32_t[]){ ids[0][3 + t], ids[1][1 + t] }, 2, NULL);
        memcpy(logits, out.logits, sizeof logits);
        check_logits(g, logits, ids[0], 4 + t);
        check_logits(g, logits + V, ids[1], 2 + t);
    }
    assert_int_equal(
        meg_model_prefill(g, cache, &(struct meg_prefill){ .slot = 0, .tokens = ids[2], .n = 5, .s = S }, &out, &e), 0);
    check_logits(g, out.logits, ids[2], 5);
    out = meg_model_decode(g, cache, (const int64_t[]){ 0 }, &ids[2][5], 1, NULL);
    check_logits(g, out.logits, ids[2], 6);
    meg_model_kv_cache_close(cache);
    meg_model_close(g);
}

static void initial_weights_depend_on_name_and_element_only(void **state)
{
    const struct meg_model_conf c = conf();
    struct meg_params p;
    float all[V * H], part[10];
    double sum = 0, squares = 0;

    (void)state;
    meg_model_params(&p, &c, &meg_mesh_one);
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

/* Weights of the output of sublayers have std / sqrt(2 L) (Radford et al. 2019), all other matrices std. */
static void initial_weights_of_sublayer_outputs_are_smaller(void **state)
{
    const struct meg_model_conf c = tiny_gpt(8, H, F, A, S, V);
    struct meg_params p;
    int branches = 0;

    (void)state;
    meg_model_params(&p, &c, &meg_mesh_one);
    for (int i = 0; i < p.n; i++) {
        const bool is_branch =
            strstr(p.row[i].name, "linear_proj.weight") || strstr(p.row[i].name, "linear_fc2.weight");

        if (p.row[i].ndim > 1)
            close_to(p.row[i].init.a, is_branch ? 0.3 / 4 : 0.3, 1e-12);
        branches += is_branch;
    }
    assert_int_equal(branches, 16);
    meg_params_free(&p);
}

static void rows_are_in_backward_order_in_one_buffer(void **state)
{
    const struct meg_model_conf c = conf();
    struct meg_params p;
    int64_t numel = 0, at = 0;

    (void)state;
    meg_model_params(&p, &c, &meg_mesh_one);
    for (int i = p.n; i-- > 0;) {
        assert_int_equal(p.row[i].offset % MEG_PARAM_ALIGN, 0);
        assert_true(p.row[i].offset >= at);
        at = p.row[i].offset + p.row[i].numel;
        numel += p.row[i].numel;
    }
    assert_true(p.flat_numel >= at && p.flat_numel - at < MEG_PARAM_ALIGN);
    assert_int_equal(numel, p.numel);
    meg_params_free(&p);
}

static void training_needs_more_memory_than_decoding(void **state)
{
    const struct meg_model_conf c = conf();
    const struct meg_model_run train = { .s = S, .b = B, .is_training = true, .seed = 1 },
                               infer = { .s = S, .b = B, .seed = 1 };
    const struct meg_ops *op = meg_device_cpu()->op;
    struct meg_model_memory a, b;

    (void)state;
    meg_model_memory_size(&a, &c, &train, op, &meg_mesh_one);
    meg_model_memory_size(&b, &c, &infer, op, &meg_mesh_one);
    assert_true(a.params == b.params && a.grads == a.params && b.grads == 0);
    assert_true(a.activations > b.activations && a.workspace > b.workspace);
}

static void refuses_options_that_break_a_rule(void **state)
{
    struct meg_model_conf c = conf();
    struct meg_err e;

    (void)state;
    c.attn.d = MEG_UNSET;
    c.attn.a = 3;
    assert_int_equal(meg_model_conf_check(&c, &e), MEG_EUSAGE);
    assert_non_null(strstr(e.msg, "--hidden-size 16: must be a multiple of --num-attention-heads 3"));
    c = conf();
    c.hidden_dropout = NAN;
    assert_int_equal(meg_model_conf_check(&c, &e), MEG_EUSAGE);
    c = conf();
    c.num_layers = MEG_UNSET;
    assert_int_equal(meg_model_conf_check(&c, &e), MEG_EUSAGE);
    assert_string_equal(e.msg, "--num-layers is required");
}

static void refuses_more_parameters_than_fit_64_bits(void **state)
{
    struct meg_model_conf c = conf();
    struct meg_err e;

    (void)state;
    c.num_layers = 100000;
    assert_int_equal(meg_model_conf_check(&c, &e), MEG_EUSAGE);
    assert_string_equal(e.msg, "--num-layers 100000: the model would have 100000 layers; the limit is 99999");
    c = conf();
    c.hidden_size = (int64_t)1 << 33;
    assert_int_equal(meg_model_conf_check(&c, &e), MEG_EUSAGE);
    assert_string_equal(e.msg, "--hidden-size 8589934592: must be at most 2147483647");
    c = conf();
    c.hidden_size = (int64_t)1 << 24;
    c.mlp.f = (int64_t)1 << 26;
    assert_int_equal(meg_model_conf_check(&c, &e), MEG_EUSAGE);
    assert_non_null(strstr(e.msg, "parameters; the limit is 2.8e+14"));
}

static void refuses_to_rotate_less_than_a_pair(void **state)
{
    struct meg_model_conf c = conf();
    struct meg_err e;

    (void)state;
    c.rotary.is_used = true;
    c.rotary.percent = 0.01;
    assert_int_equal(meg_model_conf_check(&c, &e), MEG_EUSAGE);
    assert_non_null(strstr(e.msg, "--rotary-percent 0.01: this fraction of the"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recomputation_gives_the_same_gradients_bit_for_bit),
        cmocka_unit_test(deferred_weight_gradients_are_the_same_bit_for_bit),
        cmocka_unit_test(chunks_without_layers_give_the_same_gradients_bit_for_bit),
        cmocka_unit_test(chunks_of_logits_give_the_same_loss_and_gradients),
        cmocka_unit_test(memory_of_training_includes_the_workspace_of_attention),
        cmocka_unit_test(gradients_accumulate_over_micro_batches),
        cmocka_unit_test(the_first_micro_batch_overwrites_all_gradients),
        cmocka_unit_test(types_that_the_backend_lacks_are_refused),
        cmocka_unit_test(dropout_depends_on_the_sample_id_only),
        cmocka_unit_test(decoding_gives_the_logits_of_the_full_sequence),
        cmocka_unit_test(decoding_beyond_the_original_context_recomputes_the_keys),
        cmocka_unit_test(a_long_prompt_is_prefilled_in_chunks),
        cmocka_unit_test_prestate(a_long_prompt_is_prefilled_in_chunks, "300,0"),
        cmocka_unit_test(decoding_in_half_precision_is_close_to_f32),
        cmocka_unit_test(initial_weights_depend_on_name_and_element_only),
        cmocka_unit_test(initial_weights_of_sublayer_outputs_are_smaller),
        cmocka_unit_test(rows_are_in_backward_order_in_one_buffer),
        cmocka_unit_test(training_needs_more_memory_than_decoding),
        cmocka_unit_test(refuses_options_that_break_a_rule),
        cmocka_unit_test(refuses_more_parameters_than_fit_64_bits),
        cmocka_unit_test(refuses_to_rotate_less_than_a_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
