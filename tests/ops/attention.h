/* attention.h - what the cases of attn_fwd and attn_bwd have in common. */
#ifndef TESTS_OPS_ATTENTION_H
#define TESTS_OPS_ATTENTION_H
#include "ops.h"

/* Flags of a case, which are also the variant of the call. */
enum {
    ATTN_DOCS = 1 << 0,     /* packed documents */
    ATTN_LENGTHS = 1 << 1,  /* key_length: complete, half, 0 */
    ATTN_ALIBI = 1 << 2,    /* slopes in [-1, 1) */
    ATTN_REL_BIAS = 1 << 3, /* bidirectional if the window is not causal */
    ATTN_SINKS = 1 << 4,
    ATTN_STARTS = 1 << 5,   /* query_start */
    ATTN_PAGED = 1 << 6,    /* KV caches in blocks of 16 tokens */
    ATTN_SEPARATE = 1 << 7, /* with ATTN_PAGED: one block per sequence */
    ATTN_PACKED = 1 << 8,   /* heads have the strides of packed qkv */
    ATTN_GIVEN_DELTA = 1 << 9,
    ATTN_ACCUMULATE = 1 << 10,        /* the gradients of q, k and v */
    ATTN_ACCUMULATE_PARAMS = 1 << 11, /* those of rel_bias and sinks */
    ATTN_OTHER_KEYS = 1 << 12,        /* lse and o of attn_bwd are those of more keys than the call has */
    ATTN_EQUAL = 1 << 13,             /* q is 0: a query attends equally to its keys, so that each is significant */
    ATTN_ONES = 1 << 14,              /* v is 1, so that errors of weights that are rounded to nearest cancel */
    ATTN_TIGHT = 1 << 15,             /* CUDA: the gradients are as accurate as rounded weights allow */
    ATTN_NAN_KEY = 1 << 16,
    ATTN_INFINITE_KEY = 1 << 17,
    ATTN_NAN_VALUE = 1 << 18,
    ATTN_NOT_FINITE = ATTN_NAN_KEY | ATTN_INFINITE_KEY | ATTN_NAN_VALUE,
    ATTN_KNOWN_SAMPLE = 1 << 19 /* the sample of sequence 0 is ATTN_SAMPLE */
};
enum { ATTN_SAMPLE = 3 };

/* A case.  Sizes that are 0 have the defaults of attn_complete. */
struct attn_conf {
    int64_t s_q, s_k, b, a, g, d, d_v, q0, k0;
    int64_t left, right; /* window */
    int64_t pad;         /* row padding, in elements */
    float softcap, p;    /* p: of dropout */
    int flags;
    int64_t buckets, max_distance; /* of the relative attention bias */
    enum meg_dtype q, k, v, o, grad;
};

/* Return a case with type t for all tensors. */
static inline struct attn_conf attn_of_type(struct attn_conf c, enum meg_dtype t)
{
    c.q = c.k = c.v = c.o = c.grad = t;
    return c;
}

/* Run a case. */
void attn_fwd_case(struct attn_conf c);
void attn_bwd_case(struct attn_conf c);

/* Run the cases of one group. */
typedef void attn_case(struct attn_conf c);
void attn_masks(attn_case *run);
void attn_sizes(attn_case *run);
void attn_chunks(attn_case *run);
void attn_scores(attn_case *run);
void attn_dropout(attn_case *run);
void attn_types(attn_case *run);
void attn_many_tiles(attn_case *run);
void attn_decoding(attn_case *run);
void attn_paged(attn_case *run);
void attn_not_finite(attn_case *run);
void attn_bench(attn_case *run);
#define ATTN_CASES(op, group)                                                                                          \
    static void op##_##group(void)                                                                                     \
    {                                                                                                                  \
        attn_##group(attn_##op##_case);                                                                                \
    }

/* Add the missing sizes of a case, and return the struct of its arguments. */
struct attn_conf attn_complete(struct attn_conf c);
struct meg_attn_desc attn_desc_of(const struct attn_conf *c);
struct meg_drop attn_drop_of(const struct attn_conf *c);
/* Return a view of the heads of q, k or v (d columns), or o. */
struct meg_heads attn_queries_of(const struct attn_conf *c, enum meg_dtype t);
struct meg_heads attn_keys_of(const struct attn_conf *c, enum meg_dtype t, int64_t d);
struct meg_heads attn_outputs_of(const struct attn_conf *c, enum meg_dtype t);
/* Set q, k, v, and the tensors of the descriptor. */
void attn_fill(struct op_call *c);
/* Return the tolerance of a CUDA result compared with the CPU (op_test.cuda). */
double attn_cuda(const struct op_call *c, const struct op_tensor *t);

/* ---- the reference ---- */

/* The values of a call of attn_fwd or attn_bwd; those of absent tensors are NULL. */
struct attn {
    const struct op_tensor *keys; /* k */
    const struct meg_attn_desc *desc;
    const struct meg_drop *drop;
    const double *q, *k, *v;
    const double *doc_start, *key_length, *slope, *rel_bias, *sink, *query_start, *block_offset, *sample;
};
struct attn attn_of(struct op_call *c);

/* Query t of head j of sequence i. */
struct attn_query {
    int64_t i, j, t;
    int64_t q, o, lse; /* index of the first element of its query, output and lse */
    double *score;     /* [s_k]; -infinity for keys that are masked */
    double *slope;     /* [s_k]: d score / d q.k */
    double *keep;      /* [s_k]: dropout factor */
};
/* Compute the scores of the query with this index in lse. */
struct attn_query attn_query_at(const struct attn *x, int64_t at);
void attn_query_free(const struct attn_query *y);
/* Compute the output o [d_v] of a query, and return lse. */
double attn_output(const struct attn *x, const struct attn_query *y, double *o);
/* Return the index of the head of a key in k [rows,d] and v [rows,d_v]. */
int64_t attn_key_row(const struct attn *x, const struct attn_query *y, int64_t key);
int64_t attn_bucket(int64_t buckets, int64_t max_distance, bool is_bidirectional, int64_t relative);
/* Return the index of the bias of a key in rel_bias. */
int64_t attn_bias_at(const struct attn *x, const struct attn_query *y, int64_t key);
/* Return a bound of the errors of scores in f32, which also bounds the relative errors of weights and their sums. */
double attn_tolerance(const struct attn *x);

#endif
