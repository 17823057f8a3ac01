/*
 * Each worker takes the next block of lines and encodes it.  Where its tokens belong is known when all
 * blocks before it are encoded: whoever ends the block that others waited for gives all of them their
 * places, and each worker writes its own.  A few may wait while their worker goes on, so that a slow block
 * holds up nobody.  One worker is the same loop with nothing to wait for.
 *
 * Of a long text not even the tokens are held: when there are many its worker waits for its turn at once,
 * and keeps it while it writes them as they come.  And while one has a long block nobody reads another.
 *
 * With partitions the lines are read once for each of them: partition i has lines i, i + P, ..., and
 * what Megatron-LM first deals into files and then merges comes out in one pass each.
 */
#include "data/preprocess.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/indexed.h"
#include "data/internal.h"
#include "text/input.h"
#include "text/jsonl.h"
#include "text/punkt.h"
#include "text/utf8.h"

enum {
    BLOCK = 1 << 16, /* bytes of lines: with their ids they fit in the caches near a core */
    LONG_BLOCK = 1 << 20,
    HELD = 4, /* blocks of a worker whose tokens may be in memory */
    DOCUMENT_END = -1 /* among the lengths of sequences */
};

/* What is shared.  reading guards in and given; turning guards the others. */
struct job {
    const struct meg_preprocess_conf *c;
    int64_t workers;
    const struct meg_punkt *punkt;      /* NULL: texts stay whole */
    int64_t part;                       /* lines of this partition */
    int32_t eod;                        /* -1: none is added */
    struct meg_indexed_writer **writer; /* [keys] */
    struct meg_input *in;
    pthread_mutex_t reading, turning;
    pthread_cond_t turned;
    int64_t given;         /* blocks read */
    _Atomic int64_t turn;  /* blocks that had their turn */
    struct result **ready; /* [workers * HELD] by ticket: those that wait for it */
    atomic_bool is_over;
    int r; /* the first failure */
    struct meg_err *e;
    double start_s;
    struct meg_progress progress;
    int64_t documents, tokens, nbytes, blank;
};

/* The sequences of one key that are not written yet: lengths, with DOCUMENT_END after those of each
 * document. */
struct encoded {
    struct meg_ids ids, lengths;
    struct result *result;
    struct meg_indexed_writer *writer;
    int64_t written; /* tokens of this block */
    int64_t begun;   /* those of them that belong to the next length */
    int32_t last;    /* length of the sequence that was placed last */
    int64_t at;      /* of the first token in .bin */
};

/* What came of a block, until it is written. */
struct result {
    struct worker *worker;
    int64_t ticket;      /* of the block; -1: there is none */
    struct encoded *out; /* [keys] */
    int64_t documents, tokens, nbytes, blank;
    int r; /* the first failure */
    struct meg_err e;
    bool is_in_vain; /* the work has failed: what is encoded goes nowhere */
};

struct worker {
    struct job *job;
    struct meg_tokenizer *tok;
    pthread_t thread;
    struct meg_block block;
    struct meg_jsonl jsonl;
    struct meg_str repaired;
    struct meg_spans sentences;
    struct result result[HELD], *now; /* now: of the block */
    bool has_turn, is_reader;
    int r; /* the first failure while tokens were written as they came */
    struct meg_err e;
};

static void add_length(struct encoded *out, int64_t n)
{
    meg_ids_reserve(&out->lengths, 1);
    out->lengths.v[out->lengths.n++] = (int32_t)n;
}

static int64_t count(const struct encoded *out)
{
    return out->written + out->ids.n;
}

/* Texts that give no ids are left out. */
static int encode_texts(struct worker *w, const struct meg_span *text, int64_t n,
                        struct encoded *out, struct meg_err *e)
{
    int r;

    for (int64_t i = 0; i < n; i++) {
        int64_t was = count(out);

        if ((r = meg_tokenizer_encode_checked(w->tok, text[i].s, text[i].n, &out->ids, e)) < 0)
            return r;
        if (count(out) > was)
            add_length(out, count(out) - was);
    }
    return MEG_OK;
}

