/*
 * The rules, as Hugging Face's trainer has them (models/bpe/trainer.rs of tokenizers 0.22):
 * - The pair with the highest count is merged; of equal ones that with the smaller left id, then
 *   with the smaller right id.
 * - The queue holds pairs with the words where they were seen.  A pair goes in once for the text as
 *   it is, and once more for each round that forms new ones, with the words of that round only.
 *   Its count is looked up when it comes out; where it is stale, the pair goes back with the new one.
 * - A merge changes the counts of the pairs beside it, not its own.  So a pair can come out again,
 *   when a token that another merge made too brought it about: it then merges what is left of it,
 *   and takes its rank from the last time.
 */
#include "tokenizer/bpe/train.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/bpe/byte_alphabet.h"

/* A pair of neighbours. */
struct pair {
    int32_t left, right;
    int64_t count;
    int32_t open;   /* the queue entry that this round collects words for, or -1 */
    int64_t merged; /* its rank, counting all rounds; -1: not merged */
};

/* A pair in the queue, with the words to look into. */
struct entry {
    int64_t count;
    int32_t pair;
    uint32_t *word;
    int64_t nwords, cap;
};

struct bpe_train_state {
    struct pair *pair;
    int64_t npairs, pairs_cap;
    uint32_t *slot; /* hash table of pairs: number + 1 */
    uint64_t mask;
    struct entry **heap; /* the next one to merge first */
    int64_t nheap, heap_cap;
    struct entry **opened;
    int64_t nopened, opened_cap;
    int32_t *sym; /* of word i: sym[at[i]] .. sym[at[i] + len[i] - 1] */
    const int64_t *at, *count;
    int32_t *len;
    struct meg_bpe_vocab *vocab;
};

void meg_bpe_trainer_count(struct meg_bpe_trainer *l, const char *text, int64_t n)
{
    const char *piece;
    int64_t len;

    meg_pretokens_split(&l->pieces, MEG_PRETOK_GPT2, text, n);
    while (meg_pretokens_next(&l->pieces, &piece, &len)) {
        int64_t word = meg_strtab_add(&l->words, piece, len);

        if (word == l->ncount) {
            l->ncount = l->words.cap;
            l->count = meg_realloc_array(l->count, (size_t)l->ncount, sizeof *l->count);
            memset(l->count + word, 0, (size_t)(l->ncount - word) * sizeof *l->count);
        }
        l->count[word]++;
    }
}

void meg_bpe_trainer_free(struct meg_bpe_trainer *l)
{
    meg_strtab_free(&l->words);
    free(l->count);
    meg_pretokens_free(&l->pieces);
}

static uint32_t *slot_of(const struct bpe_train_state *l, int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;

    for (uint64_t i = (h ^ h >> 32) & l->mask;; i = (i + 1) & l->mask) {
        const struct pair *p = l->slot[i] > 0 ? &l->pair[l->slot[i] - 1] : NULL;

        if (!p || (p->left == left && p->right == right))
            return &l->slot[i];
    }
}

static void grow_pairs(struct bpe_train_state *l)
{
    l->pairs_cap = l->pairs_cap ? 2 * l->pairs_cap : 1 << 12;
    l->pair = meg_realloc_array(l->pair, (size_t)l->pairs_cap, sizeof *l->pair);
    free(l->slot);
    l->mask = 2 * (uint64_t)l->pairs_cap - 1;
    l->slot = meg_new((l->mask + 1) * sizeof *l->slot);
    for (int64_t i = 0; i < l->npairs; i++)
        *slot_of(l, l->pair[i].left, l->pair[i].right) = (uint32_t)i + 1;
}

/* Whether a is merged after b. */
static bool is_after(const struct bpe_train_state *l, const struct entry *a, const struct entry *b)
{
    const struct pair *p = &l->pair[a->pair], *q = &l->pair[b->pair];

    if (a->count != b->count)
        return a->count < b->count;
    return p->left != q->left ? p->left > q->left : p->right > q->right;
}

static void push(struct bpe_train_state *l, struct entry *x)
{
    int64_t i;

    if (l->nheap == l->heap_cap) {
        l->heap_cap = l->heap_cap ? 2 * l->heap_cap : 1 << 12;
        l->heap = meg_realloc_array(l->heap, (size_t)l->heap_cap, sizeof(struct entry *));
    }
    for (i = l->nheap++; i > 0 && is_after(l, l->heap[(i - 1) / 2], x); i = (i - 1) / 2)
        l->heap[i] = l->heap[(i - 1) / 2];
    l->heap[i] = x;
}

static struct entry *pop(struct bpe_train_state *l)
{
    struct entry *top = l->heap[0], *x = l->heap[--l->nheap];
    int64_t i = 0;

    for (int64_t k; (k = 2 * i + 1) < l->nheap; i = k) {
        k += k + 1 < l->nheap && is_after(l, l->heap[k], l->heap[k + 1]);
        if (!is_after(l, x, l->heap[k]))
            break;
        l->heap[i] = l->heap[k];
    }
    l->heap[i] = x;
    return top;
}

static void free_entry(struct entry *x)
{
    free(x->word);
    free(x);
}

