/*
 * unigram.c - unigram segmentation by the Viterbi algorithm, with the arithmetic of SentencePiece 0.1.97.  A candidate
 * path's score is summed in double, but the best score at a position is stored as a float.  A later candidate replaces
 * the best one only if its score is greater than that float.  The choice between two nearly equal paths therefore
 * depends on the rounding of the float.  The rounding depends on all text before the word, since the score is not reset
 * between words.
 *
 * The ids of a word can be cached nevertheless.  Let v be the path score before the word, c the word's number of
 * characters and L the largest absolute score of a piece.  The float score of a path differs from its exact score by at
 * most
 *     E = c * 2^-24 * (|v| + c * L) * (1 + 2^-10),
 * since the float score is the result of at most c additions, and no sum exceeds |v| + c * L.  Rounding is monotonic,
 * so the chosen path's float score is at least the best path's float score.  The chosen path's exact score is therefore
 * at most 2 * E below the best path's exact score.  Let margin be the difference between the scores of the best two
 * paths.  The chosen path is the best one if margin > 2 * E, that is, if
 *     |v| < margin / (2 * c * 2^-24 * (1 + 2^-10)) - c * L.
 * The tag of a cached word is this bound on |v|, stored as the upper half of a float.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tokenizer/spm/internal.h"
#include "unicode/utf8.h"

enum {
    UNKNOWN_PENALTY = 10,
    MAX_TAGGED_BYTES = 256, /* maximum bytes of a word with a tag; longer words have tag 0 */
    MAX_STEPS = 1 << 20,    /* maximum number of ids whose scores may be missing in the path score */
};

/*
 * Set the scores of all pieces as SentencePiece's unigram encoder does.  The score of a user-defined piece is its
 * length in bytes times max, minus 0.1.  max is the highest score of a normal piece, but at least FLT_MIN.
 */
static void set_scores(struct meg_spm *s)
{
    const struct meg_spm_model *m = s->model;
    struct spm_unigram *u = &s->unigram;
    float min = FLT_MAX, max = FLT_MIN;

    for (int32_t id = 0; id < m->n; id++) {
        if (m->piece[id].type == MEG_SPM_NORMAL) {
            min = fminf(min, m->piece[id].score);
            max = fmaxf(max, m->piece[id].score);
        }
    }
    u->unk_score = min - UNKNOWN_PENALTY;
    u->max_abs_score = fabs((double)u->unk_score);
    u->score = meg_new((size_t)m->n * sizeof *u->score);
    for (int32_t id = 0; id < m->n; id++) {
        float nbytes = (float)(m->piece[id + 1].offset - m->piece[id].offset);

        u->score[id] = (double)m->piece[id].score;
        if (m->piece[id].type == MEG_SPM_USER_DEFINED)
            u->score[id] = (double)(nbytes * max) - 0.1;
        u->max_abs_score = fmax(u->max_abs_score, fabs(u->score[id]));
    }
}

int spm_unigram_init(struct meg_spm *s, struct meg_err *e)
{
    for (int32_t id = 0; id < s->model->n; id++) {
        int64_t len = (int64_t)meg_strtab_get(&s->surfaces, id).n;

        s->unigram.max_piece_bytes = len > s->unigram.max_piece_bytes ? len : s->unigram.max_piece_bytes;
    }
    set_scores(s);
    return spm_build_trie(&s->unigram.pieces, s, 1 << MEG_SPM_NORMAL | 1 << MEG_SPM_USER_DEFINED, true, e);
}

void spm_unigram_free(struct spm_unigram *u)
{
    meg_trie_free(&u->pieces);
    free(u->score);
}

/* ---- Best path ---- */

static void relax(struct spm_node *to, double sum, int32_t id, int64_t begin)
{
    if (to->begin < 0 || sum > (double)to->score)
        *to = (struct spm_node){ (float)sum, id, (int32_t)begin };
}

/* Set node [n+1] to the best path to each byte position of the word.  `best` is the path score before the word. */
static void viterbi_forward(const struct meg_spm *s, const char *word, int64_t n, float best, struct spm_node *node)
{
    const struct spm_unigram *u = &s->unigram;

    for (int64_t i = 1; i <= n; i++)
        node[i].begin = -1;
    node[0].score = best;
    for (int64_t at = 0, len; at < n; at += len) {
        uint32_t trie = MEG_TRIE_ROOT;
        bool has_character = false;
        int32_t id;

        best = node[at].score;
        len = meg_utf8_length((unsigned char)word[at]);
        for (int64_t i = at; i < n && meg_trie_step(&u->pieces, &trie, (unsigned char)word[i], &id); i++) {
            if (id < 0)
                continue;
            relax(&node[i + 1], u->score[id] + (double)best, id, at);
            has_character |= i + 1 - at == len;
        }
        if (!has_character)
            relax(&node[at + len], (double)(u->unk_score + best), s->model->unk, at);
    }
}

/*
 * Add the scores of the ids that the path score does not include yet, those from index score.nids.  These are the ids
 * of cached words.  Round the path score to float after each addition, as Viterbi does.
 */
