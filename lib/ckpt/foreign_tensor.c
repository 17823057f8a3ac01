/* foreign_tensor.c - build the tensors of other formats from the weights to save. */
#include <stdlib.h>
#include "ckpt/internal.h"

/* Store elements [first, first + n) of a parameter as f32 in out. */
static int read_native(float *out, const struct meg_ckpt_save_args *s, const struct meg_param *row, int64_t first,
                       int64_t n, struct meg_err *e)
{
    if (s->reader)
        return meg_ckpt_read(s->reader, row, first, n, MEG_DTYPE_F32, out, e);
    memcpy(out, (const float *)s->weights.data + row->offset + first, (size_t)n * sizeof *out);
    return 0;
}

/*
 * Copy the rows of one row map to a foreign tensor.  Rows that are adjacent in the native tensor are read together, as
 * many as fit in buf [nbuf].
 */
static int copy_rows(float *foreign, const struct meg_ckpt_save_args *s, const struct meg_param *row,
                     const struct ckpt_row_map *p, float *buf, int64_t nbuf, struct meg_err *e)
{
    int r = 0;

    for (int64_t i = 0, n; r == 0 && i < p->n; i += n) {
        const int64_t most = nbuf / p->native_cols, block = p->dst_block - i % p->dst_block;
        const int64_t left = p->n - i < block ? p->n - i : block;
        struct ckpt_row_map part = *p;

        n = left < most ? left : most;
        part.n = n;
        part.src_row += i * p->src_step;
        part.dst_row = 0;
        r = read_native(buf, s, row, ckpt_native_row(p, i) - p->col, n * p->native_cols, e);
        if (r == 0)
            ckpt_to_foreign(foreign, buf, &part);
    }
    return r;
}

int ckpt_build_foreign(float *foreign, const struct meg_ckpt_save_args *s, const struct ckpt_tp_shard *shard,
                       const struct meg_param *row, enum ckpt_remap remap, struct meg_err *e)
{
    enum { NBUF = 1 << 20 };
    const int64_t cols = row->ndim > 1 ? row->dim[1] : 1, nbuf = cols > NBUF ? cols : NBUF;
    float *buf = malloc((size_t)nbuf * sizeof *buf);
    struct ckpt_row_map map[CKPT_MAX_ROW_MAPS];
    int r = 0;

    if (!buf)
        return meg_fail(e, MEG_EFAIL, "out of memory while writing parameter %s", row->name);
    for (int i = ckpt_row_maps(map, shard, row, remap); r == 0 && i-- > 0;)
        r = copy_rows(foreign, s, row, &map[i], buf, nbuf, e);
    if (r == 0 && row->is_vocab && map[0].n < map[0].rows) {
        const int64_t rows = map[0].rows - map[0].n;

        r = read_native(buf, s, row, (row->dim[0] - 1) * cols, cols, e);
        if (row->ndim == 1)
            *buf = 0;
        for (int64_t k = 0; r == 0 && k < rows; k++)
            memcpy(foreign + (map[0].n + k) * cols, buf, (size_t)cols * sizeof *foreign);
    }
    free(buf);
    return r;
}
