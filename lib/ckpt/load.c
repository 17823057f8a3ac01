/* Tensors of files into flat buffers: first every name and shape is held against the table, then bytes move. */
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
        r = meg_fail(e, MEG_EFORMAT, "%.200s: the tensors are not those of the model: %s%s", path,
                     text.s, advice);
    meg_str_free(&text);
    return r;
}

/* A parameter's place in the files. */
struct source {
    const struct meg_param *row;
    const struct meg_st *st;
    const struct meg_st_tensor *t;
    enum ckpt_how how;
    float *to;
};

/* Look for a tensor under our name, then theirs with and without prefix; its name in buf. */
static void find(const struct meg_ckpt *c, struct source *s, char buf[CKPT_NAME_CHARS])
{
    const struct ckpt_rename *row;

    s->how = CKPT_SAME;
    s->t = ckpt_find_tensor(c, buf, &s->st);
    for (int drop = 0; !s->t && drop < 2; drop++) {
        char theirs[128];

        if (!(row = ckpt_their_name(c->format, s->row->name, drop, theirs)))
            return;
        s->how = row->how;
        s->t = ckpt_find_tensor(c, theirs, &s->st);
        if (s->t || !drop)
            snprintf(buf, CKPT_NAME_CHARS, "%s", theirs);
    }
}

static void check_fit(const struct source *s, struct issues *is)
{
    const struct meg_param *row = s->row;
    const bool is_flipped =
        row->ndim == 2 && (s->how == CKPT_TRANSPOSED || s->how == CKPT_QKV_TRANSPOSED);
    int64_t dim[MEG_PARAM_MAXDIM] = { 0 };
    char have[MEG_ST_SHAPE_CHARS], want[MEG_ST_SHAPE_CHARS];

    for (int i = 0; i < row->ndim; i++)
        dim[i] = row->dim[is_flipped ? row->ndim - 1 - i : i];
    if (s->t->ndim != row->ndim || memcmp(s->t->dim, dim, (size_t)row->ndim * sizeof *dim))
        add_issue(&is->unfit, "%s is %s and should be %s", s->t->name,
                  meg_st_shape(have, s->t->dim, s->t->ndim), meg_st_shape(want, dim, row->ndim));
    else if (!ckpt_is_widened(s->t->dtype))
        add_issue(&is->unfit, "%s is %s and should be F32, BF16 or F16", s->t->name, s->t->dtype);
}

/* Whether t is the output weight of a model that has none of its own. */
static bool is_tied_head(const struct meg_ckpt *c, const struct meg_params *p,
                         const struct meg_st_tensor *t)
{
    char name[128];

    return ckpt_their_name(c->format, "output_layer.weight", false, name) &&
        !strcmp(name, t->name) && !meg_params_find(p, "output_layer.weight");
}

/* A tied output weight may be stored once more; then it has to be the embedding. */
static bool is_embedding(const struct meg_params *p, const struct source *sources,
                         const struct meg_st_tensor *t)
{
    for (int i = 0; i < p->n; i++) {
        const struct meg_st_tensor *word = sources[i].t;

        if (word && !strcmp(sources[i].row->name, "embedding.word_embeddings.weight"))
            return word->nbytes == t->nbytes && !strcmp(word->dtype, t->dtype) &&
                !memcmp(word->data, t->data, (size_t)t->nbytes);
    }
    return false;
}

static bool is_used(const struct meg_st_tensor *t, const struct source *s, int n)
{
    for (int i = 0; i < n; i++)
        if (s[i].t == t)
            return true;
    return false;
}

/* Tensors of the files that no row has asked for. */
static void note_others(const struct meg_ckpt *c, const struct meg_params *p,
                        const struct source *sources, struct issues *is)
{
    for (int i = 0; i < c->nfiles; i++)
        for (int k = 0; k < c->file[i]->n; k++) {
            const struct meg_st_tensor *t = &c->file[i]->t[k];

            if (is_used(t, sources, p->n) || ckpt_is_ignored(c->format, t->name))
                continue;
            if (!is_tied_head(c, p, t))
                add_issue(&is->unknown, "%s", t->name);
            else if (!is_embedding(p, sources, t))
                add_issue(&is->unfit, "%s is not the word embedding that it is said to be tied to",
                          t->name);
        }
}

