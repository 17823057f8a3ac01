/* data_splits.c - open the files of all splits, compute their ranges, and build indices and blends. */
#include "data/blend/data_splits.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/mem.h"
#include "data/blend/data_splits_internal.h"
#include "data/cache_key.h"

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

/*
 * Add a mid-level dataset, a part of src.  The caller sets the weight, num_samples and num_taken of `x`.  `range`
 * contains the two fractions of src at which the part begins and ends.  If `range` is NULL, the part is the one that
 * --split assigns to the split, or all of src if each split has its own files.
 */
static int add_mid_dataset(struct meg_data_splits *d, const struct meg_split_group *g, struct meg_source *src,
                           struct meg_mid_dataset x, const double *range, struct meg_err *e)
{
    const size_t n = (size_t)d->nmid + 1;
    const int64_t elements = d->type->num_elements(src);
    struct meg_mid_dataset *p;
    int r;

    d->mid = meg_realloc_array(d->mid, n, sizeof *d->mid);
    d->mid_src = meg_realloc_array(d->mid_src, n, sizeof *d->mid_src);
    p = &d->mid[d->nmid];
    d->mid_src[d->nmid] = src;

    x.split = g->split;
    x.name = meg_source_name(src);
    x.group = g->name;
    x.end = elements;
    *p = x;
    if (range)
        meg_fraction_range(range, elements, &p->begin, &p->end);
    else if (d->split_string)
        meg_split_range(&d->split_matrix, g->split, elements, &p->begin, &p->end);
    if ((r = d->type->plan(d, p, src, e)) == 0)
        d->nmid++;
    return r;
}

/*
 * Compute how many samples a split takes from each of its n datasets, and how many samples to build for each dataset.
 * For a blend without weights, both numbers are MEG_ONE_EPOCH.  For a single dataset, both are g->num_samples.
 */
static void plan_num_samples(const struct meg_data_splits *d, const struct meg_split_group *g, const double *w, int n,
                             int64_t *num_taken, int64_t *num_samples)
{
    for (int i = 0; i < n; i++)
        num_samples[i] = g->is_blend ? MEG_ONE_EPOCH : g->num_samples;
    if (g->is_blend && g->is_weighted && d->release->blend_sizes_with_surplus && !d->is_deepspeed) {
        meg_blend_sizes_with_surplus(num_taken, num_samples, w, n, g->num_samples, d->surplus);
        return;
    }
    if (g->is_blend && g->is_weighted)
        meg_blend_sizes(num_samples, w, n, g->num_samples);
    memcpy(num_taken, num_samples, (size_t)n * sizeof *num_taken);
}

static int plan_blend(struct meg_data_splits *d, const struct meg_split_group *g, const struct meg_data_blend *b,
                      struct meg_err *e)
{
    double *w = meg_realloc_array(NULL, (size_t)b->n, sizeof *w);
    int64_t *num_samples = meg_realloc_array(NULL, (size_t)b->n, sizeof *num_samples);
    int64_t *num_taken = meg_realloc_array(NULL, (size_t)b->n, sizeof *num_taken);
    int r = 0;

    for (int i = 0; i < b->n; i++)
        w[i] = b->weight ? b->weight[i] : 1;
    meg_blend_normalize(w, b->n);
    plan_num_samples(d, g, w, b->n, num_taken, num_samples);
    for (int i = 0; i < b->n && r == 0; i++) {
        const struct meg_mid_dataset x = { .weight = w[i], .num_samples = num_samples[i], .num_taken = num_taken[i] };
        struct meg_source *src;
        if ((r = open_source(d, &src, b->prefix[i], e)) == 0)
            r = add_mid_dataset(d, g, src, x, b->range ? b->range[i] : NULL, e);
    }
    free(w);
    free(num_samples);
    free(num_taken);
    return r;
}

/* Append a group of n mid-level datasets, which the caller adds, and return it; valid until the next call. */
static struct meg_split_group *add_group(struct meg_data_splits *d, int split, const char *name, int n)
{
    struct meg_split_group *g;

    d->group = meg_realloc_array(d->group, (size_t)d->ngroup + 1, sizeof *d->group);
    g = &d->group[d->ngroup++];
    *g = (struct meg_split_group){ .split = split,
                                   .first = d->nmid,
                                   .n = n,
                                   .num_samples = d->spec.num_samples[split],
                                   .name = name ? meg_strdup(name) : NULL };
    return g;
}

