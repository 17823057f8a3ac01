/* table.c - the table of placements by address, and messages. */
#include "placement/internal.h"
#ifdef MEG_DEBUG
#    include <inttypes.h>
#    include <stdarg.h>
#    include <stdio.h>
#    include <stdlib.h>
#    include <string.h>
#    include "base/mem.h"

struct placement_table placement_table, placement_declared;

/* Return the index of the first range that ends after p. */
static int find(const struct placement_table *t, const char *p)
{
    int begin = 0, end = t->n;

    while (begin < end) {
        const int i = (begin + end) / 2;

        if (t->range[i].end > p)
            end = i;
        else
            begin = i + 1;
    }
    return begin;
}

/* Replace the ranges of the table in [begin, end) by n ranges, n <= 1. */
static void replace(struct placement_table *t, const char *begin, const char *end, const struct placement_range *with,
                    int n)
{
    struct placement_range part[3];
    int i, j, nparts = 0;

    if (begin >= end)
        return;
    i = j = find(t, begin);
    while (j < t->n && t->range[j].begin < end)
        j++;
    if (i < j && t->range[i].begin < begin) {
        part[nparts] = t->range[i];
        part[nparts++].end = begin;
    }
    if (n)
        part[nparts++] = *with;
    if (i < j && t->range[j - 1].end > end) {
        part[nparts] = t->range[j - 1];
        part[nparts++].begin = end;
    }
    if (t->n + nparts > t->cap)
        t->range = meg_realloc_array(t->range, (size_t)(t->cap = 2 * (t->n + nparts)), sizeof *t->range);
    if (j < t->n)
        memmove(t->range + i + nparts, t->range + j, (size_t)(t->n - j) * sizeof *t->range);
    if (nparts)
        memcpy(t->range + i, part, (size_t)nparts * sizeof *part);
    t->n += nparts - (j - i);
}

static bool is_equal(const struct placement_range *a, const struct placement *v, const struct meg_param *row)
{
    return memcmp(&a->v, v, sizeof *v) == 0 && a->row == row;
}

void placement_set(struct placement_table *t, const void *p, size_t nbytes, struct placement v,
                   const struct meg_param *row)
{
    struct placement_range r = { p, (const char *)p + nbytes, v, row };
    const int i = find(t, p);

    if (!nbytes)
        return;
    if (i > 0 && t->range[i - 1].end == r.begin && is_equal(&t->range[i - 1], &v, row))
        r.begin = t->range[i - 1].begin;
    replace(t, r.begin, r.end, &r, 1);
}

void placement_remove(struct placement_table *t, const void *p, size_t nbytes)
{
    replace(t, p, (const char *)p + nbytes, NULL, 0);
}

struct placement_range placement_first(const struct placement_table *t, const char *p, const char *end)
{
    const int i = find(t, p);
    struct placement_range r = { .begin = p, .end = end };

    if (i == t->n || t->range[i].begin >= end)
        return r;
    if (t->range[i].begin > p) {
        r.end = t->range[i].begin;
        return r;
    }
    r.v = t->range[i].v;
    r.row = t->range[i].row;
    r.end = t->range[i].end < end ? t->range[i].end : end;
    return r;
}

struct placement placement_all(int s)
{
    struct placement v = { { 0 }, 0, 0 };

    memset(v.axis, s, sizeof v.axis);
    return v;
}

struct placement placement_of(const void *p, size_t nbytes, int *differs)
{
    const char *end = (const char *)p + nbytes;
    const struct placement zero = placement_all(PLACEMENT_ZERO);
    struct placement v = zero;

    *differs = -1;
    for (struct placement_range r = { .end = p }; r.end < end;) {
        r = placement_first(&placement_table, r.end, end);
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
    const char *end = (const char *)src + (size_t)n * from;
    struct placement_table copy = { 0 };

    for (struct placement_range r = { .end = src }; r.end < end;) {
        r = placement_first(&placement_table, r.end, end);
        placement_set(&copy, (const char *)dst + (size_t)(r.begin - (const char *)src) / from * to,
                      (size_t)(r.end - r.begin) / from * to, r.v, NULL);
    }
    for (int i = 0; i < copy.n; i++)
        placement_set(&placement_table, copy.range[i].begin, (size_t)(copy.range[i].end - copy.range[i].begin),
                      copy.range[i].v, NULL);
    free(copy.range);
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

const char *placement_param_name(const void *p)
{
    const struct placement_range r = placement_first(&placement_declared, p, (const char *)p + 1);

    return r.row ? r.row->name : NULL;
}

void placement_fail(const char *op, const char *tensor, const void *p, int placement, int axis, const char *fmt, ...)
{
    const char *param = p ? placement_param_name(p) : NULL;
    const struct placement_axis *a = &placement_axis[axis];
    char text[300], where[80] = "", line[600];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (meg_device_layer >= 0)
        snprintf(where, sizeof where, ", layer %" PRId64, meg_device_layer);
    if (param && strcmp(param, tensor) == 0)
        param = NULL;
    snprintf(line, sizeof line,
             "%s: bug: placement: rank %d, step %" PRId64 "%s: %s: %s%s%s%s is %s over %s (%" PRId64 " ranks); %s\n",
             meg_progname(), placement_mesh->world->rank, meg_device_step, where, op, tensor, param ? " (" : "",
             param ? param : "", param ? ")" : "", placement_name(placement), a->name, a->size, text);
    fputs(line, stderr); /* in one call, because other ranks may write, too */
    abort();
}
#endif
