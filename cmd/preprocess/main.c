/* meg-preprocess - turn JSON lines into token datasets, and look at those. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/num.h"
#include "data/indexed.h"
#include "io/json.h"
#include "option/opt.h"
#include "preprocess/preprocess.h"
#include "tokenizer/tokenizer.h"
#include "unicode/char_class.h"

struct look {
    const char *info;
    struct meg_str_list decode; /* PREFIX [FIRST[:COUNT]] */
    bool json;
};
static const struct meg_opt inspect_opts[] = {
    { "decode", 0, MEG_LIST(struct look, decode), "PREFIX...", NULL,
      "print the documents of a dataset; PREFIX FIRST[:COUNT] prints some" },
    { "info", 0, MEG_STR(struct look, info), "PREFIX", NULL, "print what a dataset holds: counts, type, lengths" },
    { "json", 0, MEG_BOOL(struct look, json), NULL, "no",
      "print --info as a JSON object, and --decode as one a document, with its ids" },
    { 0 }
};

/* ---- --info ---- */

struct lengths {
    int64_t n, empty, longest;
};

static void count(struct lengths *all, int64_t length)
{
    all->n++;
    all->empty += length == 0;
    all->longest = length > all->longest ? length : all->longest;
}

static json_t *mean(const struct lengths *all, int64_t tokens)
{
    return all->n ? json_real((double)tokens / (double)all->n) : json_null();
}

static json_t *describe(const struct meg_indexed *d)
{
    const int64_t tokens = meg_indexed_tokens(d);
    struct lengths seq = { 0 }, doc = { 0 };
    json_t *o = json_object();

    for (int64_t i = 0; i < meg_indexed_documents(d); i++) {
        int64_t length = 0;

        for (int64_t s = meg_indexed_document(d, i); s < meg_indexed_document(d, i + 1); s++) {
            count(&seq, meg_indexed_length(d, s));
            length += meg_indexed_length(d, s);
        }
        count(&doc, length);
    }
    json_object_set_new(o, "path", json_string(meg_indexed_prefix(d)));
    json_object_set_new(o, "format", json_string(meg_indexed_is_legacy(d) ? "legacy" : "mmap"));
    json_object_set_new(o, "dtype", json_string(meg_idx_dtype_name(meg_indexed_dtype(d))));
    json_object_set_new(o, "modes", json_boolean(meg_indexed_has_modes(d)));
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

static void print_info(const json_t *o)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)o, key, v)
    {
        printf("%-25s", key);
        if (json_is_string(v))
            printf("%s\n", json_string_value(v));
        else if (json_is_boolean(v))
            puts(json_is_true(v) ? "yes" : "no");
        else if (json_is_integer(v))
            printf("%" PRId64 "\n", (int64_t)json_integer_value(v));
        else if (json_is_real(v))
            printf("%.1f\n", json_real_value(v));
        else
            puts("-");
    }
}

static int info(const struct look *c, struct meg_err *e)
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
        puts(line.s);
        meg_str_free(&line);
    } else {
        print_info(o);
    }
    json_decref(o);
    meg_indexed_close(d);
    return 0;
}

/* ---- --decode ---- */

/* Documents [*begin, *end) of all, as FIRST, FIRST:COUNT or nothing says. */
static int parse_range(const char *text, int64_t all, int64_t *begin, int64_t *end, struct meg_err *e)
{
    char *first, *colon;
    int64_t n = 1;
    bool is_good;

    *begin = 0;
    *end = all;
    if (!text)
        return 0;
    first = meg_strdup(text);
    if ((colon = strchr(first, ':')))
        *colon++ = 0;
    is_good = meg_parse_i64(first, begin) && *begin >= 0 && (!colon || (meg_parse_i64(colon, &n) && n >= 0));
    free(first);
    if (!is_good)
        return meg_fail(e, MEG_EUSAGE, "--decode: '%s' is not FIRST or FIRST:COUNT", text);
    if (*begin >= all)
        return meg_fail(e, MEG_EUSAGE,
                        "--decode: there is no document %" PRId64 ": the dataset has %" PRId64 ", counted from 0",
                        *begin, all);
    *end = n < all - *begin ? *begin + n : all;
    return 0;
}

