/* Split the world communicator into the parallel groups of this rank. */
#include "parallel/mesh.h"

#define SELF &meg_comm_self
const struct meg_mesh meg_mesh_one = {
    .layout = { .tp = 1, .cp = 1, .dp = 1, .pp = 1, .vp = 1 },
    .world = SELF,
    .tp = SELF,
    .cp = SELF,
    .cp_a2a = SELF,
    .cp_ring = SELF,
    .pp = SELF,
    .dp_cp = SELF,
    .dp_grad = SELF,
    .dp_shard = SELF,
    .dp_replica = SELF,
    .mp = SELF,
    .tied = { SELF, SELF, SELF, SELF },
};

void meg_mesh_init_dry(struct meg_mesh *m, const struct meg_layout *l, int64_t rank)
{
    *m = (struct meg_mesh){ .layout = *l, .coords = meg_layout_coords(l, rank) };
}

/*
 * Return this rank's group of `size` ranks.  `first` has the coordinates of the group's first rank.  The world rank of
 * this first rank is the color of the split.
 */
static struct meg_comm *split(struct meg_mesh *m, struct meg_rank_coords first, int64_t size, const char *name)
{
    if (size == 1)
        return SELF;
    return meg_comm_split(m->world, (int)meg_layout_rank(&m->layout, first), name);
}

/*
 * Split dp_cp.  Without a sharded optimizer (zero.nshards is 0), dp_grad is all of dp_cp.  Otherwise, dp_shard is an
 * optimizer instance of zero.nshards consecutive ranks, and dp_replica has the ranks with the same shard.
 */
static void split_dp_groups(struct meg_mesh *m)
{
    const struct meg_layout *l = &m->layout;
    const struct meg_rank_coords c = m->coords;
    const int64_t n = l->dp * l->cp, nshards = l->zero.nshards ? l->zero.nshards : 1, i = c.cp + l->cp * c.dp;
    const int64_t shard = i % nshards, first = i - shard;

    m->dp_grad = split(m, (struct meg_rank_coords){ c.tp, 0, 0, c.pp }, l->zero.nshards ? 1 : n, "gradient");
    m->dp_shard =
        split(m, (struct meg_rank_coords){ c.tp, first % l->cp, first / l->cp, c.pp }, nshards, "optimizer-shard");
    m->dp_replica = split(m, (struct meg_rank_coords){ c.tp, shard % l->cp, shard / l->cp, c.pp },
                          l->zero.nshards ? n / nshards : 1, "optimizer-instance");
}

/*
 * Split the stages with replicas of the parameters of tie k.  The split is collective over world, so ranks of other
 * stages call it; each gets a group of one rank.
 */
static struct meg_comm *split_tie(struct meg_mesh *m, int k)
{
    const struct meg_layout *l = &m->layout;
    struct meg_rank_coords first = m->coords;
    int64_t nstages = 0;

    for (int64_t stage = 0; k < l->nties && stage < l->pp; stage++)
        nstages += meg_layout_has_tie(l, stage, k);
    if (nstages <= 1)
        return SELF;
    if (meg_layout_has_tie(l, first.pp, k))
        first.pp = meg_layout_first_tied_stage(l, k);
    return split(m, first, nstages, l->tie[k].name);
}

void meg_mesh_make(struct meg_mesh *m, struct meg_comm *world, const struct meg_layout *l)
{
    struct meg_rank_coords c;
    int64_t a2a, ring;

    MEG_ASSERT_EQ(meg_layout_world(l), world->size);
    meg_mesh_init_dry(m, l, world->rank);
    m->world = world;
    c = m->coords;
    m->tp = split(m, (struct meg_rank_coords){ 0, c.cp, c.dp, c.pp }, l->tp, "tensor-parallel");
    m->cp = split(m, (struct meg_rank_coords){ c.tp, 0, c.dp, c.pp }, l->cp, "context-parallel");
    a2a = l->a2a_size ? l->a2a_size : 1;
    ring = l->a2a_size ? l->cp / l->a2a_size : 1;
    m->cp_a2a = split(m, (struct meg_rank_coords){ c.tp, c.cp - c.cp % a2a, c.dp, c.pp }, a2a, "context-parallel a2a");
    m->cp_ring = split(m, (struct meg_rank_coords){ c.tp, c.cp % a2a, c.dp, c.pp }, ring, "context-parallel ring");
    m->pp = split(m, (struct meg_rank_coords){ c.tp, c.cp, c.dp, 0 }, l->pp, "pipeline");
    m->dp_cp = split(m, (struct meg_rank_coords){ c.tp, 0, 0, c.pp }, l->dp * l->cp, "data- and context-parallel");
    split_dp_groups(m);
    m->mp = split(m, (struct meg_rank_coords){ 0, c.cp, c.dp, 0 }, l->tp * l->pp, "model-parallel");
    for (int k = 0; k < MEG_MAX_TIES; k++)
        m->tied[k] = split_tie(m, k);
}

void meg_mesh_close(struct meg_mesh *m)
{
    struct meg_comm *all[] = { m->tp,    m->cp,      m->cp_a2a,   m->cp_ring,    m->pp,
                               m->dp_cp, m->dp_grad, m->dp_shard, m->dp_replica, m->mp };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        meg_comm_close(all[i]);
    for (int k = 0; k < MEG_MAX_TIES; k++)
        meg_comm_close(m->tied[k]);
}
