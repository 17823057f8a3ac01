/*
 * precompiled_charsmap.h - the compiled normaliser of SentencePiece: byte strings to what replaces them.
 *
 *   uint32 LE  bytes of the trie, a multiple of 1024
 *   uint32 LE  units of a double array as Darts-clone writes them
 *   the rest   replacements, UTF-8, a zero byte behind each
 *
 * Of a unit, bits 0-7 are the byte that leads to it and bit 8 says that a string ends there; the base
 * of its children is its number xor (unit >> 10) << (bit 9 ? 8 : 0), a child's number is base xor its
 * byte.  Where a string ends, the unit at base itself has bit 31 set and, below, the offset of the
 * replacement.
 */
#ifndef MEG_TOKENIZER_SPM_PRECOMPILED_CHARSMAP_H
#define MEG_TOKENIZER_SPM_PRECOMPILED_CHARSMAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* Starts as { 0 }, which maps nothing.  Once loaded it is only read, by any number of threads. */
struct meg_charsmap {
    uint32_t *unit;
    char *to;
};

/* Copy n bytes as they stand in a model.  MEG_EFORMAT with the offset among them ("byte N: ...") for
 * sizes that contradict each other, units or offsets that lead outside, or text that is not UTF-8. */
int meg_charsmap_load(struct meg_charsmap *m, const void *bytes, int64_t n, struct meg_err *e);
void meg_charsmap_free(struct meg_charsmap *m);

/* A walk begins with node = meg_charsmap_root.  Step by byte c: false where no string goes on so; else
 * *to is what replaces the string up to here, or NULL. */
uint32_t meg_charsmap_root(const struct meg_charsmap *m);
bool meg_charsmap_step(const struct meg_charsmap *m, uint32_t *node, unsigned char c, const char **to);

/* The longest string that s [n], UTF-8, begins with and that does not end inside a character: its
 * length, and *to; 0 when there is none. */
int64_t meg_charsmap_longest(const struct meg_charsmap *m, const char *s, int64_t n, const char **to);

#endif
