/*
 * lost_options.c - refuse to export a model that a format cannot represent: the options of the model are written in the
 * format and read back, and an option whose value differs is lost.
 */
#include <stdlib.h>
#include "ckpt/internal.h"

bool ckpt_is_for_training(const char *option)
{
    return meg_opt_is_listed("attention-dropout hidden-dropout init-method-*", option, NULL);
}

int ckpt_list_lost_options(struct meg_str *out, const struct meg_model_conf *m, const struct meg_model_conf *back)
{
    struct meg_model_conf conf[2] = { *m, *back };
    int n = 0;

    meg_model_conf_normalize(&conf[0]);
    meg_model_conf_normalize(&conf[1]);
    for (const struct meg_opt *row = meg_model_opts; row->name; row++) {
        char *was, *is;

        if (meg_opt_is_negated(row) || ckpt_is_for_training(row->name) || meg_opt_is_equal(row, &conf[0], &conf[1]) ||
            n++ >= CKPT_MAX_LISTED || !out)
            continue;
        was = meg_opt_value(row, &conf[0]);
        is = meg_opt_value(row, &conf[1]);
        meg_str_printf(out, "%s--%s %s would be read as %s", n > 1 ? "; " : "", row->name, was, is);
        free(was);
        free(is);
    }
    return n;
}

int ckpt_refuse_lost_options(const struct meg_model_conf *m, const struct meg_model_conf *back, const char *format,
                             struct meg_err *e)
{
    struct meg_str lost = { 0 };
    const int n = ckpt_list_lost_options(&lost, m, back);
    int r = 0;

    if (n > CKPT_MAX_LISTED)
        meg_str_printf(&lost, "; and %d more", n - CKPT_MAX_LISTED);
    if (n > 0)
        r = meg_fail(e, MEG_EUSAGE, "the model cannot be converted to %s: %s; use --saver native", format, lost.s);
    meg_str_free(&lost);
    return r;
}