/* The pair stands once more (by = 1) or less (-1) in a word, each time the word occurs. */
static void change(struct bpe_train_state *l, int32_t left, int32_t right, int by, uint32_t word)
{
    uint32_t *slot;
    struct pair *p;
    struct entry *x;

    if (l->npairs == l->pairs_cap)
        grow_pairs(l);
    slot = slot_of(l, left, right);
    if (*slot == 0) {
        *slot = (uint32_t)l->npairs + 1;
        l->pair[l->npairs++] = (struct pair){ left, right, 0, -1, -1 };
    }
    p = &l->pair[*slot - 1];
    p->count += by * l->count[word];
    if (by < 0)
        return;
    if (p->open < 0) {
        if (l->nopened == l->opened_cap) {
            l->opened_cap = l->opened_cap ? 2 * l->opened_cap : 1 << 10;
            l->opened = meg_realloc_array(l->opened, (size_t)l->opened_cap, sizeof *l->opened);
        }
        x = meg_new(sizeof *x);
        x->pair = (int32_t)(*slot - 1);
        p->open = (int32_t)l->nopened;
        l->opened[l->nopened++] = x;
    }
    x = l->opened[p->open];
    if (x->nwords > 0 && x->word[x->nwords - 1] == word)
        return;
    if (x->nwords == x->cap) {
        x->cap = x->cap ? 2 * x->cap : 4;
        x->word = meg_realloc_array(x->word, (size_t)x->cap, sizeof *x->word);
    }
    x->word[x->nwords++] = word;
}

/* The round is over: what it formed goes into the queue. */
static void push_new_pairs(struct bpe_train_state *l)
{
    for (int64_t i = 0; i < l->nopened; i++) {
        struct entry *x = l->opened[i];

        l->pair[x->pair].open = -1;
        x->count = l->pair[x->pair].count;
        if (x->count > 0)
            push(l, x);
        else
            free_entry(x);
    }
    l->nopened = 0;
}

/* Replace the pair by token id in one word, left to right. */
static void merge_word(struct bpe_train_state *l, uint32_t word, int32_t left, int32_t right, int32_t id)
{
    int32_t *s = l->sym + l->at[word];
    int32_t n = l->len[word], to = 0;

    for (int32_t i = 0; i < n; to++) {
        if (i + 1 == n || s[i] != left || s[i + 1] != right) {
            s[to] = s[i++];
            continue;
        }
        if (to > 0) {
            change(l, s[to - 1], left, -1, word);
            change(l, s[to - 1], id, 1, word);
        }
        i += 2;
        if (i < n) {
            change(l, right, s[i], -1, word);
            change(l, id, s[i], 1, word);
        }
        s[to] = id;
    }
    l->len[word] = to;
}

/* The token that left and right make, which may be there already. */
static int32_t token_of(struct meg_strtab *tokens, int32_t left, int32_t right)
{
    struct meg_str a = meg_strtab_get(tokens, left), b = meg_strtab_get(tokens, right), both = { 0 };
    int64_t id;

    meg_str_add(&both, a.s, a.n);
    meg_str_add(&both, b.s, b.n);
    id = meg_strtab_add(tokens, both.s, (int64_t)both.n);
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

static void split_words(struct bpe_train_state *l, const struct meg_strtab *words, const int32_t byte_id[256])
{
    l->at = words->at;
    l->sym = meg_new(words->bytes.n * sizeof *l->sym);
    l->len = meg_new((size_t)words->n * sizeof *l->len);
    for (size_t i = 0; i < words->bytes.n; i++)
        l->sym[i] = byte_id[(unsigned char)words->bytes.s[i]];
    for (int64_t w = 0; w < words->n; w++) {
        const int32_t *s = l->sym + l->at[w];

        l->len[w] = (int32_t)(l->at[w + 1] - l->at[w]);
        for (int32_t i = 0; i + 1 < l->len[w]; i++)
            change(l, s[i], s[i + 1], 1, (uint32_t)w);
    }
    push_new_pairs(l);
}

/* The merges in the order of their last round, which gives the rank. */
static void list_merges(struct bpe_train_state *l, const int32_t *round, int64_t nrounds)
{
    struct meg_bpe_vocab *v = l->vocab;

    v->merge = meg_new((size_t)nrounds * sizeof *v->merge);
    for (int64_t i = 0; i < nrounds; i++) {
        const struct pair *p = &l->pair[round[i]];

        if (p->merged == i)
            v->merge[v->nmerges++] = (struct meg_bpe_vocab_merge){ p->left, p->right };
    }
}

void meg_bpe_trainer_run(struct meg_bpe_trainer *words, int64_t vocab_size, int64_t min_frequency,
                         struct meg_bpe_vocab *vocab)
{
    struct bpe_train_state l = { .vocab = vocab, .count = words->count };
    int32_t byte_id[256], *round = NULL;
    int64_t nrounds = 0, cap = 0;
    struct entry *x;

    add_base_tokens(&vocab->tokens, byte_id);
    split_words(&l, &words->words, byte_id);
    while (vocab->tokens.n < vocab_size && l.nheap > 0) {
        struct pair *p;
        int32_t left, right, id;

        x = pop(&l);
        p = &l.pair[x->pair];
        if (x->count != p->count) {
            x->count = p->count;
            push(&l, x);
            continue;
        }
        if (x->count < 1 || x->count < min_frequency) {
            free_entry(x);
            break;
        }
        if (nrounds == cap) {
            cap = cap ? 2 * cap : 1 << 12;
            round = meg_realloc_array(round, (size_t)cap, sizeof *round);
        }
        left = p->left;
        right = p->right;
        p->merged = nrounds;
        round[nrounds++] = x->pair;
        id = token_of(&vocab->tokens, left, right);
        for (int64_t i = 0; i < x->nwords; i++) /* p may move from here on */
            merge_word(&l, x->word[i], left, right, id);
        push_new_pairs(&l);
        free_entry(x);
    }
    list_merges(&l, round, nrounds);
    while (l.nheap > 0)
        free_entry(pop(&l));
    free(round);
    free(l.heap);
    free(l.opened);
    free(l.pair);
    free(l.slot);
    free(l.sym);
    free(l.len);
}

void meg_bpe_vocab_free(struct meg_bpe_vocab *v)
{
    meg_strtab_free(&v->tokens);
    free(v->merge);
}
