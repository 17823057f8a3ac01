/* deepspeed_conf.c - read the settings of DeepSpeed's JSON file, --deepspeed_config, as options. */
#include <math.h>
#include <string.h>
#include "base/num.h"
#include "io/json.h"
#include "run/job.h"

#define J(field) offsetof(struct meg_train_job, field)
/* Settings by section of the file, NULL for its top level, and the options that they correspond to. */
static const struct setting {
    const char *section, *key, *option;
    int type; /* type of the field in struct meg_train_job */
    size_t offset;
} settings[] = {
    { NULL, "train_micro_batch_size_per_gpu", "micro-batch-size", MEG_OPT_I64, J(train.micro_batch_size) },
    { NULL, "train_batch_size", "global-batch-size", MEG_OPT_I64, J(train.global_batch_size) },
    { NULL, "gradient_clipping", "clip-grad", MEG_OPT_F64, J(optim.clip_grad) },
    { "zero_optimization", "stage", "zero-stage", MEG_OPT_I64, J(zero.zero_stage) },
    { "fp16", "enabled", "fp16", MEG_OPT_BOOL, J(precision.fp16) },
    { "fp16", "loss_scale", "loss-scale", MEG_OPT_F64, J(precision.loss_scale) },
    { "fp16", "initial_scale_power", "initial-loss-scale", MEG_OPT_F64, J(precision.initial_loss_scale) },
    { "fp16", "loss_scale_window", "loss-scale-window", MEG_OPT_I64, J(precision.loss_scale_window) },
    { "fp16", "hysteresis", "hysteresis", MEG_OPT_I64, J(precision.hysteresis) },
    { "fp16", "min_loss_scale", "min-loss-scale", MEG_OPT_F64, J(precision.min_loss_scale) },
    { "bf16", "enabled", "bf16", MEG_OPT_BOOL, J(precision.bf16) },
};
#undef J

/*
 * Set a field to the number v, unless the user has set it; then, it must be equal.  A flag of the command line can only
 * be true.
 */
static int apply(struct meg_train_job *job, const struct setting *s, double v, struct meg_err *e)
{
    void *field = (char *)job + s->offset;
    const double old = s->type == MEG_OPT_I64   ? (double)*(int64_t *)field
                       : s->type == MEG_OPT_F64 ? *(double *)field
                                                : *(bool *)field;
    char text[2][MEG_DOUBLE_CHARS];

    if (meg_opt_was_given(field) && old != v)
        return meg_fail(e, MEG_EUSAGE,
                        "--%s is %s in --deepspeed_config %s (%s%s%s), but %s on the command line; "
                        "change one of them",
                        s->option, meg_fmt_double(text[0], v), job->train.deepspeed_config,
                        s->section ? s->section : "", s->section ? "." : "", s->key, meg_fmt_double(text[1], old));
    if (s->type == MEG_OPT_I64)
        *(int64_t *)field = (int64_t)v;
    else if (s->type == MEG_OPT_F64)
        *(double *)field = v;
    else
        *(bool *)field = v != 0;
    return 0;
}

/* Apply one setting, if the file has it and its value is not "auto".  A loss scale of 0 is dynamic, the default. */
static int read_setting(struct meg_train_job *job, const struct setting *s, const json_t *file, struct meg_err *e)
{
    const json_t *value = json_object_get(s->section ? json_object_get(file, s->section) : file, s->key);
    double v = json_is_boolean(value) ? json_is_true(value) : json_number_value(value);

    if (!value || (json_is_string(value) && strcmp(json_string_value(value), "auto") == 0))
        return 0;
    if (s->type == MEG_OPT_BOOL ? !json_is_boolean(value) : !json_is_number(value))
        return meg_fail(e, MEG_EFORMAT, "%s: '%s' is not %s", job->train.deepspeed_config, s->key,
                        s->type == MEG_OPT_BOOL ? "true or false" : "a number");
    if (s->type == MEG_OPT_I64 && v != floor(v))
        return meg_fail(e, MEG_EFORMAT, "%s: '%s' is %g; expected an integer", job->train.deepspeed_config, s->key, v);
    if (strcmp(s->key, "loss_scale") == 0 && v == 0)
        return 0;
    return apply(job, s, strcmp(s->key, "initial_scale_power") == 0 ? exp2(v) : v, e);
}

int meg_train_read_deepspeed_config(struct meg_train_job *job, struct meg_err *e)
{
    const char *path = job->train.deepspeed_config;
    json_t *file;
    int r;

    if (!path)
        return 0;
    if ((r = meg_json_load(&file, path, e)) < 0)
        return r;
    if (!json_is_object(file))
        r = meg_fail(e, MEG_EFORMAT, "%s: expected a JSON object, the configuration of DeepSpeed", path);
    for (size_t i = 0; i < sizeof settings / sizeof *settings && r == 0; i++)
        r = read_setting(job, &settings[i], file, e);
    json_decref(file);
    return r;
}