static int plan_mock(struct meg_data_splits *d, int split, struct meg_err *e)
{
    const struct meg_split_group *g = add_group(d, split, NULL, 1);
    const struct meg_mid_dataset x = { .weight = 1, .num_samples = g->num_samples, .num_taken = g->num_samples };

    if (d->nsrc == 0) {
        d->src = meg_new(sizeof *d->src);
        d->src[d->nsrc++] = meg_source_mock(d->spec.vocab_size, d->spec.eod);
    }
    return add_mid_dataset(d, g, d->src[0], x, NULL, e);
}

static int plan_group(struct meg_data_splits *d, int split, const struct meg_data_blend *b, bool is_per_split,
                      struct meg_err *e)
{
    struct meg_split_group *g;

    if (b->n == 0)
        return 0;
    g = add_group(d, split, b->name, b->n);
    g->is_weighted = b->weight != NULL;
    g->is_blend = b->n > 1 || (g->is_weighted && !is_per_split);
    if (g->is_blend && g->is_weighted && g->num_samples == MEG_ONE_EPOCH)
        return meg_fail(e, MEG_EUSAGE,
                        "weights of datasets are not supported when each sample is read once; specify prefixes "
                        "without weights");
    return plan_blend(d, g, b, e);
}

static int plan_split(struct meg_data_splits *d, int split, const struct meg_data_blends *blends, struct meg_err *e)
{
    const int from = blends->is_per_split ? split : 0;
    int r = 0;

    if (d->spec.num_samples[split] == 0 || (d->split_string && !d->split_matrix.is_present[split]))
        return 0;
    if (blends->is_mock)
        return plan_mock(d, split, e);
    for (int i = 0; i < blends->num[from] && r == 0; i++)
        r = plan_group(d, split, &blends->blend[from][i], blends->is_per_split, e);
    return r;
}

static int plan(struct meg_data_splits *d, const struct meg_data_conf *conf, struct meg_err *e)
{
    const struct meg_dataset_spec *spec = &d->spec;
    struct meg_data_blends blends = { 0 };
    int r;

    d->release = meg_megatron_release_find(spec->megatron_release);
    d->renormalize = conf->renormalize_blend_weights;
    d->surplus = isnan(conf->mid_level_dataset_surplus) ? 0.005 : conf->mid_level_dataset_surplus;
    if (spec->seed < 0 || spec->seed > UINT32_MAX)
        return meg_fail(e, MEG_EUSAGE, "--seed %" PRId64 ": must be from 0 to 4294967295", spec->seed);
    if ((r = meg_data_blends_read(&blends, conf, e)) < 0)
        return r;
    d->tokenizer = spec->tokenizer ? meg_strdup(spec->tokenizer) : NULL;
    d->cache_dir = conf->data_cache_path ? meg_strdup(conf->data_cache_path) : NULL;
    if (blends.split) {
        d->split_string = meg_strdup(blends.split);
        r = meg_split_parse(&d->split_matrix, blends.split, e);
    }
    d->is_deepspeed = d->split_matrix.is_deepspeed = d->sample_conf.index.is_deepspeed = blends.is_deepspeed;
    for (int i = 0; i < MEG_NUM_SPLITS && r == 0; i++)
        r = plan_split(d, i, &blends, e);
    meg_data_blends_free(&blends);
    return r;
}

int meg_data_splits_plan(struct meg_data_splits **out, struct meg_data_splits *d, const struct meg_data_conf *conf,
                         const struct meg_dataset_spec *spec, struct meg_err *e)
{
    int r;

    d->spec = *spec;
    if ((r = plan(d, conf, e)) < 0)
        meg_data_splits_close(d);
    else
        *out = d;
    return r;
}

/* ---- build ------------------------------------------------------------------------------------ */

static char *mid_cache_key(const struct meg_data_splits *d, int mid)
{
    struct meg_str s = { 0 };

    d->type->add_cache_key(d, &d->mid[mid], &s);
    return s.s;
}

/*
 * Set the directory and the file name prefix of an index that has Megatron-DeepSpeed's file names.  The directory is
 * --data-cache-path or, by default, the dataset's.
 */
static void deepspeed_names(const struct meg_data_splits *d, const struct meg_mid_dataset *p, struct meg_str *dir,
                            struct meg_str *prefix)
{
    const char *slash = strrchr(p->name, '/'), *base = slash ? slash + 1 : p->name;

    if (d->cache_dir)
        meg_str_printf(dir, "%s", d->cache_dir);
    else if (slash)
        meg_str_add(dir, p->name, (size_t)(base - p->name));
    else
        meg_str_printf(dir, ".");
    meg_str_printf(prefix, "%s_%s_indexmap_", base, p->group ? p->group : meg_split_names[p->split]);
    d->type->add_deepspeed_name(d, p, prefix);
}

