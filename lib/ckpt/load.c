/* load.c - fill shards from the tensors of a checkpoint. */
#include <stdlib.h>
#include <string.h>
#include "ckpt/torch_dist/open.h"

static bool is_host_memory(const struct meg_ckpt_shard *s)
{
    return !s->device || s->device->op->is_host_memory;
}

/* Store data [n], which has the dtype of elements of `row` in the shard, in the shard at element `offset`. */
static void set_elements(const struct ckpt_target *to, const struct meg_param *row, int64_t offset, const void *data,
                         int64_t n)
{
    const struct meg_ckpt_shard *s = to->shard;
    const size_t nbytes = (size_t)n * meg_dtype_size(ckpt_shard_dtype(s, row));
    void *out = ckpt_shard_element(s, to->p, offset);

    if (is_host_memory(s)) {
        memcpy(out, data, nbytes);
        return;
    }
#pragma omp critical(ckpt_upload)
    s->device->op->upload(s->device->compute, out, data, nbytes);
}

/* Convert v [n] to the dtype of elements of `row` in the shard, and store the result at element `offset`. */
static void set_from_f32(const struct ckpt_target *to, const struct meg_param *row, int64_t offset, const float *v,
                         int64_t n)
{
    const enum meg_dtype dtype = ckpt_shard_dtype(to->shard, row);
    uint16_t half[1 << 10];

    if (is_host_memory(to->shard))
        meg_dtype_from_f32(ckpt_shard_element(to->shard, to->p, offset), dtype, v, n);
    else if (dtype == MEG_DTYPE_F32)
        set_elements(to, row, offset, v, n);
    else
        for (int64_t i = 0, m; i < n; i += m) {
            m = n - i < (int64_t)(sizeof half / sizeof *half) ? n - i : (int64_t)(sizeof half / sizeof *half);
            meg_dtype_from_f32(half, dtype, v + i, m);
            set_elements(to, row, offset + i, half, m);
        }
}

/* Store v, the f32 elements [first, first + n) of a parameter; elements that the shard does not contain are skipped. */
static void store(const struct ckpt_target *to, const struct meg_param *row, int64_t first, int64_t n, const float *v)
{
    struct ckpt_shard_range s;
    struct ckpt_range_iter it;

    ckpt_range_iter_begin(&it, to->p, to->shard, row, first, n);
    while (ckpt_range_iter_next(&it, &s))
        set_from_f32(to, row, s.shard_offset, v + (s.tensor_offset - first), s.n);
}

/* Return the tensor that has the elements of a source. */
static struct ckpt_mapped_tensor stored_tensor(const struct ckpt_source *s)
{
    return s->tile ? (struct ckpt_mapped_tensor){ s->tile->st, &s->tile->t }
                   : (struct ckpt_mapped_tensor){ s->st, s->t };
}

static bool has_shard_dtype(const struct ckpt_target *to, const struct ckpt_source *s)
{
    return strcmp(s->t->dtype, meg_dtype_name(ckpt_shard_dtype(to->shard, s->row))) == 0;
}

/* Store n elements of a source in the shard at element `offset`.  buf [n] is used unless the dtypes are the same. */
static void copy_elements(const struct ckpt_target *to, const struct ckpt_source *s, int64_t offset, const char *from,
                          int64_t n, float *buf)
{
    if (has_shard_dtype(to, s)) {
        set_elements(to, s->row, offset, from, n);
    } else {
        ckpt_to_f32(buf, from, s->t->dtype, n);
        set_from_f32(to, s->row, offset, buf, n);
    }
}

/* Copy an unsharded tensor in native layout.  Only the elements that the shard holds are read. */
static void copy_contiguous(const struct ckpt_target *to, const struct ckpt_source *s, const char *data, float *buf,
                            int64_t nbuf)
{
    const size_t src_size = (size_t)(s->t->nbytes / s->row->numel);
    const int64_t most = has_shard_dtype(to, s) ? CKPT_DROP_NBYTES / (int64_t)src_size : nbuf;
    struct ckpt_shard_range part;
    struct ckpt_range_iter it;

    ckpt_range_iter_begin(&it, to->p, to->shard, s->row, 0, s->row->numel);
    while (ckpt_range_iter_next(&it, &part))
        for (int64_t i = 0, n; i < part.n; i += n) {
            const char *from = data + (size_t)(part.tensor_offset + i) * src_size;

            n = part.n - i < most ? part.n - i : most;
            copy_elements(to, s, part.shard_offset + i, from, n, buf);
            meg_mmap_drop(&s->st->map, from, (size_t)n * src_size);
        }
}

