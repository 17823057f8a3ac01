/* wordpiece.c - WordPiece segmentation of a word (Schuster and Nakajima 2012, as in BERT). */
#include "tokenizer/bert/wordpiece.h"
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

int meg_wordpiece_build(struct meg_wordpiece *w, const struct meg_strtab *tokens, const int32_t *id, const char *prefix,
                        int32_t unk, int64_t max_chars, struct meg_err *e)
{
    size_t skip = strlen(prefix);
    struct meg_trie_key *initial = meg_realloc_array(NULL, (size_t)tokens->n + 1, sizeof *initial);
    struct meg_trie_key *continuation = meg_realloc_array(NULL, (size_t)tokens->n + 1, sizeof *continuation);
    int64_t ninitial = 0, ncontinuation = 0;
    int r;

    for (int64_t k = 0; k < tokens->n; k++) {
        struct meg_str t = meg_strtab_get(tokens, k);
        int32_t value = id ? id[k] : (int32_t)k;

        if (t.n > 0)
            initial[ninitial++] = (struct meg_trie_key){ t.s, (int64_t)t.n, value };
        if (t.n > skip && memcmp(t.s, prefix, skip) == 0)
            continuation[ncontinuation++] = (struct meg_trie_key){ t.s + skip, (int64_t)(t.n - skip), value };
    }
    w->unk = unk;
    w->max_chars = max_chars;
    if ((r = meg_trie_build(&w->initial, initial, ninitial, e)) == 0)
        r = meg_trie_build(&w->continuation, continuation, ncontinuation, e);
    free(initial);
    free(continuation);
    return r;
}

void meg_wordpiece_free(struct meg_wordpiece *w)
{
    meg_trie_free(&w->initial);
    meg_trie_free(&w->continuation);
}

static int64_t count_chars(const char *s, int64_t n)
{
    int64_t chars = 0;

    for (int64_t i = 0; i < n; i++)
        chars += (s[i] & 0xC0) != 0x80;
    return chars;
}

int64_t meg_wordpiece_encode(const struct meg_wordpiece *w, const char *s, int64_t n, int32_t *ids)
{
    const struct meg_trie *t = &w->initial;
    int64_t nids = 0;

    if (n > w->max_chars && count_chars(s, n) > w->max_chars) {
        ids[0] = w->unk;
        return 1;
    }
    for (int64_t at = 0, len; at < n; at += len, t = &w->continuation) {
        if ((len = meg_trie_longest(t, s + at, n - at, &ids[nids++])) == 0) {
            ids[0] = w->unk;
            return 1;
        }
    }
    return nids;
}
