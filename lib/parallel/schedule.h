/*
 * schedule.h - pipeline schedules as data: one list of actions (steps and transfers) per stage.
 *
 * A step is the forward or backward pass of one micro-batch through one chunk of the model.  If the backward pass is
 * split, each half is a step.  meg_pipe_schedule_make computes the list of a stage, and parallel/pipeline.h executes
 * the list.  meg_pipe_schedule_simulate simulates the lists of all stages in one process, checks that the lists are
 * consistent, and computes their cost.  A new schedule requires only a new order of steps (function order in
 * schedule.c).
 *
 * The model is divided into stages * chunks virtual stages, in order.  Chunk `chunk` of stage `stage` is virtual stage
 * chunk * stages + stage.  The output of the last stage's chunk c is the input of the first stage's chunk c + 1.
 *
 *   1f1b         one forward, one backward (Narayanan et al. 2019); a single stage alternates forward and backward
 *   interleaved  1f1b over several chunks per stage, with micro-batches in groups, in the order of Megatron-LM
 *                (Narayanan et al. 2021, section 2.2)
 *   zb-h1        1f1b with backward split into input gradients and weight gradients; stage i delays weight gradients
 *                by i micro-batches, and stage 0 does not split backward (Qi et al. 2023, section 2)
 *
 * Invariants of every list:
 * - In each chunk, the forward steps are in the order of micro-batches 0 .. microbatches-1.  The backward steps are in
 *   the same order, and so are the weight-gradient steps.  Gradients therefore accumulate in the same order under every
 *   schedule, and the last micro-batch is the last to add to a chunk's gradients.
 * - A transfer has a start action and a wait action, so that it overlaps with steps.  Every start has exactly one wait.
 * - A receive starts before the step that uses the previous tensor received at the same edge (enum meg_edge), or
 *   earlier.
 * - The wait for a send is delayed until the buffer is needed again, or to the end of the list.
 * - A stage starts the receives from a peer in the order of the peer's sends, so messages need no tags.  This order
 *   includes both activations and gradients: with two stages and several chunks, a peer sends both.
 * - The lists do not deadlock, even if every send blocks until the message is received.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"

/*
 * Values of --pipeline-schedule, in the order in which the option lists them.  MEG_PIPE_AUTO selects interleaved if
 * chunks > 1, else 1f1b.
 */
enum meg_pipe_schedule_type {
    MEG_PIPE_AUTO = -1, /* equal to MEG_ENUM_UNSET */
    MEG_PIPE_1F1B,
    MEG_PIPE_INTERLEAVED,
    MEG_PIPE_ZB_H1
};

struct meg_pipe_schedule_conf {
    enum meg_pipe_schedule_type type;
    int stages;               /* --pipeline-model-parallel-size */
    int chunks;               /* chunks per stage (--num-virtual-stages-per-pipeline-rank); 1: not interleaved */
    int64_t microbatches;     /* micro-batches per iteration and data-parallel rank */
    int64_t microbatch_group; /* --microbatch-group-size-per-virtual-pipeline-stage; 0: the number of stages */
    bool is_forward_only;     /* no backward steps (evaluation) */
};

/* An edge: the inputs or outputs at a boundary of a virtual stage.  X and DY are received, Y and DX are sent. */
enum meg_edge {
    MEG_EDGE_X,  /* input activations; the first virtual stage has none */
    MEG_EDGE_DY, /* gradient of Y; the last virtual stage has none */
    MEG_EDGE_Y,  /* output activations; the last virtual stage has none */
    MEG_EDGE_DX, /* gradient of X; the first virtual stage has none */
    MEG_EDGES
};

static inline bool meg_edge_is_received(enum meg_edge e)
{
    return e == MEG_EDGE_X || e == MEG_EDGE_DY;
}

enum meg_action_type {
    MEG_ACTION_FWD,        /* forward: X -> Y; stores activations in the slot */
    MEG_ACTION_BWD,        /* backward: X, slot, DY -> DX, weight gradients; releases slot, X and DY */
    MEG_ACTION_BWD_INPUT,  /* input gradient: X, slot, DY -> DX */
    MEG_ACTION_BWD_WEIGHT, /* weight gradients, after BWD_INPUT: X, slot, DY; releases slot, X and DY */
    MEG_ACTION_START,      /* start to send or receive the buffer of an edge */
    MEG_ACTION_WAIT        /* wait until the buffer of an edge is received, or is sent and reusable */
};

