/* trace_ops.c - a table of operations that prints each call of another table as a JSON line on stderr. */
#include "tensor/trace_ops.h"
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "io/json.h"

static const struct meg_ops *op; /* the table whose calls are traced */
static struct meg_ops traced;

/* ---- one JSON line ---- */

struct line {
    struct meg_str json;
    struct meg_stream *st;
    double begin_s;
};

static struct line start(struct meg_stream *st)
{
    struct line l = { .st = st, .begin_s = meg_now_s() };

    return l;
}

/* Wait until the work queued on st is complete. */
static void wait_for(struct meg_stream *st)
{
    static struct meg_event *event;

    if (op->is_host_memory)
        return;
    if (!event)
        event = op->event_create();
    op->event_record(st, event);
    while (!op->event_is_done(event))
        ;
}

/* Begin the JSON object; the measured time ends here. */
static void put_op(struct line *l, const char *name)
{
    double time_us;

    wait_for(l->st);
    time_us = nearbyint((meg_now_s() - l->begin_s) * 1e9) / 1e3;

    meg_json_begin(&l->json, '{');
    meg_json_set_str(&l->json, "op", name);
    meg_json_set_i64(&l->json, "rank", meg_log_rank());
    meg_json_set_f64(&l->json, "time_us", time_us);
}

/* End the JSON object and print it with one write, which keeps the lines of several ranks from interleaving. */
static void print(struct line *l)
{
    meg_json_end(&l->json, '}');
    meg_str_add(&l->json, "\n", 1);
    fwrite(l->json.s, 1, l->json.n, stderr);
    meg_str_free(&l->json);
}

static void put_null(struct line *l, const char *key)
{
    meg_json_add_key(&l->json, key);
    meg_json_add_null(&l->json);
}

static void put_dims(struct line *l, const char *key, const int64_t *dim, int n)
{
    meg_json_add_key(&l->json, key);
    meg_json_begin(&l->json, '[');
    for (int i = 0; i < n; i++)
        meg_json_add_i64(&l->json, dim[i]);
    meg_json_end(&l->json, ']');
}

static void put_tensor(struct line *l, const char *key, enum meg_dtype t, const char *what, const int64_t *dim, int n)
{
    meg_json_add_key(&l->json, key);
    meg_json_begin(&l->json, '{');
    meg_json_set_str(&l->json, "dtype", meg_dtype_name(t));
    put_dims(l, what, dim, n);
    meg_json_end(&l->json, '}');
}

static void put_mat(struct line *l, const char *key, struct meg_mat m)
{
    const int64_t shape[] = { m.rows, m.cols };

    if (m.p)
        put_tensor(l, key, m.dtype, "shape", shape, 2);
    else
        put_null(l, key);
}

static void put_heads(struct line *l, const char *key, struct meg_heads h)
{
    const int64_t ld[] = { h.ld_s, h.ld_b, h.ld_g, h.ld_h };

    put_tensor(l, key, h.dtype, "ld", ld, 4);
}

static void put_vector(struct line *l, const char *key, const void *p, enum meg_dtype t, int64_t n)
{
    if (p)
        put_tensor(l, key, t, "shape", &n, 1);
    else
        put_null(l, key);
}

static void put_i64(struct line *l, const char *key, int64_t v)
{
    meg_json_set_i64(&l->json, key, v);
}

static void put_str(struct line *l, const char *key, const char *s)
{
    meg_json_set_str(&l->json, key, s);
}

static void put_act(struct line *l, enum meg_act act)
{
    static const char *const name[] = { "none", "gelu_tanh", "gelu_erf", "tanh", "relu" };

    put_str(l, "act", name[act]);
}

static void put_glu(struct line *l, const struct meg_glu *unit)
{
    static const char *const name[] = { "silu", "quick_gelu", "gelu_tanh", "gelu_erf", "relu", "squared_relu" };

    put_str(l, "type", name[unit->type]);
    if (unit->limit > 0)
        meg_json_set_f64(&l->json, "limit", (double)unit->limit);
    if (unit->offset != 0)
        meg_json_set_f64(&l->json, "offset", (double)unit->offset);
}

