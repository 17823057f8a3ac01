/* internal.h - the state of meg_preprocess: the job, its worker threads, and encoded blocks not yet written. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/log.h"
#include "data/indexed/indexed.h"
#include "io/block_reader.h"
#include "io/jsonl.h"
#include "preprocess/preprocess.h"
#include "sentence/punkt.h"

enum {
    RESULTS_PER_WORKER = 4, /* number of result slots of a worker; each can have one encoded block */
    DOCUMENT_END = -1       /* marks the end of a document in a list of sequence lengths */
};

/*
 * State that all workers use.  Blocks are numbered as they are read; this number is a block's ticket, and offsets in
 * the output are reserved in ticket order.
 */
struct preprocess_job {
    const struct meg_preprocess_conf *c;
    int64_t workers;
    const struct meg_punkt *punkt;      /* NULL: texts are not split into sentences */
    int64_t partition, partitions;      /* this pass encodes lines partition, partition + partitions, ... */
    int64_t first_line;                 /* number of the first line to encode, from 0 */
    int64_t lines;                      /* number of lines in the input; set at the end of a pass */
    int32_t eod;                        /* end-of-document id to append to documents, or -1 */
    struct meg_indexed_writer **writer; /* [keys]; one worker at a time reserves offsets, in ticket order */
    double start_s;
    bool is_input_done; /* atomic: no more blocks are to be read */

    pthread_mutex_t read_lock; /* guards `in` and blocks_read */
    struct meg_block_reader *in;
    int64_t blocks_read;

    pthread_mutex_t order_lock; /* guards the fields below */
    pthread_cond_t order_changed;
    int64_t next_ticket;         /* ticket of the first block without offsets; atomic, for readers without the lock */
    struct block_result **ready; /* [workers * RESULTS_PER_WORKER] blocks without offsets; index: ticket % length */
    int r;                       /* 0, or the code of the first failure */
    struct meg_err *e;
    struct meg_progress progress;
    int64_t documents, tokens, nbytes, blank;
};

/*
 * The sequences of one key in one block.  `ids` contains the ids that are not written yet.  `lengths` contains the
 * lengths of the sequences without offsets, and DOCUMENT_END after the last length of each document.  One sequence can
 * be partially written.  The length of that sequence is, or will be, the first one in `lengths`.
 */
struct encoded_key {
    struct meg_ids ids, lengths;
    struct block_result *result;
    struct meg_indexed_writer *writer;
    int64_t written;     /* number of the key's tokens in this block that are already written */
    int64_t partial;     /* number of written tokens of the partially written sequence, or 0 */
    int32_t last_length; /* length in tokens of the last sequence that has an offset */
    int64_t offset;      /* byte offset of ids in .bin */
};

/* A result slot of a worker: an encoded block that is not yet written. */
struct block_result {
    struct preprocess_worker *worker;
    int64_t ticket;          /* -1: the slot is free */
    struct encoded_key *out; /* [keys] */
    int64_t documents, tokens, nbytes, blank;
    int r; /* 0, or the code of e if reading or encoding the block failed */
    struct meg_err e;
    bool is_discarded; /* the job has failed: do not write this block */
};

struct preprocess_worker {
    struct preprocess_job *job;
    struct meg_tokenizer *tok;
    pthread_t thread;
    struct meg_line_block block;
    struct meg_jsonl jsonl;
    struct meg_str repaired; /* current line, with invalid UTF-8 replaced by U+FFFD */
    struct meg_spans sentences;
    struct block_result result[RESULTS_PER_WORKER], *current; /* current: the slot for block */
    bool holds_order;                                         /* all blocks before the current one have offsets */
    bool holds_read_lock; /* the current block is long; no other block is read until this one is written */
};

/*
 * Wait until all earlier blocks have offsets, convert ids [n] in place to the token type, and write them to the
 * dataset.  Nothing is written if the job has failed.  The function is a `write` callback of struct meg_id_sink, which
 * limits the number of ids in memory for a long text.
 *   ctx  struct encoded_key
 *   ids  the first n ids of ctx; they may end inside a sequence
 */
int meg_preprocess_write_ids(void *ctx, int32_t *ids, int64_t n, struct meg_err *e);

/* Encode w->block into w->current. */
int meg_preprocess_block(struct preprocess_worker *w, struct meg_err *e);

/*
 * Initialize the locks of j, and create j->workers workers.  The first worker uses tok, the others use clones of tok.
 */
struct preprocess_worker *meg_preprocess_workers_new(struct preprocess_job *j, struct meg_tokenizer *tok);
/* Encode and write the lines of one pass over j->in.  Returns 0 or the code of the first failure. */
int meg_preprocess_workers_run(struct preprocess_job *j, struct preprocess_worker *w);
void meg_preprocess_workers_free(struct preprocess_job *j, struct preprocess_worker *w); /* accepts NULL */

/*
 * Check the options, and set *workers to the requested number of threads.  Returns MEG_EUSAGE if an option is missing
 * or invalid, or if append_eod is set but the tokenizer has no EOD token.
 */
int meg_preprocess_check(const struct meg_preprocess_conf *c, const struct meg_tokenizer *tok, int64_t *workers,
                         struct meg_err *e);
