/*
 * lines.h - answer the prompts that are lines of an input.  Replies are printed in the order of the prompts
 * (infer/scheduler.h).
 */
#pragma once
#include "infer/model_load.h"
#include "infer/reply.h"
#include "io/line_reader.h"

enum meg_reply_format { MEG_REPLY_JSON, MEG_REPLY_TEXT };

struct meg_generate_conf {
    const char *input;            /* --input */
    enum meg_reply_format format; /* --format */
    int64_t tokens_to_generate;   /* --tokens-to-generate */
    bool return_log_probs;        /* --return-log-probs */
    int64_t max_batch_size;       /* --max-batch-size: slots of the generator */
};
extern const struct meg_opt meg_generate_opts[];

/* Return MEG_EUSAGE if an option is out of range or a combination of options is invalid. */
int meg_generate_check(const struct meg_generate_conf *c, const struct meg_token_output_conf *output,
                       struct meg_err *e);

/*
 * meg_generate_lines - continue each prompt of the input and write the replies to standard output
 *   in        input, one prompt per line
 *   sampling  checked defaults of the sampling options, which a prompt's line may override
 * A prompt is read when a slot is free.  While replies are being generated, a prompt is read only if a line is
 * available without blocking, so a program can write one line and wait for the reply.  Returns MEG_EFORMAT at the first
 * invalid line, after the replies to all earlier lines have been written; MEG_EUSAGE for text or a stop string without
 * a tokenizer; MEG_EFAIL if the logits are not finite or memory is exhausted; MEG_EIO if reading or writing fails.
 */
int meg_generate_lines(const struct meg_generate_conf *c, const struct meg_token_output_conf *output,
                       const struct meg_sampling *sampling, const struct meg_loaded_model *m,
                       struct meg_line_reader *in, struct meg_err *e);