static void put_norm(struct line *l, enum meg_norm type)
{
    static const char *const name[] = { "LayerNorm", "RMSNorm", "LayerNorm1p", "RMSNorm1p" };

    put_str(l, "type", name[type]);
}

static void put_drop(struct line *l, const struct meg_drop *drop)
{
    static const char *const site[] = { "embedding",  "attention",       "attention output",
                                        "mlp output", "cross-attention", "cross-attention output" };

    if (!drop || drop->p == 0) {
        put_null(l, "drop");
        return;
    }
    meg_json_add_key(&l->json, "drop");
    meg_json_begin(&l->json, '{');
    meg_json_set_f64(&l->json, "p", nearbyint((double)drop->p * 1e6) / 1e6);
    put_i64(l, "layer", drop->layer);
    put_str(l, "site", site[drop->site]);
    put_i64(l, "unit0", drop->unit0);
    meg_json_end(&l->json, '}');
}

static void put_desc(struct line *l, const struct meg_attn_desc *desc)
{
    const int64_t window[] = { desc->window_left, desc->window_right }, doc_start[] = { desc->s_q, desc->b };

    meg_json_add_key(&l->json, "desc");
    meg_json_begin(&l->json, '{');
    put_i64(l, "s_q", desc->s_q);
    put_i64(l, "s_k", desc->s_k);
    put_i64(l, "b", desc->b);
    put_i64(l, "a", desc->a);
    put_i64(l, "g", desc->g);
    put_i64(l, "d", desc->d);
    put_i64(l, "q0", desc->q0);
    put_i64(l, "k0", desc->k0);
    if (desc->d_v != desc->d)
        put_i64(l, "d_v", desc->d_v);
    if (desc->window_left >= 0 || desc->window_right >= 0)
        put_dims(l, "window", window, 2);
    if (desc->softcap > 0)
        meg_json_set_f64(&l->json, "softcap", (double)desc->softcap);
    if (desc->doc_start)
        put_dims(l, "doc_start", doc_start, 2);
    if (desc->key_length)
        put_dims(l, "key_length", &desc->b, 1);
    if (desc->alibi_slope)
        put_vector(l, "alibi_slope", desc->alibi_slope, MEG_DTYPE_F32, desc->a);
    if (desc->rel_bias.p)
        put_mat(l, "rel_bias", desc->rel_bias);
    if (desc->sink.p)
        put_vector(l, "sink", desc->sink.p, desc->sink.dtype, desc->a);
    if (desc->query_start)
        put_dims(l, "query_start", &desc->b, 1);
    if (desc->block_offset)
        put_i64(l, "block_size", desc->block_size);
    meg_json_end(&l->json, '}');
}

/* Print the number of ranges of an optimizer step and, if the host can read the ranges, their number of elements. */
static void put_ranges(struct line *l, const struct meg_update_range *range, int nranges)
{
    int64_t numel = 0;

    put_i64(l, "nranges", nranges);
    if (!op->is_host_memory)
        return;
    for (int i = 0; i < nranges; i++)
        numel += range[i].end - range[i].begin;
    put_i64(l, "numel", numel);
}

/* ---- the operations, in the order of struct meg_ops ---- */

static void upload(struct meg_stream *st, void *dev, const void *host, size_t nbytes)
{
    struct line l = start(st);

    op->upload(st, dev, host, nbytes);
    put_op(&l, "upload");
    put_i64(&l, "nbytes", (int64_t)nbytes);
    print(&l);
}

static void upload_pinned(struct meg_stream *st, void *dev, const void *pinned, size_t nbytes)
{
    struct line l = start(st);

    op->upload_pinned(st, dev, pinned, nbytes);
    put_op(&l, "upload_pinned");
    put_i64(&l, "nbytes", (int64_t)nbytes);
    print(&l);
}

