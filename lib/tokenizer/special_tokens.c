/* special_tokens.c - parse special tokens in text. */
#include "tokenizer/special_tokens.h"
#include <stdlib.h>

int meg_special_tokens_build(struct meg_special_tokens *s, struct meg_trie_key *key, int64_t n, struct meg_err *e)
{
    s->id = meg_realloc_array(NULL, (size_t)n, sizeof *s->id);
    s->nbytes = meg_realloc_array(NULL, (size_t)n, sizeof *s->nbytes);
    for (int64_t k = 0; k < n; k++) {
        s->id[k] = key[k].value;
        s->nbytes[k] = key[k].n;
        s->is_first_byte[(unsigned char)key[k].s[0]] = true;
        key[k].value = (int32_t)k;
    }
    return meg_trie_build(&s->trie, key, n, e);
}

void meg_special_tokens_free(struct meg_special_tokens *s)
{
    meg_trie_free(&s->trie);
    free(s->id);
    free(s->nbytes);
}

/*
 * Return the offset of the first special token in text [n], or n if there is none.  Set *index to the index of this
 * token in the set.  If several tokens match at this offset, use the one with the lowest index.
 */
static int64_t find_special_token(const struct meg_special_tokens *s, const char *text, int64_t n, int32_t *index)
{
    for (int64_t at = 0; at < n; at++) {
        uint32_t node = MEG_TRIE_ROOT;
        int32_t value, first = -1;

        if (!s->is_first_byte[(unsigned char)text[at]])
            continue;
        for (int64_t i = at; i < n && meg_trie_step(&s->trie, &node, (unsigned char)text[i], &value); i++) {
            if (value >= 0 && (first < 0 || value < first))
                first = value;
        }
        if (first >= 0) {
            *index = first;
            return at;
        }
    }
    return n;
}

int meg_special_tokens_encode(const struct meg_special_tokens *s, const char *text, int64_t n, struct meg_ids *out,
                              const struct meg_id_sink *sink, struct meg_ordinary_encoder ordinary, struct meg_err *e)
{
    if (!s->id)
        return ordinary.encode(ordinary.ctx, text, n, out, sink, e);
    for (;;) {
        int32_t index = -1;
        int64_t before = find_special_token(s, text, n, &index);
        int r = ordinary.encode(ordinary.ctx, text, before, out, sink, e);

        if (r < 0 || index < 0)
            return r;
        meg_ids_add(out, s->id[index]);
        before += s->nbytes[index];
        text += before;
        n -= before;
    }
}
