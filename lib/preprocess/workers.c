/*
 * workers.c - parallel encoding with output in input order
 *
 * Each worker reads the next block of lines, encodes it and publishes it.  The offset of a block's tokens in the output
 * is known once all earlier blocks are encoded.  Therefore, a worker that publishes the earliest missing block reserves
 * offsets for this block and for the published blocks directly after it.  Each worker writes its own blocks.  A worker
 * can keep RESULTS_PER_WORKER encoded blocks until earlier blocks are encoded.  Therefore, a slow block does not stop
 * the other workers at once.
 *
 * A worker does not keep all tokens of a long text in memory.  Once many tokens are buffered, the worker waits until
 * all earlier blocks have offsets.  From this time on, it writes tokens while it encodes the rest of the text.  While
 * one worker has a block of more than LONG_BLOCK bytes, no other worker reads a block.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "preprocess/internal.h"

enum {
    BLOCK = 1 << 16,     /* target size of a block in bytes; a block of this size and its ids fit in the L2 cache */
    LONG_BLOCK = 1 << 20 /* size in bytes above which a block is long */
};

/*
 * Reserve space in .bin for n tokens of a new sequence or, if out->partial > 0, of a partially written sequence.  If
 * out->offset is negative, set it to the byte offset of the reserved space.  Does nothing if the block is discarded.
 */
static void reserve_tokens(struct encoded_key *out, int64_t n)
{
    int64_t at;

    if (out->result->is_discarded)
        return;
    at = out->partial > 0 ? meg_indexed_extend(out->writer, (int32_t)n) : meg_indexed_reserve(out->writer, (int32_t)n);
    out->offset = out->offset < 0 ? at : out->offset;
}

/* Reserve space in .bin for the complete sequences of *out, and end their documents. */
static void reserve_sequences(struct encoded_key *out)
{
    out->offset = -1;
    for (int64_t i = 0; i < out->lengths.n; i++) {
        int32_t n = out->lengths.v[i];

        if (n == DOCUMENT_END) {
            if (!out->result->is_discarded)
                meg_indexed_end_document(out->writer);
        } else {
            reserve_tokens(out, n - out->partial);
            out->partial = 0;
            out->last_length = n;
        }
    }
    out->lengths.n = 0;
}

/* Wait until all blocks with lower tickets have offsets; the caller holds order_lock. */
static void wait_for_ticket(struct preprocess_job *j, int64_t ticket)
{
    while (j->next_ticket < ticket)
        pthread_cond_wait(&j->order_changed, &j->order_lock);
}

int meg_preprocess_write_ids(void *ctx, int32_t *ids, int64_t n, struct meg_err *e)
{
    struct encoded_key *out = ctx;
    struct block_result *x = out->result;
    struct preprocess_worker *w = x->worker;
    int64_t complete = out->lengths.n > 0 ? -out->partial : 0; /* how many of the n ids are in complete sequences */
    int r;

    if (!w->holds_order) {
        pthread_mutex_lock(&w->job->order_lock);
        wait_for_ticket(w->job, x->ticket);
        x->is_discarded = w->job->r < 0;
        pthread_mutex_unlock(&w->job->order_lock);
        w->holds_order = true;
    }
    for (int64_t i = 0; i < out->lengths.n; i++)
        complete += out->lengths.v[i] == DOCUMENT_END ? 0 : out->lengths.v[i];
    MEG_ASSERT(n >= complete);
    reserve_sequences(out);
    if (n > complete)
        reserve_tokens(out, n - complete);
    out->partial += n - complete;
    out->written += n;
    if (x->is_discarded)
        return 0;
    if ((r = meg_indexed_convert(out->writer, ids, n, ids, e)) < 0)
        return r;
    return meg_indexed_pwrite(out->writer, out->offset, ids, n, e);
}

static void report_progress(struct preprocess_job *j, int64_t before)
{
    double s = meg_now_s() - j->start_s;
    int64_t every = j->c->log_interval;

    if (every != MEG_UNSET && j->documents / every > before / every)
        meg_info("%" PRId64 " documents (%.1f docs/s, %.2f MB/s), %" PRId64 " tokens", j->documents,
                 (double)j->documents / s, (double)j->nbytes / s / 1e6, j->tokens);
    meg_progress_show(&j->progress, "%" PRId64 " documents (%.1f docs/s, %.2f MB/s), %" PRId64 " tokens", j->documents,
                      (double)j->documents / s, (double)j->nbytes / s / 1e6, j->tokens);
}

