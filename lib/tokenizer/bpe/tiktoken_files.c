#include "tokenizer/bpe/tiktoken_files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/base64.h"
#include "io/json.h"
#include "tokenizer/internal.h"

enum {
    DEFAULT_SIZE = 131072, /* default size of a JSON vocabulary, including special tokens, as in Megatron-LM */
    MAX_TOKEN = 4096,      /* maximum bytes of a token; enumerating its splits takes quadratic time */
    LLAMA3_RANKS = 128000,
    LLAMA3_SPECIAL = 256
};

/* Decode the token s [n], in base64, and add it with the next rank. */
static int add_token(struct meg_strtab *t, const char *s, int64_t n, const char *location, struct meg_err *e)
{
    struct meg_str bytes = { 0 };
    int64_t was = t->n, k;

    if (meg_base64_decode(&bytes, s, n) < 0 || bytes.n == 0) {
        meg_str_free(&bytes);
        return meg_fail(e, MEG_EFORMAT, "%s: '%.*s' is not a token in base64", location, (int)(n < 80 ? n : 80), s);
    }
    if (bytes.n > MAX_TOKEN) {
        int r = meg_fail(e, MEG_EFORMAT, "%s: the token has %zu bytes; the limit is %d", location, bytes.n, MAX_TOKEN);

        meg_str_free(&bytes);
        return r;
    }
    k = meg_strtab_add(t, bytes.s, (int64_t)bytes.n);
    meg_str_free(&bytes);
    if (k < was)
        return meg_fail(e, MEG_EFORMAT, "%s: duplicate token, which already has rank %" PRId64, location, k);
    return 0;
}

static int read_text(struct meg_strtab *t, const char *path, const struct meg_str *file, struct meg_err *e)
{
    const char *s = file->s, *end = s + file->n;
    char location[4200];

    for (int64_t line = 1; s < end; line++) {
        const char *stop = memchr(s, '\n', (size_t)(end - s)), *space;
        char *rest = NULL;
        long long rank;
        int r;

        stop = stop ? stop : end;
        snprintf(location, sizeof location, "%s: line %" PRId64, path, line);
        if (!(space = memchr(s, ' ', (size_t)(stop - s))))
            return meg_fail(e, MEG_EFORMAT, "%s: expected a token in base64 and its rank", location);
        rank = strtoll(space + 1, &rest, 10); /* strtoll stops at the zero byte after the file */
        if (rest == space + 1 || (rest != stop && !(rest + 1 == stop && *rest == '\r')) || rank != line - 1)
            return meg_fail(e, MEG_EFORMAT, "%s: rank is '%.*s', expected %" PRId64, location,
                            (int)(stop - space - 1 < 40 ? stop - space - 1 : 40), space + 1, line - 1);
        if ((r = add_token(t, s, space - s, location, e)) < 0)
            return r;
        s = stop + 1;
    }
    return 0;
}

static int read_json(struct meg_strtab *t, const char *path, const struct meg_str *file, int64_t max_tokens,
                     struct meg_err *e)
{
    json_t *list;
    char location[4200];
    size_t i;
    const json_t *item;
    int r;

    if ((r = meg_json_parse_nul(&list, file->s, file->n, path, e)) < 0)
        return r;
    if (!json_is_array(list))
        r = meg_fail(e, MEG_EFORMAT, "%s: expected an array of tokens", path);
    json_array_foreach(list, i, item)
    {
        const char *bytes;
        int64_t rank;

        snprintf(location, sizeof location, "%s: element %zu", path, i);
        if (r < 0 || (int64_t)i == max_tokens)
            break;
        if (!json_is_object(item)) {
            r = meg_fail(e, MEG_EFORMAT, "%s: expected an object with rank and token_bytes", location);
        } else if ((r = meg_json_get_i64(item, "rank", MEG_JSON_REQUIRED, &rank, location, e)) == 0 &&
                   (r = meg_json_get_str(item, "token_bytes", MEG_JSON_REQUIRED, &bytes, location, e)) == 0) {
            if (rank != (int64_t)i)
                r = meg_fail(e, MEG_EFORMAT, "%s: rank is %" PRId64 ", expected %zu", location, rank, i);
            else
                r = add_token(t, bytes, (int64_t)strlen(bytes), location, e);
        }
        if (r == 0 && i < 256) {
            struct meg_str byte = meg_strtab_get(t, (int64_t)i);

            if (byte.n != 1 || (unsigned char)byte.s[0] != i)
                r = meg_fail(e, MEG_EFORMAT, "%s: the first 256 tokens must be the 256 bytes in order", location);
        }
    }
    json_decref(list);
    return r;
}

