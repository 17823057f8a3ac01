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
#include "tensor/op_row.h"

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

static void put_act(struct line *l, const char *key, enum meg_act act)
{
    static const char *const name[MEG_ACTS] = { "none", "gelu_tanh", "gelu_erf",   "tanh",
                                                "relu", "silu",      "quick_gelu", "squared_relu" };

    put_str(l, key, name[act]);
}

static void put_glu(struct line *l, const struct meg_glu *unit)
{
    put_act(l, "type", unit->act);
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

static void put_qk_norm(struct line *l, const struct meg_qk_norm *q)
{
    const int64_t shape[] = { q->s, q->b, q->g, q->heads, q->d };

    put_dims(l, "shape", shape, 5);
    put_i64(l, "half", q->half);
    put_i64(l, "is_interleaved", q->is_interleaved);
}

/* Print the number of elements of the ranges of an optimizer step, if the host can read the ranges. */
static void put_ranges(struct line *l, const struct meg_update_range *range, int64_t nranges)
{
    int64_t numel = 0;

    if (!op->is_host_memory)
        return;
    for (int64_t i = 0; i < nranges; i++)
        numel += range[i].end - range[i].begin;
    put_i64(l, "numel", numel);
}

/* ---- the operations ---- */

/* Print a data type that no tensor has. */
static void put_dtype(struct line *l, const struct meg_op_row *row, const struct meg_op_field *f, enum meg_dtype t)
{
    for (const struct meg_op_field *g = row->field; g->name; g++)
        if (g->typed && strcmp(g->typed, f->name) == 0)
            return;
    put_str(l, "dtype", meg_dtype_name(t));
}

/*
 * Print an argument; a floating-point number only if it is not 0.  Arrays whose type is part of the operation, such as
 * statistics and token ids, are not printed, except offsets of a KV cache.
 */
static void put_field(struct line *l, const struct meg_op_row *row, const struct meg_op_field *f, const void *args,
                      const struct meg_op_sizes *sizes)
{
    const void *value = meg_op_field(f, args);

    switch (f->type) {
    case MEG_FIELD_MAT: put_mat(l, f->name, *(const struct meg_mat *)value); break;
    case MEG_FIELD_HEADS: put_heads(l, f->name, *(const struct meg_heads *)value); break;
    case MEG_FIELD_ARRAY:
    case MEG_FIELD_VECTOR:
        if (f->typed || f->type == MEG_FIELD_ARRAY) {
            const struct meg_mat m = meg_op_mat(sizes, row, f, args);

            put_vector(l, f->name, m.p, m.dtype, m.cols);
        } else if (f->dtype == MEG_DTYPE_I64 && (f->role & MEG_ROLE_OPTIONAL) && meg_op_pointer(f, args)) {
            const int64_t n = meg_op_numel(sizes, f->shape);

            put_dims(l, f->name, &n, 1);
        }
        break;
    case MEG_FIELD_I64: put_i64(l, f->name, *(const int64_t *)value); break;
    case MEG_FIELD_INT: put_i64(l, f->name, *(const int *)value); break;
    case MEG_FIELD_BOOL: put_i64(l, f->name, *(const bool *)value); break;
    case MEG_FIELD_F32:
        if (*(const float *)value != 0)
            meg_json_set_f64(&l->json, f->name, (double)*(const float *)value);
        break;
    case MEG_FIELD_DTYPE: put_dtype(l, row, f, *(const enum meg_dtype *)value); break;
    case MEG_FIELD_ACT: put_act(l, "act", *(const enum meg_act *)value); break;
    case MEG_FIELD_NORM: put_norm(l, *(const enum meg_norm *)value); break;
    case MEG_FIELD_GLU: put_glu(l, meg_op_pointer(f, args)); break;
    case MEG_FIELD_QK_NORM: put_qk_norm(l, meg_op_pointer(f, args)); break;
    case MEG_FIELD_DROP: put_drop(l, meg_op_pointer(f, args)); break;
    case MEG_FIELD_ATTN_DESC: put_desc(l, meg_op_pointer(f, args)); break;
    case MEG_FIELD_RANGES: put_ranges(l, meg_op_pointer(f, args), meg_op_numel(sizes, f->shape)); break;
    case MEG_FIELD_MEMORY:
    case MEG_FIELD_PLAN:
    case MEG_FIELD_STEP_CONF:
    case MEG_FIELD_UPDATE_ARRAYS:
    case MEG_FIELD_ADAM: break;
    }
}

static void print_call(struct line *l, const struct meg_op_row *row, const void *args)
{
    const struct meg_op_sizes sizes = meg_op_sizes_of(row, args);

    put_op(l, row->name);
    for (const struct meg_op_field *f = row->field; f->name; f++)
        put_field(l, row, f, args, &sizes);
    print(l);
}

#define TRACED(name)                                                                                                   \
    static void name(struct meg_stream *st, const struct meg_##name##_args *a)                                         \
    {                                                                                                                  \
        struct line l = start(st);                                                                                     \
                                                                                                                       \
        op->name(st, a);                                                                                               \
        print_call(&l, &meg_row_##name, a);                                                                            \
    }
MEG_TENSOR_OPS(TRACED)

static void print_copy(struct line *l, const char *name, size_t nbytes)
{
    put_op(l, name);
    put_i64(l, "nbytes", (int64_t)nbytes);
    print(l);
}

static void upload(struct meg_stream *st, void *dev, const void *host, size_t nbytes)
{
    struct line l = start(st);

    op->upload(st, dev, host, nbytes);
    print_copy(&l, "upload", nbytes);
}

static void upload_pinned(struct meg_stream *st, void *dev, const void *pinned, size_t nbytes)
{
    struct line l = start(st);

    op->upload_pinned(st, dev, pinned, nbytes);
    print_copy(&l, "upload_pinned", nbytes);
}

static void download(struct meg_stream *st, void *host, const void *dev, size_t nbytes)
{
    struct line l = start(st);

    op->download(st, host, dev, nbytes);
    print_copy(&l, "download", nbytes);
}

static void zero(struct meg_stream *st, void *dev, size_t nbytes)
{
    struct line l = start(st);

    op->zero(st, dev, nbytes);
    print_copy(&l, "zero", nbytes);
}

/* ---- the table ---- */

#define SET(name) traced.name = name;
static void trace(const struct meg_ops *table)
{
    op = table;
    traced = *table;           /* operations that are not replaced below are not traced */
    traced.graph_begin = NULL; /* the host waits for each traced operation, so operations cannot be captured */
    traced.upload = upload;
    traced.upload_pinned = upload_pinned;
    traced.download = download;
    traced.zero = zero;
    MEG_TENSOR_OPS(SET)
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
