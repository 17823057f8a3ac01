/*
 * GPT: the decoder of GPT-2 (Radford et al. 2019) and, with other settings, of Llama (Touvron et al.
 * 2023), in Megatron's arrangement:
 *   x = word[token] + position[i], dropped out; with rotary positions there is no table
 *   each layer:  m = x + drop(attn(norm(x)));  x = m + drop(mlp(norm(m)))
 *   logits = norm(x) w_out^T;  w_out is the word embedding unless untied
 * Weights are [out, in]; qkv rows are grouped by key-value group: its query heads, its key head,
 * its value head (spec of Megatron core).  The vocabulary is the true one: no padded columns.
 */
#ifndef MEG_MODEL_GPT_H
#define MEG_MODEL_GPT_H
#include "data/batch.h"
#include "model/param.h"
#include "option/opt.h"
#include "parallel/mesh.h"

MEG_BEGIN_DECLS

/* What makes two models the same model.  Unset integers are MEG_UNSET until meg_gpt_conf_check. */
struct meg_gpt_conf {
    int64_t num_layers, hidden_size, ffn_hidden_size, num_attention_heads, kv_channels;
    bool group_query_attention;
    int64_t num_query_groups;
    int64_t max_position_embeddings;
    int64_t vocab_size; /* true size; from the tokenizer or the checkpoint, no option here */
    const char *position_embedding_type, *normalization;
    bool use_rotary; /* another way to say --position-embedding-type rope */
    double rotary_base, rotary_percent;
    bool rotary_interleaved;
    int64_t rotary_interpolation; /* positions are divided by it */
    bool use_rope_scaling;        /* Llama 3's stretching of long wavelengths */
    double rope_scaling_factor;
    double norm_epsilon, init_method_std;
    bool init_method_xavier_uniform;
    bool is_untied; /* --untie-embeddings-and-output-weights */
    bool swiglu;
    bool has_bias; /* of linears; --disable-bias-linear: none but, with add_qkv_bias, qkv's */
    bool add_qkv_bias;
    bool bias_gelu_fusion; /* on: the tanh form of GELU; off, or without biases: the exact one */
    double attention_dropout, hidden_dropout;
};
extern const struct meg_opt meg_gpt_opts[];

/* Fill what follows from other settings, and refuse what breaks a rule (MEG_EUSAGE, all options named). */
int meg_gpt_conf_check(struct meg_gpt_conf *c, struct meg_err *e);

/* What a checked configuration's strings stand for. */
enum meg_norm meg_gpt_norm(const struct meg_gpt_conf *c);
bool meg_gpt_is_rotary(const struct meg_gpt_conf *c);

/* The parameter table of a checked configuration, and what the mesh's rank holds; the caller frees it. */
void meg_gpt_params(struct meg_params *p, const struct meg_gpt_conf *c, const struct meg_mesh *mesh);

/* What backward computes again, in place of keeping it from forward (Korthikanti et al. 2022). */
enum meg_recompute {
    MEG_RECOMPUTE_NONE,
    MEG_RECOMPUTE_SELECTIVE, /* what attention makes of queries, keys and values */
    MEG_RECOMPUTE_UNIFORM,   /* all of every recompute_layers layers but the first one's input */
    MEG_RECOMPUTE_BLOCK      /* the first recompute_layers layers of a chunk, one by one */
};

/* How a model will be run. */
struct meg_gpt_run {
    int64_t s, b;             /* longest sequence, largest micro-batch */
    bool is_training;         /* keeps activations and gradients */
    uint32_t seed;            /* of dropout */
    int64_t microbatch_slots; /* passes of a micro-batch through a chunk that wait for backward; 0 is 1 */
    bool defers_wgrad;        /* meg_gpt_backward leaves gradients of linears to meg_gpt_backward_weight */
    enum meg_recompute recompute;
    int64_t recompute_num_layers;
    bool distribute_saved_activations; /* tensor-parallel ranks share what is kept to start from again */
    enum meg_dtype dtype;              /* of parameters and activations */
    enum meg_dtype residual_dtype;     /* of the residual stream */
    enum meg_dtype grad_dtype;         /* of the gradients of parameters */
    bool shards_params;                /* parameters are there a section at a time: meg_params_unsharded_offset */
    bool shards_grads;                 /* gradients are, and those of one pass at a time */
};

/*
 * What is told of a pass, by section (0 the embedding, 1..L the layers, L+1 the head): reads, before its
 * parameters are read, with the section that the pass will read next, or -1, and whether gradients of this one
 * follow; wrote, once a micro-batch's backward has added all it has to its gradients.
 */
struct meg_gpt_hooks {
    void *user;
    void (*params_needed)(void *user, int section, int next, bool is_backward);
    void (*grads_ready)(void *user, int section);
};

/* Bytes of each arena. */
struct meg_gpt_memory {
    size_t params, grads, activations, workspace;
};
void meg_gpt_memory_size(struct meg_gpt_memory *m, const struct meg_gpt_conf *c, const struct meg_gpt_run *run,
                         const struct meg_mesh *mesh);

/* Model multiply-adds times two of one pass over batch sequences of length s, forward and backward. */
double meg_gpt_flops(const struct meg_gpt_conf *c, int64_t batch, int64_t s);

