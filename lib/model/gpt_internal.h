/* What the files of the model share. */
#ifndef MEG_MODEL_GPT_INTERNAL_H
#define MEG_MODEL_GPT_INTERNAL_H
#include "model/gpt.h"
#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/lm_head.h"
#include "nn/mlp.h"
#include "nn/norm.h"
#include "nn/sequence_parallel.h"

/* Rows of a decoding step, always this many: a row's result does not depend on how many are in use. */
enum { DECODE_ROWS = 16 };

struct gpt_layer {
    struct meg_norm_weights norm1, norm2;
    struct meg_attn attn;
    struct meg_mlp mlp;
};

/* What a layer keeps for its backward pass. */
struct gpt_acts {
    struct meg_mat x, ln1, residual, ln2; /* rows of the residual stream, h columns */
    struct meg_norm_stats ln1_stats, ln2_stats;
    struct meg_attn_acts attn;
    struct meg_mlp_acts mlp;
};

/* Gradients on their way back. */
struct gpt_grads {
    struct meg_mat x, ln, attn_out, mlp_out; /* rows of the residual stream, h columns */
    struct meg_attn_grads attn;
    struct meg_mlp_acts mlp;
};

/* A micro-batch on its way through a chunk. */
struct gpt_slot {
    int64_t s, b;
    struct gpt_acts *acts; /* [layers of a chunk]; the first one's input is the embedding's output
                                                in x0, or where the pipeline received it */
    void *embed_out;
    struct meg_mat *saved;   /* [layers of a chunk] this rank's part of a recomputed layer's input,
                                                with distributes_saved */
    struct gpt_grads *grads; /* [layers of a chunk], with defers_weights */
    struct meg_mat last_out; /* output of the last layer before the head */
    int32_t *tokens, *labels, *position_ids, *doc_start; /* [n], device */
    float *loss_weight;                                  /* [n], device: of each loss in what gradients are of */
    int64_t *sample_id;                                  /* [b] used, device */
    bool has_doc_start, has_dropout;
    float *loss_mask; /* [n], host */
};

/* Sizes of a run on this rank. */
struct gpt_dims {
    int64_t s, b, n, residual_rows; /* positions, sequences; all rows, and those of the residual stream */
    int64_t h, attn_width, qkv_width, f, fc1_width, v, v0, a, g, rope_half, positions;
    int64_t layers, chunks, slots; /* of a chunk, of a rank, of micro-batches */
    int64_t tp;
    bool has_embedding, has_head; /* one of its chunks has */
};

struct meg_gpt_state {
    struct meg_ctx ctx;
    struct gpt_dims dim;
    struct gpt_layer *layer;     /* [chunks, layers] */
    struct gpt_slot *slot;       /* [slots] */
    struct gpt_acts *recomputed; /* of layers that are recomputed */
    struct meg_norm_weights final_norm;
    struct meg_embed embed;
    struct meg_rope rope;
    struct meg_cp *cp; /* [ncp]: one for all layers of the model, or one for each */
    int ncp;
    struct meg_attn_workspace attn_workspace;
    struct meg_lm_head head;
    struct meg_mat sublayer_out; /* output of attention or MLP before it joins */
    struct meg_mat lnf;          /* the last layer's output, normed */
    struct meg_norm_stats lnf_stats;
    struct gpt_grads grads;     /* shared by all layers, but for what a slot keeps */
    float *loss;                /* [n], device */
    int32_t *position_of_row;   /* [s], device */
    float *host_loss;           /* [n] */
    int32_t *host_position_ids; /* [s] */
    void *activations, *workspace;
};

/* ---- gpt_buffers.c: which buffers there are ---- */

/* Host arrays of a run, and its sizes. */
struct meg_gpt_state *gpt_state_new(const struct meg_gpt_conf *c, const struct meg_gpt_run *run,
                                    const struct meg_mesh *mesh);
void gpt_state_free(struct meg_gpt_state *st);
/* Cut all buffers out of two arenas. */
void gpt_buffers_suballoc(struct meg_gpt_state *st, const struct meg_gpt_run *run, struct meg_suballoc *activations,
                          struct meg_suballoc *workspace);

/* Layers [begin, end) around layer i of a chunk that are recomputed from one input; false: i is kept. */
bool gpt_recompute_range(const struct meg_gpt_run *run, int64_t layers, int64_t i, int64_t *begin, int64_t *end);

/* ---- gpt_forward_backward.c ---- */

/* Put a micro-batch into a slot and make it the running one. */
void gpt_load_batch(struct meg_gpt *g, int64_t slot, const struct meg_batch *x, double scale, bool has_dropout);
/* All layers of a chunk; out as in meg_gpt_forward. */
void gpt_layers_fwd(struct meg_gpt *g, int64_t chunk, int64_t slot, void *out);
/* Logits of rows [first, first + rows) of the normed output in nf; the first kept of them to the host. */
void gpt_logits_to_host(struct meg_gpt *g, int64_t first, int64_t rows, int64_t kept, float *out);

#endif
