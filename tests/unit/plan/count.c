/*
 * Test the operations and collectives that count FLOPs and bytes instead of computing.  The counts of small models
 * must equal formulas that are derived here from the architecture; the rates of the hardware are simple numbers.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "plan/internal.h"

/*
 * Matrix products run at 1 FLOP/s, attention at 1/2 FLOP/s in the forward and 1/4 in the backward pass, and memory
 * transfers 1 byte/s.  A rank sends 2 bytes/s within a node of two ranks, and 1/8 byte/s between nodes.
 */
static const struct meg_hardware simple = { .flops = { [MEG_DTYPE_F32] = 1, [MEG_DTYPE_BF16] = 1 },
                                            .gemm_efficiency = 1,
                                            .tile = 1,
                                            .attention_fwd_efficiency = 0.5,
                                            .attention_bwd_efficiency = 0.25,
                                            .memory_bw = 1,
                                            .link_bw = 2,
                                            .net_bw = 0.125,
                                            .ranks_per_node = 2 };

/* Sizes of the model; bytes per element of activations (E), the residual stream (R) and parameter gradients (DW). */
enum { L = 3, H = 48, A = 8, G = 4, D = 10, Q = A * D, KV = G * D, F = 80, V = 112, S = 24, B = 2, N = S * B };
enum { E = 2, R = 4, DW = 4 };

static struct meg_model_conf gpt(void)
{
    return (struct meg_model_conf){ .num_layers = L,
                                    .hidden_size = H,
                                    .mlp.f = F,
                                    .attn.a = A,
                                    .attn.g = G,
                                    .attn.d = D,
                                    .max_position_embeddings = S,
                                    .vocab_size = V,
                                    .position_embedding_type = MEG_POSITION_LEARNED,
                                    .rotary.percent = 1,
                                    .rotary.interpolation = 1,
                                    .has_bias = true };
}

/* Return the cost model of one rank, in bf16 with an f32 residual stream, without counts. */
static struct meg_cost_model model_of(const struct meg_model_conf *conf)
{
    struct meg_cost_model m = { .model = conf, .layout = meg_layout_one, .hw = &simple, .threads = 1 };

    m.layout.layers = conf->num_layers;
    meg_model_set_ties(&m.layout, conf);
    m.schedule = (struct meg_pipe_schedule_conf){ .type = MEG_PIPE_AUTO, .stages = 1, .chunks = 1, .microbatches = 1 };
    m.run = (struct meg_model_run){ .s = S,
                                    .b = B,
                                    .is_training = true,
                                    .dtype = MEG_DTYPE_BF16,
                                    .residual_dtype = MEG_DTYPE_F32,
                                    .grad_dtype = MEG_DTYPE_F32 };
    return m;
}

static void equals(double got, double want, const char *pass, const char *what)
{
    if (!(fabs(got - want) <= 1e-12 * fabs(want)))
        fail_msg("%s: %s: %.17g, not %.17g", pass, what, got, want);
}

/*
 * Check a pass on one rank: FLOPs of matrix products, of attention with all scores and with visible scores, FLOP/s of
 * attention, and bytes.
 */
static void check(const struct cost_pass *p, const char *name, double products, double scores, double visible,
                  double rate, double nbytes)
{
    equals(p->flops, products + scores, name, "FLOPs");
    equals(p->gemm_s, products, name, "seconds of products");
    equals(p->attention_s, visible / rate, name, "seconds of attention");
    equals(p->nbytes, nbytes, name, "bytes");
}

/* FLOPs of one matrix product with all scores of the micro-batch, and with the visible scores of causal attention. */
#define SCORES (2.0 * B * A * S * S * D)
#define CAUSAL (2.0 * B * A * S * (S + 1) / 2 * D)

static const double layer_flops = 2.0 * N * (H * (Q + 2 * KV) + Q * H + H * F + F * H);

