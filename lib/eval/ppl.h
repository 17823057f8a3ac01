/*
 * ppl.h - perplexity of a long sequence of tokens, window by window (eval/windows.h).
 */
#ifndef MEG_EVAL_PPL_H
#define MEG_EVAL_PPL_H
#include "data/indexed.h"
#include "eval/score.h"
#include "tokenizer/tokenizer.h"

MEG_BEGIN_DECLS

/*
 * A sequence of n tokens, read from front to back: tokens first .. first+count-1 into out, first never
 * smaller than in the call before.
 */
struct meg_token_stream {
    int64_t n;
    void *of;
    int (*read)(void *of, int64_t first, int64_t count, int32_t *out, struct meg_err *e);
};

/* Tokens in memory. */
struct meg_token_stream meg_token_stream_from_ids(const struct meg_ids *ids);

/* All sequences of a dataset, one after the other; ids outside of the vocabulary are MEG_EFORMAT. */
struct meg_dataset_reader {
    const struct meg_indexed *d;
    int64_t vocab_size;
    int64_t seq, begin; /* where reading is: a sequence and the number of its first token */
};
struct meg_token_stream meg_token_stream_from_dataset(struct meg_dataset_reader *r, const struct meg_indexed *d,
                                                      int64_t vocab_size);

struct meg_ppl_result {
    int64_t scored;  /* targets: tokens - 1 */
    int64_t windows; /* run */
    int64_t bytes;   /* that the targets stand for, eod for none; 0 without a tokenizer */
    double loss;     /* sum of -log p over targets, nats */
};

/*
 * meg_ppl - score every token of src but the first
 *   src         at least two tokens
 *   seq_length  at most the run.s of the scorer's model; 1 <= stride <= seq_length
 *   tok         to count bytes with, or NULL
 *   progress    called after each window, or NULL
 */
int meg_ppl(struct meg_ppl_result *out, struct meg_scorer *s, const struct meg_token_stream *src, int64_t seq_length,
            int64_t stride, const struct meg_tokenizer *tok, void (*progress)(void *ctx, const struct meg_ppl_result *),
            void *ctx, struct meg_err *e);

/* exp(loss / scored), the exponent cut at 20 as Megatron does. */
double meg_ppl_value(const struct meg_ppl_result *p);

MEG_END_DECLS
#endif
