/* vocab_file.c - read BERT's vocab.txt, which has one token per line. */
#include "tokenizer/bert/vocab_file.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tokenizer/internal.h"
#include "unicode/char_class.h"
#include "unicode/utf8.h"

enum { MAX_WORD = 200 }; /* maximum characters of a word; longer words are unknown, as in Megatron-LM */

/* Return true for characters that Python's str.strip removes. */
static bool is_space(int32_t cp)
{
    return meg_char_is_space(cp) || (cp >= 0x1C && cp <= 0x1F);
}

/* Remove whitespace at both ends of [*s, *end). */
static void strip(const char **s, const char **end)
{
    while (*s < *end) {
        int32_t cp;
        int n = meg_utf8_decode(*s, *end - *s, &cp);

        if (!is_space(cp))
            break;
        *s += n;
    }
    while (*s < *end) {
        int32_t cp;
        const char *last = meg_utf8_prev(*end, &cp);

        if (!is_space(cp))
            break;
        *end = last;
    }
}

/* The distinct tokens of a file, with the id of each: the number of its last line, counted from 0. */
struct distinct_tokens {
    struct meg_strtab tokens;
    int32_t *id; /* [tokens.n] */
    int64_t cap;
};

/* Append a token to f->tokens, and let its id be that of the new line.  Return the id that the token had, or -1. */
static int32_t add_line(struct meg_bert_files *f, struct distinct_tokens *d, const char *token, int64_t n)
{
    const int64_t known = d->tokens.n, k = meg_strtab_add(&d->tokens, token, n);
    int32_t earlier = -1;

    if (k < known)
        earlier = d->id[k];
    else if (k == d->cap)
        d->id = meg_realloc_array(d->id, (size_t)(d->cap = 2 * d->cap + 1024), sizeof *d->id);
    d->id[k] = (int32_t)f->tokens.n;
    meg_strtab_append(&f->tokens, token, n);
    return earlier;
}

static int read_tokens(struct meg_bert_files *f, struct distinct_tokens *d, const char *path, const char *s, size_t n,
                       struct meg_err *e)
{
    const char *end = s + n;
    int64_t bad = meg_utf8_find_invalid(s, (int64_t)n);

    if (bad >= 0)
        return meg_fail(e, MEG_EFORMAT, "%s: byte %" PRId64 ": invalid UTF-8: 0x%02x", path, bad + 1,
                        (unsigned char)s[bad]);
    if (memchr(s, 0, n))
        return meg_fail(e, MEG_EFORMAT, "%s: contains a zero byte; expected a text file", path);
    for (int64_t line = 1; s < end; line++) {
        const char *stop = s + strcspn(s, "\r\n"), *next, *token = s;
        const bool is_empty = stop == s;

        next = stop + (end - stop >= 2 && stop[0] == '\r' && stop[1] == '\n') + 1;
        strip(&token, &stop);
        if ((add_line(f, d, token, stop - token) >= 0 || is_empty) && f->first_unused_line == 0)
            f->first_unused_line = line;
        s = next;
    }
    return 0;
}

/* Return the id of a token, or -1. */
static int32_t find(const struct distinct_tokens *d, const char *token)
{
    const int64_t k = meg_strtab_find(&d->tokens, token, (int64_t)strlen(token));

    return k < 0 ? -1 : d->id[k];
}

/* Return the id of a token, which is added if it is missing. */
static int32_t find_or_add(struct meg_bert_files *f, struct distinct_tokens *d, const char *token)
{
    if (find(d, token) < 0)
        add_line(f, d, token, (int64_t)strlen(token));
    return find(d, token);
}

static int find_special_ids(struct meg_bert_files *f, const struct distinct_tokens *d, const char *path, int32_t *unk,
                            struct meg_err *e)
{
    struct meg_tok_special_ids *r = &f->special_ids;
    const struct {
        const char *token;
        int32_t *id;
    } needed[] = {
        { "[CLS]", &r->cls }, { "[SEP]", &r->sep }, { "[PAD]", &r->pad }, { "[MASK]", &r->mask }, { "[UNK]", unk }
    };

    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        *needed[i].id = find(d, needed[i].token);
        if (*needed[i].id < 0)
            return meg_fail(e, MEG_EFORMAT, "%s: token %s is missing; BERT tokenizers require it", path,
                            needed[i].token);
    }
    return 0;
}

int meg_bert_files_load(struct meg_bert_files **out, const char *path, int64_t nextra, struct meg_err *e)
{
    struct meg_bert_files *f = meg_new(sizeof *f);
    struct distinct_tokens d = { 0 };
    struct meg_err inner;
    struct meg_str file = { 0 };
    int64_t nlines;
    int32_t unk;
    int r;

    if ((r = meg_tok_read_file(path, &file, e)) < 0 || (r = read_tokens(f, &d, path, file.s, file.n, e)) < 0 ||
        (r = find_special_ids(f, &d, path, &unk, e)) < 0)
        goto out;
    if ((r = meg_wordpiece_build(&f->wordpiece, &d.tokens, d.id, "##", unk, MAX_WORD, &inner)) < 0) {
        r = meg_fail(e, r, "%s: %s", path, inner.msg);
        goto out;
    }
    nlines = f->tokens.n;
    f->special_ids.bos = find_or_add(f, &d, "[BOS]");
    f->special_ids.eos = f->special_ids.eod = find_or_add(f, &d, "[EOS]");
    for (int64_t i = 0; i < nextra; i++) {
        char token[40];

        snprintf(token, sizeof token, "<extra_id_%" PRId64 ">", i);
        find_or_add(f, &d, token);
    }
    f->num_appended = f->tokens.n - nlines;
    *out = f;
    f = NULL;
out:
    meg_bert_files_free(f);
    meg_strtab_free(&d.tokens);
    free(d.id);
    meg_str_free(&file);
    return r;
}

void meg_bert_files_free(void *files)
{
    struct meg_bert_files *f = files;

    if (!f)
        return;
    meg_strtab_free(&f->tokens);
    meg_wordpiece_free(&f->wordpiece);
    free(f);
}
