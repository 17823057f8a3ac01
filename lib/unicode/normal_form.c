/*
 * normal_form.c - normalize only the segments of a text that may change.  A character is stable if it is its own normal
 * form and does not compose with a preceding character.  A stable character is inert if it is not a combining mark.
 * Text has a normalization boundary before an inert character.
 *
 * A sequence of inert characters does not change, nor does a single stable mark between two inert characters.  Only
 * segments with other characters are passed to utf8proc.  A segment begins with the preceding inert character, since
 * this character may compose with the next one.  A long segment is split before a character if the decomposition of the
 * character begins with an inert character.
 */
#include "unicode/normal_form.h"
#include <inttypes.h>
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

/*
 * Compose the n decomposed code points at v in place, if the form is composed.  Return the new number of code points.
 */
static int64_t compose(const struct meg_normal_form *f, int32_t *v, int64_t n)
{
    return f->is_composed ? utf8proc_normalize_utf32(v, n, UTF8PROC_STABLE | UTF8PROC_COMPOSE) : n;
}

enum { INERT, STABLE_MARK, UNSTABLE };

static int stability_of(const struct meg_normal_form *f, int32_t cp)
{
    return cp < MEG_NORMAL_FORM_TABLE_SIZE ? f->stability[cp] : UNSTABLE;
}

void meg_normal_form_init(struct meg_normal_form *f, bool is_composed, bool is_compatible)
{
    enum { MAX_PARTS = 32 };
    meg_class_masks_fn *variant[2];

    f->is_composed = is_composed;
    f->is_compatible = is_compatible;
    meg_class_masks_variants(variant);
    f->find_classes = variant[0];
    memset(f->stability, INERT, sizeof f->stability);
    for (int32_t cp = 0; cp < MEG_NORMAL_FORM_TABLE_SIZE; cp++) {
        int32_t part[MAX_PARTS];
        int64_t n = utf8proc_decompose_char(cp, part, MAX_PARTS, options_of(f), NULL);

        /* a non-ASCII code point after the first of a decomposition may compose with a preceding code point */
        for (int64_t k = 1; k < n; k++) {
            if (part[k] >= 0x80 && part[k] < MEG_NORMAL_FORM_TABLE_SIZE)
                f->stability[part[k]] = UNSTABLE;
        }
        n = n == 1 && part[0] == cp ? n : compose(f, part, n);
        if (n != 1 || part[0] != cp)
            f->stability[cp] = UNSTABLE;
        else if (f->stability[cp] == INERT && utf8proc_get_property(cp)->combining_class != 0)
            f->stability[cp] = STABLE_MARK;
    }
}

/* A block of 64 bytes of a text, and its masks. */
struct text_block {
    const char *text;
    int64_t n, offset;
    const char *s;        /* bytes of the text from offset, padded with zeros */
    uint64_t stable_mark; /* bit i: the character that begins at s[i] is a STABLE_MARK */
    uint64_t not_inert;
    char tail[MEG_CLASS_TEXT_BYTES]; /* padded copy of the end of the text */
};

static void load_masks(const struct meg_normal_form *f, struct text_block *w, int64_t offset)
{
    uint64_t starts = 0;
    struct meg_class_masks masks;

    w->offset = offset;
    w->s = w->text + offset;
    if (w->n - offset < (int64_t)sizeof w->tail) {
        memset(w->tail, 0, sizeof w->tail);
        w->s = memcpy(w->tail, w->s, (size_t)(w->n - offset));
    }
    for (int k = 0; k < 64; k += 16) {
        v16 c;

        memcpy(&c, w->s + k, 16);
        starts |= meg_movemask((v16)(c >= 0xC0)) << k;
    }
    masks = starts ? f->find_classes(f->stability, w->s, starts) : (struct meg_class_masks){ 0 };
    w->stable_mark = masks.class_bit[0];
    w->not_inert = masks.class_bit[0] | masks.class_bit[1];
    for (; masks.non_bmp; masks.non_bmp &= masks.non_bmp - 1) {
        int k = __builtin_ctzll(masks.non_bmp);
        int32_t cp;

        meg_utf8_decode_unchecked(w->s + k, &cp);
        w->stable_mark |= (uint64_t)(stability_of(f, cp) == STABLE_MARK) << k;
        w->not_inert |= (uint64_t)(stability_of(f, cp) != INERT) << k;
    }
}

/* Return whether an inert character begins at w->s[k], or the text ends there. */
static bool is_inert_after(const struct meg_normal_form *f, const struct text_block *w, int k)
{
    int32_t cp;

    if (w->offset + k == w->n)
        return true;
    if (k < 64)
        return !(w->not_inert >> k & 1);
    meg_utf8_decode_unchecked(w->s + k, &cp);
    return stability_of(f, cp) == INERT;
}

