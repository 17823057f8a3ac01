/*
 * log_conf.h - logging options of a training run: values to log, files, intervals.
 */
#pragma once
#include "option/opt.h"

struct meg_logging_conf {
    int64_t log_interval, tensorboard_log_interval;
    const char *log_json, *tensorboard_dir;
    bool log_throughput, log_params_norm, log_straggler, log_num_zeros, log_progress, log_validation_ppl;
};
extern const struct meg_opt meg_logging_opts[];

/* Return MEG_EUSAGE if a value is out of its range. */
int meg_logging_conf_check(const struct meg_logging_conf *c, struct meg_err *e);
