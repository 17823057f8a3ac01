/*
 * load.c - check that all names and shapes match the parameter table, then fill shards from the tensors of the files.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/internal.h"

/* Differences between the tensors in the files and those that the model requires, to report in one error message. */
struct issues {
    struct issue {
        const char *what;
        struct meg_str names; /* one name per line */
        int n;
    } missing, mismatched, unknown;
};
enum { NAMES_MAX = 1500 }; /* maximum bytes of names in a message, which must fit in struct meg_err */

static void __attribute__((format(printf, 2, 3))) add_issue(struct issue *i, const char *fmt, ...)
{
    char text[400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    i->n++;
    meg_str_printf(&i->names, "%s\n", text);
}

/*
 * Append "2 missing: A, B", with the first name and as many other names as fit in max bytes.  If names remain, append
 * their number: " and 3 more".
 */
static void list_names(struct meg_str *out, const struct issue *is, size_t max)
{
    const char *line = is->names.s, *end;
    const size_t limit = out->n + max;
    int n;

    meg_str_printf(out, "%s%d %s: ", out->n ? "; " : "", is->n, is->what);
    for (n = 0; n < is->n; n++, line = end + 1) {
        end = strchr(line, '\n');
        if (n && out->n + (size_t)(end - line) > limit)
            break;
        meg_str_printf(out, "%s%.*s", n ? ", " : "", (int)(end - line), line);
    }
    if (n < is->n)
        meg_str_printf(out, " and %d more", is->n - n);
}

/* Free the lists.  If any list has names, return MEG_EFORMAT with a message that contains the lists and `advice`. */
static int report(struct issues *is, const char *path, const char *advice, struct meg_err *e)
{
    struct issue *const all[] = { &is->missing, &is->mismatched, &is->unknown };
    const int nlists = !!is->missing.n + !!is->mismatched.n + !!is->unknown.n;
    struct meg_str text = { 0 };
    int r = 0;

    for (int i = 0; i < 3; i++) {
        if (all[i]->n)
            list_names(&text, all[i], NAMES_MAX / (size_t)nlists);
        meg_str_free(&all[i]->names);
    }
    if (text.n)
        r = meg_fail(e, MEG_EFORMAT, "%.200s: the tensors do not match the model: %s%s", path, text.s, advice);
    meg_str_free(&text);
    return r;
}

/* A tensor in the files that contains a parameter or a part of a parameter. */
struct source {
    const struct meg_param *row;
    struct meg_st *st;
    const struct meg_st_tensor *t;
    enum ckpt_remap remap;
    struct ckpt_tp_shard tp;
};

struct sources {
    struct source *v;
    int n, cap;
};

static struct ckpt_tp_shard tp_shard_of(const struct meg_ckpt *c, const struct meg_model_conf *m,
                                        const struct meg_param *row, int64_t tp)
{
    return (struct ckpt_tp_shard){
        .model = m, .tp_rank = tp, .tp_size = c->tp, .vocab_rows = c->vocab_rows ? c->vocab_rows : row->dim[0]
    };
}

static void check_shape(const struct source *s, struct issues *is)
{
    const struct meg_param *row = s->row;
    int64_t dim[MEG_PARAM_MAXDIM];
    const int ndim = ckpt_foreign_shape(dim, &s->tp, row, s->remap);
    char found[MEG_ST_SHAPE_CHARS], expected[MEG_ST_SHAPE_CHARS];

    if (s->t->ndim != ndim || memcmp(s->t->dim, dim, (size_t)ndim * sizeof *dim) != 0)
        add_issue(&is->mismatched, "%s has shape %s, expected %s", s->t->name,
                  meg_st_shape(found, s->t->dim, s->t->ndim), meg_st_shape(expected, dim, ndim));
    else if (!ckpt_is_float(s->t->dtype))
        add_issue(&is->mismatched, "%s has dtype %s, expected F32, BF16 or F16", s->t->name, s->t->dtype);
    else if (row->is_vocab && s->tp.vocab_rows < row->dim[0])
        add_issue(&is->mismatched, "%s has %" PRId64 " rows, expected %" PRId64, s->t->name, s->tp.vocab_rows,
                  row->dim[0]);
}

/*
 * Append the tensor called `name` to *all, and add a wrong shape or dtype to *is.  Return false if the files do not
 * contain this tensor.
 */
static bool add_source(struct sources *all, const struct meg_ckpt *c, const struct ckpt_tp_shard *tp_shard,
                       const struct meg_param *row, const char *name, enum ckpt_remap remap, struct issues *is)
{
    struct source s = { .row = row, .remap = remap, .tp = *tp_shard };

    s.t = ckpt_find_tensor(c, tp_shard->tp_rank, name, &s.st);
    if (!s.t)
        return false;
    check_shape(&s, is);
    if (all->n == all->cap) {
        all->cap = 2 * all->cap + 64;
        all->v = meg_realloc_array(all->v, (size_t)all->cap, sizeof *all->v);
    }
    all->v[all->n++] = s;
    return true;
}

/*
 * Find the tensors that compose one parameter, in the files of one tensor-parallel rank.  Each foreign name is tried
 * with and without its prefix.  If no tensor has a foreign name, the native name is tried.
 */
static void find_sources(struct sources *all, const struct meg_ckpt *c, const struct ckpt_tp_shard *tp_shard,
                         const struct meg_param *row, struct issues *is)
{
    const int64_t layers = tp_shard->model->num_layers;
    struct issue missing = { 0 };
    char name[CKPT_NAME_CHARS];
    int nfound = 0;

    for (const struct ckpt_rename *re = c->format->rename; re->native; re++) {
        if (!ckpt_foreign_name(c->format, re, row->name, layers, false, name))
            continue;
        if (add_source(all, c, tp_shard, row, name, re->remap, is))
            nfound++;
        else if (ckpt_foreign_name(c->format, re, row->name, layers, true, name) &&
                 add_source(all, c, tp_shard, row, name, re->remap, is))
            nfound++;
        else if (ckpt_foreign_name(c->format, re, row->name, layers, false, name))
            add_issue(&missing, "%s", name);
    }
    if (nfound == 0 && add_source(all, c, tp_shard, row, row->name, CKPT_SAME, is)) {
        nfound++;
        missing.n = 0;
    }
    if (nfound == 0 && (c->is_native || missing.n == 0))
        add_issue(&is->missing, "%s", row->name);
    else if (missing.n) {
        meg_str_add(&is->missing.names, missing.names.s, missing.names.n);
        is->missing.n += missing.n;
    }
    meg_str_free(&missing.names);
}

/*
 * Return whether the output weight of the model is tied to the word embedding, and t is a stored copy of this weight.
 */
static bool is_tied_head(const struct meg_ckpt *c, const struct meg_params *p, const struct meg_st_tensor *t)
{
    static const char head[] = "output_layer.weight";
    char name[CKPT_NAME_CHARS];

    if (meg_params_find(p, head))
        return false;
    for (const struct ckpt_rename *re = c->format->rename; re->native; re++)
        if (ckpt_foreign_name(c->format, re, head, 0, false, name) && strcmp(name, t->name) == 0)
            return true;
    return strcmp(head, t->name) == 0;
}

void ckpt_drop_pages(const struct meg_st *st, const struct meg_st_tensor *t)
{
    if (t->container_data)
        meg_mmap_drop(&st->map, t->container_data, t->container_nbytes);
    else if (t->data)
        meg_mmap_drop(&st->map, t->data, (size_t)t->nbytes);
}

bool ckpt_is_equal(struct ckpt_mapped_tensor a, struct ckpt_mapped_tensor b)
{
    void *block[2];
    const void *x, *y;
    bool is_same;

    if (a.t->nbytes != b.t->nbytes || strcmp(a.t->dtype, b.t->dtype) != 0)
        return false;
    x = meg_st_data(a.t, &block[0]);
    y = meg_st_data(b.t, &block[1]);
    is_same = x && y && memcmp(x, y, (size_t)a.t->nbytes) == 0;
    ckpt_drop_pages(a.st, a.t);
    ckpt_drop_pages(b.st, b.t);
    free(block[0]);
    free(block[1]);
    return is_same;
}

/* Return whether `copy`, in a file of tensor-parallel rank tp, equals the tensor of the parameter called `native`. */
static bool is_copy(const struct sources *all, const char *native, int64_t tp, struct ckpt_mapped_tensor copy)
{
    for (int i = 0; i < all->n; i++)
        if (all->v[i].tp.tp_rank == tp && strcmp(all->v[i].row->name, native) == 0)
            return ckpt_is_equal((struct ckpt_mapped_tensor){ all->v[i].st, all->v[i].t }, copy);
    return false;
}

/* The tensors that are sources, in ascending order of their addresses. */
struct used_tensors {
    const struct meg_st_tensor **v;
    int n;
};

static int by_address(const void *a, const void *b)
{
    const uintptr_t x = (uintptr_t) * (const struct meg_st_tensor *const *)a,
                    y = (uintptr_t) * (const struct meg_st_tensor *const *)b;

    return (x > y) - (x < y);
}

static struct used_tensors used_tensors_of(const struct sources *all)
{
    struct used_tensors used = { meg_new((size_t)all->n * sizeof *used.v + 1), all->n };

    for (int i = 0; i < all->n; i++)
        used.v[i] = all->v[i].t;
    qsort(used.v, (size_t)used.n, sizeof *used.v, by_address);
    return used;
}

/*
 * Return whether a parameter uses t.  If all tensor-parallel ranks store a replica of a tensor, `used` contains only
 * the replica of rank 0.  For tp > 0, the result is therefore also true if rank 0 has a tensor of the same name.
 */
static bool is_used(const struct meg_ckpt *c, int64_t tp, const struct meg_st_tensor *t,
                    const struct used_tensors *used)
{
    struct meg_st *st;

    return bsearch(&t, used->v, (size_t)used->n, sizeof *used->v, by_address) ||
           (tp > 0 && ckpt_find_tensor(c, 0, t->name, &st));
}

/*
 * Report as unknown each tensor in the files that no parameter uses.  Report as mismatched each stored copy of a tied
 * output weight that differs from the word embedding, and each other copy that differs from its tensor.
 */
static void list_unknown(const struct meg_ckpt *c, const struct meg_params *p, const struct sources *all,
                         struct issues *is)
{
    const struct used_tensors used = used_tensors_of(all);

    for (int i = 0; i < c->nfiles; i++)
        for (int k = 0; k < c->file[i]->n; k++) {
            const struct meg_st_tensor *t = &c->file[i]->t[k];
            const char *native = ckpt_copied_name(c->format, t->name);

            if (ckpt_is_ignored(c->format, t->name) || ckpt_is_other_head(c, t->name) || meg_st_numel(t) == 0)
                continue;
            if (native) {
                if (!is_copy(all, native, i % c->tp, (struct ckpt_mapped_tensor){ c->file[i], t }))
                    add_issue(&is->mismatched, "%s differs from %s, of which it is a copy", t->name, native);
            } else if (is_tied_head(c, p, t)) {
                if (!is_copy(all, "embedding.word_embeddings.weight", i % c->tp,
                             (struct ckpt_mapped_tensor){ c->file[i], t }))
                    add_issue(&is->mismatched, "%s differs from the word embedding that it is tied to", t->name);
            } else if (!is_used(c, i % c->tp, t, &used)) {
                add_issue(&is->unknown, "%s", t->name);
            }
        }
    free(used.v);
}

/* Return how many tensor-parallel ranks store different shards of a parameter; 0 for a missing head. */
static int64_t num_shards_of(const struct meg_ckpt *c, const struct meg_param *row)
{
    if (ckpt_is_missing_head(c, row->name))
        return 0;
    return meg_param_is_sharded(row, MEG_AXIS_TP) ? c->tp : 1;
}

/*
 * Find the sources of the weights, or of the optimizer state shard->name if `shard` is not NULL.  Returns MEG_EFORMAT
 * if a tensor is missing or mismatched, or if there are weights that the model does not have.  The caller frees out->v.
 * The elements of out->v refer to m.
 */
static int match(struct sources *out, const struct meg_ckpt *c, const struct meg_model_conf *m,
                 const struct meg_params *p, const struct meg_ckpt_shard *shard, struct meg_err *e)
{
    struct issues is = { { "missing", { 0 }, 0 }, { "mismatched", { 0 }, 0 }, { "unknown", { 0 }, 0 } };
    const char *advice = "";
    struct sources all = { 0 };
    int r;

    for (int i = 0; i < p->n; i++)
        for (int64_t tp = 0; tp < num_shards_of(c, &p->row[i]); tp++) {
            const struct ckpt_tp_shard tp_shard = tp_shard_of(c, m, &p->row[i], tp);
            char name[CKPT_NAME_CHARS];

            if (!shard)
                find_sources(&all, c, &tp_shard, &p->row[i], &is);
            else if (!add_source(&all, c, &tp_shard, &p->row[i], ckpt_optim_name(name, shard->name, p->row[i].name),
                                 CKPT_SAME, &is))
                add_issue(&is.missing, "%s", name);
        }
    if (!shard && !c->is_received) /* if is_received, rank 0 has checked the files */
        list_unknown(c, p, &all, &is);
    if (shard)
        advice = "; use --no-load-optim or --finetune to continue without optimizer state";
    else if (is.missing.n && c->format->advice)
        advice = c->format->advice;
    r = report(&is, c->path, advice, e);
    if (r < 0)
        free(all.v);
    else
        *out = all;
    return r;
}

int ckpt_match_model(const struct meg_ckpt *c, const struct meg_model_conf *m, const struct meg_params *p,
                     struct meg_err *e)
{
    struct sources all = { 0 };
    int r = match(&all, c, m, p, NULL, e);

    free(all.v);
    return r;
}

/* ---- bytes ---------------------------------------------------------------------------------------- */

/* The shard to fill. */
struct target {
    const struct meg_params *p;
    const struct meg_ckpt_shard *shard;
};

static bool is_host_memory(const struct meg_ckpt_shard *s)
{
    return !s->device || s->device->op->is_host_memory;
}

/* Store data [n], which has the shard's dtype, in the shard at element `offset`. */
static void set_elements(const struct meg_ckpt_shard *s, int64_t offset, const void *data, int64_t n)
{
    const size_t size = meg_dtype_size(s->dtype);
    char *out = (char *)s->data + (size_t)offset * size;

    if (is_host_memory(s)) {
        memcpy(out, data, (size_t)n * size);
        return;
    }
#pragma omp critical(ckpt_upload)
    s->device->op->upload(s->device->compute, out, data, (size_t)n * size);
}

/* Convert v [n] to the shard's dtype, and store the result in the shard at element `offset`. */
static void set_from_f32(const struct meg_ckpt_shard *s, int64_t offset, const float *v, int64_t n)
{
    uint16_t half[1 << 10];

    if (is_host_memory(s))
        meg_dtype_from_f32((char *)s->data + (size_t)offset * meg_dtype_size(s->dtype), s->dtype, v, n);
    else if (s->dtype == MEG_DTYPE_F32)
        set_elements(s, offset, v, n);
    else
        for (int64_t i = 0, m; i < n; i += m) {
            m = n - i < (int64_t)(sizeof half / sizeof *half) ? n - i : (int64_t)(sizeof half / sizeof *half);
            meg_dtype_from_f32(half, s->dtype, v + i, m);
            set_elements(s, offset + i, half, m);
        }
}

/* Store v, the f32 elements [first, first + n) of a parameter; elements that the shard does not contain are skipped. */
static void store(const struct target *to, const struct meg_param *row, int64_t first, int64_t n, const float *v)
{
    struct ckpt_shard_range s;
    struct ckpt_range_iter it;

    ckpt_range_iter_begin(&it, to->p, to->shard, row, first, n);
    while (ckpt_range_iter_next(&it, &s))
        set_from_f32(to->shard, s.shard_offset, v + (s.tensor_offset - first), s.n);
}

/* Copy an unsharded tensor in native layout.  Only the elements that the shard holds are read. */
static void copy_contiguous(const struct target *to, const struct source *s, const char *data, float *buf, int64_t nbuf)
{
    const size_t src_size = (size_t)(s->t->nbytes / s->row->numel);
    const bool is_same = strcmp(s->t->dtype, meg_dtype_name(to->shard->dtype)) == 0;
    const int64_t most = is_same ? CKPT_DROP_NBYTES / (int64_t)src_size : nbuf;
    struct ckpt_shard_range part;
    struct ckpt_range_iter it;

    ckpt_range_iter_begin(&it, to->p, to->shard, s->row, 0, s->row->numel);
    while (ckpt_range_iter_next(&it, &part))
        for (int64_t i = 0, n; i < part.n; i += n) {
            const char *from = data + (size_t)(part.tensor_offset + i) * src_size;

            n = part.n - i < most ? part.n - i : most;
            if (is_same) {
                set_elements(to->shard, part.shard_offset + i, from, n);
            } else {
                ckpt_to_f32(buf, from, s->t->dtype, n);
                set_from_f32(to->shard, part.shard_offset + i, buf, n);
            }
            meg_mmap_drop(&s->st->map, from, (size_t)n * src_size);
        }
}

/* Return whether the shard contains any of the elements [first, first + n) of a parameter. */
static bool is_in_shard(const struct target *to, const struct meg_param *row, int64_t first, int64_t n)
{
    struct ckpt_shard_range s;
    struct ckpt_range_iter it;

    ckpt_range_iter_begin(&it, to->p, to->shard, row, first, n);
    return ckpt_range_iter_next(&it, &s);
}

/* Copy the rows of one row map from a tensor in a foreign layout, up to CKPT_ROWS_MAX rows at a time. */
static void copy_row_map(const struct target *to, const struct source *s, const char *data,
                         const struct ckpt_row_map *p, float *buf)
{
    const int64_t row_nbytes = p->cols * meg_st_dtype_nbytes(s->t->dtype);

    for (int64_t i = 0, n; i < p->n; i += n) {
        bool is_wanted = false;

        n = p->n - i < CKPT_ROWS_MAX ? p->n - i : CKPT_ROWS_MAX;
        for (int64_t k = 0; k < n; k++)
            is_wanted = is_wanted || is_in_shard(to, s->row, ckpt_native_row(p, i + k), p->cols);
        if (!is_wanted)
            continue;
        ckpt_rows_from_foreign(buf, data, s->t->dtype, p, i, n);
        for (int64_t k = 0; k < n; k++)
            store(to, s->row, ckpt_native_row(p, i + k), p->cols, buf + k * p->cols);
        if (!p->is_transposed && p->src_step == 1)
            meg_mmap_drop(&s->st->map, data + (p->src_row + i) * row_nbytes, (size_t)(n * row_nbytes));
    }
}

static int copy_source(const struct target *to, const struct source *s, struct meg_err *e)
{
    enum { NBUF = 1 << 14 };
    const int64_t cols = s->row->ndim > 1 ? s->row->dim[1] : 1;
    const int64_t nbuf = CKPT_ROWS_MAX * cols > NBUF ? CKPT_ROWS_MAX * cols : NBUF;
    struct ckpt_row_map map[3];
    const char *data;
    void *block;
    float *buf;

    if (!is_in_shard(to, s->row, 0, s->row->numel))
        return 0;
    buf = malloc((size_t)nbuf * sizeof *buf);
    data = meg_st_data(s->t, &block);
    if (!buf || !data) {
        free(buf);
        free(block);
        return meg_fail(e, MEG_EFAIL, "%s: out of memory while loading tensor %s", s->st->path, s->t->name);
    }
    if (s->remap == CKPT_SAME && s->tp.tp_size == 1 && meg_st_numel(s->t) == s->row->numel)
        copy_contiguous(to, s, data, buf, nbuf);
    else
        for (int i = ckpt_row_maps(map, &s->tp, s->row, s->remap); i-- > 0;)
            copy_row_map(to, s, data, &map[i], buf);
    ckpt_drop_pages(s->st, s->t);
    free(buf);
    free(block);
    return 0;
}

/* Map the files of the sources that the shard requires. */
static int map_sources(const struct target *to, const struct sources *all, struct meg_err *e)
{
    int r = 0;

    for (int i = 0; r == 0 && i < all->n; i++)
        if (is_in_shard(to, all->v[i].row, 0, all->v[i].row->numel))
            r = meg_st_map(all->v[i].st, e);
    return r;
}

static int copy_all(const struct target *to, const struct sources *all, struct meg_err *e)
{
    int r = map_sources(to, all, e);

    if (r < 0)
        return r;
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < all->n; i++) {
        struct meg_err item_error;

        if (copy_source(to, &all->v[i], &item_error) < 0) {
#pragma omp critical(ckpt_copy)
            {
                r = item_error.code;
                if (e)
                    *e = item_error;
            }
        }
    }
    return r;
}

