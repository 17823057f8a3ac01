/*
 * ppl.h - perplexity of a long token sequence by sliding windows, as in Megatron-LM's WIKITEXT103 task.
 *
 * Window i contains tokens start .. start+ntok-1, where start = i*stride and ntok <= seq_length + 1.  All but the last
 * token are inputs; all but the first are targets.  Window 0 scores all of its targets.  Every later window scores only
 * the targets at positions seq_length - stride and above: at most the last `stride` of its seq_length positions.  Each
 * of the `tokens` - 1 targets is thus scored exactly once.  A target of window 1 or later has at least seq_length -
 * stride tokens of context.  Megatron-LM may count windows at the end that score nothing; meg_ppl omits such windows.
 */
#pragma once
#include "data/indexed/indexed.h"
#include "eval/score.h"
#include "tokenizer/tokenizer.h"

struct meg_window {
    int64_t start, ntok;
    int64_t first, ntargets; /* the window scores targets first .. first+ntargets-1; target t is token start+t+1 */
};

/* Return Megatron's number of windows; tokens >= 1, stride >= 1. */
int64_t meg_window_count(int64_t tokens, int64_t stride);

/* Return window i.  1 <= stride <= seq_length.  ntargets is 0 if the window scores nothing. */
struct meg_window meg_window_at(int64_t tokens, int64_t seq_length, int64_t stride, int64_t i);

/*
 * A sequence of n tokens that is read sequentially.  The function `read` copies tokens first .. first+count-1 to out;
 * `first` must not be less than in the previous call.
 */
struct meg_token_stream {
    int64_t n;
    void *ctx;
    int (*read)(void *ctx, int64_t first, int64_t count, int32_t *out, struct meg_err *e);
};

/* Create a stream of ids, which are borrowed. */
struct meg_token_stream meg_token_stream_from_ids(const struct meg_ids *ids);

/*
 * Context of a stream of the concatenated sequences of a dataset.  The stream's read function returns MEG_EFORMAT for
 * an id outside of the vocabulary.
 */
struct meg_dataset_reader {
    const struct meg_indexed *d;
    int64_t vocab_size;
    /* seq: sequence that contains token `first` of the last read; seq_start: position of the sequence's first token */
    int64_t seq, seq_start;
};
struct meg_token_stream meg_token_stream_from_dataset(struct meg_dataset_reader *r, const struct meg_indexed *d,
                                                      int64_t vocab_size);

struct meg_ppl_result {
    int64_t num_targets; /* number of scored targets: tokens - 1 */
    int64_t windows;     /* number of evaluated windows */
    int64_t bytes;       /* bytes of the targets' text without end-of-document ids; 0 without a tokenizer */
    double loss;         /* sum of -log p over the targets, in nats */
};

struct meg_ppl_conf {
    int64_t seq_length, stride;      /* 1 <= stride <= seq_length <= max_position_embeddings */
    const struct meg_tokenizer *tok; /* used to count bytes; or NULL */
    void (*progress)(void *ctx, const struct meg_ppl_result *so_far); /* called after each window; or NULL */
    void *ctx;
};

/*
 * meg_ppl - score every token of src except the first; src must have at least two tokens
 * Returns the errors of src->read, meg_score and meg_tokenizer_bytes.
 */
int meg_ppl(struct meg_ppl_result *out, struct meg_scorer *s, const struct meg_token_stream *src,
            const struct meg_ppl_conf *c, struct meg_err *e);

/* Return exp(min(20, loss / num_targets)), as Megatron does. */
double meg_ppl_value(const struct meg_ppl_result *p);
