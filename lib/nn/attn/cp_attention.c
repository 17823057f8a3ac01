/*
 * cp_attention.c - attention with context parallelism.  In each ring step, this rank's query chunks attend to the key
 * chunks of one rank; chunk pairs that are completely masked are skipped.  Forward merges the partial outputs, and
 * backward sums the gradients.
 */
#include "nn/attn/internal.h"

/*
 * Set chunk[0] and chunk[1] to the two chunks that rank `rank` of n has, with s positions per rank.  If count is 1, set
 * chunk[0] to one chunk of all s positions instead.
 */
static void rank_chunks(struct nn_cp_chunk *chunk, int64_t count, int64_t s, int64_t rank, int64_t n)
{
    const int64_t half = s / 2;

    chunk[0] = count == 1 ? (struct nn_cp_chunk){ 0, s, 0 } : (struct nn_cp_chunk){ 0, half, rank * half };
    chunk[1] = (struct nn_cp_chunk){ half, half, (2 * n - 1 - rank) * half };
}

/* Return whether any query in q can see any key in k: no key after it, and none before its window. */
static bool is_visible(const struct meg_attn *l, const struct nn_cp_chunk *q, const struct nn_cp_chunk *k)
{
    return k->position0 < q->position0 + q->s && (!l->window || k->position0 + k->s > q->position0 - l->window);
}

/* Return the matrix that replaces m [n, cols] in the all-to-all. */
static struct meg_mat a2a_shape(const struct meg_cp *cp, struct meg_mat m)
{
    return meg_mat(m.p, m.dtype, m.rows * cp->a2a_size, m.cols / cp->a2a_size);
}

/*
 * Initialize the state of the attention of one layer.  If the ring has one rank, this rank has the keys of the complete
 * sequence after the all-to-all.  They are a single key chunk.
 */
static struct nn_cp_attn start_attn(struct meg_ctx *c, const struct meg_attn *l, struct meg_mat qkv)
{
    const struct meg_cp *cp = l->cp;
    struct nn_cp_attn p = { .c = c, .l = l };

    p.s = c->call.s * cp->a2a_size;
    p.b = c->call.b;
    p.a = l->a / cp->a2a_size;
    p.g = l->g / cp->a2a_size;
    p.d = l->d;
    p.a0 = cp->a2a->rank * p.a;
    p.qkv = nn_qkv_heads(a2a_shape(cp, qkv), p.b, p.a / p.g, p.d);
    p.doc_start = nn_a2a_doc_start(c, l);
    p.drop = meg_ctx_drop(c, l->dropout, l->layer, MEG_DROP_ATTN);
    p.drop.unit0 = l->head0 + p.a0;
    p.nq_chunks = 2;
    p.nk_chunks = cp->ring_size > 1 ? 2 : 1;
    rank_chunks(p.q_chunk, p.nq_chunks, p.s, cp->ring->rank, cp->ring_size);
    return p;
}

/* Return whether any query of any rank of the ring can see a key that the rank has in a step. */
static bool is_step_visible(const struct nn_cp_attn *p, int64_t step)
{
    const int64_t n = p->l->cp->ring_size;
    struct nn_cp_chunk q[2], k[2];

    for (int64_t rank = 0; rank < n; rank++) {
        rank_chunks(q, 2, p->s, rank, n);
        rank_chunks(k, 2, p->s, (rank - step + n) % n, n);
        for (int i = 0; i < 4; i++)
            if (is_visible(p->l, &q[i / 2], &k[i % 2]))
                return true;
    }
    return false;
}

/*
 * Begin the step p->next_step: fetch its KV block, and determine the step after it.  Return false after the last step.
 * A ring skips steps without visible keys.  An all-gather fetches the blocks of all steps at once.
 */
static bool begin_step(struct nn_cp_attn *p, const struct nn_kv_exchange *exchange)
{
    const struct meg_cp *cp = p->l->cp;

    if (p->next_step == cp->ring_size)
        return false;
    p->step = p->next_step++;
    while (p->next_step < cp->ring_size && !cp->is_all_gather && !is_step_visible(p, p->next_step))
        p->next_step++;
    rank_chunks(p->k_chunk, p->nk_chunks, p->s, exchange->fetch(p), cp->ring_size);
    return true;
}

