/* tensors.c - list the tensor files of a checkpoint from the parameter table, and the bytes that a rank writes. */
#include <stdlib.h>
#include "ckpt/internal.h"

/*
 * Print the file name of layer group i to buf.  Group 0 is the embedding, the last group is the head, and any other
 * group i is layer i - 1.  With the prefix "model", the name of group 1 is "model-1-layer-00000.safetensors".
 */
static void name_file(char buf[64], const char *prefix, int i, int nlayer_groups)
{
    if (i == 0)
        snprintf(buf, 64, "%s-0-embedding.safetensors", prefix);
    else if (i == nlayer_groups - 1)
        snprintf(buf, 64, "%s-2-head.safetensors", prefix);
    else
        snprintf(buf, 64, "%s-1-layer-%05d.safetensors", prefix, i - 1);
}

static const char *tensor_name(char buf[CKPT_NAME_CHARS], const struct meg_ckpt_shard *shard,
                               const struct meg_param *row)
{
    return shard->name ? ckpt_optim_name(buf, shard->name, row->name) : row->name;
}

static void add_tensor(struct ckpt_file *f, const struct meg_ckpt_shard *shard, const struct meg_param *row)
{
    char name[CKPT_NAME_CHARS];
    struct meg_st_tensor *t = &f->t[f->n++];

    *t = (struct meg_st_tensor){ .name = meg_strdup(tensor_name(name, shard, row)),
                                 .dtype = meg_dtype_name(ckpt_shard_dtype(shard, row)),
                                 .ndim = row->ndim };
    memcpy(t->dim, row->dim, (size_t)row->ndim * sizeof *row->dim);
}

/*
 * Fill f, one file per layer group.  A file has one tensor for each pair of a parameter of the layer group and a shard.
 */
static void add_files(struct ckpt_file *f, const char *prefix, const struct meg_params *p,
                      const struct meg_ckpt_shard *shard, int nshards)
{
    for (int i = 0; i < p->nlayer_groups; i++, f++) {
        name_file(f->name, prefix, i, p->nlayer_groups);
        f->t = meg_new((size_t)((p->first_row[i + 1] - p->first_row[i]) * nshards) * sizeof *f->t + 1);
        for (int k = p->first_row[i]; k < p->first_row[i + 1]; k++)
            for (int j = 0; j < nshards; j++)
                if (ckpt_has_tensor(&shard[j], &p->row[k]))
                    add_tensor(f, &shard[j], &p->row[k]);
        meg_st_build_header(f->t, f->n, false, &f->header);
        f->nbytes = (int64_t)f->header.n;
        for (int k = 0; k < f->n; k++)
            f->nbytes += f->t[k].nbytes;
    }
}

int ckpt_list_files(struct ckpt_file **out, const struct meg_ckpt_save_args *s)
{
    const int n = s->params->nlayer_groups, nprefixes = s->noptim ? 2 : 1;
    struct ckpt_file *f = meg_new((size_t)(nprefixes * n) * sizeof *f);

    add_files(f, "model", s->params, &s->weights, 1);
    if (s->noptim)
        add_files(f + n, "optim", s->params, s->optim, s->noptim);
    *out = f;
    return nprefixes * n;
}

void ckpt_free_files(struct ckpt_file *f, int n)
{
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < f[i].n; k++)
            free((char *)f[i].t[k].name);
        free(f[i].t);
        meg_str_free(&f[i].header);
    }
    free(f);
}

struct extents {
    struct ckpt_extent *v;
    int64_t n, cap;
};

/*
 * Split nbytes consecutive bytes into extents of at most CKPT_CHUNK bytes, and add them to x.  `begin` describes the
 * first byte; `size` is the number of bytes per element.
 */
static void add_extent(struct extents *x, struct ckpt_extent begin, int64_t nbytes, int64_t size)
{
    for (int64_t at = 0, part; at < nbytes; at += part) {
        struct ckpt_extent part_extent = begin;

        part = nbytes - at < CKPT_CHUNK ? nbytes - at : CKPT_CHUNK;
        part_extent.offset += at;
        part_extent.data = begin.data ? begin.data + at : NULL;
        part_extent.nbytes = (size_t)part;
        part_extent.first += at / size;

        x->v = meg_grow(x->v, x->n, &x->cap, sizeof *x->v);
        x->v[x->n++] = part_extent;
    }
}

/*
 * Add the extents of one tensor that this rank writes.  If the tensor is sharded along its inner axis, an extent is at
 * most one row.  Each extent is written by its own pwrite, and the kernel and the file system merge the writes.  An
 * exchange over the tensor-parallel group could build larger extents, but would require a second copy of the state.  In
 * addition, the shards of a distributed optimizer are not aligned between the ranks of the group.
 */
static void add_param(struct extents *x, const struct ckpt_file *f, int file, const struct meg_ckpt_save_args *s,
                      const struct meg_ckpt_shard *shard, struct meg_elem_range write, const struct meg_param *row)
{
    const enum meg_dtype dtype = ckpt_shard_dtype(shard, row);
    const int64_t size = (int64_t)meg_dtype_size(dtype);
    char name[CKPT_NAME_CHARS];
    const struct meg_st_tensor *t = meg_st_find_written(f->t, f->n, tensor_name(name, shard, row), dtype);
    struct ckpt_shard_range part;
    struct ckpt_range_iter it;

    ckpt_range_iter_begin(&it, s->params, shard, row, 0, row->numel);
    while (ckpt_range_iter_next(&it, &part))
        if (meg_param_is_counted(row, part.is_tp_replica, s->mesh) && ckpt_clip_range(&part, write)) {
            const struct ckpt_extent begin = {
                .file = file,
                .offset = t->file_offset + part.tensor_offset * size,
                .data = s->reader ? NULL : ckpt_shard_element(shard, s->params, part.shard_offset),
                .row = row,
                .first = part.tensor_offset,
            };

            add_extent(x, begin, part.n * size, size);
        }
}

int64_t ckpt_list_extents(struct ckpt_extent **out, const struct ckpt_file *f, int nfiles,
                          const struct meg_ckpt_save_args *s)
{
    const struct meg_params *p = s->params;
    struct meg_elem_range(*optim_write)[MEG_DP_GROUPS] = meg_new((size_t)s->noptim * sizeof *optim_write + 1);
    struct meg_elem_range weights_write[MEG_DP_GROUPS];
    struct extents x = { 0 };

    ckpt_write_ranges(weights_write, p, s->mesh, &s->weights);
    for (int j = 0; j < s->noptim; j++)
        ckpt_write_ranges(optim_write[j], p, s->mesh, &s->optim[j]);
    for (int i = 0; i < nfiles; i++) {
        const bool is_optim = i >= p->nlayer_groups;
        const struct meg_ckpt_shard *shard = is_optim ? s->optim : &s->weights;
        const int *first = &p->first_row[i % p->nlayer_groups];

        for (int k = first[0]; k < first[1]; k++)
            for (int j = 0; j < (is_optim ? s->noptim : 1); j++)
                if (ckpt_has_tensor(&shard[j], &p->row[k]))
                    add_param(&x, &f[i], i, s, &shard[j],
                              (is_optim ? optim_write[j] : weights_write)[p->row[k].dp_group], &p->row[k]);
    }
    free(optim_write);
    *out = x.v;
    return x.n;
}