/*
 * One action of a list.  A slot holds the activations of one (chunk, micro-batch) from its forward to its last backward
 * step.  Boundary buffers are numbered separately for each edge.  An X buffer remains valid until the last backward
 * step, so the slot needs no copy of X.  In a forward-only schedule, FWD releases the slot and X.
 */
struct meg_action {
    enum meg_action_type type;
    enum meg_edge edge; /* START, WAIT: the edge that is transferred */
    int peer;           /* START, WAIT: the other stage */
    int chunk;
    int64_t microbatch;
    int slot;           /* activation slot of a step, 0 .. slots-1; -1 for START and WAIT */
    int buf[MEG_EDGES]; /* buffer at each edge, 0 .. bufs[edge]-1; -1: the action does not use the edge */
};

struct meg_pipe_schedule {
    struct meg_pipe_schedule_conf conf;
    int stage;
    int64_t n;
    struct meg_action *action; /* [n] */
    int slots;                 /* number of activation slots, equal to meg_pipe_schedule_in_flight */
    int bufs[MEG_EDGES];       /* number of boundary buffers at each edge */
};

/* Return MEG_EUSAGE if a configuration is invalid.  The functions below require a valid one. */
int meg_pipe_schedule_check(const struct meg_pipe_schedule_conf *c, struct meg_err *e);

/* Return the name of the schedule, as --pipeline-schedule spells it. */
const char *meg_pipe_schedule_name(const struct meg_pipe_schedule_conf *c);

/*
 * Return whether the schedule (zb-h1) splits backward passes into a step for input gradients and one for weight
 * gradients.  Stage 0 has no split steps.
 */
bool meg_pipe_schedule_splits_backward(const struct meg_pipe_schedule_conf *c);

/* Compute the action list of one stage.  Free it with meg_pipe_schedule_free. */
void meg_pipe_schedule_make(struct meg_pipe_schedule *s, const struct meg_pipe_schedule_conf *c, int stage);
void meg_pipe_schedule_free(struct meg_pipe_schedule *s);

/*
 * Return the number of activation slots of a stage: the largest number of (chunk, micro-batch) pairs that are in
 * flight.  A pair is in flight from its forward step to its last backward step.  With p stages, v chunks per stage, m
 * micro-batches and groups of g micro-batches, the number is
 *   1f1b           min(p - stage, m)
 *   zb-h1          min(p, m)
 *   interleaved    min(2 (p - 1 - stage) + (v - 1) g + 1, v m)
 *   forward only   1
 */
int64_t meg_pipe_schedule_in_flight(const struct meg_pipe_schedule_conf *c, int stage);

/* Durations, all in the same time unit.  A BWD step takes bwd_input + bwd_weight. */
struct meg_pipe_schedule_times {
    double fwd, bwd_input, bwd_weight;
    double transfer; /* time of a transfer after both ends have started it; transfers do not slow each other down */
    const double *weight; /* [stages * chunks] factor for the durations of each virtual stage's steps; NULL: 1 */
};

struct meg_pipe_schedule_cost {
    double makespan; /* time from the first action of any stage to the last */
    double busy;     /* total time of the steps on the busiest stage */
    double bubble;   /* (makespan - busy) / busy */
    double *idle;    /* [stages] makespan minus the time of each stage's steps; buffer of the caller, or NULL */
};

/*
 * Simulate one pipeline.  `all` [stages] contains the action list of each stage.  Sends are unbuffered.  Return
 * MEG_EFAIL if
 * - the lists deadlock, or a message is received out of order;
 * - a step is missing, repeated, too early or out of order;
 * - a slot or buffer is filled while it is in use, read while it has other contents, or not released at the end;
 * - a chunk does not exist, or a peer is not another stage;
 * - the buffers of a step are not those that the type and chunk of the step require;
 * - slots or bufs is larger than the largest number in use at the same time.
 */
int meg_pipe_schedule_simulate(const struct meg_pipe_schedule *all, const struct meg_pipe_schedule_times *t,
                               struct meg_pipe_schedule_cost *cost, struct meg_err *e);

/* Make the lists of all stages, and compute their cost by simulation. */
void meg_pipe_schedule_estimate(const struct meg_pipe_schedule_conf *c, const struct meg_pipe_schedule_times *t,
                                struct meg_pipe_schedule_cost *cost);
