/* binder.c - declare the parameters of layers. */
#include "nn/binder.h"
#include <inttypes.h>
#include <string.h>

/* The full name of a parameter. */
struct full_name {
    char s[96];
};

static struct full_name full_name(const struct meg_binder *b, const char *name, const char *what)
{
    struct full_name full;

    MEG_ASSERT_LT(strlen(b->prefix) + strlen(name) + strlen(what), sizeof full.s);
    stpcpy(stpcpy(stpcpy(full.s, b->prefix), name), what);
    return full;
}

/* Shard a dimension over the tensor-parallel ranks, in nblocks blocks.  With dim -1, the parameter is replicated. */
static void shard_over_tp(struct meg_param *row, int dim, int nblocks)
{
    if (dim >= 0)
        row->sharding[dim] = (struct meg_sharding){ MEG_AXIS_TP, nblocks };
}

/* Append a row for a weight [out, in] or, unless experts is 0, [experts, out, in] to the parameter table. */
static struct meg_param *add_weight(struct meg_binder *b, const char *full, int64_t experts,
                                    const struct meg_linear_shape *s)
{
    const int64_t dim[] = { experts, s->out, s->in };
    const int matrix = experts ? 1 : 0; /* first dimension of a matrix */
    struct meg_param *row = meg_params_add(b->params, b->layer_group, 2 + matrix, dim + 1 - matrix, "%s", full);

    if (experts)
        row->sharding[0].axis = MEG_AXIS_EP;
    shard_over_tp(row, s->tp_dim < 0 ? -1 : matrix + s->tp_dim, s->nblocks);
    row->is_decayed = 1;
    row->init = b->init;
    row->std = s->std;
    return row;
}

static struct meg_param *add_vector(struct meg_binder *b, const char *full, int64_t n, enum meg_init_method init)
{
    struct meg_param *row = meg_params_add(b->params, b->layer_group, 1, &n, "%s", full);

    row->init = init;
    return row;
}

static const struct meg_param *find(const struct meg_binder *b, const char *full)
{
    const struct meg_param *row = meg_params_find(b->params, full);

    MEG_ASSERT(row && row->shard_numel);
    return row;
}

/*
 * Return the element offset of a parameter in the flat buffer or, if is_layerwise, in the unsharded buffers of ZeRO-2/3
 * (nn/param.h).
 */
static int64_t buffer_offset(const struct meg_params *p, const struct meg_param *row, bool is_layerwise)
{
    return is_layerwise
               ? meg_params_unsharded_offset(p, row->layer_group) + row->offset - p->layer_group[row->layer_group].begin
               : row->offset;
}

/* Set *w to this rank's shard of a parameter, and *dw to the gradient of that shard. */
static const struct meg_param *point(const struct meg_binder *b, void **w, void **dw, const char *full)
{
    const struct meg_param *row = find(b, full);

    *w = meg_element(b->w, buffer_offset(b->params, row, b->is_w_layerwise), b->dtype);
    *dw = b->g ? meg_element(b->g, buffer_offset(b->params, row, b->is_g_layerwise), b->grad_dtype) : NULL;
    return row;
}

static void point_matrix(const struct meg_binder *b, struct meg_mat *w, struct meg_mat *dw, const char *full)
{
    void *p, *dp;
    const struct meg_param *row = point(b, &p, &dp, full);
    const int64_t cols = row->shard_dim[row->ndim - 1], rows = row->shard_numel / cols;

    *w = meg_mat(p, b->dtype, rows, cols);
    *dw = meg_mat(dp, b->grad_dtype, rows, cols);
}

/* Declare a vector [n] that tensor-parallel ranks replicate. */
static void bind_vector(struct meg_binder *b, void **w, void **dw, const char *full, int64_t n,
                        enum meg_init_method init)
{
    if (b->step == MEG_BIND_ROWS)
        add_vector(b, full, n, init);
    if (b->step == MEG_BIND_POINTERS)
        point(b, w, dw, full);
}

