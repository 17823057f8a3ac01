/* usage_vs_plan.c - memory and communication of a rank, as measured and as predicted by the cost model. */
#include "plan/usage_vs_plan.h"
#include <math.h>
#include "base/log.h"
#include "base/mem.h"
#include "comm/comm.h"
#include "plan/memory_check.h"

void meg_usage_vs_plan_predict(struct meg_usage_vs_plan *u, const struct meg_run_spec *s, struct meg_rank_coords at,
                               int64_t num_micro)
{
    struct meg_cost_model m;

    meg_cost_model_make(&m, s, meg_batch_max_microbatches(&s->batch));
    meg_cost_memory(u->memory_planned, &m, at);
    m.schedule.microbatches = num_micro;
    if (num_micro > 0)
        meg_cost_comm_volume(u->comm_planned, &m, at);
    meg_cost_model_free(&m);
}

/* Maxima over all ranks of the measured numbers, the predicted numbers and their absolute differences. */
struct max_over_ranks {
    double measured[MEG_COST_MEM_TYPES], planned[MEG_COST_MEM_TYPES], difference[MEG_COST_MEM_TYPES];
};

static struct max_over_ranks max_over_ranks(struct meg_comm *world, const double *measured, const double *planned,
                                            int n)
{
    struct max_over_ranks m = { 0 };

    for (int i = 0; i < n; i++) {
        m.measured[i] = measured[i];
        m.planned[i] = planned[i];
        m.difference[i] = fabs(measured[i] - planned[i]);
    }
    meg_host_all_reduce(world, &m, sizeof m / sizeof(double), MEG_DTYPE_F64, MEG_REDUCE_MAX);
    return m;
}

static void log_comm(const struct meg_usage_vs_plan *u, struct meg_comm *world)
{
    const struct max_over_ranks m = max_over_ranks(world, u->comm, u->comm_planned, MEG_COST_GROUPS);
    struct meg_str text = { 0 };

    for (int i = 0; i < MEG_COST_GROUPS; i++) {
        if (m.measured[i] == 0 && m.planned[i] == 0)
            continue;
        meg_str_printf(&text, "%s%s %.0f bytes", text.n ? "; " : "", meg_cost_group_name[i], m.measured[i]);
        if (m.difference[i] < MEG_USAGE_VS_PLAN_ROUNDING)
            meg_str_printf(&text, ", as planned");
        else
            meg_str_printf(&text, ", %.0f planned", m.planned[i]);
    }
    if (text.n && world->rank == 0)
        meg_debug("sent per step: %s", text.s);
    meg_str_free(&text);
}

/* Log the memory of the process, and each arena whose size differs from the prediction. */
static void log_memory(const struct meg_usage_vs_plan *u, struct meg_comm *world, double start_nbytes)
{
    enum { PEAK, SINCE_START, PLANNED, NUMBERS };
    const struct max_over_ranks m = max_over_ranks(world, u->memory, u->memory_planned, MEG_COST_MEM_ARENAS);
    struct meg_str text = { 0 };
    double v[NUMBERS] = { meg_memory_peak_rss() };

    v[SINCE_START] = v[PEAK] - start_nbytes;
    for (int i = 0; i < MEG_COST_MEM_TYPES; i++)
        v[PLANNED] += u->memory_planned[i];
    meg_host_all_reduce(world, v, NUMBERS, MEG_DTYPE_F64, MEG_REDUCE_MAX);
    meg_str_printf(&text, "memory: peak %.1f MiB, %.1f MiB since the start, %.1f MiB planned", v[PEAK] / (1 << 20),
                   v[SINCE_START] / (1 << 20), v[PLANNED] / (1 << 20));
    for (int i = 0; i < MEG_COST_MEM_ARENAS; i++)
        if (m.difference[i] > 0)
            meg_str_printf(&text, "; %s %.0f bytes, %.0f planned", meg_cost_memory_name[i], m.measured[i],
                           m.planned[i]);
    if (world->rank == 0)
        meg_debug("%s", text.s);
    meg_str_free(&text);
}

void meg_usage_vs_plan_log(const struct meg_usage_vs_plan *u, struct meg_comm *world, double start_nbytes)
{
    log_comm(u, world);
    log_memory(u, world, start_nbytes);
}
