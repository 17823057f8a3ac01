/* item.c - open the items of files *.distcp. */
#include <inttypes.h>
#include <stdlib.h>
#include "ckpt/torch_dist/torch_dist.h"

static int map_file(struct ckpt_dist *d, int64_t i, struct meg_err *e)
{
    struct meg_st *st;
    int r;

    if (d->file[i])
        return 0;
    st = meg_new(sizeof *st);
    st->path = ckpt_path(d->dir, d->metadata.path[i]);
    if ((r = meg_mmap_open(&st->map, st->path, e)) == 0)
        d->file[i] = st;
    else
        meg_st_close(st);
    return r;
}

int dist_open_item(struct meg_pt **out, struct meg_st **st, struct ckpt_dist *d, const struct dist_item *item,
                   struct meg_err *e)
{
    struct meg_str from = { 0 };
    const struct meg_st *f;
    int r = map_file(d, item->file, e);

    if (r < 0)
        return r;
    f = d->file[item->file];
    meg_str_printf(&from, "%s: item at byte %" PRId64, f->path, item->at);
    if ((uint64_t)item->at > f->map.n || (uint64_t)item->nbytes > f->map.n - (uint64_t)item->at)
        r = meg_fail(e, MEG_EFORMAT,
                     "%s: it has %" PRId64 " bytes according to .metadata, but the file ends at byte %zu; the file is "
                     "truncated or of another save: copy the checkpoint again",
                     from.s, item->nbytes, f->map.n);
    else if (item->nbytes < 4 || memcmp(f->map.p + item->at, "PK\3\4", 4) != 0)
        r = meg_fail(e, MEG_EFORMAT,
                     "%s: it is not a file of torch.save; the checkpoint is damaged, compressed, or was saved with "
                     "another serialization format: save it again without these options",
                     from.s);
    else
        r = meg_pt_parse(out, from.s, f->map.p + item->at, (size_t)item->nbytes, e);
    if (st)
        *st = d->file[item->file];
    meg_str_free(&from);
    return r;
}
