/* mesh.c - split the world communicator into the parallel groups of this rank. */
#include "parallel/mesh.h"

#define SELF &meg_comm_self
const struct meg_mesh meg_mesh_one = {
    .layout = { .tp = 1, .cp = 1, .dp = 1, .pp = 1, .ep = 1, .etp = 1, .vp = 1 },
    .world = SELF,
    .tp = SELF,
    .cp = SELF,
    .cp_a2a = SELF,
    .cp_ring = SELF,
    .pp = SELF,
    .dp_cp = SELF,
    .ep = SELF,
    .etp = SELF,
    .edp = SELF,
    .dp = { { SELF, SELF, SELF }, { SELF, SELF, SELF } },
    .mp = SELF,
    .tied = { SELF, SELF, SELF, SELF },
};

void meg_mesh_init_dry(struct meg_mesh *m, const struct meg_layout *l, int64_t rank)
{
    *m = (struct meg_mesh){ .layout = *l, .coords = meg_layout_coords(l, rank) };
}

/*
 * Return this rank's group of `size` ranks.  The first rank of the group is on stage pp and has the index `first` there
 * (meg_layout_stage_rank).  Its world rank is the color of the split.
 */
static struct meg_comm *split(struct meg_mesh *m, int64_t first, int64_t pp, int64_t size, const char *name)
{
    const struct meg_layout *l = &m->layout;
    const struct meg_rank_coords c = { first % l->tp, first / l->tp % l->cp, first / l->tp / l->cp, pp };

    if (size == 1)
        return SELF;
    return meg_comm_split(m->world, (int)meg_layout_rank(l, c), name);
}

/*
 * Split a data-parallel group.  Without a sharded optimizer (zero.nshards is 0), `grad` is the complete group.
 * Otherwise, `shard` is this rank's optimizer instance, and `replica` has the ranks with the same shard.
 */
static struct meg_dp_comms split_dp(struct meg_mesh *m, enum meg_dp_group group)
{
    static const char *const name[MEG_DP_GROUPS][3] = {
        [MEG_DP_DENSE] = { "gradient", "optimizer-shard", "optimizer-instance" },
        [MEG_DP_EXPERT] = { "expert gradient", "expert optimizer-shard", "expert optimizer-instance" },
    };
    const struct meg_layout *l = &m->layout;
    const struct meg_rank_coords c = m->coords;
    const int64_t stride = meg_layout_replica_size(l, group), n = meg_layout_dp_size(l, group);
    const int64_t nshards = l->zero.nshards ? meg_layout_num_shards(l, group) : 1;
    const int64_t begin = meg_layout_stage_rank(l, c) % stride, i = meg_layout_dp_rank(l, c, group);
    const int64_t shard = i % nshards, first = i - shard; /* first: first rank of the instance */
    struct meg_dp_comms comms;

    comms.grad = split(m, begin, c.pp, l->zero.nshards ? 1 : n, name[group][0]);
    comms.shard = split(m, begin + first * stride, c.pp, nshards, name[group][1]);
    comms.replica = split(m, begin + shard * stride, c.pp, l->zero.nshards ? n / nshards : 1, name[group][2]);
    return comms;
}

/* Split the groups of the experts. */
static void split_experts(struct meg_mesh *m)
{
    const struct meg_layout *l = &m->layout;
    const int64_t pp = m->coords.pp, i = meg_layout_stage_rank(l, m->coords);
    const int64_t size = meg_layout_replica_size(l, MEG_DP_EXPERT);

    MEG_ASSERT_EQ(l->tp * l->dp * l->cp % size, 0);
    m->ep = split(m, i - i % size + i % l->etp, pp, l->ep, "expert-parallel");
    m->etp = m->tp;
    m->edp = m->dp_cp;
    m->dp[MEG_DP_EXPERT] = m->dp[MEG_DP_DENSE];
    if (l->etp != l->tp)
        m->etp = split(m, i - i % l->etp, pp, l->etp, "expert tensor-parallel");
    if (!meg_layout_has_expert_groups(l))
        return;
    m->edp = split(m, i % size, pp, meg_layout_dp_size(l, MEG_DP_EXPERT), "expert data-parallel");
    m->dp[MEG_DP_EXPERT] = split_dp(m, MEG_DP_EXPERT);
}

/*
 * Create a communicator of the pipeline stages with replicas of the tied parameters l->tie[k].  The call is collective
 * over world: a rank of another stage gets a communicator that contains only itself.
 */
