/*
 * pipeline.h - the executor of a pipeline schedule (parallel/schedule.h) on one stage.
 *
 * The executor sends and receives boundary tensors.  For the forward and backward steps, it calls the callbacks of
 * struct meg_pipe_ops.  A step processes one micro-batch in one model chunk of the stage.
 *
 * Every boundary between two chunks has the same list of tensors, with the same sizes and dtypes, but a boundary may
 * transfer only some of them.  The gradient of a tensor has the size and dtype of the tensor.  If a chunk does not
 * use a tensor that is transferred before and after it, the steps of the chunk copy the tensor from x to y, and the
 * gradient from dy to dx.
 */
#pragma once
#include "comm/comm.h"
#include "parallel/schedule.h"

struct meg_pipe_tensor {
    int64_t n; /* number of elements */
    enum meg_dtype dtype;
};

/*
 * Arguments of a step.  x, dy, y and dx are arrays of one pointer per boundary tensor; each array is NULL if the step
 * has no such input or output.  Only the last step that uses the slot may overwrite x and dy.
 */
struct meg_pipe_step {
    int chunk;
    int64_t microbatch;
    int slot;        /* activation slot, in which the micro-batch's forward step stores activations for backward */
    void *const *x;  /* input of fwd, also read by the backward steps */
    void *const *dy; /* gradient of y, input of the backward steps */
    void *const *y;  /* output of fwd */
    void *const *dx; /* output of bwd and bwd_input; overwritten, not accumulated */
};

/*
 * Functions that execute steps.  A function for a type of step that the schedule does not contain may be NULL.  `user`
 * is the argument of meg_pipe_run.
 */
struct meg_pipe_ops {
    void (*fwd)(void *user, const struct meg_pipe_step *s);
    void (*bwd)(void *user, const struct meg_pipe_step *s);
    void (*bwd_input)(void *user, const struct meg_pipe_step *s);
    void (*bwd_weight)(void *user, const struct meg_pipe_step *s);
};

/*
 * The executor of a schedule on one stage.  The caller sets the members before `buffers`.  They are borrowed until
 * meg_pipe_free.
 */
struct meg_pipe {
    const struct meg_pipe_schedule *schedule;
    struct meg_comm *pp;       /* the group of all stages, in order; no other messages are in flight during a run */
    struct meg_stream *stream; /* on which the steps run */
    const struct meg_pipe_tensor *tensor;
    int ntensors;
    /* [virtual stages] tensor i is transferred between virtual stages v-1 and v if bit i of element v is set; NULL: all
     * tensors are transferred at all boundaries */
    const unsigned *transferred;
    void **buffers[MEG_EDGES];         /* [schedule->bufs[edge], ntensors] addresses of tensors */
    struct meg_work **work[MEG_EDGES]; /* [schedule->bufs[edge], ntensors] transfers in flight */
};

/* Return the total size of all boundary buffers of a schedule in bytes. */
size_t meg_pipe_nbytes(const struct meg_pipe_schedule *s, const struct meg_pipe_tensor *tensor, int ntensors);

/*
 * Prepare to run p->schedule.  `memory` has meg_pipe_nbytes bytes of device memory for the boundary buffers, and is
 * borrowed until meg_pipe_free.  Pipes that do not run at the same time may share `memory`.
 */
void meg_pipe_init(struct meg_pipe *p, void *memory);
void meg_pipe_free(struct meg_pipe *p);

/*
 * Execute the schedule's action list once, including the waits for all of its transfers.  Collective over the stages.
 * If a peer is lost, the process exits (comm/comm.h).
 */
void meg_pipe_run(struct meg_pipe *p, const struct meg_pipe_ops *ops, void *user);
