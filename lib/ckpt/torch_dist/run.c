/* run.c - the settings and the state of the run that wrote a distributed checkpoint. */
#include <stdlib.h>
#include <string.h>
#include "ckpt/torch_dist/torch_dist.h"

/* ---- the objects of the checkpoint ---- */

/* Open an object and set *out to its value, or to NULL if the checkpoint does not have it. */
static int open_object(struct dist_common *k, const struct meg_py **out, struct ckpt_dist *d, const char *name,
                       struct meg_err *e)
{
    const struct dist_item *item = dist_find_object(&d->metadata, name);
    int r;

    *out = NULL;
    if (!item)
        return 0;
    if ((r = dist_open_item(&k->pt[k->npt], NULL, d, item, e)) == 0)
        *out = k->pt[k->npt++]->pickle.root;
    return r;
}

/* Megatron stores a list of the one object of an item. */
static const struct meg_py *only_member(const struct meg_py *list)
{
    return list && list->type == MEG_PY_LIST && list->nv == 1 ? list->v[0] : NULL;
}

/* Set *out to the dict of Megatron's settings, or to NULL in a plain checkpoint of torch.distributed.checkpoint. */
static int open_dict(struct dist_common *k, const struct meg_py **out, struct ckpt_dist *d, struct meg_err *e)
{
    static const char item[] = "common_state/shard_0_1";
    char *path = ckpt_path(d->dir, "common.pt");
    int r = 0;

    *out = NULL;
    if (ckpt_path_exists(d->dir, "common.pt")) {
        if ((r = meg_pt_open(&k->pt[k->npt], path, e)) == 0)
            *out = k->pt[k->npt++]->pickle.root;
    } else if (dist_find_object(&d->metadata, item) && (r = open_object(k, out, d, item, e)) == 0) {
        *out = only_member(*out);
    }
    if (r == 0 && k->npt && (!*out || (*out)->type != MEG_PY_DICT))
        r = meg_fail(e, MEG_EFORMAT, "%s: expected a dict of the settings of Megatron's run", k->pt[0]->path);
    free(path);
    return r;
}

int dist_open_common(struct dist_common *out, struct ckpt_dist *d, struct meg_err *e)
{
    const struct meg_py *dict;
    int r;

    *out = (struct dist_common){ 0 };
    if ((r = open_dict(out, &dict, d, e)) < 0)
        return r;
    if (dict) {
        out->args = meg_py_get(dict, "args");
        out->iteration = meg_py_get(dict, "iteration");
        out->schedule = meg_py_get(dict, "opt_param_scheduler");
        out->optimizer = meg_py_get(dict, "optimizer");
    } else if ((r = open_object(out, &out->args, d, "args", e)) < 0 ||
               (r = open_object(out, &out->iteration, d, "iteration", e)) < 0) {
        return r;
    }
    if (out->args && out->args->type == MEG_PY_OBJECT && out->args->state && out->args->state->type == MEG_PY_DICT) {
        out->from = out->pt[0]->path;
        return 0;
    }
    return meg_fail(e, MEG_EFORMAT,
                    "%s: found no Namespace named args in common.pt or .metadata, which describes the model; save the "
                    "checkpoint with Megatron, as --ckpt-format torch_dist, or in the format of Hugging Face",
                    d->dir);
}

void dist_close_common(struct dist_common *k)
{
    for (int i = 0; i < k->npt; i++)
        meg_pt_close(k->pt[i]);
}

/* ---- the state of the run ---- */

/* Return a number of Python as a non-negative JSON integer or, if is_real, as a JSON real; NULL for any other node. */
static json_t *number(const struct meg_py *v, bool is_real)
{
    if (!v || (v->type != MEG_PY_INT && v->type != MEG_PY_FLOAT))
        return NULL;
    if (is_real)
        return json_real(v->type == MEG_PY_FLOAT ? v->f : (double)v->i);
    if (v->type == MEG_PY_INT)
        return v->i >= 0 ? json_integer(v->i) : NULL;
    return v->f >= 0 && v->f < 9e15 && v->f == (double)(int64_t)v->f ? json_integer((int64_t)v->f) : NULL;
}

