/* schedule_state.c - the learning-rate and weight-decay schedule in a checkpoint. */
#include "io/json.h"
#include "train/trainer.h"

#define S struct meg_lr_schedule
/* The settings of a schedule in a checkpoint.  Those of the WSD decay are present only with the decay style WSD. */
static const struct setting {
    const char *key, *name; /* name: in messages; with MEG_OPT_ENUM, the option that has the choices */
    int type;
    size_t offset; /* of the field in struct meg_lr_schedule */
    bool is_wsd;
} settings[] = {
    { "max_lr", "--lr", MEG_F64(S, max_lr), false },
    { "min_lr", "--min-lr", MEG_F64(S, min_lr), false },
    { "lr_warmup_steps", "warm-up samples", MEG_F64(S, warmup), false },
    { "lr_decay_steps", "decay samples", MEG_I64(S, decay), false },
    { "lr_decay_style", "--lr-decay-style", MEG_ENUM(S, style), false },
    { "lr_wsd_decay_style", "--lr-wsd-decay-style", MEG_ENUM(S, wsd_style), true },
    { "wsd_decay_steps", "WSD decay samples", MEG_I64(S, wsd_decay), true },
    { "start_wd", "weight decay at the start", MEG_F64(S, start_wd), false },
    { "end_wd", "weight decay at the end", MEG_F64(S, end_wd), false },
    { "wd_incr_steps", "weight-decay samples", MEG_I64(S, wd_incr), false },
    { "wd_incr_style", "--weight-decay-incr-style", MEG_ENUM(S, wd_style), false },
};
#undef S
enum { NSETTINGS = sizeof settings / sizeof *settings };

static json_t *pack(const struct meg_lr_schedule *s, const struct setting *x)
{
    const void *field = (const char *)s + x->offset;

    return x->type == MEG_OPT_F64   ? json_real(*(const double *)field)
           : x->type == MEG_OPT_I64 ? json_integer(*(const int64_t *)field)
                                    : json_string(meg_optim_choice(x->name + 2, *(const int *)field));
}

json_t *meg_train_pack_schedule(const struct meg_lr_schedule *s)
{
    json_t *o = json_object();

    /* the settings of the WSD decay are the last ones */
    for (int is_wsd = 0; is_wsd < (s->style == MEG_LR_WSD ? 2 : 1); is_wsd++)
        for (int i = 0; i < NSETTINGS; i++)
            if (settings[i].is_wsd == is_wsd)
                json_object_set_new(o, settings[i].key, pack(s, &settings[i]));
    return o;
}

/* Read a setting.  If an older checkpoint does not contain one of the WSD decay, keep the value of the command line. */
static int unpack(struct meg_lr_schedule *s, const struct setting *x, const json_t *o, const char *from,
                  struct meg_err *e)
{
    const enum meg_json_presence presence = x->is_wsd ? MEG_JSON_OPTIONAL : MEG_JSON_REQUIRED;
    void *field = (char *)s + x->offset;
    const char *choice = NULL;
    int r;

    if (x->type == MEG_OPT_F64)
        return meg_json_get_f64(o, x->key, presence, field, from, e);
    if (x->type == MEG_OPT_I64)
        return meg_json_get_i64(o, x->key, presence, field, from, e);
    r = meg_json_get_str(o, x->key, presence, &choice, from, e);
    if (choice && !meg_optim_parse_choice(x->name + 2, choice, field))
        r = meg_fail(e, MEG_EFORMAT, "%s: unknown %s '%.40s'", from, x->key, choice);
    return r;
}

static int unpack_schedule(struct meg_lr_schedule *s, const json_t *o, const char *from, struct meg_err *e)
{
    int r = 0;

    for (int is_wsd = 0; r == 0 && is_wsd < (s->style == MEG_LR_WSD ? 2 : 1); is_wsd++)
        for (int i = 0; i < NSETTINGS && r == 0; i++)
            if (settings[i].is_wsd == is_wsd)
                r = unpack(s, &settings[i], o, from, e);
    if (r == 0 && s->style == MEG_LR_WSD && s->wsd_decay <= 0)
        r = meg_fail(e, MEG_EUSAGE,
                     "%s does not contain the length of the WSD decay; use --lr-wsd-decay-iters or "
                     "--lr-wsd-decay-samples",
                     from);
    return r;
}

/*
 * For each setting whose value A in the run differs from its value B in the checkpoint, append "SETTING A instead of
 * B".  Skip a setting that is absent from one of the two; only the decay style WSD has settings of the WSD decay.
 */
static void append_differences(struct meg_str *out, json_t *run, const json_t *saved)
{
    for (int i = 0; i < NSETTINGS; i++) {
        const json_t *a = json_object_get(run, settings[i].key), *b = json_object_get(saved, settings[i].key);
        if (!a || !b || json_equal(a, b))
            continue;
        meg_str_printf(out, "%s%s ", out->n ? "; " : "", settings[i].name);
        meg_json_dump(a, 0, out);
        meg_str_printf(out, " instead of ");
        meg_json_dump(b, 0, out);
    }
}

int meg_train_resolve_schedule(struct meg_trainer *t, const json_t *saved, const char *from, struct meg_err *e)
{
    const struct meg_train_ckpt_conf *c = &t->job->ckpt;
    struct meg_str diff = { 0 };
    json_t *run;
    int r = 0;

    if (c->override_scheduler)
        return 0;
    if (c->use_checkpoint_scheduler)
        return unpack_schedule(&t->lr_schedule, saved, from, e);
    run = meg_train_pack_schedule(&t->lr_schedule);
    append_differences(&diff, run, saved);
    if (diff.n)
        r = meg_fail(e, MEG_EUSAGE,
                     "the schedule of the command line differs from that of %s: %s; use --override-opt_param-scheduler "
                     "for the schedule of the command line, or --use-checkpoint-opt_param-scheduler for that of the "
                     "checkpoint",
                     from, diff.s);
    json_decref(run);
    meg_str_free(&diff);
    return r;
}
