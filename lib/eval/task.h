/*
 * task.h - the evaluations of meg-eval: log-probabilities of given tokens, perplexity of a corpus, and masked tokens.
 */
#pragma once
#include "infer/model_load.h"
#include "infer/reply.h"

enum meg_eval_task { MEG_EVAL_UNSET = MEG_ENUM_UNSET, MEG_EVAL_LOGPROBS, MEG_EVAL_PPL, MEG_EVAL_FILL_MASK };

struct meg_eval_conf {
    enum meg_eval_task task;  /* --task */
    const char *input;        /* --input */
    const char *data_path;    /* --data-path, or NULL */
    int64_t seq_length;       /* --seq-length; MEG_UNSET: the model's max_position_embeddings */
    int64_t overlapping_eval; /* --overlapping-eval; MEG_UNSET: seq_length */
};
extern const struct meg_opt meg_eval_opts[];

/* Return MEG_EUSAGE if a combination of options is invalid. */
int meg_eval_check(const struct meg_eval_conf *c, const struct meg_token_output_conf *output, struct meg_err *e);

/* Return the prediction that c->task requires of the model. */
enum meg_prediction meg_eval_prediction(const struct meg_eval_conf *c);

/*
 * meg_eval_run - run c->task and write its result to standard output
 *   logprobs   one JSON line per input line: ids, log-probabilities, and sum and number of the log-probabilities
 *   ppl        one JSON object for the corpus: counts, window options, loss and perplexity; bits per byte only for
 *              --input with a tokenizer
 *   fill-mask  one JSON line per input line (meg_fill_mask)
 * Returns MEG_EUSAGE if an option is out of the model's range or a required tokenizer is missing, MEG_ENOENT or MEG_EIO
 * if the input cannot be read, MEG_EFORMAT for invalid input, MEG_EFAIL if a result is not finite or memory is
 * exhausted, MEG_EIO if writing fails, and the errors of meg_prompt_read and meg_indexed_open.
 */
int meg_eval_run(const struct meg_eval_conf *c, const struct meg_token_output_conf *output,
                 const struct meg_loaded_model *m, struct meg_err *e);
