/* Micro-batches of a data-parallel rank, in the layout that the model reads. */
#ifndef MEG_DATA_LOADER_H
#define MEG_DATA_LOADER_H

#include <stdint.h>

#include "data/dataset.h"
#include "data/sampler.h"

/*
 * One micro-batch; what each array holds is said at struct meg_sample.  Sequence first: token t of
 * row i is at t * b + i.  The arrays are the loader's.
 */
struct meg_batch {
    int64_t s, b;
    const int32_t *tokens, *labels;          /* [s, b] */
    const float *loss_mask;                  /* [s, b] */
    const int32_t *position_ids, *doc_start; /* [s, b] */
    const int64_t *sample_id;                /* [b] number of the sample in the run, the same under every layout */
};

/*
 * meg_data_loader_open - micro-batches of ds from where conf->consumed samples have been read
 *   conf  micro_batch is b; total is taken from ds
 *   read_ahead  micro-batches a thread of the loader's prepares in advance; 0: none, no thread
 * ds must outlive the loader.  Fails as meg_data_sampler_open.
 */
struct meg_data_loader;
int meg_data_loader_open(struct meg_data_loader **out, const struct meg_dataset *ds,
                         const struct meg_data_sampler_conf *conf, int read_ahead, struct meg_err *e);
void meg_data_loader_close(struct meg_data_loader *l); /* accepts NULL */

/*
 * meg_data_loader_next - the next micro-batch, good until the next call
 * MEG_EFAIL when the dataset has no full step left; errors of meg_dataset_sample.
 */
int meg_data_loader_next(struct meg_data_loader *l, struct meg_batch *b, struct meg_err *e);

#endif
