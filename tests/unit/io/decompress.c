/* Decompression: padding, unsupported formats, and memory limits. */
#include "child.h"

#include <lzma.h>
#include <sys/resource.h>
#include <zlib.h>
#include <zstd.h>

#include "base/mem.h"
#include "io/decompress.h"

#define TEXT "{\"text\":\"one\"}\n"

/* Decompress bytes [n], from a file, to *out; return 0 or an error. */
static int unpack(const void *bytes, size_t n, struct meg_str *out, struct meg_err *e)
{
    FILE *f = tmpfile();
    struct meg_decompressor *u;
    char some[7];
    int64_t got = 0;
    int r;

    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fflush(f), 0);
    assert_int_equal(lseek(fileno(f), 0, SEEK_SET), 0);
    *out = (struct meg_str){ 0 };
    if ((r = meg_decompressor_open(&u, fileno(f), "in", e)) < 0)
        goto out;
    while ((got = meg_decompressor_read(u, some, sizeof some, e)) > 0)
        meg_str_add(out, some, (size_t)got);
    r = (int)got;
    meg_decompressor_close(u);
out:
    fclose(f);
    return r;
}

static void holds(const struct meg_str *packed, const char *want)
{
    struct meg_str out;
    struct meg_err e;

    if (unpack(packed->s, packed->n, &out, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(out.n, strlen(want));
    assert_memory_equal(out.s, want, out.n);
    meg_str_free(&out);
}

static void refuses(const void *bytes, size_t n, int code, const char *message)
{
    struct meg_str out;
    struct meg_err e;

    assert_int_equal(unpack(bytes, n, &out, &e), code);
    assert_string_equal(e.msg, message);
    meg_str_free(&out);
}

/* ---- compressed text ---- */

static void add_gzip(struct meg_str *s)
{
    unsigned char out[200];
    z_stream z = {
        .next_in = (unsigned char *)TEXT, .avail_in = sizeof TEXT - 1, .next_out = out, .avail_out = sizeof out
    };

    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    meg_str_add(s, out, sizeof out - z.avail_out);
    deflateEnd(&z);
}

static void add_xz(struct meg_str *s)
{
    unsigned char out[300];
    size_t n = 0;

    assert_int_equal(lzma_easy_buffer_encode(0, LZMA_CHECK_CRC32, NULL, (const unsigned char *)TEXT, sizeof TEXT - 1,
                                             out, &n, sizeof out),
                     LZMA_OK);
    meg_str_add(s, out, n);
}

/* Set the dictionary size that the single block requires to 4 GiB. */
static void enlarge_xz_dictionary(struct meg_str *s)
{
    unsigned char *head = (unsigned char *)s->s + 12; /* after the header of the stream */
    const size_t n = 4 * ((size_t)head[0] + 1);
    uint32_t crc;
    size_t i = 2;

    while (head[i] != 0x21 || head[i + 1] != 1) /* LZMA2, with one byte of properties */
        assert_true(++i < n - 4);
    head[i + 2] = 40;
    crc = lzma_crc32(head, n - 4, 0);
    memcpy(head + n - 4, &crc, 4);
}

/* Append TEXT as a zstd stream without content size; set its byte 5, so that the window has 2^window_log bytes. */
static void add_zstd(struct meg_str *s, int window_log)
{
    ZSTD_CCtx *c = ZSTD_createCCtx();
    char out[300];
    ZSTD_inBuffer in = { TEXT, sizeof TEXT - 1, 0 };
    ZSTD_outBuffer to = { out, sizeof out, 0 };

    assert_int_equal(ZSTD_compressStream2(c, &to, &in, ZSTD_e_flush), 0);
    assert_int_equal(ZSTD_compressStream2(c, &to, &in, ZSTD_e_end), 0);
    assert_int_equal(out[4] & 0xE0, 0);
    out[5] = (char)((window_log - 10) << 3);
    meg_str_add(s, out, to.pos);
    ZSTD_freeCCtx(c);
}

static void zero_padding_after_a_stream_is_skipped(void **state)
{
    static const char zeros[1 << 20];

    (void)state;
    for (int i = 0; i < 2; i++)
        for (size_t n = 4; n <= sizeof zeros; n *= 16) {
            void (*const add)(struct meg_str *) = i ? add_xz : add_gzip;
            struct meg_str s = { 0 };

            add(&s);
            meg_str_add(&s, zeros, n);
            holds(&s, TEXT);
            add(&s);
            holds(&s, TEXT TEXT);
            meg_str_add(&s, zeros, n);
            holds(&s, TEXT TEXT);
            meg_str_add(&s, "no stream at all", 16);
            refuses(s.s, s.n, MEG_EFORMAT,
                    i ? "in: the xz data is corrupt; copy or download the file again"
                      : "in: the gzip data is corrupt; copy or download the file again");
            meg_str_free(&s);
        }
}

/* ---- unsupported formats ---- */

#define BYTES(s) (s), sizeof(s) - 1
#define FOUND(what, remedy) "in: found " what ", expected text or JSON lines; " remedy

#define TO_JSON_LINES "convert it to JSON lines, for example with pandas or pyarrow"

static void unsupported_formats_are_named(void **state)
{
    (void)state;
    refuses(BYTES("BZh91AY&SY\0\0"), MEG_EFORMAT, FOUND("bzip2 data", "decompress it: bzip2 -d"));
    refuses(BYTES("\4\"M\x18@p"), MEG_EFORMAT, FOUND("lz4 data", "decompress it: lz4 -d"));
    refuses(BYTES("PK\3\4\24\0"), MEG_EFORMAT, FOUND("a ZIP file", "extract the file from it: unzip"));
    refuses(BYTES("PAR1\x15\4"), MEG_EFORMAT, FOUND("a Parquet file", TO_JSON_LINES));
    refuses(BYTES("ARROW1\0\0"), MEG_EFORMAT, FOUND("an Arrow file", TO_JSON_LINES));
}

static void text_may_begin_like_a_compressed_format(void **state)
{
    static const char *const texts[] = { "BZh9\n", "BZh", "PAR1 is a name\n", "PAR1", "PK\n", "ARROW1\n", "1AY&SY\n",
                                         "",       "a" };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        holds(&(struct meg_str){ .s = (char *)texts[i], .n = strlen(texts[i]) }, texts[i]);
}

/* ---- memory ---- */

/* Limit the address space of this process to its current size plus 64 MiB. */
static void limit_memory(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    struct rlimit limit;
    long pages;

    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld", &pages), 1);
    fclose(f);
    limit.rlim_cur = limit.rlim_max = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (64 << 20);
    setrlimit(RLIMIT_AS, &limit);
}

static void unpack_in_little(void *packed)
{
    const struct meg_str *s = packed;
    struct meg_str out;
    struct meg_err e = { .code = MEG_OK };

    limit_memory();
    unpack(s->s, s->n, &out, &e);
    meg_die(e.code, "%s", e.msg);
}

static void running_out_of_memory_is_not_reported_as_corruption(void **state)
{
    struct meg_str xz = { 0 }, zstd = { 0 };
    struct child c;

    (void)state;
#ifdef __SANITIZE_ADDRESS__
    print_message("# skipped: ASan needs address space\n");
    skip();
#endif
    add_xz(&xz);
    enlarge_xz_dictionary(&xz);
    child_run(&c, unpack_in_little, &xz);
    assert_string_equal(c.err,
                        "decompress: in: not enough memory to decompress the xz data; decompress the file first\n");
    assert_int_equal(c.status, 1);
    add_zstd(&zstd, 27);
    holds(&zstd, TEXT);
    child_run(&c, unpack_in_little, &zstd);
    assert_string_equal(c.err,
                        "decompress: in: not enough memory to decompress the zstd data; decompress the file first\n");
    assert_int_equal(c.status, 1);
    meg_str_free(&xz);
    meg_str_free(&zstd);
}

static void a_zstd_window_beyond_the_limit_is_reported(void **state)
{
    struct meg_str s = { 0 };

    (void)state;
    add_zstd(&s, 31);
    refuses(s.s, s.n, MEG_EFORMAT,
            "in: the zstd data needs a window of more than 128 MiB; decompress it first: zstd -dc --long=31");
    meg_str_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero_padding_after_a_stream_is_skipped),
        cmocka_unit_test(unsupported_formats_are_named),
        cmocka_unit_test(text_may_begin_like_a_compressed_format),
        cmocka_unit_test(running_out_of_memory_is_not_reported_as_corruption),
        cmocka_unit_test(a_zstd_window_beyond_the_limit_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