static struct meg_attn_desc descriptor(const struct nn_cp_attn *p, const struct nn_cp_chunk *q,
                                       const struct nn_cp_chunk *k)
{
    struct meg_attn_desc desc = nn_causal_desc(p->s * p->l->cp->ring_size, p->b, p->a, p->g, p->d);

    nn_set_scores(&desc, p->l, p->a0);
    desc.s_q = q->s;
    desc.s_k = k->s;
    desc.window_left = nn_window_left(p->l);
    desc.q0 = q->position0;
    desc.k0 = k->position0;
    desc.doc_start = p->doc_start ? p->doc_start + q->row0 * p->b : NULL;
    return desc;
}

/* Return a view of x that starts at the given row of each sequence. */
static struct meg_heads rows_from(struct meg_heads x, int64_t row)
{
    x.p = (char *)x.p + (size_t)(row * x.ld_s) * meg_dtype_size(x.dtype);
    return x;
}

static struct meg_heads outputs(const struct nn_cp_attn *p, struct meg_mat o, int64_t row)
{
    return rows_from(nn_output_heads(o, p->b, p->a / p->g, p->d), row);
}

/* Return the element offset of a chunk's statistics in an array [2,b,a,s/2], which stores them chunk by chunk. */
static int64_t stats_offset(const struct nn_cp_attn *p, const struct nn_cp_chunk *q)
{
    return q->row0 * p->b * p->a;
}

/*
 * Compute the attention of query chunk i over key chunk j.  If is_first, write o and lse, and include the sinks;
 * otherwise merge the result into o and lse.
 */
static void attn_chunk_fwd(struct nn_cp_attn *p, struct meg_mat o, float *lse, int64_t i, int64_t j, bool is_first)
{
    const struct nn_cp_chunk *q = &p->q_chunk[i], *k = &p->k_chunk[j];
    const struct meg_attn_workspace *w = &p->l->workspace;
    const struct meg_heads out = outputs(p, o, q->row0);
    const struct meg_heads part = outputs(p, meg_mat(w->o_part, MEG_DTYPE_F32, o.rows / 2, o.cols), 0);
    struct meg_attn_desc desc = descriptor(p, q, k);
    float *out_lse = lse + stats_offset(p, q);

    if (is_first)
        desc.sink = nn_sink(p->c, p->l, p->a0);
    MEG_CALL(p->c->op, p->c->stream, attn_fwd, .desc = &desc, .o = is_first ? out : part,
             .lse = is_first ? out_lse : w->lse_part, .q = rows_from(p->qkv.q, q->row0),
             .k = rows_from(p->kv.k, k->row0), .v = rows_from(p->kv.v, k->row0), .drop = &p->drop);
    if (!is_first)
        MEG_CALL(p->c->op, p->c->stream, attn_merge, .desc = &desc, .o = out, .lse = out_lse, .o_part = part,
                 .lse_part = w->lse_part);
}

void nn_cp_attn_fwd(struct meg_ctx *c, const struct meg_attn *l, const struct meg_attn_acts *a, bool is_recomputed)
{
    const struct nn_kv_exchange *exchange = nn_kv_exchange_select(l->cp);
    const struct meg_mat o = a2a_shape(l->cp, a->o);
    const struct meg_mat sum = l->cp->ring_size > 1 ? nn_f32_sum(o, l->workspace.o) : o;
    bool is_written[2] = { false, false };
    struct nn_cp_attn p;

    if (!is_recomputed)
        nn_a2a_seq_to_heads(c, l, a->qkv);
    p = start_attn(c, l, a->qkv);
    for (; begin_step(&p, exchange); p.nsteps++)
        for (int64_t i = 0; i < p.nq_chunks; i++)
            for (int64_t j = 0; j < p.nk_chunks; j++) {
                if (!is_visible(l, &p.q_chunk[i], &p.k_chunk[j])) /* in step 0, at least one is visible to each i */
                    continue;
                attn_chunk_fwd(&p, sum, a->lse, i, j, !is_written[i]);
                is_written[i] = true;
            }
    nn_from_f32(c, o, sum);
    nn_a2a_heads_to_seq(c, l, a->o);
}

/* Compute delta of this rank's rows and all heads, chunk by chunk, and redistribute it by heads (nn_a2a_stats). */
static void compute_delta(struct meg_ctx *c, const struct meg_attn *l, float *delta, struct meg_mat d_o,
                          struct meg_mat o)
{
    struct nn_cp_attn p = { .l = l, .s = c->call.s, .b = c->call.b, .a = l->a, .g = l->g, .d = l->d };

