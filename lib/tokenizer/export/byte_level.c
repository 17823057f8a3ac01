/* byte_level.c - convert the files of byte-level BPE: GPT-2's vocab.json and merges.txt, and tiktoken's ranks. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "io/json.h"
#include "tokenizer/bpe/byte_alphabet.h"
#include "tokenizer/bpe/byte_level_tokenizer.h"
#include "tokenizer/export/internal.h"

/* ---- vocab.json and merges.txt: tokens are in the byte alphabet, as in tokenizer.json ---- */

/* Return the merges of a valid merges.txt, which has lines "left right" after the first line. */
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

/*
 * Check that all 256 bytes are tokens.  Megatron-LM encodes a missing byte as id 0.  tokenizer.json cannot represent
 * this.
 */
static int check_bytes(const struct meg_bytebpe_files *f, const char *path, struct meg_err *e)
{
    int nmissing = 0;

    for (int b = 0; b < 256; b++)
        nmissing += f->vocab.byte_id[b] < 0;
    return nmissing
               ? meg_fail(e, MEG_EUSAGE,
                          "%s: %d of the 256 single bytes have no token; Megatron-LM encodes these bytes as id 0, but "
                          "tokenizer.json cannot represent this",
                          path, nmissing)
               : 0;
}

int meg_export_gpt2(struct meg_export_builder *b, struct meg_err *e)
{
    const char *path = b->conf->vocab_file;
    struct meg_str merges = { 0 };
    json_t *vocab = NULL;
    int r;

    if ((r = meg_json_load_regular(&vocab, path, e)) < 0 ||
        (r = meg_tok_read_file(b->conf->merge_file, &merges, e)) < 0 || (r = check_bytes(b->tok->files, path, e)) < 0)
        goto out;
    b->model = meg_export_byte_level_bpe(json_incref(vocab), read_merges(merges.s), false);
    meg_export_byte_level(b, MEG_PRETOK_GPT2);
    meg_export_add_all_special(b);
out:
    json_decref(vocab);
    meg_str_free(&merges);
    return r;
}

/* ---- tiktoken: every split of a token into two tokens becomes a merge ---- */

/* The ranks of the two tokens that a token is split into. */
struct token_split {
    int64_t left, right;
};

static int by_ranks(const void *a, const void *b)
{
    const struct token_split *x = a, *y = b;

    if (x->left != y->left)
        return x->left > y->left ? 1 : -1;
    return (x->right > y->right) - (x->right < y->right);
}

/*
 * Set `split` to the splits of token k, ordered by left rank, then right rank, and return their number.  The capacity
 * of `split` must be the number of bytes of the token.
 */
static size_t splits_of(const struct meg_strtab *tokens, int64_t k, struct token_split *split)
{
    const struct meg_str t = meg_strtab_get(tokens, k);
    size_t n = 0;

    for (size_t i = 1; i < t.n; i++) {
        const int64_t left = meg_strtab_find(tokens, t.s, (int64_t)i);
        const int64_t right = left < 0 ? -1 : meg_strtab_find(tokens, t.s + i, (int64_t)(t.n - i));

        if (right >= 0)
            split[n++] = (struct token_split){ left, right };
    }
    qsort(split, n, sizeof *split, by_ranks);
    return n;
}

static void to_byte_alphabet(struct meg_str *out, const struct meg_strtab *tokens, int64_t k)
{
    const struct meg_str t = meg_strtab_get(tokens, k);

    out->n = 0;
    meg_byte_alphabet_encode(out, t.s, (int64_t)t.n);
}

static json_t *merges_of(const struct meg_strtab *tokens)
{
    struct meg_str left = { 0 }, right = { 0 };
    json_t *merges = json_array();
    struct token_split *split = NULL;

    for (int64_t k = 0; k < tokens->n; k++) {
        size_t n;

        split = meg_realloc_array(split, meg_strtab_get(tokens, k).n, sizeof *split);
        n = splits_of(tokens, k, split);
        for (size_t i = 0; i < n; i++) {
            to_byte_alphabet(&left, tokens, split[i].left);
            to_byte_alphabet(&right, tokens, split[i].right);
            json_array_append_new(merges, meg_export_merge(left.s, left.n, right.s, right.n));
        }
    }
    free(split);
    meg_str_free(&left);
    meg_str_free(&right);
    return merges;
}

int meg_export_tiktoken(struct meg_export_builder *b, struct meg_err *e)
{
    const struct meg_bytebpe_files *f = b->tok->files;
    struct meg_str text = { 0 };
    json_t *vocab = json_object(), *other;
    int r = 0;

    for (int64_t id = 0; id < f->tokens.n; id++) {
        const struct meg_str t = meg_strtab_get(&f->tokens, id);
        const bool is_ranked = meg_strtab_find(&f->vocab.tokens, t.s, (int64_t)t.n) >= 0;

        text.n = 0;
        if (is_ranked)
            meg_byte_alphabet_encode(&text, t.s, (int64_t)t.n);
        else
            meg_str_add(&text, t.s, t.n);
        if ((other = json_object_getn(vocab, text.s, text.n))) {
            const int64_t other_id = json_integer_value(other);

            r = meg_fail(
                e, MEG_EUSAGE,
                "%s: the special token '%.*s' equals the byte-level spelling of token %" PRId64
                ", so tokenizer.json cannot represent both; choose a different name with --tiktoken-special-tokens",
                b->conf->tokenizer_model, (int)text.n, text.s, is_ranked ? id : other_id);
            json_decref(vocab);
            goto out;
        }
        json_object_setn_new_nocheck(vocab, text.s, text.n, json_integer(id));
        if (!is_ranked)
            meg_export_add_special(b, (int32_t)id, t.s, t.n);
    }
    b->model = meg_export_byte_level_bpe(vocab, merges_of(&f->vocab.tokens), true);
    meg_export_byte_level(b, f->vocab.pretok);
    b->is_not_spm_bpe = true;
out:
    meg_str_free(&text);
    return r;
}