/* Reserve the offsets of a block, and add its counts to the counts of the job. */
static void commit_result(struct preprocess_job *j, struct block_result *x)
{
    int64_t before = j->documents;

    for (int64_t k = 0; k < j->c->json_keys.n; k++)
        reserve_sequences(&x->out[k]);
    j->documents += x->documents;
    j->tokens += x->tokens;
    j->blank += x->blank;
    j->nbytes += x->nbytes;
    report_progress(j, before);
}

/* Record the first failure, and stop reading input. */
static void fail(struct preprocess_job *j, int r, const struct meg_err *e)
{
    if (j->r < 0)
        return;
    j->r = meg_fail(j->e, r, "%s", e->msg);
    __atomic_store_n(&j->is_input_done, true, __ATOMIC_SEQ_CST);
}

/*
 * Publish an encoded block.  If all earlier blocks have offsets, commit this block and the published blocks that follow
 * it without a gap.  A block that failed fails the job.  After the job has failed, blocks are discarded instead of
 * committed.
 */
static void publish_result(struct preprocess_job *j, struct block_result *x)
{
    const int64_t nready = j->workers * RESULTS_PER_WORKER;

    pthread_mutex_lock(&j->order_lock);
    j->ready[x->ticket % nready] = x;
    while ((x = j->ready[j->next_ticket % nready])) {
        if (x->r < 0)
            fail(j, x->r, &x->e);
        x->is_discarded = j->r < 0;
        if (!x->is_discarded)
            commit_result(j, x);
        j->ready[j->next_ticket % nready] = NULL;
        __atomic_store_n(&j->next_ticket, j->next_ticket + 1, __ATOMIC_SEQ_CST);
    }
    pthread_cond_broadcast(&j->order_changed);
    pthread_mutex_unlock(&j->order_lock);
}

/* Convert the ids of a block in place to the data type of the output. */
static int convert_ids(const struct preprocess_job *j, struct block_result *x, struct meg_err *e)
{
    int r = 0;

    for (int64_t k = 0; k < j->c->json_keys.n && r == 0; k++) {
        struct meg_ids *ids = &x->out[k].ids;

        r = meg_indexed_convert(x->out[k].writer, ids->v, ids->n, ids->v, e);
    }
    return r;
}

static void write_result(struct preprocess_job *j, struct block_result *x)
{
    struct meg_err e;
    int r = 0;

    for (int64_t k = 0; k < j->c->json_keys.n && !x->is_discarded && r == 0; k++) {
        const struct encoded_key *out = &x->out[k];

        if (out->ids.n > 0)
            r = meg_indexed_pwrite(out->writer, out->offset, out->ids.v, out->ids.n, &e);
    }
    x->ticket = -1;
    if (r < 0) {
        pthread_mutex_lock(&j->order_lock);
        fail(j, r, &e);
        pthread_mutex_unlock(&j->order_lock);
    }
}

static void wait_and_write(struct preprocess_job *j, struct block_result *x)
{
    pthread_mutex_lock(&j->order_lock);
    wait_for_ticket(j, x->ticket + 1);
    pthread_mutex_unlock(&j->order_lock);
    write_result(j, x);
}

/*
 * Write the committed blocks of a worker, and return a free result slot.  If several slots are free, return the first
 * one, since its buffers are probably in the cache.  If no slot is free, wait for the offsets of the oldest block and
 * write this block.
 */
static struct block_result *free_slot_for_block(struct preprocess_worker *w)
{
    struct block_result *unused = NULL, *oldest = w->result;

    for (struct block_result *x = w->result + RESULTS_PER_WORKER; x-- > w->result;) {
        if (x->ticket >= 0 && x->ticket < __atomic_load_n(&w->job->next_ticket, __ATOMIC_SEQ_CST))
            write_result(w->job, x);
        if (x->ticket < 0)
            unused = x;
        else if (x->ticket < oldest->ticket)
            oldest = x;
    }
    if (unused)
        return unused;
    wait_and_write(w->job, oldest);
    return oldest;
}

/*
 * Read the next block.  Return the result of meg_block_reader_next, or 0 if reading has stopped.  After reading a long
 * block, keep read_lock.
 */
static int read_block(struct preprocess_worker *w, struct meg_err *e)
{
    struct preprocess_job *j = w->job;
    int r = 0;

    pthread_mutex_lock(&j->read_lock);
    if (!__atomic_load_n(&j->is_input_done, __ATOMIC_SEQ_CST)) {
        r = meg_block_reader_next(j->in, &w->block, BLOCK, e);
        if (r <= 0)
            __atomic_store_n(&j->is_input_done, true, __ATOMIC_SEQ_CST);
        if (r != 0)
            w->current->ticket = j->blocks_read++;
    }
    w->holds_read_lock = r > 0 && w->block.n > LONG_BLOCK;
    if (!w->holds_read_lock)
        pthread_mutex_unlock(&j->read_lock);
    return r;
}

