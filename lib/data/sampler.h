/* sampler.h - the order in which a data-parallel rank reads the samples of a dataset, as in Megatron-LM. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"

enum meg_data_sampler_type {
    MEG_DATA_SAMPLER_SINGLE,          /* one pass in order */
    MEG_DATA_SAMPLER_CYCLIC,          /* repeated epochs; each rank permutes its own range of samples */
    MEG_DATA_SAMPLER_CYCLIC_UNSHARDED /* repeated epochs; all ranks use the same permutation (--no-data-sharding) */
};

struct meg_data_sampler_conf {
    enum meg_data_sampler_type type;
    int64_t total;       /* number of samples in the dataset */
    int64_t consumed;    /* samples that all ranks together consumed before this run, from the checkpoint */
    int64_t micro_batch; /* sequences per micro-batch, b */
    int64_t rank, ranks; /* rank in the data-parallel group, and size of the group */
};

/*
 * meg_data_sampler_open - create a sampler that continues after conf->consumed samples
 * For a cyclic sampler, returns MEG_EUSAGE in two cases:
 *   - The dataset has fewer than micro_batch * ranks samples.
 *   - The number of samples consumed in the current epoch is not a multiple of micro_batch * ranks.
 * A cyclic order depends on micro_batch and ranks, but not on the rest of the parallel layout.  The permutations of a
 * cyclic order equal torch.randperm, seeded with the epoch, for up to 214 million elements.  torch permutes longer
 * arrays differently.
 */
struct meg_data_sampler;
int meg_data_sampler_open(struct meg_data_sampler **out, const struct meg_data_sampler_conf *conf, struct meg_err *e);
void meg_data_sampler_close(struct meg_data_sampler *s); /* accepts NULL */

/*
 * meg_data_sampler_next - compute the next micro-batch of this rank
 *   index      [b]  out  indices of the samples in the dataset
 *   sample_id  [b]  out  global number of each sample: the number of samples that all ranks consume before this sample
 * Returns false when MEG_DATA_SAMPLER_SINGLE has fewer than micro_batch * ranks samples left.
 */
bool meg_data_sampler_next(struct meg_data_sampler *s, int64_t *index, int64_t *sample_id);
