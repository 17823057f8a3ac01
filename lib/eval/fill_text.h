/*
 * fill_text.h - encode a text in which some tokens are written as text: masks, the separator of BERT, and the sentinels
 * of T5.
 */
#pragma once
#include "eval/span_vocab.h"
#include "tokenizer/special_tokens.h"

struct meg_fill_text {
    struct meg_tokenizer *tok;         /* borrowed */
    struct meg_special_tokens special; /* the tokens that are written as text */
    int32_t begin, end;                /* tokens at the beginning and at the end, which decoding omits; -1: none */
    bool adds_ends;                    /* encoding adds these tokens */
};

/*
 * meg_fill_text_open - prepare to encode texts
 *   tok    borrowed until close
 *   spans  tokens of a T5; NULL: BERT.  A text of BERT begins with CLS and ends with SEP, if the tokenizer has them.
 *          A separator in the text divides it into the two segments of BERT.
 * Returns MEG_EFORMAT if two tokens have the same text.  Close x even after a failure.
 */
int meg_fill_text_open(struct meg_fill_text *x, struct meg_tokenizer *tok, const struct meg_span_vocab *spans,
                       struct meg_err *e);
void meg_fill_text_close(struct meg_fill_text *x); /* accepts a zeroed *x */

/* Append the ids of text [n], UTF-8.  Returns the errors of meg_tokenizer_encode. */
int meg_fill_text_encode(const struct meg_fill_text *x, const char *text, int64_t n, struct meg_ids *ids,
                         struct meg_err *e);
/* Append the text of ids, without the tokens at the beginning and at the end.  Fails as meg_tokenizer_decode does. */
int meg_fill_text_decode(const struct meg_fill_text *x, const struct meg_ids *ids, struct meg_str *out,
                         struct meg_err *e);
