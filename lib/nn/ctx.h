/* ctx.h - the context of a layer's forward and backward: backend, ranks, data types and the current micro-batch. */
#ifndef MEG_NN_CTX_H
#define MEG_NN_CTX_H
#include <stdbool.h>
#include "comm/comm.h"
#include "tensor/suballoc.h"

MEG_BEGIN_DECLS

/*
 * Decoding: rows [row0, row0 + rows) of the micro-batch are tokens at positions position0 .. of one sequence, whose
 * keys and values of a layer are at cache + layer * layer_bytes, as [position, g, 2, d].
 */
struct meg_kv_cache_seq {
    int64_t row0, rows, position0;
    char *cache;
    size_t layer_bytes;
};

struct meg_ctx {
    const struct meg_ops *op;
    struct meg_stream *stream;
    struct meg_comm *tp;               /* tensor-parallel group */
    bool has_sp;                       /* sequence parallelism: nn/sequence_parallel.h */
    void *sp_buffer[2];                /* with it, workspace for all rows: gathered rows, partial sums */
    bool defers_wgrad;                 /* backward leaves the weight gradients of linears to *_bwd_weight */
    enum meg_dtype dtype;              /* of parameters and activations */
    enum meg_dtype grad_dtype;         /* of gradients of parameters */
    int64_t s, b;                      /* micro-batch: s positions of this context-parallel rank; n = s*b rows */
    uint32_t seed;                     /* of dropout */
    const int64_t *sample_id;          /* [b] device; NULL: no dropout */
    const int32_t *position_ids;       /* [s,b] device */
    const int32_t *doc_start;          /* [s,b] device: position of the first token that each may see; or NULL */
    const int32_t *position_of_row;    /* device: global sequence position of each b rows of the residual stream of this
                                          rank; NULL: rows start at position 0 and are consecutive */
    const struct meg_kv_cache_seq *kv; /* [nkv] when decoding, else NULL */
    int64_t nkv;
};

/* Return the dropout of probability p at a site of a layer for the micro-batch; no dropout without sample ids. */
static inline struct meg_drop meg_ctx_drop(const struct meg_ctx *c, double p, int layer, enum meg_drop_site site)
{
    struct meg_drop d = { 0 };
    d.p = c->sample_id ? (float)p : 0;
    d.seed = c->seed;
    d.layer = layer;
    d.site = site;
    d.b = c->b;
    d.sample = c->sample_id;
    d.position_of_row = c->position_of_row;
    return d;
}

MEG_END_DECLS
#endif
