/* prompt.h - parse a line of input, plain text or JSON, into token ids and generation options. */
#pragma once
#include "infer/request.h"
#include "tokenizer/tokenizer.h"

/* The format of input lines. */
struct meg_prompt_format {
    const char *key;           /* member of a JSON line that contains the text: "prompt" or "text" */
    bool is_plain_allowed;     /* a line that does not begin with '{' is plain text, unless it is a JSON array */
    struct meg_tokenizer *tok; /* NULL: lines must contain ids */
    int64_t vocab_size;        /* exclusive upper bound of the ids in the input */
    int64_t unpadded_vocab;    /* exclusive upper bound of the ids that can be sampled; limit of top_k */
    bool is_corpus;            /* members other than `key` and "ids" are ignored; false: they are options */
    /* encodes the text of a line; NULL: meg_tokenizer_encode */
    int (*encode)(void *arg, const char *text, int64_t n, struct meg_ids *ids, struct meg_err *e);
    void *encode_arg; /* first argument of encode */
};

/*
 * Check that the ids that `tok` encoded are ids of a model, in [0, vocab_size); the tokenizer of a model may have more
 * tokens than the model.  Returns MEG_EFORMAT otherwise, with a message that names the first other id and its token.
 */
int meg_prompt_check_ids(const struct meg_tokenizer *tok, const int32_t *ids, int64_t n, int64_t vocab_size,
                         struct meg_err *e);

/* A line of input, without its line end. */
struct meg_prompt_line {
    const char *name; /* file name and line number for messages */
    int64_t line;
    const char *text; /* [n] */
    size_t n;
};

/*
 * meg_prompt_read - append the token ids of a line to ids and set the options that the line contains
 *   request     in: the default options; out: the default options, overridden by those of the line; NULL: options are
 *               not allowed
 * A JSON line may begin with a byte order mark.  The line is an object with either the member format->key (a string) or
 * the member "ids" (an array of integers).  All other members are options (meg_request_set).  If format->is_corpus,
 * options are ignored.  Returns MEG_EFORMAT for
 *   - invalid JSON or UTF-8;
 *   - a JSON array, another JSON value that is not an object, or an object with both format->key and "ids", or
 *     neither;
 *   - a value of format->key that is not a string;
 *   - an element of "ids" that is not an integer or is outside of the vocabulary;
 *   - a text with a token outside of the vocabulary (meg_prompt_check_ids);
 *   - an unknown member, or an invalid value.
 * Returns MEG_EUSAGE for text or a stop string without a tokenizer.
 */
int meg_prompt_read(const struct meg_prompt_format *format, const struct meg_prompt_line *line, struct meg_ids *ids,
                    struct meg_request *request, struct meg_err *e);

/*
 * Read each line of an input as a prompt without options, call answer, and print what it appends to `out`.  An error of
 * `answer` ends the loop; the name of the input and the number of the line are added to its message.
 */
typedef int meg_prompt_answer(void *arg, struct meg_ids *ids, struct meg_str *out, struct meg_err *e);
int meg_prompt_answer_lines(const char *input, const struct meg_prompt_format *format, meg_prompt_answer *answer,
                            void *arg, struct meg_err *e);
