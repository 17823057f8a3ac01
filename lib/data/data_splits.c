/* Files, splits and blends; what a sample is, the class says. */
#include "data/data_splits.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/cache_key.h"
#include "data/data_splits_internal.h"

/* ---- plan ------------------------------------------------------------------------------------- */

static int open_source(struct meg_data_splits *d, struct meg_source **out, const char *prefix, struct meg_err *e)
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

/* range: its fractions, or NULL where the split says */
static int add_part(struct meg_data_splits *d, int which, struct meg_source *src, double weight, const double *range,
                    int64_t wanted, int64_t drawn, struct meg_err *e)
{
    const size_t n = (size_t)d->npart + 1;
    const int64_t elements = d->class->elements(src);
    struct meg_mid_dataset *p;
    int r;

    d->part = meg_realloc_array(d->part, n, sizeof *d->part);
    d->part_src = meg_realloc_array(d->part_src, n, sizeof *d->part_src);
    p = &d->part[d->npart];
    d->part_src[d->npart] = src;

    *p = (struct meg_mid_dataset){ .split = which,
                                   .name = meg_source_name(src),
                                   .weight = weight,
                                   .wanted = wanted,
                                   .drawn = drawn,
                                   .end = elements };
    if (range)
        meg_fraction_range(range, elements, &p->begin, &p->end);
    else if (d->split_text)
        meg_split_range(&d->split, which, elements, &p->begin, &p->end);
    if ((r = d->class->plan(d, p, src, e)) == 0)
        d->npart++;
    return r;
}

/* Samples that the blend takes of each dataset, and that each is built for. */
static void plan_sizes(const struct meg_data_splits *d, const struct meg_split_members *g, const double *w, int n,
                       int64_t *drawn, int64_t *wanted)
{
    for (int i = 0; i < n; i++)
        wanted[i] = g->is_blend ? MEG_ONE_EPOCH : g->wanted;
    if (g->is_blend && g->is_weighted && d->release->blend_sizes_with_surplus && !d->is_deepspeed) {
        meg_blend_sizes_with_surplus(drawn, wanted, w, n, g->wanted, d->surplus);
        return;
    }
    if (g->is_blend && g->is_weighted)
        meg_blend_sizes(wanted, w, n, g->wanted);
    memcpy(drawn, wanted, (size_t)n * sizeof *drawn);
}

static int plan_blend(struct meg_data_splits *d, int which, const struct meg_data_blend *b, struct meg_err *e)
{
    struct meg_split_members *g = &d->group[which];
    double *w = meg_realloc_array(NULL, (size_t)b->n, sizeof *w);
    int64_t *wanted = meg_realloc_array(NULL, (size_t)b->n, sizeof *wanted);
    int64_t *drawn = meg_realloc_array(NULL, (size_t)b->n, sizeof *drawn);
    int r = 0;

    for (int i = 0; i < b->n; i++)
        w[i] = b->weight ? b->weight[i] : 1;
    meg_blend_normalize(w, b->n);
    plan_sizes(d, g, w, b->n, drawn, wanted);
    for (int i = 0; i < b->n && r == 0; i++) {
        struct meg_source *src;
        if ((r = open_source(d, &src, b->prefix[i], e)) == 0)
            r = add_part(d, which, src, w[i], b->range ? b->range[i] : NULL, wanted[i], drawn[i], e);
    }
    free(w);
    free(wanted);
    free(drawn);
    return r;
}

