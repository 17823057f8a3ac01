/* logger.c - the logs of a training run: log line, JSON lines, TensorBoard scalars and progress line. */
#include "logging/logger.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/log.h"
#include "logging/metrics.h"
#include "logging/tensorboard.h"

struct meg_logger {
    const struct meg_logging_conf *conf;
    struct meg_append_file metrics, tensorboard; /* not open without --log-json, --tensorboard-dir */
    struct meg_progress progress;
    int64_t first_iteration; /* iteration of the first call of remaining_s */
    double first_s;          /* time of that call in seconds; 0 before it */
};

/* Write each line "name = value" of `options` as a TensorBoard text. */
static int write_options(struct meg_append_file *t, const char *options, int64_t step, struct meg_err *e)
{
    char *copy = meg_strdup(options), *rest = copy, *line;
    int r = 0;

    while (r >= 0 && (line = strsep(&rest, "\n"))) {
        char *value = strstr(line, " = ");
        if (!value)
            continue;
        *value = '\0';
        r = meg_tensorboard_text(t, line, value + 3, step, e);
    }
    free(copy);
    return r;
}

int meg_logger_open(struct meg_logger **out, const struct meg_logging_conf *c, int64_t resumed, const char *options,
                    struct meg_err *e)
{
    struct meg_logger *l = meg_new(sizeof *l);
    int r = 0;

    l->conf = c;
    meg_progress_init(&l->progress, 0);
    if ((c->log_json && (r = meg_metrics_open(&l->metrics, c->log_json, resumed, e)) < 0) ||
        (c->tensorboard_dir && ((r = meg_tensorboard_open(&l->tensorboard, c->tensorboard_dir, resumed, e)) < 0 ||
                                (r = write_options(&l->tensorboard, options, resumed, e)) < 0)))
        goto out;
    *out = l;
    l = NULL;
out:
    meg_logger_close(l);
    return r;
}

void meg_logger_close(struct meg_logger *l)
{
    if (!l)
        return;
    meg_progress_end(&l->progress);
    meg_append_file_close(&l->metrics);
    meg_append_file_close(&l->tensorboard);
    free(l);
}

/* Stop writing the file of an option after an error, such as a full disk, which must not end the run. */
static void disable(struct meg_append_file *a, const char *option, const struct meg_err *e)
{
    meg_warn("%s; the run continues without --%s", e->msg, option);
    meg_append_file_close(a);
}

/*
 * Write a TensorBoard scalar under two tags: `name`, with the iteration as the step, and "NAME vs samples", with the
 * number of consumed samples as the step.  A NaN is not written.
 */
static int scalar(struct meg_logger *l, const char *name, double value, const struct meg_iteration_stats *stats,
                  struct meg_err *e)
{
    struct meg_str vs_samples = { 0 };
    int r;

    if (isnan(value))
        return 0;
    meg_str_printf(&vs_samples, "%s" MEG_TENSORBOARD_VS_SAMPLES, name);
    if ((r = meg_tensorboard_scalar(&l->tensorboard, name, value, stats->iteration, e)) == 0)
        r = meg_tensorboard_scalar(&l->tensorboard, vs_samples.s, value, stats->consumed_samples, e);
    meg_str_free(&vs_samples);
    return r;
}

static int write_events(struct meg_logger *l, const struct meg_iteration_stats *stats, struct meg_err *e)
{
    enum { BEFORE_LOSSES = 3 };
    const struct {
        const char *name;
        double value;
    } scalars[] = {
        { "learning-rate", stats->learning_rate },
        { "decoupled-learning-rate", stats->decoupled_learning_rate },
        { "batch-size", (double)stats->global_batch_size },
        { "loss-scale", stats->loss_scale },
        { "grad-norm", stats->grad_norm },
        { "num-zeros", stats->num_zeros < 0 ? NAN : (double)stats->num_zeros },
        { "params-norm", stats->params_norm },
    };
    struct meg_append_file *t = &l->tensorboard;
    int r;

    for (size_t i = 0; i < sizeof scalars / sizeof *scalars; i++) {
        for (int k = 0; i == BEFORE_LOSSES && k < stats->loss.n; k++)
            if ((r = scalar(l, stats->loss.name[k], stats->loss.value[k], stats, e)) < 0)
                return r;
        if ((r = scalar(l, scalars[i].name, scalars[i].value, stats, e)) < 0)
            return r;
    }
    if ((r = meg_tensorboard_scalar(t, "iteration-time", stats->iteration_ms * 1e-3, stats->iteration, e)) < 0 ||
        !l->conf->log_throughput)
        return r;
    return meg_tensorboard_scalar(t, "throughput", stats->flops / (double)stats->ranks / stats->iteration_ms * 1e-9,
                                  stats->iteration, e);
}

