/*
 * Decoders of tokenizer.json.  A step maps the list of tokens; what looks beyond its own token is the
 * place of the first one, a run of bytes, the last token, and whatever comes after Fuse.
 */
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "tokenizer/bpe/byte_alphabet.h"
#include "tokenizer/hf/internal.h"
#include "tokenizer/internal.h"
#include "unicode/utf8.h"

enum kind { BYTE_LEVEL, WORDPIECE, METASPACE, BYTE_FALLBACK, REPLACE, FUSE, STRIP, BPE };

static const char *const names[] = { "ByteLevel", "WordPiece", "Metaspace", "ByteFallback",
                                     "Replace",   "Fuse",      "Strip",     "BPEDecoder" };

struct step {
    enum kind kind;
    struct meg_hf_pattern pattern; /* of METASPACE, BPE, REPLACE what is replaced */
    struct meg_str content;        /* of REPLACE by what; of WORDPIECE the prefix; of STRIP a character */
    bool flag;                     /* of METASPACE: the first token loses it; of WORDPIECE: clean up */
    int64_t start, stop;           /* of STRIP: at most so many */
};

struct meg_hf_decoder {
    struct step *step;
    int64_t n;
};

/* ---- loading ---- */

static int load_members(struct step *s, const json_t *part, const char *from, struct meg_err *e)
{
    const char *scheme = NULL;
    bool add_prefix_space = true;
    int r;

    switch (s->kind) {
    case WORDPIECE:
        s->flag = true;
        if ((r = meg_hf_get_string(part, "prefix", "##", &s->content, from, e)) < 0)
            return r;
        return meg_json_get_bool(part, "cleanup", MEG_JSON_OPTIONAL, &s->flag, from, e);
    case METASPACE:
        if ((r = meg_hf_get_string(part, "replacement", "\xE2\x96\x81", &s->pattern.literal, from, e)) < 0 ||
            (r = meg_json_get_str(part, "prepend_scheme", MEG_JSON_OPTIONAL, &scheme, from, e)) < 0 ||
            (r = meg_json_get_bool(part, "add_prefix_space", MEG_JSON_OPTIONAL, &add_prefix_space, from, e)) < 0)
            return r;
        s->flag = scheme ? strcmp(scheme, "never") != 0 : add_prefix_space;
        break;
    case REPLACE:
        if ((r = meg_hf_pattern_load(&s->pattern, part, from, e)) < 0)
            return r;
        return meg_hf_get_string(part, "content", NULL, &s->content, from, e);
    case STRIP:
        if ((r = meg_hf_get_string(part, "content", " ", &s->content, from, e)) < 0 ||
            (r = meg_json_get_i64(part, "start", MEG_JSON_OPTIONAL, &s->start, from, e)) < 0)
            return r;
        if ((r = meg_json_get_i64(part, "stop", MEG_JSON_OPTIONAL, &s->stop, from, e)) < 0)
            return r;
        return s->content.n > 0 ? MEG_OK : meg_fail(e, MEG_EFORMAT, "%s: content is empty", from);
    case BPE:
        if ((r = meg_hf_get_string(part, "suffix", "</w>", &s->pattern.literal, from, e)) < 0)
            return r;
        break;
    default: return MEG_OK;
    }
    return s->pattern.literal.n > 0 ? MEG_OK : meg_fail(e, MEG_EFORMAT, "%s: what is replaced is empty", from);
}

static int add_step(void *to, int kind, const json_t *part, const char *from, struct meg_err *e)
{
    struct meg_hf_decoder *d = to;

    d->step = meg_realloc_array(d->step, (size_t)d->n + 1, sizeof *d->step);
    d->step[d->n] = (struct step){ .kind = (enum kind)kind };
    return load_members(&d->step[d->n++], part, from, e);
}

static const struct meg_hf_sequence parts = { "decoders", names, sizeof names / sizeof *names, add_step };

