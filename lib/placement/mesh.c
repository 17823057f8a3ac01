/* mesh.c - the axes of a mesh, and the placements that are declared. */
#include "placement/internal.h"
#ifdef MEG_DEBUG
#    include <stdio.h>
#    include <stdlib.h>
#    include <string.h>

struct placement_axis placement_axis[PLACEMENT_MAX_AXES];
int placement_naxes;
const struct meg_mesh *placement_mesh;
const struct meg_params *placement_params_table;

/* ---- axes ---- */

/*
 * Divide the ranks into axes, so that each group consists of complete axes.  Return false if this is impossible,
 * because the size of a group does not divide that of a larger group.
 */
static bool add_axes(const struct meg_mesh *m)
{
    const struct meg_layout *l = &m->layout;
    const int64_t cp = l->tp * l->cp, dp = cp * l->dp, all = dp * l->pp;
    const int64_t experts = meg_layout_replica_size(l, MEG_DP_EXPERT), shards = l->tp * l->zero.nshards;
    const int64_t sizes[] = { l->etp, experts, l->tp, l->tp * l->a2a_size, cp, shards, dp, all };
    const int64_t index = meg_layout_stage_rank(l, m->coords) + dp * m->coords.pp;
    static const char *const name[] = {
        [PLACEMENT_TP] = "tp", [PLACEMENT_CP] = "cp", [PLACEMENT_DP] = "dp", [PLACEMENT_PP] = "pp"
    };

    placement_naxes = 0;
    for (int64_t stride = 1, end; stride < all; stride = end) {
        struct placement_axis *a = &placement_axis[placement_naxes++];

        MEG_ASSERT_LE(placement_naxes, PLACEMENT_MAX_AXES);
        end = all;
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            if (sizes[i] > stride && sizes[i] < end)
                end = sizes[i];
        if (end % stride)
            return false;
        a->type = end <= l->tp ? PLACEMENT_TP : end <= cp ? PLACEMENT_CP : end <= dp ? PLACEMENT_DP : PLACEMENT_PP;
        a->size = end / stride;
        a->rank = index / stride % a->size;
        a->stride = stride;
        snprintf(a->name, sizeof a->name, "%s%s", name[a->type],
                 l->ep > 1 && stride >= l->etp && end <= experts ? " (ep)" : "");
    }
    return true;
}

/* Return the axes over which ranks of the same group of `size` ranks, of the groups of `begin` ranks, differ. */
static unsigned axes(int64_t begin, int64_t size)
{
    unsigned mask = 0;

    for (int i = 0; i < placement_naxes; i++)
        if (placement_axis[i].stride >= begin && placement_axis[i].stride < size)
            mask |= 1u << i;
    return mask;
}

static void begin_groups(const struct meg_mesh *m)
{
    const struct meg_layout *l = &m->layout;
    const int64_t tp = l->tp, cp = tp * l->cp, a2a = l->a2a_size ? tp * l->a2a_size : tp, all = cp * l->dp;
    const int64_t experts = meg_layout_replica_size(l, MEG_DP_EXPERT);
    const int64_t shards = l->zero.nshards ? tp * l->zero.nshards : all;
    const unsigned pp = axes(all, all * l->pp);

    placement_comm_begin(&meg_comm_self, 0);
    placement_comm_begin(m->tp, axes(1, tp));
    placement_comm_begin(m->cp, axes(tp, cp));
    placement_comm_begin(m->cp_a2a, axes(tp, a2a));
    placement_comm_begin(m->cp_ring, axes(a2a, cp));
    placement_comm_begin(m->pp, pp);
    placement_comm_begin(m->dp_cp, axes(tp, all));
    placement_comm_begin(m->ep, axes(l->etp, experts));
    placement_comm_begin(m->etp, axes(1, l->etp));
    placement_comm_begin(m->edp, axes(experts, all));
    placement_comm_begin(m->mp, pp | axes(1, meg_layout_mp_size(l)));
    for (int k = 0; k < MEG_DP_GROUPS; k++) {
        const int64_t first = meg_layout_replica_size(l, (enum meg_dp_group)k);

        placement_comm_begin(m->dp[k].grad, axes(first, all));
        placement_comm_begin(m->dp[k].shard, axes(first, shards));
        placement_comm_begin(m->dp[k].replica, axes(shards, all));
    }
    for (int k = 0; k < MEG_MAX_TIES; k++)
        placement_comm_begin(m->tied[k], pp);
}

