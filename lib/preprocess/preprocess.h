/* preprocess.h - tokenize JSON lines into token datasets, as meg-preprocess(1) does. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "option/opt.h"
#include "tokenizer/tokenizer.h"

struct meg_preprocess_conf {
    struct meg_str_list input; /* file names, shell patterns, or "-" */
    struct meg_str_list json_keys;
    const char *output_prefix;
    bool split_sentences, keep_newlines;
    const char *lang, *punkt_data; /* punkt_data: directory of Punkt parameters, or NULL */
    bool append_eod;
    bool replace_invalid;
    const char *workers; /* a number, or "auto" */
    int64_t partitions;
    bool keep_sequential_samples;
    const char *dataset_impl; /* "mmap" */
    int64_t log_interval;     /* number of documents between log messages, or MEG_UNSET */
};
extern const struct meg_opt meg_preprocess_opts[];

/*
 * meg_preprocess - write one dataset per key; each line that is not blank is one document
 *   tok  tokenizer; the worker threads use it until the call returns
 * The files are PREFIX_KEY_document.bin and .idx or, with split_sentences, PREFIX_KEY_sentence.bin and .idx.  Without
 * split_sentences, each text of a line is one sequence.  With split_sentences, each sentence is one sequence, but the
 * texts of a list are not split.  A text or sentence without tokens has no sequence.  The files do not depend on the
 * number of workers.  Progress is logged.
 * Returns:
 *   - MEG_EUSAGE for missing, invalid or contradictory options
 *   - MEG_EFORMAT, with file and line, for invalid input
 *   - MEG_ENOENT or MEG_EIO for a file that cannot be read or written
 * After a failure, the call leaves no new .idx and no temporary file, and older datasets of that name are unchanged.
 * If the final commit fails, meg_commit_files describes the exceptions.
 */
int meg_preprocess(const struct meg_preprocess_conf *c, struct meg_tokenizer *tok, struct meg_err *e);
