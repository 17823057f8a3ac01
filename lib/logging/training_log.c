#include "logging/training_log.h"
#include <inttypes.h>
#include <math.h>

void meg_training_log_line(struct meg_str *s, const struct meg_iteration_stats *stats, bool has_throughput,
                           const struct tm *when)
{
    char date[32];

    strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S", when);
    meg_str_printf(s, " [%s] iteration %8" PRId64 "/%8" PRId64 " |", date, stats->iteration, stats->train_iters);
    meg_str_printf(s, " consumed samples: %12" PRId64 " |", stats->consumed_samples);
    if (stats->skipped_samples > 0)
        meg_str_printf(s, " skipped samples: %12" PRId64 " |", stats->skipped_samples);
    meg_str_printf(s, " elapsed time per iteration (ms): %.1f |", stats->iteration_ms);
    if (has_throughput)
        meg_str_printf(s, " throughput per GPU (TFLOP/s/GPU): %.1f |",
                       stats->flops / (double)stats->ranks / stats->iteration_ms * 1e-9);
    meg_str_printf(s, " learning rate: %.6E |", stats->learning_rate);
    if (!isnan(stats->decoupled_learning_rate))
        meg_str_printf(s, " decoupled learning rate: %.6E |", stats->decoupled_learning_rate);
    meg_str_printf(s, " global batch size: %5" PRId64 " |", stats->global_batch_size);
    for (int i = 0; i < stats->loss.n; i++)
        if (stats->loss.value[i] > 0)
            meg_str_printf(s, " %s: %.6E |", stats->loss.name[i], stats->loss.value[i]);
    meg_str_printf(s, " loss scale: %.1f |", stats->loss_scale);
    if (!isnan(stats->grad_norm))
        meg_str_printf(s, " grad norm: %.3f |", stats->grad_norm);
    if (stats->num_zeros >= 0)
        meg_str_printf(s, " num zeros: %" PRId64 " |", stats->num_zeros);
    if (!isnan(stats->params_norm))
        meg_str_printf(s, " params norm: %.3f |", stats->params_norm);
    meg_str_printf(s, " number of skipped iterations: %3" PRId64 " | number of nan iterations: %3" PRId64 " |\n",
                   stats->num_skipped_iterations, stats->num_nan_iterations);
}

double meg_training_log_perplexity(double loss)
{
    return isfinite(loss) ? exp(fmin(20.0, loss)) : NAN;
}

void meg_training_log_evaluation(struct meg_str *s, const char *group, const char *where,
                                 const struct meg_named_losses *loss)
{
    struct meg_str line = { 0 }, rule = { 0 };

    meg_str_printf(&line, "%s loss at %s | ", group ? group : " validation", where);
    for (int i = 0; i < loss->n; i++)
        meg_str_printf(&line, "%s value: %.6E | %s PPL: %.6E | ", loss->name[i], loss->value[i], loss->name[i],
                       meg_training_log_perplexity(loss->value[i]));
    while (rule.n <= line.n)
        meg_str_add(&rule, "-", 1);
    meg_str_printf(s, "%s\n%s\n%s\n", rule.s, line.s, rule.s);
    meg_str_free(&line);
    meg_str_free(&rule);
}
