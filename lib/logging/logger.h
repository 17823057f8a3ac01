/*
 * logger.h - the logs of a training run: Megatron's log line on stdout, JSON lines (--log-json), TensorBoard scalars
 * (--tensorboard-dir) and a progress line on stderr when that is a terminal.
 */
#pragma once
#include "logging/log_conf.h"
#include "logging/training_log.h"

struct meg_logger;

/*
 * Open the files that *c names.  The run resumes from iteration `resumed`, or is new if `resumed` is 0.  `options` has
 * lines "name = value", which are written to TensorBoard as text.  c is borrowed until meg_logger_close.  Fails as
 * meg_metrics_open and meg_tensorboard_open do.
 */
int meg_logger_open(struct meg_logger **out, const struct meg_logging_conf *c, int64_t resumed, const char *options,
                    struct meg_err *e);
void meg_logger_close(struct meg_logger *l);

/*
 * The functions below cannot fail.  If the JSON or TensorBoard file cannot be written, they print a warning and close
 * the file.  The run continues without the file.
 */

/* Show an iteration on the progress line.  Write TensorBoard events every --tensorboard-log-interval iterations. */
void meg_logger_step(struct meg_logger *l, const struct meg_iteration_stats *stats);

/* Print a log line for the iterations since the previous log line, and append a JSON line to the --log-json file. */
void meg_logger_interval(struct meg_logger *l, const struct meg_iteration_stats *stats);

/*
 * Print the losses of an evaluation, and append a JSON line to the --log-json file.  Write the losses to TensorBoard if
 * the split is "valid".  As in Megatron-DeepSpeed, the line and the TensorBoard tags, "lm-loss-validation/GROUP/lm loss
 * validation", have the name of the group.
 */
void meg_logger_evaluation(struct meg_logger *l, const struct meg_evaluation *v);

/* Show on the progress line that `done` of the `total` global batches of an evaluation are complete. */
void meg_logger_eval_progress(struct meg_logger *l, const char *split, int64_t done, int64_t total);
