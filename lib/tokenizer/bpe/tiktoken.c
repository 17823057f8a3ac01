/*
 * tiktoken.c - Megatron-LM's TikTokenizer.  It reads tiktoken's files, for example Llama 3's tokenizer.model.  The
 * files contain ranked tokens instead of ranked merges.  Two adjacent tokens merge if their concatenation is a token.
 * The concatenation of lowest rank is merged first.  This equals BPE with one merge for each split of a token into two
 * tokens.  Each of these merges has the rank of the token that is split.
 *
 * A file has one of two formats:
 *   text  lines "BASE64 RANK" in any order; the id of a ranked token is its rank, and the special tokens have the ids
 *         that are not ranks and then those after the last rank
 *   JSON  [{"rank": 0, "token_bytes": BASE64, "token_str": TEXT or null}, ...], beginning with the 256 bytes in order;
 *         the first ids are special tokens, and the ranked tokens follow in order of rank
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "io/base64.h"
#include "io/json.h"
#include "tokenizer/bpe/byte_level_tokenizer.h"

enum {
    DEFAULT_SIZE = 131072, /* default size of a JSON vocabulary, including special tokens, as in Megatron-LM */
    MAX_TOKEN = 4096,      /* maximum bytes of a token; enumerating its splits takes quadratic time */
    MAX_RANK = 1 << 21,    /* maximum rank in a text vocabulary; each unused rank takes memory */
    LLAMA3_RANKS = 128000,
    LLAMA3_SPECIAL = 256
};

/* Decode the token s [n], in base64, add it to t, and set *k to its index. */
static int add_token(struct meg_strtab *t, const char *s, int64_t n, int64_t *k, const char *location,
                     struct meg_err *e)
{
    struct meg_str bytes = { 0 };
    int r = 0;

    if (meg_base64_decode(&bytes, s, n) < 0 || bytes.n == 0)
        r = meg_fail(e, MEG_EFORMAT, "%s: '%.*s' is not a token in base64", location, (int)(n < 80 ? n : 80), s);
    else if (bytes.n > MAX_TOKEN)
        r = meg_fail(e, MEG_EFORMAT, "%s: the token has %zu bytes; the limit is %d", location, bytes.n, MAX_TOKEN);
    else
        *k = meg_strtab_add(t, bytes.s, (int64_t)bytes.n);
    meg_str_free(&bytes);
    return r;
}

struct ranked {
    int64_t rank, k; /* k is the index of the token in the order of the file */
};

static int compare_ranks(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    return (x->rank > y->rank) - (x->rank < y->rank);
}

/*
 * Read the lines of a text vocabulary, as load_tiktoken_bpe of tiktoken does: fields are separated by whitespace, empty
 * lines are ignored, and ranks may be in any order.  Of lines with equal tokens, the last one is used.
 */
static int read_lines(struct meg_strtab *t, struct ranked **list, const char *path, const struct meg_str *file,
                      struct meg_err *e)
{
    static const char space[] = " \t\v\f";
    const char *s = file->s, *end = s + file->n;
    char location[4200];
    int64_t cap = 0;

    for (int64_t line = 1, k; s < end; line++) {
        const char *stop = s + strcspn(s, "\r\n"), *token = s + strspn(s, space);
        const char *blank = token + strcspn(token, " \t\v\f\r\n"), *rank = blank + strspn(blank, space);
        char *rest = NULL;
        long long value;
        int r;

        snprintf(location, sizeof location, "%s: line %" PRId64, path, line);
        s = stop + 1 + (stop[0] == '\r' && stop[1] == '\n');
        if (token == stop)
            continue;
        if (rank >= stop)
            return meg_fail(e, MEG_EFORMAT, "%s: expected a token in base64 and its rank", location);
        value = strtoll(rank, &rest, 10); /* strtoll stops at the zero byte after the file */
        if (rest == rank || rest + strspn(rest, space) != stop || value < 0 || value > MAX_RANK)
            return meg_fail(e, MEG_EFORMAT, "%s: rank is '%.*s', expected a number from 0 to %d", location,
                            (int)(stop - rank < 40 ? stop - rank : 40), rank, MAX_RANK);
        if ((r = add_token(t, token, blank - token, &k, location, e)) < 0)
            return r;
        *list = meg_grow(*list, k, &cap, sizeof **list);
        (*list)[k] = (struct ranked){ value, k };
    }
    return 0;
}

