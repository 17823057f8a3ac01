/* gpt_data.c - the training, validation and test data of a GPT run. */
#include "data/gpt_data.h"
#include <inttypes.h>
#include "base/log.h"
#include "base/mem.h"
#include "data/blend/data_splits_internal.h"
#include "data/cache_key.h"

/*
 * Fail if the file or the range has no tokens.  If the range is shorter than one sample, fail for MEG_ONE_EPOCH.  For
 * other sample counts, the range is repeated, as in Megatron-LM.
 */
static int check_mid_dataset(const struct meg_data_splits *d, const struct meg_mid_dataset *p,
                             const struct meg_source *src, struct meg_err *e)
{
    const int64_t n = meg_source_elements(src);
    const int64_t needed = d->sample_conf.index.seq_length + d->sample_conf.index.add_extra_token;

    if (meg_source_tokens(src, 0, n) == 0)
        return meg_fail(e, MEG_EFORMAT,
                        "%s: found no tokens in %" PRId64
                        " sequences, but a dataset needs at least one token; preprocess the text again",
                        p->name, n);
    if (p->tokens == 0 && !d->split_string)
        return meg_fail(e, MEG_EUSAGE,
                        "%s: the range BEGIN:END for %s has %" PRId64 " of %" PRId64
                        " sequences and no tokens, but one sample needs %" PRId64 " tokens; use a larger range",
                        p->name, meg_split_names[p->split], p->end - p->begin, n, needed);
    if (p->tokens == 0)
        return meg_fail(e, MEG_EUSAGE,
                        "--split %s: the %s split of %s has %" PRId64 " of %" PRId64
                        " sequences and no tokens, but one sample needs %" PRId64
                        " tokens; use a larger ratio, or 0 to omit this split",
                        d->split_string, meg_split_names[p->split], p->name, p->end - p->begin, n, needed);
    if (p->tokens < needed && p->num_samples == MEG_ONE_EPOCH)
        return meg_fail(e, MEG_EFORMAT,
                        "%s: the %s split has %" PRId64 " tokens, but one sample needs %" PRId64
                        " and no number of samples is requested; use more text, a shorter --seq-length or, in a "
                        "blend, weights",
                        p->name, meg_split_names[p->split], p->tokens, needed);
    return 0;
}

static int plan_mid_dataset(const struct meg_data_splits *d, struct meg_mid_dataset *p, const struct meg_source *src,
                            struct meg_err *e)
{
    struct meg_gpt_index_sizes sizes;
    int r;

    p->tokens = meg_source_tokens(src, p->begin, p->end);
    if ((r = check_mid_dataset(d, p, src, e)) < 0 ||
        (r = meg_gpt_index_plan(&sizes, p->end - p->begin, p->tokens, p->num_samples, &d->sample_conf.index, e)) < 0)
        return r;
    p->samples = sizes.samples;
    p->epochs = sizes.epochs;
    return 0;
}

static void add_cache_key(const struct meg_data_splits *d, const struct meg_mid_dataset *p, struct meg_str *out)
{
    const struct meg_cache_key id = { "GPTDataset",    p->name,
                                      p->num_samples,  meg_split_names[p->split],
                                      d->spec.seed,    d->spec.seq_length,
                                      d->split_string, &d->split_matrix,
                                      d->tokenizer,    NULL };
    meg_cache_key_add_dataset(out, &id);
}

static void add_deepspeed_name(const struct meg_data_splits *d, const struct meg_mid_dataset *p, struct meg_str *out)
{
    meg_str_printf(out, "%" PRId64 "ns_%" PRId64 "sl_%" PRId64 "s", p->num_samples, d->spec.seq_length, d->spec.seed);
}