/* The sentences of a long text are never all at hand. */
static int encode_sentences(struct worker *w, const struct meg_span *text, struct encoded *out,
                            struct meg_err *e)
{
    int r = MEG_OK;

    for (int64_t at = 0; at < text->n && r == MEG_OK;) {
        w->sentences.n = 0;
        at += meg_punkt_split(w->job->punkt, text->s + at, text->n - at, &w->sentences);
        r = encode_texts(w, w->sentences.v, w->sentences.n, out, e);
    }
    return r;
}

/* The last text gets the eod.  A list is texts that were split before. */
static int encode_value(struct worker *w, const struct meg_jsonl_value *value, struct encoded *out,
                        struct meg_err *e)
{
    int64_t begin = count(out);
    bool is_split = !w->job->punkt || meg_jsonl_is_list(value);
    int r = is_split ? encode_texts(w, value->v, value->n, out, e)
                     : encode_sentences(w, value->v, out, e);

    if (r < 0)
        return r;
    if (w->job->eod >= 0 && count(out) > begin) {
        if (out->lengths.n == 0) { /* it has its place: one more follows */
            out->begun = out->last;
            add_length(out, out->last);
        }
        meg_ids_reserve(&out->ids, 1);
        out->ids.v[out->ids.n++] = w->job->eod;
        out->lengths.v[out->lengths.n - 1]++;
    }
    add_length(out, DOCUMENT_END);
    w->now->tokens += count(out) - begin;
    return MEG_OK;
}

static int encode_line(struct worker *w, const char *line, int64_t n, struct meg_err *e)
{
    const struct meg_list *keys = &w->job->c->json_keys;
    int r;

    if (w->job->c->replace_invalid && meg_utf8_bad(line, n) >= 0) {
        w->repaired.n = 0;
        meg_utf8_add_replaced(&w->repaired, line, n);
        line = w->repaired.s;
        n = (int64_t)w->repaired.n;
        if (n > MEG_LONGEST_LINE)
            return meg_fail(e, MEG_EFORMAT,
                            "longer than %d MiB with U+FFFD for what is invalid; make several lines of it",
                            MEG_LONGEST_LINE >> 20);
    }
    if ((r = meg_jsonl_read(&w->jsonl, line, n, e)) < 0)
        return r;
    for (int64_t k = 0; k < keys->n; k++) {
        struct meg_err inner;

        if ((r = encode_value(w, &w->jsonl.value[k], &w->now->out[k], &inner)) < 0)
            return meg_fail(e, r, "key \"%s\": %s", keys->v[k], inner.msg);
    }
    w->now->documents++;
    return MEG_OK;
}

static int encode_block(struct worker *w, struct meg_err *e)
{
    const struct job *j = w->job;
    const struct meg_block *b = &w->block;
    const char *line;
    int64_t at = 0, n;

    w->now->documents = w->now->tokens = w->now->blank = 0;
    w->now->nbytes = b->n;
    for (int64_t k = 0; k < j->c->json_keys.n; k++) {
        struct encoded *out = &w->now->out[k];

        out->ids.n = out->lengths.n = out->written = out->begun = 0;
    }
    for (int64_t i = 0; meg_line_next(b, &at, &line, &n); i++) {
        struct meg_err inner;
        int r;

        if (!j->c->keep_sequential_samples && (b->nth + i) % j->c->partitions != j->part)
            continue;
        if (meg_line_is_blank(line, n)) {
            w->now->blank++;
            continue;
        }
        if ((r = encode_line(w, line, n, &inner)) < 0)
            return meg_fail(e, r, "%s, line %lld: %s", b->name, (long long)(b->line + i),
                            inner.msg);
    }
    return MEG_OK;
}

/* A place in .bin for n tokens of a sequence, or behind those of it that were written before. */
static void claim_tokens(struct encoded *out, int64_t n)
{
    int64_t at;

    if (out->result->is_in_vain)
        return;
    at = out->begun > 0 ? meg_indexed_extend(out->writer, (int32_t)n)
                        : meg_indexed_claim(out->writer, (int32_t)n);
    out->at = out->at < 0 ? at : out->at;
}

