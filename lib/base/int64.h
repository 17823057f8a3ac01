/* int64.h - arithmetic of counts and sizes. */
#pragma once
#include <stdint.h>

static inline int64_t meg_min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t meg_max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Return n / unit, rounded up; n >= 0. */
static inline int64_t meg_ceil_div(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit;
}

/* Return the smallest multiple of unit that is at least n; n >= 0. */
static inline int64_t meg_round_up(int64_t n, int64_t unit)
{
    return meg_ceil_div(n, unit) * unit;
}

/* Return the least common multiple of two positive numbers. */
static inline int64_t meg_lcm64(int64_t a, int64_t b)
{
    int64_t x = a, y = b;

    while (y) {
        const int64_t rest = x % y;

        x = y;
        y = rest;
    }
    return a / x * b;
}
