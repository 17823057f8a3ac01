/*
 * punkt.h - text cut into sentences by Punkt (Kiss and Strunk 2006, "Unsupervised Multilingual
 * Sentence Boundary Detection"), with the decisions of NLTK 3.8, whose splitter Megatron-LM uses.
 */
#ifndef MEG_SENTENCE_PUNKT_H
#define MEG_SENTENCE_PUNKT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/span.h"

/*
 * meg_punkt_open - a splitter
 *   dir            folder of what was learnt of a language, in the form NLTK publishes as punkt_tab;
 *                  NULL: nothing is known, and every period is judged by its surroundings alone
 *     abbrev_types.txt   an abbreviation a line, lower case, without its last period
 *     sent_starters.txt  a word a line that often begins sentences, lower case
 *     collocations.tab   two words a line that belong together though a period is between
 *     ortho_context.tab  a word and how it was seen: the sum of 2, 4, 8 (upper case at the beginning,
 *                        in the middle, at an unknown place of a sentence), 16, 32, 64 (lower case)
 *   keep_newlines  blanks behind a sentence belong to it; otherwise to none
 * MEG_ENOENT when a file is missing, MEG_EFORMAT with file and line when it holds something else.
 * Once open it is read-only: any number of threads may use it.
 */
struct meg_punkt;
int meg_punkt_open(struct meg_punkt **out, const char *dir, bool keep_newlines, struct meg_err *e);
void meg_punkt_close(struct meg_punkt *p); /* accepts NULL */

/*
 * meg_punkt_split - append the sentences of the first 1,000,000 characters of text, in order, to out;
 * none is empty
 *   text  [n]  well-formed UTF-8, n > 0; the sentences point into it
 * Returns how many bytes those characters are.  What follows is, as Megatron-LM does it, a text of its own.
 */
int64_t meg_punkt_split(const struct meg_punkt *p, const char *text, int64_t n, struct meg_spans *out);

#endif
