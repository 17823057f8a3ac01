/*
 * schedule.h - pipeline schedules as data: for each stage the list of its actions (steps and transfers).
 *
 * meg_pipe_schedule_make computes a list from the number of stages, chunks and micro-batches and the name of a
 * schedule; parallel/pipeline.h executes it.  meg_pipe_schedule_simulate runs the lists of all stages in one process,
 * which proves that they fit together and gives their cost.  A new schedule needs only a new order of steps
 * (schedule.c, order).
 *
 * The model is divided into stages * chunks parts, in order; part chunk * stages + stage is chunk `chunk` of stage
 * `stage`.  The output of the last stage's chunk c is the input of the first stage's chunk c + 1.
 *
 *   1f1b         one forward, one backward (Narayanan et al. 2019); with one stage: no overlap
 *   interleaved  1f1b over several chunks per stage, with micro-batches in groups, in the order of Megatron-LM
 *                (Narayanan et al. 2021, section 2.2)
 *   zb-h1        1f1b with backward split into input gradients and weight gradients; stage i delays weight gradients
 *                by i micro-batches (Qi et al. 2023, section 2)
 *
 * Invariants of every list:
 * - In each chunk the forward steps are in the order of micro-batches 0 .. microbatches-1, and so are the backward
 *   steps and the weight gradients: gradients accumulate in one order for all schedules, and those of the last
 *   micro-batch are the last of the chunk.
 * - A transfer is started and waited for separately, and overlaps with steps: receives start one step before they are
 *   needed, sends are waited for when their buffer is needed again or at the end.  Every start has one wait in the
 *   list.
 * - A stage receives messages from another in the order of sending, activations and gradients alike (two interleaved
 *   stages exchange both), so that messages need no tags.
 * - No deadlock, even if every send blocks until it is received.
 */
#ifndef MEG_PARALLEL_SCHEDULE_H
#define MEG_PARALLEL_SCHEDULE_H
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"

MEG_BEGIN_DECLS

/* The values of --pipeline-schedule, in the order of its choices; automatic: interleaved if chunks > 1, else 1f1b. */
enum meg_pipe_schedule_type {
    MEG_PIPE_AUTO = -1, /* MEG_ENUM_UNSET */
    MEG_PIPE_1F1B,
    MEG_PIPE_INTERLEAVED,
    MEG_PIPE_ZB_H1
};

struct meg_pipe_schedule_conf {
    enum meg_pipe_schedule_type type;
    int stages;               /* --pipeline-model-parallel-size */
    int chunks;               /* per stage: --num-virtual-stages-per-pipeline-rank; 1: not interleaved */
    int64_t microbatches;     /* per step and data-parallel rank */
    int64_t microbatch_group; /* --microbatch-group-size-per-virtual-pipeline-stage; 0: stages */
    bool is_forward_only;     /* evaluation: no backward */
};

/* The boundary tensors of a part of the model.  X and DY are received, Y and DX are sent. */
enum meg_edge {
    MEG_EDGE_X,  /* input activations; not of the first part */
    MEG_EDGE_DY, /* gradient of Y; not of the last part */
    MEG_EDGE_Y,  /* output activations; not of the last part */
    MEG_EDGE_DX, /* gradient of X; not of the first part */
    MEG_EDGES
};

static inline bool meg_edge_is_received(enum meg_edge e)
{
    return e == MEG_EDGE_X || e == MEG_EDGE_DY;
}

enum meg_action_type {
    MEG_ACTION_FWD,        /* X -> Y, and activations into the slot */
    MEG_ACTION_BWD,        /* X, slot, DY -> DX and weight gradients; releases slot, X and DY */
    MEG_ACTION_BWD_INPUT,  /* X, slot, DY -> DX */
    MEG_ACTION_BWD_WEIGHT, /* X, slot, DY -> weight gradients, after BWD_INPUT; releases slot, X and DY */
    MEG_ACTION_START,      /* start to send or receive the buffer of edge */
    MEG_ACTION_WAIT        /* wait until it is received, or sent and reusable */
};

