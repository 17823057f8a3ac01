/*
 * qk_norm.c - norms of queries and keys by the operations norm_fwd and norm_bwd.  The heads are copied from the rows of
 * qkv to a matrix, normalized, and copied back.
 */
#include "nn/attn/internal.h"

/* The query heads or the key heads, in activations and in rows of qkv or of its gradient. */
struct side {
    const struct meg_norm_weights *norm;
    struct meg_mat x; /* [n, heads d] before the norm */
    const struct meg_norm_stats *stats;
    struct meg_heads in_qkv;
    int64_t per_group; /* heads of a group */
};

static struct side side_of(const struct meg_ctx *c, struct meg_mat qkv, const struct meg_attn_acts *a,
                           const struct meg_attn *l, bool is_key)
{
    const int64_t r = l->a / l->g;
    const struct nn_qkv h = nn_qkv_heads(qkv, c->call.b, r, l->d);

    return is_key ? (struct side){ &l->k_norm, a->k, &a->k_stats, h.k, 1 }
                  : (struct side){ &l->q_norm, a->q, &a->q_stats, h.q, r };
}

/* Copy the heads of one side from the rows of qkv to m [n, heads d] or, if to_qkv is set, from m to these rows. */
static void copy(struct meg_ctx *c, const struct meg_attn *l, const struct side *s, struct meg_mat m, bool to_qkv)
{
    const struct meg_heads in_m = nn_output_heads(m, c->call.b, s->per_group, l->d);

    MEG_CALL(c->op, c->stream, copy_heads, .dst = to_qkv ? s->in_qkv : in_m, .src = to_qkv ? in_m : s->in_qkv,
             .s = m.rows / c->call.b, .b = c->call.b, .g = l->g, .d = s->per_group * l->d);
}

void nn_qk_norm_keep(struct meg_ctx *c, struct meg_mat qkv, const struct meg_attn_acts *a, const struct meg_attn *l)
{
    for (int is_key = 0; is_key < 2; is_key++) {
        const struct side s = side_of(c, qkv, a, l, is_key);

        copy(c, l, &s, s.x, false);
    }
}

/* Return workspace i as a matrix of the shape of x. */
static struct meg_mat workspace(const struct meg_attn *l, int i, struct meg_mat x)
{
    return meg_mat(l->qk_norm_rows[i].p, x.dtype, x.rows, x.cols);
}

/* Return the number of norms of a side: each of them has its own weight. */
static int64_t num_norms(const struct meg_attn *l, const struct side *s)
{
    return l->qk_norm_scope == MEG_QK_NORM_PER_HEAD_WEIGHT ? s->per_group * l->g : 1;
}

/* Return the rows of norm j in m [n, heads d]: single heads, or the heads of a token together. */
static struct meg_mat rows_of(const struct meg_attn *l, struct meg_mat m, int64_t j)
{
    if (l->qk_norm_scope == MEG_QK_NORM_HEAD)
        return meg_mat(m.p, m.dtype, m.rows * m.cols / l->d, l->d);
    if (l->qk_norm_scope == MEG_QK_NORM_PER_HEAD_WEIGHT) {
        m.p = meg_element(m.p, j * l->d, m.dtype);
        m.cols = l->d;
    }
    return m;
}

static struct meg_norm_weights weights_of(const struct meg_ctx *c, const struct meg_attn *l, const struct side *s,
                                          int64_t j)
{
    struct meg_norm_weights w = *s->norm;

    w.w = w.w ? meg_element(w.w, j * l->d, c->dtype) : NULL;
    w.dw = w.dw ? meg_element(w.dw, j * l->d, c->grad_dtype) : NULL;
    return w;
}

static struct meg_norm_stats stats_of(const struct side *s, int64_t j)
{
    const int64_t first = j * s->x.rows;

    return (struct meg_norm_stats){ s->stats->mean ? s->stats->mean + first : NULL, s->stats->rstd + first };
}

void nn_qk_norm_fwd(struct meg_ctx *c, struct meg_mat qkv, const struct meg_attn_acts *a, const struct meg_attn *l)
{
    nn_qk_norm_keep(c, qkv, a, l);
    for (int is_key = 0; is_key < 2; is_key++) {
        const struct side s = side_of(c, qkv, a, l, is_key);
        const struct meg_mat y = workspace(l, 0, s.x);

        for (int64_t j = 0; j < num_norms(l, &s); j++) {
            const struct meg_norm_weights w = weights_of(c, l, &s, j);
            struct meg_norm_stats stats = stats_of(&s, j);

            meg_norm_fwd(c, rows_of(l, y, j), rows_of(l, s.x, j), &stats, &w);
        }
        copy(c, l, &s, y, true);
    }
}

