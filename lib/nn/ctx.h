/* What every layer's forward and backward is given: where to compute, for whom, and which micro-batch. */
#ifndef MEG_NN_CTX_H
#define MEG_NN_CTX_H
#include <stdbool.h>
#include "comm/comm.h"
#include "tensor/suballoc.h"

MEG_BEGIN_DECLS

/*
 * When decoding, rows of a micro-batch belong to several sequences whose keys and values are in a cache:
 * rows row .. row+rows-1 stand at positions first .. of the sequence kept at p + layer * layer_bytes
 * as [position, g, 2, d].
 */
struct meg_kv_cache_seq {
    int64_t row0, rows, position0;
    char *cache;
    size_t layer_bytes;
};

struct meg_ctx {
    const struct meg_ops *op;
    struct meg_stream *stream;
    struct meg_comm *tp;
    bool has_sp;                       /* sequence parallelism: nn/sequence_parallel.h */
    void *sp_buffer[2];                /* scratch for all rows of the residual stream, with it */
    bool defers_wgrad;                 /* backward leaves gradients of linears' weights for later */
    enum meg_dtype dtype;              /* of parameters and activations */
    enum meg_dtype grad_dtype;         /* of gradients of parameters */
    int64_t s, b;                      /* this micro-batch, s of one context-parallel rank; n = s*b rows */
    uint32_t seed;                     /* of dropout */
    const int64_t *sample_id;          /* [b] device; NULL: no dropout */
    const int32_t *position_ids;       /* [s,b] device */
    const int32_t *doc_start;          /* [s,b] device, or NULL */
    const int32_t *position_of_row;    /* device: where the residual stream's rows stand in the whole sequence, one for
                                    each b rows; NULL: row 0 at 0 */
    const struct meg_kv_cache_seq *kv; /* [nkv] when decoding, or NULL */
    int64_t nkv;
};

/* Dropout of probability p at a site of a layer in this micro-batch; none when it has no sample numbers. */
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
