/* metrics.c - the file of --log-json: one JSON object per line. */
#include "logging/metrics.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "io/json.h"
#include "io/line_reader.h"

/*
 * Return the iteration of a line of the file, INT64_MAX if the line is an evaluation after training, or -1 if this
 * module did not write the line.
 */
static int64_t iteration_of(const char *line)
{
    json_t *o = json_loads(line, JSON_REJECT_DUPLICATES, NULL), *v = json_object_get(o, "iteration");
    int64_t n = json_is_integer(v) && json_object_get(o, "lm_loss") ? json_integer_value(v) : -1;

    if (n >= 0 && json_is_true(json_object_get(o, "after_training")))
        n = INT64_MAX;

    json_decref(o);
    return n;
}

/* Return whether a line without a newline, of n bytes, can be one of this file that a killed run has not completed. */
static bool is_incomplete(const char *line, size_t n)
{
    static const char start[] = "{\"iteration\":";

    return strncmp(line, start, n < sizeof start - 1 ? n : sizeof start - 1) == 0;
}

/*
 * Set *end to the offset at which to truncate the file when a run resumes from iteration `resumed`.  The offset is the
 * start of the first line that the run will write again.  If there is no such line, the offset is the end of the last
 * complete line.  If `resumed` is 0, the offset is 0.
 */
static int find_resume_offset(const char *path, int64_t resumed, int64_t *end, struct meg_err *e)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct meg_line_reader in;
    char *line;
    size_t n;
    bool is_kept = true;
    int r;

    *end = 0;
    if (fd < 0)
        return errno == ENOENT ? 0 : meg_fail_errno(e, "%s", path);
    meg_line_reader_init(&in, fd, path);
    while ((r = meg_line_reader_next(&in, &line, &n, e)) > 0) {
        const int64_t iteration = iteration_of(line);

        if (!in.has_newline && is_incomplete(line, n))
            break;
        if (iteration < 0) {
            r = meg_fail(e, MEG_EFORMAT,
                         "--log-json %s: line %" PRId64 ": not a JSON object of metrics; choose a different file", path,
                         in.line);
            break;
        }
        is_kept &= in.has_newline && resumed > 0 && iteration <= resumed;
        if (is_kept)
            *end = in.offset;
    }
    meg_line_reader_close(&in);
    return r < 0 ? r : 0;
}

static bool is_regular_or_new(const char *path)
{
    struct stat st;

    return stat(path, &st) < 0 || S_ISREG(st.st_mode);
}

int meg_metrics_open(struct meg_append_file *a, const char *path, int64_t resumed, struct meg_err *e)
{
    int64_t end = -1;
    int r = is_regular_or_new(path) ? find_resume_offset(path, resumed, &end, e) : 0;

    return r < 0 ? r : meg_append_file_open(a, path, end, e);
}

/* Complete the JSON object in s, write it as a line, and free s. */
static int write_line(struct meg_append_file *a, struct meg_str *s, struct meg_err *e)
{
    int r;

    meg_json_end(s, '}');
    meg_str_add(s, "\n", 1);
    r = meg_append_file_write(a, s->s, s->n, e);
    meg_str_free(s);
    return r;
}

/* Add the losses, with "_" in place of blanks in their names. */
static void set_losses(struct meg_str *s, const struct meg_named_losses *loss)
{
    for (int i = 0; i < loss->n; i++) {
        char key[32];
        size_t k = 0;

        for (; loss->name[i][k] && k + 1 < sizeof key; k++)
            key[k] = loss->name[i][k] == ' ' ? '_' : loss->name[i][k];
        key[k] = '\0';
        meg_json_set_f64(s, key, loss->value[i]);
    }
}

int meg_metrics_interval(struct meg_append_file *a, const struct meg_iteration_stats *stats, struct meg_err *e)
{
    struct meg_str s = { 0 };

    meg_json_begin(&s, '{');
    meg_json_set_i64(&s, "iteration", stats->iteration);
    meg_json_set_i64(&s, "consumed_samples", stats->consumed_samples);
    meg_json_set_i64(&s, "skipped_samples", stats->skipped_samples);
    meg_json_set_i64(&s, "global_batch_size", stats->global_batch_size);
    set_losses(&s, &stats->loss);
    meg_json_set_f64(&s, "learning_rate", stats->learning_rate);
    if (!isnan(stats->decoupled_learning_rate))
        meg_json_set_f64(&s, "decoupled_learning_rate", stats->decoupled_learning_rate);
    meg_json_set_f64(&s, "loss_scale", stats->loss_scale);
    meg_json_set_f64(&s, "grad_norm", stats->grad_norm);
    if (stats->num_zeros >= 0)
        meg_json_set_i64(&s, "num_zeros", stats->num_zeros);
    if (!isnan(stats->params_norm))
        meg_json_set_f64(&s, "params_norm", stats->params_norm);
    meg_json_set_i64(&s, "skipped_iterations", stats->num_skipped_iterations);
    meg_json_set_i64(&s, "nan_iterations", stats->num_nan_iterations);
    meg_json_set_f64(&s, "iteration_ms", stats->iteration_ms);
    meg_json_set_f64(&s, "tokens_per_s", stats->tokens_per_s);
    meg_json_set_f64(&s, "flops_per_iteration", stats->flops);
    meg_json_set_f64(&s, "tflops_per_s", stats->flops / stats->iteration_ms * 1e-9);
    return write_line(a, &s, e);
}

int meg_metrics_evaluation(struct meg_append_file *a, const struct meg_evaluation *v, struct meg_err *e)
{
    struct meg_str s = { 0 };

    meg_json_begin(&s, '{');
    meg_json_set_i64(&s, "iteration", v->iteration);
    meg_json_set_i64(&s, "consumed_samples", v->consumed_samples);
    meg_json_set_str(&s, "split", v->split);
    if (v->group)
        meg_json_set_str(&s, "group", v->group);
    meg_json_set_bool(&s, "after_training", v->is_last);
    set_losses(&s, &v->loss);
    meg_json_set_f64(&s, "ppl", meg_training_log_perplexity(v->loss.value[0]));
    return write_line(a, &s, e);
}