static void index_arrays(struct meg_npy *a, const struct meg_gpt_index *x, bool is_deepspeed)
{
    a[0] = (struct meg_npy){ is_deepspeed ? "doc_idx" : "document_index", "<i4", 4, x->ndocument, 0, x->document };
    a[1] = (struct meg_npy){ is_deepspeed ? "sample_idx" : "sample_index",
                             x->is_sample_int64 ? "<i8" : "<i4",
                             x->is_sample_int64 ? 8 : 4,
                             x->nsample + 1,
                             2,
                             x->sample };
    a[2] = (struct meg_npy){ is_deepspeed ? "shuffle_idx" : "shuffle_index",
                             x->is_shuffle_int64 ? "<i8" : "<u4",
                             x->is_shuffle_int64 ? 8 : 4,
                             x->nsample,
                             0,
                             x->shuffle };
}

/*
 * Return whether the document index was built for the range of p.  An index contains each element of its range, so only
 * the smallest and the largest element are compared.  Megatron-DeepSpeed's file names do not contain the range, so a
 * cached index may have been built for a different range.
 */
static bool index_matches_range(const struct meg_mid_dataset *p, const struct meg_npy *document)
{
    const int32_t *element = document->data;
    int32_t first = INT32_MAX, last = -1;

    for (int64_t i = 0; i < document->rows; i++) {
        first = element[i] < first ? element[i] : first;
        last = element[i] > last ? element[i] : last;
    }
    return first == p->begin && last == p->end - 1;
}

static bool load_index(const struct meg_index_cache_entry *c, const struct meg_mid_dataset *p, struct meg_npy *a,
                       struct meg_mmap *map)
{
    if (!meg_index_cache_load(c, p->name, a, 3, map))
        return false;
    if (!c->deepspeed_prefix || index_matches_range(p, &a[0]))
        return true;
    for (int i = 0; i < 3; i++)
        meg_mmap_close(&map[i]);
    meg_info("%s/%s_*.npy: the index was built for other documents of the dataset; rebuilding the index", c->dir,
             c->deepspeed_prefix);
    return false;
}

static int build_mid_dataset(const struct meg_data_splits *d, const struct meg_mid_dataset *p, struct meg_dataset *ds,
                             const struct meg_index_cache_entry *c, struct meg_err *e)
{
    struct meg_gpt_index *x = &ds->index;
    struct meg_gpt_index_sizes sizes;
    struct meg_npy a[3];
    int r;

    if ((r = meg_gpt_index_plan(&sizes, p->end - p->begin, p->tokens, p->num_samples, &d->sample_conf.index, e)) < 0)
        return r;
    meg_gpt_index_shape(x, &sizes);
    index_arrays(a, x, d->is_deepspeed);
    if (c && load_index(c, p, a, ds->map)) {
        x->document = a[0].data;
        x->sample = a[1].data;
        x->shuffle = a[2].data;
    } else {
        meg_gpt_index_build(x, &sizes, ds->src, p->begin, &d->sample_conf.index, (uint32_t)d->spec.seed);
        index_arrays(a, x, d->is_deepspeed);
        if (c)
            meg_index_cache_store(c, a, 3);
    }
    ds->len = x->nsample;
    return 0;
}

static const struct meg_data_class gpt = { "GPTDataset",      true,          meg_source_elements,
                                           plan_mid_dataset,  add_cache_key, add_deepspeed_name,
                                           build_mid_dataset, meg_gpt_sample };

int meg_gpt_data_plan(struct meg_data_splits **out, const struct meg_data_conf *conf,
                      const struct meg_dataset_spec *spec, struct meg_err *e)
{
    struct meg_data_splits *d = meg_new(sizeof *d);

    d->type = &gpt;
    d->sample_conf = (struct meg_sample_conf){ .index = { spec->seq_length, 1, false },
                                               .eod = spec->eod,
                                               .pad = spec->pad,
                                               .vocab_size = spec->vocab_size,
                                               .reset_position_ids = conf->reset_position_ids,
                                               .reset_attention_mask = conf->reset_attention_mask,
                                               .eod_mask_loss = conf->eod_mask_loss };
    return meg_data_splits_plan(out, d, conf, spec, e);
}
