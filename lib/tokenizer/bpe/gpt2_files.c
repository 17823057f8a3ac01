#include "tokenizer/bpe/gpt2_files.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/strtab.h"
#include "io/json_scan.h"
#include "tokenizer/bpe/byte_alphabet.h"
#include "tokenizer/internal.h"
#include "unicode/utf8.h"

#define EOD "<|endoftext|>"
enum { MAX_REPORTED = 5 }; /* so many bad merges are named, the others counted */

/* The vocabulary as the file spells it. */
struct raw_vocab {
    struct meg_strtab tokens; /* in the order of the file */
    int64_t *id;              /* [tokens.cap] */
    const char *path;
};

/* Id of a token; -1 when the vocabulary lacks it. */
static int32_t id_of(const struct raw_vocab *v, const char *token, size_t n)
{
    int64_t k = meg_strtab_find(&v->tokens, token, (int64_t)n);

    return k < 0 ? -1 : (int32_t)v->id[k];
}

/* The id of a token; what is no whole number that could be one is -1. */
static int read_id(struct meg_json_scan *s, int64_t *id, struct meg_span *found)
{
    const char *begin, *kind;
    int r;

    meg_json_scan_skip_space(s);
    begin = s->p;
    if ((r = meg_json_scan_value(s, 1, &kind)) < 0)
        return r;
    *found = (struct meg_span){ begin, s->p - begin };
    *id = found->n > 10 ? -1 : 0;
    for (const char *p = begin; p < s->p && *id >= 0; p++)
        *id = *p >= '0' && *p <= '9' ? 10 * *id + (*p - '0') : -1;
    return MEG_OK;
}

static int add_token(struct raw_vocab *v, struct meg_json_scan *s, struct meg_str *buf)
{
    int64_t was = v->tokens.n, cap = v->tokens.cap, k, id;
    struct meg_span token, found;
    const char *lone;
    int r;

    meg_json_scan_skip_space(s);
    buf->n = 0;
    if ((r = meg_json_scan_string(s, buf, &token, &lone)) < 0)
        return r;
    k = meg_strtab_add(&v->tokens, token.s, token.n);
    if (k < was || lone)
        return meg_fail(s->e, MEG_EFORMAT, "token '%.*s' %s", (int)token.n, token.s,
                        lone ? "has half a surrogate pair" : "stands there twice");
    if (cap != v->tokens.cap)
        v->id = meg_realloc_array(v->id, (size_t)v->tokens.cap, sizeof *v->id);
    meg_json_scan_skip_space(s);
    if (!meg_json_scan_accept(s, ':'))
        return meg_json_scan_expected(s, "':'");
    if ((r = read_id(s, &id, &found)) < 0)
        return r;
    if (id < 0)
        return meg_fail(s->e, MEG_EFORMAT, "token '%.*s' has id %.*s, which is no id", (int)token.n, token.s,
                        (int)found.n, found.s);
    v->id[k] = id;
    meg_json_scan_skip_space(s);
    return MEG_OK;
}

static int read_tokens(struct raw_vocab *v, const char *text, int64_t n, struct meg_err *e)
{
    struct meg_json_scan s = { text, text, text + n, "byte", e };
    struct meg_str buf = { 0 };
    int64_t bad = meg_utf8_find_invalid(text, n);
    int r = MEG_OK;

    if (bad >= 0)
        return meg_fail(e, MEG_EFORMAT, "byte %lld: invalid UTF-8", (long long)bad + 1);
    meg_str_add(&buf, text, (size_t)n); /* room for the longest token */
    meg_json_scan_skip_space(&s);
    if (!meg_json_scan_accept(&s, '{'))
        r = meg_json_scan_expected(&s, "'{' of an object of tokens and ids");
    do
        r = r < 0 ? r : add_token(v, &s, &buf);
    while (r == MEG_OK && meg_json_scan_accept(&s, ','));
    if (r == MEG_OK && !meg_json_scan_accept(&s, '}'))
        r = meg_json_scan_expected(&s, "',' or '}'");
    meg_json_scan_skip_space(&s);
    if (r == MEG_OK && s.p < s.end)
        r = meg_json_scan_expected(&s, "the end of the file");
    meg_str_free(&buf);
    return r;
}

