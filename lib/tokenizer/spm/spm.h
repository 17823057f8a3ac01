/*
 * spm.h - encode and decode text with a SentencePiece model.  The results equal those of EncodeAsIds and DecodeIds of
 * SentencePiece 0.1.97 (Kudo and Richardson 2018; unigram: Kudo 2018; BPE: Sennrich et al. 2016).
 */
#pragma once
#include "tokenizer/spm/model.h"
#include "tokenizer/tokenizer.h"

/* An opened model.  It is read-only: any number of threads may use it. */
struct meg_spm;
int meg_spm_open(struct meg_spm **out, const char *path, struct meg_err *e); /* fails as meg_spm_model_load does */
void meg_spm_close(struct meg_spm *s);                                       /* accepts NULL */
const struct meg_spm_model *meg_spm_get_model(const struct meg_spm *s);
const struct meg_spm_model *meg_spm_model_of(const struct meg_tokenizer *t); /* the model of a SentencePiece type */

/* The buffers and the word cache of one thread.  The model must outlive the encoder. */
struct meg_spm_encoder;
struct meg_spm_encoder *meg_spm_encoder_new(const struct meg_spm *s);
void meg_spm_encoder_free(struct meg_spm_encoder *enc); /* accepts NULL */

/*
 * meg_spm_encode - append the ids of text [n], which must be well-formed UTF-8
 * The normalized text is split into words.  Each cut is between two characters that are not neighbors in any piece.
 * With a BPE model that has unused pieces, the entire text is one word.
 * Returns MEG_EFORMAT if a word has more than MEG_SPM_MAX_WORD bytes.  Two types of model need the entire word at once,
 * and have the limit MEG_SPM_MAX_BUFFERED_WORD:
 * - unigram with a piece of more than 255 bytes;
 * - BPE with unused pieces.
 * A word of more than half the limit can be rejected too: the buffer is doubled until it contains a safe split point
 * (tokenizer/safe_split.h).  Otherwise fails as meg_bpe_stream and the sink do.
 */
enum { MEG_SPM_MAX_WORD = 64 << 20, MEG_SPM_MAX_BUFFERED_WORD = 2 << 20 };
int meg_spm_encode(struct meg_spm_encoder *enc, const char *text, int64_t n, struct meg_ids *out,
                   const struct meg_id_sink *sink, struct meg_err *e);

/*
 * Append the text of each id, decoded without regard to its neighbors: no space is removed, and a byte piece yields its
 * byte.
 */
void meg_spm_bytes(const struct meg_spm *s, const int32_t *ids, int64_t n, struct meg_str *out);

/*
 * meg_spm_decode - implement meg_detok_add for piece ids [n], using only d->pending and d->state
 * Consecutive byte pieces are decoded as UTF-8.  Each byte that is not part of a character becomes U+FFFD.
 */
void meg_spm_decode(const struct meg_spm *s, struct meg_detok *d, const int32_t *ids, int64_t n, bool is_last,
                    struct meg_str *out);
