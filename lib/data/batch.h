/* batch.h - a micro-batch of token sequences in host memory. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Functions that allocate and release host memory; alloc returns NULL if memory is exhausted. */
struct meg_batch_memory {
    void *(*alloc)(size_t nbytes);
    void (*release)(void *p);
};

/*
 * A micro-batch of b sequences, s tokens each.  Arrays without another shape are [s,b]: token t of sequence i is
 * element t * b + i.  With context parallelism, s is the number of tokens per sequence on this rank.
 * In a causal model, a query may attend to keys from its doc_start to its own position.  doc_start is 0 or, with
 * reset_attention_mask, the start of the query's document.
 * GPT: the loss mask is 0 at a token whose label is padding and, with eod_mask_loss, at an end-of-document token.  At
 * all other tokens it is 1.  BERT: the loss mask is 1 at masked tokens and 0 at all other tokens.
 * T5: the arrays of s tokens belong to the decoder, and the loss mask is 1 at tokens and 0 at padding.
 * Sample numbers seed the dropout masks.  They are the same in every parallel layout.
 * A batch has the arrays that its dataset fills; others are NULL.
 */
struct meg_batch {
    int64_t s, b;
    int32_t *tokens;           /* ids in [0, vocabulary); GPT: padding is 0; BERT, T5: it is the pad id */
    int32_t *labels;           /* target ids; GPT: the next token; T5: the next token, -1 at padding; BERT: the original
                                 id of a masked token, -1 at other tokens; NULL: no loss is computed */
    int32_t *position_ids;     /* position in the full sequence or, with reset_position_ids, in the document */
    int32_t *doc_start;        /* position of the first key that each query may attend to; NULL: 0 */
    float *loss_mask;          /* 1: the loss of the label counts; 0: it does not; NULL: all 1 */
    int64_t *sample_id;        /* [b] global sample numbers; NULL: no dropout */
    int32_t *token_types;      /* BERT: segment of each token, 0 or 1; NULL: none */
    int32_t *key_length;       /* [b] BERT: number of tokens before the padding; NULL: there is no padding */
    int32_t *sentence_order;   /* [b] BERT: 1 if the segments are swapped, else 0; NULL: no binary head */
    int64_t s_enc;             /* T5: tokens per sequence of the input of the encoder; 0: none */
    int32_t *enc_tokens;       /* [s_enc,b] T5: input of the encoder */
    int32_t *enc_position_ids; /* [s_enc,b] T5: 0, 1, ... in each sequence */
    int32_t *enc_key_length;   /* [b] T5: number of tokens of the encoder's input before the padding */
    int64_t num_unmasked;     /* tokens with loss_mask 1, summed over the context-parallel ranks; normalizes the loss */
    bool is_pinned;           /* the arrays are in pinned memory (tensor/ops.h) */
    void (*release)(void *p); /* frees one array of meg_batch_alloc */
};

/* Indices of the arrays of a batch in meg_batch_fields. */
enum meg_batch_field {
    MEG_BATCH_TOKENS,
    MEG_BATCH_LABELS,
    MEG_BATCH_POSITION_IDS,
    MEG_BATCH_DOC_START,
    MEG_BATCH_LOSS_MASK,
    MEG_BATCH_SAMPLE_ID,
    MEG_BATCH_TOKEN_TYPES,
    MEG_BATCH_KEY_LENGTH,
    MEG_BATCH_SENTENCE_ORDER,
    MEG_BATCH_ENC_TOKENS,
    MEG_BATCH_ENC_POSITION_IDS,
    MEG_BATCH_ENC_KEY_LENGTH,
    MEG_BATCH_NUM_FIELDS
};
/* The fields that the batches of GPT, BERT and T5 have, as bit masks: bit f is field f (enum meg_batch_field). */
enum {
    MEG_BATCH_GPT_FIELDS = 1 << MEG_BATCH_TOKENS | 1 << MEG_BATCH_LABELS | 1 << MEG_BATCH_POSITION_IDS |
                           1 << MEG_BATCH_LOSS_MASK | 1 << MEG_BATCH_SAMPLE_ID, /* and optionally doc_start */
    MEG_BATCH_BERT_FIELDS =
        MEG_BATCH_GPT_FIELDS | 1 << MEG_BATCH_TOKEN_TYPES | 1 << MEG_BATCH_KEY_LENGTH | 1 << MEG_BATCH_SENTENCE_ORDER,
    MEG_BATCH_T5_FIELDS = MEG_BATCH_GPT_FIELDS | 1 << MEG_BATCH_ENC_TOKENS | 1 << MEG_BATCH_ENC_POSITION_IDS |
                          1 << MEG_BATCH_ENC_KEY_LENGTH
};

/* The shape of an array. */
enum meg_batch_dim {
    MEG_BATCH_PER_TOKEN,     /* [s,b] */
    MEG_BATCH_PER_ENC_TOKEN, /* [s_enc,b] */
    MEG_BATCH_PER_SEQUENCE   /* [b] */
};

struct meg_batch_field_info {
    size_t offset; /* byte offset of the pointer in struct meg_batch */
    size_t size;   /* bytes per element of the array */
    enum meg_batch_dim dim;
};
extern const struct meg_batch_field_info meg_batch_fields[MEG_BATCH_NUM_FIELDS];

/* Return the address of the pointer to the array of a field. */
static inline void **meg_batch_array(struct meg_batch *x, int field)
{
    return (void **)(void *)((char *)x + meg_batch_fields[field].offset);
}

/* Return the number of elements that the array of a field has for each sequence. */
static inline int64_t meg_batch_length(const struct meg_batch *x, int field)
{
    const enum meg_batch_dim dim = meg_batch_fields[field].dim;

    return dim == MEG_BATCH_PER_SEQUENCE ? 1 : dim == MEG_BATCH_PER_TOKEN ? x->s : x->s_enc;
}

/* Return the number of elements of a field. */
static inline int64_t meg_batch_numel(const struct meg_batch *x, int field)
{
    return meg_batch_length(x, field) * x->b;
}

/*
 * Allocate the arrays of a batch of b sequences, for the fields of a bit mask.  A sequence has s tokens and, in the
 * input of an encoder, s_enc tokens.  The arrays are in the pinned memory that `pinned` allocates or, if `pinned` is
 * NULL, in other memory.  The process ends if memory is exhausted.  The values are undefined.  Free with
 * meg_batch_free.
 */
void meg_batch_alloc(struct meg_batch *x, int64_t s, int64_t s_enc, int64_t b, unsigned fields,
                     const struct meg_batch_memory *pinned);
/* Return the fields whose arrays are not NULL, as a bit mask. */
unsigned meg_batch_present(const struct meg_batch *x);
/* Free the arrays that meg_batch_alloc allocated and zero *x; a zeroed batch is accepted. */
void meg_batch_free(struct meg_batch *x);
