/*
 * A character is steady when it is its own normal form and joins nothing before it, and inert when it is
 * no mark, too: text may be cut before it, and between two of them nothing happens.  Nor does where one
 * steady mark stands between them.  So only stretches with other characters in them, and the inert one
 * before each, which may join what follows, go through utf8proc.  A long stretch is cut before characters
 * that decomposed begin with an inert one.
 */
#include "unicode/normal_form.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "unicode/codepoints.h"
#include "unicode/simd.h"
#include "unicode/utf8.h"

static utf8proc_option_t options_of(const struct meg_normal_form *f)
{
    return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (f->is_compatible ? UTF8PROC_COMPAT : 0);
}

/* Put the n code points at v in normal form; cap have room. */
static int64_t compose(const struct meg_normal_form *f, int32_t *v, int64_t n)
{
    return f->is_composed ? utf8proc_normalize_utf32(v, n, UTF8PROC_STABLE | UTF8PROC_COMPOSE) : n;
}

enum { INERT, STEADY, MOVING }; /* STEADY is a mark, MOVING neither of them */

static int kind_of(const struct meg_normal_form *f, int32_t cp)
{
    return cp < MEG_NORMAL_FORM_TABLE_SIZE ? f->kind[cp] : MOVING;
}

void meg_normal_form_init(struct meg_normal_form *f, bool is_composed, bool is_compatible)
{
    enum { PARTS = 32 };
    meg_class_masks_fn *way[2];

    f->is_composed = is_composed;
    f->is_compatible = is_compatible;
    meg_class_masks_variants(way);
    f->find_classes = way[0];
    memset(f->kind, INERT, sizeof f->kind);
    for (int32_t cp = 0; cp < MEG_NORMAL_FORM_TABLE_SIZE; cp++) {
        int32_t part[PARTS];
        int64_t n = utf8proc_decompose_char(cp, part, PARTS, options_of(f), NULL);

        /* whatever follows the first part may be what a composed character takes in, but for ASCII */
        for (int64_t k = 1; k < n; k++) {
            if (part[k] >= 0x80 && part[k] < MEG_NORMAL_FORM_TABLE_SIZE)
                f->kind[part[k]] = MOVING;
        }
        n = n == 1 && part[0] == cp ? n : compose(f, part, n);
        if (n != 1 || part[0] != cp)
            f->kind[cp] = MOVING;
        else if (f->kind[cp] == INERT && utf8proc_get_property(cp)->combining_class != 0)
            f->kind[cp] = STEADY;
    }
}

/* A text, 64 bytes at a time. */
struct walk {
    const char *text;
    int64_t n, at;
    const char *s;         /* the bytes from `at` on, zeros behind the end */
    uint64_t steady, live; /* bit i: the character that begins at s[i] is STEADY, is not INERT */
    char last[MEG_CLASS_TEXT_BYTES];
};

static void load_masks(const struct meg_normal_form *f, struct walk *w, int64_t at)
{
    uint64_t first = 0;
    struct meg_class_masks kinds;

    w->at = at;
    w->s = w->text + at;
    if (w->n - at < (int64_t)sizeof w->last) {
        memset(w->last, 0, sizeof w->last);
        w->s = memcpy(w->last, w->s, (size_t)(w->n - at));
    }
    for (int k = 0; k < 64; k += 16) {
        v16 c;

        memcpy(&c, w->s + k, 16);
        first |= meg_movemask((v16)(c >= 0xC0)) << k;
    }
    kinds = first ? f->find_classes(f->kind, w->s, first) : (struct meg_class_masks){ 0 };
    w->steady = kinds.bit[0];
    w->live = kinds.bit[0] | kinds.bit[1];
    for (; kinds.wide; kinds.wide &= kinds.wide - 1) {
        int k = __builtin_ctzll(kinds.wide);
        int32_t cp;

        meg_utf8_decode_unchecked(w->s + k, &cp);
        w->steady |= (uint64_t)(kind_of(f, cp) == STEADY) << k;
        w->live |= (uint64_t)(kind_of(f, cp) != INERT) << k;
    }
}

/* Does an inert character begin k bytes on, or nothing? */
static bool is_inert_after(const struct meg_normal_form *f, const struct walk *w, int k)
{
    int32_t cp;

    if (w->at + k == w->n)
        return true;
    if (k < 64)
        return !(w->live >> k & 1);
    meg_utf8_decode_unchecked(w->s + k, &cp);
    return kind_of(f, cp) == INERT;
}

