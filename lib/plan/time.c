/*
 * Cost model of the time of a step.  Each time is a number of operations or bytes divided by a rate of the hardware.
 * The numbers are the FLOPs of GEMMs, the FLOPs of the unmasked half of causal attention, the bytes that memory-bound
 * operations read and write, and the bytes that collectives send.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "plan/internal.h"

/* Time in seconds of one pass of a micro-batch: the forward pass, or one part of the backward pass. */
struct pass_time {
    double gemm, attention, memory_bound, comm;
};

/* Times of the passes of a micro-batch through one or more layers, the embedding or the head. */
struct chunk_time {
    struct pass_time fwd, bwd_input, bwd_weight;
};

struct rates {
    const struct meg_hardware *hw;
    double flops;          /* peak FLOP/s of a rank in the dtype of the run */
    double element_nbytes; /* bytes per element of activations */
};

static double total(struct pass_time w)
{
    return w.gemm + w.attention + w.memory_bound + w.comm;
}

static void add_pass(struct pass_time *to, struct pass_time w, double times)
{
    to->gemm += times * w.gemm;
    to->attention += times * w.attention;
    to->memory_bound += times * w.memory_bound;
    to->comm += times * w.comm;
}

static void add_chunk(struct chunk_time *to, const struct chunk_time *s, double times)
{
    add_pass(&to->fwd, s->fwd, times);
    add_pass(&to->bwd_input, s->bwd_input, times);
    add_pass(&to->bwd_weight, s->bwd_weight, times);
}

/* Return the time in seconds of the GEMM [n, in] x [in, out].  Partial output tiles take as long as complete ones. */
static double gemm_time(const struct rates *r, double n, double in, double out)
{
    const double tile = r->hw->tile, smallest = fmin(n, fmin(in, out));
    const double output = ceil(n / tile) * tile * ceil(out / tile) * tile;

    return 2 * output * in / (r->flops * r->hw->gemm_efficiency * smallest / (smallest + r->hw->gemm_half_size));
}

/*
 * Return the bytes/s that a rank sends in a group of `size` ranks.  The world ranks of the group are r, r + stride,
 * ..., r + (size - 1) * stride.  In a group over several nodes, the bandwidth is net_bw times the number of the group's
 * ranks in a node, but at most link_bw.
 */
static double bandwidth(const struct meg_hardware *hw, int64_t stride, int64_t size)
{
    const int64_t near = stride < hw->ranks_per_node ? hw->ranks_per_node / stride : 1;

    return near >= size ? hw->link_bw : fmin(hw->link_bw, (double)near * hw->net_bw);
}

/* ---- attention -------------------------------------------------------------------------------- */

/*
 * Estimate the time of attention of a micro-batch in one layer.  FlashAttention computes only the half of the scores
 * that the causal mask leaves.
 */
static struct pass_time attention_time(const struct rates *r, const struct meg_cost_model *cost, bool is_backward)
{
    const struct meg_model_widths widths = meg_model_layer_widths(cost->model, cost->layout.tp);
    const double n = (double)cost_local_rows(cost).rows, s = (double)cost->run.s, d = (double)widths.d;
    const double heads = (double)widths.a, scores = n * s * heads;
    const double rate = is_backward ? r->hw->attention_bwd_efficiency : r->hw->attention_fwd_efficiency;
    struct pass_time w = { 0 };

    if (!cost->stores_scores) {
        w.attention = (is_backward ? 5 : 2) * scores * d / (r->flops * rate);
        return w;
    }
    /* without FlashAttention, all scores and the byte masks of dropout are written to memory and read again */
    w.attention = (is_backward ? 4 : 2) * heads * gemm_time(r, n, d, s);
    w.attention += (is_backward ? 9.5 : 6.5) * scores * r->element_nbytes / r->hw->memory_bw;
    return w;
}

/* ---- parts of the model ----------------------------------------------------------------------- */

