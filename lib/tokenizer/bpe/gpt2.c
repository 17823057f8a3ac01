/*
 * gpt2.c - GPT2BPETokenizer: byte-level BPE (tokenizer/bpe/byte_level.h) from vocab.json and merges.txt (Radford et al.
 * 2019), with the same ids as in Megatron-LM.  The vocabulary is a JSON object that maps tokens to ids; the merges are
 * lines "left right" after a first line with the version.  Tokens are spelled in the byte alphabet
 * (tokenizer/bpe/byte_alphabet.h).  The symbols of BPE are token ids.  A merge with a token that is not in the
 * vocabulary is therefore rejected.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/strtab.h"
#include "io/json_scan.h"
#include "tokenizer/bpe/byte_alphabet.h"
#include "tokenizer/bpe/byte_level_tokenizer.h"
#include "unicode/utf8.h"

#define EOD "<|endoftext|>"
enum { MAX_REPORTED = 5 }; /* maximum number of bad merges in a message; others are only counted */

/* The vocabulary in the order and spelling of the file. */
struct raw_vocab {
    struct meg_strtab tokens; /* tokens in the order of the file */
    int64_t *id;              /* [tokens.cap] id of each token */
    const char *path;
};

/* Return the id of a token, or -1 if it is not in the vocabulary. */
static int32_t id_of(const struct raw_vocab *v, const char *token, size_t n)
{
    int64_t k = meg_strtab_find(&v->tokens, token, (int64_t)n);

    return k < 0 ? -1 : (int32_t)v->id[k];
}

/*
 * Read a JSON value as an id, and set *found to its text.  Set *id to -1 if the value is not a non-negative integer of
 * at most ten digits.
 */
static int read_id(struct meg_json_scan *s, int64_t *id, struct meg_span *found)
{
    const char *begin, *type;
    int r;

    meg_json_scan_skip_space(s);
    begin = s->p;
    if ((r = meg_json_scan_value(s, 1, &type)) < 0)
        return r;
    *found = (struct meg_span){ begin, s->p - begin };
    *id = found->n > 10 ? -1 : 0;
    for (const char *p = begin; p < s->p && *id >= 0; p++)
        *id = *p >= '0' && *p <= '9' ? 10 * *id + (*p - '0') : -1;
    return 0;
}

static int add_token(struct raw_vocab *v, struct meg_json_scan *s, struct meg_str *buf)
{
    int64_t was = v->tokens.n, cap = v->tokens.cap, k, id;
    struct meg_span token, found;
    const char *lone;
    int r;

    buf->n = 0;
    if ((r = meg_json_scan_key(s, buf, &token, &lone)) < 0)
        return r;
    k = meg_strtab_add(&v->tokens, token.s, token.n);
    if (k < was || lone)
        return meg_fail(s->e, MEG_EFORMAT, "%s token '%.*s'", lone ? "unpaired surrogate in" : "duplicate",
                        (int)token.n, token.s);
    if (cap != v->tokens.cap)
        v->id = meg_realloc_array(v->id, (size_t)v->tokens.cap, sizeof *v->id);
    if ((r = read_id(s, &id, &found)) < 0)
        return r;
    if (id < 0)
        return meg_fail(s->e, MEG_EFORMAT,
                        "token '%.*s': the id must be a non-negative integer of at most 10 digits, found %.*s",
                        (int)token.n, token.s, (int)found.n, found.s);
    v->id[k] = id;
    meg_json_scan_skip_space(s);
    return 0;
}

static int read_tokens(struct raw_vocab *v, const char *text, int64_t n, struct meg_err *e)
{
    struct meg_json_scan s = { text, text, text + n, "byte", e };
    struct meg_str buf = { 0 };
    int64_t bad = meg_utf8_find_invalid(text, n);
    int r = 0;

    if (bad >= 0)
        return meg_fail(e, MEG_EFORMAT, "byte %" PRId64 ": invalid UTF-8: 0x%02x", bad + 1, (unsigned char)text[bad]);
    meg_str_add(&buf, text, (size_t)n); /* reserve the capacity for the longest token */
    meg_json_scan_skip_space(&s);
    if (!meg_json_scan_accept(&s, '{'))
        r = meg_json_scan_expected(&s, "the '{' of an object that maps tokens to ids");
    do
        r = r < 0 ? r : add_token(v, &s, &buf);
    while (r == 0 && meg_json_scan_accept(&s, ','));
    if (r == 0 && !meg_json_scan_accept(&s, '}'))
        r = meg_json_scan_expected(&s, "',' or '}'");
    meg_json_scan_skip_space(&s);
    if (r == 0 && s.p < s.end)
        r = meg_json_scan_expected(&s, "the end of the file");
    meg_str_free(&buf);
    return r;
}