/*
 * Add the given special tokens or, if none are given, the defaults.  Then add reserved tokens until there are n special
 * tokens.  If special token k is reserved, its name is printed with the format `filler` and the number k - filled.
 */
static int add_special(struct meg_strtab *t, const struct meg_str_list *given, int64_t n,
                       const struct meg_str_list *defaults, const char *filler, int64_t filled, struct meg_err *e)
{
    const struct meg_str_list *list = given->n > 0 ? given : defaults;
    int64_t was = t->n;

    for (int64_t i = 0; i < list->n; i++) {
        const char *s = list->v[i];

        if (!*s)
            return meg_fail(e, MEG_EUSAGE, "--tiktoken-special-tokens: token %" PRId64 " is empty", i + 1);
        if (meg_strtab_add(t, s, (int64_t)strlen(s)) < was + i)
            return meg_fail(e, MEG_EUSAGE, "--tiktoken-special-tokens: duplicate token '%s'", s);
    }
    if (t->n - was > n)
        return meg_fail(e, MEG_EUSAGE,
                        "there are %" PRId64 " special tokens, but --tiktoken-num-special-tokens %" PRId64
                        " reserves fewer ids; reserve more",
                        (t->n - was), n);
    while (t->n - was < n) {
        char name[64];
        int64_t before = t->n;

        snprintf(name, sizeof name, filler, (t->n - was - filled));
        if (meg_strtab_add(t, name, (int64_t)strlen(name)) < before)
            return meg_fail(e, MEG_EUSAGE,
                            "--tiktoken-special-tokens: '%s' is also the generated name of a reserved token", name);
    }
    return 0;
}

static int32_t find(const struct meg_strtab *t, const char *token)
{
    return (int32_t)meg_strtab_find(t, token, (int64_t)strlen(token));
}

/* A split of a token into two tokens; all three are represented by their ranks. */
struct token_split {
    int32_t left, right, id;
};

/*
 * Set the merges, byte_id and token_id of a vocabulary from its ranked tokens.  The id of a token is rank + first_id.
 * Each split of a token into two tokens becomes a merge with the rank of the token that is split.  Return MEG_EFORMAT
 * if one of the 256 single bytes is not a token.
 */
static int fill_merges(struct meg_bytebpe *b, int32_t first_id, const char *path, struct meg_err *e)
{
    struct token_split *split = NULL;
    int64_t n = 0, cap = 0;

    for (int i = 0; i < 256; i++) {
        char c = (char)i;
        int64_t k = meg_strtab_find(&b->tokens, &c, 1);

        if (k < 0)
            return meg_fail(e, MEG_EFORMAT, "%s: byte 0x%02x is not a token; all 256 single bytes must be tokens", path,
                            i);
        b->byte_id[i] = (int32_t)k + first_id;
    }
    b->token_id = meg_realloc_array(NULL, (size_t)b->tokens.n, sizeof *b->token_id);
    for (int64_t k = 0; k < b->tokens.n; k++) {
        struct meg_str token = meg_strtab_get(&b->tokens, k);

        b->token_id[k] = (int32_t)k + first_id;
        for (size_t i = 1; i < token.n; i++) {
            int64_t l = meg_strtab_find(&b->tokens, token.s, (int64_t)i);
            int64_t r = l < 0 ? -1 : meg_strtab_find(&b->tokens, token.s + i, (int64_t)(token.n - i));

            if (r < 0)
                continue;
            if (n == cap) {
                cap = cap ? 2 * cap : 1 << 16;
                split = meg_realloc_array(split, (size_t)cap, sizeof *split);
            }
            split[n++] = (struct token_split){ (int32_t)l, (int32_t)r, (int32_t)k };
        }
    }
    meg_bpe_init(&b->bpe, n);
    for (int64_t i = 0; i < n; i++)
        meg_bpe_add(&b->bpe, split[i].left + first_id, split[i].right + first_id, split[i].id, split[i].id + first_id);
    free(split);
    b->is_leftmost = true;
    return 0;
}

