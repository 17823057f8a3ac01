/* gpt.c - GPT: the decoder of GPT-2 or, with other options, of Llama (model/conf.h). */
#include "model/family.h"
#include "nn/lm_head.h"

static void describe(struct meg_model_desc *d, const struct meg_model_conf *c)
{
    const struct meg_lm_head_conf head = {
        .h = c->hidden_size,
        .v = c->vocab_size,
        .tied = c->is_untied ? NULL : "embedding.word_embeddings.weight",
        .has_bias = c->add_output_bias,
        .scale = meg_model_logit_multiplier(c) != 1 ? (float)meg_model_logit_multiplier(c) : 0,
        .softcap = c->logit_softcap > 0 ? (float)c->logit_softcap : 0,
        .std = c->init_method_std,
    };
    const struct meg_transformer decoder = { .name = "decoder", .layers = c->num_layers };

    d->inputs = MEG_BATCH_GPT_FIELDS | 1u << MEG_BATCH_DOC_START;
    meg_desc_add_stack(d, "decoder.final_layernorm");
    meg_desc_add_transformer(d, c, &decoder);
    meg_desc_add_head(d, &meg_lm_head, &head, sizeof head, "lm loss");
}

const struct meg_family meg_gpt_family = {
    .name = "gpt",
    .title = "GPT",
    .samples = MEG_SAMPLES_GPT,
    .options = "apply-layernorm-1p norm-no-* norm-placement parallel-residual embed-layernorm "
               "embedding-multiplier residual-multiplier logit-multiplier position-embedding-offset qk-* "
               "group-query-attention add-proj-bias add-output-bias apply-residual-connection-post-layernorm "
               "reset-position-ids reset-attention-mask eod-mask-loss calculate-per-token-loss context-parallel-size "
               "softmax-type attn-logit-softcapping final-logit-softcapping clip-qkv position-embedding-type=alibi "
               "window-size window-attn-skip-freq rotary-base-window no-rope-freq rope-long-factors "
               "rope-short-factors rope-original-max-position-embeddings attn-temperature-beta "
               "attn-temperature-floor",
    .describe = describe,
};
