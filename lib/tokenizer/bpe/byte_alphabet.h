/*
 * byte_alphabet.h - GPT-2's bytes_to_unicode: the printable characters that represent bytes in byte-level vocabularies.
 * Bytes 0x21-0x7E, 0xA1-0xAC and 0xAE-0xFF are represented by the character with the same code point.  The other 68
 * bytes are represented, in order, by U+0100, U+0101, ...
 */
#pragma once
#include <stdint.h>
#include "base/mem.h"

/* Return the character that represents a byte; it is below U+0144. */
int32_t meg_byte_alphabet_char(int byte);
/* Return the byte that a character represents, or -1 if it represents none. */
int meg_byte_alphabet_byte(int32_t cp);

/* Append the characters that represent n bytes, in UTF-8. */
void meg_byte_alphabet_encode(struct meg_str *out, const char *bytes, int64_t n);
/*
 * Append the bytes that the characters of text represent.  If a character represents no byte or the text is not
 * well-formed UTF-8, append nothing and return -1.
 */
int meg_byte_alphabet_decode(struct meg_str *out, const char *text, int64_t n);