/* Put the tokens in the order of their ids, which must be 0 .. n-1. */
static int index_by_id(struct meg_gpt2_files *f, const struct raw_vocab *v, struct meg_err *e)
{
    int64_t *nth;
    int r = MEG_OK;

    f->n = v->tokens.n;
    nth = meg_new((size_t)f->n * sizeof *nth); /* of the id, plus 1 */
    for (int64_t k = 0; k < f->n && r == MEG_OK; k++) {
        struct meg_str token = meg_strtab_get(&v->tokens, k);

        if (v->id[k] >= f->n) {
            r = meg_fail(e, MEG_EFORMAT, "token '%.*s' has id %lld; the ids of %lld tokens are 0 to %lld", (int)token.n,
                         token.s, (long long)v->id[k], (long long)f->n, (long long)f->n - 1);
        } else if (nth[v->id[k]]) {
            struct meg_str other = meg_strtab_get(&v->tokens, nth[v->id[k]] - 1);

            r = meg_fail(e, MEG_EFORMAT, "tokens '%.*s' and '%.*s' both have id %lld", (int)other.n, other.s,
                         (int)token.n, token.s, (long long)v->id[k]);
        } else {
            nth[v->id[k]] = k + 1;
        }
    }
    f->at = meg_new((size_t)(f->n + 1) * sizeof *f->at);
    for (int64_t id = 0; id < f->n && r == MEG_OK; id++) {
        struct meg_str token = meg_strtab_get(&v->tokens, nth[id] - 1);

        if (meg_byte_alphabet_decode(&f->bytes, token.s, (int64_t)token.n) < 0)
            meg_str_add(&f->bytes, token.s, token.n); /* added by hand: stands for itself */
        f->at[id + 1] = (int64_t)f->bytes.n;
    }
    free(nth);
    return r;
}

static int load_vocab(struct meg_gpt2_files *f, struct raw_vocab *v, const struct meg_mmap *file, struct meg_err *e)
{
    struct meg_err inner = { 0 };
    int lacking = 0, r;

    if ((r = read_tokens(v, (const char *)file->p, (int64_t)file->n, &inner)) < 0 ||
        (r = index_by_id(f, v, &inner)) < 0)
        return meg_fail(e, r, "%s: %s", v->path, inner.msg);
    for (int b = 0; b < 256; b++) {
        struct meg_str s = { 0 };
        char c = (char)b;

        meg_byte_alphabet_encode(&s, &c, 1);
        f->vocab.byte_id[b] = id_of(v, s.s, s.n);
        lacking += f->vocab.byte_id[b] < 0;
        meg_str_free(&s);
    }
    if (lacking > 0)
        meg_warn("%s: %d of the 256 bytes are no token; as in Megatron-LM they become id 0", v->path, lacking);
    if ((f->eod = id_of(v, EOD, strlen(EOD))) < 0)
        return meg_fail(e, MEG_EFORMAT, "%s: no token %s, which ends a document", v->path, EOD);
    return MEG_OK;
}

/* The next word of a line, as a string of its own; NULL at the line's end. */
static char *next_word(char **line)
{
    char *s = *line + strspn(*line, " \t\r\v\f"), *end = s + strcspn(s, " \t\r\v\f");

    if (s == end)
        return NULL;
    *line = *end ? end + 1 : end;
    *end = '\0';
    return s;
}

/* What is bad with merges, for one message. */
struct bad_merges {
    int64_t n;
    struct meg_str names;
};

static void add_bad_merge(struct bad_merges *w, int64_t line, const char *left, const char *right, const char *lacks)
{
    if (w->n++ < MAX_REPORTED)
        meg_str_printf(&w->names, "%s line %lld: '%s' + '%s', but there is no token '%s'", w->n > 1 ? ";" : "",
                       (long long)line, left, right, lacks);
}

