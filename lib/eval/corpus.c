/* corpus.c - tokenize plain text or JSON lines into one token sequence, the input of a perplexity evaluation. */
#include "eval/corpus.h"
#include <stdlib.h>
#include <string.h>
#include "infer/prompt.h"
#include "unicode/utf8.h"

enum { BLOCK = 1 << 20 };

static int add_lines(const struct meg_line_block *b, const struct meg_prompt_format *format, struct meg_ids *ids,
                     int64_t *documents, struct meg_err *e)
{
    const int32_t eod = format->tok ? meg_tokenizer_eod(format->tok) : -1;
    int64_t at = 0, n, line = b->first_line_in_file, was;
    const char *text;
    int r;

    for (; meg_line_block_next(b, &at, &text, &n); line++) {
        if (meg_line_is_blank(text, n))
            continue;
        was = ids->n;
        r = meg_prompt_read(format, &(struct meg_prompt_line){ b->name, line, text, (size_t)n }, ids, NULL, e);
        if (r < 0)
            return meg_line_block_explain(r, b, e);
        ++*documents;
        if (eod >= 0 && eod < format->vocab_size && ids->n > was)
            meg_ids_add(ids, eod);
    }
    return 0;
}

static int add_text(const struct meg_str *text, const char *name, const struct meg_prompt_format *format,
                    struct meg_ids *ids, struct meg_err *e)
{
    const int64_t first = ids->n;
    struct meg_err why;
    int r;

    if (!format->tok)
        return meg_fail(
            e, MEG_EUSAGE,
            "%s: the input is text, but the model has no tokenizer; specify one with --tokenizer-type and its files",
            name);
    if ((r = meg_tokenizer_encode(format->tok, text->s, (int64_t)text->n, ids, &why)) < 0 ||
        (r = meg_prompt_check_ids(format->tok, ids->v + first, ids->n - first, format->vocab_size, &why)) < 0)
        return meg_fail(e, r, "%s: %s", name, why.msg);
    return 0;
}

static int64_t skip_space(const struct meg_line_block *b, int64_t at)
{
    while (at < b->n && b->s[at] && strchr(" \t\r\n", b->s[at]))
        at++;
    return at;
}

/*
 * Return the first byte that is not whitespace, or 0.  Overwrite a byte order mark before JSON with spaces.  For an
 * array of objects, return '{', so that it is refused as a JSON line instead of read as text.
 */
static char first_nonspace(struct meg_line_block *b)
{
    const int64_t mark = b->first_line_in_file == 1 ? meg_utf8_bom(b->s, b->n) : 0;
    const int64_t at = skip_space(b, mark), next = at < b->n ? skip_space(b, at + 1) : b->n;

    if (at == b->n)
        return 0;
    if (b->s[at] == '[' && next < b->n && b->s[next] == '{')
        return '{';
    if (b->s[at] == '{')
        memset(b->s, ' ', (size_t)mark);
    return b->s[at];
}

int meg_tokenize_corpus(struct meg_block_reader *in, struct meg_tokenizer *tok, int64_t vocab_size, struct meg_ids *ids,
                        int64_t *documents, struct meg_err *e)
{
    const struct meg_prompt_format format = { .key = "text", .tok = tok, .vocab_size = vocab_size, .is_corpus = true };
    struct meg_line_block b = { 0 };
    struct meg_str text = { 0 };
    char first = 0;
    int r;

    *documents = 0;
    while ((r = meg_block_reader_next(in, &b, BLOCK, e)) > 0) {
        if (!first)
            first = first_nonspace(&b);
        if (first == '{')
            text.n = 0; /* drop whitespace before the first line */
        else
            meg_str_add(&text, b.s, (size_t)b.n);
        if (first == '{' && (r = add_lines(&b, &format, ids, documents, e)) < 0)
            break;
    }
    if (r == 0 && text.n > 0) {
        *documents = 1;
        r = add_text(&text, b.name, &format, ids, e);
    }
    meg_str_free(&text);
    free(b.s);
    return r;
}
