/* internal.h - what the files of meg_preprocess share: the work, who does it, and what comes of it. */
#ifndef MEG_PREPROCESS_INTERNAL_H
#define MEG_PREPROCESS_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/log.h"
#include "data/indexed.h"
#include "io/block_reader.h"
#include "io/jsonl.h"
#include "preprocess/preprocess.h"
#include "sentence/punkt.h"

enum {
    RESULTS_PER_WORKER = 4, /* blocks of a worker whose tokens may be in memory */
    DOCUMENT_END = -1       /* among the lengths of sequences */
};

/* What is shared.  Blocks are numbered as they are read: that is their ticket, and they get their places in its order. */
struct preprocess_job {
    const struct meg_preprocess_conf *c;
    int64_t workers;
    const struct meg_punkt *punkt;             /* NULL: texts stay whole */
    int64_t partition, partitions, first_line; /* this pass takes lines part, part + parts, ..., from first on */
    int64_t lines;                             /* of the input, once a pass is over */
    int32_t eod;                               /* -1: none is added */
    struct meg_indexed_writer **writer;        /* [keys]; who has the turn may claim */
    double start_s;
    atomic_bool is_input_done; /* no more is read */

    pthread_mutex_t read_lock; /* guards these: */
    struct meg_block_reader *in;
    int64_t blocks_read; /* blocks read */

    pthread_mutex_t order_lock; /* guards these: */
    pthread_cond_t order_changed;
    _Atomic int64_t next_ticket; /* blocks that had their turn; may be read at any time */
    struct block_result **ready; /* [workers * HELD] by ticket: encoded, before their turn */
    int r;                       /* the first failure */
    struct meg_err *e;
    struct meg_progress progress;
    int64_t documents, tokens, nbytes, blank;
};

/* The sequences of one key that are not written yet: lengths, with DOCUMENT_END after those of each
 * document. */
struct encoded_key {
    struct meg_ids ids, lengths;
    struct block_result *result;
    struct meg_indexed_writer *writer;
    int64_t written;     /* tokens of this block */
    int64_t partial;     /* those of them that belong to the next length */
    int32_t last_length; /* length of the sequence that was placed last */
    int64_t offset;      /* of the first token in .bin */
};

/* What came of a block, until it is written. */
struct block_result {
    struct preprocess_worker *worker;
    int64_t ticket;          /* of the block; -1: nothing to be written */
    struct encoded_key *out; /* [keys] */
    int64_t documents, tokens, nbytes, blank;
    int r; /* the first failure */
    struct meg_err e;
    bool is_discarded; /* the work has failed: what is encoded goes nowhere */
};

struct preprocess_worker {
    struct preprocess_job *job;
    struct meg_tokenizer *tok;
    pthread_t thread;
    struct meg_line_block block;
    struct meg_jsonl jsonl;
    struct meg_str repaired;
    struct meg_spans sentences;
    struct block_result result[RESULTS_PER_WORKER], *current; /* current: of the block */
    bool holds_order, holds_read_lock;
};

/*
 * Write the first n ids of ctx, a struct encoded, to its dataset before their sequence is complete: the sink of the
 * tokenizers, which keeps the ids of a long text out of memory.  Blocks until all blocks before this one are written.
 */
int meg_preprocess_write_ids(void *ctx, int32_t *ids, int64_t n, struct meg_err *e);

/* Encode the block of w into w->current. */
int meg_preprocess_block(struct preprocess_worker *w, struct meg_err *e);

/* j->workers of them, each with a tokenizer; the first one has tok itself.  With them comes what j has to
 * let them take turns. */
struct preprocess_worker *meg_preprocess_workers_new(struct preprocess_job *j, struct meg_tokenizer *tok);
/* Read j->in to its end; all that comes of it is written when this returns, unless it fails. */
int meg_preprocess_workers_run(struct preprocess_job *j, struct preprocess_worker *w);
void meg_preprocess_workers_free(struct preprocess_job *j, struct preprocess_worker *w); /* accepts NULL */

/* MEG_EUSAGE when the options of meg-preprocess make no sense, or not with this tokenizer; else
 * *workers is the number of threads they ask for. */
int meg_preprocess_check(const struct meg_preprocess_conf *c, const struct meg_tokenizer *tok, int64_t *workers,
                         struct meg_err *e);

#endif
