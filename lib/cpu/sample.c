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
void meg_cpu_sample(struct meg_stream *st, struct meg_sampled_token *token, struct meg_mat logits,
                    int64_t unpadded_vocab, const struct meg_sampling_args *args, bool has_logprobs,
                    struct meg_workspace workspace)
{
    const size_t nbytes = meg_token_sampler_nbytes(unpadded_vocab);
    const int64_t nsamplers = (int64_t)(workspace.nbytes / nbytes);

    (void)st;
#pragma omp parallel for schedule(static, 1) if (logits.rows > 1)
    for (int64_t k = 0; k < nsamplers; k++) {
        struct meg_token_sampler s =
            meg_token_sampler_of(logits.cols, unpadded_vocab, (char *)workspace.p + (size_t)k * nbytes);

        for (int64_t i = k; i < logits.rows; i += nsamplers)
            token[i] = meg_sample_token(&s, &args[i], f32(logits) + i * logits.ld, has_logprobs);
    }
}
