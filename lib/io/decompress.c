/* decompress.c - decompression by a table with one row per format: its magic number and its decoder. */
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
#include "foreign/foreign.h"

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
    char head[MEG_FOREIGN_PREFIX]; /* the first decoded bytes; [head_pos, nhead) are not returned yet */
    size_t head_pos, nhead;
};

/* Error codes of decoders. */
enum { CORRUPT = -1, NO_MEMORY = -2, WINDOW_TOO_LARGE = -3 };

enum { MAGIC_BYTES = 6 }; /* number of bytes at the beginning of a file that identify its format */

struct format {
    const char *name;
    unsigned char magic[MAGIC_BYTES];
    size_t nmagic;
    /* Decode into `out` [n]; update u->pos and u->is_open.  Returns the number of decoded bytes, or an error code. */
    int64_t (*decode)(struct meg_decompressor *u, char *out, int64_t n);
    bool is_padded; /* zeros may follow a stream */
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

/* The magic numbers contain bytes that do not occur in text. */
static const struct format formats[] = {
    { "gzip", { 0x1F, 0x8B }, 2, gzip_decode, true },
    { "zstd", { 0x28, 0xB5, 0x2F, 0xFD }, 4, zstd_decode, false },
    { "xz", { 0xFD, '7', 'z', 'X', 'Z', 0 }, 6, xz_decode, true },
    { "plain", { 0 }, 0, plain_decode, false },
};

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
    default:
        return meg_fail(e, MEG_EFORMAT, "%s: the %s data is corrupt; copy or download the file again", u->name,
                        u->format->name);
    }
}

/* Decode at most n > 0 bytes.  Return their number, 0 at the end of the file, or an error code. */
static int64_t read_decoded(struct meg_decompressor *u, char *out, int64_t n, struct meg_err *e)
{
    for (;;) {
        int64_t got = 0;
        int r;

        while (u->format->is_padded && !u->is_open && u->pos < u->n && u->input[u->pos] == 0)
            u->pos++;
        if (u->pos < u->n || u->is_open)
            got = u->format->decode(u, out, n);
        if (got < 0)
            return fail_decode(u, got, e);
        if (got > 0)
            return got;
        if (u->is_eof && u->is_open)
            return meg_fail(e, MEG_EFORMAT, "%s: the %s data is truncated; copy the file again", u->name,
                            u->format->name);
        if (u->is_eof && u->pos == u->n)
            return 0;
        if (u->format->decode == plain_decode && u->pos == u->n)
            return read_some(u, out, (size_t)n, e);
        if (!u->is_eof && u->n - u->pos < INPUT_BYTES && (r = refill(u, e)) < 0)
            return r;
    }
}

/* Detect the format, and create its decoder. */
static int open_decoder(struct meg_decompressor *u, struct meg_err *e)
{
    int r = 0;

    while (u->n < MAGIC_BYTES && !u->is_eof && (r = refill(u, e)) == 0)
        ;
    if (r < 0)
        return r;
    u->format = formats;
    while (u->n < u->format->nmagic || memcmp(u->input, u->format->magic, u->format->nmagic) != 0)
        u->format++;
    if (u->format->decode == gzip_decode && inflateInit2(&u->gz, 16 + MAX_WBITS) != Z_OK)
        meg_die(MEG_EFAIL, "out of memory: cannot decompress gzip");
    if (u->format->decode == zstd_decode && !(u->zst = ZSTD_createDStream()))
        meg_die(MEG_EFAIL, "out of memory: cannot decompress zstd");
    return 0;
}

/* Decode the first bytes of the file into u->head, and check that they are text. */
static int read_head(struct meg_decompressor *u, struct meg_err *e)
{
    int64_t got = 1;

    for (; got > 0 && u->nhead < sizeof u->head; u->nhead += (size_t)got)
        if ((got = read_decoded(u, u->head + u->nhead, (int64_t)(sizeof u->head - u->nhead), e)) < 0)
            return (int)got;
    return meg_foreign_check(u->name, u->head, u->nhead, MEG_EXPECT_TEXT, e);
}

int meg_decompressor_open(struct meg_decompressor **out, int fd, const char *name, struct meg_err *e)
{
    struct meg_decompressor *u = meg_new(sizeof *u);
    int r;

    u->fd = fd;
    u->name = name;
    u->input = meg_new(INPUT_BYTES);
    if ((r = open_decoder(u, e)) < 0 || (r = read_head(u, e)) < 0) {
        meg_decompressor_close(u);
        return r;
    }
    *out = u;
    return 0;
}

int64_t meg_decompressor_read(struct meg_decompressor *u, char *out, int64_t n, struct meg_err *e)
{
    const size_t left = u->nhead - u->head_pos, k = left < (size_t)n ? left : (size_t)n;

    if (k == 0)
        return read_decoded(u, out, n, e);
    memcpy(out, u->head + u->head_pos, k);
    u->head_pos += k;
    return (int64_t)k;
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