/* Read a text vocabulary: b->tokens in the order of ranks, and their ids, which are the ranks. */
static int read_text(struct meg_bytebpe *b, const char *path, const struct meg_str *file, struct meg_err *e)
{
    struct meg_strtab t = { 0 };
    struct ranked *list = NULL;
    int r = read_lines(&t, &list, path, file, e);

    if (r == 0 && t.n > 0)
        qsort(list, (size_t)t.n, sizeof *list, compare_ranks);
    b->token_id = meg_realloc_array(NULL, (size_t)t.n + 1, sizeof *b->token_id);
    for (int64_t i = 0; i < t.n && r == 0; i++) {
        struct meg_str token = meg_strtab_get(&t, list[i].k);

        if (i > 0 && list[i].rank == list[i - 1].rank)
            r = meg_fail(e, MEG_EFORMAT, "%s: several tokens have rank %" PRId64 "; give each token another rank", path,
                         list[i].rank);
        meg_strtab_add(&b->tokens, token.s, (int64_t)token.n);
        b->token_id[i] = (int32_t)list[i].rank;
    }
    free(list);
    meg_strtab_free(&t);
    return r;
}

/* Read a JSON vocabulary of at most max_tokens tokens, whose ids begin at first_id. */
static int read_json(struct meg_bytebpe *b, const char *path, const struct meg_str *file, int64_t max_tokens,
                     int32_t first_id, struct meg_err *e)
{
    struct meg_strtab *t = &b->tokens;
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
        int64_t rank, k;

        snprintf(location, sizeof location, "%s: element %zu", path, i);
        if (r < 0 || (int64_t)i == max_tokens)
            break;
        if (!json_is_object(item)) {
            r = meg_fail(e, MEG_EFORMAT, "%s: expected an object with rank and token_bytes", location);
        } else if ((r = meg_json_get_i64(item, "rank", MEG_JSON_REQUIRED, &rank, location, e)) == 0 &&
                   (r = meg_json_get_str(item, "token_bytes", MEG_JSON_REQUIRED, &bytes, location, e)) == 0) {
            if (rank != (int64_t)i)
                r = meg_fail(e, MEG_EFORMAT, "%s: rank is %" PRId64 ", expected %zu", location, rank, i);
            else if ((r = add_token(t, bytes, (int64_t)strlen(bytes), &k, location, e)) == 0 && k < (int64_t)i)
                r = meg_fail(e, MEG_EFORMAT, "%s: duplicate token, which already has rank %" PRId64, location, k);
        }
        if (r == 0 && i < 256) {
            struct meg_str byte = meg_strtab_get(t, (int64_t)i);

            if (byte.n != 1 || (unsigned char)byte.s[0] != i)
                r = meg_fail(e, MEG_EFORMAT, "%s: the first 256 tokens must be the 256 bytes in order", location);
        }
    }
    b->token_id = meg_realloc_array(NULL, (size_t)t->n + 1, sizeof *b->token_id);
    for (int64_t k = 0; k < t->n; k++)
        b->token_id[k] = (int32_t)k + first_id;
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

/* A split of a token into two tokens; all three are represented by their indices in the order of ranks. */
struct token_split {
    int32_t left, right, id;
};

/*
 * Set the merges and byte_id of a vocabulary from its ranked tokens.  Each split of a token into two tokens becomes a
 * merge with the rank of the token that is split.  Return MEG_EFORMAT if one of the 256 single bytes is not a token.
 */