static void a_layer_of_gpt_2(void **state)
{
    const struct meg_model_conf conf = gpt();
    const struct meg_cost_model m = model_of(&conf);
    struct meg_cost_counts *c = meg_cost_count(&m);
    const struct cost_part *l = &c->layer[0].part[0];

    (void)state;
    /* bytes read and written: norm; residual and norm; residual; the input of GELU */
    check(&l->fwd, "forward", layer_flops, 2 * SCORES, 2 * CAUSAL, 0.5,
          N * H * ((R + E) + (2 * R + 2 * E) + (2 * R + E)) + N * F * E);
    /* bytes read and written: backward of residual and norm, both twice; backward of GELU; delta of attention */
    check(&l->bwd, "backward", 2 * layer_flops, 5 * SCORES, 5 * CAUSAL, 0.25,
          2 * N * H * ((R + E) + (3 * R + E)) + N * F * E + 2 * N * Q * E);
    check(&l->bwd_weight, "deferred", 0, 0, 0, 1, 0);
    meg_cost_counts_free(c);
}

static void embedding_and_head_of_gpt_2(void **state)
{
    const struct meg_model_conf conf = gpt();
    const struct meg_cost_model m = model_of(&conf);
    struct meg_cost_counts *c = meg_cost_count(&m);

    (void)state;
    check(&c->embedding.fwd, "embedding, forward", 0, 0, 0, 1, N * H * ((R + E) + (2 * R + E)));
    check(&c->embedding.bwd, "embedding, backward", 0, 0, 0, 1, N * H * 2 * (R + 2 * DW));
    check(&c->heads.fwd, "head, forward", 0, 0, 0, 1, 0);
    /* bytes read and written: norm; loss and its gradient; backward of the norm */
    check(&c->heads.bwd, "head, backward", 3 * 2.0 * N * H * V, 0, 0, 1,
          N * H * ((R + E) + (2 * R + E)) + 3 * N * V * E);
    assert_int_equal(c->nboundary, 1);
    assert_int_equal(c->boundary[0].n, N * H);
    assert_int_equal(c->boundary[0].dtype, MEG_DTYPE_F32);
    assert_int_equal(c->desc.nheads, 1);
    meg_cost_counts_free(c);
}

static void a_layer_of_llama(void **state)
{
    struct meg_model_conf conf = gpt();
    struct meg_cost_model m = model_of(&conf);
    struct meg_cost_counts *c;
    const struct cost_part *l;
    const double flops = 2.0 * N * (H * (Q + 2 * KV) + Q * H + H * 2 * F + F * H), rope = 2.0 * N * (Q + KV) * E;

    (void)state;
    conf.position_embedding_type = MEG_POSITION_ROPE;
    conf.normalization = MEG_NORM_RMS;
    conf.swiglu = true;
    conf.has_bias = false;
    m.run.residual_dtype = MEG_DTYPE_BF16; /* so the gradient of the residual is not copied */
    c = meg_cost_count(&m);
    l = &c->layer[0].part[0];
    check(&l->fwd, "forward", flops, 2 * SCORES, 2 * CAUSAL, 0.5, 9 * N * H * E + 3 * N * F * E + rope);
    check(&l->bwd, "backward", 2 * flops, 5 * SCORES, 5 * CAUSAL, 0.25,
          8 * N * H * E + 5 * N * F * E + 2 * N * Q * E + rope);
    meg_cost_counts_free(c);
}

