/* gpt.c - GPT: the decoder of GPT-2 or, with other options, of Llama (model/conf.h). */
#include "model/desc.h"
#include "nn/lm_head.h"

void meg_gpt_describe(struct meg_model_desc *d, const struct meg_model_conf *c)
{
    const struct meg_lm_head_conf head = {
        .h = c->hidden_size,
        .v = c->vocab_size,
        .tied = c->is_untied ? NULL : "embedding.word_embeddings.weight",
        .std = c->init_method_std,
    };
    const struct meg_transformer decoder = { .name = "decoder", .layers = c->num_layers };

    d->inputs = MEG_BATCH_GPT_FIELDS | 1u << MEG_BATCH_DOC_START;
    meg_desc_add_stack(d, "decoder.final_layernorm");
    meg_desc_add_transformer(d, c, &decoder);
    meg_desc_add_head(d, &meg_lm_head, &head, sizeof head, "lm loss");
}
