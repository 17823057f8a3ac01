#include "text/chars.h"

#include <stdlib.h>
#include <utf8proc.h>

#include "base/err.h"
#include "text/utf8.h"

void meg_chars_add(struct meg_chars *c, int32_t cp)
{
    if (c->n == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 64;
        c->v = meg_realloc_array(c->v, (size_t)c->cap, sizeof *c->v);
    }
    c->v[c->n++] = cp;
}

void meg_chars_read(struct meg_chars *c, const char *text, int64_t n)
{
    for (int64_t i = 0; i < n;) {
        int32_t cp;

        i += meg_utf8_step(text + i, n - i, &cp);
        meg_chars_add(c, cp);
    }
}

void meg_chars_write(const struct meg_chars *c, struct meg_str *out)
{
    for (int64_t i = 0; i < c->n; i++) {
        char s[4];

        meg_str_add(out, s, (size_t)meg_utf8_put(s, c->v[i]));
    }
}

void meg_chars_add_lower(struct meg_chars *c, int32_t cp)
{
    if (cp == 0x130) { /* the only code point whose lower case is two */
        meg_chars_add(c, 'i');
        cp = 0x307;
    } else {
        cp = utf8proc_tolower(cp);
    }
    meg_chars_add(c, cp);
}

void meg_chars_decompose(struct meg_chars *c, bool is_compatible)
{
    const utf8proc_option_t options =
        UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (is_compatible ? UTF8PROC_COMPAT : 0);
    struct meg_chars out = { 0 };
    int64_t first = 0; /* of the marks in a row that are put in order */

    for (int64_t i = 0; i < c->n; i++) {
        utf8proc_int32_t part[32];
        utf8proc_ssize_t n = utf8proc_decompose_char(c->v[i], part, 32, options, NULL);

        MEG_ASSERT(n >= 0 && n <= 32);
        for (utf8proc_ssize_t k = 0; k < n; k++) {
            int class = utf8proc_get_property(part[k])->combining_class;
            int64_t at = out.n;

            meg_chars_add(&out, part[k]);
            if (class == 0) {
                first = out.n;
                continue;
            }
            for (; at > first && utf8proc_get_property(out.v[at - 1])->combining_class > class;
                 at--)
                out.v[at] = out.v[at - 1];
            out.v[at] = part[k];
        }
    }
    free(c->v);
    *c = out;
}

bool meg_char_is_mark(int32_t cp)
{
    return utf8proc_category(cp) == UTF8PROC_CATEGORY_MN;
}