static void download(struct meg_stream *st, void *host, const void *dev, size_t nbytes)
{
    struct line l = start(st);

    op->download(st, host, dev, nbytes);
    put_op(&l, "download");
    put_i64(&l, "nbytes", (int64_t)nbytes);
    print(&l);
}

static void zero(struct meg_stream *st, void *dev, size_t nbytes)
{
    struct line l = start(st);

    op->zero(st, dev, nbytes);
    put_op(&l, "zero");
    put_i64(&l, "nbytes", (int64_t)nbytes);
    print(&l);
}

static void linear_fwd(struct meg_stream *st, struct meg_linear *linear, struct meg_mat y, struct meg_mat pre,
                       struct meg_mat x, struct meg_mat w, const void *bias, enum meg_act act)
{
    struct line l = start(st);

    op->linear_fwd(st, linear, y, pre, x, w, bias, act);
    put_op(&l, "linear_fwd");
    put_mat(&l, "y", y);
    put_mat(&l, "pre", pre);
    put_mat(&l, "x", x);
    put_mat(&l, "w", w);
    put_vector(&l, "bias", bias, w.dtype, w.rows);
    put_act(&l, act);
    print(&l);
}

static void linear_bwd_data(struct meg_stream *st, struct meg_linear *linear, struct meg_mat dx, struct meg_mat dy,
                            struct meg_mat w, struct meg_mat pre, enum meg_act act)
{
    struct line l = start(st);

    op->linear_bwd_data(st, linear, dx, dy, w, pre, act);
    put_op(&l, "linear_bwd_data");
    put_mat(&l, "dx", dx);
    put_mat(&l, "dy", dy);
    put_mat(&l, "w", w);
    put_mat(&l, "pre", pre);
    put_act(&l, act);
    print(&l);
}

static void linear_bwd_weight(struct meg_stream *st, struct meg_linear *linear, struct meg_mat dw, void *dbias,
                              struct meg_mat dy, struct meg_mat x, bool accumulate)
{
    struct line l = start(st);

    op->linear_bwd_weight(st, linear, dw, dbias, dy, x, accumulate);
    put_op(&l, "linear_bwd_weight");
    put_mat(&l, "dw", dw);
    put_vector(&l, "dbias", dbias, dw.dtype, dw.rows);
    put_mat(&l, "dy", dy);
    put_mat(&l, "x", x);
    put_i64(&l, "accumulate", accumulate);
    print(&l);
}

static void act_bwd(struct meg_stream *st, struct meg_mat dx, struct meg_mat dy, struct meg_mat pre, enum meg_act act)
{
    struct line l = start(st);

    op->act_bwd(st, dx, dy, pre, act);
    put_op(&l, "act_bwd");
    put_mat(&l, "dx", dx);
    put_mat(&l, "dy", dy);
    put_mat(&l, "pre", pre);
    put_act(&l, act);
    print(&l);
}

static void scale(struct meg_stream *st, struct meg_mat y, struct meg_mat x, float factor)
{
    struct line l = start(st);

    op->scale(st, y, x, factor);
    put_op(&l, "scale");
    put_mat(&l, "y", y);
    put_mat(&l, "x", x);
    meg_json_set_f64(&l.json, "factor", (double)factor);
    print(&l);
}

static void glu_fwd(struct meg_stream *st, const struct meg_glu *unit, struct meg_mat y, struct meg_mat x)
{
    struct line l = start(st);

    op->glu_fwd(st, unit, y, x);
    put_op(&l, "glu_fwd");
    put_glu(&l, unit);
    put_mat(&l, "y", y);
    put_mat(&l, "x", x);
    print(&l);
}

static void glu_bwd(struct meg_stream *st, const struct meg_glu *unit, struct meg_mat dx, struct meg_mat dy,
                    struct meg_mat x)
{
    struct line l = start(st);

