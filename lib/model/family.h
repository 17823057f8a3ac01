/*
 * family.h - families of models, such as GPT.  A family describes its models, and states which samples they are trained
 * on.  Most other code depends only on descriptions (model/desc.h).
 */
#pragma once
#include "model/desc.h"

/* Types of training samples: documents with next tokens, or sentences with masked tokens or spans (data/masked). */
enum meg_sample_type { MEG_SAMPLES_GPT, MEG_SAMPLES_BERT, MEG_SAMPLES_T5 };

struct meg_family {
    const char *name;  /* value of --model */
    const char *title; /* name in the literature, such as "BERT" */
    enum meg_sample_type samples;
    const char *options; /* supported options that other families do not have (meg_opt_is_listed); NULL: none */
    /* Describe the model of a checked configuration; the common fields are set (meg_desc_set_common). */
    void (*describe)(struct meg_model_desc *d, const struct meg_model_conf *c);
    /*
     * Derive unset options and check the rules of the family.  meg_model_conf_check calls this after the rules common
     * to all families.  Return MEG_EUSAGE if a rule is violated.  NULL: there are none.
     */
    int (*check)(struct meg_model_conf *c, struct meg_err *e);
};

/* gpt.c, bert.c, t5.c */
extern const struct meg_family meg_gpt_family, meg_bert_family, meg_t5_family;

/* Return the family of a configuration. */
const struct meg_family *meg_family_of(const struct meg_model_conf *c);
/*
 * Refuse the options of `groups` that only other families than c's support.  Return MEG_EUSAGE, with the option, its
 * value and the families that support it, unless all of these options have their defaults or are 0.
 */
int meg_family_check_options(const struct meg_model_conf *c, const struct meg_optgroup *groups, struct meg_err *e);
/* Add a family, which must remain valid, to the choices of --model.  Call this before options are parsed. */
void meg_family_add(const struct meg_family *f);
