/* tile.h - tiles of matrices in shared memory, which are operands of products on tensor cores. */
#pragma once
#include "cuda/copy_async.h"

/*
 * A tile [ROWS,COLS].  Groups of 8 elements, 16 bytes, are placed such that the same columns of 8 consecutive rows are
 * in different banks:
 *   - for mma.sync (mma.h), a row has 8 additional elements
 *   - for wgmma (wgmma.h), the tile consists of panels of 64 or 32 columns, and a panel of rows of 128 or 64 bytes, in
 *     which group i of row r is at i ^ (r % 8) or i ^ (r / 2 % 4).  This is the layout that the instruction calls
 *     128-byte or 64-byte swizzling.
 */
template <class T, int ROWS, int COLS, bool for_wgmma> struct alignas(for_wgmma ? 1024 : 16) tile {
    static constexpr unsigned PANEL = !for_wgmma       ? COLS + 8
                                      : COLS % 64 == 0 ? 64
                                                       : 32; /* elements of a row of a panel */
    static constexpr unsigned GROUPS = PANEL / 8;            /* groups of such a row */
    static_assert(sizeof(T) == 2 && (!for_wgmma || (COLS % 32 == 0 && ROWS % 8 == 0)));

    T v[ROWS * (for_wgmma ? COLS : PANEL)];

    /* Return a pointer to element (r, c). */
    __device__ T *at(unsigned r, unsigned c)
    {
        if (!for_wgmma)
            return v + r * PANEL + c;
        return v + (c / PANEL * ROWS + r) * PANEL + ((c % PANEL / 8) ^ (r * GROUPS / 8 % GROUPS)) * 8 + c % 8;
    }

    __device__ const T *at(unsigned r, unsigned c) const
    {
        return const_cast<tile *>(this)->at(r, c);
    }
};