/* Estimate the times of the forward and backward passes through layer i of the model. */
static struct chunk_time layer_time(const struct rates *r, const struct meg_cost_model *cost, int64_t i)
{
    const struct meg_layout *l = &cost->layout;
    const struct meg_model_conf *c = cost->model;
    const struct meg_model_widths w = meg_model_layer_widths(c, l->tp);
    const double n = (double)cost_local_rows(cost).rows, h = (double)w.h, q = (double)w.q, qkv = (double)w.qkv;
    const double f = (double)w.f, fc1 = (double)w.fc1, rows = (double)cost_local_rows(cost).residual_rows * h;
    const double rotated = meg_model_is_rotary(c) ? 2 * n * (double)(w.q + w.kv) : 0;
    const double gemm =
        gemm_time(r, n, h, qkv) + gemm_time(r, n, q, h) + gemm_time(r, n, h, fc1) + gemm_time(r, n, f, h);
    const struct cost_comm tensor = cost_tp_comm(cost, false), context = cost_cp_comm(cost, i);
    const double tensor_bw = bandwidth(r->hw, 1, l->tp), context_bw = bandwidth(r->hw, l->tp, l->cp);
    const double pass = r->element_nbytes / r->hw->memory_bw;
    const bool add_bwd_writes = c->hidden_dropout > 0 || cost->run.residual_dtype != cost->run.dtype;
    const double add_bwd = add_bwd_writes ? 2 : c->has_bias ? 1 : 0; /* passes of meg_add_bwd over the rows */
    struct chunk_time s = { 0 };

    s.fwd = attention_time(r, cost, false);
    s.bwd_input = attention_time(r, cost, true);
    s.fwd.gemm = s.bwd_input.gemm = s.bwd_weight.gemm = gemm;
    /*
     * The sums count the elements that these operations read and write: two norms, each with a residual addition; the
     * activation function; rotary position embedding.  Backward has the additional term 2 * n * q: delta is
     * computed from the output of attention and the gradient of this output.
     */
    s.fwd.memory_bound = (9 * rows + n * (c->swiglu ? fc1 + f : f) + rotated) * pass;
    s.bwd_input.memory_bound =
        ((8 + 2 * add_bwd) * rows + n * (c->swiglu ? 2 * fc1 + f : f) + rotated + 2 * n * q) * pass;
    s.fwd.comm = tensor.fwd / tensor_bw + context.fwd / context_bw;
    s.bwd_input.comm = tensor.bwd_input / tensor_bw + context.bwd_input / context_bw;
    s.bwd_weight.comm = tensor.bwd_weight / tensor_bw;
    if (cost->run.recompute == MEG_RECOMPUTE_SELECTIVE)
        add_pass(&s.bwd_input, attention_time(r, cost, false), 1);
    return s;
}

static struct chunk_time embedding_time(const struct rates *r, const struct meg_cost_model *cost)
{
    const struct cost_comm comm = cost_embedding_comm(cost);
    const double rows = (double)(cost_local_rows(cost).residual_rows * cost->model->hidden_size),
                 bw = bandwidth(r->hw, 1, cost->layout.tp);
    struct chunk_time s = { 0 };

    s.fwd.memory_bound = s.bwd_input.memory_bound = 3 * rows * r->element_nbytes / r->hw->memory_bw;
    s.fwd.comm = comm.fwd / bw;
    s.bwd_input.comm = comm.bwd_input / bw;
    return s;
}

static struct chunk_time lm_head_time(const struct rates *r, const struct meg_cost_model *cost)
{
    const double n = (double)cost_local_rows(cost).rows, h = (double)cost->model->hidden_size;
    const double v = (double)cost->model->vocab_size / (double)cost->layout.tp,
                 rows = (double)cost_local_rows(cost).residual_rows * h;
    struct chunk_time s = { 0 };

    s.bwd_input.gemm = 3 * gemm_time(r, n, h, v);
    s.bwd_input.memory_bound = (3 * n * v + 8 * rows) * r->element_nbytes / r->hw->memory_bw;
    s.bwd_input.comm = cost_heads_comm(cost).bwd_input / bandwidth(r->hw, 1, cost->layout.tp);
    return s;
}

/* Estimate the times of the forward and backward passes through a chunk of a stage. */
static struct chunk_time chunk_time(const struct rates *r, const struct meg_cost_model *cost, int64_t stage,
                                    int64_t chunk)
{
    struct chunk_time s = { 0 }, x;
    int64_t first, n, inputs;

    meg_layout_layers(&cost->layout, stage, chunk, &first, &n);
    const int64_t num_recomputed = cost_recomputed_layers(&cost->run, n, &inputs);

    for (int64_t i = 0; i < n; i++) {
        if (i == 0 || cost->layout.cp_comm_types.n > 1)
            x = layer_time(r, cost, first + i);
        add_chunk(&s, &x, 1);
        if (i < num_recomputed)
            add_pass(&s.bwd_input, x.fwd, 1);
    }
    if (meg_layout_is_first(stage, chunk)) {
        x = embedding_time(r, cost);
        add_chunk(&s, &x, 1);
    }
    if (meg_layout_is_last(&cost->layout, stage, chunk)) {
        x = lm_head_time(r, cost);
        add_chunk(&s, &x, 1);
    }
    return s;
}