    op->glu_bwd(st, unit, dx, dy, x);
    put_op(&l, "glu_bwd");
    put_glu(&l, unit);
    put_mat(&l, "dx", dx);
    put_mat(&l, "dy", dy);
    put_mat(&l, "x", x);
    print(&l);
}

static void rope(struct meg_stream *st, struct meg_heads x, int64_t s, int64_t b, int64_t g, int64_t heads,
                 int64_t half, int is_interleaved, const float *cos, const float *sin, const int32_t *position,
                 float sign)
{
    struct line l = start(st);

    op->rope(st, x, s, b, g, heads, half, is_interleaved, cos, sin, position, sign);
    put_op(&l, "rope");
    put_heads(&l, "x", x);
    put_i64(&l, "s", s);
    put_i64(&l, "b", b);
    put_i64(&l, "g", g);
    put_i64(&l, "heads", heads);
    put_i64(&l, "half", half);
    put_i64(&l, "is_interleaved", is_interleaved);
    put_i64(&l, "sign", (int64_t)sign);
    print(&l);
}

static void put_qk_norm(struct line *l, const struct meg_qk_norm *q)
{
    const int64_t shape[] = { q->s, q->b, q->g, q->heads, q->d };

    put_dims(l, "shape", shape, 5);
    put_i64(l, "half", q->half);
    put_i64(l, "is_interleaved", q->is_interleaved);
}

static void qk_norm_fwd(struct meg_stream *st, const struct meg_qk_norm *q, struct meg_heads y, float *rstd,
                        struct meg_heads x, const void *w)
{
    struct line l = start(st);

    op->qk_norm_fwd(st, q, y, rstd, x, w);
    put_op(&l, "qk_norm_fwd");
    put_qk_norm(&l, q);
    put_heads(&l, "y", y);
    put_heads(&l, "x", x);
    put_vector(&l, "w", w, y.dtype, q->d);
    print(&l);
}

static void qk_norm_bwd(struct meg_stream *st, const struct meg_qk_norm *q, struct meg_heads dx, void *dw,
                        enum meg_dtype grad, struct meg_heads dy, struct meg_heads x, const void *w, const float *rstd,
                        bool accumulate)
{
    struct line l = start(st);

    op->qk_norm_bwd(st, q, dx, dw, grad, dy, x, w, rstd, accumulate);
    put_op(&l, "qk_norm_bwd");
    put_qk_norm(&l, q);
    put_heads(&l, "dx", dx);
    put_vector(&l, "dw", dw, grad, q->d);
    put_heads(&l, "dy", dy);
    put_heads(&l, "x", x);
    put_vector(&l, "w", w, dy.dtype, q->d);
    put_i64(&l, "accumulate", accumulate);
    print(&l);
}

static void norm_fwd(struct meg_stream *st, enum meg_norm type, struct meg_mat y, float *mean, float *rstd,
                     struct meg_mat x, const void *w, const void *b, float eps)
{
    struct line l = start(st);

    op->norm_fwd(st, type, y, mean, rstd, x, w, b, eps);
    put_op(&l, "norm_fwd");
    put_norm(&l, type);
    put_mat(&l, "y", y);
    put_mat(&l, "x", x);
    put_vector(&l, "w", w, y.dtype, y.cols);
    put_vector(&l, "b", b, y.dtype, y.cols);
    print(&l);
}