/* The first character from `at` on that is not inert, nor a steady mark by itself; n when there is none. */
static int64_t next_unstable(const struct meg_normal_form *f, struct walk *w, int64_t at)
{
    for (; at < w->n; at = w->at + 64) {
        if (at - w->at >= 64)
            load_masks(f, w, at - at % 64);
        w->live &= ~(uint64_t)0 << (at - w->at);
        for (; w->live; w->live &= w->live - 1) {
            int k = __builtin_ctzll(w->live), len = meg_utf8_length((unsigned char)w->s[k]);

            if (!(w->steady >> k & 1) || !is_inert_after(f, w, k + len))
                return w->at + k;
        }
    }
    return w->n;
}

/* Where the character begins that stands before `at`; begin when there is none behind that. */
static int64_t prev_char(const char *text, int64_t begin, int64_t at)
{
    if (at > begin)
        at--;
    while (at > begin && (text[at] & 0xC0) == 0x80)
        at--;
    return at;
}

/* The first inert character from `at` on; n when there is none. */
static int64_t next_inert(const struct meg_normal_form *f, const char *text, int64_t n, int64_t at)
{
    while (at < n) {
        int32_t cp;
        int len = meg_utf8_decode_unchecked(text + at, &cp);

        if (kind_of(f, cp) == INERT)
            break;
        at += len;
    }
    return at;
}

/* Is it no part of what is before it?  There is nothing to join from MEG_NORMAL_FORM_TABLE_SIZE on. */
static bool has_boundary_before(const struct meg_normal_form *f, int32_t cp)
{
    int32_t part[32];

    return utf8proc_decompose_char(cp, part, 32, options_of(f), NULL) > 0 &&
           (kind_of(f, part[0]) == INERT ||
            (part[0] >= MEG_NORMAL_FORM_TABLE_SIZE && utf8proc_get_property(part[0])->combining_class == 0));
}

int meg_normal_form_check_size(const struct meg_str *out, int64_t n, int64_t most, struct meg_err *e)
{
    if ((int64_t)out->n + n <= most)
        return MEG_OK;
    return meg_fail(e, MEG_EFORMAT, "longer than %lld MiB when normalised; make several texts of it",
                    (long long)most >> 20);
}

/* The characters c stand apart from those behind them. */
static int finish(const struct meg_normal_form *f, struct meg_codepoints *c, int64_t most, struct meg_str *out,
                  struct meg_err *e)
{
    meg_codepoints_decompose(c, f->is_compatible);
    c->n = compose(f, c->v, c->n);
    meg_codepoints_to_utf8(c, out);
    c->n = 0;
    return meg_normal_form_check_size(out, 0, most, e);
}

static int normalize_chunk(const struct meg_normal_form *f, const char *text, int64_t n, int64_t most,
                           struct meg_str *out, struct meg_err *e)
{
    enum { AT_ONCE = 4096 };
    struct meg_codepoints c = { 0 };
    int r = MEG_OK;

    for (int64_t i = 0; i < n && r == MEG_OK;) {
        int32_t cp;

        i += meg_utf8_decode(text + i, n - i, &cp);
        if (c.n >= AT_ONCE && has_boundary_before(f, cp))
            r = finish(f, &c, most, out, e);
        meg_codepoints_add(&c, cp);
        if (c.n > MEG_NORMAL_FORM_MAX_RUN)
            r = meg_fail(e, MEG_EFORMAT,
                         "more than %d marks in a row, which cannot be normalised one by one; break them up",
                         MEG_NORMAL_FORM_MAX_RUN);
    }
    if (r == MEG_OK)
        r = finish(f, &c, most, out, e);
    free(c.v);
    return r;
}

int meg_normal_form_add(const struct meg_normal_form *f, const char *text, int64_t n, int64_t most, struct meg_str *out,
                        struct meg_err *e)
{
    struct walk w = { .text = text, .n = n, .at = -64 };
    int r = MEG_OK;

    for (int64_t at = 0, before, live, stop; at < n && r == MEG_OK; at = stop) {
        live = next_unstable(f, &w, at);
        before = live == n ? n : prev_char(text, at, live);
        if ((r = meg_normal_form_check_size(out, before - at, most, e)) < 0)
            break;
        meg_str_add(out, text + at, (size_t)(before - at));
        stop = next_inert(f, text, n, live);
        if (before < n)
            r = normalize_chunk(f, text + before, stop - before, most, out, e);
    }
    return r;
}