static int plan_split(struct meg_data_splits *d, int which, const struct meg_data_blends *ch, struct meg_err *e)
{
    const struct meg_data_blend *b = &ch->blend[ch->is_per_split ? which : 0];
    struct meg_split_members *g = &d->group[which];
    int r;

    *g = (struct meg_split_members){ .first = d->npart, .wanted = d->need.wanted[which] };
    if (g->wanted == 0 || (d->split_text && !d->split.is_present[which]) || (!ch->is_mock && b->n == 0))
        return 0;
    g->name = meg_strdup(b->name ? b->name : meg_split_names[which]);
    if (ch->is_mock) {
        if (d->nsrc == 0) {
            d->src = meg_new(sizeof *d->src);
            d->src[d->nsrc++] = meg_source_mock(d->need.vocab_size, d->need.eod);
        }
        r = add_part(d, which, d->src[0], 1, NULL, g->wanted, g->wanted, e);
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

static int plan(struct meg_data_splits *d, const struct meg_data_conf *conf, struct meg_err *e)
{
    const struct meg_dataset_spec *need = &d->need;
    struct meg_data_blends ch = { 0 };
    int r;

    d->release = meg_megatron_release_find(need->megatron_release);
    d->renormalize = conf->renormalize_blend_weights;
    d->surplus = isnan(conf->mid_level_dataset_surplus) ? 0.005 : conf->mid_level_dataset_surplus;
    if (need->seed < 0 || need->seed > UINT32_MAX)
        return meg_fail(e, MEG_EUSAGE, "--seed: %" PRId64 " is not in 0 to 4294967295", need->seed);
    if ((r = meg_data_blends_read(&ch, conf, e)) < 0)
        return r;
    d->tokenizer = need->tokenizer ? meg_strdup(need->tokenizer) : NULL;
    d->cache_dir = conf->data_cache_path ? meg_strdup(conf->data_cache_path) : NULL;
    if (ch.split) {
        d->split_text = meg_strdup(ch.split);
        r = meg_split_parse(&d->split, ch.split, e);
    }
    d->is_deepspeed = d->split.is_deepspeed = d->how.cut.is_deepspeed = ch.is_deepspeed;
    for (int i = 0; i < MEG_NUM_SPLITS && r == 0; i++)
        r = plan_split(d, i, &ch, e);
    meg_data_blends_free(&ch);
    return r;
}

/* Hand d out if all went well so far, else close it. */
static int finish(struct meg_data_splits **out, struct meg_data_splits *d, int r)
{
    if (r < 0)
        meg_data_splits_close(d);
    else
        *out = d;
    return r;
}

int meg_data_splits_plan(struct meg_data_splits **out, struct meg_data_splits *d, const struct meg_data_conf *conf,
                         const struct meg_dataset_spec *need, struct meg_err *e)
{
    d->need = *need;
    return finish(out, d, plan(d, conf, e));
}

int meg_data_splits_open(struct meg_data_splits **out, struct meg_data_splits *d, struct meg_err *e)
{
    return finish(out, d, meg_data_splits_build(d, e));
}

/* ---- build ------------------------------------------------------------------------------------ */

static char *describe_part(const struct meg_data_splits *d, int part)
{
    struct meg_str s = { 0 };

    d->class->describe(d, &d->part[part], &s);
    return s.s;
}

/* Beside the dataset, or in the folder that was given. */
static void deepspeed_names(const struct meg_data_splits *d, const struct meg_mid_dataset *p, struct meg_str *dir,
                            struct meg_str *stem)
{
    const char *slash = strrchr(p->name, '/'), *base = slash ? slash + 1 : p->name;

    if (d->cache_dir)
        meg_str_printf(dir, "%s", d->cache_dir);
    else if (slash)
        meg_str_add(dir, p->name, (size_t)(base - p->name));
    else
        meg_str_printf(dir, ".");
    meg_str_printf(stem, "%s_%s_indexmap_", base, d->group[p->split].name);
    d->class->stem(d, p, stem);
}

static void megatron_dir(const struct meg_data_splits *d, const struct meg_mid_dataset *p, struct meg_str *dir)
{
    if (d->cache_dir)
        meg_str_printf(dir, "%s", d->cache_dir);
    else
        meg_str_printf(dir, "%s/cache/%s_indices", p->name, d->class->name);
}

static int build_part(const struct meg_data_splits *d, int part, struct meg_dataset **out, struct meg_err *e)
{
    const struct meg_mid_dataset *p = &d->part[part];
    struct meg_dataset *ds = *out = meg_new(sizeof *ds);
    struct meg_str dir = { 0 }, stem = { 0 };
    char *text = describe_part(d, part);
    struct meg_index_cache_entry c = { NULL, d->class->name, meg_split_names[p->split], text, NULL };
    bool is_cached;
    int r;

    ds->how = d->how;
    ds->src = d->part_src[part];
    is_cached = meg_source_indexed(ds->src) != NULL;
    if (d->is_deepspeed) {
        deepspeed_names(d, p, &dir, &stem);
        is_cached = is_cached && p->wanted != MEG_ONE_EPOCH; /* there is no name for it */
    } else {
        megatron_dir(d, p, &dir);
    }
    c.dir = dir.s;
    c.stem = stem.s;
    r = d->class->build(d, p, ds, is_cached ? &c : NULL, e);
    meg_str_free(&dir);
    meg_str_free(&stem);
    free(text);
    return r;
}

/* The blend's own arrays: from the cache, where one was asked for, or built. */
static void build_blend_index(const struct meg_data_splits *d, struct meg_dataset *ds,
                              const struct meg_split_members *g, const double *weight, const int64_t *count,
                              int64_t size, const char *which)
{
    struct meg_blend_index *x = &ds->blend;
    char **member = meg_new((size_t)g->n * sizeof *member);
    struct meg_str text = { 0 };
    struct meg_npy a[2] = { { "dataset_index", "<i2", 2, ds->len, 0, NULL },
                            { "dataset_sample_index", "<i8", 8, ds->len, 0, NULL } };
    const bool is_cached = d->cache_dir && !d->is_deepspeed; /* which keeps it in memory */
    struct meg_index_cache_entry c = { d->cache_dir, "BlendedDataset", which, NULL, NULL };

    for (int i = 0; i < g->n; i++)
        member[i] = describe_part(d, g->first + i);
    meg_cache_key_add_blend(&text, member, g->n, which, weight, count, size,
                            d->release->renormalizes ? &d->renormalize : NULL);
    c.description = text.s;
    if (is_cached && meg_index_cache_load(&c, NULL, a, 2, ds->map)) {
        *x = (struct meg_blend_index){ ds->len, a[0].data, a[1].data, { NULL, NULL } };
    } else {
        if (count)
            meg_blend_exhaustive(x, count, g->n);
        else
            meg_blend_weighted(x, weight, g->n, ds->len);
        a[0].data = x->dataset;
        a[1].data = x->sample;
        if (is_cached)
            meg_index_cache_store(&c, a, 2);
    }
    for (int i = 0; i < g->n; i++)
        free(member[i]);
    free(member);
    meg_str_free(&text);
}

/* Megatron-DeepSpeed's blend is far longer than what is wanted and may run past a member. */
static int check_blend(const struct meg_data_splits *d, const struct meg_dataset *ds, struct meg_err *e)
{
    for (int64_t i = 0; i < ds->blend.n; i++) {
        int k = ds->blend.dataset[i];
        if (k < 0 || k >= ds->nmember || ds->blend.sample[i] < 0)
            return meg_fail(e, MEG_EFORMAT,
                            "the cached index of the blend does not fit it; remove the "
                            "cache folder");
        if (ds->blend.sample[i] >= ds->member[k]->len && !d->is_deepspeed)
            return meg_dataset_exhausted(ds->member[k], e);
    }
    return 0;
}

static int build_blend(const struct meg_data_splits *d, struct meg_dataset *ds, const struct meg_split_members *g,
                       const char *which, struct meg_err *e)
{
    double *w = meg_realloc_array(NULL, (size_t)g->n, sizeof *w);
    int64_t *count = meg_realloc_array(NULL, (size_t)g->n, sizeof *count), sum = 0, size;
    const bool is_exhaustive = !g->is_weighted && g->wanted == MEG_ONE_EPOCH;

    for (int i = 0; i < g->n; i++) {
        const struct meg_mid_dataset *p = &d->part[g->first + i];
        const int64_t len = ds->member[i]->len;
        count[i] = g->is_weighted && !d->is_deepspeed ? p->drawn : len;
        sum += count[i];
        w[i] = g->is_weighted ? p->weight : (double)len;
    }
    size = g->is_weighted || is_exhaustive || sum < g->wanted ? sum : g->wanted;
    if (g->is_weighted && d->renormalize)
        for (int i = 0; i < g->n; i++)
            w[i] = (double)count[i] / (double)size;
    meg_blend_normalize(w, g->n);
    ds->len = size;
    build_blend_index(d, ds, g, w, is_exhaustive ? count : NULL, is_exhaustive ? MEG_ONE_EPOCH : size, which);
    free(w);
    free(count);
    return check_blend(d, ds, e);
}

static int build_split(struct meg_data_splits *d, int which, struct meg_err *e)
{
    const struct meg_split_members *g = &d->group[which];
    struct meg_dataset *ds;
    int r = 0;

    if (g->n == 0)
        return 0;
    if (!g->is_blend)
        return build_part(d, g->first, &d->ds[which], e);
    ds = d->ds[which] = meg_new(sizeof *ds);
    ds->how = d->how;
    ds->member = meg_new((size_t)g->n * sizeof *ds->member);
    for (; ds->nmember < g->n && r == 0; ds->nmember++)
        r = build_part(d, g->first + ds->nmember, &ds->member[ds->nmember], e);
    return r < 0 ? r : build_blend(d, ds, g, meg_split_names[which], e);
}

int meg_data_splits_build(struct meg_data_splits *d, struct meg_err *e)
{
    int r;
    for (int i = 0; i < MEG_NUM_SPLITS; i++)
        if ((r = build_split(d, i, e)) < 0)
            return r;
    return 0;
}

void meg_data_splits_close(struct meg_data_splits *d)
{
    if (!d)
        return;
    for (int i = 0; i < MEG_NUM_SPLITS; i++) {
        meg_dataset_close(d->ds[i]);
        free(d->group[i].name);
    }
    for (int i = 0; i < d->nsrc; i++)
        meg_source_close(d->src[i]);
    free(d->src);
    free(d->part);
    free(d->part_src);
    free(d->tokenizer);
    free(d->split_text);
    free(d->cache_dir);
    free(d);
}

const struct meg_dataset *meg_data_splits_dataset(const struct meg_data_splits *d, int split)
{
    return d->ds[split];
}

const struct meg_mid_dataset *meg_data_splits_mid_datasets(const struct meg_data_splits *d, int *n)
{
    *n = d->npart;
    return d->part;
}
