/*
 * indexed.h - token datasets on disk: PREFIX.bin contains the tokens, PREFIX.idx the lengths and offsets of the
 * sequences and the first sequence of each document.  meg-idx(5) documents both formats.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "file/file.h"

/* Type of a token in .bin; the values are the codes in .idx. */
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

/* Return Megatron-LM's token type for a vocabulary: uint16 for fewer than 65500 ids, and int32 otherwise. */
enum meg_idx_dtype meg_idx_dtype_for_vocab(int64_t vocab_size);

/*
 * meg_indexed_open - map a dataset and check its complete index
 *   prefix  path without ".bin" and ".idx"; copied
 * Checks magic, version, type, file size, lengths, offsets and the document index.  A sequence must begin where the
 * previous one ends.  .bin must be long enough; a longer .bin causes a warning.  The legacy index format is accepted.
 * Returns MEG_ENOENT when a file is missing, MEG_EIO when a file cannot be mapped, and MEG_EFORMAT when a check fails.
 * On failure, *out is unchanged.
 * An open dataset is read-only: any number of threads may use it.
 */
struct meg_indexed {
    char *prefix;
    enum meg_idx_dtype dtype;
    int64_t sequences, documents, tokens; /* numbers of them; the document index has documents + 1 entries */
    bool is_legacy;                       /* the index has the legacy format */
    bool has_modes; /* each sequence has a mode; only sequences of multimodal datasets have modes */
    /* private */
    struct meg_mmap idx, bin;
    size_t size;                                           /* bytes per token */
    const unsigned char *lengths, *offsets, *docs, *modes; /* pointers into idx */
};
int meg_indexed_open(struct meg_indexed **out, const char *prefix, struct meg_err *e);
void meg_indexed_close(struct meg_indexed *d); /* accepts NULL */

int32_t meg_indexed_length(const struct meg_indexed *d, int64_t seq); /* length in tokens */
/* Return the first sequence of document doc; if doc equals the number of documents, return the number of sequences. */
int64_t meg_indexed_document(const struct meg_indexed *d, int64_t doc);
/* Return the mode of a sequence: 0 for text, 1 for an image; without modes, a call is a bug. */
int8_t meg_indexed_mode(const struct meg_indexed *d, int64_t seq);
/* Return a pointer, possibly unaligned, to the tokens of a sequence in the mapped .bin. */
const unsigned char *meg_indexed_bytes(const struct meg_indexed *d, int64_t seq);

/*
 * meg_indexed_get - read tokens [offset, offset + n) of a sequence, converted to int32
 *   out  [n]  out
 * Returns MEG_EFORMAT when the dataset contains floats or an id is out of the range of int32.  A token range outside
 * the sequence is a bug.
 */
int meg_indexed_get(const struct meg_indexed *d, int64_t seq, int64_t offset, int64_t n, int32_t *out,
                    struct meg_err *e);

/*
 * A writer of a dataset; the memory of the writer does not grow with the dataset.
 * `create` acquires PREFIX.lock, so a second writer of the same PREFIX fails.  Until `commit`, the data are in
 * temporary files in the directory of PREFIX.bin and PREFIX.idx.  `commit` renames the temporary files (file/commit.h);
 * `abandon` removes them.
 * After a failure with MEG_EIO or MEG_ENOENT, the writer can only be abandoned.  `extend`, `reserve` and `end_document`
 * return no error code: if one of them fails, the next `append_dataset`, `pwrite` or `commit` returns the
 * error.
 */
struct meg_indexed_writer;
int meg_indexed_create(struct meg_indexed_writer **out, const char *prefix, enum meg_idx_dtype dtype,
                       struct meg_err *e);
/*
 * Append sequences; several threads can write at once.  Call `convert`, and `reserve` or `extend`, before `pwrite`.
 * Calling `reserve` or `extend` after `append_dataset` on the same writer is a bug.
 *   convert  checks `ids` and converts them to the token type; `out` [n] may be the array `ids` if the type has at most
 *            4 bytes.  Returns MEG_EFORMAT if an id is out of the range of the token type.
 *   reserve  adds a sequence of n tokens and returns its byte offset in .bin; one thread at a time
 *   extend   adds n tokens to the sequence reserved last, and returns the byte offset of these tokens; one thread at a
 *            time
 *   pwrite   writes n converted tokens, of one sequence or several adjacent ones, at byte offset `at`
 * All reserved tokens must be written before the commit.
 */
int meg_indexed_convert(const struct meg_indexed_writer *w, const int32_t *ids, int64_t n, void *out,
                        struct meg_err *e);
int64_t meg_indexed_reserve(struct meg_indexed_writer *w, int32_t n);
int64_t meg_indexed_extend(struct meg_indexed_writer *w, int32_t n);
int meg_indexed_pwrite(struct meg_indexed_writer *w, int64_t at, const void *tokens, int64_t n, struct meg_err *e);
/* End a document.  It consists of the sequences appended since the previous document ended, and may be empty. */
void meg_indexed_end_document(struct meg_indexed_writer *w);
/*
 * Append all sequences and documents of d, byte for byte.  Any sequence appended before must be in an ended document.
 * Returns MEG_EFORMAT when the token types of w and d differ, or when both have sequences but only one has modes.
 */
int meg_indexed_append_dataset(struct meg_indexed_writer *w, const struct meg_indexed *d, struct meg_err *e);
/*
 * Complete the indices of n writers, and rename their temporary files to the final names, all or none (meg_commit_files
 * in file/commit.h lists exceptions).  On success, free the writers and set w[i] to NULL.  After a failure, the caller
 * must abandon the writers.
 */
int meg_indexed_commit(struct meg_indexed_writer *w[], int n, struct meg_err *e);
void meg_indexed_abandon(struct meg_indexed_writer *w); /* accepts NULL */
