/* tokenizer.json of byte-level BPE: from vocab.json and merges.txt, and from the ranks of tiktoken. */
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "tokenizer/bpe/byte_alphabet.h"
#include "tokenizer/bpe/tiktoken_files.h"
#include "tokenizer/export/internal.h"

/* ---- vocab.json and merges.txt: their spelling is that of tokenizer.json ---- */

/* The merges of a text that the tokenizer has opened: lines "left right" behind the first line. */
static json_t *read_merges(char *text)
{
    json_t *merges = json_array();
    char *line = strchr(text, '\n'), *end;

    for (line = line ? line + 1 : text + strlen(text); (end = strchr(line, '\n')); line = end + 1) {
        char *save = NULL, *left, *right;

        *end = '\0';
        left = strtok_r(line, " \t\r\v\f", &save);
        right = left ? strtok_r(NULL, " \t\r\v\f", &save) : NULL;
        if (right)
            json_array_append_new(merges, meg_export_merge(left, strlen(left), right, strlen(right)));
    }
    return merges;
}

/* All 256 bytes are tokens: Megatron-LM makes id 0 of one that is none, which no member can say. */
static int check_bytes(const json_t *vocab, const char *path, struct meg_err *e)
{
    int lacking = 0;

    for (int b = 0; b < 256; b++) {
        struct meg_str s = { 0 };
        char c = (char)b;

        meg_byte_alphabet_encode(&s, &c, 1);
        lacking += !json_object_get(vocab, s.s);
        meg_str_free(&s);
    }
    return lacking ? meg_fail(e, MEG_EUSAGE,
                              "%s: %d of the 256 bytes are no token; tokenizer.json cannot express "
                              "that they become id 0",
                              path, lacking)
                   : MEG_OK;
}

int meg_export_gpt2(struct meg_export_builder *x, struct meg_err *e)
{
    const char *path = x->conf->vocab_file;
    struct meg_str merges = { 0 };
    json_t *vocab = NULL;
    int r;

    if ((r = meg_json_load_regular(&vocab, path, e)) < 0 ||
        (r = meg_tok_read_file(x->conf->merge_file, &merges, e)) < 0 || (r = check_bytes(vocab, path, e)) < 0)
        goto out;
    x->model = meg_export_byte_level_bpe(json_incref(vocab), read_merges(merges.s), false);
    meg_export_byte_level(x, MEG_PRETOK_GPT2);
    meg_export_add_all_special(x);
out:
    json_decref(vocab);
    meg_str_free(&merges);
    return r;
}

/* ---- ranks: every way to cut a token in two tokens is a merge ---- */

/* Ranks of the two parts of a token. */
struct cut {
    int64_t left, right;
};

static int by_ranks(const void *a, const void *b)
{
    const struct cut *x = a, *y = b;

    if (x->left != y->left)
        return x->left > y->left ? 1 : -1;
    return (x->right > y->right) - (x->right < y->right);
}

/* The ways to cut token number k, into cut [bytes of the token]; their number. */
static size_t cuts_of(const struct meg_strtab *tokens, int64_t k, struct cut *cut)
{
    const struct meg_str t = meg_strtab_get(tokens, k);
    size_t n = 0;

    for (size_t i = 1; i < t.n; i++) {
        const int64_t left = meg_strtab_find(tokens, t.s, (int64_t)i);
        const int64_t right = left < 0 ? -1 : meg_strtab_find(tokens, t.s + i, (int64_t)(t.n - i));

        if (right >= 0)
            cut[n++] = (struct cut){ left, right };
    }
    qsort(cut, n, sizeof *cut, by_ranks);
    return n;
}

static void spell(struct meg_str *out, const struct meg_strtab *tokens, int64_t k)
{
    const struct meg_str t = meg_strtab_get(tokens, k);

    out->n = 0;
    meg_byte_alphabet_encode(out, t.s, (int64_t)t.n);
}

static json_t *merges_of(const struct meg_strtab *tokens)
{
    struct meg_str left = { 0 }, right = { 0 };
    json_t *merges = json_array();
    struct cut *cut = NULL;

    for (int64_t k = 0; k < tokens->n; k++) {
        size_t n;

        cut = meg_realloc_array(cut, meg_strtab_get(tokens, k).n, sizeof *cut);
        n = cuts_of(tokens, k, cut);
        for (size_t i = 0; i < n; i++) {
            spell(&left, tokens, cut[i].left);
            spell(&right, tokens, cut[i].right);
            json_array_append_new(merges, meg_export_merge(left.s, left.n, right.s, right.n));
        }
    }
    free(cut);
    meg_str_free(&left);
    meg_str_free(&right);
    return merges;
}

int meg_export_tiktoken(struct meg_export_builder *x, struct meg_err *e)
{
    struct meg_tiktoken_files *f;
    struct meg_str text = { 0 };
    json_t *vocab;
    int r = meg_tiktoken_files_load(&f, x->conf, e);

    if (r < 0)
        return r;
    vocab = json_object();
    for (int64_t id = 0; id < f->tokens.n; id++) {
        const struct meg_str t = meg_strtab_get(&f->tokens, id);
        const bool is_ranked = meg_strtab_find(&f->vocab.tokens, t.s, (int64_t)t.n) >= 0;

        text.n = 0;
        if (is_ranked)
            meg_byte_alphabet_encode(&text, t.s, (int64_t)t.n);
        else
            meg_str_add(&text, t.s, t.n);
        json_object_setn_new_nocheck(vocab, text.s, text.n, json_integer(id));
        if (!is_ranked)
            meg_export_add_special(x, (int32_t)id, t.s, t.n);
    }
    if ((int64_t)json_object_size(vocab) != f->tokens.n) {
        json_decref(vocab);
        r = meg_fail(e, MEG_EUSAGE, "%s: a special token is spelled as bytes of another token are in tokenizer.json",
                     x->conf->tokenizer_model);
        goto out;
    }
    x->model = meg_export_byte_level_bpe(vocab, merges_of(&f->vocab.tokens), true);
    meg_export_byte_level(x, f->vocab.pretok);
    x->is_own_model = true;
out:
    meg_str_free(&text);
    meg_tiktoken_files_free(f);
    return r;
}