static void megatron_dir(const struct meg_data_splits *d, const struct meg_mid_dataset *p, struct meg_str *dir)
{
    if (d->cache_dir)
        meg_str_printf(dir, "%s", d->cache_dir);
    else
        meg_str_printf(dir, "%s/cache/%s_indices", p->name, d->type->name);
}

static void begin_index(const struct meg_data_splits *d, const char *name)
{
    if (d->on_index)
        d->on_index(d->on_index_ctx, name);
}

static int build_mid_dataset(const struct meg_data_splits *d, int mid, struct meg_dataset **out, struct meg_err *e)
{
    const struct meg_mid_dataset *p = &d->mid[mid];
    struct meg_dataset *ds = *out = meg_new(sizeof *ds);
    struct meg_str dir = { 0 }, prefix = { 0 };
    char *text = mid_cache_key(d, mid);
    struct meg_index_cache_entry c = { NULL, d->type->name,
                                       d->type->has_split_in_name ? meg_split_names[p->split] : NULL, text, NULL };
    bool is_cached;
    int r;

    begin_index(d, p->name);
    ds->conf = d->sample_conf;
    ds->src = d->mid_src[mid];
    ds->sample = d->type->sample;
    is_cached = meg_source_indexed(ds->src) != NULL;
    if (d->is_deepspeed) {
        deepspeed_names(d, p, &dir, &prefix);
        /* Megatron-DeepSpeed's file names contain num_samples, so there is no name for MEG_ONE_EPOCH. */
        is_cached = is_cached && p->num_samples != MEG_ONE_EPOCH;
    } else {
        megatron_dir(d, p, &dir);
    }
    c.dir = dir.s;
    c.deepspeed_prefix = prefix.s;
    r = d->type->build(d, p, ds, is_cached ? &c : NULL, e);
    meg_str_free(&dir);
    meg_str_free(&prefix);
    free(text);
    return r;
}

/*
 * Load the index of a blend of g->n datasets from --data-cache-path, or build it and store it there.  Without that
 * option, or in Megatron-DeepSpeed's order, only build it.
 * If count is not NULL, the blend contains each of the count[k] samples of each dataset k once.  Otherwise, it takes
 * ds->len samples in the proportions `weight`.  The arguments size and split are used only for the names and the
 * description of the cache files.
 */