static void bert_attends_to_all_keys_and_has_two_heads(void **state)
{
    struct meg_model_conf conf = gpt();
    const struct meg_cost_model m = model_of(&conf);
    struct meg_cost_counts *c;

    (void)state;
    conf.family = MEG_FAMILY_BERT;
    conf.bert_binary_head = true;
    conf.residual_from_norm = true;
    c = meg_cost_count(&m);
    equals(c->layer[0].part[0].fwd.attention_s, 2 * SCORES / 0.5, "forward", "seconds of attention");
    equals(c->layer[0].part[0].bwd.attention_s, 5 * SCORES / 0.25, "backward", "seconds of attention");
    /*
     * With post-norm, the backward pass of a norm does not add the gradient of the residual stream.  Instead, its input
     * is computed as the sum of two gradients.
     */
    equals(c->layer[0].part[0].bwd.nbytes,
           2 * N * H * ((R + E) + (2 * R + E) + (2 * E + R)) + N * F * E + 2 * N * Q * E, "backward", "bytes");
    check(&c->heads.bwd, "heads", 3 * 2.0 * (N * H * V + N * H * H + B * H * H + B * H * 2), 0, 0, 1,
          N * H * ((R + E) + (2 * R + E)) + 3 * N * V * E /* final norm and cross-entropy */
              + N * H * (1 + 2 + 3 + 3) * E               /* GELU, norm, and their gradients */
              + B * H * (1 + 1 + 3) * E + 3 * B * 2 * E); /* tanh and its gradient, sum of gradients; loss */
    assert_int_equal(c->desc.nheads, 2);
    meg_cost_counts_free(c);
    /* model FLOPs are those of GPT: without the transform and the binary head, with all scores */
    equals(meg_cost_model_flops(&conf, S, 0), 3 * (L * (layer_flops + 2 * SCORES) / B + 2.0 * S * H * V), "model",
           "FLOPs");
}

/* The encoder and the decoder of T5 have L layers each, and sequences of SE and S tokens. */
enum { SE = 40, NE = SE * B };

static void layers_of_t5_have_the_lengths_of_their_stacks(void **state)
{
    static const int index[2 * L] = { 0, 0, 1, 2, 3, 3 }; /* 1: also the final norm; 2: also the decoder's embedding */
    const double linear = Q + 2 * KV + Q + 2 * F, cross = 2.0 * (N * H * 2 * Q + NE * H * 2 * Q);
    const double cross_scores = 2.0 * B * A * S * SE * D, all_scores = 2.0 * B * A * SE * SE * D;
    const double decoder = 2.0 * N * H * linear + cross;
    struct meg_model_conf conf = gpt();
    struct meg_cost_model m;
    struct meg_cost_counts *c;

    (void)state;
    conf.family = MEG_FAMILY_T5;
    conf.decoder_num_layers = L;
    conf.max_position_embeddings = SE;
    m = model_of(&conf);
    m.layout.layers = 2 * L;
    m.run.s_enc = SE;
    c = meg_cost_count(&m);
    assert_int_equal(c->desc.nlayers, 2 * L);
    assert_memory_equal(c->index, index, sizeof index);
    check(&c->layer[0].part[0].fwd, "encoder", 2.0 * NE * H * linear, 2 * all_scores, 2 * all_scores, 0.5,
          NE * H * (5 * R + 4 * E) + NE * F * E);
    check(&c->layer[3].part[0].fwd, "decoder, forward", decoder, 2 * (SCORES + cross_scores),
          2 * (CAUSAL + cross_scores), 0.5, N * H * (7 * R + 6 * E) + N * F * E);
    /* the bytes include delta of both attentions, and the addition to the gradient of the output of the encoder */
    check(&c->layer[3].part[0].bwd, "decoder, backward", 2 * decoder, 5 * (SCORES + cross_scores),
          5 * (CAUSAL + cross_scores), 0.25, 3 * N * H * (4 * R + 2 * E) + N * F * E + 4 * N * Q * E + 3 * NE * H * E);
    equals(c->layer[1].part[0].fwd.nbytes - c->layer[0].part[0].fwd.nbytes, NE * H * (R + E), "norm", "bytes");
    equals(c->layer[2].part[0].fwd.nbytes - c->layer[3].part[0].fwd.nbytes, N * H * (3 * R + 2 * E), "embedding",
           "bytes");
    equals(c->layer[2].recomputed.gemm_s, decoder, "recomputation of the first layer of the decoder", "products");
    equals(c->layer[2].recomputed.nbytes, N * H * (5 * R + 5 * E) + N * F * E, "recomputation, to the last residual",
           "bytes");
    equals(c->residual_nbytes[0], NE * H * R, "residual stream of the encoder", "bytes");
    equals(meg_cost_model_flops(&conf, S, SE), /* per sequence */
           3 * (L * (2.0 * NE * H * linear + 2 * all_scores + decoder + 2 * (SCORES + cross_scores)) / B +
                2.0 * S * H * V),
           "model", "FLOPs");
    meg_cost_counts_free(c);
}