static void claim(struct encoded *out)
{
    out->at = -1;
    for (int64_t i = 0; i < out->lengths.n; i++) {
        int32_t n = out->lengths.v[i];

        if (n == DOCUMENT_END) {
            if (!out->result->is_in_vain)
                meg_indexed_end_document(out->writer);
        } else {
            claim_tokens(out, n - out->begun);
            out->begun = 0;
            out->last = n;
        }
    }
    out->lengths.n = 0;
}

/* Until so many blocks have their place; the caller holds turning. */
static void wait_for_turn(struct job *j, int64_t turn)
{
    while (j->turn < turn)
        pthread_cond_wait(&j->turned, &j->turning);
}

/* The first n ids are written while the text they come from goes on. */
static void take_ids(struct meg_ids *ids, int64_t n)
{
    struct encoded *out = (struct encoded *)ids;
    struct result *x = out->result;
    struct worker *w = x->worker;
    int64_t whole = out->lengths.n > 0 ? -out->begun : 0; /* sequences are so many ids */

    if (!w->has_turn) {
        pthread_mutex_lock(&w->job->turning);
        wait_for_turn(w->job, x->ticket);
        x->is_in_vain = w->job->r < 0;
        pthread_mutex_unlock(&w->job->turning);
        w->has_turn = true;
    }
    for (int64_t i = 0; i < out->lengths.n; i++)
        whole += out->lengths.v[i] == DOCUMENT_END ? 0 : out->lengths.v[i];
    n = n < whole ? whole : n;
    claim(out);
    if (n > whole)
        claim_tokens(out, n - whole);
    out->begun += n - whole;
    if (!x->is_in_vain) {
        if ((w->r = meg_indexed_narrow(out->writer, ids->v, n, ids->v, &w->e)) == MEG_OK)
            w->r = meg_indexed_put(out->writer, out->at, ids->v, n, &w->e);
        x->is_in_vain = w->r < 0;
    }
    out->written += n;
    ids->n -= n;
    memmove(ids->v, ids->v + n, (size_t)ids->n * sizeof *ids->v);
}

static void say_progress(struct job *j, int64_t before)
{
    double s = meg_now_s() - j->start_s;
    int64_t every = j->c->log_interval;

    if (every != MEG_UNSET && j->documents / every > before / every)
        meg_note("%lld documents (%.1f docs/s, %.2f MB/s), %lld tokens", (long long)j->documents,
                 (double)j->documents / s, (double)j->nbytes / s / 1e6, (long long)j->tokens);
    meg_progress_show(&j->progress, "%lld documents (%.1f docs/s, %.2f MB/s), %lld tokens",
                      (long long)j->documents, (double)j->documents / s,
                      (double)j->nbytes / s / 1e6, (long long)j->tokens);
}

static void place_result(struct job *j, struct result *x)
{
    int64_t before = j->documents;

    for (int64_t k = 0; k < j->c->json_keys.n; k++)
        claim(&x->out[k]);
    j->documents += x->documents;
    j->tokens += x->tokens;
    j->blank += x->blank;
    j->nbytes += x->nbytes;
    say_progress(j, before);
}

/* The first failure ends the work. */
static void fail(struct job *j, int r, const struct meg_err *e)
{
    if (j->r < 0)
        return;
    j->r = meg_fail(j->e, r, "%s", e->msg);
    j->is_over = true;
}

/* A block is encoded: when all those before it are, it has its turn, and those behind it that waited for it. */
static void hand_in(struct job *j, struct result *x)
{
    const int64_t nready = j->workers * HELD;

    pthread_mutex_lock(&j->turning);
    j->ready[x->ticket % nready] = x;
    while ((x = j->ready[j->turn % nready])) {
        if (x->r < 0)
            fail(j, x->r, &x->e);
        x->is_in_vain = j->r < 0;
        if (!x->is_in_vain)
            place_result(j, x);
        j->ready[j->turn % nready] = NULL;
        j->turn++;
    }
    pthread_cond_broadcast(&j->turned);
    pthread_mutex_unlock(&j->turning);
}

