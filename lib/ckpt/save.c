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
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include "ckpt/save_internal.h"

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

static void close_saving(struct meg_ckpt_async_save *v)
{
    ckpt_free_files(v->file, v->nfiles);
    ckpt_metadata_free(&v->metadata);
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
        ckpt_metadata_list(&v->metadata, s, v->file);
        r = ckpt_save_create_folder(v, e);
    }
    if ((r = ckpt_agree(v->world, r, e)) < 0)
        return abort_save(v, r);
    broadcast_folder_name(v);
    start_stage(v, ckpt_save_write_stage);
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
        if (r == 0 && v->stage == ckpt_save_write_stage) {
            start_stage(v, ckpt_save_hash_stage);
            if (wait)
                continue;
            break;
        }
        if (r == 0) {
            meg_host_all_reduce(v->world, v->hash, v->nchunks * CKPT_HEX / (int64_t)sizeof(int64_t), MEG_DTYPE_I64,
                                MEG_REDUCE_SUM);
            r = ckpt_agree(v->world, v->world->rank == 0 ? ckpt_save_commit_stage(v, e) : 0, e);
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