static void stages_of_t5_send_the_tensors_that_the_next_one_reads(void **state)
{
    int64_t first_layer[] = { 0, 2, L, L + 1, 2 * L };
    const double residual = NE * H * R, memory = NE * H * E; /* the residual stream has the rows of the longer stack */
    struct meg_model_conf conf = gpt();
    struct meg_cost_model m;

    (void)state;
    conf.family = MEG_FAMILY_T5;
    conf.decoder_num_layers = L;
    conf.max_position_embeddings = SE;
    m = model_of(&conf);
    m.layout.layers = 2 * L;
    m.layout.pp = 4;
    m.layout.first_layer = first_layer;
    m.run.s_enc = SE;
    m.counts = meg_cost_count(&m);
    equals(cost_boundary_nbytes(&m, 0), 0, "before the first stage", "bytes");
    equals(cost_boundary_nbytes(&m, 1), residual, "within the encoder", "bytes");
    equals(cost_boundary_nbytes(&m, 2), memory, "from encoder to decoder", "bytes");
    equals(cost_boundary_nbytes(&m, 3), residual + memory, "within the decoder", "bytes");
    equals(cost_boundary_nbytes(&m, 4), 0, "after the last stage", "bytes");
    assert_int_equal(cost_tie_size(&m.layout, m.counts->desc.word_tie), 3);
    assert_int_equal(cost_tie_size(&m.layout, m.counts->desc.embedding_tie), 2);
    meg_cost_counts_free(m.counts);
}

static void recomputation_and_deferral_change_the_backward_pass(void **state)
{
    const struct meg_model_conf conf = gpt();
    struct meg_cost_model m = model_of(&conf);
    struct meg_cost_counts *c;

    (void)state;
    m.run.recompute = MEG_RECOMPUTE_SELECTIVE;
    c = meg_cost_count(&m);
    equals(c->layer[0].part[0].bwd.attention_s, 2 * CAUSAL / 0.5 + 5 * CAUSAL / 0.25, "selective", "attention");
    meg_cost_counts_free(c);
    m.run.recompute = MEG_RECOMPUTE_NONE;
    m.schedule.type = MEG_PIPE_ZB_H1;
    c = meg_cost_count(&m);
    equals(c->layer[0].part[0].bwd.gemm_s, 2 * layer_flops, "complete", "products");
    equals(c->layer[0].part[1].bwd.gemm_s, layer_flops, "split", "products");
    equals(c->layer[0].part[1].bwd_weight.gemm_s, layer_flops, "deferred", "products");
    meg_cost_counts_free(c);
}

static void dropout_writes_the_gradient_of_the_residual(void **state)
{
    struct meg_model_conf conf = gpt();
    struct meg_cost_model m = model_of(&conf);
    struct meg_cost_counts *c;

    (void)state;
    m.run.residual_dtype = MEG_DTYPE_BF16;
    c = meg_cost_count(&m); /* the gradient of the residual is only read, to sum the gradient of the bias */
    equals(c->layer[0].part[0].bwd.nbytes, 2 * N * H * (1 + 4) * E + N * F * E + 2 * N * Q * E, "no dropout", "bytes");
    meg_cost_counts_free(c);
    conf.hidden_dropout = 0.1;
    conf.position_embedding_type = MEG_POSITION_ROPE;
    c = meg_cost_count(&m);
    equals(c->layer[0].part[0].bwd.nbytes, 2 * N * H * (2 + 4) * E + N * F * E + 2 * N * Q * E + 2.0 * N * (Q + KV) * E,
           "dropout", "bytes");
    check(&c->embedding.fwd, "embedding, forward", 0, 0, 0, 1, N * H * (2 + 2) * E);
    check(&c->embedding.bwd, "embedding, backward", 0, 0, 0, 1, N * H * (2 * E + E + 2 * DW));
    meg_cost_counts_free(c);
}

