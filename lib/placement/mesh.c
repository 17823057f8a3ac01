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

static void add_axis(enum placement_axis_type type, const char *name, int64_t size, int64_t rank, int64_t stride)
{
    struct placement_axis *a = &placement_axis[placement_naxes];

    if (size == 1)
        return;
    MEG_ASSERT_LT(placement_naxes, PLACEMENT_MAX_AXES);
    placement_naxes++;
    *a = (struct placement_axis){ .type = type, .size = size, .rank = rank, .stride = stride };
    snprintf(a->name, sizeof a->name, "%s", name);
}

/*
 * Divide the data- and context-parallel ranks into axes, so that each group consists of complete axes.  Return false if
 * this is impossible, because the size of a group does not divide that of a larger group.
 */
static bool add_data_axes(const struct meg_layout *l, int64_t rank)
{
    const int64_t sizes[] = { l->cp, l->a2a_size, l->ep, l->zero.nshards, l->cp * l->dp };
    int64_t stride = 1;

    while (stride < l->cp * l->dp) {
        int64_t next = l->cp * l->dp;

        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            if (sizes[i] > stride && sizes[i] < next)
                next = sizes[i];
        if (next % stride)
            return false;
        add_axis(next <= l->cp ? PLACEMENT_CP : PLACEMENT_DP, next <= l->cp ? "cp" : "dp", next / stride,
                 rank / stride % (next / stride), stride);
        if (l->ep > 1 && next <= l->ep)
            strcat(placement_axis[placement_naxes - 1].name, " (ep)");
        stride = next;
    }
    return true;
}

/* Return the axes over which ranks of the same group of `size` ranks, of the groups of `begin` ranks, differ. */
static unsigned data_mask(int64_t begin, int64_t size)
{
    unsigned mask = 0;

    for (int i = 0; i < placement_naxes; i++)
        if (placement_axis[i].stride >= begin && placement_axis[i].stride < size)
            mask |= 1u << i;
    return mask;
}

static unsigned type_mask(enum placement_axis_type type)
{
    unsigned mask = 0;

    for (int i = 0; i < placement_naxes; i++)
        if (placement_axis[i].type == type)
            mask |= 1u << i;
    return mask;
}

static void begin_dp(const struct meg_mesh *m, enum meg_dp_group group)
{
    const struct meg_layout *l = &m->layout;
    const int64_t first = meg_layout_dp_stride(l, group), all = l->dp * l->cp;
    const int64_t shards = l->zero.nshards ? l->zero.nshards : all;

    placement_comm_begin(m->dp[group].grad, data_mask(first, all));
    placement_comm_begin(m->dp[group].shard, data_mask(first, shards));
    placement_comm_begin(m->dp[group].replica, data_mask(shards, all));
}

static void begin_groups(const struct meg_mesh *m)
{
    const struct meg_layout *l = &m->layout;
    const int64_t a2a = l->a2a_size ? l->a2a_size : 1, all = l->dp * l->cp;
    const unsigned tp = type_mask(PLACEMENT_TP), pp = type_mask(PLACEMENT_PP);

    placement_comm_begin(&meg_comm_self, 0);
    placement_comm_begin(m->tp, tp);
    placement_comm_begin(m->cp, data_mask(1, l->cp));
    placement_comm_begin(m->cp_a2a, data_mask(1, a2a));
    placement_comm_begin(m->cp_ring, data_mask(a2a, l->cp));
    placement_comm_begin(m->pp, pp);
    placement_comm_begin(m->dp_cp, data_mask(1, all));
    placement_comm_begin(m->ep, data_mask(1, l->ep));
    placement_comm_begin(m->edp, data_mask(l->ep, all));
    placement_comm_begin(m->mp, tp | pp | data_mask(1, l->ep));
    begin_dp(m, MEG_DP_DENSE);
    begin_dp(m, MEG_DP_EXPERT);
    for (int k = 0; k < MEG_MAX_TIES; k++)
        placement_comm_begin(m->tied[k], pp);
}

const struct meg_device *meg_placement_begin(const struct meg_device *d, const struct meg_mesh *mesh)
{
    static struct meg_device checked;
    const struct meg_layout *l = &mesh->layout;

    placement_naxes = 0;
    if (mesh->world->size == 1 || !d->op->is_host_memory)
        return d;
    add_axis(PLACEMENT_TP, "tp", l->tp, mesh->coords.tp, 0);
    add_axis(PLACEMENT_PP, "pp", l->pp, mesh->coords.pp, 0);
    if (!add_data_axes(l, meg_layout_dp_cp_rank(l, mesh->coords)))
        return d;
    placement_mesh = mesh;
    begin_groups(mesh);
    checked = *d;
    checked.op = placement_ops(d->op);
    return &checked;
}

