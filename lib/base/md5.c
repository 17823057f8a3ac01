/* md5.c - MD5 (RFC 1321): pad the message, and update a state of 16 bytes with each 64-byte block. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/hash.h"

static uint32_t rotate_left(uint32_t x, int bits)
{
    return x << bits | x >> (32 - bits);
}

static void compress(uint32_t state[4], const unsigned char p[64])
{
    static const int shift[4][4] = { { 7, 12, 17, 22 }, { 5, 9, 14, 20 }, { 4, 11, 16, 23 }, { 6, 10, 15, 21 } };
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], word[16];

    for (int i = 0; i < 16; i++)
        word[i] = (uint32_t)p[4 * i] | (uint32_t)p[4 * i + 1] << 8 | (uint32_t)p[4 * i + 2] << 16 |
                  (uint32_t)p[4 * i + 3] << 24;
    for (int i = 0; i < 64; i++) {
        const int round = i / 16;
        const uint32_t sine = (uint32_t)(fabs(sin(i + 1)) * 0x1p32);
        uint32_t f, next;
        int k;

        switch (round) {
        case 0: f = (b & c) | (~b & d), k = i; break;
        case 1: f = (d & b) | (~d & c), k = 5 * i + 1; break;
        case 2: f = b ^ c ^ d, k = 3 * i + 5; break;
        default: f = c ^ (b | ~d), k = 7 * i; break;
        }
        next = b + rotate_left(a + f + sine + word[k % 16], shift[round][i % 4]);
        a = d;
        d = c;
        c = b;
        b = next;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
}

void meg_md5_hex(char hex[33], const void *bytes, size_t n)
{
    uint32_t state[4] = { 0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476 };
    unsigned char tail[128] = { 0 };
    const unsigned char *p = bytes;
    const size_t rest = n % 64, padded = rest < 56 ? 64 : 128;

    for (size_t i = 0; i + 64 <= n; i += 64)
        compress(state, p + i);
    if (rest)
        memcpy(tail, p + n - rest, rest);
    tail[rest] = 0x80;
    for (int i = 0; i < 8; i++)
        tail[padded - 8 + (size_t)i] = (unsigned char)((uint64_t)n * 8 >> 8 * i);
    for (size_t i = 0; i < padded; i += 64)
        compress(state, tail + i);
    for (int i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", (state[i / 4] >> 8 * (i % 4)) & 0xff);
}
