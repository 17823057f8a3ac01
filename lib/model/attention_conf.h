/* attention_conf.h - the options of attention that depend on the layer. */
#pragma once
#include "model/rope.h"

/* The parts of meg_model_conf_check and meg_model_conf_normalize for these options. */
int meg_attention_conf_check(struct meg_model_conf *c, struct meg_err *e);
void meg_attention_conf_normalize(struct meg_model_conf *c);
/* The same for rotary positions; `def` has the defaults of all options. */
int meg_rotary_conf_check(struct meg_model_conf *c, struct meg_err *e);
void meg_rotary_conf_normalize(struct meg_model_conf *c, const struct meg_model_conf *def);

/* The functions below require a configuration that meg_model_conf_check has accepted. */

/* Return the window of layer i (struct meg_attn_conf). */
int64_t meg_attention_window(const struct meg_model_conf *c, int64_t i);
/* Return the rotary tables of layer i. */
enum meg_rope_set meg_attention_rope_set(const struct meg_model_conf *c, int64_t i);