/* ---- a step ----------------------------------------------------------------------------------- */

static double chunk_total(const struct chunk_time *s)
{
    return total(s->fwd) + total(s->bwd_input) + total(s->bwd_weight);
}

struct meg_pipe_schedule_conf cost_short_schedule(const struct meg_pipe_schedule_conf *c, int64_t *groups,
                                                  int64_t *group)
{
    struct meg_pipe_schedule_conf shorter = *c;
    int64_t limit;

    *group = c->microbatch_group ? c->microbatch_group : c->stages;
    limit = 4 * *group;
    *groups = c->microbatches > limit ? (c->microbatches - limit) / *group : 0;
    shorter.microbatches -= *groups * *group;
    return shorter;
}

static double makespan(const struct meg_pipe_schedule_conf *c, const struct meg_pipe_schedule_times *t)
{
    struct meg_pipe_schedule_cost cost = { 0 };

    meg_pipe_schedule_estimate(c, t, &cost);
    return cost.makespan;
}

double cost_makespan(const struct meg_pipe_schedule_conf *c, const struct meg_pipe_schedule_times *t)
{
    int64_t groups, group;
    struct meg_pipe_schedule_conf shorter = cost_short_schedule(c, &groups, &group), longer = shorter;
    const double seconds = makespan(&shorter, t);

    if (groups == 0)
        return seconds;
    longer.microbatches += group;
    return seconds + (double)groups * (makespan(&longer, t) - seconds);
}

/*
 * Simulate the pipeline schedule, and return its time in seconds.  A transfer between two stages takes `transfer`
 * seconds.  `each` has the times of the virtual stages in order (parallel/schedule.h): chunk 0 of each stage, then chunk
 * 1 of each stage, ...
 */
static double simulate_pipeline(const struct meg_cost_model *cost, const struct chunk_time *each, double transfer)
{
    const int64_t nchunks = cost->layout.pp * cost->layout.vp;
    struct meg_pipe_schedule_times t = { .transfer = transfer };
    struct chunk_time average = { 0 };
    double *weight, mean, seconds;

    if (nchunks == 1)
        return (double)cost->schedule.microbatches * chunk_total(each);
    for (int64_t i = 0; i < nchunks; i++)
        add_chunk(&average, &each[i], 1 / (double)nchunks);
    t.fwd = total(average.fwd);
    t.bwd_input = total(average.bwd_input);
    t.bwd_weight = total(average.bwd_weight);
    mean = chunk_total(&average);
    t.weight = weight = meg_new((size_t)nchunks * sizeof *weight);
    for (int64_t i = 0; i < nchunks; i++)
        weight[i] = chunk_total(&each[i]) / mean;
    seconds = cost_makespan(&cost->schedule, &t);
    free(weight);
    return seconds;
}

/*
 * Return the time in seconds of the forward and backward passes of a step.  Set *busy to the time of one micro-batch on
 * the busiest stage.
 */
static double pipeline_time(struct pass_time *busy, const struct meg_cost_model *cost, const struct rates *r,
                            bool simulate)
{
    const struct meg_layout *l = &cost->layout;
    const int64_t stride = l->pp_before_dp ? l->tp : l->tp * l->cp * l->dp;
    const double boundary_nbytes = (double)(cost_local_rows(cost).residual_rows * cost->model->hidden_size) *
                                   (double)meg_dtype_size(cost->run.residual_dtype);
    struct chunk_time *each = meg_new((size_t)(l->pp * l->vp) * sizeof *each);
    double busiest = 0, seconds;

    for (int64_t stage = 0; stage < l->pp; stage++) {
        struct pass_time stage_time = { 0 };

        for (int64_t chunk = 0; chunk < l->vp; chunk++) {
            struct chunk_time *s = &each[chunk * l->pp + stage];

            *s = chunk_time(r, cost, stage, chunk);
            add_pass(&stage_time, s->fwd, 1);
            add_pass(&stage_time, s->bwd_input, 1);
            add_pass(&stage_time, s->bwd_weight, 1);
        }
        if (total(stage_time) > busiest) {
            busiest = total(stage_time);
            *busy = stage_time;
        }
    }
    if (simulate)
        seconds = simulate_pipeline(cost, each, boundary_nbytes / bandwidth(r->hw, stride, 2));
    else
        seconds = busiest * ((double)cost->schedule.microbatches + (double)(l->pp - 1) / (double)l->vp);
    free(each);
    return seconds;
}

