/*
 * save.c - write a checkpoint in stages; all ranks finish a stage before the next one begins:
 *
 *     begin    rank 0 creates the temporary directory, and the tensor files with their headers
 *     write    each rank writes its part of the tensors at their offsets in the tensor files
 *     hash     each of n ranks reads back and hashes every n-th chunk of the tensors
 *     commit   rank 0 writes the metadata files, then the manifest, and renames the directory
 *
 * In an asynchronous save, a background thread of each rank runs the stages write and hash, or the main thread if no
 * thread can be created.  The main thread runs the other stages and the collectives.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/hash.h"
#include "ckpt/internal.h"
#include "file/file.h"
#include "io/json.h"

#define INDEX "model.safetensors.index.json"

/* A metadata file of the checkpoint. */
struct metadata_file {
    const char *name;
    struct meg_str text;
    bool is_listed; /* has an entry in the manifest */
};
enum { METADATA_FILES = MEG_NUM_TOK_FILES + MEG_CKPT_EXTRA_FILES + 3 };

struct meg_ckpt_async_save {
    struct meg_comm *world;
    int64_t iteration, keep_last, loaded_iteration;
    char *dir, *path; /* SAVE, and the temporary directory */
    const struct meg_lock *lock;
    struct ckpt_file *file;
    int nfiles;
    const struct meg_device *device;      /* device that has the data of the extents; NULL: host memory */
    const struct meg_ckpt_reader *reader; /* the extents are read when they are written; NULL: they are in memory */
    enum meg_dtype dtype;                 /* dtype of the weights */
    struct ckpt_extent *extent;           /* [nextents] byte ranges that this rank writes */
    int64_t nextents;
    char *staging;            /* copy of the extents' bytes; NULL: the save is synchronous */
    struct ckpt_chunk *chunk; /* [nchunks] chunks of all tensors */
    int64_t nchunks;
    /*
     * [nchunks] checksums as hexadecimal digits.  Checksums of chunks that other ranks hash are zero bytes at first.
     * An all-reduce (sum) before the commit collects the checksums of all ranks.
     */
    char (*hash)[CKPT_HEX];
    struct metadata_file metadata[METADATA_FILES];
    int nmetadata;
    int threads;

    int (*stage)(struct meg_ckpt_async_save *s, struct meg_err *e); /* current stage */
    pthread_t thread;
    bool has_thread;
    atomic_bool is_done;
    int r;
    struct meg_err e;
};

/* ---- begin ---- */

static void add_metadata_file(struct meg_ckpt_async_save *v, const char *name, bool is_listed,
                              const struct meg_str *text)
{
    struct metadata_file *f = &v->metadata[v->nmetadata++];

    f->name = name;
    f->is_listed = is_listed;
    meg_str_add(&f->text, text->s, text->n);
}

static void add_json(struct meg_ckpt_async_save *v, const char *name, const json_t *value)
{
    struct meg_str text = { 0 };

    meg_json_dump(value, 1, &text);
    meg_str_add(&text, "\n", 1);
    add_metadata_file(v, name, true, &text);
    meg_str_free(&text);
}

/* Split text into a JSON array of its lines. */
static json_t *lines_of(const char *text)
{
    json_t *lines = json_array();

    for (size_t n; *text; text += n + (text[n] == '\n')) {
        n = strcspn(text, "\n");
        json_array_append_new(lines, json_stringn_nocheck(text, n));
    }
    return lines;
}

/* Add eod_id (null: unknown), end_ids (eos ids other than eod_id, if any) and bos_id (if known) to the object state. */
static void add_text_ids(json_t *state, const struct meg_ckpt_tokenizer *tok)
{
    json_t *ends = json_array();

    json_object_set_new(state, "eod_id", tok && tok->eod >= 0 ? json_integer(tok->eod) : json_null());
    for (int64_t i = 0; tok && i < tok->eos_ids.n; i++)
        if (tok->eos_ids.v[i] != tok->eod)
            json_array_append_new(ends, json_integer(tok->eos_ids.v[i]));
    if (json_array_size(ends) > 0)
        json_object_set(state, "end_ids", ends);
    if (tok && tok->bos >= 0)
        json_object_set_new(state, "bos_id", json_integer(tok->bos));
    json_decref(ends);
}

