/*
 * binary_head.c - BERT's pooler and binary head.
 *
 * With sequence parallelism, only the first tensor-parallel rank has the first token of each sequence.  All ranks
 * gather these rows and compute the same losses, but only the first rank computes gradients that are not 0, because
 * gradients of replicated parameters are summed over the ranks (params/param.h).
 */
#include "nn/binary_head.h"

struct binary_head {
    struct meg_linear_weights pooler, binary;
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
    const struct meg_mat x0 = meg_mat_rows(x, 0, c->b);

    if (!c->has_sp)
        return x0;
    meg_all_gather(c->tp, c->stream, l->first_rows, x0.p, c->b * x.cols, x.dtype);
    return meg_mat(l->first_rows, x.dtype, c->b, x.cols);
}

static void compute_logits(struct meg_ctx *c, float *loss, struct meg_mat x0, const struct meg_batch *in,
                           const struct binary_head *l)
{
    const struct meg_mat pooled = meg_mat_rows(l->pooled, 0, c->b), logits = meg_mat_rows(l->logits, 0, c->b);

    c->op->linear_fwd(c->stream, l->pooler.plan, pooled, meg_mat_rows(l->pre, 0, c->b), x0, l->pooler.w, l->pooler.bias,
                      MEG_ACT_TANH);
    c->op->linear_fwd(c->stream, l->binary.plan, logits, meg_no_mat(), pooled, l->binary.w, l->binary.bias,
                      MEG_ACT_NONE);
    c->op->xent_partial(c->stream, l->partial_stats, logits, in->sentence_order, 0);
    c->op->xent_combine(c->stream, loss, l->lse, l->partial_stats, in->sentence_order, 1, c->b, 0);
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
    const struct meg_mat x0 = first_tokens(c, x, l), pooled = meg_mat_rows(l->pooled, 0, c->b);
    const struct meg_mat d_logits = meg_mat_rows(l->logits, 0, c->b), d_pre = meg_mat_rows(l->d_pre, 0, c->b);
    const struct meg_mat d_x0 = meg_mat_rows(l->d_x0, 0, c->b), dx0 = meg_mat_rows(dx, 0, c->b);

    compute_logits(c, loss, x0, in, l);
    if (c->has_sp && c->tp->rank > 0)
        c->op->zero(c->stream, d_logits.p, (size_t)(d_logits.rows * d_logits.ld) * meg_dtype_size(d_logits.dtype));
    else
        c->op->xent_bwd(c->stream, d_logits, l->lse, in->sentence_order, 0, 0, weight);
    c->op->linear_bwd_weight(c->stream, l->binary.plan, l->binary.dw, l->binary.dbias, d_logits, pooled,
                             c->accumulates_grads);
    c->op->linear_bwd_data(c->stream, l->binary.plan, d_pre, d_logits, l->binary.w, meg_mat_rows(l->pre, 0, c->b),
                           MEG_ACT_TANH);
    c->op->linear_bwd_weight(c->stream, l->pooler.plan, l->pooler.dw, l->pooler.dbias, d_pre, x0, c->accumulates_grads);
    c->op->linear_bwd_data(c->stream, l->pooler.plan, d_x0, d_pre, l->pooler.w, meg_no_mat(), MEG_ACT_NONE);
    c->op->add_fwd(c->stream, dx0, dx0, d_x0, NULL, NULL);
}

static void bind(struct meg_binder *b, void *weights, const void *conf, const struct meg_block_env *env)
{
    const struct meg_binary_head_conf *c = conf;
    struct meg_linear_shape shape = {
        .out = c->h, .in = c->h, .tp_dim = -1, .nblocks = 1, .std = c->std, .has_bias = true
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
