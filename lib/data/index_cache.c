/* index_cache.c - files that store index arrays. */
#define _GNU_SOURCE /* declare memmem */
#include "data/index_cache.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "file/commit.h"

static const char CHECKSUMS[] = "checksums"; /* last part of the name of the checksum file */

static char *file_name(const struct meg_index_cache_entry *c, const char *name, const char *ext)
{
    struct meg_str s = { 0 };
    char md5[33];

    if (c->deepspeed_prefix) {
        meg_str_printf(&s, "%s/%s%s%s%s", c->dir, c->deepspeed_prefix, name ? "_" : "", name ? name : "", ext);
        return s.s;
    }
    meg_md5_hex(md5, c->description, strlen(c->description));
    meg_str_printf(&s, "%s/%s-%s-", c->dir, md5, c->class_name);
    if (c->split)
        meg_str_printf(&s, "%s-", c->split);
    meg_str_printf(&s, "%s%s", name, ext);
    return s.s;
}

/* Append a .npy 1.0 header: ten bytes and a dict, padded by spaces and a newline to a multiple of 64 bytes. */
static void npy_header(struct meg_str *h, const struct meg_npy *a)
{
    struct meg_str dict = { 0 };
    uint16_t len;

    meg_str_printf(&dict, "{'descr': '%s', 'fortran_order': False, 'shape': (%" PRId64 ",", a->type, a->rows);
    if (a->columns)
        meg_str_printf(&dict, " %d", a->columns);
    meg_str_printf(&dict, "), }");
    while ((10 + dict.n + 1) % 64)
        meg_str_add(&dict, " ", 1);
    meg_str_add(&dict, "\n", 1);
    len = (uint16_t)dict.n;
    meg_str_add(h, "\x93NUMPY\x01\x00", 8);
    meg_str_add(h, &len, 2);
    meg_str_add(h, dict.s, dict.n);
    meg_str_free(&dict);
}

static size_t npy_bytes(const struct meg_npy *a)
{
    return (size_t)a->rows * (size_t)(a->columns ? a->columns : 1) * a->item;
}

static bool is_older(const struct stat *a, const struct stat *b)
{
    return a->st_mtim.tv_sec != b->st_mtim.tv_sec ? a->st_mtim.tv_sec < b->st_mtim.tv_sec
                                                  : a->st_mtim.tv_nsec < b->st_mtim.tv_nsec;
}

/*
 * Return the number of rows in the header of a .npy file.  Return -1 if the file cannot be opened or, after logging the
 * reason, if the header cannot be read.
 */
static int64_t npy_header_rows(const char *path)
{
    static const char shape[] = "'shape': (";
    struct meg_mmap m = { 0 };
    char head[128];
    const char *at;
    int64_t rows = -1;

    if (meg_mmap_open(&m, path, NULL) < 0)
        return -1;
    if (m.n >= sizeof head) {
        memcpy(head, m.p, sizeof head);
        at = memmem(head, sizeof head, shape, strlen(shape));
        for (at += at ? strlen(shape) : 0; at && at < head + sizeof head && *at >= '0' && *at <= '9'; at++)
            rows = rows < INT64_MAX / 100 ? 10 * (rows < 0 ? 0 : rows) + *at - '0' : INT64_MAX / 100;
    }
    if (rows < 0)
        meg_info("%s: the .npy header is damaged; rebuilding the index", path);
    meg_mmap_close(&m);
    return rows;
}

/*
 * Map a file that must consist of `head` and nbytes of data, and must not be older than idx (NULL: any age).  Returns
 * false if the file cannot be opened or, after logging the reason, if it does not match.
 */
static bool map_file(struct meg_mmap *m, const char *path, const struct stat *idx, const struct meg_str *head,
                     size_t nbytes)
{
    struct stat st;

    if (stat(path, &st) < 0 || meg_mmap_open(m, path, NULL) < 0)
        return false;
    if (idx && is_older(&st, idx))
        meg_info("%s: the index is older than its dataset; rebuilding the index", path);
    else if (m->n != head->n + nbytes)
        meg_info("%s: %zu bytes, expected %zu; rebuilding the index", path, m->n, head->n + nbytes);
    else if (memcmp(m->p, head->s, head->n) != 0)
        meg_info("%s: the .npy header differs from the expected header; rebuilding the index", path);
    else
        return true;
    meg_mmap_close(m);
    return false;
}

static bool stat_idx(const char *prefix, struct stat *st)
{
    struct meg_str s = { 0 };
    bool is_there;

    meg_str_printf(&s, "%s.idx", prefix);
    is_there = meg_commit_stat(s.s, st) == 0;
    meg_str_free(&s);
    return is_there;
}

