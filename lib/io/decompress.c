/*
 * decompress.c - decompression by a table with one row per format: its magic number, and its decoder or, if the format
 * is not supported, a hint.
 */
#include "io/decompress.h"

#include <errno.h>
#include <lzma.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "base/mem.h"

enum { INPUT_BYTES = 256 << 10 };

struct meg_decompressor {
    int fd;
    const char *name;
    const struct format *format;
    unsigned char *input; /* [INPUT_BYTES]; bytes [pos, n) are not decoded yet */
    size_t pos, n;
    bool is_eof;
    bool is_open; /* the position is inside a compressed stream */
    z_stream gz;
    lzma_stream xz;
    ZSTD_DStream *zst;
};

/* Error codes of decoders. */
enum { CORRUPT = -1, NO_MEMORY = -2, WINDOW_TOO_LARGE = -3 };

enum { MAGIC_BYTES = 10 }; /* number of bytes at the beginning of a file that identify its format */

struct format {
    const char *name;
    size_t offset; /* byte offset of magic in the file */
    unsigned char magic[8];
    size_t nmagic;
    /* Decode into `out` [n]; update u->pos and u->is_open.  Returns the number of decoded bytes, or an error code. */
    int64_t (*decode)(struct meg_decompressor *u, char *out, int64_t n);
    bool is_padded; /* zeros may follow a stream */
    const char *hint;
};

static int64_t plain_decode(struct meg_decompressor *u, char *out, int64_t n)
{
    size_t k = u->n - u->pos < (size_t)n ? u->n - u->pos : (size_t)n;

    memcpy(out, u->input + u->pos, k);
    u->pos += k;
    return (int64_t)k;
}

static int64_t gzip_decode(struct meg_decompressor *u, char *out, int64_t n)
{
    int r;

    if (!u->is_open && inflateReset2(&u->gz, 16 + MAX_WBITS) != Z_OK)
        return CORRUPT;
    u->is_open = true;
    u->gz.next_in = u->input + u->pos;
    u->gz.avail_in = (unsigned)(u->n - u->pos);
    u->gz.next_out = (unsigned char *)out;
    u->gz.avail_out = (unsigned)(n < INT32_MAX ? n : INT32_MAX);
    r = inflate(&u->gz, Z_NO_FLUSH);
    if (r != Z_OK && r != Z_STREAM_END && r != Z_BUF_ERROR)
        return r == Z_MEM_ERROR ? NO_MEMORY : CORRUPT;
    u->is_open = r != Z_STREAM_END;
    u->pos = u->n - u->gz.avail_in;
    return (char *)u->gz.next_out - out;
}

static int64_t zstd_error(size_t r)
{
    switch (ZSTD_getErrorCode(r)) {
    case ZSTD_error_memory_allocation: return NO_MEMORY;
    case ZSTD_error_frameParameter_windowTooLarge: return WINDOW_TOO_LARGE;
    default: return CORRUPT;
    }
}

static int64_t zstd_decode(struct meg_decompressor *u, char *out, int64_t n)
{
    ZSTD_inBuffer in = { u->input, u->n, u->pos };
    ZSTD_outBuffer to = { out, (size_t)n, 0 };
    size_t r = ZSTD_decompressStream(u->zst, &to, &in);

    if (ZSTD_isError(r))
        return zstd_error(r);
    u->is_open = r != 0;
    u->pos = in.pos;
    return (int64_t)to.pos;
}

static int64_t xz_decode(struct meg_decompressor *u, char *out, int64_t n)
{
    lzma_ret r = u->is_open ? LZMA_OK : lzma_stream_decoder(&u->xz, UINT64_MAX, 0);

    if (r != LZMA_OK)
        return r == LZMA_MEM_ERROR ? NO_MEMORY : CORRUPT;
    u->is_open = true;
    u->xz.next_in = u->input + u->pos;
    u->xz.avail_in = u->n - u->pos;
    u->xz.next_out = (unsigned char *)out;
    u->xz.avail_out = (size_t)n;
    r = lzma_code(&u->xz, LZMA_RUN);
    if (r != LZMA_OK && r != LZMA_STREAM_END && r != LZMA_BUF_ERROR)
        return r == LZMA_MEM_ERROR ? NO_MEMORY : CORRUPT;
    u->is_open = r != LZMA_STREAM_END;
    u->pos = u->n - u->xz.avail_in;
    return (char *)u->xz.next_out - out;
}

#define JSON_LINES "convert it to JSON lines first"