static void build_blend_index(const struct meg_data_splits *d, struct meg_dataset *ds, const struct meg_split_group *g,
                              const double *weight, const int64_t *count, int64_t size, const char *split)
{
    struct meg_blend_index *x = &ds->blend;
    char **member = meg_new((size_t)g->n * sizeof *member);
    struct meg_str text = { 0 };
    struct meg_npy a[2] = { { "dataset_index", "<i2", 2, ds->len, 0, NULL },
                            { "dataset_sample_index", "<i8", 8, ds->len, 0, NULL } };
    const bool is_cached = d->cache_dir && !d->is_deepspeed; /* BigScience's Megatron-DeepSpeed caches no blends */
    struct meg_index_cache_entry c = { d->cache_dir, "BlendedDataset", split, NULL, NULL };

    for (int i = 0; i < g->n; i++)
        member[i] = mid_cache_key(d, g->first + i);
    meg_cache_key_add_blend(&text, &(struct meg_blend_key){ member, g->n, split, weight, count, size,
                                                            d->release->renormalizes ? &d->renormalize : NULL });
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

/*
 * Check the index of a blend against the lengths of its members.  In Megatron-DeepSpeed's order, a sample number beyond
 * the end of a member is accepted here.  A blend in that order has more samples than the run reads, so the run may
 * never read the missing sample.
 */
static int check_blend(const struct meg_data_splits *d, const struct meg_dataset *ds, struct meg_err *e)
{
    for (int64_t i = 0; i < ds->blend.n; i++) {
        int k = ds->blend.dataset[i];
        if (k < 0 || k >= ds->nmember || ds->blend.sample[i] < 0)
            return meg_fail(e, MEG_EFORMAT,
                            "the cached index of the blend does not match its datasets; remove the .npy files of the "
                            "index in %s",
                            d->cache_dir);
        if (ds->blend.sample[i] >= ds->member[k]->len && !d->is_deepspeed)
            return meg_dataset_exhausted(ds->member[k], e);
    }
    return 0;
}

static int build_blend(const struct meg_data_splits *d, struct meg_dataset *ds, const struct meg_split_group *g,
                       const char *split, struct meg_err *e)
{
    double *w = meg_realloc_array(NULL, (size_t)g->n, sizeof *w);
    int64_t *count = meg_realloc_array(NULL, (size_t)g->n, sizeof *count), sum = 0, size;
    const bool is_exhaustive = !g->is_weighted && g->num_samples == MEG_ONE_EPOCH;
    struct meg_str name = { 0 };

    meg_str_printf(&name, "the %s blend", g->name ? g->name : split);
    begin_index(d, name.s);
    meg_str_free(&name);
    for (int i = 0; i < g->n; i++) {
        const struct meg_mid_dataset *p = &d->mid[g->first + i];
        const int64_t len = ds->member[i]->len;
        count[i] = g->is_weighted && !d->is_deepspeed ? p->num_taken : len;
        sum += count[i];
        w[i] = g->is_weighted ? p->weight : (double)len;
    }
    size = g->is_weighted || is_exhaustive || sum < g->num_samples ? sum : g->num_samples;
    if (g->is_weighted && d->renormalize)
        for (int i = 0; i < g->n; i++)
            w[i] = (double)count[i] / (double)size;
    meg_blend_normalize(w, g->n);
    ds->len = size;
    build_blend_index(d, ds, g, w, is_exhaustive ? count : NULL, is_exhaustive ? MEG_ONE_EPOCH : size, split);
    free(w);
    free(count);
    return check_blend(d, ds, e);
}

/*
 * Check that the memory of this host can hold the index of a group.  A sample has at least 12 bytes: 8 in the sample
 * index and 4 in the shuffle index of GPT, or 12 in the map of BERT and T5.
 */
static int check_memory(const struct meg_split_group *g, struct meg_err *e)
{
    const double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    const double nbytes = 12 * (double)g->num_samples;

    if (nbytes <= memory)
        return 0;
    return meg_fail(e, MEG_EFAIL,
                    "the %s split: %" PRId64 " samples have an index of at least %.0f GB, but this host has %.0f GB of "
                    "memory; use a smaller --train-iters, --train-samples or --eval-iters",
                    meg_split_names[g->split], g->num_samples, 1e-9 * nbytes, 1e-9 * memory);
}

static int build_group(struct meg_data_splits *d, struct meg_split_group *g, struct meg_err *e)
{
    struct meg_dataset *ds;
    int r = check_memory(g, e);

    if (r < 0)
        return r;
    if (!g->is_blend)
        return build_mid_dataset(d, g->first, &g->ds, e);
    ds = g->ds = meg_new(sizeof *ds);
    ds->conf = d->sample_conf;
    ds->member = meg_new((size_t)g->n * sizeof *ds->member);
    for (; ds->nmember < g->n && r == 0; ds->nmember++)
        r = build_mid_dataset(d, g->first + ds->nmember, &ds->member[ds->nmember], e);
    return r < 0 ? r : build_blend(d, ds, g, meg_split_names[g->split], e);
}

int meg_data_splits_build(struct meg_data_splits *d, void (*on_index)(void *ctx, const char *name), void *ctx,
                          struct meg_err *e)
{
    int r;

    d->on_index = on_index;
    d->on_index_ctx = ctx;
    for (int i = 0; i < d->ngroup; i++)
        if ((r = build_group(d, &d->group[i], e)) < 0)
            return r;
    return 0;
}

void meg_data_splits_close(struct meg_data_splits *d)
{
    if (!d)
        return;
    for (int i = 0; i < d->ngroup; i++) {
        meg_dataset_close(d->group[i].ds);
        free(d->group[i].name);
    }
    free(d->group);
    for (int i = 0; i < d->nsrc; i++)
        meg_source_close(d->src[i]);
    free(d->src);
    free(d->mid);
    free(d->mid_src);
    free(d->tokenizer);
    free(d->split_string);
    free(d->cache_dir);
    free(d);
}

const struct meg_dataset *meg_data_splits_group(const struct meg_data_splits *d, int split, int i, const char **name)
{
    for (int k = 0; k < d->ngroup; k++) {
        const struct meg_split_group *g = &d->group[k];

        if (g->split == split && i-- == 0) {
            if (name)
                *name = g->name;
            return g->ds;
        }
    }
    return NULL;
}

const struct meg_dataset *meg_data_splits_dataset(const struct meg_data_splits *d, int split)
{
    return meg_data_splits_group(d, split, 0, NULL);
}

const struct meg_mid_dataset *meg_data_splits_mid_datasets(const struct meg_data_splits *d, int *n)
{
    *n = d->nmid;
    return d->mid;
}