static int fill_merges(struct meg_bytebpe *b, const char *path, struct meg_err *e)
{
    struct token_split *split = NULL;
    int64_t n = 0, cap = 0;

    for (int i = 0; i < 256; i++) {
        char c = (char)i;
        int64_t k = meg_strtab_find(&b->tokens, &c, 1);

        if (k < 0)
            return meg_fail(e, MEG_EFORMAT, "%s: byte 0x%02x is not a token; all 256 single bytes must be tokens", path,
                            i);
        b->byte_id[i] = b->token_id[k];
    }
    for (int64_t k = 0; k < b->tokens.n; k++) {
        struct meg_str token = meg_strtab_get(&b->tokens, k);

        for (size_t i = 1; i < token.n; i++) {
            int64_t l = meg_strtab_find(&b->tokens, token.s, (int64_t)i);
            int64_t r = l < 0 ? -1 : meg_strtab_find(&b->tokens, token.s + i, (int64_t)(token.n - i));

            if (r < 0)
                continue;
            split = meg_grow(split, n, &cap, sizeof *split);
            split[n++] = (struct token_split){ (int32_t)l, (int32_t)r, (int32_t)k };
        }
    }
    meg_bpe_init(&b->bpe, n);
    for (int64_t i = 0; i < n; i++)
        meg_bpe_add(&b->bpe, b->token_id[split[i].left], b->token_id[split[i].right], split[i].id,
                    b->token_id[split[i].id]);
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
static int build_special_tokens(struct meg_bytebpe_files *f, int64_t n, struct meg_err *e)
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
static int assign_ids_json(struct meg_bytebpe_files *f, const struct meg_tok_conf *c, struct meg_err *e)
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
 * Add tokens by id: the ranked tokens, whose ids are their ranks, and the special tokens, which have the ids that are
 * not ranks and then those after the last rank.  A rank without a token gets a name, because each id needs one.
 */
static int add_by_id(struct meg_bytebpe_files *f, const struct meg_strtab *special, struct meg_err *e)
{
    const struct meg_bytebpe *v = &f->vocab;
    const int64_t nranks = v->tokens.n > 0 ? v->token_id[v->tokens.n - 1] + (int64_t)1 : 0;
    char name[64];

    for (int64_t id = 0, k = 0, i = 0; id < nranks || i < special->n; id++) {
        struct meg_str token = { name, 0, 0 };

        if (k < v->tokens.n && v->token_id[k] == id)
            token = meg_strtab_get(&v->tokens, k++);
        else if (i < special->n)
            token = meg_strtab_get(special, i++);
        else
            token.n = (size_t)snprintf(name, sizeof name, "<|unused_%" PRId64 "|>", id);
        if (meg_strtab_add(&f->tokens, token.s, (int64_t)token.n) < id)
            return meg_fail(e, MEG_EUSAGE, "--tiktoken-special-tokens: '%.*s' is also another token of the vocabulary",
                            (int)token.n, token.s);
    }
    return 0;
}

/*
 * Assign the ids of a text vocabulary.  If no special tokens are given and the number of ranked tokens equals Llama
 * 3's, add Llama 3's special tokens.
 */
static int assign_ids_text(struct meg_bytebpe_files *f, const struct meg_tok_conf *c, struct meg_err *e)
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
    struct meg_strtab special = { 0 };
    int r =
        add_special(&special, &c->tiktoken_special_tokens, is_llama3 ? LLAMA3_SPECIAL : c->tiktoken_special_tokens.n,
                    is_llama3 ? &llama3 : &none, "<|reserved_special_token_%" PRId64 "|>", 5, e);

    if (r == 0)
        r = add_by_id(f, &special, e);
    meg_strtab_free(&special);
    if (r < 0)
        return r;
    f->special_ids.bos = find(&f->tokens, "<|begin_of_text|>");
    f->special_ids.eos = find(&f->tokens, "<|end_of_text|>");
    if (f->special_ids.eos < 0)
        f->special_ids.eos = find(&f->tokens, "<|endoftext|>");
    f->special_ids.eod = f->special_ids.eos;
    return 0;
}