static void norm_bwd(struct meg_stream *st, enum meg_norm type, struct meg_mat dx, void *dw, void *db,
                     enum meg_dtype grad, struct meg_mat skip, struct meg_mat dy, struct meg_mat x, const void *w,
                     const float *mean, const float *rstd, bool accumulate)
{
    struct line l = start(st);

    op->norm_bwd(st, type, dx, dw, db, grad, skip, dy, x, w, mean, rstd, accumulate);
    put_op(&l, "norm_bwd");
    put_norm(&l, type);
    put_mat(&l, "dx", dx);
    put_vector(&l, "dw", dw, grad, dx.cols);
    put_vector(&l, "db", db, grad, dx.cols);
    put_mat(&l, "skip", skip);
    put_mat(&l, "dy", dy);
    put_mat(&l, "x", x);
    put_vector(&l, "w", w, dy.dtype, dx.cols);
    put_i64(&l, "accumulate", accumulate);
    print(&l);
}

static void add_fwd(struct meg_stream *st, struct meg_mat z, struct meg_mat x, struct meg_mat y, const void *bias,
                    const struct meg_drop *drop)
{
    struct line l = start(st);

    op->add_fwd(st, z, x, y, bias, drop);
    put_op(&l, "add_fwd");
    put_mat(&l, "z", z);
    put_mat(&l, "x", x);
    put_mat(&l, "y", y);
    put_vector(&l, "bias", bias, y.dtype, y.cols);
    put_drop(&l, drop);
    print(&l);
}

static void add_bwd(struct meg_stream *st, struct meg_mat dy, void *dbias, enum meg_dtype grad, struct meg_mat dz,
                    const struct meg_drop *drop, bool accumulate)
{
    struct line l = start(st);

    op->add_bwd(st, dy, dbias, grad, dz, drop, accumulate);
    put_op(&l, "add_bwd");
    put_mat(&l, "dy", dy);
    put_vector(&l, "dbias", dbias, grad, dy.cols);
    put_mat(&l, "dz", dz);
    put_drop(&l, drop);
    put_i64(&l, "accumulate", accumulate);
    print(&l);
}

static void add_norm_fwd(struct meg_stream *st, enum meg_norm type, struct meg_mat z, struct meg_mat y, float *mean,
                         float *rstd, struct meg_mat x, struct meg_mat sublayer_out, const void *bias,
                         const struct meg_drop *drop, const void *w, const void *b, float eps)
{
    struct line l = start(st);

    op->add_norm_fwd(st, type, z, y, mean, rstd, x, sublayer_out, bias, drop, w, b, eps);
    put_op(&l, "add_norm_fwd");
    put_norm(&l, type);
    put_mat(&l, "z", z);
    put_mat(&l, "y", y);
    put_mat(&l, "x", x);
    put_mat(&l, "sublayer_out", sublayer_out);
    put_vector(&l, "bias", bias, sublayer_out.dtype, z.cols);
    put_drop(&l, drop);
    put_vector(&l, "w", w, y.dtype, z.cols);
    put_vector(&l, "b", b, y.dtype, z.cols);
    print(&l);
}

static void attn_fwd(struct meg_stream *st, const struct meg_attn_desc *desc, struct meg_heads o, float *lse,
                     struct meg_heads q, struct meg_heads k, struct meg_heads v, const struct meg_drop *drop)
{
    struct line l = start(st);

    op->attn_fwd(st, desc, o, lse, q, k, v, drop);
    put_op(&l, "attn_fwd");
    put_desc(&l, desc);
    put_heads(&l, "o", o);
    put_heads(&l, "q", q);
    put_heads(&l, "k", k);
    put_heads(&l, "v", v);
    put_drop(&l, drop);
    print(&l);
}

static void attn_merge(struct meg_stream *st, const struct meg_attn_desc *desc, struct meg_heads o, float *lse,
                       struct meg_heads o_part, const float *lse_part)
{
    struct line l = start(st);

    op->attn_merge(st, desc, o, lse, o_part, lse_part);
    put_op(&l, "attn_merge");
    put_desc(&l, desc);
    put_heads(&l, "o", o);
    put_heads(&l, "o_part", o_part);
    print(&l);
}

static void attn_delta(struct meg_stream *st, const struct meg_attn_desc *desc, float *delta, struct meg_heads d_o,
                       struct meg_heads o)
{
    struct line l = start(st);

