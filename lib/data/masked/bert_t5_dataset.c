/* bert_t5_dataset.c - the training, validation and test data of a BERT or T5 run. */
#include "data/masked/bert_t5_dataset.h"
#include <inttypes.h>
#include "base/log.h"
#include "base/mem.h"
#include "data/blend/data_splits_internal.h"
#include "data/cache_key.h"
#include "tokenizer/megatron_release.h"

/*
 * Return seq_length minus the number of special tokens.  BERT has 3: CLS and two SEP.  For T5, Megatron-LM subtracts 2
 * for BOS and EOS, although the encoder input contains neither.
 */
static int64_t max_length(const struct meg_data_splits *d)
{
    return d->spec.seq_length - (d->masked_conf.conf.type == MEG_MASKED_BERT ? 3 : 2);
}

static int min_sentences(const struct meg_data_splits *d)
{
    return d->masked_conf.conf.type == MEG_MASKED_BERT && d->masked_conf.conf.has_pairs ? 2 : 1;
}

static int64_t num_documents(const struct meg_source *src)
{
    const struct meg_indexed *d = meg_source_indexed(src);
    return d ? d->documents : 0;
}

static int plan_mid_dataset(const struct meg_data_splits *d, struct meg_mid_dataset *p, const struct meg_source *src,
                            struct meg_err *e)
{
    const struct meg_indexed *file = meg_source_indexed(src);

    if (!file)
        return meg_fail(e, MEG_EUSAGE, "--mock-data has no sentences, which %s require; use --data-path",
                        d->masked_conf.conf.type == MEG_MASKED_BERT ? "BERT samples" : "T5 samples");
    if (p->begin == p->end && !d->split_string)
        return meg_fail(e, MEG_EUSAGE,
                        "%s: the range BEGIN:END for %s contains none of the %" PRId64
                        " documents; use a larger range or more documents",
                        p->name, meg_split_names[p->split], num_documents(src));
    if (p->begin == p->end)
        return meg_fail(e, MEG_EUSAGE,
                        "--split %s: the %s split of %s contains none of the %" PRId64
                        " documents; use a larger ratio, or 0 to omit the split",
                        d->split_string, meg_split_names[p->split], p->name, num_documents(src));
    p->tokens = meg_source_tokens(src, meg_indexed_document(file, p->begin), meg_indexed_document(file, p->end));
    return 0;
}

static void add_cache_key(const struct meg_data_splits *d, const struct meg_mid_dataset *p, struct meg_str *out)
{
    const struct meg_cache_key id = {
        d->type->name,   p->name,          p->num_samples, meg_split_names[p->split], d->spec.seed, d->spec.seq_length,
        d->split_string, &d->split_matrix, d->tokenizer,   &d->masked_conf.conf
    };
    meg_cache_key_add_dataset(out, &id);
}

static void add_deepspeed_name(const struct meg_data_splits *d, const struct meg_mid_dataset *p, struct meg_str *out)
{
    meg_str_printf(out, "%" PRId64 "mns_%" PRId64 "msl_%.2fssp_%" PRId64 "s", p->num_samples, max_length(d),
                   d->masked_conf.conf.short_seq_prob, d->spec.seed);
}

static struct meg_npy row_array(const struct meg_sentence_map *m, bool is_deepspeed, int64_t rows)
{
    return (struct meg_npy){ is_deepspeed ? NULL : "sample_index",
                             m->is_uint64 ? "<u8" : "<u4",
                             m->is_uint64 ? 8 : 4,
                             rows,
                             MEG_SENTENCE_MAP_COLUMNS,
                             m->row };
}

/*
 * Map the rows of the cached index into m.  Return false if the cache has no valid index.  Megatron-DeepSpeed's file
 * names do not contain the range of documents, so the cached index may have been built for a different range.
 */
static bool load_index(const struct meg_data_splits *d, const struct meg_mid_dataset *p, struct meg_dataset *ds,
                       const struct meg_index_cache_entry *c, const struct meg_sentence_map_conf *map_conf)
{
    struct meg_sentence_map *m = &ds->sentence_map;
    struct meg_npy a = row_array(m, d->is_deepspeed, -1);

    if (!meg_index_cache_load(c, p->name, &a, 1, ds->map))
        return false;
    m->row = a.data;
    m->n = a.rows;
    if (!d->is_deepspeed || meg_sentence_map_matches_range(m, meg_source_indexed(ds->src), p->begin, p->end, map_conf))
        return true;
    meg_mmap_close(&ds->map[0]);
    meg_info("%s/%s.npy: the index was built for other documents of the dataset; rebuilding the index", c->dir,
             c->deepspeed_prefix);
    return false;
}

static int build_mid_dataset(const struct meg_data_splits *d, const struct meg_mid_dataset *p, struct meg_dataset *ds,
                             const struct meg_index_cache_entry *c, struct meg_err *e)
{
    const struct meg_indexed *file = meg_source_indexed(ds->src);
    const bool is_all = p->num_samples == MEG_ONE_EPOCH;
    const struct meg_sentence_map_conf map_conf = { max_length(d),
                                                    min_sentences(d),
                                                    d->masked_conf.conf.short_seq_prob,
                                                    is_all ? 1 : MEG_UNLIMITED_EPOCHS,
                                                    is_all ? INT64_MAX : p->num_samples,
                                                    (uint32_t)d->spec.seed };
    struct meg_sentence_map *m = &ds->sentence_map;
    struct meg_npy a;

    ds->masked_conf = d->masked_conf;
    meg_sentence_map_shape(m, file);
    if (!c || !load_index(d, p, ds, c, &map_conf)) {
        meg_sentence_map_build(m, file, p->begin, p->end, &map_conf);
        a = row_array(m, d->is_deepspeed, m->n);
        if (c && m->n > 0)
            meg_index_cache_store(c, &a, 1);
    }
    ds->len = m->n;
    if (m->n > 0)
        return 0;
    return meg_fail(
        e, MEG_EFORMAT,
        "%s: none of the %" PRId64
        " documents of the %s split yields a sample; a sample requires a document of at least %d sentence%s, and in a "
        "document of several sentences, each must have at most %d tokens; preprocess the text with --split-sentences",
        p->name, p->end - p->begin, meg_split_names[p->split], map_conf.min_sentences,
        map_conf.min_sentences == 1 ? "" : "s", MEG_LONG_SENTENCE);
}

