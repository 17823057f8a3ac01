/* Other formats' names and layouts against ours, driven by a format's table. */
#include <stdio.h>
#include <string.h>

#include "ckpt/internal.h"

/* Whether name is pattern with a number in place of #; the number is left in digits. */
static bool match(const char *pattern, const char *name, char digits[12])
{
    const char *hash = strchr(pattern, '#');
    size_t before = hash ? (size_t)(hash - pattern) : strlen(pattern), n;

    if (!hash)
        return !strcmp(pattern, name);
    if (strncmp(pattern, name, before))
        return false;
    n = strspn(name + before, "0123456789");
    if (n < 1 || n > 11 || strcmp(hash + 1, name + before + n))
        return false;
    memcpy(digits, name + before, n);
    digits[n] = 0;
    return true;
}

const struct ckpt_rename *ckpt_their_name(const struct ckpt_format *f, const char *ours,
                                          bool drop_prefix, char buf[128])
{
    char digits[12];

    for (const struct ckpt_rename *row = f->rename; row->ours; row++) {
        const char *theirs = row->theirs, *hash;

        if (!match(row->ours, ours, digits))
            continue;
        if (drop_prefix && f->prefix && !strncmp(theirs, f->prefix, strlen(f->prefix)))
            theirs += strlen(f->prefix);
        hash = strchr(theirs, '#');
        if (hash)
            snprintf(buf, 128, "%.*s%s%s", (int)(hash - theirs), theirs, digits, hash + 1);
        else
            snprintf(buf, 128, "%s", theirs);
        return row;
    }
    return NULL;
}

bool ckpt_is_ignored(const struct ckpt_format *f, const char *theirs)
{
    const size_t n = f->prefix ? strlen(f->prefix) : 0;
    char digits[12];

    for (const char *const *p = f->ignored; p && *p; p++)
        if (match(*p, theirs, digits) ||
            (n && !strncmp(*p, f->prefix, n) && match(*p + n, theirs, digits)))
            return true;
    return false;
}

/* Where row r of ours, q k v of a head after each other, is among all q, all k, all v. */
static int64_t qkv_row(int64_t r, int64_t rows, int64_t heads)
{
    const int64_t d = rows / (3 * heads), head = r / (3 * d), part = r / d % 3;

    return (part * heads + head) * d + r % d;
}

static bool is_transposed(enum ckpt_how how)
{
    return how == CKPT_TRANSPOSED || how == CKPT_QKV_TRANSPOSED;
}

/* Among the elements of theirs: one step along a row of ours, and where row r begins. */
static int64_t their_step(int64_t rows, enum ckpt_how how)
{
    return is_transposed(how) ? rows : 1;
}

static int64_t their_row(int64_t r, int64_t rows, int64_t cols, enum ckpt_how how, int64_t heads)
{
    if (how == CKPT_QKV || how == CKPT_QKV_TRANSPOSED)
        r = qkv_row(r, rows, heads);
    return is_transposed(how) ? r : r * cols;
}

/* Columns go in strips of a cache line, so that a transpose reads and writes whole lines. */
enum { STRIP = 16 };

void ckpt_from_theirs(float *ours, const float *theirs, int64_t rows, int64_t cols,
                      enum ckpt_how how, int64_t heads)
{
    const int64_t step = their_step(rows, how);

    for (int64_t c0 = 0; c0 < cols; c0 += STRIP)
        for (int64_t r = 0; r < rows; r++) {
            const float *from = theirs + their_row(r, rows, cols, how, heads);

            for (int64_t c = c0; c < cols && c < c0 + STRIP; c++)
                ours[r * cols + c] = from[c * step];
        }
}

void ckpt_to_theirs(float *theirs, const float *ours, int64_t rows, int64_t cols, enum ckpt_how how,
                    int64_t heads)
{
    const int64_t step = their_step(rows, how);

    for (int64_t c0 = 0; c0 < cols; c0 += STRIP)
        for (int64_t r = 0; r < rows; r++) {
            float *to = theirs + their_row(r, rows, cols, how, heads);

            for (int64_t c = c0; c < cols && c < c0 + STRIP; c++)
                to[c * step] = ours[r * cols + c];
        }
}

bool ckpt_is_widened(const char *dtype)
{
    return !strcmp(dtype, "F32") || !strcmp(dtype, "BF16") || !strcmp(dtype, "F16");
}

/* IEEE binary16 as binary32: exact. */
static uint32_t widen_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31,
                   fraction = h & 0x3ff;
    int shift;

    if (exponent == 31)
        return sign | 0x7f800000 | fraction << 13;
    if (exponent)
        return sign | (exponent + 112) << 23 | fraction << 13;
    if (!fraction)
        return sign;
    shift = __builtin_clz(fraction) - 21; /* subnormal: the leading one becomes the hidden bit */
    return sign | (uint32_t)(113 - shift) << 23 | (fraction << shift & 0x3ff) << 13;
}

void ckpt_widen(float *out, const void *in, const char *dtype, int64_t n)
{
    const unsigned char *p = in;
    const bool is_f16 = !strcmp(dtype, "F16");

    if (!strcmp(dtype, "F32")) {
        memcpy(out, in, (size_t)n * sizeof *out);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        uint32_t u;

        memcpy(&h, p + 2 * i, sizeof h);
        u = is_f16 ? widen_f16(h) : (uint32_t)h << 16;
        memcpy(&out[i], &u, sizeof u);
    }
}
