/* class_masks.c - classify 64 bytes of text in one AVX-512 register, two AVX2 registers or four 16-byte vectors. */
#include "tokenizer/pretokenize/class_masks.h"
#include <string.h>
#ifdef __x86_64__
#    include <immintrin.h>
#endif

#include "unicode/simd.h"
#include "unicode/utf8.h"

#ifdef __x86_64__

#    define AVX512 __attribute__((target("avx512bw")))
#    define AVX2 __attribute__((target("avx2")))

/* Return a mask of the bytes of c with a value from first to first+n-1. */
AVX512 static inline uint64_t in512(__m512i c, char first, char n)
{
    return _mm512_cmplt_epu8_mask(_mm512_sub_epi8(c, _mm512_set1_epi8(first)), _mm512_set1_epi8(n));
}

AVX512 static inline uint64_t is512(__m512i c, char byte)
{
    return _mm512_cmpeq_epi8_mask(c, _mm512_set1_epi8(byte));
}

AVX512 static uint64_t classify_avx512(const char *s, struct class_masks *m)
{
    __m512i c = _mm512_loadu_si512(s);

    m->letter = in512(_mm512_or_si512(c, _mm512_set1_epi8(0x20)), 'a', 26);
    m->number = in512(c, '0', 10);
    m->space_char = is512(c, ' ');
    m->space = in512(c, '\t', 5) | m->space_char;
    m->eol = is512(c, '\r') | is512(c, '\n');
    m->quote = is512(c, '\'');
    m->tail = in512(c, (char)0x80, 0x40);
    return _mm512_movepi8_mask(c);
}

AVX2 static inline uint64_t in256(__m256i c, char first, char n)
{
    __m256i d = _mm256_sub_epi8(c, _mm256_set1_epi8(first));

    return (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_min_epu8(d, _mm256_set1_epi8((char)(n - 1))), d));
}

AVX2 static inline uint64_t is256(__m256i c, char byte)
{
    return (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(c, _mm256_set1_epi8(byte)));
}

AVX2 static uint64_t classify_avx2(const char *s, struct class_masks *m)
{
    uint64_t high = 0;

    memset(m, 0, sizeof *m);
    for (int k = 0; k < 64; k += 32) {
        __m256i c = _mm256_loadu_si256((const __m256i *)(const void *)(s + k));

        m->letter |= in256(_mm256_or_si256(c, _mm256_set1_epi8(0x20)), 'a', 26) << k;
        m->number |= in256(c, '0', 10) << k;
        m->space_char |= is256(c, ' ') << k;
        m->space |= in256(c, '\t', 5) << k;
        m->eol |= (is256(c, '\r') | is256(c, '\n')) << k;
        m->quote |= is256(c, '\'') << k;
        m->tail |= in256(c, (char)0x80, 0x40) << k;
        high |= (uint64_t)(uint32_t)_mm256_movemask_epi8(c) << k;
    }
    m->space |= m->space_char;
    return high;
}

#endif

static uint64_t classify_any(const char *s, struct class_masks *m)
{
    uint64_t high = 0;

    memset(m, 0, sizeof *m);
    for (int k = 0; k < 64; k += 16) {
        v16 c;

        memcpy(&c, s + k, 16);
        m->letter |= meg_movemask((v16)((c | 0x20) - 'a' < 26)) << k;
        m->number |= meg_movemask((v16)(c - '0' < 10)) << k;
        m->space_char |= meg_movemask((v16)(c == ' ')) << k;
        m->space |= meg_movemask((v16)(c - '\t' < 5)) << k;
        m->eol |= meg_movemask((v16)((c == '\r') | (c == '\n'))) << k;
        m->quote |= meg_movemask((v16)(c == '\'')) << k;
        m->tail |= meg_movemask((v16)(c - 0x80 < 0x40)) << k;
        high |= meg_movemask((v16)(c > 0x7F)) << k;
    }
    m->space |= m->space_char;
    return high;
}

/* Extend a mask of the first bytes of characters to all bytes of the characters. */
static inline uint64_t spread_to_character(uint64_t first, uint64_t tail)
{
    for (int k = 0; k < 3; k++)
        first |= first << 1 & tail;
    return first;
}

/* Classify the non-ASCII characters of the block at s.  high is the mask of their bytes. */
static void classify_high(struct class_masks_reader *r, const char *s, uint64_t high, struct class_masks *m)
{
    struct meg_class_masks class = r->char_class(r->table, s, high & ~m->tail);

    for (uint64_t wide = class.non_bmp; wide; wide &= wide - 1) {
        int at = __builtin_ctzll(wide);
        int32_t cp;

        meg_utf8_decode_unchecked(s + at, &cp);
        for (int i = 0; i < 2; i++)
            class.class_bit[i] |= (uint64_t)(meg_char_class_of(cp) >> i & 1) << at;
    }
    for (int i = 0; i < 2; i++) {
        class.class_bit[i] = spread_to_character(class.class_bit[i] | (r->carry[i] & m->tail), m->tail);
        r->carry[i] = class.class_bit[i] >> 63;
    }
    m->letter |= class.class_bit[0] & ~class.class_bit[1];
    m->number |= class.class_bit[1] & ~class.class_bit[0];
    m->space |= class.class_bit[0] & class.class_bit[1];
}

/* Classify a block.  MEG_CLASS_TEXT_BYTES bytes at s must be readable. */
static void classify(struct class_masks_reader *r, const char *s, struct class_masks *m)
{
    uint64_t high = r->classify(s, m);

    if (high)
        classify_high(r, s, high, m);
    m->other = ~(m->letter | m->number | m->space);
}

int meg_masks_variants(meg_masks_fn *variant[3])
{
    int n = 0;

#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512bw"))
        variant[n++] = classify_avx512;
    if (__builtin_cpu_supports("avx2"))
        variant[n++] = classify_avx2;
#endif
    variant[n++] = classify_any;
    return n;
}

struct class_masks_reader meg_masks_begin(const char *text, int64_t n)
{
    struct class_masks_reader r = { .text = text, .n = n, .table = meg_char_class_table() };
    meg_masks_fn *variant[3];
    meg_class_masks_fn *char_class[2];

    meg_masks_variants(variant);
    meg_class_masks_variants(char_class);
    r.classify = variant[0];
    r.char_class = char_class[0];
    return r;
}

void meg_masks_next(struct class_masks_reader *r, struct class_masks *m)
{
    int64_t left = r->n - r->at;

    if (left >= MEG_CLASS_TEXT_BYTES) {
        classify(r, r->text + r->at, m);
    } else if (left > 0) {
        char end[MEG_CLASS_TEXT_BYTES] = { 0 };

        memcpy(end, r->text + r->at, (size_t)left);
        classify(r, end, m);
        if (left < 64)
            m->other &= ((uint64_t)1 << left) - 1;
    } else {
        memset(m, 0, sizeof *m);
    }
    r->at += 64;
}
