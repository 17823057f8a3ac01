/* given_model.c - model options that a command accepts only to check them against a checkpoint. */
#include "ckpt/given_model.h"
#include <stdlib.h>
#include <string.h>
#include "ckpt/internal.h"

const struct meg_opt *meg_given_model_opts(void)
{
    static struct meg_opt rows[MEG_GIVEN_MODEL_MAX + 1];

    for (int i = 0; meg_model_opts[i].name; i++) {
        MEG_ASSERT(i < MEG_GIVEN_MODEL_MAX);
        rows[i] = meg_model_opts[i];
        if (rows[i].type == MEG_OPT_ALIAS)
            continue;
        rows[i].default_value = NULL;
        rows[i].type = rows[i].metavar ? MEG_OPT_STR : MEG_OPT_BOOL;
        rows[i].offset = rows[i].metavar ? offsetof(struct meg_given_model, value) + (size_t)i * sizeof(const char *)
                                         : offsetof(struct meg_given_model, is_set) + (size_t)i * sizeof(bool);
    }
    return rows;
}

/* Append the difference, if any, between the given value of an option and that of the checkpoint's model. */
static int compare(struct meg_str *diff, const struct meg_opt *row, const char *text,
                   const struct meg_model_conf *saved, struct meg_err *e)
{
    struct meg_model_conf conf[2] = { *saved, *saved };
    char *value[2];
    int r;

    if ((r = meg_opt_set(row, &conf[1], text, e)) < 0)
        return r;
    if (conf[1].rotary.is_used) /* another name of --position-embedding-type rope */
        conf[0].rotary.is_used = saved->position_embedding_type == MEG_POSITION_ROPE;
    for (int i = 0; i < 2; i++)
        value[i] = meg_opt_value(row, &conf[i]);
    if (strcmp(value[0], value[1]) != 0)
        meg_str_printf(diff, "%s--%s is %s in the checkpoint, but %s on the command line", diff->n ? "; " : "",
                       row->name, value[0], value[1]);
    for (int i = 0; i < 2; i++)
        free(value[i]);
    return 0;
}

int meg_given_model_check(const struct meg_given_model *given, const struct meg_ckpt *ckpt, struct meg_err *e)
{
    struct meg_str diff = { 0 };
    struct meg_model_conf saved;
    int r = meg_ckpt_model_conf(ckpt, &saved, e);

    for (int i = 0; r == 0 && meg_model_opts[i].name; i++) {
        const struct meg_opt *row = &meg_model_opts[i];
        const char *text = given->is_set[i] ? "yes" : given->value[i];

        if (text && !ckpt_is_for_training(row->name))
            r = compare(&diff, row, text, &saved, e);
    }
    if (r == 0 && diff.n)
        r = meg_fail(e, MEG_EUSAGE, "%s: %s; omit these options, or load a checkpoint of such a model",
                     meg_ckpt_path(ckpt), diff.s);
    meg_str_free(&diff);
    return r;
}
