/* save_stages.c - the stages of a save (save.c): create the tensor files, write and hash tensors, commit. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/hash.h"
#include "ckpt/save_internal.h"
#include "io/json.h"

/*
 * Create a tensor file with its header and its final size.  The directory is temporary, so the file needs no temporary
 * name; the write of the manifest fsyncs the directory.
 */
static int create_file(const char *dir, const struct ckpt_file *file, struct meg_err *e)
{
    struct meg_file f = { .path = ckpt_path(dir, file->name) };
    int r;

    f.fd = open(f.path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (f.fd < 0)
        r = meg_fail_errno(e, "%s: cannot create this file", f.path);
    else if ((r = meg_file_pwrite(&f, file->header.s, file->header.n, 0, e)) == 0 &&
             ftruncate(f.fd, (off_t)file->nbytes) < 0)
        r = meg_fail_errno(e, "%s: cannot set the file size to %" PRId64 " bytes", f.path, file->nbytes);
    else if (r == 0)
        r = meg_file_close(&f, e);
    if (f.fd >= 0)
        close(f.fd);
    free(f.path);
    return r;
}

int ckpt_save_create_folder(struct meg_ckpt_async_save *v, struct meg_err *e)
{
    int r = v->lock ? meg_lock_check(v->lock, e) : 0;

    if (r == 0)
        r = ckpt_make_folder(&v->path, v->dir, v->iteration, e);
    for (int i = 0; r == 0 && i < v->nfiles; i++)
        r = create_file(v->path, &v->file[i], e);
    return r;
}

/* ---- write ---- */

/* A pinned buffer of CKPT_CHUNK bytes, and the event recorded after a copy to the buffer. */
struct pinned_buffer {
    void *bytes;
    struct meg_event *copied;
};

/*
 * Write the extents [first, last) of one file from device memory.  While one extent is written, the next extent is
 * copied to pinned memory.
 */
static int write_device_extents(const struct meg_ckpt_async_save *v, int64_t first, int64_t last, struct meg_file *f,
                                const struct pinned_buffer buffer[2], struct meg_err *e)
{
    const struct meg_device *d = v->device;
    int r = 0;

    for (int64_t i = first; i <= last && r == 0; i++) {
        if (i < last) {
            d->op->download(d->copy, buffer[i % 2].bytes, v->extent[i].data, v->extent[i].nbytes);
            d->op->event_record(d->copy, buffer[i % 2].copied);
        }
        if (i > first) {
            const struct pinned_buffer *previous = &buffer[(i - 1) % 2];

            meg_device_wait(d, previous->copied);
            r = meg_file_pwrite(f, previous->bytes, v->extent[i - 1].nbytes, v->extent[i - 1].offset, e);
        }
    }
    meg_device_synchronize(d, d->copy);
    return r;
}

/* Write extent x of a file.  With a reader, first read the elements of the extent. */
static int write_extent(const struct meg_ckpt_async_save *v, const struct ckpt_extent *x, struct meg_file *f,
                        struct meg_err *e)
{
    const enum meg_dtype dtype = meg_param_dtype(x->row, v->dtype);
    char *bytes;
    int r;

    if (!v->reader)
        return meg_file_pwrite(f, x->data, x->nbytes, x->offset, e);
    bytes = malloc(x->nbytes);
    if (!bytes)
        return meg_fail(e, MEG_EFAIL, "%s: out of memory for a buffer of %zu bytes", f->path, x->nbytes);
    if ((r = meg_ckpt_read(v->reader, x->row, x->first, (int64_t)(x->nbytes / meg_dtype_size(dtype)), dtype, bytes,
                           e)) == 0)
        r = meg_file_pwrite(f, bytes, x->nbytes, x->offset, e);
    free(bytes);
    return r;
}

/* Write the extents [first, last) of one file. */
static int write_extents(const struct meg_ckpt_async_save *v, int64_t first, int64_t last, struct meg_file *f,
                         const struct pinned_buffer buffer[2], struct meg_err *e)
{
    int r = 0;

    if (v->device)
        return write_device_extents(v, first, last, f, buffer, e);
#pragma omp parallel for schedule(dynamic) num_threads(v->threads)
    for (int64_t i = first; i < last; i++) {
        struct meg_err local_error;
        int is_failed;

#pragma omp atomic read
        is_failed = r;
        if (is_failed < 0 || write_extent(v, &v->extent[i], f, &local_error) == 0)
            continue;
#pragma omp critical(ckpt_write)
        {
            *e = local_error;
#pragma omp atomic write
            r = local_error.code;
        }
    }
    return r;
}

/* Write the extents [first, last) of one file, and fsync the file.  The commit on rank 0 relies on this fsync. */
static int write_file(const struct meg_ckpt_async_save *v, int64_t first, int64_t last,
                      const struct pinned_buffer buffer[2], struct meg_err *e)
{
    struct meg_file f = { .path = ckpt_path(v->path, v->file[v->extent[first].file].name) };
    int r;

    f.fd = open(f.path, O_WRONLY | O_CLOEXEC);
    if (f.fd < 0 && errno == ENOENT)
        r = meg_fail(
            e, MEG_EIO,
            "%s: rank 0 created this file, but it does not exist on this rank; --save requires a directory on a file "
            "system that all ranks use",
            f.path);
    else if (f.fd < 0)
        r = meg_fail_errno(e, "%s", f.path);
    else if ((r = write_extents(v, first, last, &f, buffer, e)) == 0)
        r = meg_file_close(&f, e);
    if (f.fd >= 0)
        close(f.fd);
    free(f.path);
    return r;
}

int ckpt_save_write_stage(struct meg_ckpt_async_save *v, struct meg_err *e)
{
    const struct meg_ops *op = v->device ? v->device->op : NULL;
    struct pinned_buffer buffer[2] = { 0 };
    int r = 0;

    for (int k = 0; k < 2 && op; k++) {
        buffer[k].copied = op->event_create();
        if (!(buffer[k].bytes = op->alloc_pinned(CKPT_CHUNK)))
            r = meg_fail(e, MEG_EFAIL, "%s: cannot allocate a buffer of %d bytes in pinned memory", v->path,
                         CKPT_CHUNK);
    }
    for (int64_t i = 0, last; r == 0 && i < v->nextents; i = last) {
        for (last = i + 1; last < v->nextents && v->extent[last].file == v->extent[i].file; last++)
            ;
        r = write_file(v, i, last, buffer, e);
    }
    for (int k = 0; k < 2 && op; k++) {
        op->release_pinned(buffer[k].bytes);
        op->event_destroy(buffer[k].copied);
    }
    return r;
}

/* ---- hash ---- */

static int read_all(int fd, char *p, const struct ckpt_chunk *c, const char *path, struct meg_err *e)
{
    int64_t at = c->t->file_offset + c->first;

    for (int64_t n = c->n; n > 0;) {
        const ssize_t k = pread(fd, p, (size_t)n, (off_t)at);

        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return meg_fail_errno(e, "%s: read failed", path);
        if (k == 0)
            return meg_fail(e, MEG_EIO,
                            "%s: this file now ends at byte %" PRId64
                            ", but more was written to it; another program may have truncated it",
                            path, at);
        p += k;
        n -= k;
        at += k;
    }
    return 0;
}

/* Read back chunk i from file and hash it. */
static int hash_chunk(struct meg_ckpt_async_save *v, int64_t i, const struct ckpt_file *file, struct meg_err *e)
{
    const struct ckpt_chunk *c = &v->chunk[i];
    char *path = ckpt_path(v->path, file->name), *bytes = malloc((size_t)c->n + 1), hash[33];
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    int r;

    if (fd < 0)
        r = meg_fail_errno(e, "%s", path);
    else if (!bytes)
        r = meg_fail(e, MEG_EFAIL, "%s: out of memory: cannot allocate %" PRId64 " bytes to read the file back", path,
                     c->n);
    else if ((r = read_all(fd, bytes, c, path, e)) == 0) {
        meg_xxh3_128_hex(hash, bytes, (size_t)c->n);
        memcpy(v->hash[i], hash, CKPT_HEX);
    }
    if (fd >= 0)
        close(fd);
    free(bytes);
    free(path);
    return r;
}

int ckpt_save_hash_stage(struct meg_ckpt_async_save *v, struct meg_err *e)
{
    int r = 0;

#pragma omp parallel for schedule(dynamic) num_threads(v->threads)
    for (int64_t i = v->world->rank; i < v->nchunks; i += v->world->size) {
        struct meg_err local_error;

        if (hash_chunk(v, i, &v->file[v->chunk[i].file], &local_error) < 0) {
#pragma omp critical(ckpt_write)
            {
                r = local_error.code;
                *e = local_error;
            }
        }
    }
    return r;
}

/* ---- commit ---- */

static json_t *tensor_entry(const struct ckpt_file *file, const struct meg_st_tensor *t)
{
    json_t *shape = json_array();

    for (int i = 0; i < t->ndim; i++)
        json_array_append_new(shape, json_integer(t->dim[i]));
    return json_pack("{s:s,s:I,s:o,s:s,s:[]}", "file", file->name, "offset", (json_int_t)t->file_offset, "shape", shape,
                     "dtype", t->dtype, "xxh3_128");
}

static json_t *list_tensors(const struct meg_ckpt_async_save *v)
{
    json_t *all = json_object(), *sums = NULL;

    for (int64_t i = 0; i < v->nchunks; i++) {
        const struct ckpt_chunk *c = &v->chunk[i];

        if (c->first == 0) {
            json_t *tensor = tensor_entry(&v->file[c->file], c->t);

            sums = json_object_get(tensor, "xxh3_128");
            json_object_set_new(all, c->t->name, tensor);
        }
        json_array_append_new(sums, json_stringn(v->hash[i], CKPT_HEX));
    }
    return all;
}

static int write_manifest(const struct meg_ckpt_async_save *v, const json_t *files, struct meg_err *e)
{
    json_t *manifest = json_pack("{s:s,s:i,s:O,s:o}", "format", CKPT_FORMAT, "version", CKPT_VERSION, "files", files,
                                 "tensors", list_tensors(v));
    struct meg_str text = { 0 };
    int r;

    meg_json_dump(manifest, 1, &text);
    meg_str_add(&text, "\n", 1);
    r = ckpt_write_text(v->path, "manifest.json", &text, e);
    meg_str_free(&text);
    json_decref(manifest);
    return r;
}

int ckpt_save_commit_stage(struct meg_ckpt_async_save *v, struct meg_err *e)
{
    json_t *files = json_object();
    int r = ckpt_metadata_write(&v->metadata, v->path, files, e);

    if (r == 0 && (r = write_manifest(v, files, e)) == 0 && (r = v->lock ? meg_lock_check(v->lock, e) : 0) == 0 &&
        (r = ckpt_commit(v->dir, v->path, v->iteration, e)) == 0 && v->keep_last > 0 &&
        v->iteration != MEG_CKPT_RELEASE)
        ckpt_keep_last(v->dir, v->iteration, v->keep_last, v->loaded_iteration);
    json_decref(files);
    return r;
}
