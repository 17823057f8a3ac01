/* train_wordpiece.c - split words into characters, the initial tokens of WordPiece training (train.h). */
#include "tokenizer/bpe/train_wordpiece.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "unicode/utf8.h"

enum { NUM_CODEPOINTS = 0x110000 };

struct character {
    int32_t cp;
    int64_t count;
};

/* Ids of the two tokens of a character: one begins a word; the other, with the prefix ##, continues a word. */
struct char_ids {
    int32_t first, rest;
};

/* The characters of all words. */
struct alphabet {
    int64_t *count;      /* [NUM_CODEPOINTS] number of occurrences; 0 for a character that is not kept */
    bool *continues;     /* [NUM_CODEPOINTS] the character occurs after the first character of a word */
    struct char_ids *id; /* [NUM_CODEPOINTS] */
};

static void count_characters(struct alphabet *a, const struct meg_strtab *words, const int64_t *count)
{
    for (int64_t w = 0; w < words->n; w++) {
        const struct meg_str word = meg_strtab_get(words, w);
        int32_t cp;

        for (const char *s = word.s, *next; s < word.s + word.n; s = next) {
            next = s + meg_utf8_decode_unchecked(s, &cp);
            a->count[cp] += count[w];
            a->continues[cp] |= s > word.s;
        }
    }
}

static int by_count(const void *a, const void *b)
{
    const struct character *x = a, *y = b;

    if (x->count != y->count)
        return x->count < y->count ? 1 : -1;
    return x->cp < y->cp ? -1 : 1;
}

/* Set the count of all but the most frequent characters to 0. */
static void limit_alphabet(struct alphabet *a)
{
    struct character *seen = meg_new(NUM_CODEPOINTS * sizeof *seen);
    int64_t n = 0;

    for (int32_t cp = 0; cp < NUM_CODEPOINTS; cp++)
        if (a->count[cp] > 0)
            seen[n++] = (struct character){ cp, a->count[cp] };
    qsort(seen, (size_t)n, sizeof *seen, by_count);
    for (int64_t i = MEG_WORDPIECE_MAX_CHARS; i < n; i++)
        a->count[seen[i].cp] = 0;
    free(seen);
}

static int32_t add_character(struct meg_strtab *tokens, const char *prefix, int32_t cp)
{
    char token[8];
    const size_t n = strlen(prefix);

    memcpy(token, prefix, n);
    return (int32_t)meg_strtab_add(tokens, token, (int64_t)n + meg_utf8_encode(token + n, cp));
}

static void add_tokens(struct meg_strtab *tokens, struct alphabet *a)
{
    static const char *const special[MEG_WORDPIECE_NUM_SPECIAL] = { "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]" };

    for (int i = 0; i < MEG_WORDPIECE_NUM_SPECIAL; i++)
        meg_strtab_add(tokens, special[i], (int64_t)strlen(special[i]));
    for (int32_t cp = 0; cp < NUM_CODEPOINTS; cp++)
        if (a->count[cp] > 0)
            a->id[cp].first = add_character(tokens, "", cp);
    for (int32_t cp = 0; cp < NUM_CODEPOINTS; cp++)
        if (a->count[cp] > 0 && a->continues[cp])
            a->id[cp].rest = add_character(tokens, MEG_WORDPIECE_PREFIX, cp);
}

void meg_wordpiece_split(struct meg_strtab *tokens, const struct meg_strtab *words, const int64_t *count, int32_t *sym,
                         int32_t *len)
{
    struct alphabet a = { 0 };

    a.count = meg_new(NUM_CODEPOINTS * sizeof *a.count);
    a.continues = meg_new(NUM_CODEPOINTS * sizeof *a.continues);
    a.id = meg_new(NUM_CODEPOINTS * sizeof *a.id);
    count_characters(&a, words, count);
    limit_alphabet(&a);
    add_tokens(tokens, &a);
    for (int64_t w = 0; w < words->n; w++) {
        const struct meg_str word = meg_strtab_get(words, w);
        int32_t *out = sym + words->offset[w], cp;

        len[w] = 0;
        for (const char *s = word.s, *next; s < word.s + word.n; s = next) {
            next = s + meg_utf8_decode_unchecked(s, &cp);
            if (a.count[cp] > 0)
                out[len[w]++] = s > word.s ? a.id[cp].rest : a.id[cp].first;
        }
    }
    free(a.count);
    free(a.continues);
    free(a.id);
}
