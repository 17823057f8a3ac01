/* log_conf.c - logging options of a training run: values to log, files, intervals. */
#include "logging/log_conf.h"
#include "option/check.h"

#define C struct meg_logging_conf
const struct meg_opt meg_logging_opts[] = {
    { "log-interval", 0, MEG_I64(C, log_interval), "N", "100", "number of iterations between log lines" },
    { "log-json", 0, MEG_STR(C, log_json), "FILE", NULL,
      "append a JSON object to FILE for each log line and each evaluation" },
    { "log-throughput", 0, MEG_BOOL(C, log_throughput), NULL, "no", "log the throughput in TFLOP/s per rank" },
    { "log-params-norm", 0, MEG_BOOL(C, log_params_norm), NULL, "no", "log the L2 norm of the weights" },
    { "log-num-zeros-in-grad", 0, MEG_BOOL(C, log_num_zeros), NULL, "no",
      "log the number of gradient elements that are zero" },
    { "log-straggler", 0, MEG_BOOL(C, log_straggler), NULL, "no",
      "log the slowest rank of each phase of a step, with its time" },
    { "log-progress", 0, MEG_BOOL(C, log_progress), NULL, "no",
      "append a line to progress.txt in the --save directory at each job start and each save" },
    { "tensorboard-dir", 0, MEG_STR(C, tensorboard_dir), "DIR", NULL, "write TensorBoard events to DIR" },
    { "tensorboard-log-interval", 0, MEG_I64(C, tensorboard_log_interval), "N", "1",
      "number of iterations between TensorBoard events" },
    { "log-validation-ppl-to-tensorboard", 0, MEG_BOOL(C, log_validation_ppl), NULL, "no",
      "also write the validation perplexity to TensorBoard" },
    { 0 }
};

static const struct meg_opt_range ranges[] = {
    { "log-interval", offsetof(C, log_interval), 1, INT64_MAX },
    { "tensorboard-log-interval", offsetof(C, tensorboard_log_interval), 1, INT64_MAX },
    { 0 },
};
#undef C

int meg_logging_conf_check(const struct meg_logging_conf *c, struct meg_err *e)
{
    return meg_opt_check_ranges(ranges, c, e);
}