static void add_state(struct meg_ckpt_async_save *v, const struct meg_ckpt_save_args *s)
{
    json_t *state = json_object();

    json_object_set_new(state, "iteration",
                        s->iteration == MEG_CKPT_RELEASE ? json_null() : json_integer(s->iteration));
    json_object_set_new(state, "vocab_size", json_integer(s->model->vocab_size));
    add_text_ids(state, s->tok);
    json_object_set_new(state, "options", lines_of(s->options));
    json_object_set_new(state, "run", s->state ? json_deep_copy(s->state) : json_null());
    add_json(v, "state.json", state);
    json_decref(state);
}

static void add_index(struct meg_ckpt_async_save *v, const struct meg_ckpt_save_args *s)
{
    json_t *files = json_object(), *index;

    for (int i = 0; i < s->params->n; i++) {
        const struct meg_param *row = &s->params->row[i];

        json_object_set_new(files, row->name, json_string(v->file[row->layer_group].name));
    }
    index = json_pack("{s:{s:I},s:o}", "metadata", "total_size",
                      (json_int_t)s->params->numel * (json_int_t)meg_dtype_size(s->weights.dtype), "weight_map", files);
    add_json(v, INDEX, index);
    json_decref(index);
}

static void add_metadata_files(struct meg_ckpt_async_save *v, const struct meg_ckpt_save_args *s)
{
    for (int i = 0; s->tok && i < MEG_NUM_TOK_FILES; i++)
        if (s->tok->file[i].s)
            add_metadata_file(v, meg_tok_files[i].name, true, &s->tok->file[i]);
    for (int i = 0; s->tok && i < MEG_CKPT_EXTRA_FILES; i++)
        if (s->tok->extra_file[i].s)
            add_metadata_file(v, meg_ckpt_extra_files[i], true, &s->tok->extra_file[i]);
    add_index(v, s);
    add_state(v, s);
    if (s->run_conf) {
        struct meg_str text = { 0 };

        meg_str_printf(&text, "%s", s->run_conf);
        add_metadata_file(v, "run.conf", false, &text);
        meg_str_free(&text);
    }
}

static int pwrite_all(int fd, const struct ckpt_extent *x, const char *path, struct meg_err *e)
{
    const char *p = x->data;
    int64_t offset = x->offset;
    size_t n = x->nbytes;

    while (n > 0) {
        const ssize_t k = pwrite(fd, p, n, (off_t)offset);

        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return meg_fail_errno(e, "%s: write failed", path);
        p += k;
        n -= (size_t)k;
        offset += k;
    }
    return 0;
}

/*
 * Create a tensor file with its header and its final size.  The directory is temporary, so the file needs no temporary
 * name; the write of the manifest fsyncs the directory.
 */
