/*
 * given_model.h - model options that a command accepts only to check them against a checkpoint.  Commands of
 * Megatron-LM that load a model require its sizes on the command line; here, the checkpoint has them.  Only a plain
 * checkpoint of torch.distributed.checkpoint may lack some.
 */
#pragma once
#include "ckpt/ckpt.h"

enum { MEG_GIVEN_MODEL_MAX = 128 };

/* The values that the user has given, indexed as the rows of meg_model_opts: text, or true for a flag. */
struct meg_given_model {
    const char *value[MEG_GIVEN_MODEL_MAX];
    bool is_set[MEG_GIVEN_MODEL_MAX];
    const char *ignored_config_keys; /* members of config.json to ignore: "a,b.c", or NULL */
};

/* Return an option table with the names of meg_model_opts, without defaults, which fills a struct meg_given_model. */
const struct meg_opt *meg_given_model_opts(void);

/*
 * Open a checkpoint as meg_ckpt_open does.  Options that are missing in a checkpoint of torch.distributed.checkpoint
 * have the given values.  config.json is read
 * without the members given->ignored_config_keys.
 */
int meg_ckpt_open_given(struct meg_ckpt **out, const char *dir, int64_t step, const struct meg_given_model *given,
                        struct meg_err *e);

/*
 * Compare the given options with the model of a checkpoint.  Dropout probabilities and the initialization are not
 * compared, because they do not affect a trained model.  Returns MEG_EUSAGE if a value is invalid or differs; the
 * message has both values.  Also returns the errors of meg_ckpt_model_conf.
 */
int meg_given_model_check(const struct meg_given_model *given, const struct meg_ckpt *ckpt, struct meg_err *e);
