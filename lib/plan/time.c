/*
 * How long a step takes.  Every figure is a count of operations or bytes over a rate of the hardware's row:
 * matrix products by their size, attention by its causal half, passes over activations by the bytes they read
 * and write, collectives by what they send.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "plan/internal.h"

/* Seconds of a micro-batch in a part of the model. */
struct work {
    double products, attention, passes, collectives;
};

struct steps {
    struct work fwd, input, weight; /* the latter two: backward */
};

struct rates {
    const struct meg_hardware *hw;
    double flops;
    double element; /* bytes of one of the activations */
};

static double all_of(struct work w)
{
    return w.products + w.attention + w.passes + w.collectives;
}

static void add(struct work *to, struct work w, double times)
{
    to->products += times * w.products;
    to->attention += times * w.attention;
    to->passes += times * w.passes;
    to->collectives += times * w.collectives;
}

static void add_steps(struct steps *to, const struct steps *s, double times)
{
    add(&to->fwd, s->fwd, times);
    add(&to->input, s->input, times);
    add(&to->weight, s->weight, times);
}

/* [n, in] times [in, out], computed in whole tiles of the result. */
static double product(const struct rates *r, double n, double in, double out)
{
    const double tile = r->hw->tile, least = fmin(n, fmin(in, out));
    const double done = ceil(n / tile) * tile * ceil(out / tile) * tile;

    return 2 * done * in / (r->flops * r->hw->gemm * least / (least + r->hw->gemm_half));
}

/*
 * Bytes a second of a rank in a group of so many ranks, stride apart.  Of the ranks of a node that are in it each
 * has its own way out.
 */
static double bandwidth(const struct meg_hardware *hw, int64_t stride, int64_t size)
{
    const int64_t near = stride < hw->node ? hw->node / stride : 1;

    return near >= size ? hw->link_bw : fmin(hw->link_bw, (double)near * hw->net_bw);
}

/* ---- attention -------------------------------------------------------------------------------- */

/* n queries of a rank's heads against s keys, half of which they see. */
static struct work attend(const struct rates *r, const struct meg_cost_model *p, bool is_backward)
{
    const struct meg_layout *l = &p->layout;
    const double n = (double)cost_local_rows(p).n, s = (double)p->run.s, d = (double)p->model->kv_channels;
    const double heads = (double)p->model->num_attention_heads / (double)l->tp, scores = n * s * heads;
    const double rate = is_backward ? r->hw->attention_bwd : r->hw->attention_fwd;
    struct work w = { 0 };

    if (!p->keeps_scores) {
        w.attention = (is_backward ? 5 : 2) * scores * d / (r->flops * rate);
        return w;
    }
    /* products over all scores, which are written, softmaxed, dropped out (masks are bytes) and read again */
    w.attention = (is_backward ? 4 : 2) * heads * product(r, n, d, s);
    w.attention += (is_backward ? 9.5 : 6.5) * scores * r->element / r->hw->memory_bw;
    return w;
}

/* ---- parts of the model ----------------------------------------------------------------------- */

/* Layer number i of the model. */
static struct steps layer(const struct rates *r, const struct meg_cost_model *p, int64_t i)
{
    const struct meg_layout *l = &p->layout;
    const struct meg_gpt_conf *c = p->model;
    const double tp = (double)l->tp, n = (double)cost_local_rows(p).n, d = (double)c->kv_channels;
    const double h = (double)c->hidden_size, ad = (double)c->num_attention_heads * d / tp;
    const double qkv = ad + 2 * (double)c->num_query_groups * d / tp, f = (double)c->ffn_hidden_size / tp;
    const double fc1 = c->swiglu ? 2 * f : f, rows = (double)cost_local_rows(p).m * h;
    const double rotated = meg_gpt_is_rotary(c) ? 2 * n * (qkv - (qkv - ad) / 2) : 0;
    const double products = product(r, n, h, qkv) + product(r, n, ad, h) + product(r, n, h, fc1) + product(r, n, f, h);
    const struct cost_comm tensor = cost_tp_comm(p, false), context = cost_cp_comm(p, i);
    const double tensor_bw = bandwidth(r->hw, 1, l->tp), context_bw = bandwidth(r->hw, l->tp, l->cp);
    const double pass = r->element / r->hw->memory_bw;
    struct steps s = { 0 };

