/*
 * request.h - options of one prompt: how many tokens are generated, how they are sampled, what ends them.
 */
#ifndef MEG_INFER_REQUEST_H
#define MEG_INFER_REQUEST_H
#include <jansson.h>

#include "base/mem.h"
#include "infer/sample.h"

MEG_BEGIN_DECLS

struct meg_request {
    int64_t max_tokens;           /* most tokens to generate, at least 1 */
    struct meg_sampling sampling; /* checked */
    bool has_seed;                /* the seed is the request's own: draws do not depend on the prompt's number */
    struct meg_str *stop;         /* [nstop] strings that end the text, UTF-8, none of them empty */
    size_t nstop;
};

/* Copy defaults, which have no stop strings. */
void meg_request_init(struct meg_request *q, const struct meg_request *defaults);
void meg_request_free(struct meg_request *q);

/*
 * meg_request_set - set the option that a member of a JSON object names
 * 1 when there is such an option, 0 when there is none, MEG_EFORMAT for a value that it cannot have.
 */
int meg_request_set(struct meg_request *q, const char *name, const json_t *value, struct meg_err *e);

/* Check the options together, after the last was set; drawable as in meg_sampling_check.  MEG_EFORMAT. */
int meg_request_check(struct meg_request *q, int64_t unpadded_vocab, struct meg_err *e);

/* Append the options' names, quoted, each after ", ". */
void meg_request_add_names(struct meg_str *out);

MEG_END_DECLS
#endif
