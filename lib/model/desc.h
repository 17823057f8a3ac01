/*
 * desc.h - the description of a model as data: an embedding, a list of layers, each a run of residual blocks
 * (nn/block.h), a final norm and a language-model head.  A family of models, such as GPT, is a function that makes the
 * description from the options.  The parameter table, buffers, forward and backward follow from it.
 */
#ifndef MEG_MODEL_DESC_H
#define MEG_MODEL_DESC_H
#include "model/conf.h"
#include "nn/head.h"
#include "tensor/step.h"

MEG_BEGIN_DECLS

struct meg_block {
    const struct meg_block_type *type;
    void *conf;              /* configuration of the mixer; owned by the description */
    const char *norm;        /* name of the norm of the mixer's input, such as "input_layernorm" */
    enum meg_drop_site site; /* of the dropout of the mixer's output */
    /*
     * The residual is the output of the norm (BERT's post-LN, Devlin et al. 2019, with norms counted from the embedding):
     * y + drop(mixer(y)), y = norm(x)
     */
    bool is_post_norm;
};

/* A layer is the unit of checkpoint files, pipeline stages and recomputation. */
struct meg_layer {
    char prefix[40]; /* of the names of its parameters, such as "decoder.layers.3." */
    int first, n;    /* its blocks; layers may share blocks */
};

/* A head, and its loss. */
struct meg_head {
    const struct meg_head_type *type;
    void *conf;       /* configuration of the type; owned by the description */
    const char *loss; /* name of the loss in logs, such as "lm loss" */
};

/* Rotary tables: column pair i is rotated by position / interpolation * base^(-i/half). */
struct meg_rope_conf {
    int64_t half, positions; /* rotated column pairs per head, rows of the tables; half is 0 without rotary positions */
    double base, interpolation;
    double scaling_factor; /* divide the frequencies of long wavelengths by it, as Llama 3.1 does; 0: no scaling */
    bool is_interleaved;
};

struct meg_model_desc {
    int64_t h, v;              /* width of the residual stream, number of tokens in the vocabulary */
    unsigned inputs;           /* arrays of a micro-batch that the model reads, a bit mask (enum meg_batch_field) */
    int64_t positions;         /* rows of the learned position embedding; 0 without it */
    int64_t token_types;       /* rows of the embedding of token types; 0 without it */
    enum meg_init_method init; /* of weight matrices */
    double std;                /* of the initial embeddings and of an untied output layer */
    enum meg_norm norm;
    double norm_eps, hidden_dropout;
    struct meg_rope_conf rope;
    const char *final_norm;           /* name of the norm before the head */
    struct meg_tie tie[MEG_MAX_TIES]; /* tied parameters: the layer groups that use them */
    int nties;
    int word_tie;   /* of the word embedding; -1: not tied */
    bool is_untied; /* no head uses the word embedding as its output matrix */
    struct meg_head head[MEG_MAX_LOSSES];
    int nheads;
    bool averages_batches; /* logged losses are means over micro-batches (meg_model_averages_batches) */
    struct meg_block *block;
    int nblocks;
    struct meg_layer *layer;
    int64_t nlayers;
};

/* Describe the model of a configuration that meg_model_conf_check has accepted.  Free it with meg_model_desc_free. */
void meg_model_describe(struct meg_model_desc *d, const struct meg_model_conf *c);
void meg_model_desc_free(struct meg_model_desc *d);

/* Append a block and return its index.  The configuration, of the given size in bytes, is copied. */
int meg_desc_add_block(struct meg_model_desc *d, const struct meg_block_type *type, const void *conf, size_t conf_size,
                       const char *norm, enum meg_drop_site site);
/* Append a head.  The configuration, of the given size in bytes, is copied. */
void meg_desc_add_head(struct meg_model_desc *d, const struct meg_head_type *type, const void *conf, size_t conf_size,
                       const char *loss);
/* Append a layer of the n blocks from index `first` on, with the name "stack.layers.index.". */
void meg_desc_add_layer(struct meg_model_desc *d, int first, int n, const char *stack, int64_t index);

/* gpt.c: the decoder of GPT-2 and Llama (model/conf.h). */
void meg_gpt_describe(struct meg_model_desc *d, const struct meg_model_conf *c);
/* bert.c: the encoder of BERT. */
void meg_bert_describe(struct meg_model_desc *d, const struct meg_model_conf *c);

/* transformer.c: set the fields that follow from the options alike in all families, such as widths and rotary tables. */
void meg_desc_set_common(struct meg_model_desc *d, const struct meg_model_conf *c);
/*
 * transformer.c: append c->num_layers layers of attention and MLP.  `stack`, "decoder" or "encoder", begins the names of
 * their parameters.
 */
void meg_desc_add_transformer(struct meg_model_desc *d, const struct meg_model_conf *c, const char *stack,
                              bool is_bidirectional);

MEG_END_DECLS
#endif