/*
 * Return the bytes per element that an update with AdamW reads and writes if the optimizer has f32 main parameters and
 * moments: 24 for the f32 weight and two f32 moments, which are read and written; twice the gradient, which is read and
 * zeroed; and once a bf16 or f16 weight.
 */
static double update_nbytes(const struct meg_cost_model *cost)
{
    const double model_weight = cost->run.dtype == MEG_DTYPE_F32 ? 0 : (double)meg_dtype_size(cost->run.dtype);

    return 24 + 2 * (double)meg_dtype_size(cost->run.grad_dtype) + model_weight;
}

/*
 * Return the time of gradient reduction and parameter all-gather that does not overlap with computation.  With
 * overlaps_grad_reduce, the reduction runs during one backward pass of `backward` seconds.  With overlaps_param_gather,
 * the all-gather runs during one forward pass of `forward` seconds.  Set *update to the time of the optimizer update.
 */
static double step_comm_time(const struct meg_cost_model *cost, const struct meg_hardware *hw, double backward,
                             double forward, double *update)
{
    const struct meg_layout *l = &cost->layout;
    const double bw = bandwidth(hw, l->pp_before_dp ? l->tp * l->pp : l->tp, l->dp * l->cp);
    double most = 0;

    *update = 0;
    for (int64_t stage = 0; stage < l->pp; stage++) {
        if (!meg_cost_is_representative(l, stage))
            continue;
        const struct cost_step_comm s = cost_count_step_comm(cost, (struct meg_rank_coords){ .pp = stage });
        const double reduce = s.grad_reduce / bw, gather = s.param_gather / bw;

        most = fmax(most, fmax(0, reduce - (cost->overlaps_grad_reduce ? backward : 0)) +
                              fmax(0, gather - (cost->overlaps_param_gather ? forward : 0)) +
                              s.sp_grad_reduce / bandwidth(hw, 1, l->tp) +
                              s.embedding_grad / bandwidth(hw, hw->ranks_per_node, 2));
        *update = fmax(*update, s.num_updated * update_nbytes(cost) / hw->memory_bw);
    }
    return most;
}

static struct rates make_rates(const struct meg_cost_model *cost, const struct meg_hardware *hw, int threads)
{
    const struct rates r = { hw, hw->flops[cost->run.dtype] * threads, (double)meg_dtype_size(cost->run.dtype) };

    return r;
}

double meg_cost_time_bound(const struct meg_cost_model *cost, const struct meg_hardware *hw, int threads)
{
    const struct rates r = make_rates(cost, hw, threads);
    struct pass_time busy = { 0 };

    return pipeline_time(&busy, cost, &r, false);
}

void meg_cost_step_time(struct meg_cost_time *t, const struct meg_cost_model *cost, const struct meg_hardware *hw,
                        int threads, bool simulate)
{
    const struct rates r = make_rates(cost, hw, threads);
    const double m = (double)cost->schedule.microbatches;
    const double samples = m * (double)(cost->run.b * cost->layout.dp);
    struct pass_time busy = { 0 };
    const double seconds = pipeline_time(&busy, cost, &r, simulate);

    memset(t, 0, sizeof *t);
    t->gemm = m * busy.gemm;
    t->attention = m * busy.attention;
    t->memory_bound = m * busy.memory_bound;
    t->comm = m * busy.comm;
    t->bubble = cost->layout.pp > 1 ? seconds / (m * total(busy)) - 1 : 0;
    t->grad_reduce = step_comm_time(cost, hw, total(busy) * 2 / 3, total(busy) / 3, &t->update);
    t->step = seconds + t->grad_reduce + t->update;
    t->mfu = meg_model_flops(cost->model, 1, cost->run.s, cost->run.s_enc) * samples /
             (t->step * r.flops * (double)meg_layout_world(&cost->layout));
}