static void free_ids(struct meg_ids *ids)
{
    free(ids->v);
    ids->v = NULL;
    ids->n = ids->cap = 0;
}

static void free_encoded(struct encoded_key *out)
{
    free_ids(&out->ids);
    free_ids(&out->lengths);
}

/* Free the buffers of a long block, and let other workers read blocks again. */
static void free_long_block(struct preprocess_worker *w)
{
    for (int64_t k = 0; k < w->job->c->json_keys.n; k++)
        free_encoded(&w->current->out[k]);
    free(w->block.s);
    w->block.s = NULL;
    w->block.cap = 0;
    meg_jsonl_free(&w->jsonl);
    meg_str_free(&w->repaired);
    w->holds_read_lock = false;
    pthread_mutex_unlock(&w->job->read_lock);
}

static void *work(void *arg)
{
    struct preprocess_worker *w = arg;
    struct preprocess_job *j = w->job;
    int r;

    for (;;) {
        struct block_result *x = w->current = free_slot_for_block(w);

        if ((r = read_block(w, &x->e)) == 0)
            break;
        w->holds_order = false;
        if (r > 0 && (r = meg_preprocess_block(w, &x->e)) == 0)
            r = convert_ids(j, x, &x->e);
        x->r = r;
        publish_result(j, x);
        if (w->holds_read_lock) {
            wait_and_write(j, x);
            free_long_block(w);
        }
    }
    for (struct block_result *x = w->result; x < w->result + RESULTS_PER_WORKER; x++) {
        if (x->ticket >= 0)
            wait_and_write(j, x);
    }
    return NULL;
}

int meg_preprocess_workers_run(struct preprocess_job *j, struct preprocess_worker *w)
{
    int64_t started = 1;

    j->blocks_read = 0;
    j->next_ticket = 0;
    j->is_input_done = false;
    for (; started < j->workers; started++) {
        if ((errno = pthread_create(&w[started].thread, NULL, work, &w[started])) != 0) {
            meg_warn("only %" PRId64 " of %" PRId64 " workers could be started: %s", started, j->workers,
                     strerror(errno));
            break;
        }
    }
    work(&w[0]);
    while (--started > 0)
        pthread_join(w[started].thread, NULL);
    return j->r;
}

struct preprocess_worker *meg_preprocess_workers_new(struct preprocess_job *j, struct meg_tokenizer *tok)
{
    const struct meg_preprocess_conf *c = j->c;
    struct preprocess_worker *w = meg_new((size_t)j->workers * sizeof *w);

    pthread_mutex_init(&j->read_lock, NULL);
    pthread_mutex_init(&j->order_lock, NULL);
    pthread_cond_init(&j->order_changed, NULL);
    j->ready = meg_new((size_t)(j->workers * RESULTS_PER_WORKER) * sizeof(struct block_result *));
    for (int64_t i = 0; i < j->workers; i++) {
        w[i].job = j;
        w[i].tok = i == 0 ? tok : meg_tokenizer_clone(tok);
        w[i].jsonl = (struct meg_jsonl){ .keys = c->json_keys.v,
                                         .nkeys = (int)c->json_keys.n,
                                         .replaces_lone_surrogates = c->replace_invalid,
                                         .hint = "; use --replace-invalid to replace it with U+FFFD" };
        for (struct block_result *x = w[i].result; x < w[i].result + RESULTS_PER_WORKER; x++) {
            x->worker = &w[i];
            x->ticket = -1;
            x->out = meg_new((size_t)c->json_keys.n * sizeof *x->out);
            for (int64_t k = 0; k < c->json_keys.n; k++)
                x->out[k] = (struct encoded_key){ .result = x, .writer = j->writer[k] };
        }
    }
    return w;
}

void meg_preprocess_workers_free(struct preprocess_job *j, struct preprocess_worker *w)
{
    if (!w)
        return;
    for (int64_t i = 0; i < j->workers; i++) {
        if (i > 0)
            meg_tokenizer_close(w[i].tok);
        for (const struct block_result *x = w[i].result; x < w[i].result + RESULTS_PER_WORKER; x++) {
            for (int64_t k = 0; k < j->c->json_keys.n; k++)
                free_encoded(&x->out[k]);
            free(x->out);
        }
        free(w[i].block.s);
        meg_jsonl_free(&w[i].jsonl);
        meg_str_free(&w[i].repaired);
        free(w[i].sentences.v);
    }
    free(w);
    free(j->ready);
    pthread_mutex_destroy(&j->read_lock);
    pthread_mutex_destroy(&j->order_lock);
    pthread_cond_destroy(&j->order_changed);
}
