#include "parallel/mesh.h"

#define SELF &meg_comm_self
const struct meg_mesh meg_mesh_one = { { 1, 1, 1, 1, 1, false, false, 0, MEG_UNSET, MEG_UNSET, 0, { 0 }, { 0, 0, 0 } },
                                       { 0 },
                                       SELF,
                                       SELF,
                                       SELF,
                                       SELF,
                                       SELF,
                                       SELF,
                                       SELF,
                                       SELF,
                                       SELF,
                                       SELF,
                                       SELF,
                                       SELF };

void meg_mesh_init_dry(struct meg_mesh *m, const struct meg_layout *l, int64_t rank)
{
    *m = (struct meg_mesh){ .layout = *l, .at = meg_layout_coords(l, rank) };
}

/* The ranks that agree with this one on every axis but those of the group: where they are 0 is its color. */
static struct meg_comm *group(struct meg_mesh *m, struct meg_rank_coords first, int64_t size, const char *name)
{
    if (size == 1)
        return SELF;
    return meg_comm_split(m->world, (int)meg_layout_rank(&m->layout, first), name);
}

/* Split the data- and context-parallel ranks, in order, into the optimizer instances of zero.nshards ranks each. */
static void split_dp_groups(struct meg_mesh *m)
{
    const struct meg_layout *l = &m->layout;
    const struct meg_rank_coords at = m->at;
    const int64_t n = l->dp * l->cp, per = l->zero.nshards ? l->zero.nshards : 1, i = at.cp + l->cp * at.dp;
    const int64_t first = i - i % per, slice = i % per;

    m->copies = group(m, (struct meg_rank_coords){ at.tp, 0, 0, at.pp }, l->zero.nshards ? 1 : n, "gradient");
    m->slices =
        group(m, (struct meg_rank_coords){ at.tp, first % l->cp, first / l->cp, at.pp }, per, "optimizer-slice");
    m->same = group(m, (struct meg_rank_coords){ at.tp, slice % l->cp, slice / l->cp, at.pp },
                    l->zero.nshards ? n / per : 1, "optimizer-instance");
}

void meg_mesh_make(struct meg_mesh *m, struct meg_comm *world, const struct meg_layout *l)
{
    struct meg_rank_coords at;
    int64_t near, far;

    MEG_ASSERT_EQ(meg_layout_world(l), world->size);
    meg_mesh_init_dry(m, l, world->rank);
    m->world = world;
    at = m->at;
    m->tp = group(m, (struct meg_rank_coords){ 0, at.cp, at.dp, at.pp }, l->tp, "tensor-parallel");
    m->cp = group(m, (struct meg_rank_coords){ at.tp, 0, at.dp, at.pp }, l->cp, "context-parallel");
    near = l->cp_near ? l->cp_near : 1;
    far = l->cp_near ? l->cp / l->cp_near : 1;
    m->cp_near = group(m, (struct meg_rank_coords){ at.tp, at.cp - at.cp % near, at.dp, at.pp }, near,
                       "context-parallel neighbours");
    m->cp_far = group(m, (struct meg_rank_coords){ at.tp, at.cp % near, at.dp, at.pp }, far, "context-parallel, far");
    m->pp = group(m, (struct meg_rank_coords){ at.tp, at.cp, at.dp, 0 }, l->pp, "pipeline");
    m->dp_cp = group(m, (struct meg_rank_coords){ at.tp, 0, 0, at.pp }, l->dp * l->cp, "data- and context-parallel");
    split_dp_groups(m);
    m->model = group(m, (struct meg_rank_coords){ 0, at.cp, at.dp, 0 }, l->tp * l->pp, "model-parallel");
    /* stages between the ends are groups of their own, colored by their rank */
    at.pp = at.pp == l->pp - 1 ? 0 : at.pp;
    m->ends = group(m, at, l->pp > 1 ? 2 : 1, "embedding");
}

void meg_mesh_close(struct meg_mesh *m)
{
    struct meg_comm *all[] = { m->tp,     m->cp,     m->cp_near, m->cp_far, m->pp,  m->dp_cp,
                               m->copies, m->slices, m->same,    m->model,  m->ends };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        meg_comm_close(all[i]);
}
