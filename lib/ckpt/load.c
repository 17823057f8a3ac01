/* Tensors of files into slots: first every name and shape is held against the table, then bytes move. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/internal.h"

/* What is wrong with a set of tensors, a list a kind. */
struct issues {
    struct issue {
        const char *what;
        struct meg_str names; /* a line each */
        int n;
    } missing, unfit, unknown;
};
enum { NAMES_MAX = 1500 }; /* bytes of all names in a message: meg_err holds no more */

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

/* "2 missing: A, B", as many names as fit in max bytes. */
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

/* The message, where there is anything to say; frees the lists. */
static int report(struct issues *is, const char *path, const char *advice, struct meg_err *e)
{
    struct issue *const all[] = { &is->missing, &is->unfit, &is->unknown };
    const int nlists = !!is->missing.n + !!is->unfit.n + !!is->unknown.n;
    struct meg_str text = { 0 };
    int r = 0;

    for (int i = 0; i < 3; i++) {
        if (all[i]->n)
            list_names(&text, all[i], NAMES_MAX / (size_t)nlists);
        meg_str_free(&all[i]->names);
    }
    if (text.n)
        r = meg_fail(e, MEG_EFORMAT, "%.200s: the tensors are not those of the model: %s%s", path, text.s, advice);
    meg_str_free(&text);
    return r;
}

/* A tensor of the files that a parameter is made of, alone or with others. */
struct source {
    const struct meg_param *row;
    const struct meg_st *st;
    const struct meg_st_tensor *t;
    enum ckpt_remap how;
    struct ckpt_tp_shard cut;
};

struct sources {
    struct source *v;
    int n;
};

static struct ckpt_tp_shard cut_of(const struct meg_ckpt *c, const struct meg_gpt_conf *m, const struct meg_param *row,
                                   int64_t tp)
{
    return (struct ckpt_tp_shard){
        .model = m, .tp_rank = tp, .tp_size = c->tp, .vocab_rows = c->vocab_rows ? c->vocab_rows : row->dim[0]
    };
}

static void check_fit(const struct source *s, struct issues *is)
{
    const struct meg_param *row = s->row;
    int64_t dim[2];
    const int ndim = ckpt_foreign_shape(dim, &s->cut, row, s->how);
    char have[MEG_ST_SHAPE_CHARS], want[MEG_ST_SHAPE_CHARS];

    if (s->t->ndim != ndim || memcmp(s->t->dim, dim, (size_t)ndim * sizeof *dim))
        add_issue(&is->unfit, "%s is %s and should be %s", s->t->name, meg_st_shape(have, s->t->dim, s->t->ndim),
                  meg_st_shape(want, dim, ndim));
    else if (!ckpt_is_float(s->t->dtype))
        add_issue(&is->unfit, "%s is %s and should be F32, BF16 or F16", s->t->name, s->t->dtype);
    else if (row->is_decoupled && s->cut.vocab_rows < row->dim[0])
        add_issue(&is->unfit, "%s has %" PRId64 " rows and should have %" PRId64, s->t->name, s->cut.vocab_rows,
                  row->dim[0]);
}

/* Add the tensor of that name, if it is there. */
static bool add_source(struct sources *all, const struct meg_ckpt *c, const struct ckpt_tp_shard *cut,
                       const struct meg_param *row, const char *name, enum ckpt_remap how, struct issues *is)
{
    struct source s = { .row = row, .how = how, .cut = *cut };

    s.t = ckpt_find_tensor(c, cut->tp_rank, name, &s.st);
    if (!s.t)
        return false;
    check_fit(&s, is);
    all->v = meg_realloc_array(all->v, (size_t)all->n + 1, sizeof *all->v);
    all->v[all->n++] = s;
    return true;
}

