/* span_vocab.c - the tokens that mark the spans of a text for a T5. */
#include "eval/span_vocab.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "data/masked/masked_vocab.h"

enum { T5_TOKENIZER_SENTINELS = 100 };

/* Return whether to number the sentinels as Hugging Face's T5Tokenizer does, after the SentencePiece ids. */
static bool needs_t5_tokenizer(const struct meg_loaded_model *m)
{
    return strcmp(meg_tokenizer_type(m->tok), "GPTSentencePieceTokenizer") == 0 &&
           meg_tokenizer_vocab_size(m->tok) + T5_TOKENIZER_SENTINELS <= m->g->conf.vocab_size;
}

static void add_t5_tokenizer(struct meg_span_vocab *v, const struct meg_loaded_model *m)
{
    v->adds_eos = true;
    v->nsentinel = T5_TOKENIZER_SENTINELS;
    v->sentinel = meg_new(T5_TOKENIZER_SENTINELS * sizeof *v->sentinel);
    for (int32_t k = 0; k < T5_TOKENIZER_SENTINELS; k++)
        v->sentinel[k] = (int32_t)meg_tokenizer_vocab_size(m->tok) + T5_TOKENIZER_SENTINELS - 1 - k;
}

/* Set v->splits_text: encode the text <extra_id_0>, and check whether the ids include the first sentinel. */
static int probe_tokenizer(struct meg_span_vocab *v, struct meg_tokenizer *tok, struct meg_err *e)
{
    static const char first[] = "<extra_id_0>";
    struct meg_ids ids = { 0 };
    const int r = meg_tokenizer_encode(tok, first, sizeof first - 1, &ids, e);

    v->splits_text = true;
    for (int64_t i = 0; i < ids.n; i++)
        v->splits_text &= ids.v[i] != v->sentinel[0];
    free(ids.v);
    return r;
}

int meg_span_vocab_make(struct meg_span_vocab *v, const struct meg_loaded_model *m, struct meg_err *e)
{
    struct meg_masked_vocab all;

    meg_masked_vocab_make(&all, m->tok, m->g->conf.vocab_size);
    *v = (struct meg_span_vocab){ .bos = m->bos, .eos = all.eos >= 0 ? all.eos : m->eod, .mask = all.mask };
    if (all.nsentinel > 0) {
        v->nsentinel = all.nsentinel;
        v->sentinel = meg_realloc_array(NULL, (size_t)all.nsentinel, sizeof *v->sentinel);
        memcpy(v->sentinel, all.sentinel, (size_t)all.nsentinel * sizeof *v->sentinel);
    } else if (needs_t5_tokenizer(m)) {
        add_t5_tokenizer(v, m);
    }
    meg_masked_vocab_free(&all);
    if (v->nsentinel == 0)
        return meg_fail(e, MEG_EUSAGE,
                        "--task fill-mask requires a tokenizer with the sentinels <extra_id_0>, <extra_id_1> and so on "
                        "for a T5; specify the tokenizer that the model was trained with");
    if (v->bos < 0 || v->eos < 0)
        return meg_fail(e, MEG_EUSAGE,
                        "--task fill-mask requires a checkpoint or a tokenizer with BOS and EOS for a T5; specify the "
                        "tokenizer that the model was trained with");
    return probe_tokenizer(v, m->tok, e);
}

void meg_span_vocab_free(struct meg_span_vocab *v)
{
    free(v->sentinel);
    *v = (struct meg_span_vocab){ 0 };
}

int64_t meg_span_vocab_find(const struct meg_span_vocab *v, int32_t id)
{
    for (int64_t k = 0; k < v->nsentinel; k++)
        if (v->sentinel[k] == id)
            return k;
    return -1;
}

static int64_t count_spans(const struct meg_span_vocab *v, const struct meg_ids *ids)
{
    int64_t n = 0;

    for (int64_t i = 0; i < ids->n; i++)
        n += ids->v[i] == v->mask || meg_span_vocab_find(v, ids->v[i]) >= 0;
    return n;
}

int meg_span_vocab_number(const struct meg_span_vocab *v, struct meg_ids *ids, int64_t *nspans, struct meg_err *e)
{
    int64_t k = 0;

    *nspans = count_spans(v, ids);
    if (*nspans > v->nsentinel)
        return meg_fail(e, MEG_EFORMAT,
                        "the line has %" PRId64 " masks, but the vocabulary has only %" PRId64
                        " sentinel tokens (--vocab-extra-ids when the model was trained); use fewer masks",
                        *nspans, v->nsentinel);
    for (int64_t i = 0; i < ids->n; i++) {
        const int64_t number = meg_span_vocab_find(v, ids->v[i]);

        if (number < 0 && ids->v[i] != v->mask)
            continue;
        if (number >= 0 && number != k)
            return meg_fail(e, MEG_EFORMAT,
                            "found <extra_id_%" PRId64 "> instead of <extra_id_%" PRId64
                            ">; number the sentinels of a line from 0 on, in the order of the text",
                            number, k);
        ids->v[i] = v->sentinel[k++];
    }
    return 0;
}
