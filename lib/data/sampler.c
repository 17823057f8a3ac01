/* sampler.c - the order in which a data-parallel rank reads the samples of a dataset, as in Megatron-LM. */
#include "data/sampler.h"
#include <inttypes.h>
#include <stdlib.h>
#include "base/mem.h"
#include "data/mt19937.h"

struct meg_data_sampler {
    struct meg_data_sampler_conf c;
    int64_t step; /* samples per micro-batch, summed over the ranks: micro_batch * ranks */
    int64_t consumed;
    /* cyclic: the remaining samples of this epoch are first + perm[at], first + perm[at + stride], ... */
    int64_t *perm, nperm, at, stride, first;
};

static int64_t samples_per_epoch(const struct meg_data_sampler *s)
{
    return s->c.total - s->c.total % s->step;
}

static void begin_epoch(struct meg_data_sampler *s)
{
    const struct meg_data_sampler_conf *c = &s->c;
    int64_t epoch = s->consumed / samples_per_epoch(s), done = s->consumed % samples_per_epoch(s);

    meg_torch_randperm(s->perm, s->nperm, (uint32_t)epoch);
    if (c->type == MEG_DATA_SAMPLER_CYCLIC) {
        s->at = done / c->ranks;
        s->stride = 1;
        s->first = c->rank * s->nperm;
    } else {
        s->at = done + c->rank;
        s->stride = c->ranks;
        s->first = 0;
    }
}

int meg_data_sampler_open(struct meg_data_sampler **out, const struct meg_data_sampler_conf *c, struct meg_err *e)
{
    struct meg_data_sampler *s;
    int64_t step = c->micro_batch * c->ranks;

    if (c->type != MEG_DATA_SAMPLER_SINGLE) {
        if (c->total < step)
            return meg_fail(e, MEG_EUSAGE,
                            "--dataloader-type cyclic: the dataset has %" PRId64
                            " samples, but one micro-batch of %" PRId64 " samples on each of %" PRId64
                            " data-parallel ranks needs %" PRId64
                            "; use a larger dataset or a smaller --micro-batch-size",
                            c->total, c->micro_batch, c->ranks, step);
        if (c->consumed % (c->total - c->total % step) % step)
            return meg_fail(e, MEG_EUSAGE,
                            "--dataloader-type cyclic: the checkpoint has consumed %" PRId64
                            " samples, which is not a multiple of the %" PRId64
                            " samples of one micro-batch on each data-parallel rank; use the micro-batch and "
                            "data-parallel sizes of the checkpoint",
                            c->consumed, step);
    }
    s = meg_new(sizeof *s);
    s->c = *c;
    s->step = step;
    s->consumed = c->consumed;
    if (c->type == MEG_DATA_SAMPLER_CYCLIC)
        s->nperm = c->total / step * c->micro_batch;
    else if (c->type == MEG_DATA_SAMPLER_CYCLIC_UNSHARDED)
        s->nperm = c->total / c->micro_batch * c->micro_batch;
    if (s->nperm) {
        s->perm = meg_realloc_array(NULL, (size_t)s->nperm, sizeof *s->perm);
        begin_epoch(s);
    }
    *out = s;
    return 0;
}

void meg_data_sampler_close(struct meg_data_sampler *s)
{
    if (!s)
        return;
    free(s->perm);
    free(s);
}

bool meg_data_sampler_next(struct meg_data_sampler *s, int64_t *index, int64_t *sample_id)
{
    const struct meg_data_sampler_conf *c = &s->c;
    const bool is_cyclic = c->type != MEG_DATA_SAMPLER_SINGLE;

    if (is_cyclic && s->at + (c->micro_batch - 1) * s->stride >= s->nperm)
        begin_epoch(s);
    if (!is_cyclic && s->consumed + s->step > c->total)
        return false;
    for (int64_t i = 0; i < c->micro_batch; i++) {
        sample_id[i] = s->consumed + c->rank * c->micro_batch + i;
        index[i] = is_cyclic ? s->first + s->perm[s->at] : sample_id[i];
        s->at += s->stride;
    }
    s->consumed += s->step;
    return true;
}
