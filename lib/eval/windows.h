/*
 * windows.h - how a long sequence of tokens is scored piece by piece (Megatron's WIKITEXT103 task).
 *
 * Window i holds tokens start .. start+ntok-1, start = i*stride, at most seq_length + 1 of them: all
 * but the last are inputs, all but the first are targets.  Window 0 scores every target, later ones
 * those at the last stride positions of seq_length, so that each of the tokens - 1 targets is
 * scored exactly once, each with at least seq_length - stride tokens before it as far as there are.
 * Megatron's count also has windows at the end that score nothing; they are not worth running.
 */
#ifndef MEG_EVAL_WINDOWS_H
#define MEG_EVAL_WINDOWS_H
#include <stdint.h>

#include "base/decls.h"

MEG_BEGIN_DECLS

struct meg_window {
    int64_t start, ntok;
    int64_t first, scored; /* targets first .. first+scored-1 of the window count; target t is token start+t+1 */
};

/* Megatron's number of windows; tokens >= 1, stride >= 1. */
int64_t meg_window_count(int64_t tokens, int64_t stride);

/* Window i, 1 <= stride <= seq_length; scored is 0 in those that score nothing. */
struct meg_window meg_window_at(int64_t tokens, int64_t seq_length, int64_t stride, int64_t i);

MEG_END_DECLS
#endif