/* The magic numbers are long or contain bytes that do not occur in text, so text practically never matches one. */
static const struct format formats[] = {
    { "gzip", 0, { 0x1F, 0x8B }, 2, gzip_decode, true, NULL },
    { "zstd", 0, { 0x28, 0xB5, 0x2F, 0xFD }, 4, zstd_decode, false, NULL },
    { "xz", 0, { 0xFD, '7', 'z', 'X', 'Z', 0 }, 6, xz_decode, true, NULL },
    { "bzip2", 4, { '1', 'A', 'Y', '&', 'S', 'Y' }, 6, NULL, false, "decompress it first: bzip2 -dc" },
    { "lz4", 0, { 0x04, 0x22, 0x4D, 0x18 }, 4, NULL, false, "decompress it first: lz4 -dc" },
    { "ZIP", 0, { 'P', 'K', 3, 4 }, 4, NULL, false, "extract it first: unzip -p" },
    { "Parquet", 0, { 'P', 'A', 'R', '1', 0x15 }, 5, NULL, false, JSON_LINES },
    { "Arrow", 0, { 'A', 'R', 'R', 'O', 'W', '1', 0, 0 }, 8, NULL, false, JSON_LINES },
    { "plain", 0, { 0 }, 0, plain_decode, false, NULL },
};

static bool has_magic(const struct meg_decompressor *u, const struct format *f)
{
    return u->n >= f->offset + f->nmagic && memcmp(u->input + f->offset, f->magic, f->nmagic) == 0;
}

static int64_t read_some(struct meg_decompressor *u, void *out, size_t n, struct meg_err *e)
{
    ssize_t got;

    do
        got = read(u->fd, out, n);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return meg_fail_errno(e, "%s", u->name);
    u->is_eof = got == 0;
    return got;
}

/* Read from the file, and append the bytes to the undecoded input. */
static int refill(struct meg_decompressor *u, struct meg_err *e)
{
    int64_t got;

    memmove(u->input, u->input + u->pos, u->n - u->pos);
    u->n -= u->pos;
    u->pos = 0;
    if ((got = read_some(u, u->input + u->n, INPUT_BYTES - u->n, e)) < 0)
        return (int)got;
    u->n += (size_t)got;
    return 0;
}

int meg_decompressor_open(struct meg_decompressor **out, int fd, const char *name, struct meg_err *e)
{
    struct meg_decompressor *u = meg_new(sizeof *u);
    int r = 0;

    u->fd = fd;
    u->name = name;
    u->input = meg_new(INPUT_BYTES);
    while (u->n < MAGIC_BYTES && !u->is_eof && (r = refill(u, e)) == 0)
        ;
    for (u->format = formats; !has_magic(u, u->format);)
        u->format++;
    if (r == 0 && !u->format->decode)
        r = meg_fail(e, MEG_EFORMAT, "%s: the file is in %s format, which is not supported; %s", name, u->format->name,
                     u->format->hint);
    if (r < 0) {
        meg_decompressor_close(u);
        return r;
    }
    if (u->format->decode == gzip_decode && inflateInit2(&u->gz, 16 + MAX_WBITS) != Z_OK)
        meg_die(MEG_EFAIL, "out of memory: cannot decompress gzip");
    if (u->format->decode == zstd_decode && !(u->zst = ZSTD_createDStream()))
        meg_die(MEG_EFAIL, "out of memory: cannot decompress zstd");
    *out = u;
    return 0;
}

static void skip_padding(struct meg_decompressor *u)
{
    while (u->pos < u->n && u->input[u->pos] == 0)
        u->pos++;
}

static int fail_decode(const struct meg_decompressor *u, int64_t reason, struct meg_err *e)
{
    switch (reason) {
    case NO_MEMORY:
        return meg_fail(e, MEG_EFAIL, "%s: not enough memory to decompress the %s data; decompress the file first",
                        u->name, u->format->name);
    case WINDOW_TOO_LARGE:
        return meg_fail(e, MEG_EFORMAT,
                        "%s: the %s data needs a window of more than 128 MiB; decompress it first: zstd -dc --long=31",
                        u->name, u->format->name);
    default: return meg_fail(e, MEG_EFORMAT, "%s: the %s data is corrupt", u->name, u->format->name);
    }
}

int64_t meg_decompressor_read(struct meg_decompressor *u, char *out, int64_t n, struct meg_err *e)
{
    for (;;) {
        int64_t got = 0;
        int r;

        if (u->format->is_padded && !u->is_open)
            skip_padding(u);
        if (u->pos < u->n || u->is_open)
            got = u->format->decode(u, out, n);
        if (got < 0)
            return fail_decode(u, got, e);
        if (got > 0)
            return got;
        if (u->is_eof && u->is_open)
            return meg_fail(e, MEG_EFORMAT, "%s: the %s data is truncated", u->name, u->format->name);
        if (u->is_eof && u->pos == u->n)
            return 0;
        if (u->format->decode == plain_decode && u->pos == u->n)
            return read_some(u, out, (size_t)n, e);
        if (!u->is_eof && u->n - u->pos < INPUT_BYTES && (r = refill(u, e)) < 0)
            return r;
    }
}

void meg_decompressor_close(struct meg_decompressor *u)
{
    if (!u)
        return;
    inflateEnd(&u->gz);
    lzma_end(&u->xz);
    ZSTD_freeDStream(u->zst);
    free(u->input);
    free(u);
}
