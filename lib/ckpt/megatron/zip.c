/* zip.c - read and write ZIP files with stored members. */
#include "ckpt/megatron/zip.h"
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { END_BYTES = 22, END64_BYTES = 56, LOCATOR_BYTES = 20, ENTRY_BYTES = 46, LOCAL_BYTES = 30 };
enum { ZIP64_ID = 1, COMMENT_MAX = 65535, ALIGN = 64, NAME_MAX_BYTES = 4096 };

/* ---- reading ---- */

static uint64_t get(const unsigned char *p, int nbytes)
{
    uint64_t v = 0;

    for (int i = nbytes; i-- > 0;)
        v = v << 8 | p[i];
    return v;
}

struct reader {
    const unsigned char *p;
    size_t n;
    const char *from;
    struct meg_err *e;
};

/*
 * Read the offset *at, length *nbytes and number of entries *count of the central directory, from the ZIP64 end record
 * if the file has one, else from the end record.
 */
static int find_directory(const struct reader *z, uint64_t *at, uint64_t *nbytes, uint64_t *count)
{
    const size_t first = z->n > END_BYTES + COMMENT_MAX ? z->n - END_BYTES - COMMENT_MAX : 0;
    const unsigned char *end = NULL, *locator;
    uint64_t at64;

    for (size_t i = z->n < END_BYTES ? 0 : z->n - END_BYTES + 1; !end && i-- > first;)
        if (memcmp(z->p + i, "PK\5\6", 4) == 0)
            end = z->p + i;
    if (!end)
        return meg_fail(z->e, MEG_EFORMAT,
                        "%s: found no end record of a ZIP file in %zu bytes; the file is truncated, or was not written "
                        "by torch.save",
                        z->from, z->n);
    *count = get(end + 10, 2);
    *nbytes = get(end + 12, 4);
    *at = get(end + 16, 4);
    if (end - z->p < LOCATOR_BYTES || memcmp(locator = end - LOCATOR_BYTES, "PK\6\7", 4) != 0)
        return 0;
    at64 = get(locator + 8, 8);
    if (at64 > z->n || z->n - at64 < END64_BYTES || memcmp(z->p + at64, "PK\6\6", 4) != 0)
        return meg_fail(z->e, MEG_EFORMAT, "%s: expected a ZIP64 end record at byte %" PRIu64, z->from, at64);
    *count = get(z->p + at64 + 32, 8);
    *nbytes = get(z->p + at64 + 40, 8);
    *at = get(z->p + at64 + 48, 8);
    return 0;
}

/*
 * If *size, *stored or *at is 0xFFFFFFFF, replace the number by its 64-bit value in the ZIP64 extra field.  The field
 * contains only the replaced values, in this order.  Returns -1 if an extra field is truncated.
 */
static int read_zip64(const unsigned char *extra, size_t n, uint64_t *size, uint64_t *stored, uint64_t *at)
{
    uint64_t *const field[] = { size, stored, at };

    while (n >= 4) {
        size_t length = (size_t)get(extra + 2, 2), used = 4;

        if (length > n - 4)
            return -1;
        for (int i = 0; i < 3 && get(extra, 2) == ZIP64_ID; i++)
            if (*field[i] == UINT32_MAX) {
                if (used + 8 > length + 4)
                    return -1;
                *field[i] = get(extra + used, 8);
                used += 8;
            }
        extra += 4 + length;
        n -= 4 + length;
    }
    return 0;
}

