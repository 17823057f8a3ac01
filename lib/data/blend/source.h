/* source.h - a source of token sequences: a dataset file, or the generated tokens of --mock-data. */
#pragma once
#include <stdint.h>
#include "base/err.h"
#include "data/indexed/indexed.h"

/* A source is an array of elements; each element is one token sequence. */
struct meg_source;

/*
 * Open PREFIX.bin and PREFIX.idx.  Returns MEG_EFORMAT if the tokens are not integers, or the number of sequences is
 * not from 1 to INT32_MAX.  It also returns the errors of meg_indexed_open.
 */
int meg_source_open(struct meg_source **out, const char *prefix, struct meg_err *e);

/*
 * meg_source_mock - generate 100000 sequences of 1 to 4095 tokens, identical on every machine
 * The lengths are drawn from MT19937 seeded with 0.  The ids of a sequence are 1, 2, ..., vocab_size - 1, 1, 2, ...
 * The last id is eod, or 0 if eod is negative.  A vocab_size below 2 is treated as 2.
 * Megatron-LM's mock data has the same form, but draws the lengths from a different generator.
 */
struct meg_source *meg_source_mock(int64_t vocab_size, int32_t eod);
void meg_source_close(struct meg_source *s); /* accepts NULL */

const char *meg_source_name(const struct meg_source *s);                  /* the prefix, or "mock data" */
const struct meg_indexed *meg_source_indexed(const struct meg_source *s); /* NULL for mock data */
int64_t meg_source_elements(const struct meg_source *s);
int32_t meg_source_length(const struct meg_source *s, int64_t element); /* length in tokens */
/* Return the number of tokens in elements [begin, end). */
int64_t meg_source_tokens(const struct meg_source *s, int64_t begin, int64_t end);
/* Read tokens [offset, offset + n) of an element as int32.  Returns the errors of meg_indexed_get. */
int meg_source_get(const struct meg_source *s, int64_t element, int64_t offset, int64_t n, int32_t *out,
                   struct meg_err *e);
