/* meg-eval: compute the perplexity of a text or the log-probabilities of its tokens, or predict masked tokens. */
#include "eval/task.h"

int main(int argc, char **argv)
{
    struct meg_eval_conf c = { 0 };
    struct meg_token_output_conf output = { 0 };
    struct meg_load_conf lc = { 0 };
    struct meg_tok_conf tc = { 0 };
    const struct meg_optgroup groups[] = { { "eval", meg_eval_opts, &c },
                                           { "token output", meg_token_output_opts, &output },
                                           { "model", meg_load_opts, &lc },
                                           { "device", meg_device_opts, &lc.device },
                                           { "tokenizer", meg_tok_opts, &tc },
                                           { "model shape, as in the checkpoint", meg_given_model_opts(), &lc.model },
                                           { 0 } };
    struct meg_loaded_model m = { 0 };
    struct meg_err e;
    int r;

    meg_opt_set_ignored(meg_load_ignored);
    meg_opt_set_unsupported(meg_load_unsupported);
    meg_opt_parse(groups, "[options] --task TASK --load DIR", "Measure how well a model predicts tokens.", argc, argv);
    if (c.task == MEG_EVAL_UNSET || !lc.load)
        meg_usage("--task and --load are required");
    if (meg_eval_check(&c, &output, &e) < 0)
        meg_usage_err(&e);
    if ((r = meg_load_model(&m, &lc, meg_eval_prediction(&c), &tc, &e)) == 0)
        r = meg_eval_run(&c, &output, &m, &e);
    meg_unload_model(&m);
    if (r < 0)
        meg_die_err(&e);
    return meg_close_stdout();
}
