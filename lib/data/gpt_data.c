#include "data/gpt_data.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "data/describe.h"
#include "data/index_cache.h"
#include "data/internal.h"

struct group { /* the parts of one split */
    int first, n;
    bool is_blend, is_weighted;
    int64_t wanted;
};

struct meg_gpt_data {
    struct meg_data_need need;
    char *tokenizer, *split_text,
        *cache_dir; /* split_text is NULL when each split has its own files */
    struct meg_split split;
    bool renormalize;
    struct meg_sample_conf how;
    struct meg_source **src;
    int nsrc, npart;
    struct meg_data_part *part;      /* of all groups, in order */
    struct meg_gpt_index_plan *plan; /* [npart] */
    struct meg_source **part_src;    /* [npart], borrowed from src */
    struct group group[MEG_SPLITS];
    struct meg_dataset *ds[MEG_SPLITS];
};

/* ---- plan ------------------------------------------------------------------------------------- */

static int open_source(struct meg_gpt_data *d, struct meg_source **out, const char *prefix,
                       struct meg_err *e)
{
    struct meg_source *s;
    int r;

    for (int i = 0; i < d->nsrc; i++)
        if (strcmp(meg_source_name(d->src[i]), prefix) == 0) {
            *out = d->src[i];
            return 0;
        }
    if ((r = meg_source_open(&s, prefix, e)) < 0)
        return r;
    d->src = meg_realloc_array(d->src, (size_t)d->nsrc + 1, sizeof *d->src);
    *out = d->src[d->nsrc++] = s;
    return 0;
}

static int64_t sample_tokens(const struct meg_gpt_data *d)
{
    return d->how.cut.seq_length + d->how.cut.extra;
}

/* A part must have something to give; what is less than one sample is read over and over. */
static int check_part(const struct meg_gpt_data *d, const struct meg_data_part *p,
                      const struct meg_source *src, struct meg_err *e)
{
    int64_t n = meg_source_elements(src), all = meg_source_tokens(src, 0, n),
            need = sample_tokens(d);

    if (all < need)
        return meg_fail(e, MEG_EFORMAT,
                        "%s: %" PRId64 " tokens, one sample needs %" PRId64
                        " (--seq-length %" PRId64
                        " and the label of the last); use more text or a shorter --seq-length",
                        p->name, all, need, d->need.seq_length);
    if (p->tokens == 0)
        return meg_fail(e, MEG_EUSAGE,
                        "--split %s: nothing of %s is for %s: it gets sequences %" PRId64
                        " to %" PRId64 " of %" PRId64 ", 0 of %" PRId64 " tokens, and %" PRId64
                        " are needed for one "
                        "sample; give it a larger share, or ask for no samples of it",
                        d->split_text ? d->split_text : "(none)", p->name,
                        meg_split_names[p->split], p->begin, p->end, n, all, need);
    if (p->tokens < need) {
        if (p->wanted == MEG_ONE_EPOCH)
            return meg_fail(e, MEG_EFORMAT,
                            "%s: %" PRId64 " tokens for %s, one sample needs %" PRId64, p->name,
                            p->tokens, meg_split_names[p->split], need);
        meg_warn("%s: only %" PRId64 " tokens for %s, one sample needs %" PRId64
                 ": they are repeated",
                 p->name, p->tokens, meg_split_names[p->split], need);
    }
    return 0;
}

static int add_part(struct meg_gpt_data *d, int which, struct meg_source *src, double weight,
                    int64_t wanted, struct meg_err *e)
{
    const size_t n = (size_t)d->npart + 1;
    struct meg_data_part *p;
    struct meg_gpt_index_plan *plan;
    int r;

    d->part = meg_realloc_array(d->part, n, sizeof *d->part);
    d->plan = meg_realloc_array(d->plan, n, sizeof *d->plan);
    d->part_src = meg_realloc_array(d->part_src, n, sizeof *d->part_src);
    p = &d->part[d->npart];
    plan = &d->plan[d->npart];
    d->part_src[d->npart] = src;

    *p = (struct meg_data_part){ .split = which,
                                 .name = meg_source_name(src),
                                 .weight = weight,
                                 .wanted = wanted,
                                 .end = meg_source_elements(src) };
    if (d->split_text)
        meg_split_range(&d->split, which, meg_source_elements(src), &p->begin, &p->end);
    p->tokens = meg_source_tokens(src, p->begin, p->end);
    if ((r = check_part(d, p, src, e)) < 0 ||
        (r = meg_gpt_index_plan(plan, p->end - p->begin, p->tokens, wanted, &d->how.cut, e)) < 0)
        return r;
    p->samples = plan->samples;
    p->epochs = plan->epochs;
    d->npart++;
    return 0;
}

