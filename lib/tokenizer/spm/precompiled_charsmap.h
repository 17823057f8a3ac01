/*
 * precompiled_charsmap.h - the compiled character map of a SentencePiece normalizer.  Keys (byte strings) are mapped to
 * replacements.
 *
 *   uint32 LE  size of the trie in bytes, a multiple of 1024
 *   uint32 LE  units of a double array, in the format of Darts-clone (https://github.com/s-yata/darts-clone)
 *   the rest   replacements, UTF-8, each followed by a zero byte
 *
 * A unit with bit 31 set is a value.  The other bits of the value are the byte offset of a replacement, counted from
 * the end of the units.  Any other unit is a node of the trie.  Bits 0-7 are the node's label, a byte; bit 8 is set if
 * a key ends at the node.  The node's base is its index xor ((unit >> 10) << (bit 9 ? 8 : 0)).  A child's index is this
 * base xor the child's label.  If a key ends at the node, the unit at the base is the value of the key.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"

/* A character map.  { 0 } is the empty map.  A loaded map is read-only: any number of threads may use it. */
struct meg_charsmap {
    uint32_t *unit;
    char *replacements;
};

/*
 * Load a map from bytes [n], which are copied.  Returns MEG_EFORMAT, with an offset ("byte N: ..."), if a size, unit or
 * offset is invalid or a replacement is not UTF-8.  The caller frees the map, even after a failure.
 */
int meg_charsmap_load(struct meg_charsmap *m, const void *bytes, int64_t n, struct meg_err *e);
void meg_charsmap_free(struct meg_charsmap *m);

/* Return the root node of the trie. */
uint32_t meg_charsmap_root(const struct meg_charsmap *m);
/*
 * Replace *node by its child with label c, and return true.  Set *to to the replacement of the key that ends at the
 * child, or to NULL if no key ends there.  If *node has no child with label c, return false.
 */
bool meg_charsmap_step(const struct meg_charsmap *m, uint32_t *node, unsigned char c, const char **to);

/*
 * Find the longest key at the beginning of s [n] (UTF-8), ignoring keys that end inside a character.  Set *to to its
 * replacement and return its length in bytes, or return 0 if there is none.
 */
int64_t meg_charsmap_longest(const struct meg_charsmap *m, const char *s, int64_t n, const char **to);
