/* text_reader.h - read texts one by one from plain text or JSON lines. */
#pragma once
#include "base/err.h"
#include "io/jsonl.h"
#include "option/opt.h"

enum meg_input_format { MEG_INPUT_AUTO, MEG_INPUT_TEXT, MEG_INPUT_JSONL };

struct meg_text_reader_conf {
    struct meg_str_list input; /* patterns for meg_block_reader_open */
    enum meg_input_format input_format;
    struct meg_str_list json_keys;
};
extern const struct meg_opt meg_text_reader_opts[];

/*
 * Create a reader of the input files, in order; c is borrowed until meg_text_reader_close.  Fails as
 * meg_block_reader_open does.
 */
struct meg_text_reader;
int meg_text_reader_open(struct meg_text_reader **out, const struct meg_text_reader_conf *c, struct meg_err *e);
void meg_text_reader_close(struct meg_text_reader *t); /* accepts NULL */

/*
 * meg_text_reader_next - get the next text: a line of plain text with its newline, if any, or a string of a JSON line
 *   text  valid UTF-8; valid until the next call
 * With MEG_INPUT_AUTO, a file has JSON lines in two cases:
 *   - the name of the file ends in .json or .jsonl, optionally followed by .gz, .zst or .xz
 *   - the text of the file begins with '{' and '"' or '}', with optional whitespace before and between, or it begins
 *     with an array (meg_text_begins_with_array), which is an error
 * Any other file is plain text.
 * Returns 1, or 0 at the end of the input.  Returns MEG_EFORMAT, with file and line, for invalid UTF-8 or an invalid
 * JSON line.  Otherwise fails as meg_block_reader_next does.
 */
int meg_text_reader_next(struct meg_text_reader *t, struct meg_span *text, struct meg_err *e);

/*
 * Return whether s [n] begins like an array of objects, with '[' and '{', or its first line is a JSON array.  An array
 * of one number is not counted, because a text may begin with a reference such as [1].
 */
bool meg_text_begins_with_array(const char *s, int64_t n);
