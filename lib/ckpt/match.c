/* match.c - find the tensors that compose each parameter, and check their names and shapes. */
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

    MEG_FORMAT_ARGS(text, fmt);
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

static struct ckpt_tp_shard tp_shard_of(const struct meg_ckpt *c, const struct meg_model_conf *m,
                                        const struct meg_param *row, int64_t tp)
{
    return (struct ckpt_tp_shard){
        .model = m, .tp_rank = tp, .tp_size = c->tp, .vocab_rows = c->vocab_rows ? c->vocab_rows : row->dim[0]
    };
}

static void check_shape(const struct ckpt_source *s, struct issues *is)
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
static bool add_source(struct ckpt_sources *all, const struct meg_ckpt *c, const struct ckpt_tp_shard *tp_shard,
                       const struct meg_param *row, const char *name, enum ckpt_remap remap, struct issues *is)
{
    struct ckpt_source s = { .row = row, .remap = remap, .tp = *tp_shard };

    s.t = ckpt_find_tensor(c, tp_shard->tp_rank, name, &s.st);
    if (!s.t)
        return false;
    check_shape(&s, is);
    for (int64_t i = 0; i < (s.t->tile ? s.t->ntiles : 1); i++) {
        s.tile = s.t->tile ? &s.t->tile[i] : NULL;
        all->v = meg_grow(all->v, all->n, &all->cap, sizeof *all->v);
        all->v[all->n++] = s;
    }
    return true;
}

/*
 * Find the tensors that compose one parameter, in the files of one tensor-parallel rank.  Each foreign name is tried
 * with and without its prefix.  If no tensor has a foreign name, the native name is tried.
 */
static void find_sources(struct ckpt_sources *all, const struct meg_ckpt *c, const struct ckpt_tp_shard *tp_shard,
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

/* Return whether `copy`, in a file of tensor-parallel rank tp, equals the tensor of the parameter called `native`. */
static bool is_copy(const struct ckpt_sources *all, const char *native, int64_t tp, struct ckpt_mapped_tensor copy)
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

static struct used_tensors used_tensors_of(const struct ckpt_sources *all)
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
static void list_unknown(const struct meg_ckpt *c, const struct meg_params *p, const struct ckpt_sources *all,
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

/*
 * Return how many tensor-parallel ranks store different shards of a parameter, or of its optimizer state (is_optim); 0
 * for a missing head, and for the state of a frozen parameter.
 */
static int64_t num_shards_of(const struct meg_ckpt *c, const struct meg_param *row, bool is_optim)
{
    if (ckpt_is_missing_head(c, row->name) || (is_optim && row->is_frozen))
        return 0;
    return meg_param_is_sharded(row, MEG_AXIS_TP) ? c->tp : 1;
}

int ckpt_match_sources(struct ckpt_sources *out, const struct meg_ckpt *c, const struct meg_model_conf *m,
                       const struct meg_params *p, const struct meg_ckpt_shard *shard, struct meg_err *e)
{
    struct issues is = { { "missing", { 0 }, 0 }, { "mismatched", { 0 }, 0 }, { "unknown", { 0 }, 0 } };
    const char *advice = "";
    struct ckpt_sources all = { 0 };
    int r;

    for (int i = 0; i < p->n; i++)
        for (int64_t tp = 0; tp < num_shards_of(c, &p->row[i], shard != NULL); tp++) {
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
    struct ckpt_sources all = { 0 };
    int r = ckpt_match_sources(&all, c, m, p, NULL, e);

    free(all.v);
    return r;
}