/* Store the bytes of the tokens in order of id.  Return MEG_EFORMAT if the ids are not a permutation of 0 .. n-1. */
static int index_by_id(struct meg_bytebpe_files *f, const struct raw_vocab *v, struct meg_err *e)
{
    const int64_t n = v->tokens.n;
    int64_t *nth = meg_new((size_t)n * sizeof *nth); /* index of the token + 1, by id */
    struct meg_str bytes = { 0 };
    int r = 0;

    for (int64_t k = 0; k < n && r == 0; k++) {
        struct meg_str token = meg_strtab_get(&v->tokens, k);

        if (v->id[k] >= n) {
            r = meg_fail(e, MEG_EFORMAT,
                         "token '%.*s' has id %" PRId64 "; the ids of %" PRId64 " tokens must be 0 to %" PRId64,
                         (int)token.n, token.s, v->id[k], n, n - 1);
        } else if (nth[v->id[k]]) {
            struct meg_str other = meg_strtab_get(&v->tokens, nth[v->id[k]] - 1);

            r = meg_fail(e, MEG_EFORMAT, "tokens '%.*s' and '%.*s' both have id %" PRId64, (int)other.n, other.s,
                         (int)token.n, token.s, v->id[k]);
        } else {
            nth[v->id[k]] = k + 1;
        }
    }
    for (int64_t id = 0; id < n && r == 0; id++) {
        struct meg_str token = meg_strtab_get(&v->tokens, nth[id] - 1);

        bytes.n = 0;
        if (meg_byte_alphabet_decode(&bytes, token.s, (int64_t)token.n) < 0)
            meg_str_add(&bytes, token.s, token.n); /* an added token, not in the byte alphabet */
        meg_strtab_append(&f->tokens, bytes.s, (int64_t)bytes.n);
    }
    meg_str_free(&bytes);
    free(nth);
    return r;
}

static int load_vocab(struct meg_bytebpe_files *f, struct raw_vocab *v, const struct meg_mmap *file, struct meg_err *e)
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
        meg_warn("%s: %d of the 256 single bytes are not tokens; they are encoded as id 0, as in Megatron-LM", v->path,
                 lacking);
    if ((f->special_ids.eod = id_of(v, EOD, strlen(EOD))) < 0)
        return meg_fail(e, MEG_EFORMAT, "%s: the end-of-document token %s is missing", v->path, EOD);
    return 0;
}

/* Return the next word of a line as a string, or NULL at the end of the line. */
static char *next_word(char **line)
{
    char *s = *line + strspn(*line, " \t\r\v\f"), *end = s + strcspn(s, " \t\r\v\f");

    if (s == end)
        return NULL;
    *line = *end ? end + 1 : end;
    *end = '\0';
    return s;
}

/* State of load_merges. */
struct merge_reader {
    struct meg_bytebpe_files *f;
    const struct raw_vocab *vocab;
    const char *path;
    int64_t line;        /* number of the current line */
    int32_t rank;        /* rank of the next merge */
    struct meg_str both; /* scratch for the concatenation of the two tokens */
    int64_t nbad;        /* number of merges with tokens that are not in the vocabulary */
    struct meg_str bad;  /* error message for the first MAX_REPORTED bad merges */
};

static void add_bad_merge(struct merge_reader *m, const char *left, const char *right, const char *missing)
{
    if (m->nbad++ < MAX_REPORTED)
        meg_str_printf(&m->bad, "%s line %" PRId64 ": '%s' + '%s' requires '%s'", m->nbad > 1 ? ";" : "", m->line, left,
                       right, missing);
}

/*
 * Add the merge of a line.  Skip an empty line.  If a token of the merge is unknown, do not add the merge, but record
 * it for the error message.  Return MEG_EFORMAT if the line has one token or more than two.
 */
static int load_merge(struct merge_reader *m, char *line, struct meg_err *e)
{
    char *left = next_word(&line), *right = next_word(&line);
    int32_t l, r, id;

    if (!left)
        return 0;
    if (!right || next_word(&line))
        return meg_fail(e, MEG_EFORMAT, "%s: line %" PRId64 ": expected two tokens separated by a space", m->path,
                        m->line);
    m->both.n = 0;
    meg_str_add(&m->both, left, strlen(left));
    meg_str_add(&m->both, right, strlen(right));
    l = id_of(m->vocab, left, strlen(left));
    r = id_of(m->vocab, right, strlen(right));
    id = id_of(m->vocab, m->both.s, m->both.n);
    if (l < 0 || r < 0 || id < 0)
        add_bad_merge(m, left, right, l < 0 ? left : r < 0 ? right : m->both.s);
    else
        meg_bpe_add(&m->f->vocab.bpe, l, r, m->rank, id);
    m->rank++;
    return 0;
}