    s.fwd = attend(r, p, false);
    s.input = attend(r, p, true);
    s.fwd.products = s.input.products = s.weight.products = products;
    /* two norms, each with a residual added; the activation, in a product's last step or by itself */
    s.fwd.passes = (9 * rows + n * (c->swiglu ? fc1 + f : f) + rotated) * pass;
    s.input.passes = (12 * rows + n * (c->swiglu ? 2 * fc1 + f : f) + rotated + 2 * n * ad) * pass;
    s.fwd.collectives = tensor.fwd / tensor_bw + context.fwd / context_bw;
    s.input.collectives = tensor.bwd_input / tensor_bw + context.bwd_input / context_bw;
    s.weight.collectives = tensor.bwd_weight / tensor_bw;
    if (p->run.recompute == MEG_RECOMPUTE_SELECTIVE)
        add(&s.input, attend(r, p, false), 1);
    return s;
}

static struct steps embedding(const struct rates *r, const struct meg_cost_model *p)
{
    const struct cost_comm sent = cost_embedding_comm(p);
    const double rows = (double)(cost_local_rows(p).m * p->model->hidden_size), bw = bandwidth(r->hw, 1, p->layout.tp);
    struct steps s = { 0 };

    s.fwd.passes = s.input.passes = 3 * rows * r->element / r->hw->memory_bw;
    s.fwd.collectives = sent.fwd / bw;
    s.input.collectives = sent.bwd_input / bw;
    return s;
}

static struct steps head(const struct rates *r, const struct meg_cost_model *p)
{
    const double n = (double)cost_local_rows(p).n, h = (double)p->model->hidden_size;
    const double v = (double)p->model->vocab_size / (double)p->layout.tp, rows = (double)cost_local_rows(p).m * h;
    struct steps s = { 0 };

    s.input.products = 3 * product(r, n, h, v);
    s.input.passes = (3 * n * v + 8 * rows) * r->element / r->hw->memory_bw;
    s.input.collectives = cost_lm_head_comm(p).bwd_input / bandwidth(r->hw, 1, p->layout.tp);
    return s;
}

/* A chunk of a stage. */
static struct steps part(const struct rates *r, const struct meg_cost_model *p, int64_t stage, int64_t chunk)
{
    struct steps s = { 0 }, x;
    int64_t first, n, inputs;

    meg_layout_layers(&p->layout, stage, chunk, &first, &n);
    const int64_t again = cost_recomputed_layers(&p->run, n, &inputs);

    for (int64_t i = 0; i < n; i++) {
        if (i == 0 || p->layout.cp_kinds.n > 1)
            x = layer(r, p, first + i);
        add_steps(&s, &x, 1);
        if (i < again)
            add(&s.input, x.fwd, 1);
    }
    if (meg_layout_is_first(stage, chunk)) {
        x = embedding(r, p);
        add_steps(&s, &x, 1);
    }
    if (meg_layout_is_last(&p->layout, stage, chunk)) {
        x = head(r, p);
        add_steps(&s, &x, 1);
    }
    return s;
}

/* ---- a step ----------------------------------------------------------------------------------- */

static double time_of(const struct steps *s)
{
    return all_of(s->fwd) + all_of(s->input) + all_of(s->weight);
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
    struct meg_pipe_schedule_conf few = cost_short_schedule(c, &groups, &group), more = few;
    const double seconds = makespan(&few, t);

    if (groups == 0)
        return seconds;
    more.microbatches += group;
    return seconds + (double)groups * (makespan(&more, t) - seconds);
}

/* Seconds until all micro-batches are through all stages, of whose parts each takes what it takes. */
static double play(const struct meg_cost_model *p, const struct steps *each, double transfer)
{
    const int64_t parts = p->layout.pp * p->layout.vp;
    struct meg_pipe_schedule_times t = { .transfer = transfer };
    struct steps all = { 0 };
    double *weight, mean, seconds;

    if (parts == 1)
        return (double)p->schedule.microbatches * time_of(each);
    for (int64_t i = 0; i < parts; i++)
        add_steps(&all, &each[i], 1 / (double)parts);
    t.fwd = all_of(all.fwd);
    t.bwd_input = all_of(all.input);
    t.bwd_weight = all_of(all.weight);
    mean = time_of(&all);
    t.weight = weight = meg_new((size_t)parts * sizeof *weight);
    for (int64_t i = 0; i < parts; i++)
        weight[i] = time_of(&each[i]) / mean;
    seconds = cost_makespan(&p->schedule, &t);
    free(weight);
    return seconds;
}

