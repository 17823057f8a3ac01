/* mt19937.c - the Mersenne Twister, with the distributions of NumPy and torch. */
#include "data/mt19937.h"
#include <math.h>

/* Define the initialization of a generator with n words of a type, and its recurrence, which uses word i + m. */
#define MT19937(name, type, n, m, factor, shift, twist)                                                                \
    void name##_seed(struct name *g, type seed)                                                                        \
    {                                                                                                                  \
        g->x[0] = seed;                                                                                                \
        for (type i = 1; i < n; i++)                                                                                   \
            g->x[i] = factor * (g->x[i - 1] ^ g->x[i - 1] >> shift) + i;                                               \
        g->next = n;                                                                                                   \
    }                                                                                                                  \
                                                                                                                       \
    static void name##_refill(struct name *g)                                                                          \
    {                                                                                                                  \
        const type low = 0x7fffffff;                                                                                   \
                                                                                                                       \
        for (int i = 0; i < n; i++) {                                                                                  \
            const type y = (g->x[i] & ~low) | (g->x[(i + 1) % n] & low);                                               \
                                                                                                                       \
            g->x[i] = g->x[(i + m) % n] ^ y >> 1 ^ (y & 1 ? twist : 0);                                                \
        }                                                                                                              \
        g->next = 0;                                                                                                   \
    }
MT19937(meg_mt19937, uint32_t, 624, 397, 1812433253u, 30, 0x9908b0dfu)
MT19937(meg_mt19937_64, uint64_t, 312, 156, UINT64_C(6364136223846793005), 62, UINT64_C(0xb5026f5aa96619e9))

uint32_t meg_mt19937_u32(struct meg_mt19937 *g)
{
    uint32_t y;

    if (g->next == 624)
        meg_mt19937_refill(g);
    y = g->x[g->next++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

double meg_mt19937_double(struct meg_mt19937 *g)
{
    const uint32_t high = meg_mt19937_u32(g) >> 5, low = meg_mt19937_u32(g) >> 6;

    return (high * 67108864.0 + low) / 9007199254740992.0;
}

uint64_t meg_mt19937_interval(struct meg_mt19937 *g, uint64_t max)
{
    uint64_t mask = max, v;

    if (max == 0)
        return 0;
    for (int by = 1; by < 64; by *= 2)
        mask |= mask >> by;
    do {
        v = max > UINT32_MAX ? (uint64_t)meg_mt19937_u32(g) << 32 : 0;
        v = (v | meg_mt19937_u32(g)) & mask;
    } while (v > max);
    return v;
}

int64_t meg_mt19937_randint(struct meg_mt19937 *g, int64_t lo, int64_t hi)
{
    return lo + (int64_t)meg_mt19937_interval(g, (uint64_t)(hi - 1 - lo));
}

int64_t meg_mt19937_choice(struct meg_mt19937 *g, const double *p, int64_t n)
{
    double total = 0, sum = 0, u;
    int64_t k;

    for (k = 0; k < n; k++)
        total += p[k];
    u = meg_mt19937_double(g);
    for (k = 0; k < n - 1; k++) {
        sum += p[k];
        if (sum / total > u)
            break;
    }
    return k;
}

int64_t meg_mt19937_geometric(struct meg_mt19937 *g, double p)
{
    return (int64_t)ceil(log1p(-meg_mt19937_double(g)) / log1p(-p));
}

#define SHUFFLE(name, type)                                                                                            \
    void name(struct meg_mt19937 *g, type *a, int64_t n)                                                               \
    {                                                                                                                  \
        for (int64_t i = n - 1; i > 0; i--) {                                                                          \
            const uint64_t j = meg_mt19937_interval(g, (uint64_t)i);                                                   \
            const type t = a[i];                                                                                       \
                                                                                                                       \
            a[i] = a[j];                                                                                               \
            a[j] = t;                                                                                                  \
        }                                                                                                              \
    }
SHUFFLE(meg_mt19937_shuffle_i32, int32_t)
SHUFFLE(meg_mt19937_shuffle_u32, uint32_t)
SHUFFLE(meg_mt19937_shuffle_i64, int64_t)

void meg_torch_randperm(int64_t *a, int64_t n, uint32_t seed)
{
    struct meg_mt19937 g;

    meg_mt19937_seed(&g, seed);
    for (int64_t i = 0; i < n; i++)
        a[i] = i;
    for (int64_t i = 0; i < n - 1; i++) {
        const int64_t j = i + (int64_t)(meg_mt19937_u32(&g) % (uint64_t)(n - i)), t = a[i];

        a[i] = a[j];
        a[j] = t;
    }
}

uint64_t meg_mt19937_64_u64(struct meg_mt19937_64 *g)
{
    uint64_t y;

    if (g->next == 312)
        meg_mt19937_64_refill(g);
    y = g->x[g->next++];
    y ^= y >> 29 & UINT64_C(0x5555555555555555);
    y ^= y << 17 & UINT64_C(0x71d67fffeda60000);
    y ^= y << 37 & UINT64_C(0xfff7eee000000000);
    return y ^ y >> 43;
}
