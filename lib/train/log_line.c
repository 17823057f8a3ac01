#include <inttypes.h>
#include <math.h>
#include "train/report.h"

void meg_training_log_line(struct meg_str *s, const struct meg_train_stats *v, bool has_throughput,
                           const struct tm *when)
{
    char date[32];

    strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S", when);
    meg_str_printf(s, " [%s] iteration %8" PRId64 "/%8" PRId64 " |", date, v->iteration, v->train_iters);
    meg_str_printf(s, " consumed samples: %12" PRId64 " |", v->consumed_samples);
    if (v->skipped_samples > 0)
        meg_str_printf(s, " skipped samples: %12" PRId64 " |", v->skipped_samples);
    meg_str_printf(s, " elapsed time per iteration (ms): %.1f |", v->iteration_ms);
    if (has_throughput)
        meg_str_printf(s, " throughput per GPU (TFLOP/s/GPU): %.1f |",
                       v->flops / (double)v->ranks / v->iteration_ms * 1e-9);
    meg_str_printf(s, " learning rate: %.6E |", v->learning_rate);
    if (!isnan(v->decoupled_learning_rate))
        meg_str_printf(s, " decoupled learning rate: %.6E |", v->decoupled_learning_rate);
    meg_str_printf(s, " global batch size: %5" PRId64 " |", v->global_batch_size);
    if (v->lm_loss > 0)
        meg_str_printf(s, " lm loss: %.6E |", v->lm_loss);
    meg_str_printf(s, " loss scale: %.1f |", v->loss_scale);
    if (!isnan(v->grad_norm))
        meg_str_printf(s, " grad norm: %.3f |", v->grad_norm);
    if (v->num_zeros >= 0)
        meg_str_printf(s, " num zeros: %" PRId64 " |", v->num_zeros);
    if (!isnan(v->params_norm))
        meg_str_printf(s, " params norm: %.3f |", v->params_norm);
    meg_str_printf(s, " number of skipped iterations: %3" PRId64 " | number of nan iterations: %3" PRId64 " |\n",
                   v->num_skipped_iterations, v->num_nan_iterations);
}

double meg_perplexity(double loss)
{
    return isfinite(loss) ? exp(fmin(20.0, loss)) : NAN;
}

void meg_training_log_evaluation(struct meg_str *s, const char *where, double loss)
{
    struct meg_str line = { 0 }, rule = { 0 };

    meg_str_printf(&line, " validation loss at %s | lm loss value: %.6E | lm loss PPL: %.6E | ", where, loss,
                   meg_perplexity(loss));
    while (rule.n <= line.n)
        meg_str_add(&rule, "-", 1);
    meg_str_printf(s, "%s\n%s\n%s\n", rule.s, line.s, rule.s);
    meg_str_free(&line);
    meg_str_free(&rule);
}