    rank_chunks(p.q_chunk, 2, p.s, 0, 1);
    for (int64_t i = 0; i < 2; i++) {
        const struct nn_cp_chunk *q = &p.q_chunk[i];
        const struct meg_attn_desc desc = descriptor(&p, q, q);

        MEG_CALL(c->op, c->stream, attn_delta, .desc = &desc, .delta = delta + stats_offset(&p, q),
                 .d_o = outputs(&p, d_o, q->row0), .o = outputs(&p, o, q->row0));
    }
    nn_a2a_stats(c, l, delta);
}

/*
 * Add the gradients of the attention of query chunk i over key chunk j to p->dqkv and to the gradient block dkv.  If
 * is_first, attn_chunk_fwd included the sinks; add to their gradient.
 */
static void attn_chunk_bwd(struct nn_cp_attn *p, const struct nn_kv_block *dkv, struct meg_mat d_o, const float *lse,
                           int64_t i, int64_t j, bool is_first)
{
    const struct nn_cp_chunk *q = &p->q_chunk[i], *k = &p->k_chunk[j];
    struct meg_attn_desc desc = descriptor(p, q, k);
    struct meg_attn_bwd_args args = { .desc = &desc, .drop = &p->drop };

    args.dq = rows_from(p->dqkv.q, q->row0);
    args.dk = rows_from(dkv->k, k->row0);
    args.dv = rows_from(dkv->v, k->row0);
    args.accumulate = 1;
    args.d_o = outputs(p, d_o, q->row0);
    args.lse = lse + stats_offset(p, q);
    args.delta = p->l->workspace.delta + stats_offset(p, q);
    args.q = rows_from(p->qkv.q, q->row0);
    args.k = rows_from(p->kv.k, k->row0);
    args.v = rows_from(p->kv.v, k->row0);
    args.workspace = p->l->workspace.bwd;
    args.accumulate_params = true;
    if (is_first) {
        desc.sink = nn_sink(p->c, p->l, p->a0);
        args.d_sink = nn_sink_grad(p->c, p->l, p->a0);
    }
    p->c->op->attn_bwd(p->c->stream, &args);
}

size_t nn_attn_bwd_nbytes(const struct meg_ops *op, const struct meg_attn_size *size, const struct meg_cp *cp)
{
    const int64_t s = size->s * cp->a2a_size;
    struct meg_attn_desc desc =
        nn_causal_desc(s * cp->ring_size, size->b, size->a / cp->a2a_size, size->g / cp->a2a_size, size->d);

    desc.rel_bias.rows = size->buckets;
    if (!meg_cp_is_on(cp))
        return op->attn_bwd_nbytes(&desc, size->dtype, size->buckets > 0 || size->has_sink);
    desc.s_q = s / 2;
    desc.s_k = cp->ring_size > 1 ? s / 2 : s;
    return op->attn_bwd_nbytes(&desc, MEG_DTYPE_F32, size->has_sink);
}

void nn_cp_attn_bwd(struct meg_ctx *c, const struct meg_attn *l, const struct meg_attn_acts *a,
                    const struct meg_attn_acts *d)
{
    const struct nn_kv_exchange *exchange = nn_kv_exchange_select(l->cp);
    const struct meg_mat d_o = a2a_shape(l->cp, d->o), dqkv = a2a_shape(l->cp, d->qkv);
    const struct meg_mat sum = nn_f32_sum(dqkv, l->workspace.dqkv);
    bool has_sink[2] = { false, false }; /* like is_written in nn_cp_attn_fwd */
    struct nn_cp_attn p = start_attn(c, l, a->qkv);

    compute_delta(c, l, l->workspace.delta, d->o, a->o);
    nn_a2a_seq_to_heads(c, l, d->o);
    p.dqkv = nn_qkv_heads(sum, p.b, p.a / p.g, p.d);
    c->op->zero(c->stream, sum.p, (size_t)(sum.rows * sum.cols) * sizeof(float));
    for (; begin_step(&p, exchange); p.nsteps++) {
        const struct nn_kv_block dkv = exchange->grad_block(&p);

        for (int64_t i = 0; i < p.nq_chunks; i++)
            for (int64_t j = 0; j < p.nk_chunks; j++)
                if (is_visible(l, &p.q_chunk[i], &p.k_chunk[j])) {
                    attn_chunk_bwd(&p, &dkv, d_o, a->lse, i, j, !has_sink[i]);
                    has_sink[i] = true;
                }
        exchange->send_grads(&p);
    }
    exchange->return_grads(&p);
    nn_from_f32(c, dqkv, sum);
    nn_a2a_heads_to_seq(c, l, d->qkv);
}
