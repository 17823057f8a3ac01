/*
 * block_reader.h - text from files, patterns and standard input as blocks of whole lines.  Files may be
 * plain or compressed by gzip, zstd or xz; their first bytes tell which.
 */
#ifndef MEG_IO_BLOCK_READER_H
#define MEG_IO_BLOCK_READER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/*
 * meg_block_reader_open - prepare to read all that the patterns name, in the order given
 *   patterns  [n]  paths; shell patterns (a path that exists is taken as it is), whose matches are
 *                  sorted by bytes; "-" is standard input
 * MEG_ENOENT when nothing matches a pattern or a file cannot be opened.
 */
struct meg_block_reader;
int meg_block_reader_open(struct meg_block_reader **out, const char *const *patterns, int n, struct meg_err *e);
void meg_block_reader_close(struct meg_block_reader *in); /* accepts NULL */

/* The files in order; standard input is "-". */
int64_t meg_block_reader_files(const struct meg_block_reader *in, const char *const **paths);

/* Lines of one file.  Starts as { 0 }, is filled again and again, ends with free(s). */
struct meg_line_block {
    char *s;
    int64_t n, cap;
    const char *name; /* for messages; the input's */
    int64_t line;     /* number of its first line in its file, from 1 */
    int64_t nth;      /* number of its first line among those of all files, from 0 */
    int64_t nlines;
};

/*
 * meg_block_reader_next - fill b with the next lines, about want bytes of them; a longer line is still
 * whole.  Blocks end with \n or with their file.  An empty file gives an empty block.
 * Returns 1, or 0 at the end of the last file.  MEG_EFORMAT for a corrupt or cut compressed file and
 * for a line longer than MEG_MAX_LINE_BYTES, MEG_EIO when reading fails.
 */
enum { MEG_MAX_LINE_BYTES = 64 << 20 };
int meg_block_reader_next(struct meg_block_reader *in, struct meg_line_block *b, int64_t want, struct meg_err *e);

/* Lines of the blocks so far; after the last block, of all files. */
int64_t meg_block_reader_lines(const struct meg_block_reader *in);

/*
 * meg_line_block_next - the next line of b, without its end, which is \n, \r\n or \r
 *   at  in/out  offset in b; begins as 0
 * Returns whether there is one.
 */
bool meg_line_block_next(const struct meg_line_block *b, int64_t *at, const char **line, int64_t *n);

/* Whether it has nothing but blanks and tabs. */
bool meg_line_is_blank(const char *line, int64_t n);

#endif