static enum meg_pretok pattern_of(const char *pattern, bool is_json)
{
    static const struct {
        const char *name;
        enum meg_pretok pretok;
    } named[] = { { "v1", MEG_PRETOK_TIK_V1 },
                  { "v2", MEG_PRETOK_TIK_V2 },
                  { "cl100k", MEG_PRETOK_CL100K },
                  { "o200k", MEG_PRETOK_O200K } };

    for (size_t i = 0; pattern && i < sizeof named / sizeof *named; i++) {
        if (strcmp(pattern, named[i].name) == 0)
            return named[i].pretok;
    }
    return is_json ? MEG_PRETOK_TIK_V2 : MEG_PRETOK_CL100K;
}

/* Build the set of special tokens that are parsed in text.  These are the first n tokens. */
static int build_special_tokens(struct meg_tiktoken_files *f, int64_t n, struct meg_err *e)
{
    struct meg_trie_key *key = meg_new((size_t)n * sizeof *key);
    int r;

    for (int64_t i = 0; i < n; i++) {
        struct meg_str token = meg_strtab_get(&f->tokens, i);

        key[i] = (struct meg_trie_key){ token.s, (int64_t)token.n, (int32_t)i };
    }
    r = meg_special_tokens_build(&f->special_tokens, key, n, e);
    free(key);
    return r;
}

/* Assign the ids of a JSON vocabulary: first to the special tokens, then to the ranked tokens. */
static int assign_ids_json(struct meg_tiktoken_files *f, const struct meg_tok_conf *c, struct meg_err *e)
{
    static const char *needed[] = { "<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>" };
    const struct meg_megatron_release *release = meg_megatron_release_find(c->megatron_release);
    const struct meg_str_list defaults = { needed, release->needs_seven_special_tokens ? 7 : 3 };
    int64_t n = c->tiktoken_num_special_tokens, was;
    int r = add_special(&f->tokens, &c->tiktoken_special_tokens, n, &defaults, "<SPECIAL_%" PRId64 ">", 0, e);

    if (r < 0)
        return r;
    for (int64_t i = 0; i < defaults.n; i++) {
        if (find(&f->tokens, needed[i]) < 0)
            return meg_fail(e, MEG_EUSAGE, "--tiktoken-special-tokens: the required token %s is missing", needed[i]);
    }
    was = f->tokens.n;
    for (int64_t k = 0; k < f->vocab.tokens.n; k++) {
        struct meg_str token = meg_strtab_get(&f->vocab.tokens, k);

        if (meg_strtab_add(&f->tokens, token.s, (int64_t)token.n) < was + k)
            return meg_fail(e, MEG_EUSAGE,
                            "--tiktoken-special-tokens: '%.*s' is also a token of the vocabulary, with rank %" PRId64,
                            (int)token.n, token.s, k);
    }
    f->special_ids.bos = find(&f->tokens, "<s>");
    f->special_ids.eos = f->special_ids.eod = find(&f->tokens, "</s>");
    if (release->has_pad)
        f->special_ids.pad = find(&f->tokens, "<pad>");
    return release->parses_special_tokens ? build_special_tokens(f, n, e) : 0;
}

/*
 * Assign the ids of a text vocabulary: first to the ranked tokens, then to the special tokens.  If no special tokens
 * are given and the number of ranked tokens equals Llama 3's, add Llama 3's special tokens.
 */
