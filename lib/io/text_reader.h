/* text_reader.h - texts one after the other, from plain text or JSON lines. */
#ifndef MEG_IO_TEXT_READER_H
#define MEG_IO_TEXT_READER_H

#include "base/err.h"
#include "io/jsonl.h"
#include "option/opt.h"

struct meg_text_reader_conf {
    struct meg_str_list input; /* files, patterns, "-" */
    const char *input_format;  /* "auto", "text", "jsonl" */
    struct meg_str_list json_keys;
};
extern const struct meg_opt meg_text_reader_opts[];

/* c is borrowed until close. */
struct meg_text_reader;
int meg_text_reader_open(struct meg_text_reader **out, const struct meg_text_reader_conf *c, struct meg_err *e);
void meg_text_reader_close(struct meg_text_reader *t); /* accepts NULL */

/*
 * meg_text_reader_next - the next text: of plain text a line with its newline, of JSON lines each string
 * of each key.  Well-formed UTF-8, valid until the next call.  "auto" is JSON lines for a file
 * named .json or .jsonl (.gz, .zst, .xz behind it do not matter) and for one whose first line that
 * is not blank is a JSON object; else plain text.
 * Returns 1, or 0 at the end; MEG_EFORMAT with file and line, or as meg_block_reader_next.
 */
int meg_text_reader_next(struct meg_text_reader *t, struct meg_span *text, struct meg_err *e);

#endif