static void create_plan(struct meg_binder *b, struct meg_linear_weights *l, const char *full, enum meg_dtype out)
{
    const struct meg_param *row = find(b, full);
    const int64_t *shard = &row->shard_dim[row->ndim - 2];
    const struct meg_linear_desc desc = { b->n, shard[1], shard[0], b->dtype, b->dtype, out, b->grad_dtype };
    const char *why;

    if (b->status < 0 || (l->plan = b->op->linear_create(&desc, &why)))
        return;
    b->status = meg_fail(b->err, MEG_EUSAGE, "%s backend: %s [%" PRId64 ",%" PRId64 "] in %s with gradients in %s: %s",
                         b->op->name, full, desc.out, desc.in, meg_dtype_name(desc.w), meg_dtype_name(desc.dw), why);
}

/* Declare a weight that is in the parameter table already; `out` is the dtype of the output of its linear layer. */
static void bind_weight(struct meg_binder *b, struct meg_linear_weights *l, const char *full, enum meg_dtype out)
{
    if (b->step == MEG_BIND_PLANS)
        create_plan(b, l, full, out);
    if (b->step == MEG_BIND_POINTERS)
        point_matrix(b, &l->w, &l->dw, full);
    if (b->step == MEG_BIND_DESTROY && l->plan)
        b->op->linear_destroy(l->plan);
}

void meg_bind_linear(struct meg_binder *b, struct meg_linear_weights *l, const char *name,
                     const struct meg_linear_shape *shape)
{
    const struct full_name weight = shape->tied ? full_name(b, shape->tied, "") : full_name(b, name, ".weight");
    const struct full_name bias = full_name(b, name, ".bias");
    struct meg_param *row;

    if (b->step == MEG_BIND_ROWS && !shape->tied) {
        row = add_weight(b, weight.s, 0, shape);
        row->is_vocab = row->is_decoupled = shape->is_output;
    }
    bind_weight(b, l, weight.s, shape->is_output ? b->logits_dtype : b->dtype);
    if (!shape->has_bias)
        return;
    if (b->step == MEG_BIND_ROWS) {
        row = add_vector(b, bias.s, shape->out, MEG_INIT_ZERO);
        shard_over_tp(row, shape->tp_dim == 0 ? 0 : -1, shape->nblocks);
        row->is_vocab = shape->is_output;
    }
    if (b->step == MEG_BIND_POINTERS)
        point(b, &l->bias, &l->dbias, bias.s);
}

void meg_bind_experts(struct meg_binder *b, struct meg_linear_weights *l, const char *name, int64_t experts,
                      const struct meg_linear_shape *shape)
{
    const struct full_name weight = full_name(b, name, ".weight");

    if (b->step == MEG_BIND_ROWS)
        add_weight(b, weight.s, experts, shape);
    bind_weight(b, l, weight.s, b->dtype);
}

void meg_bind_norm(struct meg_binder *b, struct meg_norm_weights *l, const char *name, int64_t h)
{
    bind_vector(b, &l->w, &l->dw, full_name(b, name, ".weight").s, h, MEG_INIT_ONE);
    if (!meg_norm_is_rms(l->type))
        bind_vector(b, &l->b, &l->db, full_name(b, name, ".bias").s, h, MEG_INIT_ZERO);
}

struct meg_param *meg_bind_matrix(struct meg_binder *b, struct meg_mat *w, struct meg_mat *dw, const char *name,
                                  int64_t rows, int64_t cols, int tp_dim, double std)
{
    const struct meg_linear_shape shape = { .out = rows, .in = cols, .tp_dim = tp_dim, .nblocks = 1, .std = std };
    const struct full_name full = full_name(b, name, "");

    if (b->step == MEG_BIND_POINTERS)
        point_matrix(b, w, dw, full.s);
    return b->step == MEG_BIND_ROWS ? add_weight(b, full.s, 0, &shape) : NULL;
}
