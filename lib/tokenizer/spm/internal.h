/* internal.h - a SentencePiece model made ready, and how the two kinds of it segment a word. */
#ifndef MEG_TOKENIZER_SPM_INTERNAL_H
#define MEG_TOKENIZER_SPM_INTERNAL_H

#include "base/trie.h"
#include "tokenizer/bpe/bpe.h"
#include "tokenizer/safe_split.h"
#include "tokenizer/spm/normalize.h"
#include "tokenizer/spm/spm.h"
#include "tokenizer/wordcache.h"

/* The pieces as normalised text has them. */
struct spm_surfaces {
    struct meg_str bytes;
    int64_t *at; /* [n+1]; nothing between two: text cannot become this piece, or it is not matched */
};

static inline int64_t spm_surface_length(const struct spm_surfaces *t, int32_t id)
{
    return t->at[id + 1] - t->at[id];
}

struct spm_unigram {
    struct meg_trie pieces; /* to ids */
    double *step;           /* [n] what a piece adds to a path */
    float unk_step;
    double largest_step; /* no step is further from 0 */
    int64_t longest;     /* piece, in bytes */
};

struct spm_bpe {
    struct meg_trie symbols; /* pieces to ids, characters that are none to n, n+1, ... */
    struct meg_trie frozen;  /* pieces that stand for themselves wherever they are found */
    struct meg_bpe pairs;
    int32_t *out; /* by symbol: its id; the unknown's where it has none */
};

struct meg_spm {
    struct meg_spm_model *model;
    struct meg_trie verbatim; /* user-defined pieces as the file spells them */
    struct meg_spm_normalizer norm;
    struct meg_safe_split seams;
    bool is_cut; /* at seams; else a text is one word */
    struct spm_surfaces texts;
    struct spm_unigram unigram;
    struct spm_bpe bpe;
};

/* A place of a lattice of paths. */
struct spm_node {
    float best;        /* sum of the steps of the best path to here */
    int32_t id, begin; /* its last piece; begin < 0: nothing ends here yet */
};

/* The sum of the best path, as a float, up to the text's id number nids. */
struct spm_path_score {
    float value;
    int64_t nids;
};

struct meg_spm_encoder {
    const struct meg_spm *spm;
    struct meg_wordcache cache;
    struct meg_str text; /* normalised, as much as is at hand */
    uint64_t *seams;
    int64_t nseams;
    struct meg_ids *out;
    const struct meg_id_sink *sink; /* or NULL */
    int32_t *begin, *ids;           /* what has been written to out of the text's ids; there is room */

    /* unigram */
    struct spm_path_score sum;
    struct spm_node *node;
    int64_t nnode;

    /* BPE */
    int32_t *sym;
    int64_t nsym;
    struct meg_bpe_rev_merge *seen;
};

/* Append an unknown character, of n bytes of normalised text. */
void spm_add_unknown(struct meg_spm_encoder *w, const char *s, int64_t n);

/* Grow the capacity of out to n more ids, after flushing it to the sink if it is full: fails as the sink does. */
int spm_reserve_ids(struct meg_spm_encoder *w, int64_t n, struct meg_err *e);

enum { SPM_MAX_CACHED_WORD = 1 << 15 }; /* bytes; longer ones are not remembered */

/*
 * spm_unigram_word, spm_unigram_stream_word, spm_bpe_word - append the ids of a word; *is_known: whether it had no
 * unknown character.  The latter two fail as the sink and meg_bpe_stream do.
 *
 * A word is remembered with a tag and is known again where it has at least the tag required: 0 is never
 * enough.
 */
int spm_unigram_init(struct meg_spm *s, struct meg_err *e);
void spm_unigram_free(struct spm_unigram *u);
bool spm_unigram_word(struct meg_spm_encoder *w, const char *word, int64_t n);
int spm_unigram_stream_word(struct meg_spm_encoder *w, const char *word, int64_t n,
                            struct meg_err *e);           /* longest <= 255 */
void spm_unigram_update_score(struct meg_spm_encoder *w); /* the sum to the last id written */
uint16_t spm_unigram_cache_tag(struct meg_spm_encoder *w, const char *word, int64_t n);
/* The tag that words take of which all together have at most nids ids. */
uint16_t spm_unigram_required_tag(struct meg_spm_encoder *w, int64_t nids);

int spm_bpe_init(struct meg_spm *s, struct meg_err *e);
void spm_bpe_free(struct spm_bpe *b);
int spm_bpe_word(struct meg_spm_encoder *w, const char *word, int64_t n, bool *is_known, struct meg_err *e);

#endif