/* Return whether the shard contains any of the elements [first, first + n) of a parameter. */
static bool is_in_shard(const struct ckpt_target *to, const struct meg_param *row, int64_t first, int64_t n)
{
    struct ckpt_shard_range s;
    struct ckpt_range_iter it;

    ckpt_range_iter_begin(&it, to->p, to->shard, row, first, n);
    return ckpt_range_iter_next(&it, &s);
}

/* Copy the rows of one row map from a tensor in a foreign layout, up to CKPT_ROWS_MAX rows at a time. */
static void copy_row_map(const struct ckpt_target *to, const struct ckpt_source *s, const char *data,
                         const struct ckpt_row_map *p, float *buf)
{
    const int64_t row_nbytes = p->cols * meg_st_dtype_nbytes(s->t->dtype);

    for (int64_t i = 0, n; i < p->n; i += n) {
        bool is_wanted = false;

        n = p->n - i < CKPT_ROWS_MAX ? p->n - i : CKPT_ROWS_MAX;
        for (int64_t k = 0; k < n; k++)
            is_wanted = is_wanted || is_in_shard(to, s->row, ckpt_native_row(p, i + k), p->cols);
        if (!is_wanted)
            continue;
        ckpt_rows_from_foreign(buf, data, s->t->dtype, p, i, n);
        for (int64_t k = 0; k < n; k++)
            store(to, s->row, ckpt_native_row(p, i + k), p->cols, buf + k * p->cols);
        if (!p->is_transposed && p->src_step == 1)
            meg_mmap_drop(&s->st->map, data + (p->src_row + i) * row_nbytes, (size_t)(n * row_nbytes));
    }
}

/*
 * Set [*first, *first + *n) to the elements of a parameter from the first to the last one of a source.  Padding rows of
 * the vocabulary are elements after the last one of the parameter, which no shard contains.
 */
static void span_of(const struct ckpt_source *s, int64_t *first, int64_t *n)
{
    const int64_t cols = s->row->ndim > 1 ? s->row->dim[1] : 1;

    *first = s->tile ? s->tile->row * cols + s->tile->col : 0;
    *n = s->tile ? (s->tile->t.dim[0] - 1) * cols + s->tile->t.dim[1] : s->row->numel;
}

/* Copy the elements of a tile that the shard holds: ranges of its rows or, if it has all columns, of several rows. */
static void copy_tile(const struct ckpt_target *to, const struct ckpt_source *s, const char *data, float *buf,
                      int64_t nbuf)
{
    const struct meg_st_tile *tile = s->tile;
    const int64_t cols = s->row->ndim > 1 ? s->row->dim[1] : 1, size = meg_st_dtype_nbytes(s->t->dtype);
    const char *used = data; /* the pages before it are dropped */
    struct ckpt_shard_range part;
    struct ckpt_range_iter it;
    int64_t first, n;

    span_of(s, &first, &n);
    ckpt_range_iter_begin(&it, to->p, to->shard, s->row, first, n);
    while (ckpt_range_iter_next(&it, &part))
        for (int64_t at = part.tensor_offset, end = at + part.n; at < end;) {
            const int64_t row = at / cols, left = row * cols + tile->col;
            const int64_t right = tile->t.dim[1] < cols ? left + tile->t.dim[1] : end;
            const int64_t begin = at > left ? at : left, stop = right < end ? right : end;
            const char *from = data + ((row - tile->row) * tile->t.dim[1] + begin - left) * size;

            n = stop - begin < nbuf ? stop - begin : nbuf;
            if (n <= 0) {
                at = (row + 1) * cols;
                continue;
            }
            copy_elements(to, s, part.shard_offset + begin - part.tensor_offset, from, n, buf);
            at = begin + n;
            if (from + n * size - used >= CKPT_DROP_NBYTES) {
                meg_mmap_drop(&tile->st->map, used, (size_t)(from + n * size - used));
                used = from + n * size;
            }
        }
}

int ckpt_copy_source(const struct ckpt_target *to, const struct ckpt_source *s, struct meg_err *e)
{
    enum { NBUF = 1 << 14 };
    const struct ckpt_mapped_tensor stored = stored_tensor(s);
    const int64_t cols = s->row->ndim > 1 ? s->row->dim[1] : 1;
    const int64_t nbuf = CKPT_ROWS_MAX * cols > NBUF ? CKPT_ROWS_MAX * cols : NBUF;
    struct ckpt_row_map map[CKPT_MAX_ROW_MAPS];
    int64_t first, n;
    const char *data;
    void *block;
    float *buf;

    span_of(s, &first, &n);
    if (!is_in_shard(to, s->row, first, n))
        return 0;
    buf = malloc((size_t)nbuf * sizeof *buf);
    data = meg_st_data(stored.t, &block);
    if (!buf || !data) {
        free(buf);
        free(block);
        return meg_fail(e, MEG_EFAIL, "%s: out of memory while loading tensor %s", stored.st->path, s->t->name);
    }
    if (s->tile)
        copy_tile(to, s, data, buf, nbuf);
    else if (s->remap == CKPT_SAME && s->tp.tp_size == 1 && meg_st_numel(s->t) == s->row->numel)
        copy_contiguous(to, s, data, buf, nbuf);
    else
        for (int i = ckpt_row_maps(map, &s->tp, s->row, s->remap); i-- > 0;)
            copy_row_map(to, s, data, &map[i], buf);
    ckpt_drop_pages(stored.st, stored.t);
    free(buf);
    free(block);
    return 0;
}

