/* table.c - the table of placements by address, and messages. */
#include "placement/internal.h"
#ifdef MEG_DEBUG
#    include <inttypes.h>
#    include <stdio.h>
#    include <stdlib.h>
#    include <string.h>
#    include "base/mem.h"

/* Ranges in ascending order, each of which ends where the next one begins: the placements, and the parameters. */
static struct table {
    struct placement_range *range;
    int64_t n, cap;
} placements, params;

/* Return the number of ranges that begin at or before p. */
static int64_t find(const struct table *t, const char *p)
{
    int64_t begin = 0, end = t->n;

    while (begin < end) {
        const int64_t i = (begin + end) / 2;

        if (t->range[i].begin <= p)
            begin = i + 1;
        else
            end = i;
    }
    return begin;
}

/* Return the part of the range at p that ends at `end` or before. */
static struct placement_range at(const struct table *t, const char *p, const char *end)
{
    const int64_t i = find(t, p);
    struct placement_range r = i > 0 ? t->range[i - 1] : (struct placement_range){ 0 };

    r.begin = p;
    r.end = i < t->n && t->range[i].begin < end ? t->range[i].begin : end;
    return r;
}

/* Return the index of the range that begins at p; if there is none, split the one at p. */
static int64_t split(struct table *t, const char *p)
{
    const int64_t i = find(t, p);

    if (i > 0 && t->range[i - 1].begin == p)
        return i - 1;
    t->range = meg_grow(t->range, t->n, &t->cap, sizeof *t->range);
    memmove(t->range + i + 1, t->range + i, (size_t)(t->n++ - i) * sizeof *t->range);
    t->range[i] = i > 0 ? t->range[i - 1] : (struct placement_range){ 0 };
    t->range[i].begin = p;
    return i;
}

/* Replace [r.begin, r.end), and merge it with the range before if it is equal. */
static void set(struct table *t, struct placement_range r)
{
    int64_t i, j;

    if (r.begin >= r.end)
        return;
    i = split(t, r.begin);
    j = split(t, r.end);
    if (i > 0 && t->range[i - 1].row == r.row && !t->range[i - 1].work &&
        memcmp(&t->range[i - 1].v, &r.v, sizeof r.v) == 0)
        r.begin = t->range[--i].begin;
    t->range[i] = r;
    memmove(t->range + i + 1, t->range + j, (size_t)(t->n - j) * sizeof r);
    t->n -= j - i - 1;
}

void placement_set(const void *p, size_t nbytes, struct placement v)
{
    set(&placements, (struct placement_range){ .begin = p, .end = (const char *)p + nbytes, .v = v });
}

void placement_set_row(const void *p, size_t nbytes, const struct meg_param *row)
{
    set(&params, (struct placement_range){ .begin = p, .end = (const char *)p + nbytes, .row = row });
}

void placement_set_work(const void *p, size_t nbytes, const struct meg_work *work)
{
    const int64_t begin = split(&placements, p), end = split(&placements, (const char *)p + nbytes);

    for (int64_t i = begin; i < end; i++)
        placements.range[i].work = work;
}

void placement_complete(const struct meg_work *work)
{
    for (int64_t i = 0; i < placements.n; i++)
        if (placements.range[i].work == work)
            placements.range[i].work = NULL;
}

bool placement_next(struct placement_range *r, const char *end)
{
    struct placement_range param;

    if (r->end >= end)
        return false;
    param = at(&params, r->end, end);
    *r = at(&placements, r->end, param.end);
    r->row = param.row;
    if (r->work)
        r->v = placement_all(PLACEMENT_IN_FLIGHT);
    return true;
}

void placement_free(void)
{
    free(placements.range);
    free(params.range);
    placements = params = (struct table){ 0 };
}

struct placement placement_all(int s)
{
    struct placement v = { { 0 }, 0, 0, 0 };

    memset(v.axis, s, sizeof v.axis);
    return v;
}

struct placement placement_of(const void *p, size_t nbytes, int *differs)
{
    const struct placement zero = placement_all(PLACEMENT_ZERO);
    struct placement v = zero;

    *differs = -1;
    for (struct placement_range r = { .end = p }; placement_next(&r, (const char *)p + nbytes);) {
        if (memcmp(&r.v, &zero, sizeof zero) == 0)
            continue;
        if (memcmp(&v, &zero, sizeof zero) != 0 && memcmp(&r.v, &v, sizeof v) != 0)
            for (*differs = 0; *differs + 1 < placement_naxes && r.v.axis[*differs] == v.axis[*differs];)
                ++*differs;
        v = r.v;
    }
    return v;
}

void placement_copy(const void *dst, size_t to, const void *src, size_t from, int64_t n)
{
    const char *begin = src;

    for (struct placement_range r = { .end = begin }; placement_next(&r, begin + (size_t)n * from);)
        placement_set((const char *)dst + (size_t)(r.begin - begin) / from * to, (size_t)(r.end - r.begin) / from * to,
                      r.v);
}

bool placement_is_sharded(int s)
{
    return s >= MEG_PLACEMENT_ROWS && s <= MEG_PLACEMENT_FLAT;
}

const char *placement_name(int s)
{
    static const char *const name[] = { [MEG_PLACEMENT_UNKNOWN] = "of unknown placement",
                                        [PLACEMENT_IN_FLIGHT] = "in flight",
                                        [PLACEMENT_ZERO] = "zero",
                                        [MEG_PLACEMENT_REPLICATED] = "replicated",
                                        [MEG_PLACEMENT_ROWS] = "sharded(0)",
                                        [MEG_PLACEMENT_COLUMNS] = "sharded(1)",
                                        [MEG_PLACEMENT_OUTER] = "sharded(outer)",
                                        [MEG_PLACEMENT_FLAT] = "sharded(flat)",
                                        [MEG_PLACEMENT_PARTIAL] = "partial(sum)",
                                        [PLACEMENT_MERGING] = "partial(attention)",
                                        [PLACEMENT_RECEIVED] = "partial(ring)" };

    return name[s];
}

const struct meg_param *placement_param(const void *p)
{
    return at(&params, p, p).row;
}

void placement_fail(const char *op, const char *tensor, const void *p, int placement, int axis, const char *fmt, ...)
{
    const struct meg_param *row = placement_param(p);
    const struct placement_axis *a = &placement_axis[axis];
    char text[300], where[80] = "", param[200] = "", line[800];

    MEG_FORMAT_ARGS(text, fmt);
    if (meg_device_layer >= 0)
        snprintf(where, sizeof where, ", layer %" PRId64, meg_device_layer);
    if (row && strcmp(row->name, tensor) != 0)
        snprintf(param, sizeof param, " (%s)", row->name);
    snprintf(line, sizeof line,
             "%s: bug: placement: rank %d, step %" PRId64 "%s: %s: %s%s is %s over %s (%" PRId64 " ranks); %s\n",
             meg_progname(), placement_mesh->world->rank, meg_device_step, where, op, tensor, param,
             placement_name(placement), a->name, a->size, text);
    fputs(line, stderr); /* in one call, because other ranks may write, too */
    abort();
}
#endif
