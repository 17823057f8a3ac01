/*
 * block_reader.h - read files, shell patterns and standard input as blocks of complete lines.  Files may be plain, or
 * compressed by gzip, zstd or xz; the first bytes of a file identify its format.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"

/*
 * meg_block_reader_open - create a reader of the files that match the patterns
 *   patterns  [n]  paths or shell patterns; "-" is standard input.  The name of an existing file is not expanded.
 * Files are read in the order of the patterns.  The files of one shell pattern are sorted bytewise.
 * Returns MEG_ENOENT if a pattern matches no file or a file does not exist, and MEG_EIO if a file or directory cannot
 * be examined.
 */
struct meg_block_reader;
int meg_block_reader_open(struct meg_block_reader **out, const char *const *patterns, int n, struct meg_err *e);
void meg_block_reader_close(struct meg_block_reader *in); /* accepts NULL */

/* Set *paths to the files in reading order, where "-" is standard input, and return their number. */
int64_t meg_block_reader_files(const struct meg_block_reader *in, const char *const **paths);

/* A block of lines of one file.  Initialize it with { 0 }, reuse it for all blocks, and free s. */
struct meg_line_block {
    char *s;
    int64_t n, cap;
    const char *name;           /* name of the file in messages; borrowed from the reader */
    int64_t first_line_in_file; /* number of the first line in its file, from 1 */
    int64_t first_line;         /* number of the first line in all files together, from 0 */
    int64_t nlines;
};

/*
 * meg_block_reader_next - read the next block of complete lines into b
 *   target_bytes  approximate size of the block; a block with a longer line is larger
 * A block ends after a \n or at the end of its file.  The last block of a file can be empty; an empty file is one empty
 * block.
 * Returns 1, or 0 after the last file.  Returns MEG_EFORMAT for a line of more than MEG_MAX_LINE_BYTES, and MEG_ENOENT
 * or MEG_EIO if a file cannot be opened.  Otherwise fails as meg_decompressor_open and meg_decompressor_read do.
 */
enum { MEG_MAX_LINE_BYTES = 64 << 20 };
int meg_block_reader_next(struct meg_block_reader *in, struct meg_line_block *b, int64_t target_bytes,
                          struct meg_err *e);

/* Return the number of lines in all blocks read so far. */
int64_t meg_block_reader_lines(const struct meg_block_reader *in);

/*
 * meg_line_block_next - get the next line of b without its line end (\n, \r\n or \r)
 *   offset  in/out  byte offset in b, initially 0
 * Returns false at the end of b.
 */
bool meg_line_block_next(const struct meg_line_block *b, int64_t *offset, const char **line, int64_t *n);

/*
 * meg_line_block_explain - explain why a line of b is not a JSON line
 *   r  error of the line, whose message is in *e
 * If b is the first block of a file in a foreign format (foreign/foreign.h), replaces the message.  Returns an error.
 */
int meg_line_block_explain(int r, const struct meg_line_block *b, struct meg_err *e);

/* Return whether the line is empty or consists of spaces and tabs. */
bool meg_line_is_blank(const char *line, int64_t n);