int ckpt_map_sources(const struct ckpt_target *to, const struct ckpt_sources *all, struct meg_err *e)
{
    int r = 0;

    for (int i = 0; r == 0 && i < all->n; i++)
        if (is_in_shard(to, all->v[i].row, 0, all->v[i].row->numel))
            r = meg_st_map(stored_tensor(&all->v[i]).st, e);
    return r;
}

static int copy_all(const struct ckpt_target *to, const struct ckpt_sources *all, struct meg_err *e)
{
    int r = ckpt_map_sources(to, all, e);

    if (r < 0)
        return r;
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < all->n; i++) {
        struct meg_err item_error;

        if (ckpt_copy_source(to, &all->v[i], &item_error) < 0) {
#pragma omp critical(ckpt_copy)
            {
                r = item_error.code;
                if (e)
                    *e = item_error;
            }
        }
    }
    return r;
}

int ckpt_check_sources(const struct meg_ckpt *c, const struct ckpt_sources *all, const struct meg_comm *world,
                       struct meg_err *e)
{
    struct ckpt_mapped_tensor *m = meg_new((size_t)all->n * sizeof *m);
    int r;

    for (int i = 0; i < all->n; i++)
        m[i] = stored_tensor(&all->v[i]);
    r = ckpt_verify_checksums(c->manifest, m, all->n, world->rank, world->size, e);
    free(m);
    return r;
}

/*
 * Return whether a shard is filled from the weights of the checkpoint: the shard of the weights and, if the checkpoint
 * has no main parameters, also the shard of the main parameters.
 */
static bool is_weights(const struct meg_ckpt *c, const struct meg_ckpt_shard *shard)
{
    return !shard->name ||
           (strcmp(shard->name, MEG_CKPT_MAIN_PARAMS) == 0 && !meg_ckpt_has_optim_state(c, shard->name));
}

static int load_shard(const struct meg_ckpt *c, const struct meg_model_conf *m, const struct meg_params *p,
                      const struct meg_comm *world, const struct meg_ckpt_shard *shard, struct meg_err *e)
{
    const struct ckpt_target to = { p, shard };
    const bool from_weights = is_weights(c, shard);
    struct ckpt_sources all = { 0 };
    struct meg_ckpt optim;
    int r = 0;

    if (!from_weights &&
        ((c->dist && (r = ckpt_check_dist_optim(c->dist, e)) < 0) || (r = ckpt_open_optim(&optim, c, e)) < 0))
        return r;
    if ((r = ckpt_match_sources(&all, from_weights ? c : &optim, m, p, from_weights ? NULL : shard, e)) < 0)
        goto out;
    if ((r = ckpt_check_sources(c, &all, world, e)) == 0)
        r = copy_all(&to, &all, e);
    else
        ckpt_suggest_older(c, e);
out:
    free(all.v);
    if (!from_weights)
        ckpt_close_files(&optim);
    return r;
}

int meg_ckpt_load(const struct meg_ckpt *c, const struct meg_params *p, const struct meg_mesh *mesh,
                  const struct meg_ckpt_shard *shard, int n, struct meg_err *e)
{
    struct meg_model_conf m;
    struct meg_err local_error;
    int r;

    if (!e)
        e = &local_error;
    r = meg_ckpt_model_conf(c, &m, e);
    for (int i = 0; r == 0 && i < n; i++)
        r = load_shard(c, &m, p, mesh->world, &shard[i], e);
    return ckpt_agree(mesh->world, r, e);
}

bool meg_ckpt_has_optim_state(const struct meg_ckpt *c, const char *name)
{
    const size_t n = strlen(name);
    const char *key;
    json_t *v;

    if (c->dist)
        return ckpt_has_dist_optim_state(c->dist, name);
    json_object_foreach(c->manifest, key, v)
    {
        if (ckpt_is_optim_name(key) && strncmp(key + sizeof CKPT_OPTIM_PREFIX - 1, name, n) == 0 &&
            key[sizeof CKPT_OPTIM_PREFIX - 1 + n] == '.')
            return true;
    }
    return false;
}