/* ---- communication ---------------------------------------------------------------------------------- */

static void check_sent(const struct cost_pass *p, const char *name, double tp, double cp, double bandwidth)
{
    equals(p->sent[MEG_COST_GROUP_TP], tp, name, "bytes in the tensor-parallel group");
    equals(p->sent[MEG_COST_GROUP_CP], cp, name, "bytes in the context-parallel group");
    equals(p->comm_s, (tp + cp) / bandwidth, name, "seconds of collectives");
}

static void two_tensor_parallel_ranks(void **state)
{
    const double all_reduce = N * H * E, stats = 2 * N * sizeof(float); /* 2 ranks send 2 (2 - 1) / 2 times the bytes */
    const struct meg_model_conf conf = gpt();
    struct meg_cost_model m = model_of(&conf);
    struct meg_cost_counts *c;

    (void)state;
    m.layout.tp = m.layout.etp = 2;
    c = meg_cost_count(&m);
    equals(c->layer[0].part[0].fwd.gemm_s, layer_flops / 2, "forward", "products");
    check_sent(&c->layer[0].part[0].fwd, "forward", 2 * all_reduce, 0, 2);
    check_sent(&c->layer[0].part[0].bwd, "backward", 2 * all_reduce, 0, 2);
    check_sent(&c->embedding.fwd, "embedding, forward", N * H * R, 0, 2);
    check_sent(&c->embedding.bwd, "embedding, backward", 0, 0, 2);
    check_sent(&c->heads.bwd, "head", all_reduce + stats, 0, 2);
    equals(c->recv_nbytes, N * H * R, "receive buffers", "bytes"); /* of the largest all-reduce */
    meg_cost_counts_free(c);
}

static void sequence_parallel_ranks(void **state)
{
    const double gather = N / 2 * H * E, residual = N / 2 * H * R, stats = 2 * N * sizeof(float);
    const struct meg_model_conf conf = gpt();
    struct meg_cost_model m = model_of(&conf);
    struct meg_cost_counts *c;

    (void)state;
    m.layout.tp = m.layout.etp = 2;
    m.layout.has_sp = true;
    m.schedule.type = MEG_PIPE_ZB_H1;
    c = meg_cost_count(&m);
    check_sent(&c->layer[0].part[0].fwd, "forward", 4 * gather, 0, 2);
    check_sent(&c->layer[0].part[0].bwd, "backward", 6 * gather, 0, 2);
    check_sent(&c->layer[0].part[1].bwd, "input gradients", 4 * gather, 0, 2);
    check_sent(&c->layer[0].part[1].bwd_weight, "weight gradients", 4 * gather, 0, 2);
    check_sent(&c->embedding.fwd, "embedding, forward", residual, 0, 2);
    check_sent(&c->embedding.bwd, "embedding, backward", residual, 0, 2);
    check_sent(&c->heads.bwd, "head", 2 * gather + stats, 0, 2);
    assert_int_equal(c->boundary[0].n, N / 2 * H);
    meg_cost_counts_free(c);
}

/*
 * Return the FLOPs of a matrix product with the visible scores of the first of two context-parallel ranks, which has
 * the first and the last quarter of the queries.
 */
static double scores_of_first_rank(void)
{
    double pairs = 0;

    for (int p = 0; p < S; p++)
        if (p < S / 4 || p >= S - S / 4)
            pairs += p + 1;
    return 2.0 * B * A * D * pairs;
}

