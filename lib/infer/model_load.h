/* model_load.h - load a trained model and its tokenizer for inference. */
#pragma once
#include "ckpt/given_model.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

enum meg_load_dtype { MEG_LOAD_AUTO, MEG_LOAD_FP32, MEG_LOAD_BF16, MEG_LOAD_FP16 };

struct meg_load_conf {
    const char *load;                 /* --load: checkpoint directory in meg's, Hugging Face's or Megatron's format */
    int64_t ckpt_step;                /* --ckpt-step, or MEG_UNSET: the latest */
    enum meg_load_dtype params_dtype; /* --params-dtype; MEG_LOAD_AUTO: the dtype of the weights in the checkpoint */
    bool bf16, fp16;                  /* --bf16, --fp16 */
    struct meg_device_conf device;
    struct meg_given_model model; /* model options, which must agree with the checkpoint */
};
extern const struct meg_opt meg_load_opts[];
/* Options of Megatron's programs for generation and evaluation that have no effect, or that are not supported. */
extern const struct meg_opt_names meg_load_ignored[], meg_load_unsupported[];

/* The prediction that a family of models makes: the next token (GPT), or masked tokens (BERT, T5). */
enum meg_prediction { MEG_PREDICT_NEXT, MEG_PREDICT_MASKED };

struct meg_loaded_model {
    struct meg_model *g;
    struct meg_tokenizer *tok; /* NULL if neither the checkpoint nor the options name a tokenizer */
    int32_t bos;               /* id that begins a sequence (T5: of the decoder), or -1 */
    int32_t eod;               /* end-of-document id, or -1 */
    struct meg_ids eos_ids;    /* ids that end a continuation, eod included */
    int64_t unpadded_vocab;    /* the smaller of the vocabulary sizes of the model and of the tokenizer, if any */
};

/*
 * meg_load_model - load the model in conf->load for batches of one sequence; meg_model_reserve can grow its buffers
 *   predicts  prediction that the caller requires
 *   tc        tokenizer options; if type and name_or_path are NULL, the checkpoint's tokenizer, if any, is loaded
 * Weights and activations are held in the dtype that conf specifies, and logits are f32.  On failure, *m owns nothing.
 * Returns MEG_EUSAGE if the dtype options contradict each other, meg_ckpt_check_tokenizer refuses the tokenizer, or
 * models of this family do not make the required prediction.  Also returns the errors of meg_device_open,
 * meg_ckpt_open, meg_ckpt_model_conf, meg_given_model_check, meg_tokenizer_open, meg_model_create and meg_ckpt_load.
 */
int meg_load_model(struct meg_loaded_model *m, const struct meg_load_conf *conf, enum meg_prediction predicts,
                   const struct meg_tok_conf *tc, struct meg_err *e);
void meg_unload_model(struct meg_loaded_model *m);
