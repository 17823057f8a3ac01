/*
 * metrics.h - the file of --log-json: one JSON object per line.  The keys of times and rates contain units.  A value
 * that is not finite is null.  There is a value for each loss of the model, such as lm_loss; ppl is the perplexity of
 * the first loss.  The values decoupled_learning_rate, num_zeros and params_norm are omitted if they were not computed.
 *   training    {"iteration","consumed_samples","lm_loss","learning_rate",...}
 *   evaluation  {"iteration","consumed_samples","split","after_training","lm_loss","ppl"}
 *               and "group" after "split", if the data are a group of Megatron-DeepSpeed
 * A run that resumes from iteration N truncates the file at the first line that it will write again: a line of a later
 * iteration, or of an evaluation after training.
 */
#pragma once
#include "logging/append_file.h"
#include "logging/training_log.h"

/*
 * Open or create the file `path`.  Truncate it as described above; if `resumed` is 0, remove all lines.  If a line was
 * not written by this module, return MEG_EFORMAT and leave the file unchanged.  A pipe or device is neither checked nor
 * truncated.  Close the file with meg_append_file_close.
 */
int meg_metrics_open(struct meg_append_file *a, const char *path, int64_t resumed, struct meg_err *e);
int meg_metrics_interval(struct meg_append_file *a, const struct meg_iteration_stats *stats, struct meg_err *e);
int meg_metrics_evaluation(struct meg_append_file *a, const struct meg_evaluation *v, struct meg_err *e);