static void context_parallel_ranks(void **state)
{
    static const char *types[] = { "p2p", "all_gather", "a2a" };
    const double n = N / 2, kv = n * 2 * KV, qkv = n * (Q + 2 * KV) / 2 * E, o = n * Q / 2 * E, stats = n * A / 2 * 4;
    /*
     * In a ring, keys and values are copied to a block.  The last quarter of the queries attends to each quarter of the
     * keys separately, so three partial outputs are merged into the first one.  Then the f32 output is converted.  An
     * all-to-all copies rows twice.
     */
    const double merged = 3 * n / 2 * Q / 2 * 4 * 3;
    const double layer_nbytes = n * H * (5 * R + 4 * E) + n * F / 2 * E;
    const double ring = 2 * n * KV * E + merged + n * Q / 2 * (4 + E),
                 a2a = 2 * 2 * (n * (Q + 2 * KV) / 2 + n * Q / 2) * E;
    const double cp_nbytes_fwd[] = { ring, ring, a2a };
    const struct meg_model_conf conf = gpt();
    struct meg_cost_model m = model_of(&conf);
    struct meg_cost_counts *c;

    (void)state;
    m.layout.cp = 2;
    m.layout.tp = m.layout.etp = 2; /* all ranks of a node, so a context-parallel group spans two nodes */
    m.layout.cp_comm_types = (struct meg_str_list){ .v = types, .n = 3 };
    c = meg_cost_count(&m);
    assert_int_equal(c->nlayers, 3);
    for (int i = 0; i < 3; i++) {
        const double fwd[] = { kv / 2 * E, kv / 2 * E, (qkv + o) / 2 };
        const double bwd[] = { kv / 2 * (E + 2 * 4), kv / 2 * (E + 4), (stats + o + qkv) / 2 };
        const struct cost_part *l = &c->layer[i].part[0];

        equals(l->fwd.sent[MEG_COST_GROUP_CP], fwd[i], types[i], "forward, bytes");
        equals(l->bwd.sent[MEG_COST_GROUP_CP], bwd[i], types[i], "backward, bytes");
        equals(l->fwd.nbytes - layer_nbytes, cp_nbytes_fwd[i], types[i], "forward, bytes of operations");
        equals(l->fwd.comm_s, n * H * E * 2 / 2.0 + fwd[i] / 0.125, types[i], "forward, seconds of collectives");
        equals(l->fwd.attention_s, scores_of_first_rank() / 2 * 2 / 0.5, types[i], "forward, attention");
        equals(l->bwd.attention_s, scores_of_first_rank() / 2 * 5 / 0.25, types[i], "backward, attention");
    }
    meg_cost_counts_free(c);
}

static void equal_layers_are_counted_once(void **state)
{
    static const char *types[] = { "p2p", "a2a", "p2p" };
    const struct meg_model_conf conf = gpt();
    struct meg_cost_model m = model_of(&conf);
    struct meg_cost_counts *c = meg_cost_count(&m);

    (void)state;
    assert_int_equal(c->nlayers, 1);
    meg_cost_counts_free(c);
    m.layout.cp = 2;
    m.layout.cp_comm_types = (struct meg_str_list){ .v = types, .n = 3 };
    c = meg_cost_count(&m);
    assert_int_equal(c->nlayers, 2);
    for (int i = 0; i < L; i++)
        assert_int_equal(c->index[i], i % 2);
    meg_cost_counts_free(c);
}

/* ---- operations ---------------------------------------------------------------------------------------- */

/* Return the number of pairs of a query and a key in the window of this query. */
static double count_pairs(const struct meg_attn_desc *d)
{
    double n = 0;

    for (int64_t p = d->q0; p < d->q0 + d->s_q; p++)
        for (int64_t t = d->k0; t < d->k0 + d->s_k; t++)
            n += (d->window_right < 0 || t <= p + d->window_right) && (d->window_left < 0 || t >= p - d->window_left);
    return n;
}

