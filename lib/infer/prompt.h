/*
 * prompt.h - from a line of input to token ids.
 */
#ifndef MEG_INFER_PROMPT_H
#define MEG_INFER_PROMPT_H
#include "text/tokenizer.h"

MEG_BEGIN_DECLS

/* How lines are read. */
struct meg_prompt_rule {
    const char *key;             /* member of a JSON line that holds text: "prompt" or "text" */
    bool is_plain_allowed;       /* a line that does not begin with '{' is text as it stands */
    struct meg_tokenizer *tok;   /* or NULL: lines must hold ids */
    int64_t vocab_size;          /* ids are below it */
};

/*
 * meg_prompt_ids - append the ids of a line to ids
 *   name, line  where it stands, for messages
 *   text  [n]   the line without its end
 * A JSON line, before which a byte order mark may stand, is an object with either rule->key, a string, or
 * "ids", an array of numbers; other members are not looked at.  MEG_EFORMAT for what is not JSON, not UTF-8,
 * has neither member or both, or an id outside of the vocabulary; MEG_EUSAGE for text without a tokenizer.
 */
int meg_prompt_ids(const struct meg_prompt_rule *rule, const char *name, int64_t line, const char *text, size_t n,
                   struct meg_ids *ids, struct meg_err *e);

MEG_END_DECLS
#endif