struct meg_gpt {
    struct meg_gpt_conf conf;
    struct meg_gpt_run run;
    const struct meg_mesh *mesh;
    struct meg_params params;
    const struct meg_ops *op;
    void *w, *g; /* flat buffers [params.flat], or [meg_params_unsharded_numel], of run.dtype and run.grad;
                                      g NULL when not training */
    struct meg_gpt_memory used;  /* bytes in use of each arena at most */
    struct meg_gpt_hooks hooks;  /* the caller's; all NULL at first */
    struct meg_gpt_state *state; /* layers, activations, scratch */
};

/*
 * This rank's part of the model.  All memory at once; weights are zero until meg_gpt_init or a checkpoint
 * fills g->w.  mesh is borrowed for the model's life.
 */
int meg_gpt_create(struct meg_gpt **out, const struct meg_gpt_conf *c, const struct meg_gpt_run *run,
                   const struct meg_ops *op, const struct meg_mesh *mesh, struct meg_err *e);
void meg_gpt_close(struct meg_gpt *g);

/* Initial weights from the seed: N(0, std) by tensor name and element, never by layout. */
void meg_gpt_init(struct meg_gpt *g, uint32_t seed);

/* ---- one pass after the other: every rank has all layers ---- */

/*
 * Loss of each token into token_loss [s,b] (host; may be NULL), and the sum over tokens of
 * loss * loss_mask returned.  Without dropout.
 */
double meg_gpt_loss(struct meg_gpt *g, const struct meg_batch *x, float *token_loss);

/*
 * Forward and backward: gradients of scale * sum(loss * loss_mask) are added to g->g, and
 * sum(loss * loss_mask) is returned.  Dropout is on where x->sample is given.
 */
double meg_gpt_forward_backward(struct meg_gpt *g, const struct meg_batch *x, double scale);

/*
 * After meg_gpt_loss: logits [rows,v] f32 (host) of its tokens first .. first + rows - 1, the same numbers that its
 * losses were taken of.  first is a multiple of meg_gpt_logit_rows, and rows are as many, or all that are left.
 */
int64_t meg_gpt_logit_rows(const struct meg_gpt *g);
void meg_gpt_loss_logits(struct meg_gpt *g, int64_t first, int64_t rows, float *logits);

/* Logits [s,b,v] f32 (host). */
void meg_gpt_logits(struct meg_gpt *g, const struct meg_batch *x, float *logits);

/* ---- pass by pass: a rank has chunks of layers, and micro-batches wait in slots for their backward ---- */

/* What goes from chunk to chunk, gradients the other way: rows [s/t b, h] for t ranks with sequence parallelism. */
size_t meg_gpt_boundary_nbytes(const struct meg_gpt *g);

/*
 * Forward of a micro-batch through a chunk, kept in a slot.  in, out: device memory of a boundary's size;
 * in is not read where the chunk begins with the embedding, and else must stay as it is until the slot's
 * backward has ended; out is not written where it ends with the head.
 * scale: of the loss, as in meg_gpt_forward_backward.
 */
void meg_gpt_forward(struct meg_gpt *g, int64_t chunk, int64_t slot, const struct meg_batch *x, double scale,
                     const void *in, void *out);
/* For the chunk with the head: losses of what is in the slot, as meg_gpt_loss. */
double meg_gpt_slot_loss(struct meg_gpt *g, int64_t slot, float *token_loss);
/*
 * Backward of what is in the slot: d_out, the gradient of out, gives d_in, that of in, and gradients of
 * parameters are added to g->g.  Where the chunk ends with the head d_out is not read, and the sum of
 * loss * loss_mask is returned; else 0.  d_in is not written where it begins with the embedding.
 */
double meg_gpt_backward(struct meg_gpt *g, int64_t chunk, int64_t slot, const void *d_out, void *d_in);
/* With run.defers_weights: the gradients of linears' weights, after meg_gpt_backward of that slot. */
void meg_gpt_backward_weight(struct meg_gpt *g, int64_t chunk, int64_t slot);

/*
 * Keys and values of b sequences ("slots") of up to s tokens each, for decoding.  A slot's logits
 * depend on its own tokens only, to the last bit: rows are computed in blocks of fixed size.
 */
struct meg_gpt_kv_cache;
int meg_gpt_kv_cache_create(struct meg_gpt_kv_cache **out, struct meg_gpt *g, int64_t s, int64_t b, struct meg_err *e);
void meg_gpt_kv_cache_close(struct meg_gpt_kv_cache *c);
/* Forget what slot holds. */
void meg_gpt_kv_cache_clear(struct meg_gpt_kv_cache *c, int64_t slot);
/* Tokens slot holds. */
int64_t meg_gpt_kv_cache_len(const struct meg_gpt_kv_cache *c, int64_t slot);
/*
 * Fill an empty slot with n tokens, from 1 to the s b of g's run; logits [v] f32 (host) of the last of
 * them, or NULL.
 */
void meg_gpt_prefill(struct meg_gpt *g, struct meg_gpt_kv_cache *c, int64_t slot, const int32_t *tokens, int64_t n,
                     float *logits);
/* Append one token to each of n different slots; logits [n,v] f32 (host). */
void meg_gpt_decode(struct meg_gpt *g, struct meg_gpt_kv_cache *c, const int64_t *slot, const int32_t *tokens,
                    int64_t n, float *logits);

MEG_END_DECLS
#endif
