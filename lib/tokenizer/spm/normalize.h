/*
 * normalize.h - SentencePiece's normalizer: replace characters by the character map, remove extra spaces, and add a
 * space before or after the text.  Spaces in the result are U+0020, even if the model escapes spaces as U+2581.
 */
#pragma once
#include "tokenizer/spm/model.h"
#include "tokenizer/trie.h"

/*
 * A normalizer spec with lookup tables.  It starts as { 0 } and is read-only after init: any number of threads may use
 * it.
 */
struct meg_spm_normalizer {
    const struct meg_spm_normalizer_spec *spec; /* borrowed from the model */
    const struct meg_trie *user_defined;        /* pieces that are copied unchanged; borrowed */
    unsigned char byte_class[256];              /* bit mask, see normalize.c */
    /* bit mask of code points 0x80 .. 0xFFFF that begin no key of the map, user-defined piece or escaped space */
    uint64_t is_unmapped[0x10000 / 64];
};
void meg_spm_normalizer_init(struct meg_spm_normalizer *n, const struct meg_spm_normalizer_spec *spec,
                             const struct meg_trie *user_defined);

/* State of normalizing a text in parts.  It starts as { .text = text, .n = n }.  The text must be well-formed UTF-8. */
struct meg_spm_normalizer_stream {
    const char *text;
    int64_t n, offset; /* length of text in bytes; number of bytes already normalized */
    bool has_begun, is_after_space;
};

/*
 * meg_spm_normalizer_next - append normalized text to out
 * Stops when `out` has at least `want` bytes, or at the end of the text (offset == n).  If the spec removes extra
 * spaces, the last call removes trailing spaces from `out`.  The caller must therefore not use spaces at the end of
 * `out` before the last call.
 */
void meg_spm_normalizer_next(const struct meg_spm_normalizer *n, struct meg_spm_normalizer_stream *t, int64_t want,
                             struct meg_str *out);

/*
 * Append a piece as it occurs in normalized text: if spaces are escaped, replace U+2581 by U+0020.  Return false if
 * spaces are escaped and the piece contains U+0020: such a piece cannot occur.
 */
bool meg_spm_normalizer_piece(const struct meg_spm_normalizer_spec *spec, const char *s, int64_t n,
                              struct meg_str *out);
