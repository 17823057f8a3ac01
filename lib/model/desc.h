/*
 * desc.h - the description of a model as data.  A model has one stack of layers, or two: an encoder and a decoder.
 * Each layer is a list of residual blocks (nn/block.h).  Heads compute the losses from the output of the last stack.
 * The family of a model, such as GPT, makes the description from the options (model/family.h).  The parameter table,
 * buffers, forward and backward follow from the description.
 */
#pragma once
#include "model/rope.h"
#include "nn/head.h"
#include "tensor/step.h"

struct meg_block {
    const struct meg_block_type *type;
    void *conf;              /* configuration of the mixer; owned by the description */
    const char *norm;        /* name of the norm of the mixer's input, such as "input_layernorm"; NULL: none */
    enum meg_drop_site site; /* site of the dropout of the mixer's output */
    /*
     * Add the output of the mixer to the output of the norm instead of to x: y + drop(mixer(y)), y = norm(x).  This is
     * the post-LN of the original BERT (Devlin et al. 2019), in which a norm follows the embedding and each addition.
     */
    bool residual_from_norm;
    /*
     * A mixer with one of these has no bias of its output.  Gemma 2 has norms before and after each mixer (sandwich
     * norm), OLMo 2 only after it, and Granite has a factor.
     */
    const char *post_norm; /* name of the norm of the mixer's output; NULL: none */
    float scale;           /* factor of the output, after this norm; 0: none */
    /*
     * The mixer is parallel to that of the previous block: its output is added to that of the previous block.  If it
     * has a norm, it reads the norm of the same x, as in GPT-NeoX; otherwise it has the same input as the mixer of the
     * previous block: x + drop(attention(y) + mlp(y)), y = norm(x), is the layer of GPT-J and Falcon.  The dropout is
     * that of the first of the parallel blocks.
     */
    bool is_parallel;
};

/* A layer is the unit of checkpoint files, pipeline stages and recomputation. */
struct meg_layer {
    char prefix[40]; /* of the names of its parameters, such as "decoder.layers.3." */
    int first, n;    /* its blocks (struct meg_block_list) */
    int stack;
};

/*
 * A stack: layers [begin, end) of the model, in the order of the forward pass, with the embedding of its tokens before
 * and a norm after the layers.  All stacks use the same embedding.  The heads read the output of the last stack.  If
 * there are two stacks, the first one is the encoder and the second one the decoder.  Blocks of the decoder, such as
 * cross-attention, may also read the output of the encoder (struct meg_memory).
 */
enum { MEG_MAX_STACKS = 2 };
struct meg_stack {
    const char *final_norm; /* name of the norm after the last layer */
    int64_t begin, end;
    enum meg_batch_field tokens, position_ids, key_length; /* arrays of the micro-batch that the stack reads */
    const char *rel_bias;  /* name of the relative bias of attention scores (struct meg_rel_bias); NULL: none */
    bool is_bidirectional; /* of the relative bias: keys before and after a query have different buckets */
    int rel_bias_tie;      /* index of the relative bias in meg_model_desc.tie */
};

/* A loss, which a head computes, or to which blocks add (meg_ctx_add_loss). */
struct meg_loss {
    const char *name;     /* in logs, such as "lm loss" */
    bool is_per_sequence; /* there is a value for each sequence; otherwise, for each token */
};

struct meg_head {
    const struct meg_head_type *type;
    void *conf; /* configuration of the type; owned by the description */
    int loss;   /* index of its loss */
};