/* The tensors of one rank for one row: by their names, with and without prefix, or else by ours. */
static void find(struct sources *all, const struct meg_ckpt *c, const struct ckpt_tp_shard *cut,
                 const struct meg_param *row, struct issues *is)
{
    struct issue missing = { 0 };
    char name[CKPT_NAME_CHARS];
    int nfound = 0;

    for (const struct ckpt_rename *re = c->format->rename; re->native; re++) {
        if (!ckpt_foreign_name(c->format, re, row->name, false, name))
            continue;
        if (add_source(all, c, cut, row, name, re->remap, is))
            nfound++;
        else if (ckpt_foreign_name(c->format, re, row->name, true, name) &&
                 add_source(all, c, cut, row, name, re->remap, is))
            nfound++;
        else if (ckpt_foreign_name(c->format, re, row->name, false, name))
            add_issue(&missing, "%s", name);
    }
    if (nfound == 0 && add_source(all, c, cut, row, row->name, CKPT_SAME, is)) {
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

/* Whether t is the output weight of a model that has none of its own. */
static bool is_tied_head(const struct meg_ckpt *c, const struct meg_params *p, const struct meg_st_tensor *t)
{
    static const char ours[] = "output_layer.weight";
    char name[CKPT_NAME_CHARS];

    if (meg_params_find(p, ours))
        return false;
    for (const struct ckpt_rename *re = c->format->rename; re->native; re++)
        if (ckpt_foreign_name(c->format, re, ours, false, name) && !strcmp(name, t->name))
            return true;
    return !strcmp(ours, t->name);
}

/* Whether two tensors of one size hold the same bytes; without memory to tell, no. */
static bool is_equal(const struct meg_st_tensor *a, const struct meg_st_tensor *b)
{
    void *block[2];
    const void *x = meg_st_data(a, &block[0]), *y = meg_st_data(b, &block[1]);
    const bool is_same = x && y && !memcmp(x, y, (size_t)a->nbytes);

    free(block[0]);
    free(block[1]);
    return is_same;
}

/* A tied output weight may be stored once more; then it has to be the embedding. */
static bool is_embedding(const struct sources *all, int64_t tp, const struct meg_st_tensor *t)
{
    for (int i = 0; i < all->n; i++) {
        const struct meg_st_tensor *word = all->v[i].t;

        if (all->v[i].cut.tp_rank == tp && !strcmp(all->v[i].row->name, "embedding.word_embeddings.weight"))
            return word->nbytes == t->nbytes && !strcmp(word->dtype, t->dtype) && is_equal(word, t);
    }
    return false;
}

/* A tensor that is whole on every rank is taken from the first. */
static bool is_used(const struct meg_ckpt *c, int64_t tp, const struct meg_st_tensor *t, const struct sources *all)
{
    const struct meg_st *st;

    for (int i = 0; i < all->n; i++)
        if (all->v[i].t == t)
            return true;
    return tp > 0 && ckpt_find_tensor(c, 0, t->name, &st);
}

/* Tensors of the files that no row has asked for. */
static void note_unknown(const struct meg_ckpt *c, const struct meg_params *p, const struct sources *all,
                         struct issues *is)
{
    for (int i = 0; i < c->nfiles; i++)
        for (int k = 0; k < c->file[i]->n; k++) {
            const struct meg_st_tensor *t = &c->file[i]->t[k];

            if (ckpt_is_ignored(c->format, t->name))
                continue;
            if (is_tied_head(c, p, t)) {
                if (!is_embedding(all, i % c->tp, t))
                    add_issue(&is->unfit, "%s is not the word embedding that it is said to be tied to", t->name);
            } else if (!is_used(c, i % c->tp, t, all)) {
                add_issue(&is->unknown, "%s", t->name);
            }
        }
}

/*
 * Sources of all rows of one set (the weights, or with slot a kind of optimizer state), malloc'ed;
 * they refer to m.
 */
static int match(struct sources *out, const struct meg_ckpt *c, const struct meg_gpt_conf *m,
                 const struct meg_params *p, const struct meg_ckpt_shard *slot, struct meg_err *e)
{
    struct issues is = { { "missing", { 0 }, 0 }, { "unfit", { 0 }, 0 }, { "unknown", { 0 }, 0 } };
    struct sources all = { 0 };
    int r;

    for (int i = 0; i < p->n; i++)
        for (int64_t tp = 0; tp < (p->row[i].tp_axis < 0 ? 1 : c->tp); tp++) {
            const struct ckpt_tp_shard cut = cut_of(c, m, &p->row[i], tp);
            char name[CKPT_NAME_CHARS];

            if (!slot)
                find(&all, c, &cut, &p->row[i], &is);
            else if (!add_source(&all, c, &cut, &p->row[i], ckpt_optim_name(name, slot->name, p->row[i].name),
                                 CKPT_SAME, &is))
                add_issue(&is.missing, "%s", name);
        }
    if (!slot)
        note_unknown(c, p, &all, &is);
    r = report(&is, c->path, slot ? "; --no-load-optim or --finetune goes on without optimizer state" : "", e);
    if (r < 0)
        free(all.v);
    else
        *out = all;
    return r;
}

int ckpt_match_model(const struct meg_ckpt *c, const struct meg_gpt_conf *m, const struct meg_params *p,
                     struct meg_err *e)
{
    struct sources all = { 0 };
    int r = match(&all, c, m, p, NULL, e);

    free(all.v);
    return r;
}

/* ---- bytes ---------------------------------------------------------------------------------------- */

/* What is filled, and of which model. */
struct target {
    const struct meg_params *p;
    const struct meg_ckpt_shard *slot;
};

/* f32 numbers of ours, [first, first + n) of a row, to where the slot has them, if it does. */
static void put(const struct target *to, const struct meg_param *row, int64_t first, int64_t n, const float *v)
{
    const size_t size = meg_dtype_size(to->slot->dtype);
    struct ckpt_shard_range s;
    struct ckpt_range_iter w;

    ckpt_range_iter_begin(&w, to->p, to->slot, row, first, n);
    while (ckpt_range_iter_next(&w, &s))
        ckpt_from_f32((char *)to->slot->data + (size_t)s.shard_offset * size, to->slot->dtype,
                      v + (s.tensor_offset - first), s.n);
}

/* A tensor that lies as ours, whole: only what the slot has of it is read. */
static void copy_contiguous(const struct target *to, const struct source *s, const char *data, float *buf, int64_t nbuf)
{
    const size_t size = meg_dtype_size(to->slot->dtype), theirs = (size_t)(s->t->nbytes / s->row->numel);
    const bool is_same = !strcmp(s->t->dtype, meg_dtype_name(to->slot->dtype));
    struct ckpt_shard_range part;
    struct ckpt_range_iter w;

    ckpt_range_iter_begin(&w, to->p, to->slot, s->row, 0, s->row->numel);
    while (ckpt_range_iter_next(&w, &part)) {
        const char *from = data + (size_t)part.tensor_offset * theirs;
        char *out = (char *)to->slot->data + (size_t)part.shard_offset * size;

        if (is_same)
            memcpy(out, from, (size_t)part.n * size);
        for (int64_t i = 0, n; !is_same && i < part.n; i += n) {
            n = part.n - i < nbuf ? part.n - i : nbuf;
            ckpt_to_f32(buf, from + (size_t)i * theirs, s->t->dtype, n);
            ckpt_from_f32(out + (size_t)i * size, to->slot->dtype, buf, n);
        }
    }
}

/* Whether any of the numbers [first, first + n) of a row are in the slot. */
static bool is_held(const struct target *to, const struct meg_param *row, int64_t first, int64_t n)
{
    struct ckpt_shard_range s;
    struct ckpt_range_iter w;

    ckpt_range_iter_begin(&w, to->p, to->slot, row, first, n);
    return ckpt_range_iter_next(&w, &s);
}

/* A tensor that lies otherwise, a few rows at a time. */
static void copy_row_map(const struct target *to, const struct source *s, const char *data,
                         const struct ckpt_row_map *p, float *buf)
{
    for (int64_t i = 0, n; i < p->n; i += n) {
        bool is_wanted = false;

        n = p->n - i < CKPT_ROWS_MAX ? p->n - i : CKPT_ROWS_MAX;
        for (int64_t k = 0; k < n; k++)
            is_wanted = is_wanted || is_held(to, s->row, ckpt_native_row(p, i + k), p->cols);
        if (!is_wanted)
            continue;
        ckpt_rows_from_foreign(buf, data, s->t->dtype, p, i, n);
        for (int64_t k = 0; k < n; k++)
            put(to, s->row, ckpt_native_row(p, i + k), p->cols, buf + k * p->cols);
    }
}

static int copy(const struct target *to, const struct source *s, struct meg_err *e)
{
    enum { NBUF = 1 << 14 };
    const int64_t cols = s->row->ndim > 1 ? s->row->dim[1] : 1;
    const int64_t nbuf = CKPT_ROWS_MAX * cols > NBUF ? CKPT_ROWS_MAX * cols : NBUF;
    struct ckpt_row_map piece[3];
    const char *data;
    void *block;
    float *buf;

    if (!is_held(to, s->row, 0, s->row->numel))
        return 0;
    buf = malloc((size_t)nbuf * sizeof *buf);
    data = meg_st_data(s->t, &block);
    if (!buf || !data) {
        free(buf);
        free(block);
        return meg_fail(e, MEG_EFAIL, "%s: no memory to lay out %s", s->st->path, s->t->name);
    }
    if (s->how == CKPT_SAME && s->cut.tp_size == 1 && meg_st_numel(s->t) == s->row->numel)
        copy_contiguous(to, s, data, buf, nbuf);
    else
        for (int i = ckpt_row_maps(piece, &s->cut, s->row, s->how); i-- > 0;)
            copy_row_map(to, s, data, &piece[i], buf);
    free(buf);
    free(block);
    return 0;
}

static int copy_all(const struct target *to, const struct sources *all, struct meg_err *e)
{
    int r = 0;

#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < all->n; i++) {
        struct meg_err mine;

        if (copy(to, &all->v[i], &mine) < 0) {
#pragma omp critical(ckpt_copy)
            {
                r = mine.code;
                if (e)
                    *e = mine;
            }
        }
    }
    return r;
}

/* This rank's share of the checksums of what all ranks read. */
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

/* Whether a slot is filled from the files of the weights. */
static bool is_weights(const struct meg_ckpt *c, const struct meg_ckpt_shard *slot)
{
    return !slot->name || (!strcmp(slot->name, MEG_CKPT_MAIN_PARAMS) && !meg_ckpt_has_optim_state(c, slot->name));
}

static int load(const struct meg_ckpt *c, const struct meg_gpt_conf *m, const struct meg_params *p,
                const struct meg_comm *world, const struct meg_ckpt_shard *slot, struct meg_err *e)
{
    const struct target to = { p, slot };
    const bool of_weights = is_weights(c, slot);
    struct sources all = { 0 };
    struct meg_ckpt optim;
    int r = 0;

    if (!of_weights && (r = ckpt_open_optim(&optim, c, e)) < 0)
        return r;
    if ((r = match(&all, of_weights ? c : &optim, m, p, of_weights ? NULL : slot, e)) < 0)
        goto out;
    if ((r = check_sources(c, &all, world, e)) == 0)
        r = copy_all(&to, &all, e);
    else
        ckpt_suggest_older(c, e);
out:
    free(all.v);
    if (!of_weights)
        ckpt_close_files(&optim);
    return r;
}

int meg_ckpt_load(const struct meg_ckpt *c, const struct meg_params *p, const struct meg_mesh *mesh,
                  const struct meg_ckpt_shard *slot, int n, struct meg_err *e)
{
    struct meg_gpt_conf m;
    struct meg_err mine;
    int r;

    if (!e)
        e = &mine;
    r = meg_ckpt_gpt_conf(c, &m, e);
    for (int i = 0; r == 0 && i < n; i++)
        r = load(c, &m, p, mesh->world, &slot[i], e);
    return ckpt_agree(mesh->world, r, e);
}

bool meg_ckpt_has_optim_state(const struct meg_ckpt *c, const char *name)
{
    const size_t n = strlen(name);
    const char *key;
    json_t *v;

    json_object_foreach(c->manifest, key, v)
    {
        if (ckpt_is_optim_name(key) && !strncmp(key + sizeof CKPT_OPTIM_PREFIX - 1, name, n) &&
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
