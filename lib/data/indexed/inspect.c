/* inspect.c - print a token dataset: its counts and types (--info), or its documents as ids and text (--decode). */
#include "data/indexed/inspect.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/num.h"
#include "data/indexed/indexed.h"
#include "io/json.h"

const struct meg_opt meg_inspect_opts[] = {
    { "decode", 0, MEG_LIST(struct meg_inspect_conf, decode), "PREFIX [FIRST[:COUNT]]...", NULL,
      "print the documents of dataset PREFIX: all of them or, with FIRST[:COUNT], COUNT documents (default: 1) from "
      "document FIRST" },
    { "info", 0, MEG_STR(struct meg_inspect_conf, info), "PREFIX", NULL,
      "print statistics of dataset PREFIX: dtype, numbers of documents, sequences and tokens, and the mean and maximum "
      "length of documents and sequences in tokens" },
    { "explain", 0, MEG_LIST(struct meg_inspect_conf, explain), "PATH [TEXT]...", NULL,
      "describe the tokenizer in the directory or file PATH: size, added tokens and the files that name them, tokens "
      "before and after "
      "a "
      "text, prefix space, normalization, special ids, contradictions between the files, and the ids of TEXT" },
    { "json", 0, MEG_BOOL(struct meg_inspect_conf, json), NULL, "no",
      "print JSON; with --info and --explain: one object; with --decode: one object per document, including its token "
      "ids" },
    { 0 }
};

/* ---- --info ---- */

struct length_stats {
    int64_t n, empty, longest;
};

static void add_length(struct length_stats *all, int64_t length)
{
    all->n++;
    all->empty += length == 0;
    all->longest = length > all->longest ? length : all->longest;
}

static json_t *mean(const struct length_stats *all, int64_t tokens)
{
    return all->n ? json_real((double)tokens / (double)all->n) : json_null();
}

static json_t *describe(const struct meg_indexed *d)
{
    const int64_t tokens = d->tokens;
    struct length_stats seq = { 0 }, doc = { 0 };
    json_t *o = json_object();

    for (int64_t i = 0; i < d->documents; i++) {
        int64_t length = 0;

        for (int64_t s = meg_indexed_document(d, i); s < meg_indexed_document(d, i + 1); s++) {
            add_length(&seq, meg_indexed_length(d, s));
            length += meg_indexed_length(d, s);
        }
        add_length(&doc, length);
    }
    json_object_set_new(o, "path", json_string(d->prefix));
    json_object_set_new(o, "format", json_string(d->is_legacy ? "legacy" : "mmap"));
    json_object_set_new(o, "dtype", json_string(meg_idx_dtype_name(d->dtype)));
    json_object_set_new(o, "modes", json_boolean(d->has_modes));
    json_object_set_new(o, "documents", json_integer(doc.n));
    json_object_set_new(o, "empty_documents", json_integer(doc.empty));
    json_object_set_new(o, "sequences", json_integer(seq.n));
    json_object_set_new(o, "tokens", json_integer(tokens));
    json_object_set_new(o, "longest_document_tokens", json_integer(doc.longest));
    json_object_set_new(o, "mean_document_tokens", mean(&doc, tokens));
    json_object_set_new(o, "longest_sequence_tokens", json_integer(seq.longest));
    json_object_set_new(o, "mean_sequence_tokens", mean(&seq, tokens));
    return o;
}

static void print_info(const json_t *o, FILE *out)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)o, key, v)
    {
        fprintf(out, "%-25s", key);
        if (json_is_string(v))
            fprintf(out, "%s\n", json_string_value(v));
        else if (json_is_boolean(v))
            fputs(json_is_true(v) ? "yes\n" : "no\n", out);
        else if (json_is_integer(v))
            fprintf(out, "%" PRId64 "\n", (int64_t)json_integer_value(v));
        else if (json_is_real(v))
            fprintf(out, "%.1f\n", json_real_value(v));
        else
            fputs("-\n", out);
    }
}

int meg_inspect_info(const struct meg_inspect_conf *c, FILE *out, struct meg_err *e)
{
    struct meg_indexed *d;
    json_t *o;
    int r;

    if ((r = meg_indexed_open(&d, c->info, e)) < 0)
        return r;
    o = describe(d);
    if (c->json) {
        struct meg_str line = { 0 };

        meg_json_dump(o, 0, &line);
        fprintf(out, "%s\n", line.s);
        meg_str_free(&line);
    } else {
        print_info(o, out);
    }
    json_decref(o);
    meg_indexed_close(d);
    return 0;
}

