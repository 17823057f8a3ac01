/* checkpoint_shards.c - the shards of this rank's weights and optimizer state in a checkpoint. */
#include "train/trainer.h"

/* Describe this rank's elements of the flat parameter buffer; the caller sets name, data and dtype. */
static struct meg_ckpt_shard shard_of(const struct meg_optim *o, int nbucket_shards)
{
    return (struct meg_ckpt_shard){ .device = o->model->device,
                                    .ranges = o->mesh->layout.zero.nshards ? o->shard.range : NULL,
                                    .nranges = nbucket_shards,
                                    .replica = o->mesh->dp[MEG_DP_DENSE].replica->rank,
                                    .nreplicas = o->mesh->dp[MEG_DP_DENSE].replica->size };
}

int meg_train_list_optim_shards(const struct meg_optim *o, struct meg_ckpt_shard shard[MEG_TRAIN_MAX_OPTIM_SHARDS])
{
    const struct meg_ckpt_shard common = shard_of(o, o->shard.nupdated);
    int n = 0;

    if (o->buf.main) {
        shard[n] = common;
        shard[n].name = MEG_CKPT_MAIN_PARAMS;
        shard[n++].data = o->buf.main;
    }
    for (int i = 0; i < o->optimizer->nstates; i++) {
        shard[n] = common;
        shard[n].name = o->optimizer->state[i].name;
        shard[n].dtype = o->state_dtype[i];
        shard[n++].data = o->buf.state[i];
    }
    return n;
}

struct meg_ckpt_shard meg_train_weight_shard(const struct meg_trainer *t)
{
    struct meg_ckpt_shard s = { .data = t->model->w, .device = t->device };

    if (t->optim && t->optim->shard.params) {
        s = shard_of(t->optim, t->optim->shard.nbucket_shards);
        s.data = t->optim->shard.params;
    }
    s.dtype = t->model->run.dtype;
    return s;
}
