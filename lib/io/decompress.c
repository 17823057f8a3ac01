/*
 * One table row a format: how it begins, and a function that turns what is at in into what goes to
 * out.  Several compressed streams one after the other are one file, in every format.  A format that
 * is known but not read has what to do about it in place of the function.
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

enum { RAW = 256 << 10 };

struct meg_decompressor {
    int fd;
    const char *name;
    const struct format *format;
    unsigned char *raw; /* [RAW]; bytes [at, n) are still to be used */
    size_t at, n;
    bool is_end;  /* the file has no more bytes */
    bool is_open; /* in the middle of a compressed stream */
    z_stream gz;
    lzma_stream xz;
    ZSTD_DStream *zst;
};

/* Why a stream cannot be decoded. */
enum { CORRUPT = -1, NO_MEMORY = -2, TOO_WIDE = -3 };

enum { MAGIC_END = 10 }; /* how far the first bytes of a file have to be looked at */

struct format {
    const char *name;
    size_t at; /* of magic in the file */
    unsigned char magic[8];
    size_t nmagic;
    /* How much of to was filled; u->at and u->is_open move on.  Or one of the reasons above. */
    int64_t (*some)(struct meg_decompressor *u, char *to, int64_t n);
    bool is_padded; /* zeros may follow a stream */
    const char *remedy;
};

static int64_t plain_decode(struct meg_decompressor *u, char *to, int64_t n)
{
    size_t some = u->n - u->at < (size_t)n ? u->n - u->at : (size_t)n;

    memcpy(to, u->raw + u->at, some);
    u->at += some;
    return (int64_t)some;
}

static int64_t gzip_decode(struct meg_decompressor *u, char *to, int64_t n)
{
    int r;

    if (!u->is_open && inflateReset2(&u->gz, 16 + MAX_WBITS) != Z_OK)
        return CORRUPT;
    u->is_open = true;
    u->gz.next_in = u->raw + u->at;
    u->gz.avail_in = (unsigned)(u->n - u->at);
    u->gz.next_out = (unsigned char *)to;
    u->gz.avail_out = (unsigned)(n < INT32_MAX ? n : INT32_MAX);
    r = inflate(&u->gz, Z_NO_FLUSH);
    if (r != Z_OK && r != Z_STREAM_END && r != Z_BUF_ERROR)
        return r == Z_MEM_ERROR ? NO_MEMORY : CORRUPT;
    u->is_open = r != Z_STREAM_END;
    u->at = u->n - u->gz.avail_in;
    return (char *)u->gz.next_out - to;
}

static int64_t zstd_error(size_t r)
{
    switch (ZSTD_getErrorCode(r)) {
    case ZSTD_error_memory_allocation: return NO_MEMORY;
    case ZSTD_error_frameParameter_windowTooLarge: return TOO_WIDE;
    default: return CORRUPT;
    }
}

static int64_t zstd_decode(struct meg_decompressor *u, char *to, int64_t n)
{
    ZSTD_inBuffer in = { u->raw, u->n, u->at };
    ZSTD_outBuffer out = { to, (size_t)n, 0 };
    size_t r = ZSTD_decompressStream(u->zst, &out, &in);

    if (ZSTD_isError(r))
        return zstd_error(r);
    u->is_open = r != 0;
    u->at = in.pos;
    return (int64_t)out.pos;
}

static int64_t xz_decode(struct meg_decompressor *u, char *to, int64_t n)
{
    lzma_ret r = u->is_open ? LZMA_OK : lzma_stream_decoder(&u->xz, UINT64_MAX, 0);

    if (r != LZMA_OK)
        return r == LZMA_MEM_ERROR ? NO_MEMORY : CORRUPT;
    u->is_open = true;
    u->xz.next_in = u->raw + u->at;
    u->xz.avail_in = u->n - u->at;
    u->xz.next_out = (unsigned char *)to;
    u->xz.avail_out = (size_t)n;
    r = lzma_code(&u->xz, LZMA_RUN);
    if (r != LZMA_OK && r != LZMA_STREAM_END && r != LZMA_BUF_ERROR)
        return r == LZMA_MEM_ERROR ? NO_MEMORY : CORRUPT;
    u->is_open = r != LZMA_STREAM_END;
    u->at = u->n - u->xz.avail_in;
    return (char *)u->xz.next_out - to;
}

