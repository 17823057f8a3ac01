/*
 * Pipeline schedules as data: a pure function turns stages, chunks, micro-batches and a name into one
 * list of actions a stage.  parallel/pipeline.h runs a list on the ranks of a pipeline; meg_pipe_schedule_simulate
 * plays the lists of all stages in one process, which proves that they fit and says what they cost.
 * A new schedule is a new order of forward and backward steps (schedule.c, order) and nothing else.
 *
 * The model is cut into stages * chunks parts, in order; part chunk * stages + stage is chunk `chunk`
 * of stage `stage`.  So the last stage's chunk c feeds the first stage's chunk c + 1.
 *
 *   1f1b         one forward, one backward (Narayanan et al. 2019); one stage: a plain sequence
 *   interleaved  the same over several chunks a stage, micro-batches in groups, in Megatron-LM's order
 *                (Narayanan et al. 2021, section 2.2)
 *   zb-h1        1f1b with backward split into input and weight gradients, the latter put off by as
 *                many micro-batches as the stage's number (Qi et al. 2023, section 2)
 *
 * What every list promises:
 * - The micro-batches of a chunk come in order 0 .. microbatches-1 in forward, in backward and in
 *   weight gradients alike, whatever the schedule: gradients add up in one order, and that of
 *   micro-batch microbatches-1 is the chunk's last.
 * - A transfer is started and waited for separately.  Receives start ahead of the step that comes
 *   before the one that needs them, sends are waited for when their buffer is needed again or at the
 *   end: both overlap with steps.  Every start is waited for in the same list.
 * - What one stage sends another is received in the order of sending, all in one line (the two stages
 *   of an interleaved pipeline send each other activations and gradients), so messages need no tags.
 * - The lists end also when every send waits for its receive (no message is ever buffered).
 */
#ifndef MEG_PARALLEL_SCHEDULE_H
#define MEG_PARALLEL_SCHEDULE_H
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"

MEG_BEGIN_DECLS

struct meg_pipe_schedule_conf {
    const char *name;     /* borrowed: "1f1b", "interleaved", "zb-h1"; NULL: one of the first two, by chunks */
    int stages;           /* --pipeline-model-parallel-size */
    int chunks;           /* a stage: --num-virtual-stages-per-pipeline-rank; 1: not interleaved */
    int64_t microbatches; /* a step, of one data-parallel rank */
    int64_t group;        /* --microbatch-group-size-per-virtual-pipeline-stage; 0: stages */
    bool is_forward_only; /* no backward: evaluation */
};

/* Where a stage's chunk meets its neighbours.  X and DY arrive, Y and DX leave. */
enum meg_edge {
    MEG_EDGE_X,  /* activations that go in; none for the first part */
    MEG_EDGE_DY, /* the gradient of Y; none for the last part */
    MEG_EDGE_Y,  /* activations that come out; none for the last part */
    MEG_EDGE_DX, /* the gradient of X; none for the first part */
    MEG_EDGES
};

static inline bool meg_edge_arrives(enum meg_edge e)
{
    return e == MEG_EDGE_X || e == MEG_EDGE_DY;
}

enum meg_action_type {
    MEG_ACTION_FWD,        /* X -> Y, and into slot what backward needs */
    MEG_ACTION_BWD,        /* X, slot, DY -> DX and weight gradients; ends slot, X and DY */
    MEG_ACTION_BWD_INPUT,  /* X, slot, DY -> DX */
    MEG_ACTION_BWD_WEIGHT, /* X, slot, DY -> weight gradients, after BWD_INPUT; ends slot, X and DY */
    MEG_ACTION_START,      /* begin to send or receive edge's buffer */
    MEG_ACTION_WAIT        /* until it is received, or sent and free again */
};

/*
 * One action.  A slot is the memory for one (chunk, micro-batch) between its forward and its last
 * backward step.  Boundary buffers are numbered by edge, apart from slots; an X buffer keeps its content
 * from its receive to the last backward step, so a slot needs no copy of it.  Without backward, FWD ends
 * slot and X itself.
 */
struct meg_action {
    enum meg_action_type kind;
    enum meg_edge edge; /* START, WAIT */
    int peer;           /* START, WAIT: the stage at the other end */
    int chunk;
    int64_t microbatch;
    int slot;           /* steps: in 0 .. slots-1 of the list; else -1 */
    int buf[MEG_EDGES]; /* in 0 .. bufs[edge]-1 of the list; -1: takes no part in the action */
};

struct meg_pipe_schedule {
    struct meg_pipe_schedule_conf conf;
    int stage;
    int64_t n;
    struct meg_action *action; /* [n] */
    int slots;                 /* the least that the order of steps needs: meg_pipe_schedule_in_flight */
    int bufs[MEG_EDGES];
};

/*
 * Whether the numbers make a schedule: 0, or MEG_EUSAGE and a message that names option, value and rule.
 * The functions below take only what passes.
 */
int meg_pipe_schedule_check(const struct meg_pipe_schedule_conf *c, struct meg_err *e);

/* Whether the schedule computes weight gradients in a step of their own, after the input gradients. */
bool meg_pipe_schedule_splits_backward(const struct meg_pipe_schedule_conf *c);

/* The list of one stage; the caller frees it. */
void meg_pipe_schedule_make(struct meg_pipe_schedule *s, const struct meg_pipe_schedule_conf *c, int stage);
void meg_pipe_schedule_free(struct meg_pipe_schedule *s);

/*
 * Slots of a stage by the published formulas, with p stages, v chunks and m micro-batches:
 * 1f1b min(p - stage, m); zb-h1 min(p, m); interleaved min(2 (p - 1 - stage) + (v - 1) group + 1, v m);
 * 1 without backward.
 */
int64_t meg_pipe_schedule_in_flight(const struct meg_pipe_schedule_conf *c, int stage);

/* How long things take, in any one unit; a whole backward step takes the sum of its parts. */
struct meg_pipe_schedule_times {
    double fwd, bwd_input, bwd_weight;
    double transfer;      /* from when both ends have started it; links carry any number at once */
    const double *weight; /* [stages * chunks] what a part's steps take times; NULL: 1 each */
};

struct meg_pipe_schedule_cost {
    double makespan; /* from the first action of any stage to the last */
    double busy;     /* steps of the stage that has most to do */
    double bubble;   /* (makespan - busy) / busy */
    double *idle;    /* [stages] the caller's, or NULL: makespan less the stage's steps */
};

/*
 * Plays the lists all [stages] of one pipeline, sends not buffered.  Fails with MEG_EFAIL, stage, action
 * and what is wrong, where they deadlock, a message does not come in the order of its sending, a step
 * comes twice, too early, out of order or not at all, a slot or buffer is used while it is not free or
 * holds something else, or more of them are counted than are ever in use at once.
 */
int meg_pipe_schedule_simulate(const struct meg_pipe_schedule *all, const struct meg_pipe_schedule_times *t,
                               struct meg_pipe_schedule_cost *cost, struct meg_err *e);

/* Makes all lists and plays them. */
void meg_pipe_schedule_estimate(const struct meg_pipe_schedule_conf *c, const struct meg_pipe_schedule_times *t,
                                struct meg_pipe_schedule_cost *cost);

MEG_END_DECLS
#endif