/* One line, which becomes the merge of that rank; 0 when it is blank. */
static int load_merge(struct meg_gpt2_files *f, const struct raw_vocab *vocab, char *line, int64_t number, int32_t rank,
                      const char *path, struct meg_str *both, struct bad_merges *bad, struct meg_err *e)
{
    char *left = next_word(&line), *right = next_word(&line);
    int32_t l, r, id;

    if (!left)
        return 0;
    if (!right || next_word(&line))
        return meg_fail(e, MEG_EFORMAT, "%s, line %lld: a merge is two tokens with a blank between", path,
                        (long long)number);
    both->n = 0;
    meg_str_add(both, left, strlen(left));
    meg_str_add(both, right, strlen(right));
    l = id_of(vocab, left, strlen(left));
    r = id_of(vocab, right, strlen(right));
    id = id_of(vocab, both->s, both->n);
    if (l < 0 || r < 0 || id < 0)
        add_bad_merge(bad, number, left, right, l < 0 ? left : r < 0 ? right : both->s);
    else
        meg_bpe_add(&f->vocab.bpe, l, r, rank, id);
    return 1;
}

static int load_merges(struct meg_gpt2_files *f, const struct raw_vocab *vocab, const char *path, char *text, size_t n,
                       struct meg_err *e)
{
    struct bad_merges bad = { 0 };
    struct meg_str both = { 0 };
    int64_t lines = 0, number = 1;
    char *line = memchr(text, '\n', n), *end;
    int32_t rank = 0;
    int r = MEG_OK;

    for (size_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    meg_bpe_init(&f->vocab.bpe, lines);
    if (n == 0) {
        r = meg_fail(e, MEG_EFORMAT, "%s: empty; merges are a line with a version, then a pair of tokens a line", path);
        goto out;
    }
    if (n > 1 && text[0] == '{' && text[1] == '"') {
        r = meg_fail(e, MEG_EFORMAT,
                     "%s: begins like a vocabulary, which --vocab-file names; merges are a pair of tokens a line",
                     path);
        goto out;
    }
    if (n > 0 && text[0] != '#')
        meg_warn("%s: the first line is not a version but is not read either, as in Megatron-LM", path);
    for (line = line ? line + 1 : text + n; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        if ((r = load_merge(f, vocab, line, ++number, rank, path, &both, &bad, e)) < 0)
            goto out;
        rank += r;
    }
    if (*line)
        meg_warn("%s: the last line does not end with a newline and is not read, as in Megatron-LM", path);
    r = MEG_OK;
    if (bad.n > 0)
        r = meg_fail(e, MEG_EFORMAT, "%s does not match %s (%lld of %d merges):%s%s", path, vocab->path,
                     (long long)bad.n, rank, bad.names.s, bad.n > MAX_REPORTED ? "; ..." : "");
out:
    meg_str_free(&both);
    meg_str_free(&bad.names);
    return r;
}

int meg_gpt2_files_load(struct meg_gpt2_files **out, const char *vocab_path, const char *merge_path, struct meg_err *e)
{
    struct meg_gpt2_files *f = meg_new(sizeof *f);
    struct meg_mmap vocab = { 0 };
    struct meg_str merges = { 0 };
    struct raw_vocab spelled = { .path = vocab_path };
    int r;

    if ((r = meg_tok_mmap_file(&vocab, vocab_path, e)) < 0 || (r = meg_tok_read_file(merge_path, &merges, e)) < 0)
        goto out;
    if (memchr(merges.s, 0, merges.n)) {
        r = meg_fail(e, MEG_EFORMAT, "%s: holds a zero byte, so it is no text", merge_path);
        goto out;
    }
    if ((r = load_vocab(f, &spelled, &vocab, e)) < 0 ||
        (r = load_merges(f, &spelled, merge_path, merges.s, merges.n, e)) < 0)
        goto out;
    *out = f;
    f = NULL;
out:
    meg_gpt2_files_free(f);
    meg_mmap_close(&vocab);
    meg_str_free(&merges);
    meg_strtab_free(&spelled.tokens);
    free(spelled.id);
    return r;
}

void meg_gpt2_files_free(struct meg_gpt2_files *f)
{
    if (!f)
        return;
    meg_str_free(&f->bytes);
    meg_bytebpe_free(&f->vocab);
    free(f->at);
    free(f);
}
