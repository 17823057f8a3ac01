/* base64.c - Base64 (RFC 4648, section 4). */
#include "io/base64.h"

static int value_of(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

int meg_base64_decode(struct meg_str *out, const char *s, int64_t n)
{
    const size_t old_n = out->n;
    int64_t digits = n;

    while (digits > 0 && n - digits < 2 && s[digits - 1] == '=')
        digits--;
    if (n % 4 != 0 || digits % 4 == 1)
        return -1;
    for (int64_t i = 0; i < digits; i += 4) {
        uint32_t bits = 0;
        int k, nbytes;
        char bytes[3];

        for (k = 0; k < 4 && i + k < digits; k++) {
            int v = value_of(s[i + k]);

            if (v < 0) {
                out->n = old_n;
                return -1;
            }
            bits |= (uint32_t)v << (18 - 6 * k);
        }
        nbytes = k - 1;
        for (int b = 0; b < nbytes; b++)
            bytes[b] = (char)(bits >> (16 - 8 * b));
        meg_str_add(out, bytes, (size_t)nbytes);
    }
    return 0;
}

void meg_base64_encode(struct meg_str *out, const char *bytes, int64_t n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    for (int64_t i = 0; i < n; i += 3) {
        uint32_t bits = 0;
        char s[4];

        for (int k = 0; k < 3; k++)
            bits = bits << 8 | (i + k < n ? (unsigned char)bytes[i + k] : 0);
        for (int k = 0; k < 4; k++)
            s[k] = i + k <= n ? digit[bits >> (18 - 6 * k) & 63] : '=';
        meg_str_add(out, s, 4);
    }
}
