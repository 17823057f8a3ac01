/* text_reader.h - texts one after the other, from plain text or JSON lines. */
#ifndef MEG_IO_TEXT_READER_H
#define MEG_IO_TEXT_READER_H

#include "base/err.h"
#include "io/jsonl.h"
#include "option/opt.h"

struct meg_texts_conf {
    struct meg_list input;    /* files, patterns, "-" */
    const char *input_format; /* "auto", "text", "jsonl" */
    struct meg_list json_keys;
};
extern const struct meg_opt meg_texts_opts[];

/* c is borrowed until close. */
struct meg_texts;
int meg_texts_open(struct meg_texts **out, const struct meg_texts_conf *c, struct meg_err *e);
void meg_texts_close(struct meg_texts *t); /* accepts NULL */

/*
 * meg_texts_next - the next text: of plain text a line with its newline, of JSON lines each string
 * of each key.  Well-formed UTF-8, valid until the next call.  "auto" is JSON lines for a file
 * named .json or .jsonl (.gz, .zst, .xz behind it do not matter) and for one whose first line that
 * is not blank is a JSON object; else plain text.
 * Returns 1, or 0 at the end; MEG_EFORMAT with file and line, or as meg_input_next.
 */
int meg_texts_next(struct meg_texts *t, struct meg_span *text, struct meg_err *e);

#endif
