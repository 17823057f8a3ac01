/* binary.c - recognise binary formats for which a magic number is not sufficient. */
#define _GNU_SOURCE /* memmem */
#include <ctype.h>
#include <string.h>
#include "foreign/internal.h"

static bool contains(const struct foreign_prefix *f, const char *text)
{
    return memmem(f->p, f->n, text, strlen(text)) != NULL;
}

static uint64_t load_le(const unsigned char *p, int nbytes)
{
    uint64_t v = 0;

    for (int i = nbytes; i-- > 0;)
        v = v << 8 | p[i];
    return v;
}

/* ---- archives ---- */

/* A header of 512 bytes contains the sum of its bytes, in octal, at byte 148; this field counts as eight spaces. */
bool foreign_is_tar(const struct foreign_prefix *f)
{
    unsigned sum = 8 * ' ', stated = 0;
    size_t i;

    if (f->n < 512 || f->p[0] == 0)
        return false;
    for (i = 0; i < 512; i++)
        sum += i >= 148 && i < 156 ? 0 : f->p[i];
    for (i = 148; i < 156 && f->p[i] == ' ';)
        i++;
    for (; i < 156 && f->p[i] >= '0' && f->p[i] <= '7'; i++)
        stated = stated * 8 + (unsigned)(f->p[i] - '0');
    return sum == stated;
}

/* A .nemo file is a tar archive, which may be compressed by gzip. */
bool foreign_is_nemo(const struct foreign_prefix *f)
{
    const bool is_gzip = f->n >= 2 && memcmp(f->p, "\x1F\x8B", 2) == 0;
    const size_t n = strlen(f->path), suffix = strlen(".nemo");

    if (n >= suffix && strcmp(f->path + n - suffix, ".nemo") == 0)
        return is_gzip || foreign_is_tar(f);
    return foreign_is_tar(f) && (contains(f, "model_config.yaml") || contains(f, "model_weights"));
}

/* Return whether the name of the first member of a ZIP file ends in suffix. */
static bool first_member_ends_in(const struct foreign_prefix *f, const char *suffix)
{
    const size_t n = f->n < 30 ? 0 : load_le(f->p + 26, 2), k = strlen(suffix);

    return memcmp(f->p, "PK\3\4", 4) == 0 && n >= k && f->n - 30 >= n && memcmp(f->p + 30 + n - k, suffix, k) == 0;
}

bool foreign_is_torch_zip(const struct foreign_prefix *f)
{
    return f->n >= 4 && first_member_ends_in(f, "/data.pkl");
}

bool foreign_is_npz(const struct foreign_prefix *f)
{
    return f->n >= 4 && first_member_ends_in(f, ".npy");
}

/* ---- compressed data ---- */

/* BZh, the block size, then the magic number of a block or of the end. */
bool foreign_is_bzip2(const struct foreign_prefix *f)
{
    return f->n >= 10 && memcmp(f->p, "BZh", 3) == 0 &&
           (memcmp(f->p + 4, "1AY&SY", 6) == 0 || memcmp(f->p + 4, "\x17\x72\x45\x38\x50\x90", 6) == 0);
}

/* The header of RFC 1950 is two bytes, which can also be text; compressed data contains control characters. */
bool foreign_is_zlib(const struct foreign_prefix *f)
{
    return f->n >= 8 && f->p[0] == 0x78 && (f->p[0] << 8 | f->p[1]) % 31 == 0 && !(f->p[1] & 0x20) &&
           foreign_has_control(f);
}

/* A mark, the size of the metadata, which is a multiple of 8, and the metadata. */
bool foreign_is_arrow_stream(const struct foreign_prefix *f)
{
    return f->n >= 8 && memcmp(f->p, "\xFF\xFF\xFF\xFF", 4) == 0 && load_le(f->p + 4, 4) > 0 &&
           load_le(f->p + 4, 4) % 8 == 0 && f->p[7] == 0;
}

/* ---- models ---- */

/* The length of the header, then the header, a JSON object. */
bool foreign_is_safetensors(const struct foreign_prefix *f)
{
    return f->n >= 9 && f->p[8] == '{' && load_le(f->p, 8) >= 2 && load_le(f->p, 8) <= 100000000;
}

/* GGUF or a predecessor (ggml, ggmf, ggjt, of which the letters are in reverse order), followed by a small version. */
bool foreign_is_gguf(const struct foreign_prefix *f)
{
    return f->n >= 8 && ((memcmp(f->p, "GGUF", 4) == 0 && (f->p[5] == 0 || f->p[6] == 0)) ||
                         memcmp(f->p, "tjgg", 4) == 0 || memcmp(f->p, "lmgg", 4) == 0 || memcmp(f->p, "fmgg", 4) == 0);
}

/* Field 1 is a token, whose field 1 is a text and whose field 2 is a score, a float. */
bool foreign_is_sentencepiece(const struct foreign_prefix *f)
{
    return f->n >= 10 && f->p[0] == 0x0A && f->p[2] == 0x0A && f->p[1] < 128 && f->p[3] > 0 && f->p[3] + 2 <= f->p[1] &&
           f->n > 4u + f->p[3] && f->p[4 + f->p[3]] == 0x15;
}

/* Field 1 is the version, at least 3, and field 2 is the name of the program, such as pytorch. */
bool foreign_is_onnx(const struct foreign_prefix *f)
{
    return f->n >= 8 && f->p[0] == 0x08 && f->p[1] >= 3 && f->p[1] < 32 && f->p[2] == 0x12 && f->p[3] < 64 &&
           isalpha(f->p[4]) && isalpha(f->p[5]);
}

/* saved_model_schema_version is 1, and field 2 is a graph. */
bool foreign_is_saved_model(const struct foreign_prefix *f)
{
    return f->n >= 8 && memcmp(f->p, "\x08\x01\x12", 3) == 0;
}

/* A damaged JSON file may contain control characters, too. */
bool foreign_is_binary(const struct foreign_prefix *f)
{
    const size_t at = foreign_skip_space(f);

    return foreign_has_control(f) && at < f->n && f->p[at] != '{' && f->p[at] != '[';
}
