/*
 * emulate.h - the part of CUDA C++ that cuda/kernel.h permits, for a C++ compiler: kernels run on the CPU.
 *
 * launch() queues a grid on a stream of the double of the CUDA runtime (tests/nccl/double.h), which executes the blocks
 * of the grid one after the other.  A thread of a block runs until it returns or waits for others in a function that
 * synchronizes; then another one continues, on another stack.  So kernels without barriers are plain loops.
 *
 * Blocks and threads run in a random order, which depends on MEG_EMULATE_SEED (default: 1); in half of the blocks, one
 * warp runs ahead of the others.  Shared memory consists of NaN when a block starts.  So a missing barrier is likely to
 * change results.  The process ends with a message and SIGABRT
 *   - if threads wait for threads that wait elsewhere or have returned: all threads of a block, or of the mask of a
 *     warp, must call the same function at the same line.  (A GPU ignores threads that have returned.)
 *   - if a block writes past the end of its shared memory
 *   - if a grid or block is larger than a GPU allows, or an argument is a pointer to memory that is not the device's.
 *
 * Functions of a warp that have no counterpart in C, such as matrix products, are emulated by emu::warp_exchange: each
 * lane passes at most 256 bytes at `in`, and gets those of all 32 lanes in `all`, in order of lanes.
 *     struct { float a[4]; } own = ..., all[32];
 *     emu::warp_exchange(&own, all, sizeof own);
 */
#ifndef TESTS_CUDA_EMULATE_H
#define TESTS_CUDA_EMULATE_H
#include <cuda_runtime_api.h>
#include <math.h>
#include <numeric>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <tuple>
#include <type_traits>
#include <ucontext.h>
#ifdef __SANITIZE_ADDRESS__
#    include <sanitizer/common_interface_defs.h>
#endif

#undef __launch_bounds__
#define __launch_bounds__(...)
#define SHARED(type, name) type *name = (type *)emu::state.shared

/* Functions of the double of the CUDA runtime. */
extern "C" void meg_double_touch(cudaStream_t s, const void *p);
extern "C" cudaError_t meg_double_launch(cudaStream_t s, void (*run)(void *arg), void *arg, void (*release)(void *arg));
extern "C" int meg_double_is_device(const void *p);

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

/* Parameters of a function whose default values are the file and the line of its call. */
#define EMU_LINE const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace emu
{

enum { LANES = 32, MAX_THREADS = 1024, PAGE = 4096, STACK_NBYTES = 128 << 10, MAX_EXCHANGE = 256 };
enum { STACK_SHIFT = 192 }; /* a multiple of the alignment of a stack and of a cache line */
enum { MAPPED_SHARED = 228 << 10, SHARED_ALIGNMENT = 1024 };
constexpr unsigned ALL_LANES = 0xffffffffu;

/* A call in which a thread waits.  The threads of a block run one kernel, so equal names have equal addresses. */
struct call {
    const char *name, *file;
    int line;
    unsigned mask; /* lanes of the warp that must call the function; 0: all threads of the block */
    const void *in;
    void *all;
    size_t nbytes;

    bool matches(const call &other) const
    {
        return name == other.name && file == other.file && line == other.line && mask == other.mask &&
               nbytes == other.nbytes;
    }
};

/* A stack, and the thread that runs on it.  The members up to `at`, which a switch reads, are in two cache lines. */
struct alignas(64) fiber {
    void *context[5]; /* of __builtin_setjmp */
    uint3 index;
    int thread;
    call at;
    bool is_started;
    ucontext_t start;
    const void *stack;
    size_t stack_nbytes;
    void *fake_stack; /* of AddressSanitizer */
};

/* The block that runs. */
struct block {
    int n;                       /* number of threads */
    int nleft, ndone, nwaiting;  /* threads that have not started, have returned, wait in __syncthreads */
    int order[MAX_THREADS];      /* the threads that have not started are the first nleft */
    fiber *waiting[MAX_THREADS]; /* by thread: its fiber while it waits, or NULL */
    bool is_depth_first; /* continue the thread that became ready last, so that one warp runs ahead of the others */
    int64_t nbarriers;   /* calls of __syncthreads by all threads of a block, in all blocks */
    int64_t nunfinished; /* queued products for which no thread has waited (cuda/wgmma.h) */
    int nready, nidle;
    fiber *ready[MAX_THREADS];       /* fibers that continue */
    fiber *idle[MAX_THREADS];        /* fibers without a thread */
    fiber host, *running, *previous; /* host: the stack of run_block */
    void (*run)(void *kernel);
    void *kernel;
    char *shared; /* ends before an inaccessible page */
    uint64_t random;
};
inline block state;

[[noreturn]] inline void fail(const char *text)
{
    fprintf(stderr, "CUDA emulation: block (%u,%u,%u): %s\n", blockIdx.x, blockIdx.y, blockIdx.z, text);
    abort();
}

/* Return a random number in [0, n). */
inline int random_below(uint64_t n)
{
    uint64_t &x = state.random;

    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return (int)(x % n);
}

/* ---- fibers ---- */

/* Complete a switch, on the stack of `to`. */
inline void arrive(fiber *to)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(to->fake_stack, &state.previous->stack, &state.previous->stack_nbytes);
#endif
    threadIdx = to->index;
}

