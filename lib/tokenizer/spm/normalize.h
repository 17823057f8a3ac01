/*
 * normalize.h - text as SentencePiece models segment it: characters replaced, blanks in order, one in
 * front.  A blank of the result is one byte, U+0020, also where the model escapes it as U+2581.
 */
#ifndef MEG_TOKENIZER_SPM_NORMALIZE_H
#define MEG_TOKENIZER_SPM_NORMALIZE_H

#include "base/trie.h"
#include "tokenizer/spm/model.h"

/* Rules made ready.  Starts as { 0 }; then only read, by any number of threads. */
struct meg_spm_norm {
    const struct meg_spm_rules *rules; /* the model's */
    const struct meg_trie *verbatim;   /* strings that are copied as they are; borrowed */
    unsigned char plain[256];          /* the byte stands for itself before another such byte */
    uint64_t stays[0x10000 / 64];      /* bit a code point: outside ASCII, and nothing begins with it */
};
void meg_spm_norm_init(struct meg_spm_norm *n, const struct meg_spm_rules *rules,
                       const struct meg_trie *verbatim);

/*
 * A text on its way, in parts of any size.  Starts as { .text, .n }, well-formed UTF-8; at grows to n.
 */
struct meg_spm_text {
    const char *text;
    int64_t n, at;
    bool has_begun, is_after_blank;
};

/*
 * meg_spm_norm_next - append to out until it has at least want bytes or the text is at its end, which
 * is whole only then: trailing blanks are taken from out again where the rules say so.
 */
void meg_spm_norm_next(const struct meg_spm_norm *n, struct meg_spm_text *t, int64_t want,
                       struct meg_str *out);

/* Append a piece as text is after normalising: U+2581 as U+0020 where blanks are escaped.  false where
 * no text can become it: it has a U+0020 that would be escaped. */
bool meg_spm_norm_piece(const struct meg_spm_rules *rules, const char *s, int64_t n,
                        struct meg_str *out);

#endif
