/*
 * A word's best path is found place by place (Viterbi), with the numbers of SentencePiece 0.1.97: a
 * candidate is summed in double, the best one is kept as a float, and a later one must be greater than
 * that float.  So which of two paths that are nearly equal is taken depends on how the float was
 * rounded, and that on all the text before: the sums go on from word to word.
 *
 * A word's ids may nevertheless be remembered.  If the sum before the word is v, and the word has c
 * characters, a path's sum in floats differs from its true one by at most
 *     E = c 2^-24 (|v| + c L) (1 + 2^-10),   L the largest step,
 * for it takes at most c steps of which none passes |v| + c L.  Rounding keeps order, so the float at
 * the word's end is no less than that of the truly best path, and the path it belongs to is truly at
 * most 2 E worse.  If every other path is worse by more, it is the best one: as long as
 *     |v| < lead / (2 c 2^-24 (1 + 2^-10)) - c L,
 * which is what the tag of a word says, as the upper half of a float.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/spm/internal.h"
#include "unicode/utf8.h"

enum {
    UNKNOWN_PENALTY = 10,
    MAX_TAGGED_BYTES = 256, /* longer words get no tag */
    MAX_STEPS = 1 << 20,    /* that may be taken before the sum is brought up to date */
};

/* The steps, as SentencePiece's GetScore and its bonus for user-defined pieces give them. */
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
    u->unk_step = min - UNKNOWN_PENALTY;
    u->largest_step = fabs((double)u->unk_step);
    u->step = meg_new((size_t)m->n * sizeof *u->step);
    for (int32_t id = 0; id < m->n; id++) {
        float nbytes = (float)(m->piece[id + 1].at - m->piece[id].at);

        u->step[id] = (double)m->piece[id].score;
        if (m->piece[id].type == MEG_SPM_USER_DEFINED)
            u->step[id] = (double)(nbytes * max) - 0.1;
        u->largest_step = fmax(u->largest_step, fabs(u->step[id]));
    }
}

int spm_unigram_init(struct meg_spm *s, struct meg_err *e)
{
    const struct meg_spm_model *m = s->model;
    struct meg_trie_key *key = meg_new((size_t)m->n * sizeof *key);
    int64_t n = 0;
    int r;

    for (int32_t id = 0; id < m->n; id++) {
        int64_t len = spm_surface_length(&s->texts, id);

        s->unigram.longest = len > s->unigram.longest ? len : s->unigram.longest;
        if (len > 0 && m->piece[id].type != MEG_SPM_UNUSED)
            key[n++] = (struct meg_trie_key){ s->texts.bytes.s + s->texts.at[id], len, id };
    }
    set_scores(s);
    r = meg_trie_build(&s->unigram.pieces, key, n, e);
    free(key);
    return r;
}

void spm_unigram_free(struct spm_unigram *u)
{
    meg_trie_free(&u->pieces);
    free(u->step);
}

/* ---- the path ---- */

static void better(struct spm_node *to, double sum, int32_t id, int64_t begin)
{
    if (to->begin < 0 || sum > (double)to->best)
        *to = (struct spm_node){ (float)sum, id, (int32_t)begin };
}

/* node [n+1]: the best paths to all places of the word. */
static void viterbi_forward(const struct meg_spm *s, const char *word, int64_t n, float best, struct spm_node *node)
{
    const struct spm_unigram *u = &s->unigram;

    for (int64_t i = 1; i <= n; i++)
        node[i].begin = -1;
    node[0].best = best;
    for (int64_t at = 0, len; at < n; at += len) {
        uint32_t trie = MEG_TRIE_ROOT;
        bool has_character = false;
        int32_t id;

        best = node[at].best;
        len = meg_utf8_length((unsigned char)word[at]);
        for (int64_t i = at; i < n && meg_trie_step(&u->pieces, &trie, (unsigned char)word[i], &id); i++) {
            if (id < 0)
                continue;
            better(&node[i + 1], u->step[id] + (double)best, id, at);
            has_character |= i + 1 - at == len;
        }
        if (!has_character)
            better(&node[at + len], (double)(u->unk_step + best), s->model->unk, at);
    }
}

/* All since the last one summed are pieces of words with a lead. */
void spm_unigram_update_score(struct meg_spm_encoder *w)
{
    const double *step = w->spm->unigram.step;
    int64_t n = w->ids - w->begin;

    for (; w->sum.nids < n; w->sum.nids++)
        w->sum.value = (float)(step[w->begin[w->sum.nids]] + (double)w->sum.value);
}

