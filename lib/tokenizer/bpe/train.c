/*
 * train.c - the algorithm of Hugging Face's trainer (models/bpe/trainer.rs of tokenizers 0.22):
 * - Merge the pair with the highest count; on ties, the pair with the smaller left id, then the smaller right id.
 * - Each entry of the priority queue is a pair with its count and the words in which to merge the pair.  A pair that
 *   occurs in the initial words is pushed once.  Each merge that creates new occurrences of a pair pushes the pair once
 *   more, with only the words that have new occurrences.  If the count of a popped entry is out of date, the entry is
 *   pushed again with the current count.
 * - A merge changes the counts of neighboring pairs, but does not set the count of the merged pair to 0.  A later merge
 *   may create new occurrences of the merged pair.  In this case, the pair is popped and merged again.  The rank of a
 *   pair is the rank of its last merge.
 */
#include "tokenizer/bpe/train.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "tokenizer/bpe/byte_alphabet.h"
#include "tokenizer/bpe/train_wordpiece.h"

/* A pair of adjacent symbols. */
struct pair {
    int32_t left, right;
    int64_t count;
    int32_t touched_index; /* index in `touched` of the pair's entry for the current merge, or -1 */
    int64_t merged;        /* index of the pair's last merge in the merge log, or -1 */
};

/* An element of the priority queue: a pair and the words in which to merge it. */
struct entry {
    int64_t count;
    int32_t pair;
    uint32_t *word;
    int64_t nwords, cap;
};

struct bpe_train_state {
    struct pair *pair;
    int64_t npairs, pairs_cap;
    uint32_t *slot; /* hash table of pairs: index in pair + 1, or 0 */
    uint64_t mask;
    struct entry **heap; /* binary heap; heap[0] is the next pair to merge */
    int64_t nheap, heap_cap;
    struct entry **touched; /* entries of the pairs that have new occurrences from the current merge */
    int64_t ntouched, touched_cap;
    int32_t *sym; /* symbols of all words; word i has sym[at[i]] .. sym[at[i] + len[i] - 1] */
    const int64_t *at, *count;
    int32_t *len;
    struct meg_bpe_vocab *vocab;
};

static void count_word(struct meg_bpe_trainer *t, const char *s, int64_t len)
{
    const int64_t word = meg_strtab_add(&t->words, s, len);

    if (word == t->ncount) {
        t->ncount = t->words.cap;
        t->count = meg_realloc_array(t->count, (size_t)t->ncount, sizeof *t->count);
        memset(t->count + word, 0, (size_t)(t->ncount - word) * sizeof *t->count);
    }
    t->count[word]++;
}

static int count_bert_words(struct meg_bpe_trainer *t, const char *text, int64_t n, struct meg_err *e)
{
    struct meg_str *words = &t->text_words;
    int r;

    meg_bert_basic_start(&t->basic, text, n);
    while ((r = meg_bert_basic_next(&t->basic, words, e)) > 0)
        for (const char *s = words->s; s < words->s + words->n; s += strlen(s) + 1)
            count_word(t, s, (int64_t)strlen(s));
    return r;
}

int meg_bpe_trainer_count(struct meg_bpe_trainer *t, const char *text, int64_t n, struct meg_err *e)
{
    const char *pretoken;
    int64_t len;

    if (t->is_wordpiece)
        return count_bert_words(t, text, n, e);
    meg_pretokens_split(&t->pretokens, MEG_PRETOK_GPT2, text, n);
    while (meg_pretokens_next(&t->pretokens, &pretoken, &len))
        count_word(t, pretoken, len);
    return 0;
}

void meg_bpe_trainer_free(struct meg_bpe_trainer *t)
{
    meg_strtab_free(&t->words);
    free(t->count);
    meg_pretokens_free(&t->pretokens);
    meg_bert_basic_free(&t->basic);
    meg_str_free(&t->text_words);
}

static uint32_t *slot_of(const struct bpe_train_state *st, int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;

    for (uint64_t i = (h ^ h >> 32) & st->mask;; i = (i + 1) & st->mask) {
        const struct pair *p = st->slot[i] > 0 ? &st->pair[st->slot[i] - 1] : NULL;

        if (!p || (p->left == left && p->right == right))
            return &st->slot[i];
    }
}

static void grow_pairs(struct bpe_train_state *st)
{
    st->pairs_cap = st->pairs_cap ? 2 * st->pairs_cap : 1 << 12;
    st->pair = meg_realloc_array(st->pair, (size_t)st->pairs_cap, sizeof *st->pair);
    free(st->slot);
    st->mask = 2 * (uint64_t)st->pairs_cap - 1;
    st->slot = meg_new((st->mask + 1) * sizeof *st->slot);
    for (int64_t i = 0; i < st->npairs; i++)
        *slot_of(st, st->pair[i].left, st->pair[i].right) = (uint32_t)i + 1;
}

