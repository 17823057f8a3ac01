/*
 * A long word by a unigram model, as unigram.c does it: but of a place only the length of its last piece
 * is kept, a byte, and the sums of the paths to the places that the next piece may end at.
 */
#include <stdlib.h>

#include "tokenizer/spm/internal.h"
#include "unicode/utf8.h"

enum {
    RING = 256, /* sums */
    AT_ONCE = 1 << 16
};

struct sums {
    float best[RING];
};

static void better(struct sums *s, unsigned char *last, int64_t from, int64_t to, double sum)
{
    if (last[to] == 0 || sum > (double)s->best[to % RING]) {
        s->best[to % RING] = (float)sum;
        last[to] = (unsigned char)(to - from);
    }
}

/* last [n+1]: the length of the last piece of the best path to each place; returns the sum of the best one. */
static float viterbi_forward(const struct meg_spm *spm, const char *word, int64_t n, float sum, unsigned char *last)
{
    const struct spm_unigram *u = &spm->unigram;
    struct sums s;

    s.best[0] = sum;
    for (int64_t at = 0, len; at < n; at += len) {
        const float best = s.best[at % RING];
        uint32_t trie = MEG_TRIE_ROOT;
        bool has_character = false;
        int32_t cp, id;

        len = meg_utf8_decode(word + at, n - at, &cp);
        for (int64_t i = at; i < n && meg_trie_step(&u->pieces, &trie, (unsigned char)word[i], &id); i++) {
            if (id < 0)
                continue;
            better(&s, last, at, i + 1, u->step[id] + (double)best);
            has_character |= i + 1 - at == len;
        }
        if (!has_character)
            better(&s, last, at, at + len, (double)(u->unk_step + best));
    }
    return s.best[n % RING];
}

/* From the length of the piece that ends at a place to that of the one that begins there, on the best path. */
static void reverse_path(unsigned char *length, int64_t n)
{
    unsigned char len = length[n];

    while (n > 0) {
        unsigned char before;

        n -= len;
        before = length[n];
        length[n] = len;
        len = before;
    }
}

int spm_unigram_stream_word(struct meg_spm_encoder *w, const char *word, int64_t n, struct meg_err *e)
{
    const struct meg_spm *s = w->spm;
    unsigned char *length = meg_new((size_t)n + 1);
    int r = 0;

    spm_unigram_update_score(w);
    w->sum.value = viterbi_forward(s, word, n, w->sum.value, length);
    reverse_path(length, n);
    for (int64_t at = 0, room = 0; at < n; at += length[at]) {
        int32_t id = meg_trie_find(&s->unigram.pieces, word + at, length[at]);

        if (room < at + length[at]) {
            w->sum.nids = w->ids - w->begin;
            if ((r = spm_reserve_ids(w, 3 * (AT_ONCE + RING), e)) < 0)
                break;
            room = at + AT_ONCE + RING;
        }
        if (id < 0)
            spm_add_unknown(w, word + at, length[at]);
        else
            *w->ids++ = id;
    }
    w->sum.nids = w->ids - w->begin;
    free(length);
    return r;
}