/* The ids in the width that they are stored in. */
static int narrow_ids(const struct job *j, struct result *x, struct meg_err *e)
{
    int r = MEG_OK;

    for (int64_t k = 0; k < j->c->json_keys.n && r == MEG_OK; k++) {
        struct meg_ids *ids = &x->out[k].ids;

        r = meg_indexed_narrow(x->out[k].writer, ids->v, ids->n, ids->v, e);
    }
    return r;
}

static void write_result(struct job *j, struct result *x)
{
    struct meg_err e;
    int r = MEG_OK;

    for (int64_t k = 0; k < j->c->json_keys.n && !x->is_in_vain && r == MEG_OK; k++) {
        const struct encoded *out = &x->out[k];

        if (out->ids.n > 0)
            r = meg_indexed_put(out->writer, out->at, out->ids.v, out->ids.n, &e);
    }
    x->ticket = -1;
    if (r < 0) {
        pthread_mutex_lock(&j->turning);
        fail(j, r, &e);
        pthread_mutex_unlock(&j->turning);
    }
}

static void wait_and_write(struct job *j, struct result *x)
{
    pthread_mutex_lock(&j->turning);
    wait_for_turn(j, x->ticket + 1);
    pthread_mutex_unlock(&j->turning);
    write_result(j, x);
}

/* Write what had its turn.  Returns room for the next result: always the same as long as nothing waits. */
static struct result *free_result(struct worker *w)
{
    struct result *unused = NULL, *oldest = NULL;

    for (struct result *x = w->result + HELD; x-- > w->result;) {
        if (x->ticket >= 0 && x->ticket < w->job->turn)
            write_result(w->job, x);
        if (x->ticket < 0)
            unused = x;
        else if (!oldest || x->ticket < oldest->ticket)
            oldest = x;
    }
    if (unused)
        return unused;
    wait_and_write(w->job, oldest);
    return oldest;
}

/* The next block.  Returns as meg_input_next does. */
static int take_block(struct worker *w, struct meg_err *e)
{
    struct job *j = w->job;
    int r = 0;

    pthread_mutex_lock(&j->reading);
    if (!j->is_over) {
        r = meg_input_next(j->in, &w->block, BLOCK, e);
        if (r <= 0)
            j->is_over = true;
        if (r != 0)
            w->now->ticket = j->given++;
    }
    w->is_reader = r > 0 && w->block.n > LONG_BLOCK;
    if (!w->is_reader)
        pthread_mutex_unlock(&j->reading);
    return r;
}

static void free_ids(struct meg_ids *ids)
{
    free(ids->v);
    ids->v = NULL;
    ids->n = ids->cap = 0;
}

static void free_encoded(struct encoded *out)
{
    free_ids(&out->ids);
    free_ids(&out->lengths);
}

/* What a long block needed goes before anybody reads the next one. */
static void end_long_block(struct worker *w)
{
    for (int64_t k = 0; k < w->job->c->json_keys.n; k++)
        free_encoded(&w->now->out[k]);
    free(w->block.s);
    w->block.s = NULL;
    w->block.cap = 0;
    meg_jsonl_free(&w->jsonl);
    meg_str_free(&w->repaired);
    w->is_reader = false;
    pthread_mutex_unlock(&w->job->reading);
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct job *j = w->job;
    int r;

    for (;;) {
        struct result *x = w->now = free_result(w);

        if ((r = take_block(w, &x->e)) == 0)
            break;
        w->r = MEG_OK;
        w->has_turn = x->is_in_vain = false;
        if (r > 0 && (r = encode_block(w, &x->e)) == MEG_OK)
            r = narrow_ids(j, x, &x->e);
        x->r = w->r < 0 ? meg_fail(&x->e, w->r, "%s", w->e.msg) : r;
        hand_in(j, x);
        if (w->is_reader) {
            wait_and_write(j, x);
            end_long_block(w);
        }
    }
    for (struct result *x = w->result; x < w->result + HELD; x++) {
        if (x->ticket >= 0)
            wait_and_write(j, x);
    }
    return NULL;
}

