/*
 * layer_pattern.h - which layers of a model have a property, in the notation of Megatron's --window-attn-skip-freq and
 * --no-rope-freq: a number N, for every Nth layer, or a list with a 0 or 1 for each layer.  A list is written as
 * 1,1,0 or as an expression of Python, such as ([1]*3+[0])*2.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "base/mem.h"

/*
 * Append the pattern `text` of n layers to `out` in its canonical notation: N, or a list such as [1,1,0].  Return
 * MEG_EUSAGE, with a message that names the option, if the text is neither a number of at least 1 nor a list of n
 * elements that are 0 or 1.
 */
int meg_layer_pattern_parse(struct meg_str *out, const char *text, int64_t n, const char *option, struct meg_err *e);
/*
 * Return whether layer i, counted from 0, is 1 in a pattern in canonical notation.  If the pattern is a number, return
 * `of_multiple` for layers N, 2N, ..., counted from 1, and the opposite for the others.
 */
bool meg_layer_pattern_at(const char *pattern, int64_t i, bool of_multiple);
