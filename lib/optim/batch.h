/*
 * How many samples the next step takes.  Megatron's batch ramp-up: with start A, increment I over N
 * samples up to the global batch size G, there are (G - A) / I levels of N / that many samples each
 * (a real number); the batch is A + I * floor(consumed / level) while consumed <= N, then G.
 */
#ifndef MEG_OPTIM_BATCH_H
#define MEG_OPTIM_BATCH_H
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"

MEG_BEGIN_DECLS

struct meg_batch_schedule {
    int64_t global, micro, dp_size;           /* --global-batch-size, --micro-batch-size, data-parallel ranks */
    int64_t start, increment, rampup_samples; /* --rampup-batch-size; samples 0: none */
    bool round_down;                          /* --decrease-batch-size-if-needed */
};

struct meg_batch_size {
    int64_t global;    /* asked for */
    int64_t effective; /* taken: global rounded down to whole micro-batches of all ranks */
    int64_t num_micro; /* micro-batches of a rank: run / (micro * ranks) */
};

/* Refuse a plan that breaks a rule at any of its levels (MEG_EUSAGE). */
int meg_batch_schedule_check(const struct meg_batch_schedule *p, struct meg_err *e);

/* The batch once consumed samples were taken. */
struct meg_batch_size meg_batch_at(const struct meg_batch_schedule *p, int64_t consumed);

/* The most micro-batches of a rank in a step. */
static inline int64_t meg_batch_max_microbatches(const struct meg_batch_schedule *p)
{
    return p->global / (p->micro * p->dp_size);
}

/* Iterations that samples make: a partial last batch is dropped. */
int64_t meg_batch_iterations(const struct meg_batch_schedule *p, int64_t samples);

MEG_END_DECLS
#endif