int meg_hf_decoder_load(struct meg_hf_decoder **out, const json_t *part, const char *from, struct meg_err *e)
{
    struct meg_hf_decoder *d = meg_new(sizeof *d);
    int r = meg_hf_sequence_load(&parts, part, d, from, e);

    *out = d;
    if (r < 0) {
        meg_hf_decoder_free(d);
        *out = NULL;
    }
    return r;
}

void meg_hf_decoder_free(struct meg_hf_decoder *d)
{
    if (!d)
        return;
    for (int64_t i = 0; i < d->n; i++) {
        meg_hf_pattern_free(&d->step[i].pattern);
        meg_str_free(&d->step[i].content);
    }
    free(d->step);
    free(d);
}

bool meg_hf_decoder_is_byte_level(const struct meg_hf_decoder *d)
{
    return d && d->n == 1 && d->step[0].kind == BYTE_LEVEL;
}

bool meg_hf_decoder_can_stream(const struct meg_hf_decoder *d)
{
    bool is_fused = false;

    for (int64_t i = 0; d && i < d->n; i++) {
        const struct step *s = &d->step[i];

        if (s->kind == BYTE_LEVEL || s->kind == BPE || (is_fused && (s->kind != STRIP || s->stop > 0)))
            return false;
        is_fused |= s->kind == FUSE;
    }
    return true;
}

/* The byte of a token like <0x0A>, or -1; as there, a sign may stand before a single digit. */
static int byte_of(const char *s, int64_t n)
{
    char *end;
    long byte;

    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>' || !s[3] || !s[4] || !strchr("0123456789abcdefABCDEF+", s[3]))
        return -1;
    byte = strtol((const char[]){ s[3], s[4], 0 }, &end, 16);
    return *end || byte < 0 ? -1 : (int)byte;
}

int meg_hf_decoder_byte(const struct meg_hf_decoder *d, const char *token, int64_t n)
{
    for (int64_t i = 0; d && i < d->n; i++) {
        if (d->step[i].kind == BYTE_FALLBACK)
            return byte_of(token, n);
    }
    return -1;
}

/* ---- at work ---- */

struct tokens {
    struct meg_str *v;
    int64_t n;
};

static void wordpiece(const struct step *s, struct meg_str *t, bool is_first)
{
    struct meg_str out = { 0 };
    size_t n = s->content.n;

    if (!is_first) {
        if (t->n >= n && memcmp(t->s, s->content.s, n) == 0) {
            meg_str_add(&out, t->s + n, t->n - n);
        } else {
            meg_str_add(&out, " ", 1);
            meg_str_add(&out, t->s, t->n);
        }
        meg_str_free(t);
        *t = out;
    }
    if (s->flag)
        meg_tok_clean_up(t, true);
}

static void replace_in(const struct step *s, struct meg_str *t, const char *by)
{
    struct meg_str to = { (char *)(uintptr_t)by, strlen(by), 0 }, out = { 0 };
    struct meg_err e;

    /* a pattern that takes too long on a token leaves the rest of it as it is */
    meg_hf_pattern_replace(&s->pattern, t->s ? t->s : "", (int64_t)t->n, s->kind == REPLACE ? &s->content : &to,
                           INT64_MAX, &out, &e);
    meg_str_free(t);
    *t = out;
}

/* Take content off both ends; *taken counts those in front over several calls, or is NULL. */
static void strip(const struct step *s, struct meg_str *t, int *taken)
{
    size_t n = s->content.n, from = 0, stop;
    int own = 0, *count = taken ? taken : &own;

    while (*count < s->start && from + n <= t->n && memcmp(t->s + from, s->content.s, n) == 0) {
        from += n;
        ++*count;
    }
    if (from < t->n) /* what comes later is no longer in front */
        *count = s->start < INT32_MAX ? (int)s->start : INT32_MAX;
    stop = t->n;
    for (int64_t i = 0; i < s->stop && stop >= from + n && memcmp(t->s + stop - n, s->content.s, n) == 0; i++)
        stop -= n;
    if (t->n > 0)
        memmove(t->s, t->s + from, stop - from);
    t->n = stop - from;
}

static void swap(struct meg_str *a, struct meg_str *b)
{
    struct meg_str was = *a;

    *a = *b;
    *b = was;
}