/* Sources of all rows of one set (the weights, or with slot a kind of optimizer state), malloc'ed. */
static int match(struct source **out, const struct meg_ckpt *c, const struct meg_params *p,
                 const struct meg_ckpt_slot *slot, struct meg_err *e)
{
    struct issues is = { { "missing", { 0 }, 0 }, { "unfit", { 0 }, 0 }, { "unknown", { 0 }, 0 } };
    struct source *s = meg_new((size_t)p->n * sizeof *s);
    char name[CKPT_NAME_CHARS];
    int r;

    for (int i = 0; i < p->n; i++) {
        s[i].row = &p->row[i];
        if (slot) {
            s[i].t =
                ckpt_find_tensor(c, ckpt_slot_name(name, slot->name, p->row[i].name), &s[i].st);
        } else {
            snprintf(name, sizeof name, "%s", p->row[i].name);
            find(c, &s[i], name);
        }
        if (!s[i].t)
            add_issue(&is.missing, "%s", name);
        else
            check_fit(&s[i], &is);
    }
    if (!slot)
        note_others(c, p, s, &is);
    r = report(&is, c->path,
               slot ? "; --no-load-optim or --finetune goes on without optimizer state" : "", e);
    if (r < 0)
        free(s);
    else
        *out = s;
    return r;
}

int ckpt_match(const struct meg_ckpt *c, const struct meg_params *p, struct meg_err *e)
{
    struct source *s = NULL;
    int r = match(&s, c, p, NULL, e);

    free(s);
    return r;
}

/* One tensor, checked, widened and laid out as ours. */
static int copy(const struct meg_ckpt *c, const struct source *s, int64_t heads, struct meg_err *e)
{
    const struct meg_param *row = s->row;
    const int64_t cols = row->ndim > 1 ? row->numel / row->dim[0] : 1;
    float *theirs;
    int r;

    if (c->manifest && (r = ckpt_check_tensor(c->manifest, s->st, s->t, e)) < 0)
        return r;
    if (s->how == CKPT_SAME) {
        ckpt_widen(s->to, s->t->data, s->t->dtype, row->numel);
        return 0;
    }
    theirs = malloc((size_t)row->numel * sizeof *theirs);
    if (!theirs)
        return meg_fail(e, MEG_EFAIL, "%s: no memory to lay out %s", s->st->path, s->t->name);
    ckpt_widen(theirs, s->t->data, s->t->dtype, row->numel);
    ckpt_from_theirs(s->to, theirs, row->dim[0], cols, s->how, heads);
    free(theirs);
    return 0;
}

static int copy_all(const struct meg_ckpt *c, const struct meg_params *p, struct source *s,
                    float *flat, struct meg_err *e)
{
    struct meg_gpt_conf m;
    int r = meg_ckpt_gpt_conf(c, &m, e);

    if (r < 0)
        return r;
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < p->n; i++) {
        struct meg_err mine;

        s[i].to = flat + s[i].row->offset;
        if (copy(c, &s[i], m.num_attention_heads, &mine) < 0) {
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

static int load(const struct meg_ckpt *c, const struct meg_params *p,
                const struct meg_ckpt_slot *slot, float *flat, struct meg_err *e)
{
    struct source *s = NULL;
    int r = match(&s, c, p, slot, e);

    if (r == 0)
        r = copy_all(c, p, s, flat, e);
    free(s);
    return r;
}

int meg_ckpt_load_params(const struct meg_ckpt *c, const struct meg_params *p, float *w,
                         struct meg_err *e)
{
    return load(c, p, NULL, w, e);
}

int meg_ckpt_load_slots(const struct meg_ckpt *c, const struct meg_params *p,
                        const struct meg_ckpt_slot *slot, int nslots, struct meg_err *e)
{
    struct meg_ckpt optim;
    int r = ckpt_open_optim(&optim, c, e);

    if (r < 0)
        return r;
    for (int i = 0; r == 0 && i < nslots; i++)
        r = load(&optim, p, &slot[i], slot[i].p, e);
    ckpt_close_files(&optim);
    return r;
}

static int verify(const struct meg_ckpt *c, struct meg_err *e)
{
    int r = 0;

    for (int i = 0; i < c->nfiles && c->manifest; i++)
#pragma omp parallel for schedule(dynamic)
        for (int k = 0; k < c->file[i]->n; k++) {
            struct meg_err mine;

            if (ckpt_check_tensor(c->manifest, c->file[i], &c->file[i]->t[k], &mine) < 0) {
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
