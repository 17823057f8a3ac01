/* request.h - generation options of one prompt: number of tokens, sampling, stop strings. */
#pragma once
#include <jansson.h>
#include "base/mem.h"
#include "infer/sample.h"

struct meg_request {
    int64_t max_tokens;           /* generate at most this many tokens, >= 1 */
    struct meg_sampling sampling; /* sampling options; meg_request_check checks them */
    bool has_seed;        /* the prompt's line sets a seed; sampling then does not depend on the number of the prompt */
    struct meg_str *stop; /* [nstop] strings that end the text: UTF-8, not empty */
    size_t nstop;
};

/* Initialize q from `defaults`, which must have no stop strings. */
void meg_request_init(struct meg_request *q, const struct meg_request *defaults);
void meg_request_free(struct meg_request *q);

/*
 * meg_request_set - set the option called `name`, a member of a JSON object, to `value`
 * Setting temperature, top_k or top_p also turns off sampling.greedy.  Returns 1 if the option was set, 0 if no option
 * has that name, or MEG_EFORMAT if the value has the wrong type or is out of range.
 */
int meg_request_set(struct meg_request *q, const char *name, const json_t *value, struct meg_err *e);

/*
 * Check combinations of options, and top_k against unpadded_vocab (meg_sampling_check), after all options are set.
 * Returns MEG_EFORMAT if a check fails.
 */
int meg_request_check(struct meg_request *q, int64_t unpadded_vocab, struct meg_err *e);

/* Append the names of all options, each in quotes after a comma and a space. */
void meg_request_add_names(struct meg_str *out);
