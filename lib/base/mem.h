/*
 * mem.h - host memory.  Small things (structs, names, tables) come from meg_new and friends,
 * which die when there is none; what the user's sizes decide comes from an arena, which reports.
 */
#ifndef MEG_BASE_MEM_H
#define MEG_BASE_MEM_H

#include <stddef.h>

#include "base/decls.h"
#include "base/err.h"

MEG_BEGIN_DECLS

/* n zeroed bytes; the caller frees them with free.  meg_new(0) is a pointer to nothing. */
void *meg_new(size_t n);
/* p resized to n elements of size bytes, new ones not initialised; overflow dies, too. */
void *meg_realloc_array(void *p, size_t n, size_t size);
char *meg_strdup(const char *s);
char *meg_strndup(const char *s, size_t n);

/*
 * struct meg_str - bytes that grow.  Starts as { 0 }; s is NULL or ends with a zero byte that
 * n does not count; the bytes may hold zeros.
 */
struct meg_str {
    char *s;
    size_t n, cap;
};
void meg_str_add(struct meg_str *str, const void *bytes, size_t n);
void meg_str_printf(struct meg_str *str, const char *fmt, ...) MEG_PRINTF(2, 3);
/* The first n bytes go, those behind them move up; n <= str->n. */
void meg_str_remove_prefix(struct meg_str *str, size_t n);
void meg_str_free(struct meg_str *str);

/*
 * struct meg_arena - one zeroed block, cut from the front.  used may be noted and put back with
 * meg_arena_rewind; high is the most that was ever in use.
 */
struct meg_arena {
    const char *name; /* borrowed; in messages */
    unsigned char *base;
    size_t cap, used, high;
};
/* Reserve nbytes, 2 MiB aligned; pages are taken from the machine when first touched. */
int meg_arena_init(struct meg_arena *a, const char *name, size_t nbytes, struct meg_err *e);
/* nbytes at a multiple of align (a power of two).  More than was reserved is a bug. */
void *meg_arena_alloc(struct meg_arena *a, size_t nbytes, size_t align);
void meg_arena_rewind(struct meg_arena *a, size_t used);
void meg_arena_free(struct meg_arena *a);

MEG_END_DECLS

#endif