bool spm_unigram_word(struct meg_spm_encoder *w, const char *word, int64_t n)
{
    const struct meg_spm *s = w->spm;
    struct spm_node *node;
    bool is_known = true;
    int64_t next = n;

    if (n + 1 > w->nnode) {
        w->nnode = n + 1 + n / 2;
        free(w->node);
        w->node = meg_realloc_array(NULL, (size_t)w->nnode, sizeof *node);
    }
    node = w->node;
    spm_unigram_update_score(w);
    viterbi_forward(s, word, n, w->sum.value, node);
    w->sum.value = node[n].best;
    for (int64_t at = n; at > 0;) { /* turn the way back into the way there: begin becomes the end */
        int64_t begin = node[at].begin;

        node[at].begin = (int32_t)next;
        next = at;
        at = begin;
    }
    for (int64_t at = 0; at < n; at = next, next = node[at].begin) {
        if (node[next].id == s->model->unk) {
            spm_add_unknown(w, word + at, next - at);
            is_known = false;
        } else {
            *w->ids++ = node[next].id;
        }
    }
    w->sum.nids = w->ids - w->begin;
    return is_known;
}

/* ---- when a word may be remembered ---- */

/* The sums of the best two paths to a place. */
struct lead {
    double first, second;
};

static void consider(struct lead *to, double sum)
{
    if (sum > to->first) {
        to->second = to->first;
        to->first = sum;
    } else if (sum > to->second) {
        to->second = sum;
    }
}

static void extend(struct lead *to, const struct lead *from, double step)
{
    consider(to, from->first + step);
    consider(to, from->second + step);
}

/* By how much the best path through a word leads; *nchars of it. */
static double margin_of(const struct spm_unigram *u, const char *word, int64_t n, int64_t *nchars)
{
    struct lead lead[MAX_TAGGED_BYTES + 1];

    for (int64_t i = 1; i <= n; i++)
        lead[i] = (struct lead){ -INFINITY, -INFINITY };
    lead[0] = (struct lead){ 0, -INFINITY };
    *nchars = 0;
    for (int64_t at = 0, len; at < n; at += len, ++*nchars) {
        uint32_t trie = MEG_TRIE_ROOT;
        bool has_character = false;
        int32_t id;

        len = meg_utf8_length((unsigned char)word[at]);
        for (int64_t i = at; i < n && meg_trie_step(&u->pieces, &trie, (unsigned char)word[i], &id); i++) {
            if (id < 0)
                continue;
            extend(&lead[i + 1], &lead[at], u->step[id]);
            has_character |= i + 1 - at == len;
        }
        if (!has_character)
            extend(&lead[at + len], &lead[at], (double)u->unk_step);
    }
    return lead[n].first - lead[n].second;
}

uint16_t spm_unigram_cache_tag(struct meg_spm_encoder *w, const char *word, int64_t n)
{
    const struct spm_unigram *u = &w->spm->unigram;
    double lead, room;
    int64_t nchars;
    uint32_t bits;
    float f;

    if (n > MAX_TAGGED_BYTES)
        return 0;
    lead = margin_of(u, word, n, &nchars) * (1 - 0x1p-20); /* summed in double: not quite exact */
    room = lead / ((double)(2 * nchars) * 0x1p-24 * (1 + 0x1p-10)) - (double)nchars * u->largest_step;
    if (!(room >= 1))
        return 0;
    f = room < 0x1p100 ? (float)room : 0x1p100f;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)((bits >> 16) - 1); /* and the float may have been rounded up */
}

/* No sum in the next nids ids is further from 0 than this. */
uint16_t spm_unigram_required_tag(struct meg_spm_encoder *w, int64_t nids)
{
    const struct spm_unigram *u = &w->spm->unigram;
    int64_t steps = w->ids - w->begin - w->sum.nids;
    double most;
    uint32_t bits;
    float f;

    if (steps > MAX_STEPS) {
        spm_unigram_update_score(w);
        steps = 0;
    }
    steps += nids;
    most = (fabs((double)w->sum.value) + (double)steps * u->largest_step) * (1 + (double)steps * 0x1p-23);
    f = (float)most;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)((bits >> 16) + 2);
}
