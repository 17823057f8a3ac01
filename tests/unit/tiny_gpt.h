/* tiny_gpt.h - the configuration of a small model for tests: default options, no dropout, large initial weights. */
#ifndef TESTS_TINY_GPT_H
#define TESTS_TINY_GPT_H
#include "model/conf.h"
#include "option/opt.h"

static inline struct meg_model_conf tiny_gpt(int64_t layers, int64_t hidden, int64_t ffn, int64_t heads,
                                             int64_t positions, int64_t vocabulary)
{
    struct meg_model_conf c = { 0 };
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, &c }, { 0 } };
    struct meg_err e;

    meg_opt_defaults(groups);
    c.num_layers = layers;
    c.hidden_size = hidden;
    c.mlp.f = ffn;
    c.attn.a = heads;
    c.max_position_embeddings = positions;
    c.vocab_size = vocabulary;
    c.init_method_std = 0.3;
    c.attn.dropout = c.hidden_dropout = 0;
    if (meg_model_conf_check(&c, &e) < 0)
        meg_die_err(&e);
    return c;
}

#endif