/*
 * Continue `to`.  AddressSanitizer's longjmp would make a system call.  GCC does not allow __builtin_longjmp in the
 * function that calls __builtin_setjmp, so this function must not be inlined.
 */
__attribute__((noinline, noreturn, no_sanitize("address"))) inline void jump(fiber *to)
{
    __builtin_longjmp(to->context, 1);
}

__attribute__((noinline, no_sanitize("address"))) inline void switch_to(fiber *from, fiber *to)
{
    state.previous = from;
    state.running = to;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_nbytes);
#endif
    if (!__builtin_setjmp(from->context)) {
        if (to->is_started)
            jump(to);
        to->is_started = true;
        setcontext(&to->start);
    }
    arrive(from);
}

inline void run_threads();

/* Map nbytes, a multiple of PAGE, between two inaccessible pages. */
inline char *map_guarded(size_t nbytes)
{
    char *const p =
        (char *)mmap(NULL, nbytes + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED || mprotect(p + PAGE, nbytes, PROT_READ | PROT_WRITE) != 0)
        fail("out of memory");
    return p + PAGE;
}

/* Stacks begin at different offsets in a page; with equal offsets, they would evict each other from the cache. */
inline fiber *fiber_new()
{
    static unsigned n;
    fiber *const f = new fiber();
    char *const stack = map_guarded(STACK_NBYTES);

    f->stack = stack;
    f->stack_nbytes = STACK_NBYTES;
    getcontext(&f->start);
    f->start.uc_stack.ss_sp = stack;
    f->start.uc_stack.ss_size = STACK_NBYTES - n++ * STACK_SHIFT % PAGE;
    makecontext(&f->start, run_threads, 0);
    return f;
}

/* Continue a thread that is ready, or start one on an idle or a new fiber, or return to run_block if there is none. */
inline void schedule()
{
    fiber *const self = state.running, *to = &state.host;

    if (state.nready && (!state.nleft || state.is_depth_first || random_below(2))) {
        fiber *&chosen = state.ready[state.is_depth_first ? state.nready - 1 : random_below((uint64_t)state.nready)];

        to = chosen;
        chosen = state.ready[--state.nready];
    } else if (state.nleft) {
        to = state.nidle ? state.idle[--state.nidle] : fiber_new();
    }
    if (to != self)
        switch_to(self, to);
}

/* Run threads of the block, one after the other. */
inline void run_threads()
{
    fiber *const self = state.running;

    arrive(self);
    for (;;) {
        const unsigned t = (unsigned)(self->thread = state.order[--state.nleft]);

        self->index = { t % blockDim.x, t / blockDim.x % blockDim.y, t / (blockDim.x * blockDim.y) };
        threadIdx = self->index;
        state.run(state.kernel);
        state.ndone++;
        state.idle[state.nidle++] = self;
        schedule();
    }
}

/* End the process with a list of the calls in which threads wait. */
[[noreturn]] inline void fail_stuck()
{
    fprintf(stderr, "CUDA emulation: %d of %d threads have returned; others wait forever:\n", state.ndone, state.n);
    for (int t = 0, nwaiting; t < state.n; t++) {
        const fiber *const f = state.waiting[t];

        nwaiting = 0;
        for (int i = 0; f && i < state.n; i++) {
            if (!state.waiting[i] || !state.waiting[i]->at.matches(f->at))
                continue;
            if (i < t)
                break;
            nwaiting++;
        }
        if (nwaiting)
            fprintf(stderr, "    %d threads, first thread %d: %s, %s:%d\n", nwaiting, t, f->at.name, f->at.file,
                    f->at.line);
    }
    fail("divergent barrier");
}

inline void release(int thread)
{
    fiber *const f = state.waiting[thread];

    state.waiting[thread] = NULL;
    if (f != state.running)
        state.ready[state.nready++] = f;
}

