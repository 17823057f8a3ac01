/*
 * binary_head.c - BERT's pooler and binary head.
 *
 * With sequence parallelism, only the first tensor-parallel rank has the first token of each sequence.  All ranks
 * gather these rows and compute the same losses, but only the first rank computes gradients that are not 0, because
 * gradients of replicated parameters are summed over the ranks (params/param.h).
 */
#include "nn/binary_head.h"
#include "placement/placement.h"

struct binary_head {
    struct meg_linear pooler, binary;
    /* workspace */
    void *first_rows;           /* [tp,b,h] with sequence parallelism: the first b rows of each rank */
    struct meg_mat pre, pooled; /* [b,h] dense(x0), tanh(dense(x0)) */
    struct meg_mat logits;      /* [b,2]; their gradient replaces them */
    struct meg_mat d_pre, d_x0; /* [b,h] */
    float *partial_stats, *lse; /* [2,b], [b] */
};

/* Return x0 [b,h]: the first b rows of x, because x has shape [s,b,h]. */
static struct meg_mat first_tokens(struct meg_ctx *c, struct meg_mat x, const struct binary_head *l)
{
    const struct meg_mat x0 = meg_mat_rows(x, 0, c->call.b);

    if (!c->has_sp)
        return x0;
    meg_all_gather(c->tp, c->stream, l->first_rows, x0.p, c->call.b * x.cols, x.dtype);
    return meg_mat(l->first_rows, x.dtype, c->call.b, x.cols);
}

static void compute_logits(struct meg_ctx *c, float *loss, struct meg_mat x0, const struct meg_batch *in,
                           const struct binary_head *l)
{
    const struct meg_mat pooled = meg_mat_rows(l->pooled, 0, c->call.b), logits = meg_mat_rows(l->logits, 0, c->call.b);

    MEG_LINEAR(c, &l->pooler, local_fwd, .y = pooled, .pre = meg_mat_rows(l->pre, 0, c->call.b), .x = x0,
               .act = MEG_ACT_TANH);
    MEG_LINEAR(c, &l->binary, local_fwd, .y = logits, .x = pooled);
    MEG_CALL(c->op, c->stream, xent_partial, .part = l->partial_stats, .logits = logits, .target = in->sentence_order);
    MEG_CALL(c->op, c->stream, xent_combine, .loss = loss, .lse = l->lse, .part = l->partial_stats,
             .target = in->sentence_order, .nparts = 1, .n = c->call.b);
}

static void fwd(struct meg_ctx *c, float *loss, struct meg_mat x, const struct meg_batch *in, const void *weights)
{
    const struct binary_head *l = weights;

    compute_logits(c, loss, first_tokens(c, x, l), in, l);
}

static void fwd_bwd(struct meg_ctx *c, float *loss, struct meg_mat dx, struct meg_mat x, const struct meg_batch *in,
                    struct meg_loss_weight weight, const void *weights)
{
    const struct binary_head *l = weights;
    const struct meg_mat x0 = first_tokens(c, x, l), pooled = meg_mat_rows(l->pooled, 0, c->call.b);
    const struct meg_mat d_logits = meg_mat_rows(l->logits, 0, c->call.b), d_pre = meg_mat_rows(l->d_pre, 0, c->call.b);
    const struct meg_mat d_x0 = meg_mat_rows(l->d_x0, 0, c->call.b), dx0 = meg_mat_rows(dx, 0, c->call.b);

    compute_logits(c, loss, x0, in, l);
    if (c->has_sp && c->tp->rank > 0)
        c->op->zero(c->stream, d_logits.p, (size_t)(d_logits.rows * d_logits.ld) * meg_dtype_size(d_logits.dtype));
    else
        MEG_CALL(c->op, c->stream, xent_bwd, .logits = d_logits, .lse = l->lse, .target = in->sentence_order,
                 .weight = weight);
    if (c->has_sp)
        meg_placement_declare(d_logits.p, (size_t)(d_logits.rows * d_logits.ld) * meg_dtype_size(d_logits.dtype), c->tp,
                              MEG_PLACEMENT_REPLICATED, MEG_PLACEMENT_PARTIAL);
    MEG_LINEAR(c, &l->binary, local_bwd, .dx = d_pre, .dy = d_logits, .x = pooled,
               .pre = meg_mat_rows(l->pre, 0, c->call.b), .act = MEG_ACT_TANH);
    MEG_LINEAR(c, &l->pooler, local_bwd, .dx = d_x0, .dy = d_pre, .x = x0);
    if (c->has_sp) /* the gradient of the first rank's rows */
        meg_placement_declare(d_x0.p, (size_t)(d_x0.rows * d_x0.cols) * meg_dtype_size(d_x0.dtype), c->tp,
                              MEG_PLACEMENT_PARTIAL, MEG_PLACEMENT_ROWS);
    MEG_CALL(c->op, c->stream, add_fwd, .z = dx0, .x = dx0, .y = d_x0);
}

static void bind(struct meg_binder *b, void *weights, const void *conf, const struct meg_block_env *env)
{
    const struct meg_binary_head_conf *c = conf;
    struct meg_linear_shape shape = {
        .out = c->h, .in = c->h, .tp_dim = -1, .nparts = 1, .std = c->std, .has_bias = true
    };
    struct binary_head *l = weights;
    (void)env;

    meg_bind_linear(b, &l->pooler, "pooler.dense", &shape);
    shape.out = 2;
    meg_bind_linear(b, &l->binary, "binary_head", &shape);
}

static void suballoc(void *weights, const struct meg_block_arena *a, const void *conf)
{
    const struct meg_binary_head_conf *c = conf;
    struct binary_head *l = weights;

    if (a->has_sp)
        l->first_rows = meg_suballoc(a->mem, (size_t)(a->tp * a->b * c->h) * meg_dtype_size(a->dtype));
    l->pre = meg_suballoc_mat(a->mem, a->dtype, a->b, c->h);
    l->pooled = meg_suballoc_mat(a->mem, a->dtype, a->b, c->h);
    l->logits = meg_suballoc_mat(a->mem, a->dtype, a->b, 2);
    l->d_pre = meg_suballoc_mat(a->mem, a->dtype, a->b, c->h);
    l->d_x0 = meg_suballoc_mat(a->mem, a->dtype, a->b, c->h);
    l->partial_stats = meg_suballoc(a->mem, (size_t)(2 * a->b) * sizeof *l->partial_stats);
    l->lse = meg_suballoc(a->mem, (size_t)a->b * sizeof *l->lse);
}

const struct meg_head_type meg_binary_head = {
    .weights_size = sizeof(struct binary_head),
    .is_per_sequence = true,
    .bind = bind,
    .suballoc = suballoc,
    .fwd = fwd,
    .fwd_bwd = fwd_bwd,
};
