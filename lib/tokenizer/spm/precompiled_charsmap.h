/*
 * precompiled_charsmap.h - the compiled character map of a SentencePiece normalizer, which maps keys (byte strings) to
 * their replacements.
 *
 *   uint32 LE  size of the trie in bytes, a multiple of 1024
 *   uint32 LE  units of a double array, in the format of Darts-clone (https://github.com/s-yata/darts-clone)
 *   the rest   replacements, UTF-8, each followed by a zero byte
 *
 * Bits 0-7 of a unit are the byte that leads to it, and bit 8 is set if a key ends at it.  The base of its children is
 * its index xor (unit >> 10) << (bit 9 ? 8 : 0), and a child's index is base xor its byte.  If a key ends at a unit,
 * the unit at its base has bit 31 set, and the other bits of that unit are the offset of the replacement.
 */
#ifndef MEG_TOKENIZER_SPM_PRECOMPILED_CHARSMAP_H
#define MEG_TOKENIZER_SPM_PRECOMPILED_CHARSMAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/decls.h"
#include "base/err.h"

MEG_BEGIN_DECLS

/* A character map.  { 0 } is the empty map.  A loaded map is read-only: any number of threads may use it. */
struct meg_charsmap {
    uint32_t *unit;
    char *replacements;
};

/* Load a map from bytes [n], which are copied.  Returns MEG_EFORMAT, with an offset ("byte N: ..."), for inconsistent
 * sizes, units or offsets out of range, and replacements that are not UTF-8. */
int meg_charsmap_load(struct meg_charsmap *m, const void *bytes, int64_t n, struct meg_err *e);
void meg_charsmap_free(struct meg_charsmap *m);

/* meg_charsmap_root returns the root node.  meg_charsmap_step moves from a node by byte c; it returns false if no key
 * continues with this byte.  Otherwise, it sets *to to the replacement of the key that ends at the new node, or to
 * NULL. */
uint32_t meg_charsmap_root(const struct meg_charsmap *m);
bool meg_charsmap_step(const struct meg_charsmap *m, uint32_t *node, unsigned char c, const char **to);

/* Find the longest key that s [n] (UTF-8) begins with and that does not end inside a character.  Return its length and
 * set *to to its replacement; return 0 if there is none. */
int64_t meg_charsmap_longest(const struct meg_charsmap *m, const char *s, int64_t n, const char **to);

MEG_END_DECLS

#endif
