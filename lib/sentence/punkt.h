/*
 * punkt.h - sentence splitting by Punkt (Kiss and Strunk 2006, "Unsupervised Multilingual Sentence Boundary
 * Detection"), with the same boundaries as NLTK 3.8, which Megatron-LM uses.
 */
#ifndef MEG_SENTENCE_PUNKT_H
#define MEG_SENTENCE_PUNKT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/decls.h"
#include "base/err.h"
#include "base/span.h"

MEG_BEGIN_DECLS

/*
 * meg_punkt_open - load the parameters of a language
 *   dir            directory in NLTK's format punkt_tab; NULL for no parameters
 *     abbrev_types.txt   one abbreviation per line, in lower case, without its last period
 *     sent_starters.txt  one frequent first word of sentences per line, in lower case
 *     collocations.tab   two words per line that are a collocation across a period
 *     ortho_context.tab  a word and the sum of its orthographic contexts: upper case at the beginning (2), in the
 *                        middle (4) or at an unknown position (8) of a sentence; lower case at the same positions
 *                        (16, 32, 64)
 *   keep_newlines  include the whitespace after a sentence in the sentence
 * Returns MEG_ENOENT if a file is missing, and MEG_EFORMAT with file and line if its format is wrong.
 * The result is immutable, so any number of threads can use it.
 */
struct meg_punkt;
int meg_punkt_open(struct meg_punkt **out, const char *dir, bool keep_newlines, struct meg_err *e);
void meg_punkt_close(struct meg_punkt *p); /* accepts NULL */

/*
 * meg_punkt_split - append the nonempty sentences of the first 1,000,000 characters of text to out, in order
 *   text  [n]  valid UTF-8, n > 0; the sentences are spans of text
 * Returns the length of these characters in bytes.  The caller splits the remaining text by further calls, as
 * Megatron-LM does.
 */
int64_t meg_punkt_split(const struct meg_punkt *p, const char *text, int64_t n, struct meg_spans *out);

MEG_END_DECLS

#endif
