#include "train/report.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/log.h"
#include "train/metrics.h"
#include "train/tensorboard.h"

struct meg_logger {
    const struct meg_train_log_conf *conf;
    struct meg_metrics *metrics;    /* NULL without --log-json */
    struct meg_tensorboard *events; /* NULL without --tensorboard-dir */
    struct meg_progress progress;
    int64_t first; /* iteration and time at the first step, for the time left */
    double first_s;
};

static int write_text(struct meg_tensorboard *t, const char *text, int64_t step, struct meg_err *e)
{
    char *copy = meg_strdup(text), *rest = copy, *line;
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

int meg_logger_open(struct meg_logger **out, const struct meg_train_log_conf *c, int64_t resumed, const char *text,
                    struct meg_err *e)
{
    struct meg_logger *p = meg_new(sizeof *p);
    int r = 0;

    p->conf = c;
    meg_progress_init(&p->progress, 0);
    if ((c->log_json && (r = meg_metrics_open(&p->metrics, c->log_json, resumed, e)) < 0) ||
        (c->tensorboard_dir && ((r = meg_tensorboard_open(&p->events, c->tensorboard_dir, resumed, e)) < 0 ||
                                (r = write_text(p->events, text, resumed, e)) < 0)))
        goto out;
    *out = p;
    p = NULL;
out:
    meg_logger_close(p);
    return r;
}

void meg_logger_close(struct meg_logger *p)
{
    if (!p)
        return;
    meg_progress_end(&p->progress);
    meg_metrics_close(p->metrics);
    meg_tensorboard_close(p->events);
    free(p);
}

/*
 * A log that cannot be written, on a full disk for instance, ends no run: warn once, and close it.
 */
static void drop_metrics(struct meg_logger *p, const struct meg_err *e)
{
    meg_warn("%s; the run goes on without --log-json", e->msg);
    meg_metrics_close(p->metrics);
    p->metrics = NULL;
}

static void drop_events(struct meg_logger *p, const struct meg_err *e)
{
    meg_warn("%s; the run goes on without --tensorboard-dir", e->msg);
    meg_tensorboard_close(p->events);
    p->events = NULL;
}

/* name over iterations, and "name vs samples" over samples. */
static int scalar(struct meg_logger *p, const char *name, double value, const struct meg_train_stats *v,
                  struct meg_err *e)
{
    char by_samples[64];
    int r;

    if (isnan(value))
        return 0;
    snprintf(by_samples, sizeof by_samples, "%s" MEG_TENSORBOARD_VS_SAMPLES, name);
    if ((r = meg_tensorboard_scalar(p->events, name, value, v->iteration, e)) < 0)
        return r;
    return meg_tensorboard_scalar(p->events, by_samples, value, v->consumed_samples, e);
}

static int write_events(struct meg_logger *p, const struct meg_train_stats *v, struct meg_err *e)
{
    int r;

    if ((r = scalar(p, "learning-rate", v->learning_rate, v, e)) < 0 ||
        (r = scalar(p, "decoupled-learning-rate", v->decoupled_learning_rate, v, e)) < 0 ||
        (r = scalar(p, "batch-size", (double)v->global_batch_size, v, e)) < 0 ||
        (r = scalar(p, "lm loss", v->lm_loss, v, e)) < 0 || (r = scalar(p, "loss-scale", v->loss_scale, v, e)) < 0 ||
        (r = scalar(p, "grad-norm", v->grad_norm, v, e)) < 0 ||
        (r = scalar(p, "num-zeros", v->num_zeros < 0 ? NAN : (double)v->num_zeros, v, e)) < 0 ||
        (r = scalar(p, "params-norm", v->params_norm, v, e)) < 0 ||
        (r = meg_tensorboard_scalar(p->events, "iteration-time", v->iteration_ms * 1e-3, v->iteration, e)) < 0)
        return r;
    if (p->conf->log_throughput)
        return meg_tensorboard_scalar(p->events, "throughput", v->flops / (double)v->ranks / v->iteration_ms * 1e-9,
                                      v->iteration, e);
    return 0;
}

void meg_logger_step(struct meg_logger *p, const struct meg_train_stats *v)
{
    const double now = meg_now_s();
    struct meg_err e;
    int64_t left_s;

    if (p->first_s == 0) {
        p->first = v->iteration;
        p->first_s = now;
    }
    left_s = v->iteration > p->first ? (int64_t)((now - p->first_s) / (double)(v->iteration - p->first) *
                                                 (double)(v->train_iters - v->iteration))
                                     : 0;
    meg_progress_show(&p->progress,
                      "iteration %" PRId64 "/%" PRId64 "  lm loss %.4f  %.0f tokens/s  %" PRId64 ":%02d left",
                      v->iteration, v->train_iters, v->lm_loss, v->tokens_per_s, left_s / 60, (int)(left_s % 60));
    if (p->events && v->iteration % p->conf->tensorboard_log_interval == 0 && write_events(p, v, &e) < 0)
        drop_events(p, &e);
}

/* Print and free s.  What stdout refuses comes out at the end of the program, which a full log must not be. */
static void print(struct meg_str *s)
{
    fwrite(s->s, 1, s->n, stdout);
    fflush(stdout);
    meg_str_free(s);
}

void meg_logger_interval(struct meg_logger *p, const struct meg_train_stats *v)
{
    struct meg_str s = { 0 };
    struct meg_err e;
    time_t now = time(NULL);
    struct tm when;

    localtime_r(&now, &when);
    meg_training_log_line(&s, v, p->conf->log_throughput, &when);
    print(&s);
    if (p->metrics && meg_metrics_interval(p->metrics, v, &e) < 0)
        drop_metrics(p, &e);
}

static int write_evaluation(struct meg_logger *p, const struct meg_train_stats *v, double loss, struct meg_err *e)
{
    const int r = scalar(p, "lm loss validation", loss, v, e);

    return r < 0 || !p->conf->log_validation_ppl ? r : scalar(p, "lm loss validation ppl", meg_perplexity(loss), v, e);
}

void meg_logger_evaluation(struct meg_logger *p, const char *split, bool is_last, int64_t iteration,
                           int64_t consumed_samples, double loss)
{
    const struct meg_train_stats v = { .iteration = iteration, .consumed_samples = consumed_samples };
    struct meg_str s = { 0 };
    struct meg_err e;
    char where[64];

    snprintf(where, sizeof where, "iteration %" PRId64 "%s%s%s", iteration, is_last ? " on " : "",
             !is_last                  ? ""
             : !strcmp(split, "valid") ? "validation"
                                       : split,
             is_last ? " set" : "");
    meg_training_log_evaluation(&s, where, loss);
    print(&s);
    if (p->metrics && meg_metrics_evaluation(p->metrics, split, is_last, iteration, consumed_samples, loss, &e) < 0)
        drop_metrics(p, &e);
    if (p->events && !strcmp(split, "valid") && write_evaluation(p, &v, loss, &e) < 0)
        drop_events(p, &e);
}

void meg_logger_eval_progress(struct meg_logger *p, const char *split, int64_t done, int64_t total)
{
    meg_progress_show(&p->progress, "evaluation (%s) %" PRId64 "/%" PRId64, split, done, total);
}