/* Estimate the remaining seconds from the mean time per iteration since the first call.  The first call returns 0. */
static int64_t remaining_s(struct meg_logger *l, const struct meg_iteration_stats *stats)
{
    const double now = meg_now_s();
    const int64_t done = stats->iteration - l->first_iteration;

    if (l->first_s == 0) {
        l->first_iteration = stats->iteration;
        l->first_s = now;
        return 0;
    }
    return done > 0 ? (int64_t)((now - l->first_s) / (double)done * (double)(stats->train_iters - stats->iteration))
                    : 0;
}

void meg_logger_step(struct meg_logger *l, const struct meg_iteration_stats *stats)
{
    const int64_t left_s = remaining_s(l, stats);
    struct meg_err e;

    meg_progress_show(&l->progress, "iteration %" PRId64 "/%" PRId64 "  %s %.4f  %.0f tokens/s  %" PRId64 ":%02d left",
                      stats->iteration, stats->train_iters, stats->loss.name[0], stats->loss.value[0],
                      stats->tokens_per_s, left_s / 60, (int)(left_s % 60));
    if (l->tensorboard.path && stats->iteration % l->conf->tensorboard_log_interval == 0 &&
        write_events(l, stats, &e) < 0)
        disable(&l->tensorboard, "tensorboard-dir", &e);
}

/* Print and free s.  Write errors are reported when the program ends, because a full disk must not stop the run. */
static void print(struct meg_str *s)
{
    meg_write_stdout(s->s, s->n, NULL);
    meg_str_free(s);
}

void meg_logger_interval(struct meg_logger *l, const struct meg_iteration_stats *stats)
{
    struct meg_str s = { 0 };
    struct meg_err e;
    time_t now = time(NULL);
    struct tm when;

    localtime_r(&now, &when);
    meg_training_log_line(&s, stats, l->conf->log_throughput, &when);
    print(&s);
    if (l->metrics.path && meg_metrics_interval(&l->metrics, stats, &e) < 0)
        disable(&l->metrics, "log-json", &e);
}

static int write_evaluation(struct meg_logger *l, const char *group, const struct meg_iteration_stats *stats,
                            struct meg_err *e)
{
    int r = 0;

    for (int i = 0; r == 0 && i < stats->loss.n; i++) {
        struct meg_str tag = { 0 };

        if (group)
            meg_str_printf(&tag, "lm-loss-validation/%s/", group);
        meg_str_printf(&tag, "%s validation", stats->loss.name[i]);
        r = scalar(l, tag.s, stats->loss.value[i], stats, e);
        meg_str_printf(&tag, " ppl");
        if (r == 0 && l->conf->log_validation_ppl)
            r = scalar(l, tag.s, meg_training_log_perplexity(stats->loss.value[i]), stats, e);
        meg_str_free(&tag);
    }
    return r;
}

void meg_logger_evaluation(struct meg_logger *l, const struct meg_evaluation *v)
{
    const struct meg_iteration_stats stats = { .iteration = v->iteration,
                                               .consumed_samples = v->consumed_samples,
                                               .loss = v->loss };
    struct meg_str s = { 0 };
    struct meg_err e;
    const bool is_valid = strcmp(v->split, "valid") == 0;
    char where[64];

    snprintf(where, sizeof where, "iteration %" PRId64, v->iteration);
    if (v->is_last)
        snprintf(where, sizeof where, "iteration %" PRId64 " on %s set", v->iteration,
                 is_valid ? "validation" : v->split);
    meg_training_log_evaluation(&s, v->group, where, &v->loss);
    print(&s);
    if (l->metrics.path && meg_metrics_evaluation(&l->metrics, v, &e) < 0)
        disable(&l->metrics, "log-json", &e);
    if (l->tensorboard.path && is_valid && write_evaluation(l, v->group, &stats, &e) < 0)
        disable(&l->tensorboard, "tensorboard-dir", &e);
}

void meg_logger_eval_progress(struct meg_logger *l, const char *split, int64_t done, int64_t total)
{
    meg_progress_show(&l->progress, "evaluation (%s) %" PRId64 "/%" PRId64, split, done, total);
}
