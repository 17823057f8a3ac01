/*
 * decoder.c - decoders of tokenizer.json.  Each step rewrites the list of tokens, most steps one token at a time.  Some
 * results depend on more than one token:
 * - the first and the last token can be rewritten differently;
 * - ByteFallback rewrites a run of byte-fallback tokens together, and ByteLevel rewrites all tokens together;
 * - a step after Fuse rewrites the entire text.
 */
#include <stdlib.h>
#include <string.h>
#include "io/json.h"
#include "tokenizer/bpe/byte_alphabet.h"
#include "tokenizer/hf/internal.h"
#include "tokenizer/internal.h"
#include "unicode/utf8.h"

enum step_type { BYTE_LEVEL, WORDPIECE, METASPACE, BYTE_FALLBACK, REPLACE, FUSE, STRIP, BPE };

struct step {
    enum step_type type;
    struct meg_hf_pattern pattern; /* METASPACE, BPE, REPLACE: the pattern to replace */
    struct meg_str content;        /* REPLACE: replacement; WORDPIECE: prefix; STRIP: the string to remove */
    bool flag; /* METASPACE: remove the pattern from the first token; WORDPIECE: clean up (meg_tok_clean_up) */
    int64_t start, stop; /* STRIP: maximum number of occurrences to remove at the start and at the end */
    const char *scheme;  /* METASPACE, while loading: prepend_scheme, or NULL */
};

/* ---- Loading ---- */

#define FIELD(f) offsetof(struct step, f)
static const struct meg_hf_step_type types[] = {
    [BYTE_LEVEL] = { .name = "ByteLevel" },
    [WORDPIECE] = { "WordPiece",
                    { { "prefix", MEG_HF_TEXT, FIELD(content), "##" },
                      { "cleanup", MEG_HF_BOOL, FIELD(flag), "true" } } },
    [METASPACE] = { "Metaspace",
                    { { "replacement", MEG_HF_TEXT, FIELD(pattern.literal), "\xE2\x96\x81" },
                      { "prepend_scheme", MEG_HF_STRING, FIELD(scheme), NULL },
                      { "add_prefix_space", MEG_HF_BOOL, FIELD(flag), "true" } } },
    [BYTE_FALLBACK] = { .name = "ByteFallback" },
    [REPLACE] = { "Replace",
                  { { "pattern", MEG_HF_PATTERN, FIELD(pattern), NULL },
                    { "content", MEG_HF_TEXT, FIELD(content), NULL } } },
    [FUSE] = { .name = "Fuse" },
    [STRIP] = { "Strip",
                { { "content", MEG_HF_TEXT, FIELD(content), " " },
                  { "start", MEG_HF_I64, FIELD(start), NULL },
                  { "stop", MEG_HF_I64, FIELD(stop), NULL } } },
    [BPE] = { "BPEDecoder", { { "suffix", MEG_HF_TEXT, FIELD(pattern.literal), "</w>" } } },
};

static int finish_step(void *step, int type, const char *where, struct meg_err *e)
{
    struct step *s = step;

    s->type = (enum step_type)type;
    if (s->scheme)
        s->flag = strcmp(s->scheme, "never") != 0;
    if (s->type == STRIP && s->content.n == 0)
        return meg_fail(e, MEG_EFORMAT, "%s: content is empty", where);
    if ((s->type == METASPACE || s->type == BPE) && s->pattern.literal.n == 0)
        return meg_fail(e, MEG_EFORMAT, "%s: the string to replace is empty", where);
    return 0;
}

static void free_step(void *step)
{
    struct step *s = step;

    meg_hf_pattern_free(&s->pattern);
    meg_str_free(&s->content);
}

const struct meg_hf_step_class meg_hf_decoder = { "decoders",          types,       sizeof types / sizeof *types,
                                                  sizeof(struct step), finish_step, free_step };

bool meg_hf_decoder_is_byte_level(const struct meg_hf_steps *d)
{
    const struct step *s = meg_hf_step(d, 0);

    return s && d->n == 1 && s->type == BYTE_LEVEL;
}

bool meg_hf_decoder_adds_spaces(const struct meg_hf_steps *d)
{
    const struct step *s;

    for (int64_t i = 0; (s = meg_hf_step(d, i)); i++)
        if (s->type == WORDPIECE)
            return true;
    return !d;
}