static void only_scores_in_the_window_take_time(void **state)
{
    static const int64_t windows[] = { -1, 0, 1, 3, 7, 100 }, offsets[] = { 0, 1, 5, 20 };
    struct cost_pass pass;
    struct cost_counter counter = { .hw = &simple, .threads = 1, .pass = &pass };

    (void)state;
    for (int i = 0; i < 6 * 6 * 4 * 3; i++) {
        const struct meg_attn_desc d = { .s_q = 6,
                                         .s_k = 9,
                                         .b = 1,
                                         .a = 1,
                                         .g = 1,
                                         .d = 1,
                                         .d_v = 3,
                                         .window_left = windows[i % 6],
                                         .window_right = windows[i / 6 % 6],
                                         .q0 = offsets[i / 36 % 4],
                                         .k0 = offsets[i / 144] };
        const struct meg_heads q = { .dtype = MEG_DTYPE_F32 };

        pass = (struct cost_pass){ 0 };
        cost_count_ops.attn_fwd((struct meg_stream *)(void *)&counter,
                                &(struct meg_attn_fwd_args){ .desc = &d, .o = q, .q = q, .k = q, .v = q });
        assert_true(pass.attention_s == 2 * (1 + 3) * count_pairs(&d) / 0.5);
        assert_true(pass.flops == 2 * (1 + 3) * 6 * 9);
    }
}

/*
 * Members of struct meg_ops that the cost model need not count, because they are no operations of a forward or backward
 * pass: free memory, transfers through pinned memory, streams, events, graphs, sampling.
 */
static const size_t not_in_a_pass[] = {
    offsetof(struct meg_ops, free_nbytes),    offsetof(struct meg_ops, alloc_pinned),
    offsetof(struct meg_ops, release_pinned), offsetof(struct meg_ops, upload_pinned),
    offsetof(struct meg_ops, download),       offsetof(struct meg_ops, stream_create),
    offsetof(struct meg_ops, stream_destroy), offsetof(struct meg_ops, event_is_done),
    offsetof(struct meg_ops, graph_begin),    offsetof(struct meg_ops, graph_end),
    offsetof(struct meg_ops, graph_launch),   offsetof(struct meg_ops, graph_destroy),
    offsetof(struct meg_ops, sample_nbytes),
};

static bool is_in_a_pass(size_t offset)
{
    for (size_t i = 0; i < sizeof not_in_a_pass / sizeof *not_in_a_pass; i++)
        if (not_in_a_pass[i] == offset)
            return false;
    return true;
}

/* All members from logits_rows on are pointers to functions, so they have equal sizes. */
static void every_operation_of_a_pass_is_counted(void **state)
{
    void (*f)(void);

    (void)state;
    for (size_t at = offsetof(struct meg_ops, logits_rows); at < sizeof cost_count_ops; at += sizeof f) {
        memcpy(&f, (const char *)&cost_count_ops + at, sizeof f);
        if (!f && is_in_a_pass(at))
            fail_msg("the operation at offset %zu of struct meg_ops is not in cost_count_ops; count it, or add it to "
                     "not_in_a_pass",
                     at);
    }
}

