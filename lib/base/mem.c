/* mem.c - host memory. */
#include "base/mem.h"
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)

static MEG_NORETURN void out_of_memory(size_t n)
{
    meg_die(MEG_EFAIL, "out of memory: cannot allocate %zu bytes", n);
}

void *meg_new(size_t n)
{
    void *p = calloc(1, n ? n : 1);

    if (!p)
        out_of_memory(n);
    return p;
}

void *meg_realloc_array(void *p, size_t n, size_t size)
{
    void *q;

    if (size && n > SIZE_MAX / size)
        out_of_memory(SIZE_MAX);
    q = realloc(p, n && size ? n * size : 1);
    if (!q)
        out_of_memory(n * size);
    return q;
}

char *meg_strndup(const char *s, size_t n)
{
    char *copy = (char *)meg_new(n + 1);

    memcpy(copy, s, n);
    return copy;
}

char *meg_strdup(const char *s)
{
    return meg_strndup(s, strlen(s));
}

/* Ensure capacity for n more bytes and the terminating zero. */
static void reserve(struct meg_str *str, size_t n)
{
    size_t need = str->n + n + 1;

    if (need > str->cap) {
        str->cap = need < 2 * str->cap ? 2 * str->cap : need < 64 ? 64 : need;
        str->s = (char *)meg_realloc_array(str->s, str->cap, 1);
    }
}

void meg_str_add(struct meg_str *str, const void *bytes, size_t n)
{
    reserve(str, n);
    if (n)
        memcpy(str->s + str->n, bytes, n);
    str->n += n;
    str->s[str->n] = 0;
}

void meg_str_remove_prefix(struct meg_str *str, size_t n)
{
    MEG_ASSERT_LE(n, str->n);
    str->n -= n;
    if (n)
        memmove(str->s, str->s + n, str->n + 1);
}

void meg_str_printf(struct meg_str *str, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    MEG_ASSERT_LE(0, n);
    reserve(str, (size_t)n);
    va_start(ap, fmt);
    vsnprintf(str->s + str->n, (size_t)n + 1, fmt, ap);
    va_end(ap);
    str->n += (size_t)n;
}

void meg_str_free(struct meg_str *str)
{
    if (!str)
        return;
    free(str->s);
    memset(str, 0, sizeof *str);
}

static size_t round_to_pages(size_t n)
{
    return (n + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
}

int meg_arena_init(struct meg_arena *a, const char *name, size_t nbytes, struct meg_err *e)
{
    size_t len = round_to_pages(nbytes);
    size_t prefix;
    unsigned char *p;

    memset(a, 0, sizeof *a);
    a->name = name;
    if (nbytes == 0)
        return 0;
    if (len < nbytes || len + HUGE_PAGE < len)
        return meg_fail(e, MEG_EFAIL, "%s: %zu bytes exceed the address space", name, nbytes);
    p = (unsigned char *)mmap(NULL, len + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return meg_fail(e, MEG_EFAIL, "%s: out of memory: cannot allocate %zu bytes", name, nbytes);
    /* unmap the unaligned ends, so that meg_arena_free needs only base and cap */
    prefix = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    if (prefix)
        munmap(p, prefix);
    munmap(p + prefix + len, HUGE_PAGE - prefix);
    a->base = p + prefix;
    a->cap = nbytes;
    madvise(a->base, len, MADV_HUGEPAGE); /* only a hint: a failure is ignored */
    return 0;
}

void *meg_arena_alloc(struct meg_arena *a, size_t nbytes, size_t align)
{
    size_t offset;

    MEG_ASSERT(align);
    MEG_ASSERT_EQ((align & (align - 1)), 0);
    MEG_ASSERT_LE(align, HUGE_PAGE);
    offset = (a->used + align - 1) & ~(align - 1);
    MEG_ASSERT_LE(offset, a->cap);
    MEG_ASSERT_LE(nbytes, a->cap - offset);
    a->used = offset + nbytes;
    return a->base + offset;
}

void meg_arena_free(struct meg_arena *a)
{
    if (!a)
        return;
    if (a->base)
        munmap(a->base, round_to_pages(a->cap));
    memset(a, 0, sizeof *a);
}