static const struct meg_data_class classes[] = {
    [MEG_MASKED_BERT] = { "BERTMaskedWordPieceDataset", false, num_documents, plan_mid_dataset, add_cache_key,
                          add_deepspeed_name, build_mid_dataset, meg_bert_batch },
    [MEG_MASKED_T5] = { "T5MaskedWordPieceDataset", false, num_documents, plan_mid_dataset, add_cache_key,
                        add_deepspeed_name, build_mid_dataset, meg_t5_batch },
};

/* ---- validation --------------------------------------------------------------------------------- */

static int check_id(const struct meg_masked_vocab *v, int32_t id, const char *name, struct meg_err *e)
{
    if (id >= 0 && id < v->size)
        return 0;
    return meg_fail(e, MEG_EUSAGE, "the vocabulary has no %s token", name);
}

/* Check the padding id.  HuggingFaceTokenizer and TikTokenizer have none in early releases of Megatron Core. */
static int check_pad(const struct meg_masked_vocab *v, const char *release, struct meg_err *e)
{
    const struct meg_megatron_release *m = meg_megatron_release_find(release);

    if (m->has_pad || v->pad >= 0)
        return check_id(v, v->pad, "[PAD]", e);
    return meg_fail(
        e, MEG_EUSAGE,
        "the vocabulary has no [PAD] token; in release %s of Megatron Core, tokenizer.json and TikTokenizer "
        "give none: if the tokenizer has one, use --megatron-release 0.15 or later, or --tokenizer-type "
        "PretrainedFromHF",
        m->name);
}

static int check_vocab(enum meg_masked_type type, const struct meg_masked_vocab *v, const char *release,
                       struct meg_err *e)
{
    int r;

    if (type == MEG_MASKED_BERT &&
        ((r = check_id(v, v->mask, "[MASK]", e)) < 0 || (r = check_id(v, v->cls, "[CLS]", e)) < 0 ||
         (r = check_id(v, v->sep, "[SEP]", e)) < 0))
        return r;
    if (type == MEG_MASKED_T5 &&
        ((r = check_id(v, v->bos, "[BOS]", e)) < 0 || (r = check_id(v, v->eos, "[EOS]", e)) < 0))
        return r;
    return check_pad(v, release, e);
}

static int check_conf(const struct meg_masked_conf *c, int64_t seq_length, struct meg_err *e)
{
    enum { MIN_SEQ_LENGTH = 5, MAX_NGRAM = 1000 };
    const double min_prob = 1.0 / ((int64_t)1 << 31);

    if (seq_length < MIN_SEQ_LENGTH || seq_length > INT32_MAX)
        return meg_fail(e, MEG_EUSAGE, "--seq-length %" PRId64 ": must be from %d to %d", seq_length, MIN_SEQ_LENGTH,
                        INT32_MAX);
    if (c->type == MEG_MASKED_T5 && (c->decoder_seq_length < 2 || c->decoder_seq_length > INT32_MAX))
        return meg_fail(e, MEG_EUSAGE, "--decoder-seq-length %" PRId64 ": must be from 2 to %d", c->decoder_seq_length,
                        INT32_MAX);
    if (!(c->mask.prob > 0 && c->mask.prob < 1))
        return meg_fail(e, MEG_EUSAGE, "--mask-prob %g: must be above 0 and below 1", c->mask.prob);
    if (c->short_seq_prob != 0 && !(c->short_seq_prob >= min_prob && c->short_seq_prob <= 1))
        return meg_fail(e, MEG_EUSAGE, "--short-seq-prob %g: must be 0, or from %g to 1", c->short_seq_prob, min_prob);
    if (c->mask.max_ngram < 1 || c->mask.max_ngram > MAX_NGRAM)
        return meg_fail(e, MEG_EUSAGE, "maximum span length of %" PRId64 " words: must be from 1 to %d",
                        c->mask.max_ngram, MAX_NGRAM);
    return 0;
}

int meg_masked_data_plan(struct meg_data_splits **out, const struct meg_data_conf *conf,
                         const struct meg_dataset_spec *spec, const struct meg_masked_conf *masked,
                         const struct meg_masked_vocab *vocab, struct meg_err *e)
{
    struct meg_data_splits *d;
    int r;

    if ((r = check_conf(masked, spec->seq_length, e)) < 0 ||
        (r = check_vocab(masked->type, vocab, spec->megatron_release, e)) < 0)
        return r;
    d = meg_new(sizeof *d);
    d->type = &classes[masked->type];
    d->masked_conf = (struct meg_masked_sample_conf){ *masked, *vocab, spec->seq_length, (uint32_t)spec->seed };
    d->sample_conf.index.seq_length = masked->type == MEG_MASKED_T5 ? masked->decoder_seq_length : spec->seq_length;
    d->sample_conf.enc_length = masked->type == MEG_MASKED_T5 ? spec->seq_length : 0;
    return meg_data_splits_plan(out, d, conf, spec, e);
}
