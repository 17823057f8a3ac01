/* loader.h - load the micro-batches of one rank, in a prefetch thread if requested. */
#pragma once
#include <stdint.h>
#include "data/batch.h"
#include "data/dataset.h"
#include "data/sampler.h"

struct meg_data_loader_conf {
    struct meg_data_sampler_conf sampler;  /* total is ignored: the length of the dataset is used */
    int read_ahead;                        /* micro-batches that a thread prepares in advance; 0: no thread */
    const int64_t *position;               /* [s] position in the complete sequence of each token that this
                                              context-parallel rank loads; NULL: load the complete sequence */
    int64_t s;                             /* number of positions; ignored if position is NULL */
    const struct meg_batch_memory *pinned; /* memory of the micro-batches; NULL: not pinned */
    unsigned fields; /* arrays of the micro-batches: MEG_BATCH_GPT_FIELDS, with or without the bit of doc_start,
                        MEG_BATCH_BERT_FIELDS or MEG_BATCH_T5_FIELDS */
};

/*
 * meg_data_loader_open - load micro-batches of ds, beginning after sampler.consumed samples
 * ds must outlive the loader; conf, conf->position and conf->pinned are copied.  Returns the errors of
 * meg_data_sampler_open.
 */
struct meg_data_loader;
int meg_data_loader_open(struct meg_data_loader **out, const struct meg_dataset *ds,
                         const struct meg_data_loader_conf *conf, struct meg_err *e);
void meg_data_loader_close(struct meg_data_loader *l); /* accepts NULL */

/*
 * meg_data_loader_next - return the next micro-batch in *x
 *   x  in: zeroed, or the micro-batch of an earlier call; out: the micro-batch.  The loader reuses the arrays of the
 *      earlier micro-batch, so asynchronous copies from them to a device must be complete.  The caller frees the last
 *      micro-batch with meg_batch_free.
 * Returns MEG_EFAIL when too few samples are left for one micro-batch on each data-parallel rank.  Returns MEG_EIO when
 * the dataset file cannot be read.  It also returns the errors of meg_dataset_sample.  On failure, *x is unchanged.
 */
int meg_data_loader_next(struct meg_data_loader *l, struct meg_batch *x, struct meg_err *e);
