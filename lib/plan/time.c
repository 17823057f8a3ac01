/*
 * time.c - cost model of the time of a step.  The time of the forward and backward passes follows from the counts of
 * each chunk (count_model.h) and the pipeline schedule.  The times of gradient reduction and of the update are added to
 * it.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "plan/internal.h"

/* Return the time in seconds of a pass. */
static double pass_time(const struct meg_cost_model *cost, const struct cost_pass *p)
{
    return p->gemm_s + p->attention_s + p->nbytes / cost->hw->memory_bw + p->comm_s;
}

static double part_time(const struct meg_cost_model *cost, const struct cost_part *p)
{
    return pass_time(cost, &p->fwd) + pass_time(cost, &p->bwd) + pass_time(cost, &p->bwd_weight);
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
 * seconds.  `each` has the counts of the virtual stages in order (parallel/schedule.h): chunk 0 of each stage, then
 * chunk 1 of each stage, ...
 */
static double simulate_pipeline(const struct meg_cost_model *cost, const struct cost_part *each, double transfer)
{
    const int64_t nchunks = cost->layout.pp * cost->layout.vp;
    struct meg_pipe_schedule_times t = { .transfer = transfer };
    struct cost_part average = { 0 };
    double *weight, mean, seconds;

    if (nchunks == 1)
        return (double)cost->schedule.microbatches * part_time(cost, each);
    for (int64_t i = 0; i < nchunks; i++)
        cost_add_part(&average, &each[i], 1 / (double)nchunks);
    t.fwd = pass_time(cost, &average.fwd);
    t.bwd_input = pass_time(cost, &average.bwd);
    t.bwd_weight = pass_time(cost, &average.bwd_weight);
    mean = part_time(cost, &average);
    t.weight = weight = meg_new((size_t)nchunks * sizeof *weight);
    for (int64_t i = 0; i < nchunks; i++)
        weight[i] = part_time(cost, &each[i]) / mean;
    seconds = cost_makespan(&cost->schedule, &t);
    free(weight);
    return seconds;
}

/*
 * Return the time in seconds of the forward and backward passes of a step.  Set *busy to the counts of one micro-batch
 * on the busiest stage.
 */
static double pipeline_time(struct cost_pass *busy, const struct meg_cost_model *cost, bool simulate)
{
    const struct meg_layout *l = &cost->layout;
    const int64_t stride = l->tp * l->cp * (l->pp_before_dp ? 1 : l->dp);
    struct cost_part *each = meg_new((size_t)(l->pp * l->vp) * sizeof *each);
    double largest = 0, seconds; /* largest: bytes of the largest boundary */

    *busy = (struct cost_pass){ 0 };
    for (int64_t stage = 0; stage < l->pp; stage++) {
        struct cost_pass sum = { 0 };

        for (int64_t chunk = 0; chunk < l->vp; chunk++) {
            struct cost_part *p = &each[chunk * l->pp + stage];

            cost_count_chunk(p, cost, stage, chunk);
            largest = fmax(largest, cost_boundary_nbytes(cost, chunk * l->pp + stage));
            cost_add_pass(&sum, &p->fwd, 1);
            cost_add_pass(&sum, &p->bwd, 1);
            cost_add_pass(&sum, &p->bwd_weight, 1);
        }
        if (pass_time(cost, &sum) > pass_time(cost, busy))
            *busy = sum;
    }
    if (simulate)
        seconds = simulate_pipeline(cost, each, largest / meg_hardware_bandwidth(cost->hw, stride, 2));
    else
        seconds = pass_time(cost, busy) * ((double)cost->schedule.microbatches + (double)(l->pp - 1) / (double)l->vp);
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
static double step_comm_time(const struct meg_cost_model *cost, double backward, double forward, double *update)
{
    const struct meg_layout *l = &cost->layout;
    const struct meg_hardware *hw = cost->hw;
    const double bw = meg_hardware_bandwidth(hw, l->pp_before_dp ? l->tp * l->pp : l->tp, l->dp * l->cp);
    double most = 0;

    *update = 0;
    for (int64_t stage = 0; stage < l->pp; stage++) {
        if (!meg_cost_is_representative(cost, stage))
            continue;
        const struct cost_step_comm s = cost_count_step_comm(cost, (struct meg_rank_coords){ .pp = stage });
        const double reduce = s.grad_reduce / bw, gather = s.param_gather / bw;

        most = fmax(most, fmax(0, reduce - (cost->overlaps_grad_reduce ? backward : 0)) +
                              fmax(0, gather - (cost->overlaps_param_gather ? forward : 0)) +
                              s.tp_grad_reduce / meg_hardware_bandwidth(hw, 1, l->tp) +
                              s.etp_grad_reduce / meg_hardware_bandwidth(hw, 1, l->etp) +
                              s.embedding_grad / meg_hardware_bandwidth(hw, hw->ranks_per_node, 2));
        *update = fmax(*update, s.num_updated * update_nbytes(cost) / hw->memory_bw);
    }
    return most;
}

double meg_cost_time_bound(const struct meg_cost_model *cost)
{
    struct cost_pass busy;

    return pipeline_time(&busy, cost, false);
}

void meg_cost_step_time(struct meg_cost_time *t, const struct meg_cost_model *cost, bool simulate)
{
    const double m = (double)cost->schedule.microbatches, samples = m * (double)(cost->run.b * cost->layout.dp);
    const double peak = cost->hw->flops[cost->run.dtype] * cost->threads * (double)meg_layout_world(&cost->layout);
    struct cost_pass busy;
    const double seconds = pipeline_time(&busy, cost, simulate), busy_s = pass_time(cost, &busy);

    memset(t, 0, sizeof *t);
    t->gemm = m * busy.gemm_s;
    t->attention = m * busy.attention_s;
    t->memory_bound = m * busy.nbytes / cost->hw->memory_bw;
    t->comm = m * busy.comm_s;
    t->bubble = cost->layout.pp > 1 ? seconds / (m * busy_s) - 1 : 0;
    t->grad_reduce = step_comm_time(cost, busy_s * 2 / 3, busy_s / 3, &t->update);
    t->step = seconds + t->grad_reduce + t->update;
    t->mfu = cost->sequence_flops * samples / (t->step * peak);
}
