/*
 * tensor_remap.c - convert between the layouts of foreign and native tensors.
 *
 * A foreign tensor consists of several parts, such as queries, keys and values.  In the native tensor, the rows of
 * a part are blocks of rows at regular intervals.  A struct ckpt_row_map describes one part.
 */
#include <string.h>
#include "ckpt/internal.h"
#include "tensor/half.h"

static bool is_transposed(enum ckpt_remap remap)
{
    return remap == CKPT_TRANSPOSED || remap == CKPT_QKV_TRANSPOSED;
}

/* Return the number of tensor-parallel shards into which part i of dimension k of a foreign tensor is split. */
static int64_t shards_of(const struct ckpt_tp_shard *shard, const struct meg_param *row, int k, int i,
                         enum ckpt_remap remap)
{
    return row->sharding[k].part[i].axis == MEG_AXIS_TP && remap != CKPT_REPLICATED ? shard->tp_size : 1;
}

/* Return the number of rows of part i of a foreign tensor. */
static int64_t part_rows(const struct ckpt_tp_shard *shard, const struct meg_param *row, int i, enum ckpt_remap remap)
{
    return (row->is_vocab ? shard->vocab_rows : row->sharding[0].part[i].n) / shards_of(shard, row, 0, i, remap);
}

/* Return the number of rows of a foreign tensor before any transposition. */
static int64_t foreign_rows(const struct ckpt_tp_shard *shard, const struct meg_param *row, enum ckpt_remap remap)
{
    const struct meg_model_conf *m = shard->model;
    int64_t rows = 0;

    switch (remap) {
    case CKPT_Q: return m->attn.a * m->attn.d;
    case CKPT_K:
    case CKPT_V: return m->attn.g * m->attn.d;
    case CKPT_GATE:
    case CKPT_UP: return m->mlp.f;
    default: break;
    }
    for (int i = 0; i < row->sharding[0].nparts; i++)
        rows += part_rows(shard, row, i, remap);
    return rows;
}

int ckpt_foreign_shape(int64_t dim[MEG_PARAM_MAXDIM], const struct ckpt_tp_shard *shard, const struct meg_param *row,
                       enum ckpt_remap remap)
{
    dim[0] = foreign_rows(shard, row, remap);
    for (int k = 1; k < row->ndim; k++)
        dim[k] = row->dim[k] / shards_of(shard, row, k, 0, remap);
    if (row->ndim > 1 && is_transposed(remap)) {
        const int64_t rows = dim[0];

        dim[0] = dim[1];
        dim[1] = rows;
    }
    return row->ndim;
}

/*
 * Map n consecutive foreign rows, from row `src` on, to blocks of `block` consecutive native rows.  Block i begins at
 * native row dst + i * stride.
 */
static struct ckpt_row_map row_map(int64_t n, int64_t src, int64_t dst, int64_t block, int64_t stride)
{
    return (struct ckpt_row_map){
        .n = n, .src_row = src, .src_step = 1, .dst_row = dst, .dst_block = block, .dst_stride = stride
    };
}

/* Map the blocks of CKPT_QVK_BLOCKS, each of which has the queries, values and keys of a quarter of the heads. */
static int qvk_row_maps(struct ckpt_row_map *out, int64_t d, int64_t heads)
{
    const int64_t rows = heads / CKPT_NUM_BLOCKS * d;

    for (int i = 0; i < 3 * CKPT_NUM_BLOCKS; i++) {
        const int block = i / 3, part = i % 3, native_part = part == 0 ? 0 : 3 - part;

        out[i] = row_map(rows, i * rows, 3 * block * rows + native_part * d, d, 3 * d);
    }
    return 3 * CKPT_NUM_BLOCKS;
}

/*
 * Map the queries, keys and values of the rank's query groups, which the native tensor interleaves by group.  Return
 * the number of maps: 1 for a tensor of only queries, keys or values, 2 for a tensor of keys and values
 * (cross-attention), and 3 for a tensor of all three, or for each block of it.
 */
static int qkv_row_maps(struct ckpt_row_map *out, const struct ckpt_tp_shard *shard, const struct meg_param *row,
                        enum ckpt_remap remap)
{
    const struct meg_model_conf *m = shard->model;
    const int64_t d = m->attn.d, groups = m->attn.g / shard->tp_size;
    const int64_t group = row->dim[0] / m->attn.g, q = group - 2 * d; /* rows, query rows of a group */
    const int64_t dst = shard->tp_rank * groups * group;
    const int nparts = q > 0 ? 3 : 2;

    if (remap == CKPT_Q)
        out[0] = row_map(groups * q, 0, dst, q, group);
    else if (remap == CKPT_K || remap == CKPT_V)
        out[0] = row_map(groups * d, 0, dst + q + (remap == CKPT_V ? d : 0), d, group);
    if (remap == CKPT_Q || remap == CKPT_K || remap == CKPT_V)
        return 1;
    if (remap == CKPT_QVK_BLOCKS)
        return qvk_row_maps(out, d, groups);
    for (int part = 0; part < nparts; part++) {
        const bool is_q = part == 0 && q > 0;
        const int64_t at = is_q ? 0 : group - (nparts - part) * d, rows = is_q ? q : d; /* in the group */

        out[part] = row_map(groups * rows, groups * at, dst + at, rows, group);
        if (remap == CKPT_QKV_INTERLEAVED) { /* requires one key head per query head */
            out[part].src_row = part;
            out[part].src_step = nparts;
        }
    }
    return nparts;
}

