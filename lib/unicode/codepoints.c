/* codepoints.c - text as an array of code points, with lower case and decomposition by utf8proc. */
#include "unicode/codepoints.h"
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include "base/err.h"
#include "unicode/utf8.h"

void meg_codepoints_add(struct meg_codepoints *c, int32_t cp)
{
    c->v = meg_grow(c->v, c->n, &c->cap, sizeof *c->v);
    c->v[c->n++] = cp;
}

void meg_codepoints_to_utf8(const struct meg_codepoints *c, struct meg_str *out)
{
    for (int64_t i = 0; i < c->n; i++) {
        char s[4];

        meg_str_add(out, s, (size_t)meg_utf8_encode(s, c->v[i]));
    }
}

void meg_codepoints_add_lower(struct meg_codepoints *c, int32_t cp)
{
    if (cp == 0x130) { /* the only code point whose lower case is two code points */
        meg_codepoints_add(c, 'i');
        cp = 0x307;
    } else {
        cp = utf8proc_tolower(cp);
    }
    meg_codepoints_add(c, cp);
}

static int combining_class(int32_t cp)
{
    return utf8proc_get_property(cp)->combining_class;
}

/* Sort n combining marks by their canonical combining class; the sort is stable. */
static void sort_marks_insertion(int32_t *v, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        int32_t cp = v[i];
        int64_t k = i;

        for (; k > 0 && combining_class(v[k - 1]) > combining_class(cp); k--)
            v[k] = v[k - 1];
        v[k] = cp;
    }
}

/* Sort n combining marks as sort_marks_insertion does, but in O(n) by a counting sort. */
static void sort_marks_counting(int32_t *v, int64_t n)
{
    enum { CLASSES = 256 };
    int32_t *old = meg_realloc_array(NULL, (size_t)n, sizeof *old);
    int64_t position[CLASSES + 1] = { 0 };

    memcpy(old, v, (size_t)n * sizeof *old);
    for (int64_t i = 0; i < n; i++)
        position[combining_class(v[i]) + 1]++;
    for (int k = 0; k < CLASSES; k++)
        position[k + 1] += position[k];
    for (int64_t i = 0; i < n; i++)
        v[position[combining_class(old[i])]++] = old[i];
    free(old);
}

/* Sort the code points from index `first`, which are combining marks, into canonical order. */
static void canonical_order(struct meg_codepoints *c, int64_t first)
{
    int64_t n = c->n - first;

    if (n > 32)
        sort_marks_counting(c->v + first, n);
    else if (n > 1)
        sort_marks_insertion(c->v + first, n);
}

void meg_codepoints_decompose(struct meg_codepoints *c, bool is_compatible)
{
    const utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (is_compatible ? UTF8PROC_COMPAT : 0);
    struct meg_codepoints out = { 0 };
    int64_t first = 0; /* index of the first mark in the current run of combining marks */

    for (int64_t i = 0; i < c->n; i++) {
        utf8proc_int32_t part[32];
        utf8proc_ssize_t n = utf8proc_decompose_char(c->v[i], part, 32, options, NULL);

        MEG_ASSERT(n >= 0 && n <= 32);
        for (utf8proc_ssize_t k = 0; k < n; k++) {
            if (combining_class(part[k]) == 0) {
                canonical_order(&out, first);
                first = out.n + 1;
            }
            meg_codepoints_add(&out, part[k]);
        }
    }
    canonical_order(&out, first);
    free(c->v);
    *c = out;
}

bool meg_char_is_nonspacing_mark(int32_t cp)
{
    return utf8proc_category(cp) == UTF8PROC_CATEGORY_MN;
}
