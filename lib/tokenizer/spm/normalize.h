/*
 * normalize.h - SentencePiece's normalizer: replace characters by the character map, remove extra spaces, add a dummy
 * prefix.  Spaces of the result are U+0020, also if the model escapes them as U+2581.
 */
#ifndef MEG_TOKENIZER_SPM_NORMALIZE_H
#define MEG_TOKENIZER_SPM_NORMALIZE_H

#include "base/decls.h"
#include "base/trie.h"
#include "tokenizer/spm/model.h"

MEG_BEGIN_DECLS

/* A normalizer spec with lookup tables.  Starts as { 0 }; read-only after init, any number of threads may use it. */
struct meg_spm_normalizer {
    const struct meg_spm_normalizer_spec *spec; /* of the model */
    const struct meg_trie *user_defined;        /* pieces that are copied; borrowed */
    unsigned char byte_class[256];              /* bits, see normalize.c; 0: a replacement may begin here */
    uint64_t is_unmapped[0x10000 / 64];         /* bit per code point >= 0x80: no replacement begins with it */
};
void meg_spm_normalizer_init(struct meg_spm_normalizer *n, const struct meg_spm_normalizer_spec *spec,
                             const struct meg_trie *user_defined);

/* State of normalizing a text in parts.  Starts as { .text, .n }, well-formed UTF-8. */
struct meg_spm_normalizer_stream {
    const char *text;
    int64_t n, offset; /* text is consumed up to offset */
    bool has_begun, is_after_space;
};

/*
 * meg_spm_normalizer_next - append normalized text until out has at least want bytes or the text ends (offset == n)
 * At the end it removes trailing spaces from out if the spec says so; before that, spaces at the end of out may yet
 * be removed.
 */
void meg_spm_normalizer_next(const struct meg_spm_normalizer *n, struct meg_spm_normalizer_stream *t, int64_t want,
                             struct meg_str *out);

/* Append a piece as it occurs in normalized text, with U+0020 for U+2581 if spaces are escaped.  false: text never
 * becomes this piece, because it has a U+0020 that would be escaped. */
bool meg_spm_normalizer_piece(const struct meg_spm_normalizer_spec *spec, const char *s, int64_t n,
                              struct meg_str *out);

MEG_END_DECLS

#endif