static int run_workers(struct job *j, struct worker *w)
{
    int64_t started = 1;

    j->given = 0;
    j->turn = 0;
    j->is_over = false;
    for (; started < j->workers; started++) {
        if ((errno = pthread_create(&w[started].thread, NULL, work, &w[started])) != 0) {
            meg_warn("only %lld of %lld workers could be started: %s", (long long)started,
                     (long long)j->workers, strerror(errno));
            break;
        }
    }
    work(&w[0]);
    while (--started > 0)
        pthread_join(w[started].thread, NULL);
    return j->r;
}

static struct worker *make_workers(struct job *j, struct meg_tokenizer *tok)
{
    const struct meg_preprocess_conf *c = j->c;
    struct worker *w = meg_new((size_t)j->workers * sizeof *w);

    for (int64_t i = 0; i < j->workers; i++) {
        w[i].job = j;
        w[i].tok = i == 0 ? tok : meg_tokenizer_share(tok);
        w[i].jsonl = (struct meg_jsonl){ .keys = c->json_keys.v, .nkeys = (int)c->json_keys.n,
                                         .replaces_halves = c->replace_invalid,
                                         .remedy = "; --replace-invalid reads U+FFFD for it" };
        for (struct result *x = w[i].result; x < w[i].result + HELD; x++) {
            x->worker = &w[i];
            x->ticket = -1;
            x->out = meg_new((size_t)c->json_keys.n * sizeof *x->out);
            for (int64_t k = 0; k < c->json_keys.n; k++)
                x->out[k] = (struct encoded){ .ids.take = take_ids,
                                              .result = x,
                                              .writer = j->writer[k] };
        }
    }
    return w;
}

