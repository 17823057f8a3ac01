/*
 * Gradients of ranks that saw other tokens are added up, bucket by bucket, so that copies of a parameter
 * have equal ones.  Three sums make up a gradient, in this order whatever is overlapped:
 *   over tensor-parallel ranks, what each has of rows that all have, when they saw other positions
 *   over data- and context-parallel ranks; with slices each rank gets the sum of its own, and then the
 *     instances add theirs up
 *   over the first and last stage, for a tied embedding
 */
#ifndef MEG_OPTIM_ZERO_GRAD_REDUCE_H
#define MEG_OPTIM_ZERO_GRAD_REDUCE_H
#include "model/param.h"
#include "optim/nan_guard.h"

MEG_BEGIN_DECLS

struct meg_reducer {
    const struct meg_mesh *mesh;
    const struct meg_params *params;
    struct meg_nan_guard *nan_guard;
    char *g; /* [params->flat] of type t */
    enum meg_dtype dtype;
    bool overlaps;          /* a bucket begins when its gradients are there, not when all are */
    int64_t *passes_left;   /* [nsections] backward passes that are still to write it */
    bool *is_tp_reduced;    /* [nsections] its part of the first sum is done */
    int *groups_pending;    /* [nbuckets] sections in it that are not settled */
    bool *is_started;       /* [nbuckets] */
    struct meg_comm *group; /* of what is under way */
    struct meg_work *work;
    int bucket_in_flight; /* that is under way, or -1 */
};

void meg_reducer_init(struct meg_reducer *r, const struct meg_mesh *mesh, const struct meg_params *params,
                      struct meg_nan_guard *watch, void *g, enum meg_dtype t, bool overlaps);
void meg_reducer_free(struct meg_reducer *r);

/* Gradients begin to be made: each section will be written passes times. */
void meg_reducer_begin(struct meg_reducer *r, int64_t passes);
/* A pass wrote a section. */
void meg_reducer_grads_ready(struct meg_reducer *r, int section);
/* Take on what is under way. */
void meg_reducer_poll(struct meg_reducer *r);
/* All sums are done: everywhere, or in this rank's slice of each bucket. */
void meg_reducer_end(struct meg_reducer *r);

/*
 * The way back: each rank has updated its slice of every bucket of w, and gets the others'.  The buckets
 * that forward reads first come first.
 */
struct meg_gatherer {
    const struct meg_params *params;
    struct meg_comm *shard_group;
    char *w; /* [params->flat] of type t */
    enum meg_dtype dtype;
    struct meg_work *work;
    int bucket_in_flight; /* that is under way; those behind it are there */
};

void meg_gatherer_init(struct meg_gatherer *q, const struct meg_params *params, struct meg_comm *slices, void *w,
                       enum meg_dtype t);
void meg_gatherer_begin(struct meg_gatherer *q);
/* Wait for a section's parameters, and begin what comes next. */
void meg_gatherer_wait(struct meg_gatherer *q, int section);
void meg_gatherer_poll(struct meg_gatherer *q);
void meg_gatherer_end(struct meg_gatherer *q);

MEG_END_DECLS
#endif
