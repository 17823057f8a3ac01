/*
 * Running a pipeline schedule: one executor for every list (parallel/schedule.h).  It owns the boundary
 * buffers and their transfers; the caller gives the steps, which see a chunk, a micro-batch, a slot of
 * activations and the boundary buffers that the chunk has.
 *
 * A boundary is a list of tensors, the same between all parts of the model; the gradient of each has its
 * type and size.  A part that only passes a tensor on copies it to its Y, and its gradient from DY to DX.
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

/* A step and its boundary buffers, a pointer for each tensor; NULL where the part has no such edge. */
struct meg_pipe_step {
    int chunk;
    int64_t microbatch;
    int slot;
    void *const *x;  /* in: all steps; a step that is not the last of its slot leaves it as it is */
    void *const *dy; /* in: backward steps; likewise */
    void *const *y;  /* out: fwd */
    void *const *dx; /* out: bwd, bwd_input; overwritten, not added to */
};

/* What the kinds of steps do.  Those that a schedule does not have may be NULL. */
struct meg_pipe_ops {
    void (*fwd)(void *user, const struct meg_pipe_step *s);
    void (*bwd)(void *user, const struct meg_pipe_step *s);
    void (*bwd_input)(void *user, const struct meg_pipe_step *s);
    void (*bwd_weight)(void *user, const struct meg_pipe_step *s);
};

struct meg_pipe {
    const struct meg_pipe_schedule *s;
    struct meg_comm *pp;
    const struct meg_pipe_tensor *tensor;
    int ntensors;
    void **at[MEG_EDGES];              /* [bufs[edge], ntensors] */
    struct meg_work **work[MEG_EDGES]; /* the same, of what was started and not waited for */
};

/* Bytes that the boundary buffers of a list take. */
size_t meg_pipe_nbytes(const struct meg_pipe_schedule *s, const struct meg_pipe_tensor *tensor, int ntensors);

/*
 * Buffers for list s, cut from arena (meg_pipe_nbytes of it; pipes that do not run at the same time may
 * lie in the same place: see meg_arena_rewind).  pp is the group of the pipeline's stages in order, with
 * no other messages on their way while a list runs.  s, pp and tensor are borrowed until meg_pipe_free.
 */
void meg_pipe_init(struct meg_pipe *p, const struct meg_pipe_schedule *s, struct meg_comm *pp,
                   const struct meg_pipe_tensor *tensor, int ntensors, struct meg_arena *arena);
void meg_pipe_free(struct meg_pipe *p);

/*
 * Walks the list once; every stage of the pipeline does.  When it returns, all its messages have been
 * sent and received.  A lost peer ends the process (comm/comm.h).
 */
void meg_pipe_run(struct meg_pipe *p, const struct meg_pipe_ops *ops, void *user);

MEG_END_DECLS
#endif
