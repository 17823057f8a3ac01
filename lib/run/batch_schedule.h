/*
 * batch_schedule.h - global batch size of each step, with Megatron's batch ramp-up.
 *
 * A ramp-up raises the batch size from A to the global batch size G, by increments of I, over N samples.  After
 * `consumed` samples, the batch size is
 *   A + I floor(consumed / L) while consumed <= N, and G afterwards.
 * There are (G - A) / I levels of L = N I / (G - A) samples each; L is a real number.  If A equals G, there is no
 * ramp-up.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"

struct meg_batch_schedule {
    int64_t global, micro, dp_size;           /* --global-batch-size, --micro-batch-size, data-parallel ranks */
    int64_t start, increment, rampup_samples; /* --rampup-batch-size; rampup_samples 0: no ramp-up */
    bool round_down;                          /* --decrease-batch-size-if-needed */
};

struct meg_batch_size {
    int64_t global;    /* scheduled global batch size in samples */
    int64_t effective; /* samples trained on: global, rounded down to a multiple of micro * dp_size */
    int64_t num_micro; /* number of micro-batches per rank: effective / (micro * dp_size) */
};

/* Check the global batch size and the ramp-up.  Return MEG_EUSAGE if one of them is invalid. */
int meg_batch_schedule_check(const struct meg_batch_schedule *p, struct meg_err *e);

/* Return the batch size after `consumed` samples. */
struct meg_batch_size meg_batch_at(const struct meg_batch_schedule *p, int64_t consumed);

/* Return the largest number of micro-batches per rank in one step. */
static inline int64_t meg_batch_max_microbatches(const struct meg_batch_schedule *p)
{
    return p->global / (p->micro * p->dp_size);
}

/* Return the number of iterations over `samples` samples; a partial last batch is dropped. */
int64_t meg_batch_iterations(const struct meg_batch_schedule *p, int64_t samples);