/* Verify this rank's part of the checksums of all tensors that the ranks read. */
static int check_sources(const struct meg_ckpt *c, const struct sources *all, const struct meg_comm *world,
                         struct meg_err *e)
{
    struct ckpt_mapped_tensor *m = meg_new((size_t)all->n * sizeof *m);
    int r;

    for (int i = 0; i < all->n; i++)
        m[i] = (struct ckpt_mapped_tensor){ all->v[i].st, all->v[i].t };
    r = ckpt_verify_checksums(c->manifest, m, all->n, world->rank, world->size, e);
    free(m);
    return r;
}

/*
 * Return whether a shard is filled from the weights of the checkpoint: the shard of the weights and, if the checkpoint
 * has no main parameters, also the shard of the main parameters.
 */
static bool is_weights(const struct meg_ckpt *c, const struct meg_ckpt_shard *shard)
{
    return !shard->name ||
           (strcmp(shard->name, MEG_CKPT_MAIN_PARAMS) == 0 && !meg_ckpt_has_optim_state(c, shard->name));
}

static int load_shard(const struct meg_ckpt *c, const struct meg_model_conf *m, const struct meg_params *p,
                      const struct meg_comm *world, const struct meg_ckpt_shard *shard, struct meg_err *e)
{
    const struct target to = { p, shard };
    const bool from_weights = is_weights(c, shard);
    struct sources all = { 0 };
    struct meg_ckpt optim;
    int r = 0;

    if (!from_weights && (r = ckpt_open_optim(&optim, c, e)) < 0)
        return r;
    if ((r = match(&all, from_weights ? c : &optim, m, p, from_weights ? NULL : shard, e)) < 0)
        goto out;
    if ((r = check_sources(c, &all, world, e)) == 0)
        r = copy_all(&to, &all, e);
    else
        ckpt_suggest_older(c, e);
out:
    free(all.v);
    if (!from_weights)
        ckpt_close_files(&optim);
    return r;
}