static int plan_blend(struct meg_gpt_data *d, int which, const struct meg_data_blend *b,
                      struct meg_err *e)
{
    struct group *g = &d->group[which];
    double *w = meg_realloc_array(NULL, (size_t)b->n, sizeof *w);
    int64_t *wanted = meg_realloc_array(NULL, (size_t)b->n, sizeof *wanted);
    int r = 0;

    for (int i = 0; i < b->n; i++) {
        w[i] = b->weight ? b->weight[i] : 1;
        wanted[i] = MEG_ONE_EPOCH;
    }
    meg_blend_normalise(w, b->n);
    if (!g->is_blend)
        wanted[0] = g->wanted;
    else if (g->is_weighted)
        meg_blend_wanted(wanted, w, b->n, g->wanted);
    for (int i = 0; i < b->n && r == 0; i++) {
        struct meg_source *src;
        if ((r = open_source(d, &src, b->prefix[i], e)) == 0)
            r = add_part(d, which, src, w[i], wanted[i], e);
    }
    free(w);
    free(wanted);
    return r;
}

static int plan_split(struct meg_gpt_data *d, int which, const struct meg_data_choice *ch,
                      struct meg_err *e)
{
    const struct meg_data_blend *b = &ch->blend[ch->is_per_split ? which : 0];
    struct group *g = &d->group[which];
    int r;

    *g = (struct group){ .first = d->npart, .wanted = d->need.wanted[which] };
    if (g->wanted == 0 || (d->split_text && !d->split.is_present[which]) ||
        (!ch->is_mock && b->n == 0))
        return 0;
    if (ch->is_mock) {
        if (d->nsrc == 0) {
            d->src = meg_new(sizeof *d->src);
            d->src[d->nsrc++] = meg_source_mock(d->need.vocab_size, d->need.eod);
        }
        r = add_part(d, which, d->src[0], 1, g->wanted, e);
    } else {
        g->is_weighted = b->weight != NULL;
        g->is_blend = b->n > 1 || (g->is_weighted && !ch->is_per_split);
        if (g->is_blend && g->is_weighted && g->wanted == MEG_ONE_EPOCH)
            return meg_fail(e, MEG_EUSAGE,
                            "--data-path: weights need a number of samples; without one, give "
                            "the prefixes alone");
        r = plan_blend(d, which, b, e);
    }
    g->n = d->npart - g->first;
    return r;
}

int meg_gpt_data_plan(struct meg_gpt_data **out, const struct meg_data_conf *conf,
                      const struct meg_data_need *need, struct meg_err *e)
{
    struct meg_gpt_data *d = meg_new(sizeof *d);
    struct meg_data_choice ch = { 0 };
    int r;

    d->need = *need;
    d->renormalize = conf->renormalize_blend_weights;
    d->how = (struct meg_sample_conf){ .cut = { need->seq_length, 1, false },
                                       .eod = need->eod,
                                       .pad = need->pad,
                                       .vocab_size = need->vocab_size,
                                       .reset_position_ids = conf->reset_position_ids,
                                       .reset_attention_mask = conf->reset_attention_mask,
                                       .eod_mask_loss = conf->eod_mask_loss };
    if (need->seed < 0 || need->seed > UINT32_MAX) {
        r = meg_fail(e, MEG_EUSAGE, "--seed: %" PRId64 " is not in 0 to 4294967295", need->seed);
        goto out;
    }
    if ((r = meg_data_choose(&ch, conf, e)) < 0)
        goto out;
    d->tokenizer = need->tokenizer ? meg_strdup(need->tokenizer) : NULL;
    d->cache_dir = conf->data_cache_path ? meg_strdup(conf->data_cache_path) : NULL;
    if (ch.split) {
        d->split_text = meg_strdup(ch.split);
        if ((r = meg_split_parse(&d->split, ch.split, e)) < 0)
            goto out;
    }
    for (int i = 0; i < MEG_SPLITS; i++)
        if ((r = plan_split(d, i, &ch, e)) < 0)
            goto out;
    *out = d;
    d = NULL;
out:
    meg_data_choice_free(&ch);
    meg_gpt_data_close(d);
    return r;
}

