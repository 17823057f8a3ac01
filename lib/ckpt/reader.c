/* reader.c - read ranges of elements of a parameter, from a checkpoint of any format. */
#include <stdlib.h>
#include "ckpt/internal.h"

struct meg_ckpt_reader {
    const struct meg_params *p;
    struct meg_model_conf model;
    struct ckpt_sources all;
    int *first; /* [p->n + 1] sources first[i] to first[i + 1] - 1 compose parameter i */
};

int meg_ckpt_reader_open(struct meg_ckpt_reader **out, const struct meg_ckpt *c, const struct meg_params *p,
                         struct meg_err *e)
{
    const struct meg_ckpt_shard full = { 0 };
    const struct ckpt_target to = { p, &full };
    struct meg_ckpt_reader *rd = meg_new(sizeof *rd);
    int r, i = 0;

    rd->p = p;
    rd->first = meg_new((size_t)(p->n + 1) * sizeof *rd->first);
    if ((r = meg_ckpt_check_head(c, e)) < 0 || (r = meg_ckpt_model_conf(c, &rd->model, e)) < 0 ||
        (r = ckpt_match_sources(&rd->all, c, &rd->model, p, NULL, e)) < 0)
        goto out;
    if ((r = ckpt_check_sources(c, &rd->all, meg_mesh_one.world, e)) < 0) {
        ckpt_suggest_older(c, e);
        goto out;
    }
    if ((r = ckpt_map_sources(&to, &rd->all, e)) < 0)
        goto out;
    for (int k = 0; k < p->n; k++) {
        rd->first[k] = i;
        while (i < rd->all.n && rd->all.v[i].row == &p->row[k])
            i++;
    }
    rd->first[p->n] = i;
    MEG_ASSERT_EQ(i, rd->all.n);
    *out = rd;
    rd = NULL;
out:
    meg_ckpt_reader_close(rd);
    return r;
}

void meg_ckpt_reader_close(struct meg_ckpt_reader *rd)
{
    if (!rd)
        return;
    free(rd->all.v);
    free(rd->first);
    free(rd);
}

int meg_ckpt_read(const struct meg_ckpt_reader *rd, const struct meg_param *row, int64_t first, int64_t n,
                  enum meg_dtype dtype, void *out, struct meg_err *e)
{
    const int64_t i = row - rd->p->row, begin = row->offset + first;
    const struct meg_elem_range range = { begin, begin + n };
    const struct meg_ckpt_shard shard = { .data = out, .dtype = dtype, .ranges = &range, .nranges = 1 };
    const struct ckpt_target to = { rd->p, &shard };
    int r = 0;

    MEG_ASSERT_LE(first + n, row->numel);
    for (int k = rd->first[i]; r == 0 && k < rd->first[i + 1]; k++)
        r = ckpt_copy_source(&to, &rd->all.v[k], e);
    return r;
}
