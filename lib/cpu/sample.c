/* sample.c - sample the next token of each row of logits, in parallel over the rows. */
#include <omp.h>
#include "cpu/internal.h"
#include "tensor/token_sampler.h"

size_t meg_cpu_sample_nbytes(int64_t n, int64_t unpadded_vocab)
{
    const int64_t threads = omp_get_max_threads();

    return (size_t)(n < threads ? n : threads) * meg_token_sampler_nbytes(unpadded_vocab);
}

/* Sampler k samples the tokens of rows k, k + nsamplers and so on. */
void meg_cpu_sample(struct meg_stream *st, const struct meg_sample_args *a)
{
    const size_t nbytes = meg_token_sampler_nbytes(a->unpadded_vocab);
    const int64_t nsamplers = (int64_t)(a->workspace.nbytes / nbytes);

    (void)st;
#pragma omp parallel for schedule(static, 1) if (a->logits.rows > 1)
    for (int64_t k = 0; k < nsamplers; k++) {
        struct meg_token_sampler s =
            meg_token_sampler_of(a->logits.cols, a->unpadded_vocab, (char *)a->workspace.p + (size_t)k * nbytes);

        for (int64_t i = k; i < a->logits.rows; i += nsamplers)
            a->token[i] = meg_sample_token(&s, &a->args[i], f32(a->logits) + i * a->logits.ld, a->has_logprobs);
    }
}
