/*
 * byte_level.h - byte-level BPE: split a text into pre-tokens and merge the bytes of each pre-token that is not cached.
 * Byte-level BPE is used for GPT-2's files, byte-level tokenizer.json files and tiktoken's ranks.
 */
#pragma once
#include "base/strtab.h"
#include "tokenizer/bpe/bpe.h"
#include "tokenizer/pretokenize/pretokenize.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/wordcache.h"

/* A vocabulary with merges, filled by a file reader.  After that, any number of threads may use the vocabulary. */
struct meg_bytebpe {
    enum meg_pretok pretok;
    int32_t byte_id[256]; /* id of each byte; -1: the byte is not a token */
    int32_t unk;          /* id of bytes that are not tokens; -1: such bytes are dropped */
    struct meg_bpe bpe;
    bool is_leftmost; /* merge by meg_bpe_merge_leftmost instead of meg_bpe_merge */
    /* texts of the pre-tokens that are encoded as one token, without merging; may be { 0 } */
    struct meg_strtab tokens;
    int32_t *token_id; /* [tokens.n] ids of tokens */
};
void meg_bytebpe_free(struct meg_bytebpe *b);

/* The state of one thread.  It starts as { .vocab = vocab }. */
struct meg_bytebpe_encoder {
    const struct meg_bytebpe *vocab;
    struct meg_wordcache cache;
    struct meg_pretokens pretokens;
};
/* Append the ids of text [n], which must be well-formed UTF-8.  Fails as meg_bpe_stream and the sink do. */
int meg_bytebpe_encode(struct meg_bytebpe_encoder *enc, const char *text, int64_t n, struct meg_ids *out,
                       const struct meg_id_sink *sink, struct meg_err *e);
void meg_bytebpe_encoder_free(struct meg_bytebpe_encoder *enc);