/* Map the parts of the native rows.  The foreign rows, those of the rank's shard, include padding of the vocabulary. */
static int part_row_maps(struct ckpt_row_map *out, const struct ckpt_tp_shard *shard, const struct meg_param *row,
                         enum ckpt_remap remap)
{
    int64_t src = 0, part = 0; /* first row of the part in the foreign and in the native tensor */
    int i;

    for (i = 0; i < row->sharding[0].nparts; i++) {
        const int64_t rows = part_rows(shard, row, i, remap);
        const int64_t dst = part + (shards_of(shard, row, 0, i, remap) > 1 ? shard->tp_rank * rows : 0);
        const int64_t left = row->dim[0] > dst ? row->dim[0] - dst : 0;

        out[i] = row_map(rows < left ? rows : left, src, dst, rows, rows);
        src += rows;
        part += row->sharding[0].part[i].n;
    }
    return i;
}

int ckpt_row_maps(struct ckpt_row_map out[CKPT_MAX_ROW_MAPS], const struct ckpt_tp_shard *shard,
                  const struct meg_param *row, enum ckpt_remap remap)
{
    const int64_t f = shard->model->mlp.f, rows = foreign_rows(shard, row, remap);
    const int64_t cols = row->ndim > 1 ? row->dim[1] / shards_of(shard, row, 1, 0, remap) : 1;
    int n = 1;

    switch (remap) {
    case CKPT_SAME:
    case CKPT_TRANSPOSED:
    case CKPT_REPLICATED: n = part_row_maps(out, shard, row, remap); break;
    case CKPT_GATE:
    case CKPT_UP: out[0] = row_map(f, 0, remap == CKPT_UP ? f : 0, f, f); break;
    default: n = qkv_row_maps(out, shard, row, remap); break;
    }
    for (int i = 0; i < n; i++) {
        out[i].rows = rows;
        out[i].cols = cols;
        out[i].col = shards_of(shard, row, 1, 0, remap) > 1 ? shard->tp_rank * cols : 0;
        out[i].native_cols = row->ndim > 1 ? row->dim[1] : 1;
        out[i].is_transposed = row->ndim > 1 && is_transposed(remap);
    }
    return n;
}

int64_t ckpt_native_row(const struct ckpt_row_map *p, int64_t i)
{
    return (p->dst_row + i / p->dst_block * p->dst_stride + i % p->dst_block) * p->native_cols + p->col;
}

/* Return the element offset in the foreign tensor at which row i of the map begins. */
static int64_t foreign_row(const struct ckpt_row_map *p, int64_t i)
{
    const int64_t r = p->src_row + i * p->src_step;

    return p->is_transposed ? r : r * p->cols;
}

/* In a transposed tensor, the n rows are adjacent columns.  They are read together to use complete cache lines. */
void ckpt_rows_from_foreign(float *out, const void *foreign, const char *dtype, const struct ckpt_row_map *p,
                            int64_t first, int64_t n)
{
    const int64_t size = strcmp(dtype, "F32") == 0 ? 4 : 2;
    const char *from = foreign;
    float v[CKPT_ROWS_MAX];

    if (!p->is_transposed) {
        for (int64_t i = 0; i < n; i++)
            ckpt_to_f32(out + i * p->cols, from + foreign_row(p, first + i) * size, dtype, p->cols);
        return;
    }
    for (int64_t c = 0; c < p->cols; c++) {
        ckpt_to_f32(v, from + (foreign_row(p, first) + c * p->rows) * size, dtype, n);
        for (int64_t i = 0; i < n; i++)
            out[i * p->cols + c] = v[i];
    }
}

void ckpt_to_foreign(float *foreign, const float *native, const struct ckpt_row_map *p)
{
    const int64_t step = p->is_transposed ? p->rows : 1;

    for (int64_t c0 = 0; c0 < p->cols; c0 += CKPT_ROWS_MAX)
        for (int64_t i = 0; i < p->n; i++) {
            const float *from = native + ckpt_native_row(p, i);
            float *to = foreign + foreign_row(p, i);

            for (int64_t c = c0; c < p->cols && c < c0 + CKPT_ROWS_MAX; c++)
                to[c * step] = from[c];
        }
}

bool ckpt_is_float(const char *dtype)
{
    return strcmp(dtype, "F32") == 0 || strcmp(dtype, "BF16") == 0 || strcmp(dtype, "F16") == 0;
}

void ckpt_to_f32(float *out, const void *in, const char *dtype, int64_t n)
{
    const unsigned char *p = in;
    const bool is_f16 = strcmp(dtype, "F16") == 0;

    if (strcmp(dtype, "F32") == 0) {
        memcpy(out, in, (size_t)n * sizeof *out);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;

        memcpy(&h, p + 2 * i, sizeof h);
        out[i] = is_f16 ? meg_from_f16(h) : meg_from_bf16(h);
    }
}
