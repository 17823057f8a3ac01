/*
 * preprocess.c - run the passes over the input and write the datasets; workers.c encodes the lines.
 *
 * Megatron-LM divides the lines among P partition files, encodes each file, and merges the results.  Here the input is
 * read once for each partition instead: pass i encodes lines i, i + P, ..., counted from 0.  If there are at most P
 * lines, each partition has at most one line, and the output has the order of the input.  In this case, there are only
 * two passes: the second one encodes all lines except the first.
 */
#include "preprocess/preprocess.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "preprocess/internal.h"

/* Return MEG_EUSAGE unless all inputs are regular files, which several passes can read. */
static int check_files(const struct meg_block_reader *in, struct meg_err *e)
{
    const char *const *path;
    int64_t n = meg_block_reader_files(in, &path);

    for (int64_t i = 0; i < n; i++) {
        struct stat st;

        if (strcmp(path[i], "-") == 0 || (stat(path[i], &st) == 0 && !S_ISREG(st.st_mode)))
            return meg_fail(e, MEG_EUSAGE,
                            "--partitions reads the input once per partition, but '%s' is not a regular file; use "
                            "regular files, or --keep-sequential-samples, which reads the input once",
                            path[i]);
    }
    return 0;
}

static int run_pass(struct preprocess_job *j, struct preprocess_worker *w, struct meg_err *e)
{
    const struct meg_preprocess_conf *c = j->c;
    int r;

    if ((r = meg_block_reader_open(&j->in, c->input.v, (int)c->input.n, e)) < 0)
        return r;
    if (j->partitions > 1)
        r = check_files(j->in, e);
    if (r == 0)
        r = meg_preprocess_workers_run(j, w);
    j->lines = meg_block_reader_lines(j->in);
    meg_block_reader_close(j->in);
    return r;
}

static int run_passes(struct preprocess_job *j, struct preprocess_worker *w, struct meg_err *e)
{
    int r = run_pass(j, w, e);

    if (r == 0 && j->partitions > 1 && j->lines <= j->partitions) {
        j->partitions = 1;
        j->first_line = 1;
        return run_pass(j, w, e);
    }
    for (j->partition = 1; j->partition < j->partitions && r == 0; j->partition++)
        r = run_pass(j, w, e);
    return r;
}

static int open_punkt(struct meg_punkt **out, const struct meg_preprocess_conf *c, struct meg_err *e)
{
    struct meg_str dir = { 0 };
    int r;

    if (!c->punkt_data)
        meg_warn("--punkt-data is not set; splitting sentences without a list of abbreviations");
    else
        meg_str_printf(&dir, "%s/%s", c->punkt_data, c->lang);
    r = meg_punkt_open(out, dir.s, c->keep_newlines, e);
    meg_str_free(&dir);
    return r;
}

static int create_writers(struct preprocess_job *j, const struct meg_tokenizer *tok, struct meg_err *e)
{
    enum meg_idx_dtype dtype = meg_idx_dtype_for_vocab(meg_tokenizer_vocab_size(tok));
    int r = 0;

    for (int64_t k = 0; k < j->c->json_keys.n && r == 0; k++) {
        struct meg_str prefix = { 0 };

        meg_str_printf(&prefix, "%s_%s_%s", j->c->output_prefix, j->c->json_keys.v[k],
                       j->c->split_sentences ? "sentence" : "document");
        r = meg_indexed_create(&j->writer[k], prefix.s, dtype, e);
        meg_str_free(&prefix);
    }
    return r;
}

int meg_preprocess(const struct meg_preprocess_conf *c, struct meg_tokenizer *tok, struct meg_err *e)
{
    struct preprocess_job j = { .c = c, .e = e, .eod = c->append_eod ? meg_tokenizer_eod(tok) : -1 };
    struct meg_punkt *punkt = NULL;
    struct preprocess_worker *w = NULL;
    int r;

    if ((r = meg_preprocess_check(c, tok, &j.workers, e)) < 0)
        return r;
    if (c->split_sentences && (r = open_punkt(&punkt, c, e)) < 0)
        return r;
    j.punkt = punkt;
    j.partitions = c->keep_sequential_samples ? 1 : c->partitions;
    j.start_s = meg_now_s();
    j.writer = meg_new((size_t)c->json_keys.n * sizeof(struct meg_indexed_writer *));
    meg_progress_init(&j.progress, c->log_interval == MEG_UNSET ? 10 : 0);
    if ((r = create_writers(&j, tok, e)) < 0)
        goto out;
    w = meg_preprocess_workers_new(&j, tok);
    r = run_passes(&j, w, e);
    if (r == 0)
        r = meg_indexed_commit(j.writer, (int)c->json_keys.n, e);
    meg_progress_end(&j.progress);
    if (r < 0)
        goto out;
    if (j.blank > 0)
        meg_warn("skipped %" PRId64 " blank line%s", j.blank, j.blank == 1 ? "" : "s");
    meg_info("%" PRId64 " documents, %" PRId64 " tokens, %.1f s, %.2f MB/s", j.documents, j.tokens,
             meg_now_s() - j.start_s, (double)j.nbytes / (meg_now_s() - j.start_s) / 1e6);
out:
    for (int64_t k = 0; k < c->json_keys.n; k++)
        meg_indexed_abandon(j.writer[k]);
    free(j.writer);
    meg_preprocess_workers_free(&j, w);
    meg_punkt_close(punkt);
    return r;
}
