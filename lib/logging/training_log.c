/* training_log.c - format the log lines of Megatron's training_log and evaluate_and_print_results. */
#include "logging/training_log.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Format "name = value" as Megatron's line of an argument, malloc'ed; return NULL for other text. */
static char *argument_line(char *text)
{
    static const char dots[] = "................................................";
    const int max = sizeof dots - 1;
    struct meg_str s = { 0 };
    char *equals = strstr(text, " = ");
    const char *value = equals ? equals + 3 : NULL;

    if (!equals || *text == '#')
        return NULL;
    *equals = '\0';
    for (char *p = text; *p; p++)
        if (*p == '-')
            *p = '_';
    meg_str_printf(&s, "  %s %.*s %s\n", text, equals - text < max ? max - (int)(equals - text) : 0, dots,
                   strcmp(value, "yes") == 0  ? "True"
                   : strcmp(value, "no") == 0 ? "False"
                                              : value); /* as in Python */
    return s.s;
}

static int compare_lines(const void *a, const void *b)
{
    return strcasecmp(*(char *const *)a, *(char *const *)b);
}

void meg_training_log_arguments(struct meg_str *s, const char *options)
{
    char *copy = meg_strdup(options), *rest = copy, *text, *line, **v = NULL;
    size_t n = 0;

    while ((text = strsep(&rest, "\n")))
        if ((line = argument_line(text))) {
            v = meg_realloc_array(v, n + 1, sizeof *v);
            v[n++] = line;
        }
    if (n)
        qsort(v, n, sizeof *v, compare_lines);
    meg_str_printf(s, "------------------------ arguments ------------------------\n");
    for (size_t i = 0; i < n; i++) {
        meg_str_printf(s, "%s", v[i]);
        free(v[i]);
    }
    meg_str_printf(s, "-------------------- end of arguments ---------------------\n");
    free(v);
    free(copy);
}

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