static bool description_matches(const struct meg_index_cache_entry *c)
{
    struct meg_str text = { 0 };
    struct meg_mmap described = { 0 };
    char *path;
    bool is;

    if (c->deepspeed_prefix)
        return true;
    path = file_name(c, "description", ".txt");
    meg_str_add(&text, c->description, strlen(c->description));
    is = map_file(&described, path, NULL, &text, 0);
    meg_mmap_close(&described);
    meg_str_free(&text);
    free(path);
    return is;
}

/* Append the line of an array to sums, the text of a checksum file. */
static void add_checksum(struct meg_str *sums, const struct meg_npy *a)
{
    char hex[33];

    meg_xxh3_128_hex(hex, a->data, npy_bytes(a));
    meg_str_printf(sums, "%s %s\n", hex, a->name ? a->name : "-");
}

/* Return whether the mapped arrays match the entry's stored checksums; if not, log the reason. */
static bool has_checksums(const struct meg_index_cache_entry *c, const struct meg_npy *a, int n)
{
    char *path = file_name(c, CHECKSUMS, ".txt");
    struct meg_str sums = { 0 };
    struct meg_mmap kept = { 0 };
    bool has = false;

    for (int i = 0; i < n; i++)
        add_checksum(&sums, &a[i]);
    if (meg_mmap_open(&kept, path, NULL) < 0)
        meg_info("%s: no such checksum file, as in an index of Megatron-LM; rebuilding the index to check it", path);
    else if (!(has = kept.n == sums.n && memcmp(kept.p, sums.s, sums.n) == 0))
        meg_warn("%s: the arrays of the index do not match these checksums: a file was damaged or changed; rebuilding "
                 "the index",
                 path);
    meg_mmap_close(&kept);
    meg_str_free(&sums);
    free(path);
    return has;
}

bool meg_index_cache_load(const struct meg_index_cache_entry *c, const char *prefix, struct meg_npy *a, int n,
                          struct meg_mmap *map)
{
    struct stat idx;
    const struct stat *dataset = prefix && stat_idx(prefix, &idx) ? &idx : NULL;
    bool is_hit = description_matches(c);
    int i;

    for (i = 0; i < n && is_hit; i++) {
        struct meg_str head = { 0 };
        char *path = file_name(c, a[i].name, ".npy");
        if (a[i].rows < 0)
            a[i].rows = npy_header_rows(path);
        npy_header(&head, &a[i]);
        if ((is_hit = a[i].rows >= 0 && map_file(&map[i], path, dataset, &head, npy_bytes(&a[i]))))
            a[i].data = map[i].p + head.n;
        meg_str_free(&head);
        free(path);
    }
    is_hit = is_hit && has_checksums(c, a, n);
    while (!is_hit && i-- > 0)
        meg_mmap_close(&map[i]);
    return is_hit;
}

/* Write `head` and n bytes of data to a file of the entry. */
static int write_file(const struct meg_index_cache_entry *c, const char *name, const char *ext,
                      const struct meg_str *head, const void *data, size_t n, struct meg_err *e)
{
    char *path = file_name(c, name, ext);
    struct meg_file f = { 0 };
    int r;

    if ((r = meg_file_create(&f, path, e)) < 0 || (r = meg_file_write(&f, head->s, head->n, e)) < 0 ||
        (r = meg_file_write(&f, data, n, e)) < 0 || (r = meg_file_commit(&f, e)) < 0)
        meg_file_abandon(&f);
    free(path);
    return r;
}

void meg_index_cache_store(const struct meg_index_cache_entry *c, const struct meg_npy *a, int n)
{
    const struct meg_str none = { 0 };
    struct meg_str sums = { 0 };
    struct meg_err e;
    int r = meg_mkdirs(c->dir, &e);

    for (int i = 0; i < n && r == 0; i++) {
        struct meg_str head = { 0 };

        npy_header(&head, &a[i]);
        r = write_file(c, a[i].name, ".npy", &head, a[i].data, npy_bytes(&a[i]), &e);
        add_checksum(&sums, &a[i]);
        meg_str_free(&head);
    }
    if (r == 0 && !c->deepspeed_prefix)
        r = write_file(c, "description", ".txt", &none, c->description, strlen(c->description), &e);
    if (r == 0)
        r = write_file(c, CHECKSUMS, ".txt", &none, sums.s, sums.n, &e);
    meg_str_free(&sums);
    if (r < 0)
        meg_warn("%s; the index is kept in memory and will be rebuilt by the next run", e.msg);
}