static void print_json(int64_t number, const struct meg_ids *ids, const struct meg_ids *lengths,
                       const struct meg_str *text)
{
    struct meg_str line = { 0 };

    meg_str_printf(&line, "{\"document\":%" PRId64 ",\"ids\":[", number);
    for (int64_t i = 0; i < ids->n; i++)
        meg_str_printf(&line, i ? ",%" PRId32 : "%" PRId32, ids->v[i]);
    meg_str_printf(&line, "],\"lengths\":[");
    for (int64_t i = 0; i < lengths->n; i++)
        meg_str_printf(&line, i ? ",%" PRId32 : "%" PRId32, lengths->v[i]);
    meg_str_printf(&line, "]");
    if (text) {
        meg_str_printf(&line, ",\"text\":");
        meg_json_add_string(&line, text->s ? text->s : "", text->n);
    }
    meg_str_printf(&line, "}");
    puts(line.s);
    meg_str_free(&line);
}

static int read_document(const struct meg_indexed *d, int64_t number, struct meg_ids *ids, struct meg_ids *lengths,
                         struct meg_err *e)
{
    ids->n = lengths->n = 0;
    for (int64_t s = meg_indexed_document(d, number); s < meg_indexed_document(d, number + 1); s++) {
        const int32_t n = meg_indexed_length(d, s);
        int r;

        meg_ids_reserve(ids, n);
        meg_ids_reserve(lengths, 1);
        lengths->v[lengths->n++] = n;
        if ((r = meg_indexed_get(d, s, 0, n, ids->v + ids->n, e)) < 0)
            return r;
        ids->n += n;
    }
    return 0;
}

/* tok: NULL where ids alone are printed */
static int decode(const struct look *c, const struct meg_tokenizer *tok, struct meg_err *e)
{
    struct meg_ids ids = { 0 }, lengths = { 0 };
    struct meg_str text = { 0 };
    struct meg_indexed *d = NULL;
    struct meg_err inner;
    int64_t i, end;
    int r;

    if ((r = meg_indexed_open(&d, c->decode.v[0], e)) < 0 ||
        (r = parse_range(c->decode.n > 1 ? c->decode.v[1] : NULL, meg_indexed_documents(d), &i, &end, e)) < 0)
        goto out;
    for (; i < end; i++) {
        if ((r = read_document(d, i, &ids, &lengths, e)) < 0)
            goto out;
        text.n = 0;
        if (tok && (r = meg_tokenizer_decode(tok, ids.v, ids.n, &text, &inner)) < 0) {
            r = meg_fail(e, r, "%s.bin: document %" PRId64 ": %s", meg_indexed_prefix(d), i, inner.msg);
            goto out;
        }
        if (c->json) {
            print_json(i, &ids, &lengths, tok ? &text : NULL);
        } else {
            fwrite(text.s, 1, text.n, stdout);
            putchar('\n');
        }
    }
out:
    free(ids.v);
    free(lengths.v);
    meg_str_free(&text);
    meg_indexed_close(d);
    return r;
}

int main(int argc, char **argv)
{
    struct meg_preprocess_conf c;
    struct meg_tok_conf tc = { 0 };
    struct look l;
    bool has_tokenizer;
    const struct meg_optgroup groups[] = { { "preprocess", meg_preprocess_opts, &c },
                                           { "look", inspect_opts, &l },
                                           { "tokenizer", meg_tok_opts, &tc },
                                           { 0 } };
    struct meg_tokenizer *tok = NULL;
    struct meg_err e;
    int r;

    meg_opt_add_version_line(meg_unicode_version());
    meg_opt_parse(groups,
                  "[options] --input FILE... --output-prefix PREFIX --tokenizer-type TYPE | "
                  "--decode PREFIX [FIRST[:COUNT]] | --info PREFIX",
                  "Turn the texts of JSON lines into token datasets, or look at one.", argc, argv);
    if ((c.input.n > 0) + (l.decode.n > 0) + (l.info != NULL) > 1)
        meg_usage("give one of --input, --decode and --info");
    if (l.decode.n > 2)
        meg_usage("--decode takes a PREFIX and FIRST[:COUNT], no more");
    if (l.json && l.decode.n == 0 && !l.info)
        meg_usage("--json is for --decode and --info");
    has_tokenizer = tc.type || tc.name_or_path || tc.tokenizer_model; /* a folder needs no type */
    if (l.decode.n > 0 && !l.json && !has_tokenizer)
        meg_usage("--decode needs --tokenizer-type to print text; with --json it prints ids");
    if (!l.info && (has_tokenizer || !(l.decode.n > 0 && l.json)) && meg_tokenizer_open(&tok, &tc, &e) < 0)
        meg_die_err(&e);
    if (l.info)
        r = info(&l, &e);
    else if (l.decode.n > 0)
        r = decode(&l, tok, &e);
    else
        r = meg_preprocess(&c, tok, &e);
    meg_tokenizer_close(tok);
    if (r < 0)
        meg_die_err(&e);
    return meg_close_stdout();
}
