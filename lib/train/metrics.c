#include "train/metrics.h"
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "train/append.h"

struct meg_metrics {
    struct meg_append_file file;
};

/* The iteration of a line, above all others for what comes after training, or -1 when it is none of ours. */
static int64_t iteration_of(const char *line)
{
    json_t *o = json_loads(line, JSON_REJECT_DUPLICATES, NULL), *v = json_object_get(o, "iteration");
    int64_t n = json_is_integer(v) && json_object_get(o, "lm_loss") ? json_integer_value(v) : -1;

    if (n >= 0 && json_is_true(json_object_get(o, "after_training")))
        n = INT64_MAX;

    json_decref(o);
    return n;
}

/* Where the first line begins that a run resumed there writes again, or an error. */
static int find_end(const char *path, int64_t resumed, int64_t *end, struct meg_err *e)
{
    FILE *f = fopen(path, "re");
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int64_t at = 0;
    bool is_kept = true;
    int r = 0;

    *end = 0;
    if (!f)
        return errno == ENOENT ? 0 : meg_fail_errno(e, "%s", path);
    for (int64_t number = 1; (n = getline(&line, &cap, f)) > 0 && line[n - 1] == '\n'; number++) {
        int64_t iteration = iteration_of(line);
        if (iteration < 0) {
            r = meg_fail(e, MEG_EFORMAT, "--log-json %s: line %" PRId64 " is not a metrics line; name another file",
                         path, number);
            break;
        }
        is_kept &= resumed > 0 && iteration <= resumed;
        at += n;
        if (is_kept)
            *end = at;
    }
    if (r == 0 && ferror(f))
        r = meg_fail_errno(e, "%s", path);
    free(line);
    fclose(f);
    return r;
}

static bool is_regular_or_new(const char *path)
{
    struct stat st;

    return stat(path, &st) < 0 || S_ISREG(st.st_mode);
}

int meg_metrics_open(struct meg_metrics **out, const char *path, int64_t resumed, struct meg_err *e)
{
    struct meg_metrics *m = meg_new(sizeof *m);
    int64_t end = -1;
    int r = 0;

    if ((is_regular_or_new(path) && (r = find_end(path, resumed, &end, e)) < 0) ||
        (r = meg_append_file_open(&m->file, path, end, e)) < 0) {
        meg_metrics_close(m);
        return r;
    }
    *out = m;
    return 0;
}

void meg_metrics_close(struct meg_metrics *m)
{
    if (!m)
        return;
    meg_append_file_close(&m->file);
    free(m);
}

static void add(struct meg_str *s, const char *key, double v)
{
    if (isfinite(v))
        meg_str_printf(s, ",\"%s\":%.9g", key, v);
    else
        meg_str_printf(s, ",\"%s\":null", key);
}

/* Write the line and free it. */
static int put(struct meg_metrics *m, struct meg_str *s, struct meg_err *e)
{
    int r;

    meg_str_printf(s, "}\n");
    r = meg_append_file_write(&m->file, s->s, s->n, e);
    meg_str_free(s);
    return r;
}

int meg_metrics_interval(struct meg_metrics *m, const struct meg_train_stats *v, struct meg_err *e)
{
    struct meg_str s = { 0 };

    meg_str_printf(&s,
                   "{\"iteration\":%" PRId64 ",\"consumed_samples\":%" PRId64 ",\"skipped_samples\":%" PRId64
                   ",\"global_batch_size\":%" PRId64,
                   v->iteration, v->consumed_samples, v->skipped_samples, v->global_batch_size);
    add(&s, "lm_loss", v->lm_loss);
    add(&s, "learning_rate", v->learning_rate);
    if (!isnan(v->decoupled_learning_rate))
        add(&s, "decoupled_learning_rate", v->decoupled_learning_rate);
    add(&s, "loss_scale", v->loss_scale);
    add(&s, "grad_norm", v->grad_norm);
    if (v->num_zeros >= 0)
        meg_str_printf(&s, ",\"num_zeros\":%" PRId64, v->num_zeros);
    if (!isnan(v->params_norm))
        add(&s, "params_norm", v->params_norm);
    meg_str_printf(&s, ",\"skipped_iterations\":%" PRId64 ",\"nan_iterations\":%" PRId64, v->num_skipped_iterations,
                   v->num_nan_iterations);
    add(&s, "iteration_ms", v->iteration_ms);
    add(&s, "tokens_per_s", v->tokens_per_s);
    add(&s, "flops_per_iteration", v->flops);
    add(&s, "tflops_per_s", v->flops / v->iteration_ms * 1e-9);
    return put(m, &s, e);
}

int meg_metrics_evaluation(struct meg_metrics *m, const char *split, bool is_last, int64_t iteration,
                           int64_t consumed_samples, double loss, struct meg_err *e)
{
    struct meg_str s = { 0 };

    meg_str_printf(&s,
                   "{\"iteration\":%" PRId64 ",\"consumed_samples\":%" PRId64 ",\"split\":\"%s\",\"after_training\":%s",
                   iteration, consumed_samples, split, is_last ? "true" : "false");
    add(&s, "lm_loss", loss);
    add(&s, "ppl", meg_perplexity(loss));
    return put(m, &s, e);
}
