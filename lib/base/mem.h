/*
 * mem.h - host memory.  meg_new, meg_realloc_array and the string functions are for small allocations (structs, names,
 * tables) and end the process when memory is exhausted.  Arenas are for memory whose size depends on the user's
 * options, and return an error.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "base/decls.h"
#include "base/err.h"

/* Allocate n zeroed bytes, which the caller frees with free.  The result is never NULL, even for n = 0. */
void *meg_new(size_t n);
/*
 * Resize p, which may be NULL, to n elements of `size` bytes; new elements are uninitialized.  Ends the process if the
 * product of n and `size` overflows or memory is exhausted.
 */
void *meg_realloc_array(void *p, size_t n, size_t size);
/* Return p, an array of n elements of `size` bytes and capacity *cap, grown if necessary so that n + 1 elements fit. */
static inline void *meg_grow(void *p, int64_t n, int64_t *cap, size_t size)
{
    if (n < *cap)
        return p;
    *cap = 2 * *cap + 16;
    return meg_realloc_array(p, (size_t)*cap, size);
}
char *meg_strdup(const char *s);
char *meg_strndup(const char *s, size_t n);

/*
 * struct meg_str - a growable string of n bytes, some of which may be zero
 * Initialize it with { 0 }.  s is NULL until something is appended; afterwards, a zero byte follows the n bytes.
 */
struct meg_str {
    char *s;
    size_t n, cap;
};
void meg_str_add(struct meg_str *str, const void *bytes, size_t n);
void meg_str_printf(struct meg_str *str, const char *fmt, ...) MEG_PRINTF(2, 3);
/* Remove the first n <= str->n bytes. */
void meg_str_remove_prefix(struct meg_str *str, size_t n);
void meg_str_free(struct meg_str *str);

/* struct meg_arena - a bump allocator over one zeroed block of memory */
struct meg_arena {
    const char *name; /* name in messages; borrowed */
    unsigned char *base;
    size_t cap, used;
};
/*
 * Map nbytes of address space, aligned to 2 MiB; the kernel allocates each page when it is first touched.  If nbytes is
 * 0, nothing is mapped.  Returns MEG_EFAIL if the mapping fails.
 */
int meg_arena_init(struct meg_arena *a, const char *name, size_t nbytes, struct meg_err *e);
/*
 * Allocate nbytes at a multiple of `align`, a power of two up to 2 MiB.  An assertion fails if the arena is too small.
 */
void *meg_arena_alloc(struct meg_arena *a, size_t nbytes, size_t align);
void meg_arena_free(struct meg_arena *a);
