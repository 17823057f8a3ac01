#include "model/param.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/hash.h"
#include "base/mem.h"
#include "base/philox.h"

struct meg_param *meg_params_add(struct meg_params *p, int section, int ndim, const int64_t *dim, const char *fmt, ...)
{
    struct meg_param *row;
    va_list ap;
    int n;

    p->row = meg_realloc_array(p->row, (size_t)p->n + 1, sizeof *p->row);
    row = &p->row[p->n++];
    memset(row, 0, sizeof *row);
    va_start(ap, fmt);
    n = vsnprintf(row->name, sizeof row->name, fmt, ap);
    va_end(ap);
    MEG_ASSERT(n > 0 && (size_t)n < sizeof row->name);
    MEG_ASSERT(ndim > 0 && ndim <= MEG_PARAM_MAXDIM);

    row->section = section;
    row->split = -1;
    row->ndim = ndim;
    row->numel = 1;
    for (int i = 0; i < ndim; i++)
        row->numel *= row->dim[i] = dim[i];
    if (section >= p->nsections)
        p->nsections = section + 1;
    p->numel += row->numel;
    return row;
}

void meg_params_place(struct meg_params *p)
{
    p->flat = 0;
    for (int i = p->n; i-- > 0;) {
        p->row[i].offset = p->flat;
        p->flat += (p->row[i].numel + MEG_PARAM_ALIGN - 1) / MEG_PARAM_ALIGN * MEG_PARAM_ALIGN;
    }
}

const struct meg_param *meg_params_find(const struct meg_params *p, const char *name)
{
    for (int i = 0; i < p->n; i++)
        if (!strcmp(p->row[i].name, name))
            return &p->row[i];
    return NULL;
}

int meg_params_ranges(const struct meg_params *p, struct meg_range **range)
{
    struct meg_range *v = meg_new(((size_t)p->n + 1) * sizeof *v);
    int n = 0;

    for (int i = p->n; i-- > 0;) {
        const struct meg_param *row = &p->row[i];
        const int64_t end = i > 0 ? p->row[i - 1].offset : p->flat;
        const float wd_mult = row->is_decayed ? 1 : 0;

        if (n > 0 && v[n - 1].wd_mult == wd_mult && v[n - 1].lr_index == row->is_decoupled) {
            v[n - 1].end = end;
            continue;
        }
        v[n].begin = row->offset;
        v[n].end = end;
        v[n].wd_mult = wd_mult;
        v[n].lr_mult = 1;
        v[n].lr_index = row->is_decoupled;
        n++;
    }
    *range = v;
    return n;
}

void meg_param_init(const struct meg_param *row, uint32_t seed, int64_t first, int64_t n, float *out)
{
    const uint64_t name = meg_xxh3_64(row->name, strlen(row->name));
    const double fans = row->ndim > 1 ? (double)(row->dim[0] + row->dim[1]) : 1;

    if (row->init == MEG_INIT_ZERO || row->init == MEG_INIT_ONE) {
        for (int64_t i = 0; i < n; i++)
            out[i] = row->init == MEG_INIT_ONE;
        return;
    }
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++)
        out[i] = row->init == MEG_INIT_NORMAL
                     ? (float)(row->std * meg_philox_init_normal(seed, name, (uint64_t)(first + i)))
                     : (float)(sqrt(6 / fans) * (2 * meg_philox_init_uniform(seed, name, (uint64_t)(first + i)) - 1));
}

void meg_params_free(struct meg_params *p)
{
    free(p->row);
    memset(p, 0, sizeof *p);
}
