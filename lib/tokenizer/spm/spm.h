/*
 * spm.h - encode and decode text with a SentencePiece model, equal to EncodeAsIds and DecodeIds of SentencePiece
 * 0.1.97 (Kudo and Richardson 2018; unigram: Kudo 2018; BPE: Sennrich et al. 2016).
 */
#ifndef MEG_TOKENIZER_SPM_SPM_H
#define MEG_TOKENIZER_SPM_SPM_H

#include "base/decls.h"
#include "tokenizer/spm/model.h"
#include "tokenizer/tokenizer.h"

MEG_BEGIN_DECLS

/* An opened model: read-only, any number of threads may use it. */
struct meg_spm;
int meg_spm_open(struct meg_spm **out, const char *path, struct meg_err *e); /* fails as meg_spm_model_load */
void meg_spm_close(struct meg_spm *s);                                       /* accepts NULL */
const struct meg_spm_model *meg_spm_get_model(const struct meg_spm *s);

/* Buffers and word cache of one thread; s must outlive it. */
struct meg_spm_encoder;
struct meg_spm_encoder *meg_spm_encoder_new(const struct meg_spm *s);
void meg_spm_encoder_free(struct meg_spm_encoder *enc); /* accepts NULL */

/*
 * meg_spm_encode - append the ids of a text of n bytes, well-formed UTF-8
 * Text is cut into words between characters that are not adjacent in any piece.  MEG_EFORMAT if a word has more than
 * MEG_SPM_MAX_WORD bytes when normalized, or more than MEG_SPM_MAX_BUFFERED_WORD with models that need all of it at
 * once: unigram with a piece of more than 255 bytes, BPE with unused pieces.  Also fails as meg_bpe_stream and sink.
 */
enum { MEG_SPM_MAX_WORD = 64 << 20, MEG_SPM_MAX_BUFFERED_WORD = 2 << 20 };
int meg_spm_encode(struct meg_spm_encoder *enc, const char *text, int64_t n, struct meg_ids *out,
                   const struct meg_id_sink *sink, struct meg_err *e);

/* Append the bytes of each id on its own. */
void meg_spm_bytes(const struct meg_spm *s, const int32_t *ids, int64_t n, struct meg_str *out);

/*
 * meg_spm_decode - decode as meg_detok_add does, using only d->pending and d->state; ids are pieces of the model
 * Byte pieces become characters where they are UTF-8, and U+FFFD for each other byte.
 */
void meg_spm_decode(const struct meg_spm *s, struct meg_detok *d, const int32_t *ids, int64_t n, bool is_last,
                    struct meg_str *out);

MEG_END_DECLS

#endif