/* Read c->tokenizer_model and apply the --tiktoken options and --vocab-size. */
static int load_files(struct meg_bytebpe_files *f, const struct meg_tok_conf *c, struct meg_err *e)
{
    const char *path = c->tokenizer_model;
    int64_t nspecial = c->tiktoken_num_special_tokens;
    int64_t size = c->vocab_size == MEG_UNSET ? DEFAULT_SIZE : c->vocab_size;
    struct meg_str file = { 0 };
    bool is_json;
    int r;

    if (nspecial < 0 || nspecial > 1000000)
        return meg_fail(e, MEG_EUSAGE, "--tiktoken-num-special-tokens %" PRId64 ": must be from 0 to 1000000",
                        nspecial);
    if (size > INT32_MAX)
        return meg_fail(e, MEG_EUSAGE, "--vocab-size %" PRId64 ": must be at most %d", size, INT32_MAX);
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
    f->vocab.unk = -1;
    f->vocab.pretok = pattern_of(c->tiktoken_pattern, is_json);
    if ((r = is_json ? read_json(&f->vocab, path, &file, size - nspecial, (int32_t)nspecial, e)
                     : read_text(&f->vocab, path, &file, e)) < 0)
        goto out;
    if (c->vocab_size != MEG_UNSET && is_json && f->vocab.tokens.n < size - nspecial)
        r = meg_fail(e, MEG_EUSAGE,
                     "%s: the file has %" PRId64 " tokens, but --vocab-size %" PRId64
                     " with --tiktoken-num-special-tokens %" PRId64 " requires %" PRId64 "; reduce --vocab-size",
                     path, f->vocab.tokens.n, size, nspecial, (size - nspecial));
    else if ((r = is_json ? assign_ids_json(f, c, e) : assign_ids_text(f, c, e)) == 0)
        r = fill_merges(&f->vocab, path, e);
out:
    meg_str_free(&file);
    return r;
}

static void describe(struct meg_tokenizer *t, const struct meg_tok_conf *c, enum meg_pretok pretok)
{
    struct meg_str special = { 0 };
    char size[32], nspecial[32];

    snprintf(size, sizeof size, "%" PRId64, t->vocab_size);
    snprintf(nspecial, sizeof nspecial, "%" PRId64, c->tiktoken_num_special_tokens);
    meg_tok_add_python_list(&special, &c->tiktoken_special_tokens);
    meg_tok_set_description(t, "CustomTikTokenizer", (const char *const[]){ c->tokenizer_model, NULL },
                            (const char *const[]){ "pattern", meg_pretok_pattern[pretok], "vocab_size", size,
                                                   "num_special_tokens", nspecial, "special_tokens", special.s, NULL });
    meg_str_free(&special);
}

static int tiktoken_open(struct meg_tokenizer *t, const struct meg_tok_conf *c, struct meg_err *e)
{
    struct meg_bytebpe_files *f = t->files = meg_new(sizeof *f);
    int r;

    f->special_ids = meg_tok_no_special_ids;
    if (!c->tokenizer_model)
        return meg_fail(e, MEG_EUSAGE, "TikTokenizer requires --tokenizer-model");
    if ((r = load_files(f, c, e)) < 0)
        return r;
    t->vocab_size = f->tokens.n;
    t->special_ids = f->special_ids;
    describe(t, c, f->vocab.pretok);
    return 0;
}

const struct meg_tok_class meg_tok_tiktoken = MEG_BYTEBPE_CLASS("TikTokenizer", MEG_TOK_LIB_TIKTOKEN, tiktoken_open);