void meg_placement_begin(const struct meg_device **d, const struct meg_mesh *mesh)
{
    static struct meg_device checked;

    if (mesh->world->size == 1 || !(*d)->op->is_host_memory || !add_axes(mesh))
        return;
    placement_mesh = mesh;
    begin_groups(mesh);
    checked = **d;
    checked.op = placement_ops(checked.op);
    *d = &checked;
}

void meg_placement_end(void)
{
    if (!placement_mesh)
        return;
    placement_comm_end();
    placement_norm_end();
    placement_free();
    placement_mesh = NULL;
}

/* ---- declarations ---- */

/* A dimension of which ranks share some parts and replicate others counts as sharded. */
static int sharding_of(const struct meg_param *row, enum meg_mesh_axis axis)
{
    for (int k = 0; k < row->ndim; k++)
        for (int i = 0; i < row->sharding[k].nparts; i++)
            if (row->sharding[k].part[i].axis == axis)
                return k < row->ndim - 2                      ? MEG_PLACEMENT_OUTER
                       : row->ndim == 1 || k == row->ndim - 2 ? MEG_PLACEMENT_ROWS
                                                              : MEG_PLACEMENT_COLUMNS;
    return MEG_PLACEMENT_REPLICATED;
}

struct placement placement_of_param(const struct meg_param *row)
{
    struct placement v = placement_all(MEG_PLACEMENT_REPLICATED);
    const struct meg_layout *l = &placement_mesh->layout;
    const enum meg_mesh_axis tp_axis = meg_param_tp_axis(row);
    const unsigned tp = axes(1, meg_layout_axis_size(l, tp_axis));
    const unsigned ep = axes(l->etp, meg_layout_replica_size(l, MEG_DP_EXPERT));
    const bool is_tied = row->tie >= 0 && placement_mesh->tied[row->tie]->size > 1;

    for (int i = 0; i < placement_naxes; i++)
        if (tp >> i & 1)
            v.axis[i] = (unsigned char)sharding_of(row, tp_axis);
        else if (placement_axis[i].type == PLACEMENT_PP)
            v.axis[i] = is_tied ? MEG_PLACEMENT_REPLICATED : MEG_PLACEMENT_OUTER;
        else if (ep >> i & 1)
            v.axis[i] = (unsigned char)sharding_of(row, MEG_AXIS_EP);
    return v;
}

struct placement placement_of_tokens(int tp)
{
    struct placement v = placement_all(MEG_PLACEMENT_ROWS);

    for (int i = 0; i < placement_naxes; i++)
        if (placement_axis[i].type == PLACEMENT_TP)
            v.axis[i] = (unsigned char)tp;
        else if (placement_axis[i].type == PLACEMENT_PP)
            v.axis[i] = MEG_PLACEMENT_OUTER;
    return v;
}

static struct placement over_group(struct placement v, const struct meg_comm *c, int s)
{
    const unsigned mask = placement_comm_mask(c);

    for (int i = 0; i < placement_naxes; i++)
        if (mask >> i & 1)
            v.axis[i] = (unsigned char)s;
        else if (v.axis[i] == MEG_PLACEMENT_UNKNOWN)
            v.axis[i] = MEG_PLACEMENT_REPLICATED;
    return v;
}

/* Declare that a parameter, or its gradient, is at an address. */
static void place_param(const struct meg_param *row, const void *at, enum meg_dtype dtype, bool is_grad)
{
    const size_t nbytes = (size_t)row->shard_numel * meg_dtype_size(dtype);

    placement_set_row(at, nbytes, row);
    if (!is_grad)
        placement_set(at, nbytes, placement_of_param(row));
}

