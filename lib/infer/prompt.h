/*
 * prompt.h - from a line of input to token ids, and from token ids to text that can be shown.
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
 * A JSON line is an object with either rule->key, a string, or "ids", an array of numbers; other
 * members are not looked at.  MEG_EFORMAT for what is not JSON, not UTF-8, has neither member or
 * both, or an id outside of the vocabulary; MEG_EUSAGE for text without a tokenizer.
 */
int meg_prompt_ids(const struct meg_prompt_rule *rule, const char *name, int64_t line, const char *text, size_t n,
                   struct meg_ids *ids, struct meg_err *e);

/* Text as it grows: bytes of ids become whole characters, what is not UTF-8 becomes U+FFFD. */
struct meg_detok {
    const struct meg_tokenizer *tok;
    struct meg_str bytes;        /* not yet shown: a character begun */
};
/*
 * meg_detok_add - append to out what ids [n] add to the text; a character at the end that may yet
 * be completed waits for the next call, or is given up when is_last.  All calls together append what
 * meg_tokenizer_decode would of all ids.
 */
int meg_detok_add(struct meg_detok *d, const int32_t *ids, int64_t n, bool is_last, struct meg_str *out,
                  struct meg_err *e);
void meg_detok_free(struct meg_detok *d);

MEG_END_DECLS
#endif