static int create_file(const char *dir, const struct ckpt_file *f, struct meg_err *e)
{
    const struct ckpt_extent header = { .data = f->header.s, .nbytes = f->header.n };
    char *path = ckpt_path(dir, f->name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    int r;

    if (fd < 0)
        r = meg_fail_errno(e, "%s: cannot create this file", path);
    else if ((r = pwrite_all(fd, &header, path, e)) == 0 && ftruncate(fd, (off_t)f->nbytes) < 0)
        r = meg_fail_errno(e, "%s: cannot set the file size to %" PRId64 " bytes", path, f->nbytes);
    else if (r == 0 && fsync(fd) < 0)
        r = meg_fail_errno(e, "%s: fsync failed", path);
    if (fd >= 0 && close(fd) < 0 && r == 0)
        r = meg_fail_errno(e, "%s: close failed", path);
    free(path);
    return r;
}

static int create_folder(struct meg_ckpt_async_save *v, struct meg_err *e)
{
    int r = v->lock ? meg_lock_check(v->lock, e) : 0;

    if (r == 0)
        r = ckpt_make_folder(&v->path, v->dir, v->iteration, e);
    for (int i = 0; r == 0 && i < v->nfiles; i++)
        r = create_file(v->path, &v->file[i], e);
    return r;
}

/*
 * Broadcast the name of the temporary directory from rank 0, and set v->path on the other ranks.  The name contains the
 * process id and host of rank 0, so other ranks cannot construct the name.
 */
static void broadcast_folder_name(struct meg_ckpt_async_save *v)
{
    char name[256] = "";

    if (v->world->size == 1)
        return;
    if (v->world->rank == 0) {
        const char *slash = strrchr(v->path, '/');

        MEG_ASSERT_LT(strlen(slash + 1), sizeof name);
        strcpy(name, slash + 1);
    }
    meg_host_broadcast(v->world, name, sizeof name / sizeof(int32_t), MEG_DTYPE_I32, 0);
    if (v->world->rank != 0)
        v->path = ckpt_path(v->dir, name);
}

/* Copy the extents' bytes to a staging buffer in host memory, and make the extents refer to the buffer. */
static int copy_extents(struct meg_ckpt_async_save *v, struct meg_err *e)
{
    size_t n = 0, at = 0;

    for (int64_t i = 0; i < v->nextents; i++)
        n += v->extent[i].nbytes;
    v->staging = malloc(n + 1);
    if (!v->staging)
        return meg_fail(e, MEG_EFAIL, "--async-save: out of memory for a staging buffer of %zu bytes", n);
    for (int64_t i = 0; i < v->nextents; i++) {
        if (v->device)
            meg_device_read(v->device, v->device->copy, v->staging + at, v->extent[i].data, v->extent[i].nbytes);
        else
            memcpy(v->staging + at, v->extent[i].data, v->extent[i].nbytes);
        v->extent[i].data = v->staging + at;
        at += v->extent[i].nbytes;
    }
    v->device = NULL;
    return 0;
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
static int write_device_extents(const struct meg_ckpt_async_save *v, int64_t first, int64_t last, int fd,
                                const char *path, const struct pinned_buffer buffer[2], struct meg_err *e)
{
    const struct meg_device *d = v->device;
    int r = 0;

    for (int64_t i = first; i <= last && r == 0; i++) {
        if (i < last) {
            d->op->download(d->copy, buffer[i % 2].bytes, v->extent[i].data, v->extent[i].nbytes);
            d->op->event_record(d->copy, buffer[i % 2].copied);
        }
        if (i > first) {
            const int64_t previous = i - 1;
            struct ckpt_extent x = v->extent[previous];

            x.data = buffer[previous % 2].bytes;
            meg_device_wait(d, buffer[previous % 2].copied);
            r = pwrite_all(fd, &x, path, e);
        }
    }
    meg_device_synchronize(d, d->copy);
    return r;
}

/* Write extent x of a file.  With a reader, first read the elements of the extent. */
static int write_extent(const struct meg_ckpt_async_save *v, const struct ckpt_extent *x, int fd, const char *path,
                        struct meg_err *e)
{
    struct ckpt_extent read = *x;
    char *bytes;
    int r;

    if (!v->reader)
        return pwrite_all(fd, x, path, e);
    read.data = bytes = malloc(x->nbytes);
    if (!bytes)
        return meg_fail(e, MEG_EFAIL, "%s: out of memory for a buffer of %zu bytes", path, x->nbytes);
    if ((r = meg_ckpt_read(v->reader, x->row, x->first, (int64_t)(x->nbytes / meg_dtype_size(v->dtype)), v->dtype,
                           bytes, e)) == 0)
        r = pwrite_all(fd, &read, path, e);
    free(bytes);
    return r;
}

/* Write the extents [first, last) of one file. */
static int write_extents(const struct meg_ckpt_async_save *v, int64_t first, int64_t last, int fd, const char *path,
                         const struct pinned_buffer buffer[2], struct meg_err *e)
{
    int r = 0;

    if (v->device)
        return write_device_extents(v, first, last, fd, path, buffer, e);
#pragma omp parallel for schedule(dynamic) num_threads(v->threads)
    for (int64_t i = first; i < last; i++) {
        struct meg_err local_error;
        int is_failed;

#pragma omp atomic read
        is_failed = r;
        if (is_failed < 0 || write_extent(v, &v->extent[i], fd, path, &local_error) == 0)
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
    char *path = ckpt_path(v->path, v->file[v->extent[first].file].name);
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    int r;

    if (fd >= 0)
        r = write_extents(v, first, last, fd, path, buffer, e);
    else if (errno == ENOENT)
        r = meg_fail(
            e, MEG_EIO,
            "%s: rank 0 created this file, but it does not exist on this rank; --save requires a directory on a file "
            "system that all ranks use",
            path);
    else
        r = meg_fail_errno(e, "%s", path);
    if (r == 0 && fsync(fd) < 0)
        r = meg_fail_errno(e, "%s: fsync failed", path);
    if (fd >= 0 && close(fd) < 0 && r == 0)
        r = meg_fail_errno(e, "%s: close failed", path);
    free(path);
    return r;
}

static int write_stage(struct meg_ckpt_async_save *v, struct meg_err *e)
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

static int hash_stage(struct meg_ckpt_async_save *v, struct meg_err *e)
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

static int commit_stage(struct meg_ckpt_async_save *v, struct meg_err *e)
{
    json_t *files = json_object();
    char hash[33];
    int r = 0;

    for (int i = 0; r == 0 && i < v->nmetadata; i++) {
        const struct metadata_file *f = &v->metadata[i];

        r = ckpt_write_text(v->path, f->name, &f->text, e);
        meg_xxh3_128_hex(hash, f->text.s, f->text.n);
        if (f->is_listed)
            json_object_set_new(files, f->name,
                                json_pack("{s:I,s:s}", "bytes", (json_int_t)f->text.n, "xxh3_128", hash));
    }
    if (r == 0 && (r = write_manifest(v, files, e)) == 0 && (r = v->lock ? meg_lock_check(v->lock, e) : 0) == 0 &&
        (r = ckpt_commit(v->dir, v->path, v->iteration, e)) == 0 && v->keep_last > 0 &&
        v->iteration != MEG_CKPT_RELEASE)
        ckpt_keep_last(v->dir, v->iteration, v->keep_last, v->loaded_iteration);
    json_decref(files);
    return r;
}

/* ---- run the stages ---- */

static void close_saving(struct meg_ckpt_async_save *v)
{
    ckpt_free_files(v->file, v->nfiles);
    for (int i = 0; i < v->nmetadata; i++)
        meg_str_free(&v->metadata[i].text);
    free(v->extent);
    free(v->staging);
    free(v->chunk);
    free(v->hash);
    free(v->dir);
    free(v->path);
    free(v);
}

/* Clean up after a failed save, on all ranks; rank 0 removes the temporary directory. */
static int abort_save(struct meg_ckpt_async_save *v, int r)
{
    if (v->world->rank == 0 && v->path)
        meg_remove_tree(v->path, NULL);
    close_saving(v);
    return r;
}

static void *run_stage(void *saving)
{
    struct meg_ckpt_async_save *v = saving;

    v->r = v->stage(v, &v->e);
    atomic_store(&v->is_done, true);
    return NULL;
}

/*
 * Start a stage.  In an asynchronous save, the stage runs on a new thread.  In a synchronous save, or if no thread can
 * be created, the stage runs to its end before this function returns.
 */
static void start_stage(struct meg_ckpt_async_save *v, int (*stage)(struct meg_ckpt_async_save *, struct meg_err *))
{
    v->stage = stage;
    atomic_store(&v->is_done, false);
    v->has_thread = v->staging && pthread_create(&v->thread, NULL, run_stage, v) == 0;
    if (!v->has_thread)
        run_stage(v);
}

/*
 * If `wait` is true, first wait until all ranks have finished the stage.  Return whether all ranks have finished the
 * stage; if so, set *r to the combined result.
 */
static bool end_stage(struct meg_ckpt_async_save *v, bool wait, int *r, struct meg_err *e)
{
    int32_t busy = !wait && !atomic_load(&v->is_done);

    if (!wait) {
        meg_host_all_reduce(v->world, &busy, 1, MEG_DTYPE_I32, MEG_REDUCE_MAX);
        if (busy)
            return false;
    }
    if (v->has_thread)
        pthread_join(v->thread, NULL);
    v->has_thread = false;
    if (v->r < 0 && e)
        *e = v->e;
    *r = ckpt_agree(v->world, v->r, e);
    return true;
}

static int begin(struct meg_ckpt_async_save **out, const struct meg_ckpt_save_args *s, bool is_async, struct meg_err *e)
{
    struct meg_ckpt_async_save *v = meg_new(sizeof *v);
    int r = 0;

    v->world = s->mesh->world;
    v->iteration = s->iteration;
    v->keep_last = s->keep_last;
    v->loaded_iteration = s->loaded_iteration;
    v->dir = meg_strdup(s->dir);
    v->lock = s->lock;
    v->reader = s->reader;
    v->dtype = s->weights.dtype;
    MEG_ASSERT(!s->reader || (!is_async && s->noptim == 0 && v->world->size == 1));
    v->nfiles = ckpt_list_files(&v->file, s);
    if (s->weights.device && !s->weights.device->op->is_host_memory) {
        v->device = s->weights.device;
        meg_device_synchronize(v->device, v->device->compute); /* kernels may still write the tensors */
    }
    v->nextents = ckpt_list_extents(&v->extent, v->file, v->nfiles, s);
    for (int i = 0; i < v->nfiles; i++)
        ckpt_add_chunks(&v->chunk, &v->nchunks, v->file[i].t, v->file[i].n, i);
    v->hash = meg_new((size_t)v->nchunks * sizeof *v->hash);
    v->threads = is_async ? 1 : omp_get_max_threads();
    if (is_async)
        r = copy_extents(v, e);
    if (r == 0 && v->world->rank == 0) {
        add_metadata_files(v, s);
        r = create_folder(v, e);
    }
    if ((r = ckpt_agree(v->world, r, e)) < 0)
        return abort_save(v, r);
    broadcast_folder_name(v);
    start_stage(v, write_stage);
    *out = v;
    return 0;
}

int meg_ckpt_save_begin(struct meg_ckpt_async_save **saving, const struct meg_ckpt_save_args *s, struct meg_err *e)
{
    struct meg_err local_error;

    return begin(saving, s, true, e ? e : &local_error);
}

int meg_ckpt_save_poll(struct meg_ckpt_async_save **saving, bool wait, struct meg_err *e)
{
    struct meg_ckpt_async_save *v = *saving;
    struct meg_err local_error;
    int r;

    if (!e)
        e = &local_error;
    while (end_stage(v, wait, &r, e)) {
        if (r == 0 && v->stage == write_stage) {
            start_stage(v, hash_stage);
            if (wait)
                continue;
            break;
        }
        if (r == 0) {
            meg_host_all_reduce(v->world, v->hash, v->nchunks * CKPT_HEX / (int64_t)sizeof(int64_t), MEG_DTYPE_I64,
                                MEG_REDUCE_SUM);
            r = ckpt_agree(v->world, v->world->rank == 0 ? commit_stage(v, e) : 0, e);
        }
        *saving = NULL;
        if (r < 0)
            return abort_save(v, r);
        close_saving(v);
        return 1;
    }
    return 0;
}

int meg_ckpt_save(const struct meg_ckpt_save_args *s, struct meg_err *e)
{
    struct meg_ckpt_async_save *v = NULL;
    struct meg_err local_error;
    int r;

    if (!e)
        e = &local_error;
    if ((r = begin(&v, s, false, e)) < 0 || (r = meg_ckpt_save_poll(&v, true, e)) < 0)
        return r;
    return 0;
}
