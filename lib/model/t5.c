/*
 * t5.c - T5 (Raffel et al. 2020), arranged as in Megatron-LM: an encoder, and a decoder whose layers have
 * cross-attention to the output of the encoder.  Both begin with the same embeddings, and end with a norm.  Options
 * select the original T5 (v1.0: RMSNorm, no biases, ReLU, relative bias, scaled logits) or T5 v1.1 (Shazeer 2020: gated
 * GELU instead of ReLU, and an untied output layer).
 */
#include <inttypes.h>
#include "model/family.h"
#include "nn/lm_head.h"

static int check(struct meg_model_conf *c, struct meg_err *e)
{
    int r;

    if (c->decoder_num_layers == MEG_UNSET)
        c->decoder_num_layers = c->num_layers;
    if ((r = meg_model_check_positive(c->decoder_num_layers, "decoder-num-layers", e)) < 0 ||
        c->position_embedding_type != MEG_POSITION_RELATIVE)
        return r;
    if ((r = meg_model_check_positive(c->relative_attention_num_buckets, "relative-attention-num-buckets", e)) < 0 ||
        (r = meg_model_check_positive(c->relative_attention_max_distance, "relative-attention-max-distance", e)) < 0)
        return r;
    if (c->relative_attention_num_buckets < 4 || c->relative_attention_num_buckets % 2)
        return meg_fail(e, MEG_EUSAGE, "--relative-attention-num-buckets %" PRId64 ": must be even and at least 4",
                        c->relative_attention_num_buckets);
    if (c->relative_attention_max_distance <= c->relative_attention_num_buckets / 2)
        return meg_fail(e, MEG_EUSAGE,
                        "--relative-attention-max-distance %" PRId64
                        ": must be above half of --relative-attention-num-buckets %" PRId64,
                        c->relative_attention_max_distance, c->relative_attention_num_buckets);
    return 0;
}

static struct meg_stack *add_stack(struct meg_model_desc *d, const struct meg_model_conf *c,
                                   const struct meg_transformer *t, const char *final_norm, const char *rel_bias)
{
    struct meg_stack *s = meg_desc_add_stack(d, final_norm);

    s->rel_bias = c->position_embedding_type == MEG_POSITION_RELATIVE ? rel_bias : NULL;
    s->is_bidirectional = t->is_bidirectional;
    meg_desc_add_transformer(d, c, t);
    return s;
}

static void describe(struct meg_model_desc *d, const struct meg_model_conf *c)
{
    const struct meg_lm_head_conf head = {
        .h = c->hidden_size,
        .v = c->vocab_size,
        .tied = c->is_untied ? NULL : "embedding.word_embeddings.weight",
        .has_bias = c->has_bias && !c->is_untied,
        .scale = meg_model_logit_multiplier(c) != 1 ? (float)meg_model_logit_multiplier(c) : 0,
        .std = c->init_method_std,
    };
    const struct meg_transformer encoder = { .name = "encoder", .layers = c->num_layers, .is_bidirectional = true };
    const struct meg_transformer decoder = { .name = "decoder",
                                             .layers = c->decoder_num_layers,
                                             .has_cross_attention = true };
    struct meg_stack *s;

    d->inputs = MEG_BATCH_T5_FIELDS;
    d->averages_batches = true;
    d->rel_bias_buckets = c->relative_attention_num_buckets;
    d->rel_bias_heads = c->attn.a;
    d->rel_bias_max_distance = c->relative_attention_max_distance;
    s = add_stack(d, c, &encoder, "encoder.final_layernorm", "encoder_relative_pos_emb.relative_attention_bias.weight");
    s->tokens = MEG_BATCH_ENC_TOKENS;
    s->position_ids = MEG_BATCH_ENC_POSITION_IDS;
    s->key_length = MEG_BATCH_ENC_KEY_LENGTH;
    add_stack(d, c, &decoder, "decoder.final_layernorm", "decoder_relative_pos_emb.relative_attention_bias.weight");
    meg_desc_add_head(d, &meg_lm_head, &head, sizeof head, "lm loss");
}

const struct meg_family meg_t5_family = {
    .name = "t5",
    .title = "T5",
    .samples = MEG_SAMPLES_T5,
    .options = "decoder-num-layers decoder-seq-length position-embedding-type=relative relative-attention-* "
               "logit-multiplier mask-prob short-seq-prob",
    .describe = describe,
    .check = check,
};