/* Micro-batches through the pipeline; *busy is what its busiest stage has to do for one. */
static double pipeline(struct work *busy, const struct meg_cost_model *p, const struct rates *r, bool is_played)
{
    const struct meg_layout *l = &p->layout;
    const int64_t stride = l->is_tp_pp_dp ? l->tp : l->tp * l->cp * l->dp;
    const double boundary =
        (double)(cost_local_rows(p).m * p->model->hidden_size) * (double)meg_dtype_size(p->run.residual_dtype);
    struct steps *each = meg_new((size_t)(l->pp * l->vp) * sizeof *each);
    double busiest = 0, seconds;

    for (int64_t stage = 0; stage < l->pp; stage++) {
        struct work here = { 0 };

        for (int64_t chunk = 0; chunk < l->vp; chunk++) {
            struct steps *s = &each[chunk * l->pp + stage];

            *s = part(r, p, stage, chunk);
            add(&here, s->fwd, 1);
            add(&here, s->input, 1);
            add(&here, s->weight, 1);
        }
        if (all_of(here) > busiest) {
            busiest = all_of(here);
            *busy = here;
        }
    }
    if (is_played)
        seconds = play(p, each, boundary / bandwidth(r->hw, stride, 2));
    else
        seconds = busiest * ((double)p->schedule.microbatches + (double)(l->pp - 1) / (double)l->vp);
    free(each);
    return seconds;
}

/*
 * Bytes that an update reads and writes for each element: a weight, its gradient, which is zeroed, and two averages;
 * and the copy that the model runs with, where that is another.
 */
static double update_nbytes(const struct meg_cost_model *p)
{
    const double copy = p->run.dtype == MEG_DTYPE_F32 ? 0 : (double)meg_dtype_size(p->run.dtype);

    return 28 + (double)meg_dtype_size(p->run.grad_dtype) + copy;
}

/*
 * What is left of sums and gathers when what they overlap is over: a micro-batch's backward pass and the next forward
 * pass.
 */
static double reduction(const struct meg_cost_model *p, const struct meg_hardware *hw, double backward, double forward,
                        double *update)
{
    const struct meg_layout *l = &p->layout;
    const double bw = bandwidth(hw, l->is_tp_pp_dp ? l->tp * l->pp : l->tp, l->dp * l->cp);
    struct meg_rank_coords at[3];
    const int n = meg_cost_representatives(at, l);
    double most = 0;

    *update = 0;
    for (int i = 0; i < n; i++) {
        const struct cost_step_comm s = cost_count_step_comm(p, at[i]);
        const double sums = s.sums / bw, gather = s.gather / bw;

        most = fmax(most, fmax(0, sums - (p->overlaps_sums ? backward : 0)) +
                              fmax(0, gather - (p->overlaps_gather ? forward : 0)) +
                              s.replicated / bandwidth(hw, 1, l->tp) + s.tied / bandwidth(hw, hw->node, 2));
        *update = fmax(*update, s.updated * update_nbytes(p) / hw->memory_bw);
    }
    return most;
}

static struct rates rates_of(const struct meg_cost_model *p, const struct meg_hardware *hw, int threads)
{
    const struct rates r = { hw, hw->flops[p->run.dtype] * threads, (double)meg_dtype_size(p->run.dtype) };

    return r;
}

double meg_cost_time_bound(const struct meg_cost_model *p, const struct meg_hardware *hw, int threads)
{
    const struct rates r = rates_of(p, hw, threads);
    struct work busy = { 0 };

    return pipeline(&busy, p, &r, false);
}

void meg_cost_step_time(struct meg_cost_time *t, const struct meg_cost_model *p, const struct meg_hardware *hw,
                        int threads, bool is_played)
{
    const struct rates r = rates_of(p, hw, threads);
    const double m = (double)p->schedule.microbatches;
    const double samples = m * (double)(p->run.b * p->layout.dp);
    struct work busy = { 0 };
    const double seconds = pipeline(&busy, p, &r, is_played);

    memset(t, 0, sizeof *t);
    t->products = m * busy.products;
    t->attention = m * busy.attention;
    t->passes = m * busy.passes;
    t->collectives = m * busy.collectives;
    t->bubble = p->layout.pp > 1 ? seconds / (m * all_of(busy)) - 1 : 0;
    t->reduction = reduction(p, hw, all_of(busy) * 2 / 3, all_of(busy) / 3, &t->update);
    t->step = seconds + t->reduction + t->update;
    t->mfu =
        meg_gpt_flops(p->model, 1, p->run.s) * samples / (t->step * r.flops * (double)meg_layout_world(&p->layout));
}
