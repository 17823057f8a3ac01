/*
 * normalize.h - text as SentencePiece models segment it: characters replaced, blanks in order, one in
 * front.  A blank of the result is one byte, U+0020, also where the model escapes it as U+2581.
 */
#ifndef MEG_TOKENIZER_SPM_NORMALIZE_H
#define MEG_TOKENIZER_SPM_NORMALIZE_H

#include "base/trie.h"
#include "tokenizer/spm/model.h"

/* Rules made ready.  Starts as { 0 }; then only read, by any number of threads. */
struct meg_spm_normalizer {
    const struct meg_spm_normalizer_spec *rules; /* the model's */
    const struct meg_trie *verbatim;             /* strings that are copied as they are; borrowed */
    unsigned char plain[256];                    /* the byte stands for itself before another such byte */
    uint64_t stays[0x10000 / 64];                /* bit a code point: outside ASCII, and nothing begins with it */
};
void meg_spm_normalizer_init(struct meg_spm_normalizer *n, const struct meg_spm_normalizer_spec *rules,
                             const struct meg_trie *verbatim);

/*
 * A text on its way, in parts of any size.  Starts as { .text, .n }, well-formed UTF-8; at grows to n.
 */
struct meg_spm_normalizer_stream {
    const char *text;
    int64_t n, at;
    bool has_begun, is_after_blank;
};

/*
 * meg_spm_normalizer_next - append to out until it has at least want bytes or the text is at its end, which
 * is whole only then: trailing blanks are taken from out again where the rules say so.
 */
void meg_spm_normalizer_next(const struct meg_spm_normalizer *n, struct meg_spm_normalizer_stream *t, int64_t want,
                             struct meg_str *out);

/* Append a piece as text is after normalising: U+2581 as U+0020 where blanks are escaped.  false where
 * no text can become it: it has a U+0020 that would be escaped. */
bool meg_spm_normalizer_piece(const struct meg_spm_normalizer_spec *rules, const char *s, int64_t n,
                              struct meg_str *out);

#endif
