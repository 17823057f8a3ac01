/*
 * byte_alphabet.h - the printable characters that stand for bytes in byte-level vocabularies: 21-7E,
 * A1-AC and AE-FF stand for themselves, the other 68 bytes in order are U+0100, U+0101, ...
 */
#ifndef MEG_TOKENIZER_BPE_BYTE_ALPHABET_H
#define MEG_TOKENIZER_BPE_BYTE_ALPHABET_H

#include <stdint.h>

#include "base/mem.h"

/* The character of a byte, below U+0144. */
int32_t meg_byte_alphabet_char(int byte);
/* The byte of a character; -1 when it stands for none. */
int meg_byte_alphabet_byte(int32_t cp);

/* Append the characters of n bytes, in UTF-8. */
void meg_byte_alphabet_encode(struct meg_str *out, const char *bytes, int64_t n);
/* Append the bytes that UTF-8 text stands for; -1, and nothing appended, when a character stands
 * for none. */
int meg_byte_alphabet_decode(struct meg_str *out, const char *text, int64_t n);

#endif