static int load_merges(struct meg_bytebpe_files *f, const struct raw_vocab *vocab, const char *path, char *text,
                       size_t n, struct meg_err *e)
{
    struct merge_reader m = { .f = f, .vocab = vocab, .path = path, .line = 1 };
    char *line = memchr(text, '\n', n), *end;
    int64_t lines = 0;
    int r = 0;

    for (size_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    meg_bpe_init(&f->vocab.bpe, lines);
    if (n == 0) {
        r = meg_fail(e, MEG_EFORMAT,
                     "%s: the file is empty; expected a version line, and then one pair of tokens per line", path);
        goto out;
    }
    if (n > 1 && text[0] == '{' && text[1] == '"') {
        r = meg_fail(e, MEG_EFORMAT,
                     "%s: this file looks like a vocabulary (--vocab-file); expected one pair of tokens per line",
                     path);
        goto out;
    }
    if (n > 0 && text[0] != '#')
        meg_warn("%s: the first line is not a version line (beginning with #) but is ignored, as in Megatron-LM", path);
    for (line = line ? line + 1 : text + n; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        m.line++;
        if ((r = load_merge(&m, line, e)) < 0)
            goto out;
    }
    if (*line)
        meg_warn("%s: the last line has no newline and is ignored, as in Megatron-LM", path);
    if (m.nbad > 0)
        r = meg_fail(e, MEG_EFORMAT,
                     "%s does not match %s; %" PRId64
                     " of %d merges require tokens that are not in the vocabulary:%s%s",
                     path, vocab->path, m.nbad, m.rank, m.bad.s, m.nbad > MAX_REPORTED ? "; ..." : "");
out:
    meg_str_free(&m.both);
    meg_str_free(&m.bad);
    return r;
}

/*
 * Read both files and check them against each other.  As in Megatron-LM, the first line of merges.txt and the text
 * after its last newline are ignored.  If the ignored text may contain a merge, a warning is printed.
 */
static int load_files(struct meg_bytebpe_files *f, const char *vocab_path, const char *merge_path, struct meg_err *e)
{
    struct meg_mmap vocab = { 0 };
    struct meg_str merges = { 0 };
    struct raw_vocab raw = { .path = vocab_path };
    int r;

    if ((r = meg_tok_mmap_file(&vocab, vocab_path, e)) < 0 || (r = meg_tok_read_file(merge_path, &merges, e)) < 0)
        goto out;
    if (memchr(merges.s, 0, merges.n))
        r = meg_fail(e, MEG_EFORMAT, "%s: contains a zero byte; expected a text file", merge_path);
    else if ((r = load_vocab(f, &raw, &vocab, e)) == 0)
        r = load_merges(f, &raw, merge_path, merges.s, merges.n, e);
out:
    meg_mmap_close(&vocab);
    meg_str_free(&merges);
    meg_strtab_free(&raw.tokens);
    free(raw.id);
    return r;
}

/* Build the set of special tokens.  It contains only <|endoftext|>. */
static int build_special_tokens(struct meg_bytebpe_files *f, struct meg_err *e)
{
    struct meg_str eod = meg_strtab_get(&f->tokens, f->special_ids.eod);
    struct meg_trie_key key = { eod.s, (int64_t)eod.n, f->special_ids.eod };

    return meg_special_tokens_build(&f->special_tokens, &key, 1, e);
}

static int gpt2_open(struct meg_tokenizer *t, const struct meg_tok_conf *c, struct meg_err *e)
{
    struct meg_bytebpe_files *f = t->files = meg_new(sizeof *f);
    int r;

    f->special_ids = meg_tok_no_special_ids;
    if (!c->vocab_file || !c->merge_file)
        return meg_fail(e, MEG_EUSAGE, "GPT2BPETokenizer requires --%s", c->vocab_file ? "merge-file" : "vocab-file");
    if ((r = load_files(f, c->vocab_file, c->merge_file, e)) < 0)
        return r;
    t->vocab_size = f->tokens.n;
    t->special_ids = f->special_ids;
    meg_tok_set_description(t, "_GPT2BPETokenizer", (const char *const[]){ c->vocab_file, c->merge_file, NULL },
                            (const char *const[]){ NULL });
    return meg_megatron_release_find(c->megatron_release)->parses_special_tokens ? build_special_tokens(f, e) : 0;
}

const struct meg_tok_class meg_tok_gpt2 = MEG_BYTEBPE_CLASS("GPT2BPETokenizer", MEG_TOK_LIB_MEGATRON, gpt2_open);
