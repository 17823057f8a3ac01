/*
 * model.h - read a SentencePiece .model file: a Protocol Buffers message ModelProto with pieces, trainer spec and
 * normalizer spec (https://github.com/google/sentencepiece, src/sentencepiece_model.proto).
 */
#pragma once
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

#define MEG_SPM_SPACE_SYMBOL "\xE2\x96\x81" /* U+2581 replaces a space in pieces */

/* The fields of NormalizerSpec, and treat_whitespace_as_suffix of TrainerSpec. */
struct meg_spm_normalizer_spec {
    struct meg_charsmap map;
    struct meg_str map_bytes; /* bytes of precompiled_charsmap in the file */
    bool has_map;
    bool add_dummy_prefix;           /* add a space before the text */
    bool treat_whitespace_as_suffix; /* add_dummy_prefix adds the space after the text instead */
    bool remove_extra_whitespaces;   /* remove spaces at both ends, and all but one of consecutive spaces */
    bool escape_whitespaces;         /* the pieces contain MEG_SPM_SPACE_SYMBOL instead of spaces */
};

struct meg_spm_piece {
    int64_t offset; /* byte offset in meg_spm_model.text; a piece ends at the offset of the next one */
    float score;
    enum meg_spm_piece_type type;
};

struct meg_spm_model {
    enum meg_spm_model_type type;
    int32_t n;                   /* number of pieces */
    struct meg_spm_piece *piece; /* [n+1] pieces by id; the last element has only an offset */
    struct meg_str text;
    struct meg_spm_normalizer_spec normalizer_spec;
    bool byte_fallback;         /* encode unknown characters by the pieces of their bytes */
    int32_t byte_id[256];       /* ids of the pieces <0x00> to <0xFF>, if byte_fallback */
    struct meg_str unk_surface; /* text that the unknown piece is decoded to */
    int32_t unk, bos, eos, pad; /* ids of special pieces; bos, eos and pad are -1 if there is none */
};

/*
 * meg_spm_model_load - read a .model file
 * Returns MEG_EFORMAT if the message is malformed, or if the model is invalid or not supported.  Supported model types
 * are unigram and BPE.  A piece can have at most 4096 bytes.  A denormalizer must not have a character map.  Otherwise
 * fails as meg_tok_mmap_file does.
 */
int meg_spm_model_load(struct meg_spm_model **out, const char *path, struct meg_err *e);
void meg_spm_model_free(struct meg_spm_model *m); /* accepts NULL */

static inline struct meg_str meg_spm_piece_text(const struct meg_spm_model *m, int32_t id)
{
    size_t n = (size_t)(m->piece[id + 1].offset - m->piece[id].offset);
    struct meg_str view = { m->text.s + m->piece[id].offset, n, n };

    return view;
}

/* Return the byte of a piece <0xNN>, or -1 for other pieces. */
int meg_spm_piece_to_byte(const char *s, size_t n);

/* Return true if the piece has a type that is matched in text. */
static inline bool meg_spm_is_matched(const struct meg_spm_model *m, int32_t id)
{
    enum meg_spm_piece_type t = m->piece[id].type;

    return t == MEG_SPM_NORMAL || t == MEG_SPM_USER_DEFINED || t == MEG_SPM_UNUSED;
}