/*
 * One action.  A slot holds the activations of one (chunk, micro-batch) from its forward to its last backward step.
 * Boundary buffers are numbered per edge.  An X buffer is valid from its receive to the last backward step, so that a
 * slot needs no copy of it.  In a forward-only schedule FWD releases slot and X.
 */
struct meg_action {
    enum meg_action_type type;
    enum meg_edge edge; /* START, WAIT */
    int peer;           /* START, WAIT: the other stage */
    int chunk;
    int64_t microbatch;
    int slot;           /* steps: in 0 .. slots-1 of the list; else -1 */
    int buf[MEG_EDGES]; /* in 0 .. bufs[edge]-1 of the list; -1: not used by the action */
};

struct meg_pipe_schedule {
    struct meg_pipe_schedule_conf conf;
    int stage;
    int64_t n;
    struct meg_action *action; /* [n] */
    int slots;                 /* activation slots: the fewest possible, meg_pipe_schedule_in_flight */
    int bufs[MEG_EDGES];       /* boundary buffers */
};

/*
 * Check a configuration: 0, or MEG_EUSAGE and a message that names option, value and rule.  The functions below
 * require a configuration that passes.
 */
int meg_pipe_schedule_check(const struct meg_pipe_schedule_conf *c, struct meg_err *e);

/* Return the name of the schedule, as --pipeline-schedule spells it. */
const char *meg_pipe_schedule_name(const struct meg_pipe_schedule_conf *c);

/* True if backward has separate steps for the gradients of inputs and of weights (zb-h1). */
bool meg_pipe_schedule_splits_backward(const struct meg_pipe_schedule_conf *c);

/* Compute the list of one stage; free it with meg_pipe_schedule_free. */
void meg_pipe_schedule_make(struct meg_pipe_schedule *s, const struct meg_pipe_schedule_conf *c, int stage);
void meg_pipe_schedule_free(struct meg_pipe_schedule *s);

/*
 * Largest number of micro-batches in flight (activation slots) on a stage, by the published formulas, with p stages, v
 * chunks, m micro-batches and groups of g:
 *   1f1b           min(p - stage, m)
 *   zb-h1          min(p, m)
 *   interleaved    min(2 (p - 1 - stage) + (v - 1) g + 1, v m)
 *   forward only   1
 */
int64_t meg_pipe_schedule_in_flight(const struct meg_pipe_schedule_conf *c, int stage);

/* Durations, in any one unit; a BWD step takes bwd_input + bwd_weight. */
struct meg_pipe_schedule_times {
    double fwd, bwd_input, bwd_weight;
    double transfer;      /* from when both ends have started; links carry any number of transfers at once */
    const double *weight; /* [stages * chunks] factor of each part's steps; NULL: 1 */
};

struct meg_pipe_schedule_cost {
    double makespan; /* from the first action of any stage to the last */
    double busy;     /* time of steps, of the busiest stage */
    double bubble;   /* (makespan - busy) / busy */
    double *idle;    /* [stages] owned by the caller, or NULL: makespan minus the time of the stage's steps */
};

/*
 * Simulate the lists all [stages] of one pipeline with unbuffered sends.  Fails with MEG_EFAIL and a message that
 * names stage and action if they deadlock; if a message is received out of order; if a step is missing, repeated, too
 * early or out of order; if a slot or buffer is used while it is in use or has other contents; or if slots or bufs
 * exceed what is ever in use at once.
 */
int meg_pipe_schedule_simulate(const struct meg_pipe_schedule *all, const struct meg_pipe_schedule_times *t,
                               struct meg_pipe_schedule_cost *cost, struct meg_err *e);

/* Make the lists of all stages and simulate them. */
void meg_pipe_schedule_estimate(const struct meg_pipe_schedule_conf *c, const struct meg_pipe_schedule_times *t,
                                struct meg_pipe_schedule_cost *cost);

MEG_END_DECLS
#endif