void spm_unigram_update_score(struct meg_spm_encoder *enc)
{
    const double *step = enc->spm->unigram.score;
    int64_t n = enc->ids_end - enc->ids_begin;

    for (; enc->score.nids < n; enc->score.nids++)
        enc->score.value = (float)(step[enc->ids_begin[enc->score.nids]] + (double)enc->score.value);
}

bool spm_unigram_word(struct meg_spm_encoder *enc, const char *word, int64_t n)
{
    const struct meg_spm *s = enc->spm;
    struct spm_node *node;
    bool is_known = true;
    int64_t next = n;

    if (n + 1 > enc->nnode) {
        enc->nnode = n + 1 + n / 2;
        free(enc->node);
        enc->node = meg_realloc_array(NULL, (size_t)enc->nnode, sizeof *node);
    }
    node = enc->node;
    spm_unigram_update_score(enc);
    viterbi_forward(s, word, n, enc->score.value, node);
    enc->score.value = node[n].score;
    for (int64_t at = n; at > 0;) { /* reverse the path: replace begin by the end of the next piece */
        int64_t begin = node[at].begin;

        node[at].begin = (int32_t)next;
        next = at;
        at = begin;
    }
    for (int64_t at = 0; at < n; at = next, next = node[at].begin) {
        if (node[next].id == s->model->unk) {
            spm_add_unknown(enc, word + at, next - at);
            is_known = false;
        } else {
            *enc->ids_end++ = node[next].id;
        }
    }
    enc->score.nids = enc->ids_end - enc->ids_begin;
    return is_known;
}

/* ---- Tags of cached words ---- */

/* Scores of the best two paths to a position. */
struct best_two {
    double first, second;
};

static void consider(struct best_two *to, double sum)
{
    if (sum > to->first) {
        to->second = to->first;
        to->first = sum;
    } else if (sum > to->second) {
        to->second = sum;
    }
}

static void extend(struct best_two *to, const struct best_two *from, double step)
{
    consider(to, from->first + step);
    consider(to, from->second + step);
}

/*
 * Return the difference between the scores of the best and the second best path of a word.  Set *nchars to the word's
 * number of characters.
 */
static double margin_of(const struct spm_unigram *u, const char *word, int64_t n, int64_t *nchars)
{
    struct best_two lead[MAX_TAGGED_BYTES + 1];

    for (int64_t i = 1; i <= n; i++)
        lead[i] = (struct best_two){ -INFINITY, -INFINITY };
    lead[0] = (struct best_two){ 0, -INFINITY };
    *nchars = 0;
    for (int64_t at = 0, len; at < n; at += len, ++*nchars) {
        uint32_t trie = MEG_TRIE_ROOT;
        bool has_character = false;
        int32_t id;

        len = meg_utf8_length((unsigned char)word[at]);
        for (int64_t i = at; i < n && meg_trie_step(&u->pieces, &trie, (unsigned char)word[i], &id); i++) {
            if (id < 0)
                continue;
            extend(&lead[i + 1], &lead[at], u->score[id]);
            has_character |= i + 1 - at == len;
        }
        if (!has_character)
            extend(&lead[at + len], &lead[at], (double)u->unk_score);
    }
    return lead[n].first - lead[n].second;
}

uint16_t spm_unigram_cache_tag(struct meg_spm_encoder *enc, const char *word, int64_t n)
{
    const struct spm_unigram *u = &enc->spm->unigram;
    double margin, max_abs_start;
    int64_t nchars;
    uint32_t bits;
    float f;

    if (n > MAX_TAGGED_BYTES)
        return 0;
    margin = margin_of(u, word, n, &nchars) * (1 - 0x1p-20); /* allow for rounding of the sums in double */
    max_abs_start = margin / ((double)(2 * nchars) * 0x1p-24 * (1 + 0x1p-10)) - (double)nchars * u->max_abs_score;
    if (!(max_abs_start >= 1))
        return 0;
    f = max_abs_start < 0x1p100 ? (float)max_abs_start : 0x1p100f;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)((bits >> 16) - 1); /* round down, even if the conversion to float rounded up */
}

/*
 * Return an upper bound of |v|, the absolute value of the path score, until nids more ids have been appended.  The
 * bound is rounded up to the upper half of a float.
 */
uint16_t spm_unigram_required_tag(struct meg_spm_encoder *enc, int64_t nids)
{
    const struct spm_unigram *u = &enc->spm->unigram;
    int64_t steps = enc->ids_end - enc->ids_begin - enc->score.nids;
    double max_abs;
    uint32_t bits;
    float f;

    if (steps > MAX_STEPS) {
        spm_unigram_update_score(enc);
        steps = 0;
    }
    steps += nids;
    max_abs = (fabs((double)enc->score.value) + (double)steps * u->max_abs_score) * (1 + (double)steps * 0x1p-23);
    f = (float)max_abs;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)((bits >> 16) + 2);
}
