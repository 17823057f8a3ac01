/* char_class_simd.c - table lookups one character at a time, or eight at a time by AVX-512 gathers. */
#include "unicode/char_class_simd.h"

#ifdef __x86_64__
#    include <immintrin.h>
#endif

#include "unicode/utf8.h"

static struct meg_class_masks masks_scalar(const unsigned char table[MEG_CLASS_TABLE_BYTES], const char *s,
                                           uint64_t starts)
{
    struct meg_class_masks k = { 0 };

    for (; starts; starts &= starts - 1) {
        int i = __builtin_ctzll(starts);
        int32_t cp;

        meg_utf8_decode_unchecked(s + i, &cp);
        if (cp >= 0x10000) {
            k.non_bmp |= (uint64_t)1 << i;
            continue;
        }
        k.class_bit[0] |= (uint64_t)(table[cp] & 1) << i;
        k.class_bit[1] |= (uint64_t)(table[cp] >> 1) << i;
    }
    return k;
}

#ifdef __x86_64__

#    define AVX512 __attribute__((target("avx512bw,avx512vl,avx512vbmi2,bmi2")))

/* Convert eight bytes to 32-bit integers. */
AVX512 static inline __m256i to_i32(const unsigned char *byte)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)byte));
}

/* Decode eight characters of two or three bytes a, b, c; c is ignored for characters of two bytes. */
AVX512 static inline __m256i decode_2_or_3(__m256i a, __m256i b, __m256i c)
{
    const __m256i low6 = _mm256_set1_epi32(0x3F), low5 = _mm256_set1_epi32(0x1F), low4 = _mm256_set1_epi32(0x0F);
    __mmask8 is_two = _mm256_cmplt_epi32_mask(a, _mm256_set1_epi32(0xE0));
    __m256i two = _mm256_slli_epi32(a & low5, 6) | (b & low6);
    __m256i three = _mm256_slli_epi32(a & low4, 12) | _mm256_slli_epi32(b & low6, 6) | (c & low6);

    return _mm256_mask_mov_epi32(three, is_two, two);
}

AVX512 static struct meg_class_masks masks_avx512(const unsigned char table[MEG_CLASS_TABLE_BYTES], const char *s,
                                                  uint64_t starts)
{
    const __m512i four_bytes = _mm512_set1_epi8((char)0xF0);
    const __m256i bit0 = _mm256_set1_epi32(1), bit1 = _mm256_set1_epi32(2);
    const int n = __builtin_popcountll(starts);
    struct meg_class_masks k = { .non_bmp = starts & _mm512_cmpge_epu8_mask(_mm512_loadu_si512(s), four_bytes) };
    unsigned char byte[3][64]; /* the first, second and third bytes of the n characters */

    for (int i = 0; i < 3; i++)
        _mm512_storeu_si512(byte[i], _mm512_maskz_compress_epi8(starts, _mm512_loadu_si512(s + i)));
    for (int i = 0; i < n; i += 8) {
        __m256i cp = decode_2_or_3(to_i32(byte[0] + i), to_i32(byte[1] + i), to_i32(byte[2] + i));
        __m256i class = _mm256_i32gather_epi32((const int *)(const void *)table, cp, 1);

        k.class_bit[0] |= (uint64_t)_mm256_test_epi32_mask(class, bit0) << i;
        k.class_bit[1] |= (uint64_t)_mm256_test_epi32_mask(class, bit1) << i;
    }
    for (int i = 0; i < 2; i++)
        k.class_bit[i] = _pdep_u64(k.class_bit[i], starts) & ~k.non_bmp;
    return k;
}

#endif

int meg_class_masks_variants(meg_class_masks_fn *variant[2])
{
    int n = 0;

#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("bmi2"))
        variant[n++] = masks_avx512;
#endif
    variant[n++] = masks_scalar;
    return n;
}