static void fuse(struct tokens *t)
{
    struct meg_str all = { 0 };

    meg_str_add(&all, "", 0);
    for (int64_t i = 0; i < t->n; i++) {
        meg_str_add(&all, t->v[i].s, t->v[i].n);
        meg_str_free(&t->v[i]);
        t->v[i] = (struct meg_str){ 0 };
    }
    if (t->n > 0)
        t->v[0] = all;
    else
        meg_str_free(&all);
    t->n = t->n > 0;
}

/* Runs of bytes become a token of their text, or U+FFFD each where they are none. */
static void byte_fallback(struct tokens *t)
{
    int64_t n = 0;

    for (int64_t i = 0, k; i < t->n; i = k) {
        struct meg_str run = { 0 };

        for (k = i; k < t->n && byte_of(t->v[k].s ? t->v[k].s : "", (int64_t)t->v[k].n) >= 0; k++) {
            char c = (char)byte_of(t->v[k].s, (int64_t)t->v[k].n);

            meg_str_add(&run, &c, 1);
            t->v[k].n = 0;
        }
        if (k == i)
            swap(&t->v[n++], &t->v[k++]);
        else if (meg_utf8_find_invalid(run.s, (int64_t)run.n) < 0)
            meg_str_add(&t->v[n++], run.s, run.n);
        else
            for (int64_t b = i; b < k; b++)
                meg_str_add(&t->v[n++], "\xEF\xBF\xBD", 3);
        meg_str_free(&run);
    }
    t->n = n;
}

/* All tokens become one. */
static void byte_level(struct tokens *t)
{
    struct meg_str bytes = { 0 }, text = { 0 };

    for (int64_t i = 0; i < t->n; i++) {
        if (t->v[i].n > 0 && meg_byte_alphabet_decode(&bytes, t->v[i].s, (int64_t)t->v[i].n) < 0)
            meg_str_add(&bytes, t->v[i].s, t->v[i].n);
        t->v[i].n = 0;
    }
    if (bytes.n > 0)
        meg_utf8_add_replaced(&text, bytes.s, (int64_t)bytes.n);
    if (t->n > 0)
        meg_str_add(&t->v[0], text.s, text.n);
    t->n = t->n > 0;
    meg_str_free(&bytes);
    meg_str_free(&text);
}

static void run_step(const struct step *s, struct tokens *t, int64_t first, bool is_fused, int *state)
{
    switch (s->kind) {
    case BYTE_LEVEL: byte_level(t); return;
    case BYTE_FALLBACK: byte_fallback(t); return;
    case FUSE: fuse(t); return;
    default: break;
    }
    for (int64_t i = 0; i < t->n; i++) {
        bool is_first = first + i == 0;

        if (s->kind == WORDPIECE)
            wordpiece(s, &t->v[i], is_first);
        else if (s->kind == STRIP)
            strip(s, &t->v[i], is_fused ? state : NULL);
        else
            replace_in(s, &t->v[i],
                       s->kind == METASPACE && is_first && s->flag ? ""
                       : s->kind == BPE && i == t->n - 1           ? ""
                                                                   : " ");
    }
}

void meg_hf_decoder_run(const struct meg_hf_decoder *d, const struct meg_str *token, int64_t n, int64_t first,
                        int *state, struct meg_str *out)
{
    struct tokens t = { meg_new(((size_t)n + 1) * sizeof *t.v), n };
    bool is_fused = false;

    for (int64_t i = 0; i < n; i++) {
        if (!d && first + i > 0)
            meg_str_add(&t.v[i], " ", 1);
        meg_str_add(&t.v[i], token[i].s, token[i].n);
    }
    for (int64_t k = 0; d && k < d->n; k++) {
        run_step(&d->step[k], &t, first, is_fused, state);
        is_fused |= d->step[k].kind == FUSE;
    }
    for (int64_t i = 0; i < t.n; i++)
        meg_str_add(out, t.v[i].s, t.v[i].n);
    for (int64_t i = 0; i < n; i++)
        meg_str_free(&t.v[i]);
    free(t.v);
}