/* Read one directory entry at p of at most n bytes; set *used to its length. */
static int read_entry(const struct reader *z, struct meg_zip_member *m, const unsigned char *p, size_t n, size_t *used)
{
    uint64_t size, stored, at, head;
    size_t nname, nextra;

    if (n < ENTRY_BYTES || memcmp(p, "PK\1\2", 4) != 0)
        return meg_fail(z->e, MEG_EFORMAT, "%s: expected an entry of the ZIP central directory at byte %zu", z->from,
                        (size_t)(p - z->p));
    nname = (size_t)get(p + 28, 2);
    nextra = (size_t)get(p + 30, 2);
    *used = ENTRY_BYTES + nname + nextra + (size_t)get(p + 32, 2);
    if (*used > n || nname > NAME_MAX_BYTES || memchr(p + ENTRY_BYTES, 0, nname))
        return meg_fail(z->e, MEG_EFORMAT, "%s: the entry of the ZIP central directory at byte %zu is damaged", z->from,
                        (size_t)(p - z->p));
    m->name = meg_strndup((const char *)p + ENTRY_BYTES, nname);
    stored = get(p + 20, 4);
    size = get(p + 24, 4);
    at = get(p + 42, 4);
    if (get(p + 8, 2) & 1 || get(p + 10, 2) != 0)
        return meg_fail(z->e, MEG_EFORMAT,
                        "%s: member %s is compressed or encrypted (method %d); torch.save stores "
                        "members uncompressed",
                        z->from, m->name, (int)get(p + 10, 2));
    if (read_zip64(p + ENTRY_BYTES + nname, nextra, &size, &stored, &at) < 0 || size != stored)
        return meg_fail(z->e, MEG_EFORMAT, "%s: member %s: the sizes in the ZIP central directory are damaged", z->from,
                        m->name);
    if (at > z->n || z->n - at < LOCAL_BYTES || memcmp(z->p + at, "PK\3\4", 4) != 0)
        return meg_fail(z->e, MEG_EFORMAT, "%s: expected the header of member %s at byte %" PRIu64, z->from, m->name,
                        at);
    head = LOCAL_BYTES + get(z->p + at + 26, 2) + get(z->p + at + 28, 2);
    if (z->n - at < head || z->n - at - head < size)
        return meg_fail(z->e, MEG_EFORMAT,
                        "%s: member %s of %" PRIu64 " bytes at byte %" PRIu64
                        " extends beyond the file of %zu bytes; the file is truncated or damaged: copy it again",
                        z->from, m->name, size, at, z->n);
    m->p = z->p + at + head;
    m->n = (size_t)size;
    m->crc = (uint32_t)get(p + 16, 4);
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct meg_zip_member *)a)->name, ((const struct meg_zip_member *)b)->name);
}

int meg_zip_open(struct meg_zip *z, const void *bytes, size_t n, const char *from, struct meg_err *e)
{
    const struct reader rd = { .p = bytes, .n = n, .from = from, .e = e };
    uint64_t at = 0, nbytes = 0, count = 0;
    size_t used = 0, cap = 0;
    int r;

    *z = (struct meg_zip){ 0 };
    if ((r = find_directory(&rd, &at, &nbytes, &count)) < 0)
        return r;
    if (at > n || nbytes > n - at || count > nbytes / ENTRY_BYTES)
        return meg_fail(e, MEG_EFORMAT,
                        "%s: the ZIP central directory is damaged: %" PRIu64 " entries in %" PRIu64
                        " bytes at byte %" PRIu64 " of a file of %zu bytes",
                        from, count, nbytes, at, n);
    while ((uint64_t)z->n < count) {
        if ((size_t)z->n == cap) {
            cap = cap ? 2 * cap : 64;
            z->member = meg_realloc_array(z->member, cap, sizeof *z->member);
        }
        z->member[z->n] = (struct meg_zip_member){ 0 };
        z->n++;
        if ((r = read_entry(&rd, &z->member[z->n - 1], rd.p + at, (size_t)nbytes, &used)) < 0)
            return r;
        at += used;
        nbytes -= used;
    }
    if (z->n)
        qsort(z->member, (size_t)z->n, sizeof *z->member, by_name);
    for (int i = 1; i < z->n; i++)
        if (strcmp(z->member[i - 1].name, z->member[i].name) == 0)
            return meg_fail(e, MEG_EFORMAT, "%s: duplicate member %s", from, z->member[i].name);
    return 0;
}

uint32_t meg_zip_crc(const void *bytes, size_t n)
{
    return (uint32_t)crc32_z(0, bytes, n);
}

void meg_zip_free(struct meg_zip *z)
{
    for (int i = 0; i < z->n; i++)
        free(z->member[i].name);
    free(z->member);
    *z = (struct meg_zip){ 0 };
}

const struct meg_zip_member *meg_zip_find(const struct meg_zip *z, const char *name)
{
    struct meg_zip_member key = { .name = (char *)name };

    return z->n ? bsearch(&key, z->member, (size_t)z->n, sizeof key, by_name) : NULL;
}

/* ---- writing ---- */

static void put(struct meg_str *s, uint64_t v, int nbytes)
{
    for (int i = 0; i < nbytes; i++) {
        const unsigned char byte = (unsigned char)(v >> 8 * i);

        meg_str_add(s, &byte, 1);
    }
}

/* Limit a value to 32 bits; 0xFFFFFFFF refers readers to the ZIP64 field. */
static uint64_t limit32(uint64_t v)
{
    return v < UINT32_MAX ? v : UINT32_MAX;
}

