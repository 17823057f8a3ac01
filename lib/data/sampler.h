/* sampler.h - the order in which a data-parallel rank reads the samples of a dataset: Megatron-LM's samplers. */
#ifndef MEG_DATA_SAMPLER_H
#define MEG_DATA_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/decls.h"
#include "base/err.h"

MEG_BEGIN_DECLS

enum meg_data_sampler_type {
    MEG_DATA_SAMPLER_SINGLE,          /* one pass in order; ends */
    MEG_DATA_SAMPLER_CYCLIC,          /* each epoch permuted, every rank within its own range of samples; never ends */
    MEG_DATA_SAMPLER_CYCLIC_UNSHARDED /* each epoch permuted as one, strided over ranks (--no-data-sharding) */
};

struct meg_data_sampler_conf {
    enum meg_data_sampler_type type;
    int64_t total;       /* samples of the dataset */
    int64_t consumed;    /* samples that all ranks have read before, from the checkpoint */
    int64_t micro_batch; /* sequences of a micro-batch, b */
    int64_t rank, ranks; /* of the data-parallel group */
};

/*
 * meg_data_sampler_open - create a sampler that continues after conf->consumed samples
 * Returns MEG_EUSAGE when the dataset has too few samples for one step of a cyclic sampler, or when consumed is not a
 * multiple of micro_batch * ranks within its epoch.
 * A cyclic order depends on ranks and on nothing else of the layout.  Its permutation is torch.randperm seeded with the
 * epoch, verified up to 214 million samples a rank.
 */
struct meg_data_sampler;
int meg_data_sampler_open(struct meg_data_sampler **out, const struct meg_data_sampler_conf *conf, struct meg_err *e);
void meg_data_sampler_close(struct meg_data_sampler *s); /* accepts NULL */

/*
 * meg_data_sampler_next - compute the next micro-batch of this rank
 *   index      [b]  out  samples of the dataset
 *   sample_id  [b]  out  number of each sample in the order in which all ranks consume them, equal under every layout
 * Returns false when a single pass has no complete step left.
 */
bool meg_data_sampler_next(struct meg_data_sampler *s, int64_t *index, int64_t *sample_id);

MEG_END_DECLS

#endif
