/* encode.c - encode a block of JSON lines into token ids and sequence lengths. */
#include <inttypes.h>
#include "base/mem.h"
#include "preprocess/internal.h"
#include "unicode/utf8.h"

static void add_length(struct encoded_key *out, int64_t n)
{
    meg_ids_add(&out->lengths, (int32_t)n);
}

static int64_t num_ids(const struct encoded_key *out)
{
    return out->written + out->ids.n;
}

/* Encode n texts, each as one sequence.  A text without ids is skipped. */
static int encode_texts(struct preprocess_worker *w, const struct meg_span *text, int64_t n, struct encoded_key *out,
                        struct meg_err *e)
{
    int r;

    for (int64_t i = 0; i < n; i++) {
        const struct meg_id_sink sink = { out, meg_preprocess_write_ids };
        int64_t was = num_ids(out);

        if ((r = meg_tokenizer_encode_to_sink(w->tok, text[i].s, text[i].n, &out->ids, &sink, e)) < 0)
            return r;
        if (num_ids(out) > was)
            add_length(out, num_ids(out) - was);
    }
    return 0;
}

/*
 * Split a text into sentences, and encode the sentences.  The text is split in chunks, to limit the number of sentences
 * in memory.
 */
static int encode_sentences(struct preprocess_worker *w, const struct meg_span *text, struct encoded_key *out,
                            struct meg_err *e)
{
    int r = 0;

    for (int64_t at = 0; at < text->n && r == 0;) {
        w->sentences.n = 0;
        at += meg_punkt_split(w->job->punkt, text->s + at, text->n - at, &w->sentences);
        r = encode_texts(w, w->sentences.v, w->sentences.n, out, e);
    }
    return r;
}

/*
 * Encode the value of one key as a document.  The texts of a list are not split into sentences.  If the job appends an
 * EOD id, it becomes the last id of the document's last sequence.  A document without ids gets no EOD id.
 */
static int encode_value(struct preprocess_worker *w, const struct meg_jsonl_value *value, struct encoded_key *out,
                        struct meg_err *e)
{
    int64_t begin = num_ids(out);
    bool is_split = !w->job->punkt || meg_jsonl_is_list(value);
    int r = is_split ? encode_texts(w, value->strings, value->n, out, e) : encode_sentences(w, value->strings, out, e);

    if (r < 0)
        return r;
    if (w->job->eod >= 0 && num_ids(out) > begin) {
        if (out->lengths.n == 0) { /* all sequences already have offsets: extend the last one */
            out->partial = out->last_length;
            add_length(out, out->last_length);
        }
        meg_ids_add(&out->ids, w->job->eod);
        out->lengths.v[out->lengths.n - 1]++;
    }
    add_length(out, DOCUMENT_END);
    w->current->tokens += num_ids(out) - begin;
    return 0;
}

static int encode_line(struct preprocess_worker *w, const char *line, int64_t n, struct meg_err *e)
{
    const struct meg_str_list *keys = &w->job->c->json_keys;
    int r;

    if (w->job->c->replace_invalid && meg_utf8_find_invalid(line, n) >= 0) {
        w->repaired.n = 0;
        meg_utf8_add_replaced(&w->repaired, line, n);
        line = w->repaired.s;
        n = (int64_t)w->repaired.n;
        if (n > MEG_MAX_LINE_BYTES)
            return meg_fail(e, MEG_EFORMAT,
                            "the line is longer than %d MiB after invalid bytes are replaced with U+FFFD; split the "
                            "line",
                            MEG_MAX_LINE_BYTES >> 20);
    }
    if ((r = meg_jsonl_read(&w->jsonl, line, n, e)) < 0)
        return r;
    for (int64_t k = 0; k < keys->n; k++) {
        struct meg_err inner;

        if ((r = encode_value(w, &w->jsonl.value[k], &w->current->out[k], &inner)) == MEG_EFORMAT)
            return meg_fail(e, r, "key \"%s\": %s", keys->v[k], inner.msg);
        if (r < 0) /* an output file could not be written */
            return meg_fail(e, r, "%s", inner.msg);
    }
    w->current->documents++;
    return 0;
}

int meg_preprocess_block(struct preprocess_worker *w, struct meg_err *e)
{
    const struct preprocess_job *j = w->job;
    const struct meg_line_block *b = &w->block;
    const char *line;
    int64_t at = 0, n;

    w->current->documents = w->current->tokens = w->current->blank = 0;
    w->current->nbytes = b->n;
    for (int64_t k = 0; k < j->c->json_keys.n; k++) {
        struct encoded_key *out = &w->current->out[k];

        out->ids.n = out->lengths.n = out->written = out->partial = 0;
    }
    for (int64_t i = 0; meg_line_block_next(b, &at, &line, &n); i++) {
        struct meg_err inner;
        int r;

        if (b->first_line + i < j->first_line || (b->first_line + i) % j->partitions != j->partition)
            continue;
        if (meg_line_is_blank(line, n)) {
            w->current->blank++;
            continue;
        }
        if ((r = encode_line(w, line, n, &inner)) == MEG_EFORMAT) {
            r = meg_fail(e, r, "%s: line %" PRId64 ": %s", b->name, b->first_line_in_file + i, inner.msg);
            return meg_line_block_explain(r, b, e);
        }
        if (r < 0)
            return meg_fail(e, r, "%s", inner.msg);
    }
    return 0;
}