/* ---- --decode ---- */

/*
 * Set [*begin, *end) to the range of documents that `text`, FIRST or FIRST:COUNT, selects.  If `text` is NULL, the
 * range is all ndoc documents.  The range ends at ndoc if COUNT is too large.  Returns MEG_EUSAGE if `text` is invalid
 * or document FIRST does not exist.
 */
static int parse_range(const char *text, int64_t ndoc, int64_t *begin, int64_t *end, struct meg_err *e)
{
    char *first, *colon;
    int64_t n = 1;
    bool is_good;

    *begin = 0;
    *end = ndoc;
    if (!text)
        return 0;
    first = meg_strdup(text);
    if ((colon = strchr(first, ':')))
        *colon++ = 0;
    is_good = meg_parse_i64(first, begin) && *begin >= 0 && (!colon || (meg_parse_i64(colon, &n) && n >= 0));
    free(first);
    if (!is_good)
        return meg_fail(e, MEG_EUSAGE, "--decode: '%s' is not FIRST or FIRST:COUNT", text);
    if (*begin >= ndoc)
        return meg_fail(e, MEG_EUSAGE,
                        "--decode: document %" PRId64 " does not exist: the dataset has %" PRId64
                        " documents, numbered from 0",
                        *begin, ndoc);
    *end = n < ndoc - *begin ? *begin + n : ndoc;
    return 0;
}

/*
 * Print a document as a JSON object: its number, its ids, the lengths of its sequences and, unless it is NULL, `text`.
 */
static void print_json(FILE *out, int64_t doc, const struct meg_ids *ids, const struct meg_ids *lengths,
                       const struct meg_str *text)
{
    struct meg_str line = { 0 };

    meg_json_begin(&line, '{');
    meg_json_set_i64(&line, "document", doc);
    meg_json_add_key(&line, "ids");
    meg_json_add_ids(&line, ids->v, ids->n);
    meg_json_add_key(&line, "lengths");
    meg_json_add_ids(&line, lengths->v, lengths->n);
    if (text) {
        meg_json_add_key(&line, "text");
        meg_json_add_string(&line, text->s ? text->s : "", text->n);
    }
    meg_json_end(&line, '}');
    fprintf(out, "%s\n", line.s);
    meg_str_free(&line);
}

static int read_document(const struct meg_indexed *d, int64_t doc, struct meg_ids *ids, struct meg_ids *lengths,
                         struct meg_err *e)
{
    ids->n = lengths->n = 0;
    for (int64_t s = meg_indexed_document(d, doc); s < meg_indexed_document(d, doc + 1); s++) {
        const int32_t n = meg_indexed_length(d, s);
        int r;

        meg_ids_reserve(ids, n);
        meg_ids_add(lengths, n);
        if ((r = meg_indexed_get(d, s, 0, n, ids->v + ids->n, e)) < 0)
            return r;
        ids->n += n;
    }
    return 0;
}

int meg_inspect_decode(const struct meg_inspect_conf *c, const struct meg_tokenizer *tok, FILE *out, struct meg_err *e)
{
    struct meg_ids ids = { 0 }, lengths = { 0 };
    struct meg_str text = { 0 };
    struct meg_indexed *d = NULL;
    struct meg_err inner;
    int64_t i, end;
    int r;

    if ((r = meg_indexed_open(&d, c->decode.v[0], e)) < 0 ||
        (r = parse_range(c->decode.n > 1 ? c->decode.v[1] : NULL, d->documents, &i, &end, e)) < 0)
        goto out;
    for (; i < end; i++) {
        if ((r = read_document(d, i, &ids, &lengths, e)) < 0)
            goto out;
        text.n = 0;
        if (tok && (r = meg_tokenizer_decode(tok, ids.v, ids.n, &text, &inner)) < 0) {
            r = meg_fail(e, r, "%s.bin: document %" PRId64 ": %s", d->prefix, i, inner.msg);
            goto out;
        }
        if (c->json) {
            print_json(out, i, &ids, &lengths, tok ? &text : NULL);
        } else {
            fwrite(text.s, 1, text.n, out);
            putc('\n', out);
        }
    }
out:
    free(ids.v);
    free(lengths.v);
    meg_str_free(&text);
    meg_indexed_close(d);
    return r;
}