/* ---- build ------------------------------------------------------------------------------------ */

static char *describe_part(const struct meg_gpt_data *d, int part)
{
    const struct meg_data_part *p = &d->part[part];
    const struct meg_gpt_identity id = {
        p->name,      p->wanted,          meg_split_names[p->split],
        d->need.seed, d->need.seq_length, d->split_text,
        &d->split,    d->tokenizer
    };
    struct meg_str s = { 0 };

    meg_describe_gpt(&s, &id);
    return s.s;
}

static void index_arrays(struct meg_npy *a, const struct meg_gpt_index *x)
{
    a[0] = (struct meg_npy){ "document_index", "<i4", 4, x->ndocument, 0, x->document };
    a[1] = (struct meg_npy){ "sample_index",
                             x->is_sample_wide ? "<i8" : "<i4",
                             x->is_sample_wide ? 8 : 4,
                             x->nsample + 1,
                             2,
                             x->sample };
    a[2] = (struct meg_npy){ "shuffle_index",
                             x->is_shuffle_wide ? "<i8" : "<u4",
                             x->is_shuffle_wide ? 8 : 4,
                             x->nsample,
                             0,
                             x->shuffle };
}

static struct meg_dataset *build_part(const struct meg_gpt_data *d, int part)
{
    const struct meg_data_part *p = &d->part[part];
    struct meg_dataset *ds = meg_new(sizeof *ds);
    struct meg_gpt_index *x = &ds->index;
    struct meg_str dir = { 0 };
    char *text = describe_part(d, part);
    struct meg_cache_entry c = { NULL, "GPTDataset", meg_split_names[p->split], text };
    struct meg_npy a[3];
    const bool is_file = meg_source_indexed(d->part_src[part]) != NULL;

    ds->how = d->how;
    ds->src = d->part_src[part];
    if (d->cache_dir)
        meg_str_printf(&dir, "%s", d->cache_dir);
    else
        meg_str_printf(&dir, "%s/cache/GPTDataset_indices", p->name);
    c.dir = dir.s;

    meg_gpt_index_shape(x, &d->plan[part]);
    index_arrays(a, x);
    if (is_file && meg_cache_load(&c, p->name, a, 3, ds->map)) {
        x->document = a[0].data;
        x->sample = a[1].data;
        x->shuffle = a[2].data;
    } else {
        meg_gpt_index_build(x, &d->plan[part], ds->src, p->begin, &d->how.cut,
                            (uint32_t)d->need.seed);
        index_arrays(a, x);
        if (is_file)
            meg_cache_store(&c, a, 3);
    }
    ds->len = x->nsample;
    meg_str_free(&dir);
    free(text);
    return ds;
}

/* The blend's own arrays: from the cache, where one was asked for, or built. */
static void build_blend_index(const struct meg_gpt_data *d, struct meg_dataset *ds,
                              const struct group *g, const double *weight, const int64_t *count,
                              int64_t size, const char *which)
{
    struct meg_blend_index *x = &ds->blend;
    char **member = meg_new((size_t)g->n * sizeof *member);
    struct meg_str text = { 0 };
    struct meg_npy a[2] = { { "dataset_index", "<i2", 2, ds->len, 0, NULL },
                            { "dataset_sample_index", "<i8", 8, ds->len, 0, NULL } };
    struct meg_cache_entry c = { d->cache_dir, "BlendedDataset", which, NULL };

    for (int i = 0; i < g->n; i++)
        member[i] = describe_part(d, g->first + i);
    meg_describe_blend(&text, member, g->n, which, weight, count, size, d->renormalize);
    c.description = text.s;
    if (d->cache_dir && meg_cache_load(&c, NULL, a, 2, ds->map)) {
        *x = (struct meg_blend_index){ ds->len, a[0].data, a[1].data, { NULL, NULL } };
    } else {
        if (count)
            meg_blend_exhaustive(x, count, g->n);
        else
            meg_blend_weighted(x, weight, g->n, ds->len);
        a[0].data = x->dataset;
        a[1].data = x->sample;
        if (d->cache_dir)
            meg_cache_store(&c, a, 2);
    }
    for (int i = 0; i < g->n; i++)
        free(member[i]);
    free(member);
    meg_str_free(&text);
}

