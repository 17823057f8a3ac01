/*
 * internal.h - an opened SentencePiece model, its encoder, and the segmentation of words by unigram and BPE (private to
 * lib/tokenizer/spm).  A word is the normalized text between two safe split points (tokenizer/safe_split.h), and can
 * contain spaces.
 */
#pragma once
#include "base/strtab.h"
#include "tokenizer/bpe/bpe.h"
#include "tokenizer/pretokenize/pretokenize.h"
#include "tokenizer/safe_split.h"
#include "tokenizer/spm/normalize.h"
#include "tokenizer/spm/spm.h"
#include "tokenizer/trie.h"
#include "tokenizer/wordcache.h"

/* ---- Opened model ---- */

struct spm_unigram {
    struct meg_trie pieces; /* maps surfaces to ids */
    double *score;          /* [n] score by id: a log probability or, for user-defined pieces, a bonus */
    float unk_score;
    double max_abs_score; /* maximum absolute value of score and unk_score */
    int64_t max_piece_bytes;
};

struct spm_bpe {
    struct meg_trie symbols;      /* maps text to symbols (bpe.c) */
    struct meg_trie user_defined; /* user-defined pieces, which are matched first and never merged */
    struct meg_bpe pairs;
    int32_t *id_of_symbol; /* piece id of each symbol; the unknown piece's id for characters that are not pieces */
};

struct meg_spm {
    struct meg_spm_model *model;
    struct meg_trie user_defined; /* user-defined pieces as in the file; the normalizer leaves them unchanged */
    struct meg_spm_normalizer normalizer;
    struct meg_safe_split safe_split;
    bool has_safe_splits; /* false: an entire text is one word */
    /* the text of each piece as it occurs in normalized text; empty if it is not matched there; not indexed */
    struct meg_strtab surfaces;
    struct spm_unigram unigram;
    struct spm_bpe bpe;
};

/* Build a trie that maps the texts, or the surfaces, of the pieces of `types` (bits 1 << type) to their ids. */
int spm_build_trie(struct meg_trie *out, const struct meg_spm *s, unsigned types, bool is_surface, struct meg_err *e);

/* ---- Encoder ---- */

/* The best path to a byte position of a word (Viterbi). */
struct spm_node {
    float score;       /* score of the path, including the score of the text before the word */
    int32_t id, begin; /* id and first byte of the path's last piece; begin < 0: there is no path */
};

/* Score of the path through the text encoded so far, rounded to float after each piece. */
struct spm_path_score {
    float value;
    int64_t nids; /* value includes the scores of ids_begin[0] .. ids_begin[nids - 1] */
};

struct meg_spm_encoder {
    const struct meg_spm *spm;
    struct meg_wordcache cache;
    struct meg_str text;        /* normalized text that is not yet encoded */
    struct meg_pretokens words; /* words of the text */
    struct meg_ids *out;
    const struct meg_id_sink *sink; /* receives ids; may be NULL */
    int32_t *ids_begin, *ids_end;   /* range of the current text's ids in `out`; see spm_reserve_ids */

    /* state of unigram */
    struct spm_path_score score;
    struct spm_node *node;
    int64_t nnode;

    /* state of BPE */
    int32_t *sym;
    int64_t nsym;
    struct meg_bpe_rev_merge *rev_merge; /* [number of pieces] see bpe.h; NULL: the model has no unused pieces */
};

/*
 * Encode the unknown character s [n]: append the byte pieces of its bytes or, if the model has no byte fallback, the
 * unknown id.  A run of unknown characters has one unknown id.  An escaped space has the bytes of U+2581.
 */
void spm_add_unknown(struct meg_spm_encoder *enc, const char *s, int64_t n);

/*
 * If `out` has more than MEG_IDS_FLUSH_COUNT ids, and the current text has at least two ids in `out`, flush ids to the
 * sink.  Then reserve space for n more ids at ids_end.  Fails as the sink does.
 */
int spm_reserve_ids(struct meg_spm_encoder *enc, int64_t n, struct meg_err *e);

enum { SPM_MAX_CACHED_WORD = 1 << 15 }; /* longer words are not cached, and are encoded in parts if possible */

/* ---- Unigram (unigram.c, unigram_stream.c) ---- */

int spm_unigram_init(struct meg_spm *s, struct meg_err *e);
void spm_unigram_free(struct spm_unigram *u);
/*
 * Append the ids of a word of n bytes.  The caller has reserved space for 3 * n ids.  Return false if the word has an
 * unknown character.
 */
bool spm_unigram_word(struct meg_spm_encoder *enc, const char *word, int64_t n);
/*
 * Reserve space for the ids of a long word, and append the ids.  The longest piece of the model must have at most 255
 * bytes.  Fails as the sink does.
 */
int spm_unigram_stream_word(struct meg_spm_encoder *enc, const char *word, int64_t n, struct meg_err *e);
/* Update the encoder's path score to include all ids appended so far. */
void spm_unigram_update_score(struct meg_spm_encoder *enc);

/*
 * Return the tag with which a word is cached (unigram.c).  The ids of a word can depend on the rounded path score
 * before the word.  Therefore, cached ids are used only if their tag is at least the required tag.  The required tag is
 * greater than 0, so ids with tag 0 are never used.
 */
uint16_t spm_unigram_cache_tag(struct meg_spm_encoder *enc, const char *word, int64_t n);
/* Return the required tag for cached words.  The tag is valid until nids more ids have been appended. */
uint16_t spm_unigram_required_tag(struct meg_spm_encoder *enc, int64_t nids);

/* ---- BPE (bpe.c) ---- */

int spm_bpe_init(struct meg_spm *s, struct meg_err *e);
void spm_bpe_free(struct spm_bpe *b);
/*
 * Append the ids of a word of n bytes.  The caller has reserved space for 3 * n ids.  Set *is_known to false if the
 * word has an unknown character, else to true.  Fails as the sink and meg_bpe_stream do.
 */
int spm_bpe_word(struct meg_spm_encoder *enc, const char *word, int64_t n, bool *is_known, struct meg_err *e);