struct meg_model_desc {
    int64_t h, v;           /* width of the residual stream, number of tokens in the vocabulary */
    unsigned inputs;        /* arrays of a micro-batch that the model reads, a bit mask (enum meg_batch_field) */
    int64_t positions;      /* rows of the learned position embedding; 0 without it */
    int64_t first_position; /* row of position 0 */
    int64_t token_types;    /* rows of the embedding of token types; 0 without it */
    meg_init_fn *init;      /* of weight matrices */
    double std;             /* of the initial embeddings and relative biases */
    double embedding_multiplier;
    bool
        rounds_embedding_multiplier; /* round this factor to the dtype of activations, as transformers does for Gemma */
    bool has_embed_norm;             /* norm of the word embedding, after this factor */
    enum meg_norm norm;
    bool norm_has_weight, norm_has_bias;
    double norm_eps, hidden_dropout;
    struct meg_rope_conf rope[MEG_ROPE_SETS];
    int64_t alibi_heads; /* attention heads of a layer, whose scores have the slopes of ALiBi; 0: they have none */
    int64_t rel_bias_buckets, rel_bias_heads, rel_bias_max_distance;
    struct meg_stack stack[MEG_MAX_STACKS];
    int nstacks;
    struct meg_tie tie[MEG_MAX_TIES]; /* tied parameters: the layer groups that use them */
    int nties;
    int word_tie;      /* index in `tie` of the word embedding; -1: not tied */
    int embedding_tie; /* index in `tie` of the other embeddings; -1: not tied */
    bool is_untied;    /* no head uses the word embedding as its output matrix */
    /*
     * Return whether a parameter is trained; the others are frozen.  The weight and the bias of a norm are trained
     * together, and the bias of a linear layer only with its weight.  NULL: all are trained
     */
    bool (*is_trained)(const struct meg_param *row);
    struct meg_head head[MEG_MAX_LOSSES];
    int nheads;
    struct meg_loss loss[MEG_MAX_LOSSES];
    int nlosses;
    bool averages_batches; /* logged losses are means over micro-batches (meg_model_averages_batches) */
    struct meg_block *block;
    int nblocks;
    struct meg_layer *layer;
    int64_t nlayers;
};

/* Describe the model of a configuration that meg_model_conf_check has accepted.  Free it with meg_model_desc_free. */
void meg_model_describe(struct meg_model_desc *d, const struct meg_model_conf *c);
void meg_model_desc_free(struct meg_model_desc *d);

/* The tensors that the layers of one pipeline stage send to the next. */
enum meg_boundary {
    MEG_BOUNDARY_RESIDUAL, /* hidden states of a stack */
    MEG_BOUNDARY_MEMORY,   /* output of the encoder */
    MEG_BOUNDARY_TENSORS
};
/* Return a bit mask (enum meg_boundary) of the tensors that are sent to a stage whose first layer is `layer`. */
unsigned meg_desc_boundary(const struct meg_model_desc *d, int64_t layer);

/* Append a block and return its index.  The configuration, of the given size in bytes, is copied. */
int meg_desc_add_block(struct meg_model_desc *d, const struct meg_block_type *type, const void *conf, size_t conf_size,
                       const char *norm, enum meg_drop_site site);
/* Append a loss and return its index. */
int meg_desc_add_loss(struct meg_model_desc *d, const char *name, bool is_per_sequence);
/* Append a head and its loss.  The configuration, of the given size in bytes, is copied. */
void meg_desc_add_head(struct meg_model_desc *d, const struct meg_head_type *type, const void *conf, size_t conf_size,
                       const char *loss);
/*
 * Append a stack without layers, which reads the arrays MEG_BATCH_TOKENS, MEG_BATCH_POSITION_IDS and
 * MEG_BATCH_KEY_LENGTH of a micro-batch.  Return the stack, in which the caller may choose other arrays.
 */
struct meg_stack *meg_desc_add_stack(struct meg_model_desc *d, const char *final_norm);
/* The n blocks of a layer, from index `first` on.  Layers may share them; each layer has its own parameters. */
struct meg_block_list {
    int first, n;
};
/*
 * Append n layers to the last stack.  Layer i has the blocks pattern[i % period], and the names of its parameters begin
 * with "name.layers.i.", where i is its index in the stack.
 */
void meg_desc_add_layers(struct meg_model_desc *d, const struct meg_block_list *pattern, int period, int64_t n,
                         const char *name);

/* transformer.c: set the fields that depend on the options in the same way in all families, such as widths. */
void meg_desc_set_common(struct meg_model_desc *d, const struct meg_model_conf *c);
/* The layers of a stack.  Each layer consists of self-attention, optionally cross-attention, and an MLP. */
struct meg_transformer {
    const char *name; /* begins the names of its parameters: "decoder" or "encoder" */
    int64_t layers;
    bool is_bidirectional;    /* else causal */
    bool has_cross_attention; /* the layers read the output of the encoder */
};
/* transformer.c: append the layers to the last stack. */
void meg_desc_add_transformer(struct meg_model_desc *d, const struct meg_model_conf *c,
                              const struct meg_transformer *t);
