/*
 * byte_level.h - BPE that begins with bytes: a text is split into pieces, and each piece that was not seen
 * before is merged.  What GPT-2's files, tokenizer.json of byte-level models and tiktoken's ranks share.
 */
#ifndef MEG_TOKENIZER_BPE_BYTE_LEVEL_H
#define MEG_TOKENIZER_BPE_BYTE_LEVEL_H

#include "base/strtab.h"
#include "tokenizer/bpe/bpe.h"
#include "tokenizer/pretokenize/pretokenize.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/wordcache.h"

/* The rules, filled by who reads the files; then only read, by any number of threads. */
struct meg_bytebpe {
    enum meg_pretok pretok;
    int32_t byte_id[256]; /* -1: no token */
    int32_t unk;          /* id of a byte that is no token; -1: it is left out */
    struct meg_bpe bpe;
    bool is_leftmost; /* meg_bpe_merge_leftmost instead of meg_bpe_merge */
    /* a piece that is one of these is not merged: [whole.n] ids; none of them: { 0 } */
    struct meg_strtab tokens;
    int32_t *token_id;
};
void meg_bytebpe_free(struct meg_bytebpe *b);

/* What a thread needs besides.  Starts as { .rules }. */
struct meg_bytebpe_encoder {
    const struct meg_bytebpe *vocab;
    struct meg_wordcache cache;
    struct meg_pretokens pretokens;
};
/* Append the ids of text [n], well-formed UTF-8.  Fails as meg_bpe_stream and the sink do. */
int meg_bytebpe_encode(struct meg_bytebpe_encoder *enc, const char *text, int64_t n, struct meg_ids *out,
                       const struct meg_id_sink *sink, struct meg_err *e);
void meg_bytebpe_encoder_free(struct meg_bytebpe_encoder *enc);

#endif