int meg_ckpt_load(const struct meg_ckpt *c, const struct meg_params *p, const struct meg_mesh *mesh,
                  const struct meg_ckpt_shard *shard, int n, struct meg_err *e)
{
    struct meg_model_conf m;
    struct meg_err local_error;
    int r;

    if (!e)
        e = &local_error;
    r = meg_ckpt_model_conf(c, &m, e);
    for (int i = 0; r == 0 && i < n; i++)
        r = load_shard(c, &m, p, mesh->world, &shard[i], e);
    return ckpt_agree(mesh->world, r, e);
}

struct meg_ckpt_reader {
    const struct meg_params *p;
    struct meg_model_conf model;
    struct sources all;
    int *first; /* [p->n + 1] sources first[i] to first[i + 1] - 1 compose parameter i */
};

int meg_ckpt_reader_open(struct meg_ckpt_reader **out, const struct meg_ckpt *c, const struct meg_params *p,
                         struct meg_err *e)
{
    const struct meg_ckpt_shard full = { 0 };
    const struct target to = { p, &full };
    struct meg_ckpt_reader *rd = meg_new(sizeof *rd);
    int r, i = 0;

    rd->p = p;
    rd->first = meg_new((size_t)(p->n + 1) * sizeof *rd->first);
    if ((r = meg_ckpt_check_head(c, e)) < 0 || (r = meg_ckpt_model_conf(c, &rd->model, e)) < 0 ||
        (r = match(&rd->all, c, &rd->model, p, NULL, e)) < 0)
        goto out;
    if ((r = check_sources(c, &rd->all, meg_mesh_one.world, e)) < 0) {
        ckpt_suggest_older(c, e);
        goto out;
    }
    if ((r = map_sources(&to, &rd->all, e)) < 0)
        goto out;
    for (int k = 0; k < p->n; k++) {
        rd->first[k] = i;
        while (i < rd->all.n && rd->all.v[i].row == &p->row[k])
            i++;
    }
    rd->first[p->n] = i;
    MEG_ASSERT_EQ(i, rd->all.n);
    *out = rd;
    rd = NULL;
out:
    meg_ckpt_reader_close(rd);
    return r;
}

