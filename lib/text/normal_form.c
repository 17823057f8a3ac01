/*
 * A character is inert when it is its own normal form and joins nothing before it: text may be cut
 * before it, and between two of them nothing happens.  So only stretches with other characters in
 * them, and the inert one before each, which may join what follows, go through utf8proc.  A long
 * stretch is cut before characters that decomposed begin with an inert one.
 */
#include "text/normal_form.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text/chars.h"
#include "text/utf8.h"

static utf8proc_option_t options_of(const struct meg_normal_form *f)
{
    return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (f->is_compatible ? UTF8PROC_COMPAT : 0);
}

/* Put the n code points at v in normal form; cap have room. */
static int64_t compose(const struct meg_normal_form *f, int32_t *v, int64_t n)
{
    return f->is_composed ? utf8proc_normalize_utf32(v, n, UTF8PROC_STABLE | UTF8PROC_COMPOSE) : n;
}

void meg_normal_form_init(struct meg_normal_form *f, bool is_composed, bool is_compatible)
{
    enum { PARTS = 32 };

    f->is_composed = is_composed;
    f->is_compatible = is_compatible;
    memset(f->inert, 0xFF, sizeof f->inert);
    for (int32_t cp = 0; cp < MEG_NORMAL_FORM_CHARS; cp++) {
        int32_t part[PARTS];
        int64_t n = utf8proc_decompose_char(cp, part, PARTS, options_of(f), NULL);
        bool is_inert = utf8proc_get_property(cp)->combining_class == 0;

        /* whatever follows the first part may be what a composed character takes in */
        for (int64_t k = 1; k < n; k++) {
            if (part[k] < MEG_NORMAL_FORM_CHARS)
                f->inert[part[k] / 64] &= ~((uint64_t)1 << part[k] % 64);
        }
        n = n == 1 && part[0] == cp ? n : compose(f, part, n);
        if (!is_inert || n != 1 || part[0] != cp)
            f->inert[cp / 64] &= ~((uint64_t)1 << cp % 64);
    }
}

static bool is_inert(const struct meg_normal_form *f, int32_t cp)
{
    return cp < MEG_NORMAL_FORM_CHARS && f->inert[cp / 64] >> cp % 64 & 1;
}

/* The first character of text [n] from `at` on that is not inert; *before: the inert one before it, or
 * `at`.  n when there is none. */
static int64_t next_live(const struct meg_normal_form *f, const char *text, int64_t n, int64_t at,
                         int64_t *before)
{
    *before = at;
    while (at < n) {
        int64_t ascii = meg_utf8_ascii(text + at, n - at);
        int32_t cp;

        if (ascii > 0) {
            at += ascii;
            *before = at - 1;
            continue;
        }
        for (int k = 0; k < 32 && at < n; k++) {
            int len = meg_utf8_read(text + at, &cp);

            if (!is_inert(f, cp))
                return at;
            *before = at;
            at += len;
        }
    }
    return n;
}

/* The first inert character from `at` on; n when there is none. */
static int64_t next_inert(const struct meg_normal_form *f, const char *text, int64_t n, int64_t at)
{
    while (at < n) {
        int32_t cp;
        int len = meg_utf8_read(text + at, &cp);

        if (is_inert(f, cp))
            break;
        at += len;
    }
    return at;
}

/* Is it no part of what is before it?  There is nothing to join from MEG_NORMAL_FORM_CHARS on. */
static bool begins_apart(const struct meg_normal_form *f, int32_t cp)
{
    int32_t part[32];

    return utf8proc_decompose_char(cp, part, 32, options_of(f), NULL) > 0 &&
        (is_inert(f, part[0]) || (part[0] >= MEG_NORMAL_FORM_CHARS &&
                                  utf8proc_get_property(part[0])->combining_class == 0));
}

/* Has out room for n bytes more? */
static int check_room(const struct meg_str *out, int64_t n, struct meg_err *e)
{
    if ((int64_t)out->n + n <= MEG_NORMAL_FORM_LONGEST)
        return MEG_OK;
    return meg_fail(e, MEG_EFORMAT, "longer than %d MiB when normalised; make several texts of it",
                    MEG_NORMAL_FORM_LONGEST >> 20);
}

/* The characters c stand apart from those behind them. */
static int finish(const struct meg_normal_form *f, struct meg_chars *c, struct meg_str *out,
                  struct meg_err *e)
{
    meg_chars_decompose(c, f->is_compatible);
    c->n = compose(f, c->v, c->n);
    meg_chars_write(c, out);
    c->n = 0;
    return check_room(out, 0, e);
}

static int add_stretch(const struct meg_normal_form *f, const char *text, int64_t n,
                       struct meg_str *out, struct meg_err *e)
{
    enum { AT_ONCE = 4096 };
    struct meg_chars c = { 0 };
    int r = MEG_OK;

    for (int64_t i = 0; i < n && r == MEG_OK;) {
        int32_t cp;

        i += meg_utf8_step(text + i, n - i, &cp);
        if (c.n >= AT_ONCE && begins_apart(f, cp))
            r = finish(f, &c, out, e);
        meg_chars_add(&c, cp);
        if (c.n > MEG_NORMAL_FORM_HELD)
            r = meg_fail(e, MEG_EFORMAT,
                         "more than %d marks in a row, which cannot be normalised one by one; break them up",
                         MEG_NORMAL_FORM_HELD);
    }
    if (r == MEG_OK)
        r = finish(f, &c, out, e);
    free(c.v);
    return r;
}

int meg_normal_form_add(const struct meg_normal_form *f, const char *text, int64_t n,
                        struct meg_str *out, struct meg_err *e)
{
    int r = MEG_OK;

    for (int64_t at = 0, before, live, stop; at < n && r == MEG_OK; at = stop) {
        live = next_live(f, text, n, at, &before);
        before = live == n ? n : before;
        if ((r = check_room(out, before - at, e)) < 0)
            break;
        meg_str_add(out, text + at, (size_t)(before - at));
        stop = next_inert(f, text, n, live);
        if (before < n)
            r = add_stretch(f, text + before, stop - before, out, e);
    }
    return r;
}