/* Wait until all threads of the block call the function. */
inline void wait_block(const char *name, const char *file, int line)
{
    fiber *const self = state.running;
    int first;

    self->at = { name, file, line, 0, NULL, NULL, 0 };
    state.waiting[self->thread] = self;
    if (++state.nwaiting < state.n) {
        schedule();
        return;
    }
    for (int t = 0; t < state.n; t++)
        if (!state.waiting[t]->at.matches(self->at))
            fail_stuck();
    state.nwaiting = 0;
    state.nbarriers++;
    first = random_below((uint64_t)state.n) / LANES * LANES;
    for (int i = 0; i < state.n; i++)
        release((first + i) % state.n);
}

/*
 * Wait until the lanes of `mask` that exist call the function, and get the values that they pass.  The values of
 * other lanes are NaN.
 */
inline void wait_warp(const char *name, const char *file, int line, unsigned mask, const void *in, void *all,
                      size_t nbytes)
{
    fiber *const self = state.running;
    const int lane = self->thread % LANES, first = self->thread - lane;
    fiber **const warp = state.waiting + first;
    static char gathered[LANES * MAX_EXCHANGE];

    if (nbytes > MAX_EXCHANGE)
        fail("an exchange of too many bytes");
    if (!(mask >> lane & 1))
        fail("a lane is not in its own mask");
    if (state.n - first < LANES)
        mask &= ALL_LANES >> (LANES - (state.n - first));
    self->at = { name, file, line, mask, in, all, nbytes };
    warp[lane] = self;
    for (int i = 0; i < LANES; i++)
        if (mask >> i & 1 && (!warp[i] || !warp[i]->at.matches(self->at))) {
            schedule();
            return;
        }
    memset(gathered, 0xff, LANES * nbytes);
    for (int i = 0; i < LANES; i++)
        if (nbytes && mask >> i & 1)
            memcpy(&gathered[(size_t)i * nbytes], warp[i]->at.in, nbytes);
    for (int i = 0; i < LANES; i++)
        if (mask >> i & 1) {
            if (nbytes)
                memcpy(warp[i]->at.all, gathered, LANES * nbytes);
            release(first + i);
        }
}

inline void warp_exchange(const void *in, void *all, size_t nbytes, EMU_LINE)
{
    wait_warp("warp_exchange", file, line, ALL_LANES, in, all, nbytes);
}

/* ---- grids ---- */

/* Run the kernel on a block. */
inline void run_block()
{
    state.nleft = state.n;
    state.ndone = state.nwaiting = 0;
    state.is_depth_first = random_below(2);
    for (int i = 0; i < state.n; i++) {
        const int j = random_below((uint64_t)i + 1);

        state.order[i] = state.order[j];
        state.order[j] = i;
    }
    state.host.is_started = true;
    state.running = &state.host;
    schedule();
    if (state.ndone < state.n)
        fail_stuck();
    if (state.nunfinished)
        fail("a thread has returned before its products were complete");
}

/* Run all blocks of a grid in a random order, with nbytes of shared memory. */
inline void run_grid(dim3 grid, dim3 block, size_t nbytes)
{
    const uint64_t n = (uint64_t)grid.x * grid.y * grid.z;
    const size_t end = (nbytes + SHARED_ALIGNMENT - 1) / SHARED_ALIGNMENT * SHARED_ALIGNMENT;
    static char *memory;
    const char *seed = getenv("MEG_EMULATE_SEED");
    uint64_t stride, first;

    if (!state.random)
        state.random = 0x9e3779b97f4a7c15u * (seed ? strtoull(seed, NULL, 10) : 1) | 1;
    gridDim = grid;
    blockDim = block;
    state.n = (int)(block.x * block.y * block.z);
    if (!memory)
        memory = map_guarded(MAPPED_SHARED);
    state.shared = memory + MAPPED_SHARED - end;
    do
        stride = (uint64_t)random_below(n) + 1;
    while (std::gcd(n, stride) > 1);
    first = (uint64_t)random_below(n);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t at = (first + i * stride) % n;

        blockIdx = { (unsigned)(at % grid.x), (unsigned)(at / grid.x % grid.y), (unsigned)(at / grid.x / grid.y) };
        memset(state.shared, 0xff, end);
        run_block();
        for (size_t j = nbytes; j < end; j++)
            if (state.shared[j] != '\xff')
                fail("a write behind shared memory");
    }
}

/*
 * Let the double record that the next function on s accesses the addresses in an argument.  Fail if the argument is a
 * pointer to host memory.
 */
template <class T> void touch(cudaStream_t s, const T &argument)
{
    const void *p;

    if constexpr (std::is_pointer_v<T>)
        if (argument && !meg_double_is_device((const void *)argument))
            fail("an argument of a kernel is a pointer to host memory");
    for (size_t i = 0; i + sizeof p <= sizeof argument; i += sizeof p) {
        memcpy(&p, (const char *)&argument + i, sizeof p);
        meg_double_touch(s, p);
    }
}

