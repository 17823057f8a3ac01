/* text_reader.h - read texts one by one from plain text or JSON lines. */
#ifndef MEG_IO_TEXT_READER_H
#define MEG_IO_TEXT_READER_H

#include "base/decls.h"
#include "base/err.h"
#include "io/jsonl.h"
#include "option/opt.h"

MEG_BEGIN_DECLS

enum meg_input_format { MEG_INPUT_AUTO, MEG_INPUT_TEXT, MEG_INPUT_JSONL };

struct meg_text_reader_conf {
    struct meg_str_list input; /* as the patterns of meg_block_reader_open */
    enum meg_input_format input_format;
    struct meg_str_list json_keys;
};
extern const struct meg_opt meg_text_reader_opts[];

/* c is borrowed until meg_text_reader_close. */
struct meg_text_reader;
int meg_text_reader_open(struct meg_text_reader **out, const struct meg_text_reader_conf *c, struct meg_err *e);
void meg_text_reader_close(struct meg_text_reader *t); /* accepts NULL */

/*
 * meg_text_reader_next - get the next text: a line of plain text with its newline, or a string of a key of a JSON line
 *   text  valid UTF-8, until the next call
 * MEG_INPUT_AUTO selects JSON lines for a file whose name ends in .json or .jsonl, optionally followed by .gz, .zst or
 * .xz, and for one whose first line that is not blank is a JSON object; else plain text.
 * Returns 1, or 0 at the end; MEG_EFORMAT with file and line, and the errors of meg_block_reader_next.
 */
int meg_text_reader_next(struct meg_text_reader *t, struct meg_span *text, struct meg_err *e);

MEG_END_DECLS

#endif