/*
 * Return the offset of the first character at or after `begin` that is neither inert nor a single stable mark; n if
 * there is none.
 */
static int64_t next_unstable(const struct meg_normal_form *f, struct text_block *w, int64_t begin)
{
    for (; begin < w->n; begin = w->offset + 64) {
        if (begin - w->offset >= 64)
            load_masks(f, w, begin - begin % 64);
        w->not_inert &= ~(uint64_t)0 << (begin - w->offset);
        for (; w->not_inert; w->not_inert &= w->not_inert - 1) {
            int k = __builtin_ctzll(w->not_inert), len = meg_utf8_length((unsigned char)w->s[k]);

            if (!(w->stable_mark >> k & 1) || !is_inert_after(f, w, k + len))
                return w->offset + k;
        }
    }
    return w->n;
}

/* Return the offset of the character before byte i, but at least `begin`. */
static int64_t prev_char(const char *text, int64_t begin, int64_t i)
{
    if (i > begin)
        i--;
    while (i > begin && (text[i] & 0xC0) == 0x80)
        i--;
    return i;
}

/* Return the offset of the first inert character at or after byte i; n if there is none. */
static int64_t next_inert(const struct meg_normal_form *f, const char *text, int64_t n, int64_t i)
{
    while (i < n) {
        int32_t cp;
        int len = meg_utf8_decode_unchecked(text + i, &cp);

        if (stability_of(f, cp) == INERT)
            break;
        i += len;
    }
    return i;
}

/*
 * Return whether there is a normalization boundary before cp.  A code point without a table entry never composes with a
 * preceding one.
 */
static bool has_boundary_before(const struct meg_normal_form *f, int32_t cp)
{
    int32_t part[32];

    return utf8proc_decompose_char(cp, part, 32, options_of(f), NULL) > 0 &&
           (stability_of(f, part[0]) == INERT ||
            (part[0] >= MEG_NORMAL_FORM_TABLE_SIZE && utf8proc_get_property(part[0])->combining_class == 0));
}

int meg_normal_form_check_size(const struct meg_str *out, int64_t n, int64_t max_bytes, struct meg_err *e)
{
    if ((int64_t)out->n + n <= max_bytes)
        return 0;
    return meg_fail(e, MEG_EFORMAT, "the text is longer than %" PRId64 " MiB after normalization; split the text",
                    max_bytes >> 20);
}

/* Append the normal form of segment c, which ends at a normalization boundary, and clear c. */
static int flush_segment(const struct meg_normal_form *f, struct meg_codepoints *c, int64_t max_bytes,
                         struct meg_str *out, struct meg_err *e)
{
    meg_codepoints_decompose(c, f->is_compatible);
    c->n = compose(f, c->v, c->n);
    meg_codepoints_to_utf8(c, out);
    c->n = 0;
    return meg_normal_form_check_size(out, 0, max_bytes, e);
}

static int normalize_chunk(const struct meg_normal_form *f, const char *text, int64_t n, int64_t max_bytes,
                           struct meg_str *out, struct meg_err *e)
{
    enum { SEGMENT = 4096 };
    struct meg_codepoints c = { 0 };
    int r = 0;

    for (int64_t i = 0; i < n && r == 0;) {
        int32_t cp;

        i += meg_utf8_decode(text + i, n - i, &cp);
        if (c.n >= SEGMENT && has_boundary_before(f, cp))
            r = flush_segment(f, &c, max_bytes, out, e);
        meg_codepoints_add(&c, cp);
        if (c.n > MEG_NORMAL_FORM_MAX_RUN)
            r = meg_fail(e, MEG_EFORMAT,
                         "the text has more than %d consecutive combining marks, which must be normalized together; "
                         "split the text",
                         MEG_NORMAL_FORM_MAX_RUN);
    }
    if (r == 0)
        r = flush_segment(f, &c, max_bytes, out, e);
    free(c.v);
    return r;
}

int meg_normal_form_add(const struct meg_normal_form *f, const char *text, int64_t n, int64_t max_bytes,
                        struct meg_str *out, struct meg_err *e)
{
    struct text_block w = { .text = text, .n = n, .offset = -64 };
    int r = 0;

    for (int64_t i = 0, begin, unstable, end; i < n && r == 0; i = end) {
        unstable = next_unstable(f, &w, i);
        begin = unstable == n ? n : prev_char(text, i, unstable);
        if ((r = meg_normal_form_check_size(out, begin - i, max_bytes, e)) < 0)
            break;
        meg_str_add(out, text + i, (size_t)(begin - i));
        end = next_inert(f, text, n, unstable);
        if (begin < n)
            r = normalize_chunk(f, text + begin, end - begin, max_bytes, out, e);
    }
    return r;
}
