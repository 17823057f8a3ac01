/* null_tokenizer.c - NullTokenizer: a text consists of decimal ids separated by single spaces. */
#include <inttypes.h>
#include <stdio.h>
#include "tokenizer/internal.h"

static int null_open(struct meg_tokenizer *t, const struct meg_tok_conf *c, struct meg_err *e)
{
    const bool includes_eod = meg_megatron_release_find(c->megatron_release)->null_vocab_includes_eod;
    char size[32];

    if (c->vocab_size == MEG_UNSET)
        return meg_fail(e, MEG_EUSAGE, "NullTokenizer requires --vocab-size");
    if (c->vocab_size < 1 || c->vocab_size >= INT32_MAX)
        return meg_fail(e, MEG_EUSAGE, "--vocab-size %" PRId64 ": must be from 1 to %d", c->vocab_size, INT32_MAX - 1);
    t->vocab_size = c->vocab_size + !includes_eod;
    t->special_ids.eod = (int32_t)t->vocab_size - 1;
    snprintf(size, sizeof size, "%" PRId64, c->vocab_size);
    meg_tok_set_description(t, "_NullTokenizer", (const char *const[]){ NULL },
                            (const char *const[]){ "vocab_size", size, NULL });
    return 0;
}

static int null_encode(struct meg_tokenizer *t, const char *text, int64_t n, struct meg_ids *out,
                       const struct meg_id_sink *sink, struct meg_err *e)
{
    int r;

    if (n == 0)
        return 0;
    meg_ids_reserve(out, n / 2 + 1);
    for (int64_t i = 0;; i++) {
        int64_t begin = i, id = 0;

        for (; i < n && text[i] >= '0' && text[i] <= '9' && id < t->vocab_size; i++)
            id = 10 * id + (text[i] - '0');
        if (id >= t->vocab_size)
            return meg_fail(e, MEG_EFORMAT, "token id %.*s%s is not in the vocabulary, which has ids 0 to %" PRId64,
                            (int)(i - begin), text + begin, i < n && text[i] >= '0' && text[i] <= '9' ? "..." : "",
                            t->vocab_size - 1);
        if (i == begin || (i < n && text[i] != ' '))
            return meg_fail(e, MEG_EFORMAT,
                            "NullTokenizer: the text must be decimal ids separated by single spaces; found an error at "
                            "byte offset %" PRId64,
                            i);
        out->v[out->n++] = (int32_t)id;
        if (i == n)
            return 0;
        if (sink && out->n > MEG_IDS_FLUSH_COUNT) {
            if ((r = meg_ids_flush(out, sink, e)) < 0)
                return r;
            meg_ids_reserve(out, (n - i) / 2 + 1);
        }
    }
}

static void null_bytes(const struct meg_tokenizer *t, const int32_t *ids, int64_t n, struct meg_str *out)
{
    (void)t;
    for (int64_t i = 0; i < n; i++)
        meg_str_printf(out, i ? " %d" : "%d", ids[i]);
}

static void null_decode(struct meg_detok *d, const int32_t *ids, int64_t n, bool is_last, struct meg_str *out)
{
    (void)is_last;
    if (d->n > 0 && n > 0)
        meg_str_add(out, " ", 1);
    null_bytes(d->tok, ids, n, out);
}

const struct meg_tok_class meg_tok_null = { .name = "NullTokenizer",
                                            .origin = MEG_TOK_LIB_NULL,
                                            .size = sizeof(struct meg_tokenizer),
                                            .open = null_open,
                                            .encode = null_encode,
                                            .bytes = null_bytes,
                                            .decode = null_decode };