void meg_placement_end(void)
{
    if (!placement_mesh)
        return;
    placement_comm_end();
    placement_norm_end();
    placement_mesh = NULL;
    free(placement_table.range);
    free(placement_declared.range);
    placement_table = placement_declared = (struct placement_table){ 0 };
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

/* Return the placement of a parameter. */
static struct placement placement_of_param(const struct meg_param *row)
{
    struct placement v = placement_all(MEG_PLACEMENT_REPLICATED);
    const unsigned ep = data_mask(1, placement_mesh->layout.ep);

    for (int i = 0; i < placement_naxes; i++) {
        if (placement_axis[i].type == PLACEMENT_TP)
            v.axis[i] = (unsigned char)sharding_of(row, MEG_AXIS_TP);
        else if (placement_axis[i].type == PLACEMENT_PP)
            v.axis[i] = row->tie >= 0 && placement_mesh->tied[row->tie]->size > 1 ? MEG_PLACEMENT_REPLICATED
                                                                                  : MEG_PLACEMENT_OUTER;
        else if (ep >> i & 1)
            v.axis[i] = (unsigned char)sharding_of(row, MEG_AXIS_EP);
    }
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

    placement_set(&placement_declared, at, nbytes, placement_of_param(row), row);
    if (!is_grad)
        placement_set(&placement_table, at, nbytes, placement_of_param(row), NULL);
}

void meg_placement_layer_group(const struct meg_params *p, int group, void *base, enum meg_dtype dtype, bool is_grad)
{
    const struct meg_elem_range range = p->layer_group[group];

    if (!placement_mesh)
        return;
    placement_params_table = p;
    placement_remove(&placement_declared, base, (size_t)(range.end - range.begin) * meg_dtype_size(dtype));
    for (int i = p->first_row[group]; i < p->first_row[group + 1]; i++)
        if (p->row[i].offset < p->grad_numel)
            place_param(&p->row[i], meg_element(base, p->row[i].offset - range.begin, dtype), dtype, is_grad);
}

void meg_placement_params(const struct meg_params *p, void *base, enum meg_dtype dtype, bool is_grad, bool is_layerwise)
{
    if (!placement_mesh || !base)
        return;
    placement_params_table = p;
    for (int i = 0; is_layerwise && i < p->nlayer_groups; i++)
        meg_placement_layer_group(p, i, meg_element(base, meg_params_unsharded_offset(p, i), dtype), dtype, is_grad);
    for (int i = 0; !is_layerwise && i < p->n; i++) {
        const struct meg_param *row = &p->row[i];

        if (row->shard_numel == 0)
            continue;
        if (!is_grad)
            place_param(row, meg_params_element(p, base, row->offset, dtype), meg_param_dtype(row, dtype), false);
        else if (row->offset < p->grad_numel)
            place_param(row, meg_element(base, row->offset, dtype), dtype, true);
    }
}

void meg_placement_param_shard(const struct meg_param *row, void *base, int64_t n, enum meg_dtype dtype,
                               const struct meg_comm *shard)
{
    const size_t nbytes = (size_t)n * meg_dtype_size(dtype);
    struct placement v;

    if (!placement_mesh)
        return;
    v = over_group(placement_of_param(row), shard, MEG_PLACEMENT_FLAT);
    placement_set(&placement_declared, base, nbytes, v, row);
    placement_set(&placement_table, base, nbytes, v, NULL);
}

void meg_placement_input(const void *p, size_t nbytes)
{
    struct placement v = placement_all(MEG_PLACEMENT_ROWS);

    for (int i = 0; i < placement_naxes; i++)
        if (placement_axis[i].type == PLACEMENT_TP || placement_axis[i].type == PLACEMENT_PP)
            v.axis[i] = placement_axis[i].type == PLACEMENT_TP ? MEG_PLACEMENT_REPLICATED : MEG_PLACEMENT_OUTER;
    if (placement_mesh)
        placement_set(&placement_table, p, nbytes, v, NULL);
}

void meg_placement_undefined(const void *p, size_t nbytes)
{
    if (placement_mesh)
        placement_set(&placement_table, p, nbytes, placement_all(MEG_PLACEMENT_UNKNOWN), NULL);
}

void meg_placement_declare(const void *p, size_t nbytes, const struct meg_comm *c, enum meg_placement from,
                           enum meg_placement to)
{
    const char *end = (const char *)p + nbytes;

    for (struct placement_range r = { .end = p }; placement_mesh && r.end < end;) {
        r = placement_first(&placement_table, r.end, end);
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
            placement_set(&placement_table, r.begin, (size_t)(r.end - r.begin), over_group(r.v, c, to), NULL);
    }
}
#endif