#define JSON_LINES "write its texts as JSON lines first"

/* Magic of letters alone goes on until bytes that no text begins with, or as good as none. */
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
    return u->n >= f->at + f->nmagic && memcmp(u->raw + f->at, f->magic, f->nmagic) == 0;
}

static int64_t read_some(struct meg_decompressor *u, void *to, size_t n, struct meg_err *e)
{
    ssize_t got;

    do
        got = read(u->fd, to, n);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return meg_fail_errno(e, "%s", u->name);
    u->is_end = got == 0;
    return got;
}

/* Bring more bytes behind those that are still to be used. */
static int fill(struct meg_decompressor *u, struct meg_err *e)
{
    int64_t got;

    memmove(u->raw, u->raw + u->at, u->n - u->at);
    u->n -= u->at;
    u->at = 0;
    if ((got = read_some(u, u->raw + u->n, RAW - u->n, e)) < 0)
        return (int)got;
    u->n += (size_t)got;
    return MEG_OK;
}

int meg_decompressor_open(struct meg_decompressor **out, int fd, const char *name, struct meg_err *e)
{
    struct meg_decompressor *u = meg_new(sizeof *u);
    int r = MEG_OK;

    u->fd = fd;
    u->name = name;
    u->raw = meg_new(RAW);
    while (u->n < MAGIC_END && !u->is_end && (r = fill(u, e)) == MEG_OK)
        ;
    for (u->format = formats; !has_magic(u, u->format);)
        u->format++;
    if (r == MEG_OK && !u->format->some)
        r = meg_fail(e, MEG_EFORMAT, "%s: this looks like %s, which is not read here; %s", name, u->format->name,
                     u->format->remedy);
    if (r < 0) {
        meg_decompressor_close(u);
        return r;
    }
    if (u->format->some == gzip_decode && inflateInit2(&u->gz, 16 + MAX_WBITS) != Z_OK)
        meg_die(MEG_EFAIL, "no memory to read gzip");
    if (u->format->some == zstd_decode && !(u->zst = ZSTD_createDStream()))
        meg_die(MEG_EFAIL, "no memory to read zstd");
    *out = u;
    return MEG_OK;
}

static void skip_padding(struct meg_decompressor *u)
{
    while (u->at < u->n && u->raw[u->at] == 0)
        u->at++;
}

static int refuse(const struct meg_decompressor *u, int64_t reason, struct meg_err *e)
{
    switch (reason) {
    case NO_MEMORY:
        return meg_fail(e, MEG_EFAIL, "%s: not enough memory to decompress this %s data", u->name, u->format->name);
    case TOO_WIDE:
        return meg_fail(e, MEG_EFORMAT,
                        "%s: the %s data needs a window of more than 128 MiB; decompress it first: zstd -dc --long=31",
                        u->name, u->format->name);
    default: return meg_fail(e, MEG_EFORMAT, "%s: corrupt %s data", u->name, u->format->name);
    }
}

int64_t meg_decompressor_read(struct meg_decompressor *u, char *to, int64_t n, struct meg_err *e)
{
    for (;;) {
        int64_t got = 0;
        int r;

        if (u->format->is_padded && !u->is_open)
            skip_padding(u);
        if (u->at < u->n || u->is_open)
            got = u->format->some(u, to, n);
        if (got < 0)
            return refuse(u, got, e);
        if (got > 0)
            return got;
        if (u->is_end && u->is_open)
            return meg_fail(e, MEG_EFORMAT, "%s: the %s data is cut off", u->name, u->format->name);
        if (u->is_end && u->at == u->n)
            return 0;
        if (u->format->some == plain_decode && u->at == u->n)
            return read_some(u, to, (size_t)n, e);
        if (!u->is_end && u->n - u->at < RAW && (r = fill(u, e)) < 0)
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
    free(u->raw);
    free(u);
}