void nn_qk_norm_bwd(struct meg_ctx *c, struct meg_mat d_qkv, const struct meg_attn_acts *a, const struct meg_attn *l)
{
    for (int is_key = 0; is_key < 2; is_key++) {
        const struct side s = side_of(c, d_qkv, a, l, is_key);
        const struct meg_mat dy = workspace(l, 0, s.x), dx = workspace(l, 1, s.x);

        copy(c, l, &s, dy, false);
        for (int64_t j = 0; j < num_norms(l, &s); j++) {
            const struct meg_norm_weights w = weights_of(c, l, &s, j);
            const struct meg_norm_stats stats = stats_of(&s, j);

            meg_norm_bwd(c, rows_of(l, dx, j), meg_no_mat(), rows_of(l, dy, j), rows_of(l, s.x, j), &stats, &w);
        }
        copy(c, l, &s, dx, true);
    }
}

/* ---- parameters and memory ---- */

/* Set the placement of a parameter of n elements.  Do nothing if row is NULL. */
static void set_placement(struct meg_param *row, enum meg_qk_norm_scope scope, int64_t n)
{
    if (row && scope == MEG_QK_NORM_HEAD)
        row->grad_is_partial_over_tp = true; /* all ranks have the weight, but different heads */
    if (row && scope == MEG_QK_NORM_PER_HEAD_WEIGHT)
        row->sharding[0] = meg_equal_parts(n, 1, MEG_AXIS_TP);
}

static void bind_side(struct meg_binder *b, struct meg_norm_weights *l, const char *name, const struct meg_attn_conf *c,
                      int64_t heads)
{
    const enum meg_qk_norm_scope scope = c->qk_norm_scope;
    const int64_t n = scope == MEG_QK_NORM_HEAD ? c->d : heads * c->d;

    l->type = c->norm;
    set_placement(
        meg_bind_vector(b, &l->w, &l->dw, meg_param_name(name, ".weight").s, n, meg_norm_is_1p(l->type) ? 0 : 1), scope,
        n);
    if (c->norm_has_bias && scope != MEG_QK_NORM_PER_HEAD_WEIGHT)
        set_placement(meg_bind_vector(b, &l->b, &l->db, meg_param_name(name, ".bias").s, n, 0), scope, n);
}

void nn_qk_norm_bind(struct meg_binder *b, struct meg_attn *l, const struct meg_attn_conf *c, double eps)
{
    l->has_qk_norm = c->qk_layernorm;
    l->qk_norm_scope = c->qk_norm_scope;
    l->qk_norm_after_rope = c->qk_norm_after_rope;
    l->q_norm.eps = l->k_norm.eps = (float)eps;
    if (!c->qk_layernorm)
        return;
    bind_side(b, &l->q_norm, "self_attention.q_layernorm", c, c->a);
    bind_side(b, &l->k_norm, "self_attention.k_layernorm", c, c->g);
}

/* Allocate x [n, heads d] and the statistics of its norms. */
static void suballoc_side(const struct meg_block_arena *a, struct meg_mat *x, struct meg_norm_stats *stats,
                          const struct meg_attn_conf *c, int64_t heads)
{
    meg_block_mat(a, x, a->n, heads * c->d);
    if (!meg_norm_is_rms(c->norm))
        meg_block_f32(a, &stats->mean, a->n * heads);
    meg_block_f32(a, &stats->rstd, a->n * heads);
}

void nn_qk_norm_suballoc_acts(struct meg_attn_acts *acts, const struct meg_block_arena *a,
                              const struct meg_attn_conf *c)
{
    if (!c->qk_layernorm)
        return;
    suballoc_side(a, &acts->q, &acts->q_stats, c, c->a / a->tp);
    suballoc_side(a, &acts->k, &acts->k_stats, c, c->g / a->tp);
}

void nn_qk_norm_suballoc_workspace(struct meg_attn *l, const struct meg_block_arena *a, const struct meg_attn_conf *c)
{
    if (!c->qk_layernorm || nn_qk_norm_is_fused(c->norm, c->qk_norm_scope, c->qk_norm_after_rope))
        return;
    for (int i = 0; i < (a->is_training ? 2 : 1); i++)
        l->qk_norm_rows[i] = meg_suballoc_mat(a->mem, a->dtype, a->n, c->a / a->tp * c->d);
}
