/* dataset.c - the dataset of one split: samples of equal length from a file, a blend of files, or mock data. */
#include "data/dataset.h"
#include <inttypes.h>
#include <stdlib.h>
#include "data/dataset_internal.h"

int64_t meg_dataset_len(const struct meg_dataset *ds)
{
    return ds->len;
}

int64_t meg_dataset_seq_length(const struct meg_dataset *ds)
{
    return ds->conf.index.seq_length;
}

int64_t meg_dataset_enc_length(const struct meg_dataset *ds)
{
    return ds->conf.enc_length;
}

int meg_dataset_cache_mismatch(const struct meg_dataset *ds, struct meg_err *e)
{
    return meg_fail(
        e, MEG_EFORMAT,
        "%s: the cached index does not match this dataset; remove the .npy files of the index (see --data-cache-path)",
        meg_source_name(ds->src));
}

/* Buffer for the tokens of one sample, which are read from one or more sequences of the source. */
struct stream {
    int32_t *tokens;
    int32_t next;  /* extra token: the label of the last token */
    int64_t s, at; /* tokens per sample, without the extra token; tokens read so far */
};

/*
 * Append tokens [from, to) of a sequence to f.  The token after the first f->s tokens is stored in f->next.  Returns
 * MEG_EFORMAT if f would have more than f->s + 1 tokens.
 */
static int append_range(struct stream *f, const struct meg_dataset *ds, int64_t element, int64_t from, int64_t to,
                        struct meg_err *e)
{
    int64_t n = to - from, space = f->s - f->at;
    int r;

    if (n > space + 1 || n < 0)
        return meg_dataset_cache_mismatch(ds, e);
    if (n == 0)
        return 0;
    if ((r = meg_source_get(ds->src, element, from, n < space ? n : space, f->tokens + f->at, e)) < 0)
        return r;
    if (n > space && (r = meg_source_get(ds->src, element, to - 1, 1, &f->next, e)) < 0)
        return r;
    f->at += n;
    return 0;
}

/*
 * Read the tokens of sample j, where j is the sample's number before shuffling.  The sample spans one or more
 * consecutive entries of index.document, each of which is the number of a sequence.  The sample may begin and end
 * inside a sequence.
 */
static int read_sample_tokens(const struct meg_dataset *ds, int64_t j, struct stream *f, struct meg_err *e)
{
    const struct meg_gpt_index *x = &ds->index;
    int64_t k, off, last, last_off, k0;
    int r;

    if (j < 0 || j >= x->nsample)
        return meg_dataset_cache_mismatch(ds, e);
    meg_gpt_index_start(x, j, &k0, &off);
    meg_gpt_index_start(x, j + 1, &last, &last_off);
    if (k0 < 0 || k0 > last || last >= x->ndocument || off < 0 || last_off < 0)
        return meg_dataset_cache_mismatch(ds, e);
    for (k = k0; k <= last; k++) {
        int64_t element = x->document[k], from = k == k0 ? off : 0, to;
        if (element < 0 || element >= meg_source_elements(ds->src))
            return meg_dataset_cache_mismatch(ds, e);
        to = k == last ? last_off + ds->conf.index.add_extra_token : meg_source_length(ds->src, element);
        if (to > meg_source_length(ds->src, element))
            return meg_dataset_cache_mismatch(ds, e);
        if ((r = append_range(f, ds, element, from, to, e)) < 0)
            return r;
    }
    return 0;
}

int meg_dataset_check_id(const struct meg_dataset *ds, int32_t id, int64_t vocab_size, struct meg_err *e)
{
    if (id >= 0 && (vocab_size == 0 || id < vocab_size))
        return 0;
    if (id < 0)
        return meg_fail(e, MEG_EFORMAT, "%s.bin: token id %" PRId32 " is negative; preprocess the text again",
                        meg_source_name(ds->src), id);
    return meg_fail(e, MEG_EFORMAT,
                    "%s.bin: token id %" PRId32 " is outside the vocabulary of %" PRId64
                    " ids; preprocess the text with the tokenizer of this run",
                    meg_source_name(ds->src), id, vocab_size);
}

int meg_gpt_sample(const struct meg_dataset *ds, int64_t i, struct meg_batch *out, struct meg_err *e)
{
    const struct meg_sample_conf *c = &ds->conf;
    const int64_t s = c->index.seq_length;
    struct stream f = { out->tokens, c->pad, s, 0 };
    int32_t start = 0;
    int64_t t;
    int r;

    if ((r = read_sample_tokens(ds, meg_gpt_index_shuffled(&ds->index, i), &f, e)) < 0)
        return r;
    if (f.at != s + c->index.add_extra_token)
        return meg_dataset_cache_mismatch(ds, e);
    for (t = 0; t < s; t++)
        if ((r = meg_dataset_check_id(ds, out->tokens[t], c->vocab_size, e)) < 0)
            return r;
    if (c->index.add_extra_token && (r = meg_dataset_check_id(ds, f.next, c->vocab_size, e)) < 0)
        return r;
    for (t = 0; t < s; t++)
        out->labels[t] = t + 1 < s ? out->tokens[t + 1] : f.next;
    for (t = 0; t < s; t++) {
        const bool is_eod = out->tokens[t] == c->eod;
        out->position_ids[t] = (int32_t)t - (c->reset_position_ids ? start : 0);
        if (out->doc_start)
            out->doc_start[t] = c->reset_attention_mask ? start : 0;
        out->loss_mask[t] = !(c->eod_mask_loss && is_eod) && out->labels[t] != c->pad;
        if (is_eod)
            start = (int32_t)t + 1;
    }
    for (t = 0; t < s; t++) {
        if (out->tokens[t] == c->pad)
            out->tokens[t] = 0;
        if (out->labels[t] == c->pad)
            out->labels[t] = 0;
    }
    return 0;
}

int meg_dataset_exhausted(const struct meg_dataset *ds, struct meg_err *e)
{
    return meg_fail(e, MEG_EFAIL,
                    "%s: the blend needs more samples than the %" PRId64
                    " of this dataset; use --renormalize-blend-weights (--megatron-release 0.10) or a larger "
                    "--mid-level-dataset-surplus (0.11 or later)",
                    meg_source_name(ds->src), ds->len);
}

int meg_dataset_sample(const struct meg_dataset *ds, int64_t i, struct meg_batch *out, struct meg_err *e)
{
    MEG_ASSERT(i >= 0 && i < ds->len);
    while (ds->nmember > 0) {
        const struct meg_dataset *m = ds->member[ds->blend.dataset[i]];

        i = ds->blend.sample[i];
        if (i >= m->len)
            return meg_dataset_exhausted(m, e);
        ds = m;
    }
    return ds->sample(ds, i, out, e);
}

void meg_dataset_close(struct meg_dataset *ds)
{
    if (!ds)
        return;
    for (int i = 0; i < ds->nmember; i++)
        meg_dataset_close(ds->member[i]);
    free(ds->member);
    meg_gpt_index_free(&ds->index);
    meg_sentence_map_free(&ds->sentence_map);
    meg_blend_index_free(&ds->blend);
    for (int i = 0; i < 3; i++)
        meg_mmap_close(&ds->map[i]);
    free(ds);
}
