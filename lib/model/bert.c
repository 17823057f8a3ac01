/*
 * bert.c - BERT (Devlin et al. 2019), arranged as in Megatron-LM (Shoeybi et al. 2019, section 5.3): a bidirectional
 * encoder with the norm before attention and MLP, an output layer with a transform, and the binary head that predicts
 * whether the two segments of a sequence are swapped.
 */
#include "model/family.h"
#include "nn/binary_head.h"
#include "nn/lm_head.h"
#include "option/check.h"

static void describe(struct meg_model_desc *d, const struct meg_model_conf *c)
{
    const struct meg_lm_head_conf head = {
        .h = c->hidden_size,
        .v = c->vocab_size,
        .tied = c->is_untied ? NULL : "embedding.word_embeddings.weight",
        .has_bias = true,
        .is_transformed = true,
        .act = c->openai_gelu ? MEG_ACT_GELU_TANH : MEG_ACT_GELU_ERF,
        .std = c->init_method_std,
        .norm_eps = c->norm_epsilon,
    };
    const struct meg_binary_head_conf binary = { c->hidden_size, c->init_method_std };
    const struct meg_transformer encoder = { .name = "encoder", .layers = c->num_layers, .is_bidirectional = true };

    d->inputs = MEG_BATCH_BERT_FIELDS;
    if (!c->bert_binary_head)
        d->inputs &= ~(1u << MEG_BATCH_SENTENCE_ORDER);
    if (c->num_tokentypes == 0)
        d->inputs &= ~(1u << MEG_BATCH_TOKEN_TYPES);
    d->token_types = c->num_tokentypes;
    d->averages_batches = true;
    meg_desc_add_stack(d, "encoder.final_layernorm");
    meg_desc_add_transformer(d, c, &encoder);
    meg_desc_add_head(d, &meg_lm_head, &head, sizeof head, "lm loss");
    if (c->bert_binary_head)
        meg_desc_add_head(d, &meg_binary_head, &binary, sizeof binary, "sop loss");
}

static int check(struct meg_model_conf *c, struct meg_err *e)
{
    if (c->num_tokentypes == MEG_UNSET)
        c->num_tokentypes = c->bert_binary_head ? 2 : 0;
    const struct meg_opt_rule rules[] = {
        { c->num_tokentypes < 0 || c->num_tokentypes > INT32_MAX, "num-tokentypes", ": must be from 0 to 2147483647" },
        { c->num_tokentypes == 1 && c->bert_binary_head, "num-tokentypes",
          ": samples have two segments, so at least 2 are required; use --bert-no-binary-head" },
        { 0 },
    };

    return meg_opt_check_rules(rules, meg_model_opts, c, e);
}

const struct meg_family meg_bert_family = {
    .name = "bert",
    .title = "BERT",
    .samples = MEG_SAMPLES_BERT,
    .options = "position-embedding-offset num-tokentypes bert-no-binary-head group-query-attention add-proj-bias "
               "apply-residual-connection-post-layernorm mask-prob short-seq-prob",
    .describe = describe,
    .check = check,
};
