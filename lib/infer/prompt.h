/*
 * prompt.h - from a line of input to token ids.
 */
#ifndef MEG_INFER_PROMPT_H
#define MEG_INFER_PROMPT_H
#include "infer/request.h"
#include "tokenizer/tokenizer.h"

MEG_BEGIN_DECLS

/* How lines are read. */
struct meg_prompt_format {
    const char *key;           /* member of a JSON line that holds text: "prompt" or "text" */
    bool is_plain_allowed;     /* a line that does not begin with '{' is text as it stands */
    struct meg_tokenizer *tok; /* or NULL: lines must hold ids */
    int64_t vocab_size;        /* ids are below it */
    int64_t unpadded_vocab;    /* ids below it may be generated */
    bool is_corpus;            /* members other than key and "ids" are not looked at, as meg-preprocess has it */
};

/*
 * meg_prompt_read - append the ids of a line to ids, and set the options that it has
 *   name, line  file and line number, for messages
 *   text  [n]   the line without its end
 *   request     in: the defaults; out: what the line changes of them; NULL: a line has no options
 * A JSON line, before which a byte order mark may stand, is an object with either rule->key, a string, or
 * "ids", an array of numbers, and the members that request.h knows.  MEG_EFORMAT for what is not JSON, not UTF-8,
 * has neither member or both, an id outside of the vocabulary, an unknown member or an option's wrong value;
 * MEG_EUSAGE for text or a stop string without a tokenizer.
 */
int meg_prompt_read(const struct meg_prompt_format *rule, const char *name, int64_t line, const char *text, size_t n,
                    struct meg_ids *ids, struct meg_request *request, struct meg_err *e);

MEG_END_DECLS
#endif
