/*
 * model_load.h - a trained model and its tokenizer, ready to run: what meg-eval and meg-generate begin with.
 */
#ifndef MEG_INFER_MODEL_LOAD_H
#define MEG_INFER_MODEL_LOAD_H
#include "model/gpt.h"
#include "tokenizer/tokenizer.h"

MEG_BEGIN_DECLS

struct meg_load_conf {
    const char *load;  /* --load: a checkpoint folder of ours or of Hugging Face */
    int64_t ckpt_step; /* --ckpt-step, or MEG_UNSET: the latest */
};
extern const struct meg_opt meg_load_opts[];

struct meg_loaded_model {
    struct meg_gpt *g;
    struct meg_tokenizer *tok; /* NULL: the checkpoint has none, and none was given */
    int32_t eod;               /* id that ends a document, or -1 */
    struct meg_ids ends;       /* the ids that end a continuation, eod among them */
    int64_t unpadded_vocab;    /* ids below it are both the model's and the tokenizer's */
};

/*
 * meg_load_model - the model in conf->load, for one sequence at a time, as long as it has positions for
 *   tc  the tokenizer options; where they give no type, the checkpoint's own tokenizer is taken
 * MEG_EUSAGE when the tokenizer has ids that the model lacks; errors of ckpt/ and text/ else.
 */
int meg_load_model(struct meg_loaded_model *m, const struct meg_load_conf *conf, const struct meg_tok_conf *tc,
                   struct meg_err *e);
void meg_unload_model(struct meg_loaded_model *m);

MEG_END_DECLS
#endif
