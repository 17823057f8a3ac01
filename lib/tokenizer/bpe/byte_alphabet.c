/*
 * byte_alphabet.c - GPT-2's bytes_to_unicode: the printable characters that represent bytes in byte-level vocabularies.
 */
#include "tokenizer/bpe/byte_alphabet.h"
#include <stdbool.h>
#include "unicode/utf8.h"

static bool is_printable(int b)
{
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}

/* The bytes that are not printable are, in order, 0x00-0x20, 0x7F-0xA0 and 0xAD. */
int32_t meg_byte_alphabet_char(int b)
{
    if (is_printable(b))
        return b;
    return 0x100 + (b <= 0x20 ? b : b <= 0xA0 ? b - 0x7F + 33 : 67);
}

int meg_byte_alphabet_byte(int32_t cp)
{
    int k = cp - 0x100;

    if (k < 0)
        return is_printable(cp) ? cp : -1;
    return k <= 0x20 ? k : k < 67 ? k - 33 + 0x7F : k == 67 ? 0xAD : -1;
}

void meg_byte_alphabet_encode(struct meg_str *out, const char *bytes, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        char c[4];
        int len = meg_utf8_encode(c, meg_byte_alphabet_char((unsigned char)bytes[i]));

        meg_str_add(out, c, (size_t)len);
    }
}

int meg_byte_alphabet_decode(struct meg_str *out, const char *text, int64_t n)
{
    size_t was = out->n;

    while (n > 0) {
        int32_t cp;
        int len = meg_utf8_decode(text, n, &cp), b = len < 0 ? -1 : meg_byte_alphabet_byte(cp);
        char c = (char)b;

        if (b < 0) {
            out->n = was;
            return -1;
        }
        meg_str_add(out, &c, 1);
        text += len;
        n -= len;
    }
    return 0;
}
