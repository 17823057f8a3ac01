/* preprocess.h - JSON lines to token datasets: the work of meg-preprocess(1). */
#ifndef MEG_PREPROCESS_PREPROCESS_H
#define MEG_PREPROCESS_PREPROCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "option/opt.h"
#include "tokenizer/tokenizer.h"

struct meg_preprocess_conf {
    struct meg_str_list input; /* files, patterns, "-" */
    struct meg_str_list json_keys;
    const char *output_prefix;
    bool split_sentences, keep_newlines;
    const char *lang, *punkt_data; /* punkt_data NULL: nothing is known of lang */
    bool append_eod;
    bool replace_invalid;
    const char *workers; /* a number, or "auto" */
    int64_t partitions;
    bool keep_sequential_samples;
    const char *dataset_impl; /* "mmap" */
    int64_t log_interval;     /* documents, or MEG_UNSET */
};
extern const struct meg_opt meg_preprocess_opts[];

/*
 * meg_preprocess - write PREFIX_KEY_document.bin and .idx for each key, one document a line; with
 * split_sentences PREFIX_KEY_sentence.bin and .idx, each sentence a sequence.  The bytes do not depend
 * on the number of workers.  Notes and progress go to the log.
 *   tok  used and shared with other threads until the call returns
 * MEG_EUSAGE for options that make no sense together, MEG_EFORMAT with file and line for bad input,
 * MEG_ENOENT, MEG_EIO; then no .idx of this call is left and no temporary file.  Older datasets of that
 * name stay, unless it is the renaming that fails.
 */
int meg_preprocess(const struct meg_preprocess_conf *c, struct meg_tokenizer *tok, struct meg_err *e);

#endif
