/*
 * rope.h - tables of rotary position embedding (Su et al. 2021).  Column pair i of a head is rotated, at position p, by
 * the angle p / interpolation * base^(-i/half) * scale_i.  Methods that extend the context of a model differ in
 * scale_i.  Cosines and sines may have a factor, which then multiplies the rotated columns.
 */
#pragma once
#include "model/conf.h"

/* The tables of a model: each layer uses one set (struct meg_attn_conf). */
enum meg_rope_set { MEG_ROPE_FULL, MEG_ROPE_WINDOW, MEG_ROPE_NONE, MEG_ROPE_SETS };

struct meg_rope_conf {
    int64_t half;      /* column pairs per head; 0: there are no tables */
    int64_t positions; /* positions in the tables */
    double base;
    enum meg_rope_set set; /* scaling and factors are for MEG_ROPE_FULL; MEG_ROPE_NONE does not rotate */
    bool is_yarn;
    int64_t max_position_embeddings; /* of the model */
    struct meg_rotary_conf o;        /* the options */
};

/* Set the tables [MEG_ROPE_SETS] of a checked model, with max_position_embeddings positions. */
void meg_rope_describe(struct meg_rope_conf *rope, const struct meg_model_conf *c);
/*
 * Return the number of rows of the tables.  With LongRoPE, they begin with short_positions rows for sequences of at
 * most this length.  The rows of longer sequences follow.
 */
int64_t meg_rope_rows(const struct meg_rope_conf *c);
/* Return the number of the first rows, which only sequences of at most this length use; 0 without LongRoPE. */
int64_t meg_rope_short_positions(const struct meg_rope_conf *c);
/* Return whether queries have tables of their own, because they have a temperature. */
bool meg_rope_has_temperature(const struct meg_rope_conf *c);
/* Compute the tables [rows, half]; those of queries if is_query is set. */
void meg_rope_fill(const struct meg_rope_conf *c, bool is_query, float *cosine, float *sine);
