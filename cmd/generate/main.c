/* meg-generate: continue prompts with a trained model. */
#include <inttypes.h>
#include "base/log.h"
#include "infer/lines.h"

static int run(const struct meg_generate_conf *c, const struct meg_token_output_conf *output,
               const struct meg_load_conf *lc, const struct meg_tok_conf *tc, struct meg_sampling *sampling,
               struct meg_err *e)
{
    const bool is_seed_random = sampling->seed == -1;
    struct meg_loaded_model m = { 0 };
    struct meg_line_reader in = { 0 };
    int r;

    if ((r = meg_line_reader_open(&in, c->input, e)) < 0 || (r = meg_load_model(&m, lc, MEG_PREDICT_NEXT, tc, e)) < 0 ||
        (r = meg_sampling_check(sampling, m.unpadded_vocab, e)) < 0 ||
        (r = meg_token_output_check(output, m.tok, m.g->conf.vocab_size, e)) < 0)
        goto out;
    if (!m.tok && c->format == MEG_REPLY_TEXT) {
        r = meg_fail(
            e, MEG_EUSAGE,
            "--format text requires a tokenizer, and %s has none; specify one with --tokenizer-type and its files",
            lc->load);
        goto out;
    }
    if (is_seed_random)
        meg_info("random seed: %" PRId64 "; use --seed %" PRId64 " to repeat this run", sampling->seed, sampling->seed);
    r = meg_generate_lines(c, output, sampling, &m, &in, e);
out:
    meg_unload_model(&m);
    meg_line_reader_close(&in);
    return r;
}

int main(int argc, char **argv)
{
    struct meg_generate_conf c = { 0 };
    struct meg_load_conf lc = { 0 };
    struct meg_tok_conf tc = { 0 };
    struct meg_token_output_conf output = { 0 };
    struct meg_sampling sampling = { 0 };
    const struct meg_optgroup groups[] = { { "generate", meg_generate_opts, &c },
                                           { "token output", meg_token_output_opts, &output },
                                           { "model", meg_load_opts, &lc },
                                           { "sampling", meg_sampling_opts, &sampling },
                                           { "device", meg_device_opts, &lc.device },
                                           { "tokenizer", meg_tok_opts, &tc },
                                           { "model shape, as in the checkpoint", meg_given_model_opts(), &lc.model },
                                           { 0 } };
    struct meg_err e;

    meg_opt_set_ignored(meg_load_ignored);
    meg_opt_set_unsupported(meg_load_unsupported);
    meg_opt_parse(groups, "[options] --load DIR < PROMPTS", "Continue prompts with a trained model.", argc, argv);
    if (!lc.load)
        meg_usage("--load is required");
    if (meg_generate_check(&c, &output, &e) < 0)
        meg_usage_err(&e);
    if (run(&c, &output, &lc, &tc, &sampling, &e) < 0)
        meg_die_err(&e);
    return meg_close_stdout();
}