/* Return whether a must be merged after b. */
static bool is_after(const struct bpe_train_state *st, const struct entry *a, const struct entry *b)
{
    const struct pair *p = &st->pair[a->pair], *q = &st->pair[b->pair];

    if (a->count != b->count)
        return a->count < b->count;
    return p->left != q->left ? p->left > q->left : p->right > q->right;
}

static void push(struct bpe_train_state *st, struct entry *x)
{
    int64_t i;

    st->heap = meg_grow(st->heap, st->nheap, &st->heap_cap, sizeof(struct entry *));
    for (i = st->nheap++; i > 0 && is_after(st, st->heap[(i - 1) / 2], x); i = (i - 1) / 2)
        st->heap[i] = st->heap[(i - 1) / 2];
    st->heap[i] = x;
}

static struct entry *pop(struct bpe_train_state *st)
{
    struct entry *top = st->heap[0], *x = st->heap[--st->nheap];
    int64_t i = 0;

    for (int64_t k; (k = 2 * i + 1) < st->nheap; i = k) {
        k += k + 1 < st->nheap && is_after(st, st->heap[k], st->heap[k + 1]);
        if (!is_after(st, x, st->heap[k]))
            break;
        st->heap[i] = st->heap[k];
    }
    st->heap[i] = x;
    return top;
}

static void free_entry(struct entry *x)
{
    free(x->word);
    free(x);
}

/*
 * Add delta (1 or -1), multiplied by the count of a word, to the count of a pair that occurs in the word.  If delta is
 * 1, add the word to the pair's entry in st->touched.
 */
static void add_count(struct bpe_train_state *st, int32_t left, int32_t right, int delta, uint32_t word)
{
    uint32_t *slot;
    struct pair *p;
    struct entry *x;

    if (st->npairs == st->pairs_cap)
        grow_pairs(st);
    slot = slot_of(st, left, right);
    if (*slot == 0) {
        *slot = (uint32_t)st->npairs + 1;
        st->pair[st->npairs++] = (struct pair){ left, right, 0, -1, -1 };
    }
    p = &st->pair[*slot - 1];
    p->count += delta * st->count[word];
    if (delta < 0)
        return;
    if (p->touched_index < 0) {
        st->touched = meg_grow(st->touched, st->ntouched, &st->touched_cap, sizeof *st->touched);
        x = meg_new(sizeof *x);
        x->pair = (int32_t)(*slot - 1);
        p->touched_index = (int32_t)st->ntouched;
        st->touched[st->ntouched++] = x;
    }
    x = st->touched[p->touched_index];
    if (x->nwords > 0 && x->word[x->nwords - 1] == word)
        return;
    x->word = meg_grow(x->word, x->nwords, &x->cap, sizeof *x->word);
    x->word[x->nwords++] = word;
}

/* Push the entries of the pairs that have new occurrences from the last merge.  Free an entry if its count is 0. */
static void push_new_pairs(struct bpe_train_state *st)
{
    for (int64_t i = 0; i < st->ntouched; i++) {
        struct entry *x = st->touched[i];

        st->pair[x->pair].touched_index = -1;
        x->count = st->pair[x->pair].count;
        if (x->count > 0)
            push(st, x);
        else
            free_entry(x);
    }
    st->ntouched = 0;
}

/*
 * In one word, replace each occurrence of the pair (left, right) by the token id, from left to right.  Update the
 * counts of the neighboring pairs.
 */
static void merge_word(struct bpe_train_state *st, uint32_t word, int32_t left, int32_t right, int32_t id)
{
    int32_t *s = st->sym + st->at[word];
    int32_t n = st->len[word], to = 0;

    for (int32_t i = 0; i < n; to++) {
        if (i + 1 == n || s[i] != left || s[i + 1] != right) {
            s[to] = s[i++];
            continue;
        }
        if (to > 0) {
            add_count(st, s[to - 1], left, -1, word);
            add_count(st, s[to - 1], id, 1, word);
        }
        i += 2;
        if (i < n) {
            add_count(st, right, s[i], -1, word);
            add_count(st, id, s[i], 1, word);
        }
        s[to] = id;
    }
    st->len[word] = to;
}

/*
 * Return the id of the concatenation of left and right, for WordPiece without the prefix ## of right.  Add this token
 * if it is new.
 */