void meg_ckpt_reader_close(struct meg_ckpt_reader *rd)
{
    if (!rd)
        return;
    free(rd->all.v);
    free(rd->first);
    free(rd);
}

int meg_ckpt_read(const struct meg_ckpt_reader *rd, const struct meg_param *row, int64_t first, int64_t n,
                  enum meg_dtype dtype, void *out, struct meg_err *e)
{
    const int64_t i = row - rd->p->row, begin = row->offset + first;
    const struct meg_elem_range range = { begin, begin + n };
    const struct meg_ckpt_shard shard = { .data = out, .dtype = dtype, .ranges = &range, .nranges = 1 };
    const struct target to = { rd->p, &shard };
    int r = 0;

    MEG_ASSERT_LE(first + n, row->numel);
    for (int k = rd->first[i]; r == 0 && k < rd->first[i + 1]; k++)
        r = copy_source(&to, &rd->all.v[k], e);
    return r;
}

bool meg_ckpt_has_optim_state(const struct meg_ckpt *c, const char *name)
{
    const size_t n = strlen(name);
    const char *key;
    json_t *v;

    json_object_foreach(c->manifest, key, v)
    {
        if (ckpt_is_optim_name(key) && strncmp(key + sizeof CKPT_OPTIM_PREFIX - 1, name, n) == 0 &&
            key[sizeof CKPT_OPTIM_PREFIX - 1 + n] == '.')
            return true;
    }
    return false;
}

static int verify(const struct meg_ckpt *c, struct meg_err *e)
{
    struct ckpt_mapped_tensor *m = NULL;
    int n = 0, r;

    for (int i = 0; i < c->nfiles; i++) {
        m = meg_realloc_array(m, (size_t)(n + c->file[i]->n), sizeof *m);
        for (int k = 0; k < c->file[i]->n; k++)
            m[n++] = (struct ckpt_mapped_tensor){ c->file[i], &c->file[i]->t[k] };
    }
    r = ckpt_verify_checksums(c->manifest, m, n, 0, 1, e);
    free(m);
    return r;
}

int meg_ckpt_verify(const struct meg_ckpt *c, struct meg_err *e)
{
    struct meg_ckpt optim;
    int r;

    if ((r = verify(c, e)) < 0 || (r = ckpt_open_optim(&optim, c, e)) < 0)
        return r;
    r = verify(&optim, e);
    ckpt_close_files(&optim);
    return r;
}