    op->attn_delta(st, desc, delta, d_o, o);
    put_op(&l, "attn_delta");
    put_desc(&l, desc);
    put_heads(&l, "d_o", d_o);
    put_heads(&l, "o", o);
    print(&l);
}

static void attn_bwd(struct meg_stream *st, const struct meg_attn_desc *desc, const struct meg_attn_bwd_args *args,
                     const struct meg_drop *drop)
{
    struct line l = start(st);

    op->attn_bwd(st, desc, args, drop);
    put_op(&l, "attn_bwd");
    put_desc(&l, desc);
    put_heads(&l, "dq", args->dq);
    put_heads(&l, "dk", args->dk);
    put_heads(&l, "dv", args->dv);
    put_mat(&l, "d_rel_bias", args->d_rel_bias);
    put_vector(&l, "d_sink", args->d_sink.p, args->d_sink.dtype, desc->a);
    put_heads(&l, "d_o", args->d_o);
    put_heads(&l, "o", args->o);
    put_heads(&l, "q", args->q);
    put_heads(&l, "k", args->k);
    put_heads(&l, "v", args->v);
    put_drop(&l, drop);
    put_i64(&l, "accumulate", args->accumulate);
    print(&l);
}

static void copy_heads(struct meg_stream *st, struct meg_heads dst, const int64_t *dst_offset, struct meg_heads src,
                       int64_t s, int64_t b, int64_t g, int64_t d)
{
    struct line l = start(st);

    op->copy_heads(st, dst, dst_offset, src, s, b, g, d);
    put_op(&l, "copy_heads");
    put_heads(&l, "dst", dst);
    if (dst_offset)
        put_dims(&l, "dst_offset", &b, 1);
    put_heads(&l, "src", src);
    put_i64(&l, "s", s);
    put_i64(&l, "b", b);
    put_i64(&l, "g", g);
    put_i64(&l, "d", d);
    print(&l);
}

static void embed_fwd(struct meg_stream *st, struct meg_mat x, const int32_t *token, struct meg_mat word, int64_t v0)
{
    struct line l = start(st);

    op->embed_fwd(st, x, token, word, v0);
    put_op(&l, "embed_fwd");
    put_mat(&l, "x", x);
    put_mat(&l, "word", word);
    put_i64(&l, "v0", v0);
    print(&l);
}

static void embed_bwd(struct meg_stream *st, struct meg_mat dword, int64_t v0, struct meg_mat dx, const int32_t *token,
                      bool accumulate)
{
    struct line l = start(st);

    op->embed_bwd(st, dword, v0, dx, token, accumulate);
    put_op(&l, "embed_bwd");
    put_mat(&l, "dword", dword);
    put_i64(&l, "v0", v0);
    put_mat(&l, "dx", dx);
    put_i64(&l, "accumulate", accumulate);
    print(&l);
}

static void position_fwd(struct meg_stream *st, struct meg_mat x, const int32_t *position, struct meg_mat pos,
                         const struct meg_drop *drop)
{
    struct line l = start(st);

    op->position_fwd(st, x, position, pos, drop);
    put_op(&l, "position_fwd");
    put_mat(&l, "x", x);
    put_mat(&l, "pos", pos);
    put_drop(&l, drop);
    print(&l);
}

static void position_bwd(struct meg_stream *st, struct meg_mat dpos, struct meg_mat dx, const int32_t *position,
                         const struct meg_drop *drop, bool accumulate)
{
    struct line l = start(st);

    op->position_bwd(st, dpos, dx, position, drop, accumulate);
    put_op(&l, "position_bwd");
    put_mat(&l, "dpos", dpos);
    put_mat(&l, "dx", dx);
    put_drop(&l, drop);
    put_i64(&l, "accumulate", accumulate);
    print(&l);
}

