/* sample.h - the options of token sampling: temperature, top-k, top-p, greedy decoding and the random seed. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "option/opt.h"
#include "tensor/ops.h"

struct meg_sampling {
    bool greedy;
    double temperature; /* 0: greedy */
    int64_t top_k;      /* 0: off, 1: greedy */
    double top_p;       /* 0 or 1: off */
    int64_t seed;       /* -1: meg_sampling_check replaces it with a random seed */
};
extern const struct meg_opt meg_sampling_opts[];

/*
 * Check ranges and combinations of options, and top_k against unpadded_vocab.  Replace a seed of -1 with a random seed.
 * Returns MEG_EUSAGE if a check fails.
 */
int meg_sampling_check(struct meg_sampling *c, int64_t unpadded_vocab, struct meg_err *e);

/* Return whether decoding is greedy: --greedy, --top_k 1 or --temperature 0. */
bool meg_sampling_is_greedy(const struct meg_sampling *c);

/*
 * Return the arguments that sample a token, for checked options.  The random number depends only on (seed, prompt,
 * step): u = meg_philox_sampling(seed, step, prompt) (base/philox.h).
 */
struct meg_sampling_args meg_sampling_args_of(const struct meg_sampling *c, int64_t prompt, int64_t step);
