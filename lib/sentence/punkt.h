/*
 * punkt.h - sentence splitting by Punkt (Kiss and Strunk 2006, "Unsupervised Multilingual Sentence Boundary
 * Detection").  The boundaries are equal to those of NLTK 3.8, which Megatron-LM uses.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "base/span.h"

/*
 * meg_punkt_open - load the parameters of a language
 *   dir            directory in NLTK's format punkt_tab; NULL for no parameters
 *     abbrev_types.txt   one abbreviation per line, in lower case, without its last period
 *     sent_starters.txt  one frequent first word of sentences per line, in lower case
 *     collocations.tab   two words per line that are a collocation across a period
 *     ortho_context.tab  one word per line, and the sum of the flags of its orthographic contexts.  Flags of a
 *                        word with an uppercase first letter: 2 at the beginning of a sentence, 4 in the middle, 8 at
 *                        an unknown position.  Flags of a word with a lowercase first letter: 16, 32 and 64 at the
 *                        same positions.
 *   keep_newlines  include the whitespace after a sentence in the sentence
 * Returns MEG_EFORMAT, with the file and the line or byte offset, if the format of a file is wrong.  Otherwise fails as
 * meg_read_file does, for example with MEG_ENOENT if a file is missing.
 * The result is immutable, so any number of threads can use it.
 */
struct meg_punkt;
int meg_punkt_open(struct meg_punkt **out, const char *dir, bool keep_newlines, struct meg_err *e);
void meg_punkt_close(struct meg_punkt *p); /* accepts NULL */

/*
 * meg_punkt_split - split the first 1,000,000 characters of `text` into sentences
 *   text  [n]  valid UTF-8, n > 0
 *   out        the nonempty sentences are appended in order; they are spans of `text`
 * Returns the number of bytes of `text` that were split.  The caller splits the remaining text by further calls, as
 * Megatron-LM does.
 */
int64_t meg_punkt_split(const struct meg_punkt *p, const char *text, int64_t n, struct meg_spans *out);