static void xent_partial(struct meg_stream *st, float *part, struct meg_mat logits, const int32_t *target, int64_t v0)
{
    struct line l = start(st);

    op->xent_partial(st, part, logits, target, v0);
    put_op(&l, "xent_partial");
    put_mat(&l, "logits", logits);
    put_i64(&l, "v0", v0);
    print(&l);
}

static void xent_combine(struct meg_stream *st, float *loss, float *lse, const float *part, const int32_t *target,
                         int64_t nparts, int64_t n, float z_loss)
{
    struct line l = start(st);

    op->xent_combine(st, loss, lse, part, target, nparts, n, z_loss);
    put_op(&l, "xent_combine");
    put_i64(&l, "nparts", nparts);
    put_i64(&l, "n", n);
    print(&l);
}

static void xent_bwd(struct meg_stream *st, struct meg_mat logits, const float *lse, const int32_t *target, int64_t v0,
                     float z_loss, struct meg_loss_weight weight)
{
    struct line l = start(st);

    op->xent_bwd(st, logits, lse, target, v0, z_loss, weight);
    put_op(&l, "xent_bwd");
    put_mat(&l, "logits", logits);
    put_i64(&l, "v0", v0);
    if (z_loss != 0)
        meg_json_set_f64(&l.json, "z_loss", (double)z_loss);
    print(&l);
}

static void xent_fwd_bwd(struct meg_stream *st, float *loss, struct meg_mat logits, const int32_t *target, float z_loss,
                         struct meg_loss_weight weight)
{
    struct line l = start(st);

    op->xent_fwd_bwd(st, loss, logits, target, z_loss, weight);
    put_op(&l, "xent_fwd_bwd");
    put_mat(&l, "logits", logits);
    if (z_loss != 0)
        meg_json_set_f64(&l.json, "z_loss", (double)z_loss);
    print(&l);
}

static void cast(struct meg_stream *st, void *dst, enum meg_dtype dst_type, const void *src, enum meg_dtype src_type,
                 int64_t n)
{
    struct line l = start(st);

    op->cast(st, dst, dst_type, src, src_type, n);
    put_op(&l, "cast");
    put_vector(&l, "dst", dst, dst_type, n);
    put_vector(&l, "src", src, src_type, n);
    print(&l);
}

static void sumsq(struct meg_stream *st, double *out, const void *x, enum meg_dtype type, int64_t n)
{
    struct line l = start(st);

    op->sumsq(st, out, x, type, n);
    put_op(&l, "sumsq");
    put_vector(&l, "x", x, type, n);
    print(&l);
}

static void sumsq_ranges(struct meg_stream *st, double *out, const void *x, enum meg_dtype type,
                         const struct meg_range *range, int nranges)
{
    struct line l = start(st);

    op->sumsq_ranges(st, out, x, type, range, nranges);
    put_op(&l, "sumsq_ranges");
    put_str(&l, "dtype", meg_dtype_name(type));
    put_i64(&l, "nranges", nranges);
    print(&l);
}

static void weighted_sum(struct meg_stream *st, double *out, const float *x, const float *weight, int64_t n,
                         const double *scale)
{
    struct line l = start(st);

    op->weighted_sum(st, out, x, weight, n, scale);
    put_op(&l, "weighted_sum");
    put_i64(&l, "n", n);
    print(&l);
}

static void count_zeros(struct meg_stream *st, int64_t *out, const void *x, enum meg_dtype type, int64_t n)
{
    struct line l = start(st);

    op->count_zeros(st, out, x, type, n);
    put_op(&l, "count_zeros");
    put_vector(&l, "x", x, type, n);
    print(&l);
}

static void sample(struct meg_stream *st, struct meg_sampled_token *token, struct meg_mat logits,
                   int64_t unpadded_vocab, const struct meg_sampling_args *args, bool has_logprobs,
                   struct meg_workspace workspace)
{
    struct line l = start(st);

