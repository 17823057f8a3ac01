/* binder.c - append parameters to the parameter table, and point weights to the flat buffers. */
#include "params/binder.h"
#include <string.h>

struct meg_param_name meg_param_name(const char *name, const char *suffix)
{
    struct meg_param_name full;

    MEG_ASSERT_LT(strlen(name) + strlen(suffix), sizeof full.s);
    stpcpy(stpcpy(full.s, name), suffix);
    return full;
}

const struct meg_param *meg_bind_row(const struct meg_binder *b, const char *name)
{
    const struct meg_param *row = meg_params_find(b->params, meg_param_name(b->prefix, name).s);

    MEG_ASSERT(row && row->shard_numel);
    return row;
}

/* Set *w to this rank's shard of a parameter, and *dw to the gradient of that shard. */
static const struct meg_param *point(const struct meg_binder *b, void **w, void **dw, const char *name)
{
    const struct meg_param *row = meg_bind_row(b, name);

    *w = b->is_w_layerwise ? meg_params_unsharded_element(b->params, b->w, row, b->dtype)
                           : meg_params_element(b->params, b->w, row->offset, b->dtype);
    *dw = NULL;
    if (b->g && !row->is_frozen)
        *dw = meg_element(b->g, row->grad_offset, b->grad_dtype);
    return row;
}

void meg_bind_tied_matrix(const struct meg_binder *b, struct meg_mat *w, struct meg_mat *dw, const char *name)
{
    const struct meg_param *row;
    int64_t rows, cols;
    void *p, *dp;

    if (b->step != MEG_BIND_POINTERS)
        return;
    row = point(b, &p, &dp, name);
    cols = row->shard_dim[row->ndim - 1];
    rows = row->shard_numel / cols;
    *w = meg_mat(p, meg_param_dtype(row, b->dtype), rows, cols);
    *dw = meg_mat(dp, b->grad_dtype, rows, cols);
}

struct meg_param *meg_bind_matrix(struct meg_binder *b, struct meg_mat *w, struct meg_mat *dw, const char *name,
                                  const struct meg_matrix_shape *s)
{
    const int64_t dim[] = { s->experts, s->rows, s->cols };
    const int matrix = s->experts ? 1 : 0; /* first dimension of a matrix */
    const enum meg_mesh_axis axis = s->experts ? MEG_AXIS_ETP : MEG_AXIS_TP;
    struct meg_param *row;

    meg_bind_tied_matrix(b, w, dw, name);
    if (b->step != MEG_BIND_ROWS)
        return NULL;
    row = meg_params_add(b->params, b->layer_group, 2 + matrix, dim + 1 - matrix, "%s%s", b->prefix, name);
    if (s->experts)
        row->sharding[0] = meg_equal_parts(s->experts, 1, MEG_AXIS_EP);
    if (s->tp_dim >= 0)
        row->sharding[matrix + s->tp_dim] = s->parts ? *s->parts : meg_equal_parts(dim[1 + s->tp_dim], s->nparts, axis);
    row->is_decayed = 1;
    row->init = (struct meg_init){ b->init, .a = s->std };
    return row;
}

struct meg_param *meg_bind_vector(struct meg_binder *b, void **w, void **dw, const char *name, int64_t n, double value)
{
    struct meg_param *row;

    if (b->step == MEG_BIND_POINTERS)
        point(b, w, dw, name);
    if (b->step != MEG_BIND_ROWS)
        return NULL;
    row = meg_params_add(b->params, b->layer_group, 1, &n, "%s%s", b->prefix, name);
    row->init.a = value;
    return row;
}
