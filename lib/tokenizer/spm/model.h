/*
 * model.h - what a .model file of SentencePiece says: a message of Protocol Buffers with pieces,
 * the trainer's settings and the normaliser's (google/sentencepiece, sentencepiece_model.proto).
 */
#ifndef MEG_TOKENIZER_SPM_MODEL_H
#define MEG_TOKENIZER_SPM_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "tokenizer/spm/precompiled_charsmap.h"

enum meg_spm_model_type { MEG_SPM_UNIGRAM = 1, MEG_SPM_BPE };

enum meg_spm_piece_type {
    MEG_SPM_NORMAL = 1,
    MEG_SPM_UNKNOWN,
    MEG_SPM_CONTROL,
    MEG_SPM_USER_DEFINED,
    MEG_SPM_UNUSED,
    MEG_SPM_BYTE
};

#define MEG_SPM_SPACE_SYMBOL "\xE2\x96\x81" /* U+2581, which stands for a blank in pieces */

/* How text is normalised. */
struct meg_spm_normalizer_spec {
    struct meg_charsmap map;
    struct meg_str map_bytes; /* the map as the file has it */
    bool has_map;
    bool add_dummy_prefix;         /* a blank in front of the text; behind it with ... */
    bool treat_blank_as_suffix;    /* ... this */
    bool remove_extra_whitespaces; /* at both ends, and of several blanks all but one */
    bool escape_whitespaces;       /* blanks become MEG_SPM_SPACE_SYMBOL */
};

struct meg_spm_piece {
    int64_t at; /* in text; the next piece's begins where this one's ends */
    float score;
    enum meg_spm_piece_type type;
};

struct meg_spm_model {
    enum meg_spm_model_type kind;
    int32_t n;                   /* pieces, by id */
    struct meg_spm_piece *piece; /* [n+1], the last one only an end */
    struct meg_str text;
    struct meg_spm_normalizer_spec norm;
    bool byte_fallback;         /* unknown characters become the pieces of their bytes */
    int32_t byte_id[256];       /* of the pieces <0x00> to <0xFF>, with byte_fallback */
    struct meg_str unk_surface; /* what the unknown piece is decoded to */
    int32_t unk, bos, eos, pad; /* -1: there is none (of unk there always is) */
};

/*
 * meg_spm_model_load - read a file
 * MEG_EFORMAT, with file and byte, for what is no message, is cut, or has values that make no model:
 * an empty piece, one that is not UTF-8, stands there twice or is longer than 4096 bytes, a score that
 * is no number, no unknown piece or two, pieces for some bytes only, a damaged character map, a
 * denormaliser's character map, a model type other than unigram and BPE.
 */
int meg_spm_model_load(struct meg_spm_model **out, const char *path, struct meg_err *e);
void meg_spm_model_free(struct meg_spm_model *m); /* accepts NULL */

static inline struct meg_str meg_spm_piece_text(const struct meg_spm_model *m, int32_t id)
{
    size_t n = (size_t)(m->piece[id + 1].at - m->piece[id].at);
    struct meg_str view = { m->text.s + m->piece[id].at, n, n };

    return view;
}

/* The byte that a piece <0xNN> stands for; -1 when it is spelled otherwise. */
int meg_spm_piece_to_byte(const char *s, size_t n);

/* Pieces that are looked for in text. */
static inline bool meg_spm_is_matched(const struct meg_spm_model *m, int32_t id)
{
    enum meg_spm_piece_type t = m->piece[id].type;

    return t == MEG_SPM_NORMAL || t == MEG_SPM_USER_DEFINED || t == MEG_SPM_UNUSED;
}

#endif