/* Return the scheduler of learning rate and weight decay as meg_train_pack_schedule does, or NULL. */
static json_t *schedule_of(const struct meg_py *v)
{
    static const char *const reals[] = { "max_lr", "min_lr", "lr_warmup_steps", "start_wd", "end_wd" };
    static const char *const integers[] = { "lr_decay_steps", "wd_incr_steps", "num_steps" };
    static const char *const texts[] = { "lr_decay_style", "wd_incr_style" };
    json_t *o = json_object();
    bool is_complete = true;

    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        is_complete &= json_object_set_new(o, reals[i], number(meg_py_get(v, reals[i]), true)) == 0;
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++)
        is_complete &= json_object_set_new(o, integers[i], number(meg_py_get(v, integers[i]), false)) == 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const struct meg_py *text = meg_py_get(v, texts[i]);
        json_t *value = text && text->type == MEG_PY_STR ? json_stringn(text->s, text->n) : NULL;

        is_complete &= json_object_set_new(o, texts[i], value) == 0;
    }
    if (is_complete)
        return o;
    json_decref(o);
    return NULL;
}

/* Return the number of steps in the first of the optimizer's parameter groups that has it, or NULL. */
static json_t *steps_of(const struct meg_py *optimizer)
{
    const struct meg_py *groups = meg_py_get(optimizer, "param_groups");

    for (size_t i = 0; groups && groups->type == MEG_PY_LIST && i < groups->nv; i++) {
        json_t *n = number(meg_py_get(groups->v[i], "step"), false);

        if (n)
            return n;
    }
    return NULL;
}

/*
 * Set *n to the number of steps, or to NULL.  Without the distributed optimizer, the groups are in its only dict; with
 * dp_reshardable, they are an object.
 */
static int find_steps(json_t **n, struct ckpt_dist *d, const struct dist_common *k, struct meg_err *e)
{
    struct dist_common own = { 0 };
    const struct meg_py *list = NULL;
    int r = 0;

    *n = steps_of(meg_py_get(k->optimizer, "optimizer"));
    if (!*n)
        *n = steps_of(k->optimizer);
    if (!*n && (r = open_object(&own, &list, d, "optimizer.distributed.dp_group_idx_0.optimizer/shard_0_1", e)) == 0)
        *n = steps_of(only_member(list));
    dist_close_common(&own);
    return r;
}

int dist_run_state(json_t **out, struct ckpt_dist *d, const struct dist_common *k, struct meg_err *e)
{
    json_t *run, *steps, *schedule, *seed;
    static const char *const samples[] = { "consumed_train_samples", "consumed_valid_samples",
                                           "skipped_train_samples" };
    const int r = find_steps(&steps, d, k, e);

    *out = NULL;
    if (r < 0)
        return r;
    run = json_object();
    schedule = schedule_of(k->schedule);
    seed = number(meg_py_attr(k->args, "seed"), false);
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        json_t *n = number(meg_py_attr(k->args, samples[i]), false);

        json_object_set_new(run, samples[i], n ? n : i == 0 ? json_null() : json_integer(0));
    }
    if (d->optim != DIST_OPTIM_NONE && steps && schedule) {
        json_object_set_new(run, "optimizer", json_pack("{s:O}", "step", steps));
        json_object_set(run, "opt_param_scheduler", schedule);
    }
    if (seed)
        json_object_set_new(run, "rng", json_pack("{s:O}", "dropout_seed", seed));
    json_decref(steps);
    json_decref(schedule);
    json_decref(seed);
    if (json_is_integer(json_object_get(run, samples[0])))
        *out = run;
    else
        json_decref(run);
    return 0;
}
