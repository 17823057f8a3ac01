/* sample.c - the options of token sampling: temperature, top-k, top-p, greedy decoding and the random seed. */
#include "infer/sample.h"
#include <inttypes.h>
#include <sys/random.h>
#include "base/philox.h"

const struct meg_opt meg_sampling_opts[] = {
    { "greedy", 0, MEG_BOOL(struct meg_sampling, greedy), NULL, "no", "always choose the most likely token" },
    { "temperature", 0, MEG_F64(struct meg_sampling, temperature), "T", "1.0",
      "divide the logits by T; 0: always choose the most likely token" },
    { "top_k", 0, MEG_I64(struct meg_sampling, top_k), "K", "0",
      "sample from the K most likely tokens; 0: sample from all tokens" },
    { "top_p", 0, MEG_F64(struct meg_sampling, top_p), "P", "0.0",
      "sample from the smallest set of most likely tokens whose probabilities sum to more than P; "
      "0 or 1: sample from all tokens" },
    { "seed", 0, MEG_I64(struct meg_sampling, seed), "N", "1234",
      "random seed of sampling; -1: choose a seed at random" },
    MEG_ALIAS("random-seed", "seed"),
    { 0 }
};

int meg_sampling_check(struct meg_sampling *c, int64_t unpadded_vocab, struct meg_err *e)
{
    uint32_t seed;

    if (!(c->temperature >= 0 && c->temperature <= 100))
        return meg_fail(e, MEG_EUSAGE, "--temperature %g: must be from 0 (greedy) to 100", c->temperature);
    if (c->top_k < 0 || c->top_k > unpadded_vocab)
        return meg_fail(e, MEG_EUSAGE, "--top_k %" PRId64 ": must be from 0 to %" PRId64 ", the size of the vocabulary",
                        c->top_k, unpadded_vocab);
    if (!(c->top_p >= 0 && c->top_p <= 1))
        return meg_fail(e, MEG_EUSAGE, "--top_p %g: must be from 0 to 1", c->top_p);
    if (c->top_k > 0 && c->top_p > 0)
        return meg_fail(e, MEG_EUSAGE, "--top_k %" PRId64 " and --top_p %g: use only one of them", c->top_k, c->top_p);
    if (c->greedy && (c->top_k > 1 || c->top_p > 0))
        return meg_fail(e, MEG_EUSAGE,
                        "--greedy cannot be combined with --top_k above 1 or --top_p; use only one of them");
    if (c->seed < -1 || c->seed > UINT32_MAX)
        return meg_fail(e, MEG_EUSAGE, "--seed %" PRId64 ": must be from 0 to %lu, or -1 for a random seed", c->seed,
                        (unsigned long)UINT32_MAX);
    if (c->seed == -1) {
        if (getrandom(&seed, sizeof seed, 0) != sizeof seed)
            return meg_fail_errno(e, "--seed -1: cannot get a random seed");
        c->seed = seed;
    }
    return 0;
}

bool meg_sampling_is_greedy(const struct meg_sampling *c)
{
    return c->greedy || c->top_k == 1 || c->temperature == 0;
}

struct meg_sampling_args meg_sampling_args_of(const struct meg_sampling *c, int64_t prompt, int64_t step)
{
    struct meg_sampling_args a = { .temperature = c->temperature, .top_k = c->top_k, .top_p = c->top_p };

    if (meg_sampling_is_greedy(c))
        a.temperature = 0;
    else
        a.u = meg_philox_sampling((uint32_t)c->seed, (uint32_t)step, prompt);
    return a;
}