/* Append the fields that directory entries and local headers have in common, up to the length of the name. */
static void put_common(struct meg_str *s, bool is_zip64, uint32_t crc, uint64_t n, size_t nname)
{
    put(s, is_zip64 ? 45 : 20, 2); /* version needed */
    put(s, 1 << 11, 2);            /* the name is UTF-8 */
    put(s, 0, 2);                  /* compression method: stored */
    put(s, 0, 2);                  /* time: midnight */
    put(s, 0x21, 2);               /* date: January 1, 1980, a constant so that the bytes are reproducible */
    put(s, crc, 4);
    put(s, limit32(n), 4);
    put(s, limit32(n), 4);
    put(s, nname, 2);
}

int meg_zip_add(struct meg_zip_writer *w, const char *name, const void *bytes, size_t n, struct meg_err *e)
{
    const size_t nname = strlen(name), nzip64 = n >= UINT32_MAX ? 20 : 0;
    const uint64_t at = w->at;
    const uint32_t crc = meg_zip_crc(bytes, n);
    const uint64_t data = at + LOCAL_BYTES + nname + nzip64 + 4;
    const size_t npad = (size_t)(ALIGN - data % ALIGN) % ALIGN;
    struct meg_str s = { 0 }, zip64 = { 0 };
    int r;

    meg_str_add(&s, "PK\3\4", 4);
    put_common(&s, nzip64 > 0, crc, n, nname);
    put(&s, nzip64 + 4 + npad, 2);
    meg_str_add(&s, name, nname);
    if (nzip64) {
        put(&s, ZIP64_ID, 2);
        put(&s, 16, 2);
        put(&s, n, 8);
        put(&s, n, 8);
    }
    put(&s, 'F' | 'B' << 8, 2); /* id of the padding field that torch writes */
    put(&s, npad, 2);
    for (size_t i = 0; i < npad; i++)
        meg_str_add(&s, "Z", 1);
    if ((r = meg_file_write(w->f, s.s, s.n, e)) < 0 || (r = n ? meg_file_write(w->f, bytes, n, e) : 0) < 0)
        goto out;
    w->at += s.n + n;

    if (nzip64) {
        put(&zip64, n, 8);
        put(&zip64, n, 8);
    }
    if (at >= UINT32_MAX)
        put(&zip64, at, 8);
    meg_str_add(&w->directory, "PK\1\2", 4);
    put(&w->directory, 45, 2); /* version made by */
    put_common(&w->directory, zip64.n > 0, crc, n, nname);
    put(&w->directory, zip64.n ? 4 + zip64.n : 0, 2);
    put(&w->directory, 0, 2); /* comment length */
    put(&w->directory, 0, 2); /* disk number */
    put(&w->directory, 0, 2); /* attributes */
    put(&w->directory, 0, 4);
    put(&w->directory, limit32(at), 4);
    meg_str_add(&w->directory, name, nname);
    if (zip64.n) {
        put(&w->directory, ZIP64_ID, 2);
        put(&w->directory, zip64.n, 2);
        meg_str_add(&w->directory, zip64.s, zip64.n);
    }
    w->n++;
out:
    meg_str_free(&s);
    meg_str_free(&zip64);
    return r;
}

int meg_zip_finish(struct meg_zip_writer *w, struct meg_err *e)
{
    const uint64_t at = w->at, nbytes = w->directory.n, n = (uint64_t)w->n;
    struct meg_str s = { 0 };
    int r;

    if (at + nbytes >= UINT32_MAX || n >= UINT16_MAX) {
        meg_str_add(&s, "PK\6\6", 4);
        put(&s, END64_BYTES - 12, 8);
        put(&s, 45, 2);
        put(&s, 45, 2);
        put(&s, 0, 8); /* disk numbers */
        put(&s, n, 8);
        put(&s, n, 8);
        put(&s, nbytes, 8);
        put(&s, at, 8);
        meg_str_add(&s, "PK\6\7", 4);
        put(&s, 0, 4);
        put(&s, at + nbytes, 8);
        put(&s, 1, 4);
    }
    meg_str_add(&s, "PK\5\6", 4);
    put(&s, 0, 4); /* disk numbers */
    put(&s, n < UINT16_MAX ? n : UINT16_MAX, 2);
    put(&s, n < UINT16_MAX ? n : UINT16_MAX, 2);
    put(&s, limit32(nbytes), 4);
    put(&s, limit32(at), 4);
    put(&s, 0, 2); /* comment length */
    if ((r = meg_file_write(w->f, w->directory.s, w->directory.n, e)) == 0)
        r = meg_file_write(w->f, s.s, s.n, e);
    w->at += nbytes + s.n;
    meg_str_free(&s);
    return r;
}

void meg_zip_writer_free(struct meg_zip_writer *w)
{
    meg_str_free(&w->directory);
}
