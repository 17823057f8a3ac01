/*
 * What a training run says: Megatron's log line on stdout, JSON lines (--log-json), TensorBoard
 * scalars (--tensorboard-dir), and a progress line on a terminal's stderr.
 */
#ifndef MEG_TRAIN_REPORT_H
#define MEG_TRAIN_REPORT_H
#include <stdbool.h>
#include <stdint.h>
#include <time.h>
#include "base/mem.h"
#include "train/conf.h"

MEG_BEGIN_DECLS

/* An iteration, or the iterations since the last log line.  What was not asked for is NaN, or -1 in integers. */
struct meg_train_stats {
    int64_t iteration, train_iters;
    int64_t consumed_samples, skipped_samples;
    int64_t global_batch_size;
    double lm_loss;       /* mean of the iterations; nats a token */
    double learning_rate; /* of the next iteration, as Megatron logs it */
    double decoupled_learning_rate;
    double loss_scale;
    double grad_norm;  /* of the last iteration, before clipping */
    int64_t num_zeros; /* gradient elements that are exactly zero */
    double params_norm;
    int64_t num_skipped_iterations, num_nan_iterations;
    double iteration_ms; /* mean of the iterations */
    double tokens_per_s;
    int64_t ranks; /* that did it */
    double flops;  /* of one iteration, counted for the model */
};

/*
 * Append " [date] iteration N/M | consumed samples: ... |" and a newline: the line that Megatron's
 * training_log prints and that its parsers read.
 */
void meg_training_log_line(struct meg_str *s, const struct meg_train_stats *v, bool has_throughput,
                           const struct tm *when);

/*
 * Append the three lines of an evaluation, dashed rules around
 * " validation loss at WHERE | lm loss value: ... | lm loss PPL: ... | ".
 */
void meg_training_log_evaluation(struct meg_str *s, const char *where, double loss);

/* Compute exp(min(20, loss)), as Megatron prints it; NaN of a loss that is not finite. */
double meg_perplexity(double loss);

struct meg_logger;

/*
 * Open the files that c names for a run that starts after iteration resumed, whose configuration
 * text (lines "name = value") goes to TensorBoard.  c is kept until close.
 */
int meg_logger_open(struct meg_logger **out, const struct meg_train_log_conf *c, int64_t resumed, const char *text,
                    struct meg_err *e);
void meg_logger_close(struct meg_logger *p);

/*
 * Report an iteration, an interval or an evaluation.  A file that cannot be written is warned of and closed, and the
 * run goes on without it.
 */

/* Write the events of an iteration, and show it on the progress line. */
void meg_logger_step(struct meg_logger *p, const struct meg_train_stats *v);

/* Print the log line of a --log-interval, and write its JSON line. */
void meg_logger_interval(struct meg_logger *p, const struct meg_train_stats *v);

/* Report the loss of a split, "valid" or "test"; is_last: after training. */
void meg_logger_evaluation(struct meg_logger *p, const char *split, bool is_last, int64_t iteration,
                           int64_t consumed_samples, double loss);

/* How far an evaluation is, on the progress line. */
void meg_logger_eval_progress(struct meg_logger *p, const char *split, int64_t done, int64_t total);

MEG_END_DECLS
#endif