static int check_blend(const struct meg_dataset *ds, struct meg_err *e)
{
    for (int64_t i = 0; i < ds->blend.n; i++) {
        int k = ds->blend.dataset[i];
        if (k < 0 || k >= ds->nmember || ds->blend.sample[i] < 0)
            return meg_fail(e, MEG_EFORMAT,
                            "the cached index of the blend does not fit it; remove the "
                            "cache folder");
        if (ds->blend.sample[i] >= ds->member[k]->len)
            return meg_fail(e, MEG_EFAIL,
                            "%s: the blend needs more than its %" PRId64 " samples; try "
                            "--renormalize-blend-weights",
                            meg_source_name(ds->member[k]->src), ds->member[k]->len);
    }
    return 0;
}

static int build_blend(const struct meg_gpt_data *d, struct meg_dataset *ds, const struct group *g,
                       const char *which, struct meg_err *e)
{
    double *w = meg_realloc_array(NULL, (size_t)g->n, sizeof *w);
    int64_t *count = meg_realloc_array(NULL, (size_t)g->n, sizeof *count), sum = 0, size;
    const bool is_exhaustive = !g->is_weighted && g->wanted == MEG_ONE_EPOCH;

    for (int i = 0; i < g->n; i++) {
        const struct meg_data_part *p = &d->part[g->first + i];
        count[i] = g->is_weighted ? p->wanted : p->samples;
        sum += count[i];
        w[i] = g->is_weighted ? p->weight : (double)p->samples;
    }
    size = g->is_weighted || is_exhaustive || sum < g->wanted ? sum : g->wanted;
    if (g->is_weighted && d->renormalize)
        for (int i = 0; i < g->n; i++)
            w[i] = (double)count[i] / (double)size;
    meg_blend_normalise(w, g->n);
    ds->len = size;
    build_blend_index(d, ds, g, w, is_exhaustive ? count : NULL,
                      is_exhaustive ? MEG_ONE_EPOCH : size, which);
    free(w);
    free(count);
    return check_blend(ds, e);
}

static int build_split(struct meg_gpt_data *d, int which, struct meg_err *e)
{
    const struct group *g = &d->group[which];
    struct meg_dataset *ds;

    if (g->n == 0)
        return 0;
    if (!g->is_blend) {
        d->ds[which] = build_part(d, g->first);
        return 0;
    }
    ds = d->ds[which] = meg_new(sizeof *ds);
    ds->how = d->how;
    ds->member = meg_new((size_t)g->n * sizeof *ds->member);
    for (; ds->nmember < g->n; ds->nmember++)
        ds->member[ds->nmember] = build_part(d, g->first + ds->nmember);
    return build_blend(d, ds, g, meg_split_names[which], e);
}

int meg_gpt_data_build(struct meg_gpt_data *d, struct meg_err *e)
{
    int r;
    for (int i = 0; i < MEG_SPLITS; i++)
        if ((r = build_split(d, i, e)) < 0)
            return r;
    return 0;
}

/* ---- both, and after ---------------------------------------------------------------------------- */

int meg_gpt_data_open(struct meg_gpt_data **out, const struct meg_data_conf *conf,
                      const struct meg_data_need *need, struct meg_err *e)
{
    struct meg_gpt_data *d;
    int r;

    if ((r = meg_gpt_data_plan(&d, conf, need, e)) < 0)
        return r;
    if ((r = meg_gpt_data_build(d, e)) < 0) {
        meg_gpt_data_close(d);
        return r;
    }
    *out = d;
    return 0;
}

void meg_gpt_data_close(struct meg_gpt_data *d)
{
    if (!d)
        return;
    for (int i = 0; i < MEG_SPLITS; i++)
        meg_dataset_close(d->ds[i]);
    for (int i = 0; i < d->nsrc; i++)
        meg_source_close(d->src[i]);
    free(d->src);
    free(d->part);
    free(d->plan);
    free(d->part_src);
    free(d->tokenizer);
    free(d->split_text);
    free(d->cache_dir);
    free(d);
}

const struct meg_dataset *meg_gpt_data_split(const struct meg_gpt_data *d, int split)
{
    return d->ds[split];
}

const struct meg_data_part *meg_gpt_data_parts(const struct meg_gpt_data *d, int *n)
{
    *n = d->npart;
    return d->part;
}
