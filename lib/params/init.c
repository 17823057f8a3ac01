/* init.c - initial weights. */
#include <math.h>
#include <string.h>
#include "base/hash.h"
#include "base/philox.h"
#include "params/param.h"

double meg_init_constant(const struct meg_param *row, uint32_t seed, uint64_t name, uint64_t i)
{
    (void)seed, (void)name, (void)i;
    return row->init.a;
}

double meg_init_normal(const struct meg_param *row, uint32_t seed, uint64_t name, uint64_t i)
{
    return row->init.a * meg_philox_init_normal(seed, name, i);
}

double meg_init_xavier(const struct meg_param *row, uint32_t seed, uint64_t name, uint64_t i)
{
    const double fans = row->ndim > 1 ? (double)(row->dim[row->ndim - 2] + row->dim[row->ndim - 1]) : 1;

    return sqrt(6 / fans) * (2 * meg_philox_init_uniform(seed, name, i) - 1);
}

void meg_param_init(const struct meg_param *row, uint32_t seed, int64_t first, int64_t n, float *out)
{
    const uint64_t name = meg_xxh3_64(row->name, strlen(row->name));

#pragma omp parallel for
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)row->init.value(row, seed, name, (uint64_t)(first + i));
}

void meg_param_init_shard(const struct meg_param *row, uint32_t seed, int64_t first, int64_t n, float *out)
{
    for (int64_t k = 0; k < meg_param_num_shard_ranges(row); k++) {
        const struct meg_param_shard_range range = meg_param_shard_range_at(row, k);
        const int64_t begin = range.local > first ? range.local : first;
        const int64_t end = range.local + range.n < first + n ? range.local + range.n : first + n;

        if (begin < end)
            meg_param_init(row, seed, range.global + begin - range.local, end - begin, out + begin - first);
    }
}
