/*
 * fill_text.c - encode a text in which some tokens are written as text: masks, the separator of BERT, and the sentinels
 * of T5.
 */
#include "eval/fill_text.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* A list of tokens, with their texts and ids. */
struct token_list {
    struct meg_str text;      /* the texts, one after the other */
    struct meg_trie_key *key; /* key[].s is set by build */
    int64_t n;
};

static void list_token(struct token_list *l, const char *text, int64_t n, int32_t id)
{
    l->key = meg_realloc_array(l->key, (size_t)l->n + 1, sizeof *l->key);
    l->key[l->n++] = (struct meg_trie_key){ NULL, n, id };
    meg_str_add(&l->text, text, (size_t)n);
}

/*
 * Return the number of ids of text [n], or 0 if the tokenizer cannot encode it.  Set *count to the number of those that
 * equal `id`.
 */
static int64_t count_ids(struct meg_tokenizer *tok, const char *text, int64_t n, int32_t id, int64_t *count)
{
    struct meg_ids ids = { 0 };

    (void)meg_tokenizer_encode(tok, text, n, &ids, NULL);
    *count = 0;
    for (int64_t i = 0; i < ids.n; i++)
        *count += ids.v[i] == id;
    free(ids.v);
    return ids.n;
}

/* Return whether the tokenizer itself encodes text [n] as `id`, beside the ids that it adds to each text. */
static bool encodes_as(struct meg_tokenizer *tok, const char *text, int64_t n, int32_t id)
{
    int64_t count, count_empty;

    return count_ids(tok, text, n, id, &count) == count_ids(tok, "", 0, id, &count_empty) + 1 &&
           count == count_empty + 1;
}

/* Append a token and its text to l, unless id is -1, the token has no text, or the tokenizer encodes it itself. */
static void list_id(struct token_list *l, struct meg_tokenizer *tok, int32_t id)
{
    struct meg_str text = { 0 };

    if (id >= 0 && meg_tokenizer_token_text(tok, id, &text, NULL) == 0 && text.n > 0 &&
        !encodes_as(tok, text.s, (int64_t)text.n, id))
        list_token(l, text.s, (int64_t)text.n, id);
    meg_str_free(&text);
}

static void list_sentinels(struct token_list *l, const struct meg_span_vocab *v)
{
    char name[40];

    for (int64_t k = 0; k < v->nsentinel; k++)
        list_token(l, name, snprintf(name, sizeof name, "<extra_id_%" PRId64 ">", k), v->sentinel[k]);
}

/* Build the set of the listed tokens, and free the list. */
static int build(struct meg_special_tokens *s, struct token_list *l, struct meg_err *e)
{
    const char *text = l->text.s;
    int r;

    for (int64_t k = 0; k < l->n; k++) {
        l->key[k].s = text;
        text += l->key[k].n;
    }
    r = l->n > 0 ? meg_special_tokens_build(s, l->key, l->n, e) : 0;
    meg_str_free(&l->text);
    free(l->key);
    return r;
}

int meg_fill_text_open(struct meg_fill_text *x, struct meg_tokenizer *tok, const struct meg_span_vocab *spans,
                       struct meg_err *e)
{
    const struct meg_tok_special_ids *special = meg_tokenizer_special_ids(tok);
    struct token_list l = { 0 };
    int64_t unused;

    *x = (struct meg_fill_text){
        .tok = tok, .begin = special->cls, .end = special->sep, .adds_ends = count_ids(tok, "", 0, -1, &unused) == 0
    };
    list_id(&l, tok, special->mask);
    list_id(&l, tok, special->sep);
    if (spans) {
        x->begin = -1;
        x->end = spans->eos;
        x->adds_ends = spans->adds_eos;
        if (spans->splits_text)
            list_sentinels(&l, spans);
    }
    return build(&x->special, &l, e);
}

void meg_fill_text_close(struct meg_fill_text *x)
{
    meg_special_tokens_free(&x->special);
}

static int encode_ordinary(void *tok, const char *text, int64_t n, struct meg_ids *out, const struct meg_id_sink *sink,
                           struct meg_err *e)
{
    (void)sink;
    return meg_tokenizer_encode(tok, text, n, out, e);
}

int meg_fill_text_encode(const struct meg_fill_text *x, const char *text, int64_t n, struct meg_ids *ids,
                         struct meg_err *e)
{
    const struct meg_ordinary_encoder ordinary = { encode_ordinary, x->tok };
    int r;

    if (x->adds_ends && x->begin >= 0)
        meg_ids_add(ids, x->begin);
    r = meg_special_tokens_encode(&x->special, text, n, ids, NULL, ordinary, e);
    if (r == 0 && x->adds_ends && x->end >= 0)
        meg_ids_add(ids, x->end);
    return r;
}

int meg_fill_text_decode(const struct meg_fill_text *x, const struct meg_ids *ids, struct meg_str *out,
                         struct meg_err *e)
{
    int64_t begin = 0, end = ids->n;

    if (begin < end && ids->v[begin] == x->begin)
        begin++;
    if (begin < end && ids->v[end - 1] == x->end)
        end--;
    return meg_tokenizer_decode(x->tok, ids->v + begin, end - begin, out, e);
}