void meg_placement_layer_group(const struct meg_params *p, int group, void *base, enum meg_dtype dtype, bool is_grad)
{
    if (!placement_mesh)
        return;
    placement_params_table = p;
    for (int b = 0; b < p->nbuckets; b++) {
        const struct meg_elem_range r = p->bucket[b].range;

        if (p->bucket[b].layer_group == group && (!is_grad || r.begin < p->grad_numel))
            placement_set_row(is_grad ? meg_element(base, p->bucket[b].unsharded[MEG_UNSHARDED_GRADS], dtype)
                                      : meg_params_unsharded_bucket(p, base, b, dtype),
                              (size_t)(r.end - r.begin) *
                                  meg_dtype_size(is_grad ? dtype : meg_params_dtype(p, r.begin, dtype)),
                              NULL);
    }
    for (int i = p->first_row[group]; i < p->first_row[group + 1]; i++)
        if (!is_grad)
            place_param(&p->row[i], meg_params_unsharded_element(p, base, &p->row[i], dtype),
                        meg_param_dtype(&p->row[i], dtype), false);
        else if (!p->row[i].is_frozen)
            place_param(&p->row[i], meg_element(base, p->row[i].grad_offset, dtype), dtype, true);
}

void meg_placement_params(const struct meg_params *p, void *base, enum meg_dtype dtype, bool is_grad)
{
    if (!placement_mesh || !base)
        return;
    placement_params_table = p;
    for (int i = 0; i < p->n; i++) {
        const struct meg_param *row = &p->row[i];

        if (!is_grad)
            place_param(row, meg_params_element(p, base, row->offset, dtype), meg_param_dtype(row, dtype), false);
        else if (!row->is_frozen)
            place_param(row, meg_element(base, row->grad_offset, dtype), dtype, true);
    }
}

void meg_placement_param_shard(const struct meg_param *row, void *base, int64_t n, enum meg_dtype dtype,
                               const struct meg_comm *shard)
{
    const size_t nbytes = (size_t)n * meg_dtype_size(dtype);

    if (!placement_mesh)
        return;
    placement_set_row(base, nbytes, row);
    placement_set(base, nbytes, over_group(placement_of_param(row), shard, MEG_PLACEMENT_FLAT));
}

void meg_placement_input(const void *p, size_t nbytes)
{
    if (placement_mesh)
        placement_set(p, nbytes, placement_of_tokens(MEG_PLACEMENT_REPLICATED));
}

void meg_placement_undefined(const void *p, size_t nbytes)
{
    if (placement_mesh)
        placement_set(p, nbytes, placement_all(MEG_PLACEMENT_UNKNOWN));
}

void meg_placement_declare(const void *p, size_t nbytes, const struct meg_comm *c, enum meg_placement from,
                           enum meg_placement to)
{
    const char *end = (const char *)p + nbytes;

    for (struct placement_range r = { .end = p }; placement_mesh && placement_next(&r, end);) {
        for (int i = 0; i < placement_naxes; i++) {
            const int s = r.v.axis[i];

            if (!(placement_comm_mask(c) >> i & 1) || s == PLACEMENT_ZERO)
                continue;
            if ((int)from != s)
                placement_fail("declaration", "the tensor", r.begin, s, i, "it must be %s before",
                               placement_name((int)from));
            if (from == MEG_PLACEMENT_REPLICATED && to == MEG_PLACEMENT_PARTIAL && c->rank > 0)
                placement_fail("declaration", "the tensor", r.begin, s, i, "it must be zero on this rank");
        }
        if (r.v.axis[0] != PLACEMENT_ZERO || from == MEG_PLACEMENT_UNKNOWN)
            placement_set(r.begin, (size_t)(r.end - r.begin), over_group(r.v, c, to));
    }
}
#endif