static int assign_ids_text(struct meg_tiktoken_files *f, const struct meg_tok_conf *c, struct meg_err *e)
{
    static const char *names[] = { "<|begin_of_text|>",
                                   "<|end_of_text|>",
                                   "<|reserved_special_token_0|>",
                                   "<|reserved_special_token_1|>",
                                   "<|reserved_special_token_2|>",
                                   "<|reserved_special_token_3|>",
                                   "<|start_header_id|>",
                                   "<|end_header_id|>",
                                   "<|reserved_special_token_4|>",
                                   "<|eot_id|>" };
    static const struct meg_str_list none, llama3 = { names, sizeof names / sizeof *names };
    const bool is_llama3 = c->tiktoken_special_tokens.n == 0 && f->vocab.tokens.n == LLAMA3_RANKS;
    int r;

    for (int64_t k = 0; k < f->vocab.tokens.n; k++) {
        struct meg_str token = meg_strtab_get(&f->vocab.tokens, k);

        meg_strtab_add(&f->tokens, token.s, (int64_t)token.n);
    }
    if ((r = add_special(&f->tokens, &c->tiktoken_special_tokens,
                         is_llama3 ? LLAMA3_SPECIAL : c->tiktoken_special_tokens.n, is_llama3 ? &llama3 : &none,
                         "<|reserved_special_token_%" PRId64 "|>", 5, e)) < 0)
        return r;
    f->special_ids.bos = find(&f->tokens, "<|begin_of_text|>");
    f->special_ids.eos = find(&f->tokens, "<|end_of_text|>");
    if (f->special_ids.eos < 0)
        f->special_ids.eos = find(&f->tokens, "<|endoftext|>");
    f->special_ids.eod = f->special_ids.eos;
    return 0;
}

int meg_tiktoken_files_load(struct meg_tiktoken_files **out, const struct meg_tok_conf *c, struct meg_err *e)
{
    const char *path = c->tokenizer_model;
    int64_t nspecial = c->tiktoken_num_special_tokens;
    int64_t size = c->vocab_size == MEG_UNSET ? DEFAULT_SIZE : c->vocab_size;
    struct meg_tiktoken_files *f;
    struct meg_str file = { 0 };
    bool is_json;
    int r;

    if (nspecial < 0 || nspecial > 1000000)
        return meg_fail(e, MEG_EUSAGE, "--tiktoken-num-special-tokens %" PRId64 ": must be from 0 to 1000000",
                        nspecial);
    if (size > INT32_MAX)
        return meg_fail(e, MEG_EUSAGE, "--vocab-size %" PRId64 ": must be at most %d", size, INT32_MAX);
    f = meg_new(sizeof *f);
    f->special_ids = meg_tok_no_special_ids;
    f->vocab.unk = -1;
    if ((r = meg_tok_read_file(path, &file, e)) < 0)
        goto out;
    is_json = file.s[strspn(file.s, " \t\r\n")] == '[';
    if (c->vocab_size != MEG_UNSET && !is_json) {
        r = meg_fail(e, MEG_EUSAGE, "--vocab-size requires a JSON vocabulary; %s has lines of tokens and ranks", path);
        goto out;
    }
    if (is_json && size - nspecial < 256) {
        r = meg_fail(e, MEG_EUSAGE,
                     "--vocab-size %" PRId64 " and --tiktoken-num-special-tokens %" PRId64
                     " leave too few ids for the 256 single bytes",
                     size, nspecial);
        goto out;
    }
    f->vocab.pretok = pattern_of(c->tiktoken_pattern, is_json);
    if ((r = is_json ? read_json(&f->vocab.tokens, path, &file, size - nspecial, e)
                     : read_text(&f->vocab.tokens, path, &file, e)) < 0)
        goto out;
    if (c->vocab_size != MEG_UNSET && is_json && f->vocab.tokens.n < size - nspecial) {
        r = meg_fail(e, MEG_EUSAGE,
                     "%s: the file has %" PRId64 " tokens, but --vocab-size %" PRId64
                     " with --tiktoken-num-special-tokens %" PRId64 " requires %" PRId64 "; reduce --vocab-size",
                     path, f->vocab.tokens.n, size, nspecial, (size - nspecial));
        goto out;
    }
    if ((r = is_json ? assign_ids_json(f, c, e) : assign_ids_text(f, c, e)) < 0 ||
        (r = fill_merges(&f->vocab, is_json ? (int32_t)nspecial : 0, path, e)) < 0)
        goto out;
    *out = f;
    f = NULL;
out:
    meg_tiktoken_files_free(f);
    meg_str_free(&file);
    return r;
}

void meg_tiktoken_files_free(struct meg_tiktoken_files *f)
{
    if (!f)
        return;
    meg_strtab_free(&f->tokens);
    meg_bytebpe_free(&f->vocab);
    meg_special_tokens_free(&f->special_tokens);
    free(f);
}