template <class... P> struct job {
    void (*kernel)(P...);
    dim3 grid, block;
    size_t nbytes;
    std::tuple<P...> args;

    static void run_thread(void *p)
    {
        const job *const j = (job *)p;

        std::apply(j->kernel, j->args);
    }

    static void run(void *p)
    {
        job *const j = (job *)p;

        state.run = run_thread;
        state.kernel = j;
        run_grid(j->grid, j->block, j->nbytes);
    }

    static void release(void *p)
    {
        delete (job *)p;
    }
};

} // namespace emu

/* Queue a kernel like queue_kernel in cuda/kernel.h, and check its configuration and arguments. */
template <class... P>
void queue_kernel(struct meg_stream *st, void (*kernel)(P...), dim3 grid, dim3 block, size_t nbytes, P... args)
{
    const cudaStream_t s = (cudaStream_t)(void *)st;
    auto *const job = new emu::job<P...>{ kernel, grid, block, nbytes, std::tuple<P...>(args...) };

    if (!grid.x || !grid.y || !grid.z || grid.x > INT32_MAX || grid.y > 65535 || grid.z > 65535 || !block.x ||
        !block.y || !block.z || block.z > 64 || (uint64_t)block.x * block.y * block.z > emu::MAX_THREADS ||
        nbytes > (size_t)meg_cuda_max_shared()) {
        fprintf(stderr, "CUDA emulation: grid %u,%u,%u block %u,%u,%u with %zu bytes of shared memory\n", grid.x,
                grid.y, grid.z, block.x, block.y, block.z, nbytes);
        emu::fail("not a launch configuration of a GPU");
    }
    std::apply([&](const auto &...argument) { (emu::touch(s, argument), ...); }, job->args);
    meg_cuda_check(meg_double_launch(s, job->run, job, job->release), "a kernel");
}

/* ---- functions of threads ---- */

inline void __syncthreads(EMU_LINE)
{
    emu::wait_block("__syncthreads", file, line);
}

inline void __syncwarp(unsigned mask = emu::ALL_LANES, EMU_LINE)
{
    emu::wait_warp("__syncwarp", file, line, mask, NULL, NULL, 0);
}

namespace emu
{

/* Return x of lane `from`, or of the calling lane if `from` is -1. */
template <class T> T shuffle(const char *name, const char *file, int line, unsigned mask, T x, int from)
{
    T all[LANES];

    static_assert(std::is_arithmetic_v<T>);
    wait_warp(name, file, line, mask, &x, all, sizeof x);
    return from < 0 ? x : all[from];
}

inline int lane()
{
    return state.running->thread % LANES;
}

/* Return the last lane of the calling lane's group of `width` lanes. */
inline int last_lane(int width)
{
    return lane() | (width - 1);
}

} // namespace emu

template <class T> T __shfl_sync(unsigned mask, T x, int from, int width = 32, EMU_LINE)
{
    return emu::shuffle("__shfl_sync", file, line, mask, x, (emu::lane() & ~(width - 1)) | (from & (width - 1)));
}

template <class T> T __shfl_up_sync(unsigned mask, T x, unsigned distance, int width = 32, EMU_LINE)
{
    const int from = emu::lane() - (int)distance;

    return emu::shuffle("__shfl_up_sync", file, line, mask, x, from < (emu::lane() & ~(width - 1)) ? -1 : from);
}

template <class T> T __shfl_xor_sync(unsigned mask, T x, int bits, int width = 32, EMU_LINE)
{
    const int from = emu::lane() ^ bits;

    return emu::shuffle("__shfl_xor_sync", file, line, mask, x, from > emu::last_lane(width) ? -1 : from);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, EMU_LINE)
{
    const int own = predicate != 0;
    int all[emu::LANES];
    unsigned ballot = 0;

    emu::wait_warp("__ballot_sync", file, line, mask, &own, all, sizeof own);
    for (int i = 0; i < emu::LANES; i++)
        ballot |= all[i] == 1 ? 1u << i : 0;
    return ballot;
}

/* Threads are fibers of one thread, so no other thread runs during an addition. */
template <class T> T atomicAdd(T *p, T x)
{
    const T old = *p;

    static_assert(std::is_integral_v<T>);
    *p += x;
    return old;
}

/* CUDA's min and max also accept arguments of two types. */
template <class A, class B> std::common_type_t<A, B> min(A a, B b)
{
    using T = std::common_type_t<A, B>;

    return (T)b < (T)a ? (T)b : (T)a;
}

template <class A, class B> std::common_type_t<A, B> max(A a, B b)
{
    using T = std::common_type_t<A, B>;

    return (T)a < (T)b ? (T)b : (T)a;
}

inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}

#endif
