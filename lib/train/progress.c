/*
 * progress.c - write progress.txt in Megatron's format: a line per job start and per checkpoint, with fields separated
 * by tabs.  Cumulative throughput covers the time since the start of the first job after the last job that had a
 * different number of ranks.  If the file does not contain this start, for example after a failed write, only this job
 * is covered.
 */
#define _GNU_SOURCE /* strptime */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/clock.h"
#include "base/log.h"
#include "file/file.h"
#include "io/line_reader.h"
#include "logging/append_file.h"
#include "train/trainer.h"

static const char date_format[] = "%Y-%m-%d %H:%M:%S";

static char *path_of(const struct meg_trainer *t)
{
    struct meg_str s = { 0 };

    meg_str_printf(&s, "%s/progress.txt", t->job->ckpt.save);
    return s.s;
}

static int append_line(const struct meg_trainer *t, const char *text, struct meg_err *e)
{
    const char *job = getenv("SLURM_JOB_ID");
    char *path = path_of(t), date[32];
    struct meg_append_file file = { 0 };
    struct meg_str line = { 0 };
    time_t now = time(NULL);
    struct tm when;
    int r;

    localtime_r(&now, &when);
    strftime(date, sizeof date, date_format, &when);
    meg_str_printf(&line, "%s\tJob ID: %s\t# GPUs: %d\t%s\n", date, job ? job : "", t->mesh.world->size, text);
    if ((r = meg_mkdirs(t->job->ckpt.save, e)) == 0 && (r = meg_append_file_open(&file, path, -1, e)) == 0)
        r = meg_append_file_write(&file, line.s, line.n, e);
    meg_append_file_close(&file);
    meg_str_free(&line);
    free(path);
    return r;
}

static double flops_until(const struct meg_trainer *t, const struct meg_train_state *state)
{
    return t->sequence_flops * (double)state->consumed_train;
}

/*
 * Read the progress log.  Find the first job after the last job that had a different number of ranks than this one.
 * Set *start to the start time of the job found, and *flops to the model FLOPs of the run before it.  If no job is
 * found, set *start to 0; *flops is then meaningless.
 */
static void find_first_job(const struct meg_trainer *t, time_t *start, double *flops)
{
    char *path = path_of(t), *line;
    struct meg_line_reader in;
    size_t n;
    double done = 0;

    *start = 0;
    *flops = 0;
    meg_line_reader_open(&in, path, NULL);
    while (in.fd >= 0 && meg_line_reader_next(&in, &line, &n, NULL) > 0) {
        const char *gpus = strstr(line, "# GPUs: "), *count = strstr(line, "Floating-point operations: ");
        struct tm when = { .tm_isdst = -1 };

        if (count)
            done = strtod(count + strlen("Floating-point operations: "), NULL);
        if (!gpus || strtoll(gpus + strlen("# GPUs: "), NULL, 10) != t->mesh.world->size)
            *start = 0;
        else if (*start == 0 && strstr(line, "\tStarting job") && strptime(line, date_format, &when)) {
            *start = mktime(&when);
            *flops = done;
        }
    }
    meg_line_reader_close(&in);
    free(path);
}

int meg_train_progress_log_start(struct meg_trainer *t, struct meg_err *e)
{
    t->start_flops = flops_until(t, &t->state);
    return t->job->log.log_progress ? append_line(t, "Starting job", e) : 0;
}

void meg_train_progress_log_save(struct meg_trainer *t, const struct meg_train_state *state)
{
    double flops = flops_until(t, state), first_flops, ranks = (double)t->mesh.world->size;
    char text[512];
    struct meg_err e;
    time_t first;

    if (!t->job->log.log_progress)
        return;
    find_first_job(t, &first, &first_flops);
    if (first == 0) {
        first = time(NULL) - (time_t)(meg_now_s() - t->start_s);
        first_flops = t->start_flops;
    }
    snprintf(text, sizeof text,
             "Saved checkpoint\tIteration: %" PRId64 "\tJob throughput: %.1f TFLOP/s/GPU\t"
             "Cumulative throughput: %.1f TFLOP/s/GPU\tFloating-point operations: %.2e\tTokens (in "
             "billions): %.2f",
             state->iteration, (flops - t->start_flops) / (meg_now_s() - t->start_s) / 1e12 / ranks,
             (flops - first_flops) / difftime(time(NULL) + 1, first) / 1e12 / ranks, flops,
             (double)(state->consumed_train * t->job->train.seq_length) / 1e9);
    if (append_line(t, text, &e) < 0)
        meg_warn("%s; no line was appended for iteration %" PRId64 ", and the run continues", e.msg, state->iteration);
}
