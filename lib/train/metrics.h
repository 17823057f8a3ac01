/*
 * --log-json FILE: an object a line, units in the keys, null for what is not finite.
 *   training    {"iteration","consumed_samples","lm_loss","learning_rate",...}
 *   evaluation  {"iteration","consumed_samples","split","after_training","lm_loss","ppl"}
 * A run that resumes at iteration N drops the lines after N, and evaluations after training, and goes
 * on from there, so a file holds each line once however often the run was stopped.
 */
#ifndef MEG_TRAIN_METRICS_H
#define MEG_TRAIN_METRICS_H
#include "train/report.h"

MEG_BEGIN_DECLS

struct meg_metrics;

/*
 * Open or create path and keep its lines up to iteration resumed; at 0 none is.  MEG_EFORMAT,
 * and nothing changed, when a line was not written by this module: it is somebody else's file.
 * A pipe or device is only written to.
 */
int meg_metrics_open(struct meg_metrics **out, const char *path, int64_t resumed, struct meg_err *e);
int meg_metrics_interval(struct meg_metrics *m, const struct meg_train_stats *v, struct meg_err *e);
int meg_metrics_evaluation(struct meg_metrics *m, const char *split, bool is_last, int64_t iteration,
                           int64_t consumed_samples, double loss, struct meg_err *e);
void meg_metrics_close(struct meg_metrics *m);

MEG_END_DECLS
#endif
