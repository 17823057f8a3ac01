/* Token datasets on disk: PREFIX.bin holds the tokens, PREFIX.idx says where each sequence and
 * document lies.  Byte by byte: meg-idx(5). */
#ifndef MEG_DATA_INDEXED_H
#define MEG_DATA_INDEXED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Type of a token in .bin; the values are the codes stored in .idx. */
enum meg_idx_dtype {
    MEG_IDX_U8 = 1,
    MEG_IDX_I8,
    MEG_IDX_I16,
    MEG_IDX_I32,
    MEG_IDX_I64,
    MEG_IDX_F64,
    MEG_IDX_F32,
    MEG_IDX_U16
};

const char *meg_idx_dtype_name(enum meg_idx_dtype t); /* "uint16" */
size_t meg_idx_dtype_size(enum meg_idx_dtype t);      /* bytes of one token */

/* Megatron's width of a vocabulary of that many ids: uint16 below 65500, else int32. */
enum meg_idx_dtype meg_idx_dtype_for_vocab(int64_t vocab_size);

/*
 * Reading.  open maps both files and checks all of .idx: magic, version, type, size to the byte,
 * lengths, offsets (which must be the sums of the lengths) and the document index, and that .bin
 * holds what .idx says.  A .bin with more bytes than that only warns.  The index of the legacy format
 * is read, too.
 *   prefix  path without ".bin" and ".idx"; copied
 * MEG_ENOENT when a file is missing, MEG_EFORMAT when its bytes are wrong; *out is then untouched.
 * Once open a dataset is read-only and may be used by any number of threads.
 */
struct meg_indexed;
int meg_indexed_open(struct meg_indexed **out, const char *prefix, struct meg_err *e);
void meg_indexed_close(struct meg_indexed *d); /* accepts NULL */

const char *meg_indexed_prefix(const struct meg_indexed *d);
enum meg_idx_dtype meg_indexed_dtype(const struct meg_indexed *d);
bool meg_indexed_is_legacy(const struct meg_indexed *d);
int64_t meg_indexed_sequences(const struct meg_indexed *d);
int64_t meg_indexed_documents(const struct meg_indexed *d);
int64_t meg_indexed_tokens(const struct meg_indexed *d);
int32_t meg_indexed_length(const struct meg_indexed *d, int64_t seq); /* in tokens */
/* The sequence at which document doc starts, doc in [0, documents]; the last one is sequences. */
int64_t meg_indexed_document(const struct meg_indexed *d, int64_t doc);
/* One byte a sequence (0 text, 1 image) of a multimodal dataset; false when it has none. */
bool meg_indexed_has_modes(const struct meg_indexed *d);
int8_t meg_indexed_mode(const struct meg_indexed *d, int64_t seq);
/* The bytes of a sequence as they lie in the mapped .bin, unaligned: length * size of the type. */
const unsigned char *meg_indexed_bytes(const struct meg_indexed *d, int64_t seq);

/*
 * meg_indexed_get - tokens offset..offset+n-1 of a sequence, widened or narrowed to int32
 *   out  [n]  out
 * MEG_EFORMAT when the dataset holds floats or an id that does not fit.  A range outside of the
 * sequence is a bug.
 */
int meg_indexed_get(const struct meg_indexed *d, int64_t seq, int64_t offset, int64_t n, int32_t *out,
                    struct meg_err *e);

/*
 * Writing.  Tokens, lengths and document ends go to temporary files beside PREFIX.bin and PREFIX.idx as
 * they are appended, through buffers: memory does not grow with them.  create takes PREFIX.lock, which
 * refuses a second writer; commit replaces the files of all writers as one (file/commit.h); abandon
 * leaves nothing behind.
 * All fail with MEG_EIO and leave the writer to be abandoned.  A failure in extend, claim or
 * end_document comes out of the next append, put or commit.
 */
struct meg_indexed_writer;
int meg_indexed_create(struct meg_indexed_writer **out, const char *prefix, enum meg_idx_dtype dtype,
                       struct meg_err *e);
/* One sequence of n tokens, n >= 0.  MEG_EFORMAT for an id that the type cannot hold, found before
 * anything is written. */
int meg_indexed_append(struct meg_indexed_writer *w, const int32_t *ids, int64_t n, struct meg_err *e);
/*
 * The same in three steps, so that threads may write side by side.  narrow checks ids and gives them
 * the file's type; claim, one thread at a time, adds a sequence of n tokens and returns where in .bin
 * they belong; extend adds n tokens to the last sequence that was claimed, nothing having been claimed
 * since; put writes n tokens, of one sequence or several in a row, at that place.  Everything claimed
 * must have been put before the commit.  Not for a writer that anything was appended to.
 *   out  [n]  tokens; may be ids itself where the type has at most 4 bytes
 */
int meg_indexed_convert(const struct meg_indexed_writer *w, const int32_t *ids, int64_t n, void *out,
                        struct meg_err *e);
int64_t meg_indexed_reserve(struct meg_indexed_writer *w, int32_t n);
int64_t meg_indexed_extend(struct meg_indexed_writer *w, int32_t n);
int meg_indexed_pwrite(struct meg_indexed_writer *w, int64_t at, const void *tokens, int64_t n, struct meg_err *e);
/* The sequences since the last end are one document; without any it is an empty document. */
void meg_indexed_end_document(struct meg_indexed_writer *w);
/* All of d behind what is there, byte for byte.  MEG_EFORMAT when its type differs, or when one of
 * the two has modes and the other not.  Every document so far must have been ended. */
int meg_indexed_append_dataset(struct meg_indexed_writer *w, const struct meg_indexed *d, struct meg_err *e);
/* Give the n datasets their names, all or none of them.  Frees each w[i] and sets it to NULL, on success only. */
int meg_indexed_commit(struct meg_indexed_writer *w[], int n, struct meg_err *e);
void meg_indexed_abandon(struct meg_indexed_writer *w); /* accepts NULL */

#endif