bool meg_hf_decoder_can_stream(const struct meg_hf_steps *d)
{
    const struct step *s;
    bool is_fused = false;

    for (int64_t i = 0; (s = meg_hf_step(d, i)); i++) {
        if (s->type == BYTE_LEVEL || s->type == BPE || (is_fused && (s->type != STRIP || s->stop > 0)))
            return false;
        is_fused |= s->type == FUSE;
    }
    return true;
}

/*
 * Return the byte of a token <0xNN>, or -1.  NN is two hexadecimal digits or, as in Hugging Face's library, a plus sign
 * and one hexadecimal digit.
 */
static int byte_of(const char *s, int64_t n)
{
    char *end;
    long byte;

    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>' || !s[3] || !s[4] || !strchr("0123456789abcdefABCDEF+", s[3]))
        return -1;
    byte = strtol((const char[]){ s[3], s[4], 0 }, &end, 16);
    return *end || byte < 0 ? -1 : (int)byte;
}

int meg_hf_decoder_byte(const struct meg_hf_steps *d, const char *token, int64_t n)
{
    const struct step *s;

    for (int64_t i = 0; (s = meg_hf_step(d, i)); i++)
        if (s->type == BYTE_FALLBACK)
            return byte_of(token, n);
    return -1;
}

/* ---- Decoding ---- */

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

    /* on failure, when matching exceeds PCRE2's limits, the rest of the token remains unchanged */
    meg_hf_pattern_replace(&s->pattern, t->s ? t->s : "", (int64_t)t->n, s->type == REPLACE ? &s->content : &to,
                           INT64_MAX, &out, &e);
    meg_str_free(t);
    *t = out;
}

/*
 * Remove up to s->start occurrences of s->content at the start of t, and up to s->stop at the end of t.  If nremoved is
 * not NULL, t is the next part of a longer text.  *nremoved counts the removals at the start of the longer text.  It is
 * set to s->start as soon as other text follows.
 */
static void strip(const struct step *s, struct meg_str *t, int *nremoved)
{
    size_t n = s->content.n, from = 0, stop;
    int own = 0, *count = nremoved ? nremoved : &own;

    while (*count < s->start && from + n <= t->n && memcmp(t->s + from, s->content.s, n) == 0) {
        from += n;
        ++*count;
    }
    if (from < t->n) /* text remains, so later parts are not at the start */
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

/*
 * Replace each run of byte-fallback tokens by the text of the run's bytes.  If the bytes of a run are not valid UTF-8,
 * replace each byte by U+FFFD.
 */
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

/*
 * Replace the tokens by one token: the text of their bytes, with U+FFFD for invalid UTF-8.  A token with a character
 * outside the byte alphabet is kept as it is spelled.
 */
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
    switch (s->type) {
    case BYTE_LEVEL: byte_level(t); return;
    case BYTE_FALLBACK: byte_fallback(t); return;
    case FUSE: fuse(t); return;
    default: break;
    }
    for (int64_t i = 0; i < t->n; i++) {
        bool is_first = first + i == 0;

        if (s->type == WORDPIECE)
            wordpiece(s, &t->v[i], is_first);
        else if (s->type == STRIP)
            strip(s, &t->v[i], is_fused ? state : NULL);
        else
            replace_in(s, &t->v[i],
                       s->type == METASPACE && is_first && s->flag ? ""
                       : s->type == BPE && i == t->n - 1           ? ""
                                                                   : " ");
    }
}

void meg_hf_decoder_run(const struct meg_hf_steps *d, const struct meg_str *token, int64_t n, int64_t first, int *state,
                        struct meg_str *out)
{
    struct tokens t = { meg_new(((size_t)n + 1) * sizeof *t.v), n };
    const struct step *s;
    bool is_fused = false;

    for (int64_t i = 0; i < n; i++) {
        if (!d && first + i > 0)
            meg_str_add(&t.v[i], " ", 1);
        meg_str_add(&t.v[i], token[i].s, token[i].n);
    }
    for (int64_t k = 0; (s = meg_hf_step(d, k)); k++) {
        run_step(s, &t, first, is_fused, state);
        is_fused |= s->type == FUSE;
    }
    for (int64_t i = 0; i < t.n; i++)
        meg_str_add(out, t.v[i].s, t.v[i].n);
    for (int64_t i = 0; i < n; i++)
        meg_str_free(&t.v[i]);
    free(t.v);
}
