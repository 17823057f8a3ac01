/*
 * training_log.h - format the log lines of Megatron's training_log and evaluate_and_print_results.  Log parsers read
 * the lines, so the format must not change.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <time.h>
#include "base/mem.h"
#include "tensor/step.h"

/* The losses of a model, with names such as "lm loss". */
struct meg_named_losses {
    int n;
    const char *name[MEG_MAX_LOSSES];
    double value[MEG_MAX_LOSSES];
};

/*
 * Values of one iteration, or of the iterations since the last log line.  A value that was not computed is NaN, or -1
 * if it is an integer.
 */
struct meg_iteration_stats {
    int64_t iteration, train_iters;
    int64_t consumed_samples, skipped_samples;
    int64_t global_batch_size;
    struct meg_named_losses loss; /* mean of each loss over the iterations, in nats; loss.n is at least 1 */
    double learning_rate;         /* learning rate of the next iteration, as Megatron logs it */
    double decoupled_learning_rate;
    double loss_scale;
    double grad_norm;  /* norm of the gradients of the last iteration, before clipping */
    int64_t num_zeros; /* number of gradient elements that are exactly zero */
    double params_norm;
    int64_t num_skipped_iterations, num_nan_iterations;
    double iteration_ms; /* mean over the iterations */
    double tokens_per_s; /* T5: tokens of the encoder */
    int64_t ranks;
    double flops; /* model FLOPs of one iteration, sum over the ranks */
};

/* The losses of a split at an iteration. */
struct meg_evaluation {
    const char *split; /* "valid" or "test" */
    const char *group; /* name of the data's group, if there are several groups of Megatron-DeepSpeed; else NULL */
    bool is_last;      /* the evaluation follows the end of training */
    int64_t iteration, consumed_samples;
    struct meg_named_losses loss;
};

/*
 * Append Megatron's block of arguments to s: one line "  seq_length ...... 64" for each line "seq-length = 64" of
 * `options`, in alphabetical order, between two titles.  yes and no become True and False.  Lines without " = ", such
 * as comments, are ignored.
 */
void meg_training_log_arguments(struct meg_str *s, const char *options);

/*
 * Append " [date] iteration N/M | consumed samples: ... |" and a newline to s.  The line has the throughput only if
 * has_throughput.  It omits skipped samples if there are none, and a loss that is not above 0.  It omits the decoupled
 * learning rate, the gradient norm, the number of zeros and the norm of the parameters if they were not computed.
 */
void meg_training_log_line(struct meg_str *s, const struct meg_iteration_stats *stats, bool has_throughput,
                           const struct tm *when);

/*
 * Append the three lines of an evaluation to s: " validation loss at WHERE | lm loss value: ... | lm loss PPL: ... | ",
 * with two values for each loss, between two lines of dashes.  If `group` is not NULL, the line begins with "GROUP
 * loss", as in Megatron-DeepSpeed, without a blank before it.
 */
void meg_training_log_evaluation(struct meg_str *s, const char *group, const char *where,
                                 const struct meg_named_losses *loss);

/* Compute exp(min(20, loss)), which Megatron prints as perplexity; NaN for a loss that is not finite. */
double meg_training_log_perplexity(double loss);
