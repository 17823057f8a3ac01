/* weight_hash_check.c - check that the replicas of each weight are bit-identical. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/hash.h"
#include "train/rank_config_check.h"
#include "train/trainer.h"

/* Move the spans of a shard that all tensor-parallel ranks have to its beginning.  Return their number of elements. */
static int64_t keep_tp_replicas(char *shard, const struct meg_param *row, size_t size)
{
    int64_t n = 0;

    for (int64_t i = 0; i < meg_param_num_spans(row); i++) {
        const struct meg_param_span span = meg_param_span_at(row, i);

        if (!span.is_tp_replica)
            continue;
        memmove(shard + (size_t)n * size, shard + (size_t)span.begin * size, (size_t)(span.end - span.begin) * size);
        n += span.end - span.begin;
    }
    return n;
}

/*
 * Return two hashes of each parameter [2,params.n]: of this rank's shard, and of the elements of the shard that all
 * tensor-parallel ranks have.  A hash of no elements is 0.  The caller frees the array.
 */
static int64_t *hash_weights(const struct meg_model *g)
{
    const struct meg_params *p = &g->params;
    int64_t *hash = meg_new(2 * (size_t)p->n * sizeof *hash), most = 0, n;
    char *bytes;

    for (int i = 0; i < p->n; i++)
        most = p->row[i].shard_numel > most ? p->row[i].shard_numel : most;
    bytes = meg_new((size_t)most * sizeof(float) + 1);
    for (int i = 0; i < p->n; i++) {
        const struct meg_param *row = &p->row[i];
        const size_t size = meg_dtype_size(meg_param_dtype(row, g->run.dtype));

        if (!row->shard_numel)
            continue;
        meg_device_read(g->device, g->device->compute, bytes, meg_params_element(p, g->w, row->offset, g->run.dtype),
                        (size_t)row->shard_numel * size);
        hash[i] = (int64_t)meg_xxh3_64(bytes, (size_t)row->shard_numel * size);
        if ((n = keep_tp_replicas(bytes, row, size)))
            hash[p->n + i] = (int64_t)meg_xxh3_64(bytes, (size_t)n * size);
    }
    free(bytes);
    return hash;
}

/* Sets of parameters that are replicated on the ranks of one group; REPLICATED_TIE + k: the parameters of tie k. */
enum { REPLICATED_DP = MEG_DP_DENSE, REPLICATED_EDP = MEG_DP_EXPERT, REPLICATED_TP, REPLICATED_ETP, REPLICATED_TIE };

static bool is_replicated(const struct meg_param *row, int which)
{
    switch (which) {
    case REPLICATED_DP:
    case REPLICATED_EDP: return (int)row->dp_group == which;
    case REPLICATED_TP: return row->dp_group == MEG_DP_DENSE;
    case REPLICATED_ETP: return row->dp_group == MEG_DP_EXPERT;
    default: return row->tie == which - REPLICATED_TIE;
    }
}

/* Return the index of the first parameter with different hashes on the ranks of the group, or -1. */
static int first_difference(const struct meg_params *p, const int64_t *hash, struct meg_comm *group, int which)
{
    int64_t *both = meg_new(2 * (size_t)p->n * sizeof *both);
    int found = -1;

    for (int i = 0; i < p->n; i++) {
        both[2 * i] = is_replicated(&p->row[i], which) ? hash[i] : 0;
        both[2 * i + 1] = ~both[2 * i];
    }
    meg_host_all_reduce(group, both, 2 * p->n, MEG_DTYPE_I64, MEG_REDUCE_MAX);
    for (int i = 0; i < p->n && found < 0; i++)
        if (both[2 * i] != ~both[2 * i + 1])
            found = i;
    free(both);
    return found;
}

static int compare(const struct meg_trainer *t, const int64_t *hash, struct meg_comm *group, int which,
                   struct meg_err *e)
{
    const struct meg_comm *world = t->mesh.world;
    const int row = first_difference(&t->model->params, hash, group, which);
    char host[64] = "?";
    int64_t *all, majority;
    int r = 0;

    if (row < 0)
        return 0;
    all = meg_new((size_t)group->size * sizeof *all);
    meg_host_all_gather(group, all, &hash[row], 1, MEG_DTYPE_I64);
    majority = meg_majority_value(all, group->size);
    gethostname(host, sizeof host - 1);
    if (hash[row] != majority)
        r = meg_fail(e, MEG_EFAIL,
                     "rank %d of %d on %s: iteration %" PRId64
                     ": %s differs from its replicas in the %s group (XXH3 %016" PRIx64 ", "
                     "expected %016" PRIx64
                     "); check this machine for hardware faults, and resume from an earlier checkpoint",
                     world->rank, world->size, host, t->state.iteration, t->model->params.row[row].name, group->name,
                     (uint64_t)hash[row], (uint64_t)majority);
    free(all);
    return r;
}

int meg_weight_hash_check(const struct meg_trainer *t, struct meg_err *e)
{
    const struct meg_mesh *m = &t->mesh;
    int64_t *hash;
    int r;

    meg_optim_finish_param_sync(t->optim);
    hash = hash_weights(t->model);
    r = meg_train_agree_or_exit(t, compare(t, hash, m->dp_cp, REPLICATED_DP, e));
    if (r == 0 && meg_layout_has_expert_groups(&m->layout))
        r = meg_train_agree_or_exit(t, compare(t, hash, m->edp, REPLICATED_EDP, e));
    if (r == 0)
        r = meg_train_agree_or_exit(t, compare(t, hash + t->model->params.n, m->tp, REPLICATED_TP, e));
    if (r == 0 && meg_layout_has_expert_groups(&m->layout))
        r = meg_train_agree_or_exit(t, compare(t, hash + t->model->params.n, m->etp, REPLICATED_ETP, e));
    for (int k = 0; k < MEG_MAX_TIES && r == 0; k++)
        r = meg_train_agree_or_exit(t, compare(t, hash, m->tied[k], REPLICATED_TIE + k, e));
    free(hash);
    return r;
}
