/*
 * pipeline.h - the executor of a pipeline schedule (parallel/schedule.h) on one stage.
 *
 * The executor sends and receives the boundary buffers, which are in memory of the caller.  The caller provides the
 * functions that execute steps; each is called with a chunk, a micro-batch, an activation slot and the chunk's boundary
 * buffers.
 *
 * All boundaries between parts of the model exchange the same list of tensors, with the same sizes and dtypes.  The
 * gradient of a tensor has the size and dtype of the tensor.  A part that does not use a tensor copies the tensor from
 * X to Y, and its gradient from DY to DX (enum meg_edge in parallel/schedule.h).
 */
#ifndef MEG_PARALLEL_PIPELINE_H
#define MEG_PARALLEL_PIPELINE_H
#include "comm/comm.h"
#include "parallel/schedule.h"

MEG_BEGIN_DECLS

struct meg_pipe_tensor {
    int64_t n; /* number of elements */
    enum meg_dtype dtype;
};

/*
 * Arguments of a step.  x, dy, y and dx are arrays of one pointer per boundary tensor; each array is NULL if the step
 * has no such input or output.
 */
struct meg_pipe_step {
    int chunk;
    int64_t microbatch;
    int slot;
    void *const *x;  /* input of forward, also read by backward; only the last step that uses `slot` may overwrite it */
    void *const *dy; /* gradient of y, input of backward; only the last step that uses `slot` may overwrite it */
    void *const *y;  /* output of fwd */
    void *const *dx; /* output of bwd and bwd_input; overwritten, not accumulated */
};

/*
 * The functions that execute steps; those that the schedule does not use may be NULL.  `user` is the argument of
 * meg_pipe_run.
 */
struct meg_pipe_ops {
    void (*fwd)(void *user, const struct meg_pipe_step *s);
    void (*bwd)(void *user, const struct meg_pipe_step *s);
    void (*bwd_input)(void *user, const struct meg_pipe_step *s);
    void (*bwd_weight)(void *user, const struct meg_pipe_step *s);
};

struct meg_pipe {
    const struct meg_pipe_schedule *schedule;
    struct meg_comm *pp;
    struct meg_stream *stream;
    const struct meg_pipe_tensor *tensor;
    int ntensors;
    void **buffers[MEG_EDGES];         /* [bufs[edge], ntensors] boundary tensors */
    struct meg_work **work[MEG_EDGES]; /* [bufs[edge], ntensors] handles of the transfers in flight */
};

/* Return the total size of all boundary buffers of a schedule in bytes. */
size_t meg_pipe_nbytes(const struct meg_pipe_schedule *s, const struct meg_pipe_tensor *tensor, int ntensors);

/*
 * Divide `memory`, meg_pipe_nbytes bytes of device memory, into the boundary buffers of schedule s.  Pipes that do not
 * run at the same time may use the same memory.  pp is the group of all stages, in order; during meg_pipe_run, no other
 * messages may be in flight in pp.  The steps run on stream.  s, pp, tensor and memory are borrowed until
 * meg_pipe_free.
 */
void meg_pipe_init(struct meg_pipe *p, const struct meg_pipe_schedule *s, struct meg_comm *pp,
                   struct meg_stream *stream, const struct meg_pipe_tensor *tensor, int ntensors, void *memory);
void meg_pipe_free(struct meg_pipe *p);

/*
 * Execute the schedule's action list once.  Collective over the stages.  On return, all sends and receives of this
 * stage are complete.  If a peer is lost, the process exits (comm/comm.h).
 */
void meg_pipe_run(struct meg_pipe *p, const struct meg_pipe_ops *ops, void *user);

MEG_END_DECLS
#endif
