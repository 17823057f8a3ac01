/*
 * unigram_stream.c - segment a long word as unigram.c does, but in less memory.  For each position, only one byte is
 * stored: the length of the last piece of the best path.  Scores are in a ring buffer, which covers the positions that
 * the next piece can reach.  Ids are flushed to the sink.  For short words, unigram.c is faster, since it does not look
 * up the pieces a second time.
 */
#include <stdlib.h>
#include "tokenizer/spm/internal.h"
#include "unicode/utf8.h"

enum {
    RING_SIZE = 256,      /* number of scores; must exceed the length of each piece in bytes */
    IDS_AT_ONCE = 1 << 16 /* bytes of the word for which ids are reserved at once */
};

struct score_ring {
    float score[RING_SIZE];
};

static void relax(struct score_ring *s, unsigned char *last, int64_t from, int64_t to, double sum)
{
    if (last[to] == 0 || sum > (double)s->score[to % RING_SIZE]) {
        s->score[to % RING_SIZE] = (float)sum;
        last[to] = (unsigned char)(to - from);
    }
}

/*
 * Set last[i] to the length of the last piece of the best path to position i.  last [n+1] is zero before the call.
 * `sum` is the path score before the word.  Return the path score after the word.
 */
static float viterbi_forward(const struct meg_spm *spm, const char *word, int64_t n, float sum, unsigned char *last)
{
    const struct spm_unigram *u = &spm->unigram;
    struct score_ring s;

    s.score[0] = sum;
    for (int64_t at = 0, len; at < n; at += len) {
        const float best = s.score[at % RING_SIZE];
        uint32_t trie = MEG_TRIE_ROOT;
        bool has_character = false;
        int32_t cp, id;

        len = meg_utf8_decode(word + at, n - at, &cp);
        for (int64_t i = at; i < n && meg_trie_step(&u->pieces, &trie, (unsigned char)word[i], &id); i++) {
            if (id < 0)
                continue;
            relax(&s, last, at, i + 1, u->score[id] + (double)best);
            has_character |= i + 1 - at == len;
        }
        if (!has_character)
            relax(&s, last, at, at + len, (double)(u->unk_score + best));
    }
    return s.score[n % RING_SIZE];
}

/*
 * Reverse the path.  Let i be a piece boundary of the path.  Before the call, length[i] is the length of the piece that
 * ends at i.  After the call, length[i] is the length of the piece that begins at i.
 */
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

int spm_unigram_stream_word(struct meg_spm_encoder *enc, const char *word, int64_t n, struct meg_err *e)
{
    const struct meg_spm *s = enc->spm;
    unsigned char *length = meg_new((size_t)n + 1);
    int r = 0;

    spm_unigram_update_score(enc);
    enc->score.value = viterbi_forward(s, word, n, enc->score.value, length);
    reverse_path(length, n);
    for (int64_t at = 0, reserved_end = 0; at < n; at += length[at]) {
        int32_t id = meg_trie_find(&s->unigram.pieces, word + at, length[at]);

        if (reserved_end < at + length[at]) {
            enc->score.nids = enc->ids_end - enc->ids_begin;
            if ((r = spm_reserve_ids(enc, 3 * (IDS_AT_ONCE + RING_SIZE), e)) < 0)
                break;
            reserved_end = at + IDS_AT_ONCE + RING_SIZE;
        }
        if (id < 0)
            spm_add_unknown(enc, word + at, length[at]);
        else
            *enc->ids_end++ = id;
    }
    enc->score.nids = enc->ids_end - enc->ids_begin;
    free(length);
    return r;
}
