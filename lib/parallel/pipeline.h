/*
 * pipeline.h - executes the list of a pipeline schedule (parallel/schedule.h) on one stage.
 *
 * The executor owns the boundary buffers and their transfers; the caller provides the steps, which get a chunk, a
 * micro-batch, a slot of activations and the boundary buffers of the chunk.
 *
 * A boundary is a list of tensors, equal between all parts of the model; the gradient of a tensor has its type and
 * size.  A part that does not use a tensor copies it from X to Y, and its gradient from DY to DX.
 */
#ifndef MEG_PARALLEL_PIPELINE_H
#define MEG_PARALLEL_PIPELINE_H
#include "base/mem.h"
#include "comm/comm.h"
#include "parallel/schedule.h"

MEG_BEGIN_DECLS

struct meg_pipe_tensor {
    int64_t n; /* elements */
    enum meg_dtype dtype;
};

/* A step and its boundary buffers: arrays of one pointer per tensor, or NULL if the part has no such edge. */
struct meg_pipe_step {
    int chunk;
    int64_t microbatch;
    int slot;
    void *const *x;  /* in: all steps; only the last step of a slot may overwrite it */
    void *const *dy; /* in: backward steps; only the last step of a slot may overwrite it */
    void *const *y;  /* out: fwd */
    void *const *dx; /* out: bwd, bwd_input; overwritten, not accumulated */
};

/* The steps; those that a schedule does not use may be NULL.  user is the argument of meg_pipe_run. */
struct meg_pipe_ops {
    void (*fwd)(void *user, const struct meg_pipe_step *s);
    void (*bwd)(void *user, const struct meg_pipe_step *s);
    void (*bwd_input)(void *user, const struct meg_pipe_step *s);
    void (*bwd_weight)(void *user, const struct meg_pipe_step *s);
};

struct meg_pipe {
    const struct meg_pipe_schedule *schedule;
    struct meg_comm *pp;
    const struct meg_pipe_tensor *tensor;
    int ntensors;
    void **buffers[MEG_EDGES];         /* [bufs[edge], ntensors] */
    struct meg_work **work[MEG_EDGES]; /* [bufs[edge], ntensors] of started transfers */
};

/* Bytes of the boundary buffers of a list. */
size_t meg_pipe_nbytes(const struct meg_pipe_schedule *s, const struct meg_pipe_tensor *tensor, int ntensors);

/*
 * Allocate the buffers for list s from arena, meg_pipe_nbytes in all; pipes that do not run at the same time may use
 * the same memory (meg_arena_rewind).  pp is the group of the stages in order; no other messages may be in flight in
 * it while a list runs.  s, pp and tensor are borrowed until meg_pipe_free.
 */
void meg_pipe_init(struct meg_pipe *p, const struct meg_pipe_schedule *s, struct meg_comm *pp,
                   const struct meg_pipe_tensor *tensor, int ntensors, struct meg_arena *arena);
void meg_pipe_free(struct meg_pipe *p);

/*
 * Execute the list once; collective over the stages.  On return all messages of this stage have been sent and received.
 * A lost peer ends the process (comm/comm.h).
 */
void meg_pipe_run(struct meg_pipe *p, const struct meg_pipe_ops *ops, void *user);

MEG_END_DECLS
#endif
