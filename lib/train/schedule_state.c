/* schedule_state.c - the learning-rate and weight-decay schedule in a checkpoint. */
#include "io/json.h"
#include "train/trainer.h"

json_t *meg_train_pack_schedule(const struct meg_lr_schedule *s)
{
    json_t *o = json_pack("{s:f,s:f,s:f,s:I,s:s,s:f,s:f,s:I,s:s}", "max_lr", s->max_lr, "min_lr", s->min_lr,
                          "lr_warmup_steps", s->warmup, "lr_decay_steps", (json_int_t)s->decay, "lr_decay_style",
                          meg_lr_style_name(s->style), "start_wd", s->start_wd, "end_wd", s->end_wd, "wd_incr_steps",
                          (json_int_t)s->wd_incr, "wd_incr_style", meg_wd_style_name(s->wd_style));

    if (s->style == MEG_LR_WSD) {
        json_object_set_new(o, "lr_wsd_decay_style", json_string(meg_wsd_style_name(s->wsd_style)));
        json_object_set_new(o, "wsd_decay_steps", json_integer(s->wsd_decay));
    }
    return o;
}

/*
 * Read the parameters of the WSD decay.  If an older checkpoint does not contain them, keep the values of the command
 * line.
 */
static int unpack_wsd(struct meg_lr_schedule *s, const json_t *o, const char *from, struct meg_err *e)
{
    const char *style = meg_wsd_style_name(s->wsd_style);
    int r;

    if ((r = meg_json_get_str(o, "lr_wsd_decay_style", MEG_JSON_OPTIONAL, &style, from, e)) < 0 ||
        (r = meg_json_get_i64(o, "wsd_decay_steps", MEG_JSON_OPTIONAL, &s->wsd_decay, from, e)) < 0)
        return r;
    if (!meg_wsd_style_parse(style, &s->wsd_style))
        return meg_fail(e, MEG_EFORMAT, "%s: unknown lr_wsd_decay_style '%.40s'", from, style);
    if (s->wsd_decay <= 0)
        return meg_fail(e, MEG_EUSAGE,
                        "%s does not contain the length of the WSD decay; use --lr-wsd-decay-iters or "
                        "--lr-wsd-decay-samples",
                        from);
    return 0;
}

static int unpack_schedule(struct meg_lr_schedule *s, const json_t *o, const char *from, struct meg_err *e)
{
    const char *lr_style, *wd_style;
    int r;

    if ((r = meg_json_get_f64(o, "max_lr", MEG_JSON_REQUIRED, &s->max_lr, from, e)) < 0 ||
        (r = meg_json_get_f64(o, "min_lr", MEG_JSON_REQUIRED, &s->min_lr, from, e)) < 0 ||
        (r = meg_json_get_f64(o, "lr_warmup_steps", MEG_JSON_REQUIRED, &s->warmup, from, e)) < 0 ||
        (r = meg_json_get_i64(o, "lr_decay_steps", MEG_JSON_REQUIRED, &s->decay, from, e)) < 0 ||
        (r = meg_json_get_str(o, "lr_decay_style", MEG_JSON_REQUIRED, &lr_style, from, e)) < 0 ||
        (r = meg_json_get_f64(o, "start_wd", MEG_JSON_REQUIRED, &s->start_wd, from, e)) < 0 ||
        (r = meg_json_get_f64(o, "end_wd", MEG_JSON_REQUIRED, &s->end_wd, from, e)) < 0 ||
        (r = meg_json_get_i64(o, "wd_incr_steps", MEG_JSON_REQUIRED, &s->wd_incr, from, e)) < 0 ||
        (r = meg_json_get_str(o, "wd_incr_style", MEG_JSON_REQUIRED, &wd_style, from, e)) < 0)
        return r;
    if (!meg_lr_style_parse(lr_style, &s->style))
        return meg_fail(e, MEG_EFORMAT, "%s: unknown lr_decay_style '%.40s'", from, lr_style);
    if (!meg_wd_style_parse(wd_style, &s->wd_style))
        return meg_fail(e, MEG_EFORMAT, "%s: unknown wd_incr_style '%.40s'", from, wd_style);
    return s->style == MEG_LR_WSD ? unpack_wsd(s, o, from, e) : 0;
}

/*
 * For each setting whose value A in the run differs from its value B in the checkpoint, append "SETTING A instead of
 * B".  Skip a setting that is absent from one of the two; only the decay style WSD has settings of the WSD decay.
 */
static void append_differences(struct meg_str *out, json_t *run, const json_t *saved)
{
    static const char *const option[][2] = {
        { "max_lr", "--lr" },
        { "min_lr", "--min-lr" },
        { "lr_warmup_steps", "warm-up samples" },
        { "lr_decay_steps", "decay samples" },
        { "lr_decay_style", "--lr-decay-style" },
        { "lr_wsd_decay_style", "--lr-wsd-decay-style" },
        { "wsd_decay_steps", "WSD decay samples" },
        { "start_wd", "weight decay at the start" },
        { "end_wd", "weight decay at the end" },
        { "wd_incr_steps", "weight-decay samples" },
        { "wd_incr_style", "--weight-decay-incr-style" },
    };

    for (size_t i = 0; i < sizeof option / sizeof *option; i++) {
        const json_t *a = json_object_get(run, option[i][0]), *b = json_object_get(saved, option[i][0]);
        if (!a || !b || json_equal(a, b))
            continue;
        meg_str_printf(out, "%s%s ", out->n ? "; " : "", option[i][1]);
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