    op->sample(st, token, logits, unpadded_vocab, args, has_logprobs, workspace);
    put_op(&l, "sample");
    put_mat(&l, "logits", logits);
    put_i64(&l, "unpadded_vocab", unpadded_vocab);
    print(&l);
}

static void step_finish(struct meg_stream *st, struct meg_step_record *record, const struct meg_step_conf *conf)
{
    struct line l = start(st);

    op->step_finish(st, record, conf);
    put_op(&l, "step_finish");
    print(&l);
}

static void adamw(struct meg_stream *st, const struct meg_update_arrays *x, const struct meg_update_range *range,
                  int nranges, const struct meg_adam *adam, const struct meg_step_hparams *step)
{
    struct line l = start(st);

    op->adamw(st, x, range, nranges, adam, step);
    put_op(&l, "adamw");
    put_ranges(&l, range, nranges);
    print(&l);
}

static void sgd(struct meg_stream *st, const struct meg_update_arrays *x, const struct meg_update_range *range,
                int nranges, float momentum, const struct meg_step_hparams *step)
{
    struct line l = start(st);

    op->sgd(st, x, range, nranges, momentum, step);
    put_op(&l, "sgd");
    put_ranges(&l, range, nranges);
    print(&l);
}

/* ---- the table ---- */

static void trace(const struct meg_ops *table)
{
    op = table;
    traced = *table;           /* operations that are not replaced below are not traced */
    traced.graph_begin = NULL; /* the host waits for each traced operation, so operations cannot be captured */
    traced.upload = upload;
    traced.upload_pinned = upload_pinned;
    traced.download = download;
    traced.zero = zero;
    traced.linear_fwd = linear_fwd;
    traced.linear_bwd_data = linear_bwd_data;
    traced.linear_bwd_weight = linear_bwd_weight;
    traced.act_bwd = act_bwd;
    traced.scale = scale;
    traced.glu_fwd = glu_fwd;
    traced.glu_bwd = glu_bwd;
    traced.rope = rope;
    traced.qk_norm_fwd = qk_norm_fwd;
    traced.qk_norm_bwd = qk_norm_bwd;
    traced.norm_fwd = norm_fwd;
    traced.norm_bwd = norm_bwd;
    traced.add_fwd = add_fwd;
    traced.add_bwd = add_bwd;
    traced.add_norm_fwd = add_norm_fwd;
    traced.attn_fwd = attn_fwd;
    traced.attn_merge = attn_merge;
    traced.attn_delta = attn_delta;
    traced.attn_bwd = attn_bwd;
    traced.copy_heads = copy_heads;
    traced.embed_fwd = embed_fwd;
    traced.embed_bwd = embed_bwd;
    traced.position_fwd = position_fwd;
    traced.position_bwd = position_bwd;
    traced.xent_partial = xent_partial;
    traced.xent_combine = xent_combine;
    traced.xent_bwd = xent_bwd;
    traced.xent_fwd_bwd = xent_fwd_bwd;
    traced.cast = cast;
    traced.sumsq = sumsq;
    traced.sumsq_ranges = sumsq_ranges;
    traced.weighted_sum = weighted_sum;
    traced.count_zeros = count_zeros;
    traced.sample = sample;
    traced.step_finish = step_finish;
    traced.adamw = adamw;
    traced.sgd = sgd;
}

bool meg_trace_is_enabled(const char *what)
{
    const char *s = getenv("MEG_TRACE");

    for (size_t n; s && *s; s += n + (s[n] == ',')) {
        n = strcspn(s, ",");
        if (n == strlen(what) && strncmp(s, what, n) == 0)
            return true;
    }
    return false;
}

const struct meg_ops *meg_trace_ops(const struct meg_ops *table)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    bool is_traced;

    if (!meg_trace_is_enabled("ops"))
        return table;
    pthread_mutex_lock(&lock);
    if (!op)
        trace(table);
    is_traced = op == table;
    pthread_mutex_unlock(&lock);
    return is_traced ? &traced : table;
}
