/* Which samples a data-parallel rank reads, and when: Megatron's two orders. */
#ifndef MEG_DATA_SAMPLER_H
#define MEG_DATA_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum meg_data_sampler_type {
    MEG_DATA_SAMPLER_SINGLE,          /* once through, in order; ends */
    MEG_DATA_SAMPLER_CYCLIC,          /* each epoch permuted, each rank inside its own share; never ends */
    MEG_DATA_SAMPLER_CYCLIC_UNSHARDED /* each epoch permuted as a whole, ranks take turns (--no-data-sharding) */
};

struct meg_data_sampler_conf {
    enum meg_data_sampler_type type;
    int64_t total;       /* samples of the dataset */
    int64_t consumed;    /* samples all ranks have read before, from the checkpoint */
    int64_t micro_batch; /* b */
    int64_t rank, ranks; /* of the data-parallel group */
};

/*
 * meg_data_sampler_open - stands where conf->consumed samples have been read
 * MEG_EUSAGE when cyclic has too few samples for one step of all ranks, or would begin between two
 * steps (consumed no multiple of micro_batch * ranks).
 * The order of cyclic depends on ranks and on nothing else of the layout; its permutation is torch's
 * randperm seeded with the epoch, known up to 214 million samples a rank.
 */
struct meg_data_sampler;
int meg_data_sampler_open(struct meg_data_sampler **out, const struct meg_data_sampler_conf *conf, struct meg_err *e);
void meg_data_sampler_close(struct meg_data_sampler *s); /* accepts NULL */

/*
 * meg_data_sampler_next - the next micro-batch of this rank
 *   index   [b]  out  samples of the dataset
 *   number  [b]  out  which sample of the run each is: the position in the order in which all ranks
 *                     consume, the same under every layout
 * False where single has no full step left.
 */
bool meg_data_sampler_next(struct meg_data_sampler *s, int64_t *index, int64_t *sample_id);

#endif