/* Test single operations that the models above do not call, or call only together with others. */
static void operations_count_what_they_read_and_write(void **state)
{
    const struct meg_ops *op = &cost_count_ops;
    const struct meg_attn_desc d = {
        .s_q = 3, .s_k = 5, .b = 2, .a = 4, .g = 2, .d = 7, .d_v = 7, .window_left = -1, .window_right = -1
    };
    const struct meg_heads f32 = { .dtype = MEG_DTYPE_F32 }, bf16 = { .dtype = MEG_DTYPE_BF16 };
    const struct meg_qk_norm norm = { .s = 3, .b = 2, .g = 2, .heads = 5, .d = 7 };
    struct cost_pass pass = { 0 };
    struct cost_counter counter = { .hw = &simple, .threads = 1, .pass = &pass };
    struct meg_stream *st = (struct meg_stream *)(void *)&counter;

#define COUNTS(name, want, ...)                                                                                        \
    (pass.nbytes = 0, op->name(st, &(struct meg_##name##_args){ __VA_ARGS__ }),                                        \
     equals(pass.nbytes, want, #name, "bytes"))
    (void)state;
    op->zero(st, NULL, 100);
    equals(pass.nbytes, 100, "zero", "bytes");
    COUNTS(cast, 60, .dst_type = MEG_DTYPE_F32, .src_type = MEG_DTYPE_BF16, .n = 10);
    COUNTS(copy_heads, 3 * 2 * 2 * 7 * 2 * 2, .dst = bf16, .src = bf16, .s = 3, .b = 2, .g = 2, .d = 7);
    COUNTS(attn_merge, 3 * 3 * 2 * 4 * 7 * 4, .desc = &d, .o = f32, .o_part = f32);
    COUNTS(attn_delta, 3 * 2 * 4 * 7 * (2 + 4), .desc = &d, .d_o = bf16, .o = f32);
    COUNTS(qk_norm_fwd, 3 * 2 * 2 * 5 * 7 * (4 + 2), .q = &norm, .y = f32, .x = bf16);
    COUNTS(qk_norm_bwd, 3 * 2 * 2 * 5 * 7 * (4 + 4 + 2), .q = &norm, .dx = f32, .dy = f32, .x = bf16);
#undef COUNTS
    counter.stores_scores = true; /* forward: 2 products per head, 6.5 passes over the scores; backward: 4 and 9.5 */
    MEG_CALL(op, st, attn_fwd, .desc = &d, .o = bf16, .q = bf16, .k = bf16, .v = bf16);
    equals(pass.attention_s, 2 * 4 * (2.0 * 3 * 2 * 7 * 5) + 6.5 * 3 * 2 * 4 * 5 * 2, "stored scores, forward",
           "seconds");
    pass.attention_s = 0;
    MEG_CALL(op, st, attn_bwd, .desc = &d, .q = bf16, .d_o = bf16, .o = bf16);
    equals(pass.attention_s, 4 * 4 * (2.0 * 3 * 2 * 7 * 5) + 9.5 * 3 * 2 * 4 * 5 * 2, "stored scores, backward",
           "seconds");
}

static void a_product_takes_longer_with_partial_tiles_and_small_dimensions(void **state)
{
    static const struct {
        double m, k, n, seconds;
    } cases[] = {
        { 128, 256, 64, 2.0 * 128 * 64 * 256 / (8 * 0.5 * 64 / (64 + 32)) },
        { 120, 256, 64, 2.0 * 128 * 64 * 256 / (8 * 0.5 * 64 / (64 + 32)) }, /* 120 rows take as long as 128 */
        { 128, 256, 3, 2.0 * 128 * 16 * 256 / (8 * 0.5 * 16 / (16 + 32)) },
        { 128, 5, 64, 2.0 * 128 * 64 * 5 / (8 * 0.5 * 5 / (5 + 32)) },
    };
    const struct meg_hardware hw = {
        .flops = { [MEG_DTYPE_F32] = 2 }, .gemm_efficiency = 0.5, .gemm_half_size = 32, .tile = 16
    };
    const struct cost_counter counter = { .hw = &hw, .threads = 4 };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        equals(cost_gemm_time(&counter, MEG_DTYPE_F32, cases[i].m, cases[i].k, cases[i].n), cases[i].seconds, "product",
               "seconds");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_of_gpt_2),
        cmocka_unit_test(embedding_and_head_of_gpt_2),
        cmocka_unit_test(a_layer_of_llama),
        cmocka_unit_test(bert_attends_to_all_keys_and_has_two_heads),
        cmocka_unit_test(layers_of_t5_have_the_lengths_of_their_stacks),
        cmocka_unit_test(stages_of_t5_send_the_tensors_that_the_next_one_reads),
        cmocka_unit_test(recomputation_and_deferral_change_the_backward_pass),
        cmocka_unit_test(dropout_writes_the_gradient_of_the_residual),
        cmocka_unit_test(two_tensor_parallel_ranks),
        cmocka_unit_test(sequence_parallel_ranks),
        cmocka_unit_test(context_parallel_ranks),
        cmocka_unit_test(equal_layers_are_counted_once),
        cmocka_unit_test(only_scores_in_the_window_take_time),
        cmocka_unit_test(every_operation_of_a_pass_is_counted),
        cmocka_unit_test(operations_count_what_they_read_and_write),
        cmocka_unit_test(a_product_takes_longer_with_partial_tiles_and_small_dimensions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