static struct meg_comm *split_tie(struct meg_mesh *m, int k)
{
    const struct meg_layout *l = &m->layout;
    int64_t nstages = 0, pp = m->coords.pp;

    for (int64_t stage = 0; k < l->nties && stage < l->pp; stage++)
        nstages += meg_layout_has_tie(l, stage, k);
    if (nstages <= 1)
        return SELF;
    if (meg_layout_has_tie(l, pp, k))
        pp = meg_layout_first_tied_stage(l, k);
    return split(m, meg_layout_stage_rank(l, m->coords), pp, nstages, l->tie[k].name);
}

void meg_mesh_make(struct meg_mesh *m, struct meg_comm *world, const struct meg_layout *l)
{
    const struct meg_rank_coords c = meg_layout_coords(l, world->rank);
    const int64_t a2a = l->a2a_size ? l->a2a_size : 1, ring = l->a2a_size ? l->cp / l->a2a_size : 1;
    const int64_t i = meg_layout_stage_rank(l, c), mp = meg_layout_mp_size(l);

    MEG_ASSERT_EQ(meg_layout_world(l), world->size);
    meg_mesh_init_dry(m, l, world->rank);
    m->world = world;
    m->tp = split(m, i - c.tp, c.pp, l->tp, "tensor-parallel");
    m->cp = split(m, i - l->tp * c.cp, c.pp, l->cp, "context-parallel");
    m->cp_a2a = split(m, i - l->tp * (c.cp % a2a), c.pp, a2a, "context-parallel a2a");
    m->cp_ring = split(m, i - l->tp * (c.cp - c.cp % a2a), c.pp, ring, "context-parallel ring");
    m->pp = split(m, i, 0, l->pp, "pipeline");
    m->dp_cp = split(m, c.tp, c.pp, l->dp * l->cp, "data- and context-parallel");
    m->dp[MEG_DP_DENSE] = split_dp(m, MEG_DP_DENSE);
    split_experts(m);
    m->mp = split(m, i - i % mp, 0, mp * l->pp, "model-parallel");
    for (int k = 0; k < MEG_MAX_TIES; k++)
        m->tied[k] = split_tie(m, k);
}

static void close_dp(const struct meg_dp_comms *c)
{
    meg_comm_close(c->grad);
    meg_comm_close(c->shard);
    meg_comm_close(c->replica);
}

void meg_mesh_close(struct meg_mesh *m)
{
    struct meg_comm *all[] = { m->tp, m->cp, m->cp_a2a, m->cp_ring, m->pp, m->dp_cp, m->ep, m->mp };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        meg_comm_close(all[i]);
    close_dp(&m->dp[MEG_DP_DENSE]);
    if (m->layout.etp != m->layout.tp)
        meg_comm_close(m->etp);
    if (meg_layout_has_expert_groups(&m->layout)) {
        meg_comm_close(m->edp);
        close_dp(&m->dp[MEG_DP_EXPERT]);
    }
    for (int k = 0; k < MEG_MAX_TIES; k++)
        meg_comm_close(m->tied[k]);
}

/* Set groups to the data-parallel groups with which memory is registered, and return their number. */
static int registering_groups(const struct meg_mesh *m, struct meg_comm *groups[3 * MEG_DP_GROUPS])
{
    int n = 0;

    for (int i = 0; m->registers_buffers && i < (meg_layout_has_expert_groups(&m->layout) ? MEG_DP_GROUPS : 1); i++) {
        struct meg_comm *const all[] = { m->dp[i].grad, m->dp[i].shard, m->dp[i].replica };

        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            if (all[k]->op->alloc)
                groups[n++] = all[k];
    }
    return n;
}

void *meg_mesh_alloc(const struct meg_mesh *m, const struct meg_device *d, size_t nbytes)
{
    struct meg_comm *groups[3 * MEG_DP_GROUPS];
    const int n = registering_groups(m, groups);
    void *p;

    if (n == 0)
        return d->op->alloc(nbytes);
    if ((p = groups[0]->op->alloc(groups, n, nbytes))) {
        d->op->zero(d->compute, p, nbytes);
        meg_device_synchronize(d, d->compute);
    }
    return p;
}

void meg_mesh_release(const struct meg_mesh *m, const struct meg_device *d, void *p)
{
    struct meg_comm *groups[3 * MEG_DP_GROUPS];
    const int n = registering_groups(m, groups);

    if (n == 0) {
        d->op->release(p);
    } else if (p) {
        meg_device_synchronize(d, d->compute);
        groups[0]->op->release(groups, n, p);
    }
}