static void free_workers(const struct job *j, struct worker *w)
{
    for (int64_t i = 0; w && i < j->workers; i++) {
        if (i > 0)
            meg_tokenizer_close(w[i].tok);
        for (const struct result *x = w[i].result; x < w[i].result + HELD; x++) {
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
}

/* Several passes need files that can be read again. */
static int check_files(const struct meg_input *in, struct meg_err *e)
{
    const char *const *path;
    int64_t n = meg_input_files(in, &path);

    for (int64_t i = 0; i < n; i++) {
        struct stat st;

        if (strcmp(path[i], "-") == 0 || (stat(path[i], &st) == 0 && !S_ISREG(st.st_mode)))
            return meg_fail(e, MEG_EUSAGE,
                            "--partitions reads the input once for each of them: "
                            "'%s' is no regular file; --keep-sequential-samples needs one pass",
                            path[i]);
    }
    return MEG_OK;
}

static int run_part(struct job *j, struct worker *w, struct meg_err *e)
{
    const struct meg_preprocess_conf *c = j->c;
    int r;

    if ((r = meg_input_open(&j->in, c->input.v, (int)c->input.n, e)) < 0)
        return r;
    if (c->partitions > 1 && !c->keep_sequential_samples)
        r = check_files(j->in, e);
    if (r == MEG_OK)
        r = run_workers(j, w);
    meg_input_close(j->in);
    return r;
}

static int open_punkt(struct meg_punkt **out, const struct meg_preprocess_conf *c,
                      struct meg_err *e)
{
    struct meg_str dir = { 0 };
    int r;

    if (!c->punkt_data)
        meg_warn("no --punkt-data: sentences are cut without a list of abbreviations");
    else
        meg_str_printf(&dir, "%s/%s", c->punkt_data, c->lang);
    r = meg_punkt_open(out, dir.s, c->keep_newlines, e);
    meg_str_free(&dir);
    return r;
}

/* The name of key k's dataset, without .bin and .idx. */
static void add_prefix(struct meg_str *s, const struct meg_preprocess_conf *c, int64_t k)
{
    meg_str_printf(s, "%s_%s_%s", c->output_prefix, c->json_keys.v[k],
                   c->split_sentences ? "sentence" : "document");
}

static int create_writers(struct job *j, const struct meg_tokenizer *tok, struct meg_err *e)
{
    enum meg_idx_dtype dtype = meg_idx_dtype_for_vocab(meg_tokenizer_vocab_size(tok));
    int r = MEG_OK;

    for (int64_t k = 0; k < j->c->json_keys.n && r == MEG_OK; k++) {
        struct meg_str prefix = { 0 };

        add_prefix(&prefix, j->c, k);
        r = meg_indexed_create(&j->writer[k], prefix.s, dtype, e);
        meg_str_free(&prefix);
    }
    return r;
}

/* All keys or none of them; while there are bytes to write, older datasets stay. */
static int commit_writers(struct job *j, struct meg_err *e)
{
    int64_t done = 0;
    int r = MEG_OK;

    for (int64_t k = 0; k < j->c->json_keys.n && r == MEG_OK; k++)
        r = meg_indexed_finish(j->writer[k], e);
    if (r < 0)
        return r;
    while (done < j->c->json_keys.n && (r = meg_indexed_commit(&j->writer[done], e)) == MEG_OK)
        done++;
    while (r < 0 && done-- > 0) {
        struct meg_str path = { 0 };

        for (int i = 0; i < 2; i++) {
            path.n = 0;
            add_prefix(&path, j->c, done);
            meg_str_printf(&path, i ? ".bin" : ".idx");
            unlink(path.s);
        }
        meg_str_free(&path);
    }
    return r;
}

int meg_preprocess(const struct meg_preprocess_conf *c, struct meg_tokenizer *tok,
                   struct meg_err *e)
{
    struct job j = { .c = c, .e = e, .eod = c->append_eod ? meg_tokenizer_eod(tok) : -1 };
    int64_t passes = c->keep_sequential_samples ? 1 : c->partitions;
    struct meg_punkt *punkt = NULL;
    struct worker *w = NULL;
    int r;

    if ((r = meg_preprocess_check(c, tok, &j.workers, e)) < 0)
        return r;
    if (c->split_sentences && (r = open_punkt(&punkt, c, e)) < 0)
        return r;
    j.punkt = punkt;
    j.start_s = meg_now_s();
    j.writer = meg_new((size_t)c->json_keys.n * sizeof(struct meg_indexed_writer *));
    pthread_mutex_init(&j.reading, NULL);
    pthread_mutex_init(&j.turning, NULL);
    pthread_cond_init(&j.turned, NULL);
    meg_progress_init(&j.progress, c->log_interval == MEG_UNSET ? 10 : 0);
    if ((r = create_writers(&j, tok, e)) < 0)
        goto out;
    j.ready = meg_new((size_t)(j.workers * HELD) * sizeof(struct result *));
    w = make_workers(&j, tok);
    for (; j.part < passes && r == MEG_OK; j.part++)
        r = run_part(&j, w, e);
    if (r == MEG_OK)
        r = commit_writers(&j, e);
    meg_progress_end(&j.progress);
    if (r < 0)
        goto out;
    if (j.blank > 0)
        meg_warn("%lld blank line%s passed over", (long long)j.blank,
                 j.blank == 1 ? " was" : "s were");
    meg_note("%lld documents, %lld tokens, %.1f s, %.2f MB/s", (long long)j.documents,
             (long long)j.tokens, meg_now_s() - j.start_s,
             (double)j.nbytes / (meg_now_s() - j.start_s) / 1e6);
out:
    for (int64_t k = 0; k < c->json_keys.n; k++)
        meg_indexed_abandon(j.writer[k]);
    free(j.writer);
    free(j.ready);
    free_workers(&j, w);
    meg_punkt_close(punkt);
    pthread_mutex_destroy(&j.reading);
    pthread_mutex_destroy(&j.turning);
    pthread_cond_destroy(&j.turned);
    return r;
}
