/* copy_async.h - asynchronous copies from global to shared memory (sm_80 and later). */
#pragma once
#include "cuda/kernel.h"
#ifndef __CUDACC__
#    include <deque>
#    include <vector>
#endif

#ifdef __CUDACC__
__device__ inline uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/*
 * Begin to copy N bytes, 4 or 16, from global to shared memory or, unless is_valid is set, to set them to 0.  Both
 * addresses are multiples of N.
 */
template <int N = 16> __device__ inline void copy_async(void *to, const void *from, bool is_valid)
{
    static_assert(N == 4 || N == 16);
    if constexpr (N == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                     "r"(is_valid ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from),
                     "r"(is_valid ? 4 : 0)
                     : "memory");
}

/* End a group of copies of the calling thread. */
__device__ inline void copy_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Wait until at most n groups of the calling thread are incomplete. */
template <int n> __device__ inline void copy_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

#else

namespace emu
{

/* A copy is executed by the function that waits for it; until then, its destination is NaN. */
struct copy {
    void *to;
    const void *from;
    size_t nbytes;
    bool is_valid;
};
inline std::deque<std::vector<copy>> copies[MAX_THREADS]; /* groups of each thread; the last is open */
/* by thread: the number of barriers of the process after which products may read its copies (wgmma.h) */
inline int64_t visible_at[MAX_THREADS];

} // namespace emu

template <int N = 16> inline void copy_async(void *to, const void *from, bool is_valid)
{
    auto &groups = emu::copies[emu::state.running->thread];

    if (((uintptr_t)to | (uintptr_t)from) % N)
        emu::fail("an asynchronous copy of bytes that are not aligned");
    if (groups.empty())
        groups.emplace_back();
    memset(to, 0xff, N);
    groups.back().push_back({ to, from, N, is_valid });
}

inline void copy_async_commit()
{
    auto &groups = emu::copies[emu::state.running->thread];

    if (groups.empty())
        groups.emplace_back();
    groups.emplace_back();
}

template <int n> void copy_async_wait()
{
    auto &groups = emu::copies[emu::state.running->thread];

    for (; groups.size() > n + 1; groups.pop_front())
        for (const emu::copy &x : groups.front())
            if (x.is_valid)
                memcpy(x.to, x.from, x.nbytes);
            else
                memset(x.to, 0, x.nbytes);
    emu::visible_at[emu::state.running->thread] = INT64_MAX;
}
#endif
