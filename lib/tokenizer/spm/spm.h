/*
 * spm.h - text to the ids of a SentencePiece model and back, equal to SentencePiece 0.1.97's
 * EncodeAsIds and DecodeIds (Kudo and Richardson 2018; unigram: Kudo 2018, BPE: Sennrich et al. 2016).
 */
#ifndef MEG_TOKENIZER_SPM_SPM_H
#define MEG_TOKENIZER_SPM_SPM_H

#include "tokenizer/spm/model.h"
#include "tokenizer/tokenizer.h"

/* A model made ready; any number of threads may use it. */
struct meg_spm;
int meg_spm_open(struct meg_spm **out, const char *path, struct meg_err *e); /* as meg_spm_model_load */
void meg_spm_close(struct meg_spm *s);                                       /* accepts NULL */
const struct meg_spm_model *meg_spm_get_model(const struct meg_spm *s);

/* What a thread needs to encode, and the words it remembers. */
struct meg_spm_encoder;
struct meg_spm_encoder *meg_spm_encoder_new(const struct meg_spm *s);
void meg_spm_encoder_free(struct meg_spm_encoder *w); /* accepts NULL */

/*
 * meg_spm_encode - append the ids of a text of n bytes, well-formed UTF-8
 * Not all texts are one word, as far as the model's pieces go, but one may be.  MEG_EFORMAT for a word that
 * is longer than MEG_SPM_MAX_WORD bytes when normalised, or than MEG_SPM_MAX_BUFFERED_WORD where it has to be held with
 * all that is to be known of it: by a unigram model with a piece of more than 255 bytes, by a BPE model with
 * unused pieces; and as meg_bpe_stream and the sink fail.
 */
enum { MEG_SPM_MAX_WORD = 64 << 20, MEG_SPM_MAX_BUFFERED_WORD = 2 << 20 };
int meg_spm_encode(struct meg_spm_encoder *w, const char *text, int64_t n, struct meg_ids *out,
                   const struct meg_id_sink *sink, struct meg_err *e);

/* Append what each id stands for by itself. */
void meg_spm_bytes(const struct meg_spm *s, const int32_t *ids, int64_t n, struct meg_str *out);

/*
 * meg_spm_decode - as meg_detok_add, of held and state only; ids are pieces of the model.  Bytes of
 * byte pieces become characters where they are UTF-8, each other one becomes U+FFFD.
 */
void meg_spm_decode(const struct meg_spm *s, struct meg_detok *d, const int32_t *ids, int64_t n, bool is_last,
                    struct meg_str *out);

#endif