static int32_t token_of(struct meg_bpe_vocab *v, int32_t left, int32_t right)
{
    const size_t prefix = v->is_wordpiece ? strlen(MEG_WORDPIECE_PREFIX) : 0;
    struct meg_str a = meg_strtab_get(&v->tokens, left), b = meg_strtab_get(&v->tokens, right), both = { 0 };
    int64_t id;

    meg_str_add(&both, a.s, a.n);
    meg_str_add(&both, b.s + prefix, b.n - prefix);
    id = meg_strtab_add(&v->tokens, both.s, (int64_t)both.n);
    meg_str_free(&both);
    return (int32_t)id;
}

static void add_base_tokens(struct meg_strtab *tokens, int32_t byte_id[256])
{
    meg_strtab_add(tokens, MEG_ENDOFTEXT, (int64_t)strlen(MEG_ENDOFTEXT));
    for (int32_t cp = 0; cp < 0x144; cp++) {
        int b = meg_byte_alphabet_byte(cp);
        char c = (char)b;

        if (b >= 0)
            byte_id[b] = (int32_t)meg_strtab_add(tokens, &c, 1);
    }
}

static void split_into_bytes(struct bpe_train_state *st, const struct meg_strtab *words)
{
    int32_t byte_id[256];

    add_base_tokens(&st->vocab->tokens, byte_id);
    for (size_t i = 0; i < words->bytes.n; i++)
        st->sym[i] = byte_id[(unsigned char)words->bytes.s[i]];
    for (int64_t w = 0; w < words->n; w++)
        st->len[w] = (int32_t)(st->at[w + 1] - st->at[w]);
}

/* Split the words into symbols, and count the pairs. */
static void split_words(struct bpe_train_state *st, const struct meg_strtab *words)
{
    st->at = words->offset;
    st->sym = meg_new(words->bytes.n * sizeof *st->sym);
    st->len = meg_new((size_t)words->n * sizeof *st->len);
    if (st->vocab->is_wordpiece)
        meg_wordpiece_split(&st->vocab->tokens, words, st->count, st->sym, st->len);
    else
        split_into_bytes(st, words);
    for (int64_t w = 0; w < words->n; w++) {
        const int32_t *s = st->sym + st->at[w];

        for (int32_t i = 0; i + 1 < st->len[w]; i++)
            add_count(st, s[i], s[i + 1], 1, (uint32_t)w);
    }
    push_new_pairs(st);
}

/*
 * Set the merges of the vocabulary from the merge log, in the same order.  A pair that was merged several times is
 * listed once, at the position of its last merge.
 */
static void list_merges(struct bpe_train_state *st, const int32_t *merge_log, int64_t nlog)
{
    struct meg_bpe_vocab *v = st->vocab;

    v->merge = meg_new((size_t)nlog * sizeof *v->merge);
    for (int64_t i = 0; i < nlog; i++) {
        const struct pair *p = &st->pair[merge_log[i]];

        if (p->merged == i)
            v->merge[v->nmerges++] = (struct meg_bpe_vocab_merge){ p->left, p->right };
    }
}

void meg_bpe_trainer_run(struct meg_bpe_trainer *words, int64_t vocab_size, int64_t min_frequency,
                         struct meg_bpe_vocab *vocab)
{
    struct bpe_train_state st = { .vocab = vocab, .count = words->count };
    int32_t *merge_log = NULL;
    int64_t nlog = 0, cap = 0;
    struct entry *x;

    vocab->is_wordpiece = words->is_wordpiece;
    split_words(&st, &words->words);
    while (vocab->tokens.n < vocab_size && st.nheap > 0) {
        struct pair *p;
        int32_t left, right, id;

        x = pop(&st);
        p = &st.pair[x->pair];
        if (x->count != p->count) {
            x->count = p->count;
            push(&st, x);
            continue;
        }
        if (x->count < 1 || x->count < min_frequency) {
            free_entry(x);
            break;
        }
        merge_log = meg_grow(merge_log, nlog, &cap, sizeof *merge_log);
        left = p->left;
        right = p->right;
        p->merged = nlog;
        merge_log[nlog++] = x->pair;
        id = token_of(vocab, left, right);
        for (int64_t i = 0; i < x->nwords; i++) /* p is invalid after the loop, which may reallocate st.pair */
            merge_word(&st, x->word[i], left, right, id);
        push_new_pairs(&st);
        free_entry(x);
    }
    list_merges(&st, merge_log, nlog);
    while (st.nheap > 0)
        free_entry(pop(&st));
    free(merge_log);
    free(st.heap);
    free(st.touched);
    free(st.pair);
    free(st.slot);
    free(st.sym);
    free(st.len);
}

void meg_bpe_vocab_free(struct meg_bpe_vocab *v)
{
    meg_strtab_free(&v->tokens);
    free(v->merge);
}
