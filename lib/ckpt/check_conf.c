/* check_conf.c - compare the parameters of a run's model with a checkpoint. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "ckpt/internal.h"

static bool has_equal_parts(const struct meg_sharding *a, const struct meg_sharding *b)
{
    bool is_equal = a->nparts == b->nparts;

    for (int i = 0; i < a->nparts && is_equal; i++)
        is_equal = a->part[i].n == b->part[i].n && a->part[i].axis == b->part[i].axis;
    return is_equal;
}

/* Return whether two models have the same parameters, with rows in the same order. */
static bool has_equal_params(const struct meg_model_conf *a, const struct meg_model_conf *b)
{
    struct meg_params x, y;
    /* These numbers determine the order of the qkv rows, but the shapes contain only their products. */
    bool is_equal = a->attn.a == b->attn.a && a->attn.g == b->attn.g && a->attn.d == b->attn.d;

    meg_model_params(&x, a, &meg_mesh_one);
    meg_model_params(&y, b, &meg_mesh_one);
    is_equal = is_equal && x.n == y.n;
    for (int i = 0; i < x.n && is_equal; i++) {
        const struct meg_param *p = &x.row[i], *q = &y.row[i];

        is_equal = strcmp(p->name, q->name) == 0 && p->ndim == q->ndim &&
                   memcmp(p->dim, q->dim, (size_t)p->ndim * sizeof *p->dim) == 0;
        for (int k = 0; k < p->ndim && is_equal; k++)
            is_equal = has_equal_parts(&p->sharding[k], &q->sharding[k]);
    }
    meg_params_free(&x);
    meg_params_free(&y);
    return is_equal;
}

/*
 * Return whether the option value in `line`, "name = value", would make the configuration m invalid or change the
 * parameters of its model.
 */
static bool changes_params(const struct meg_model_conf *m, const char *line)
{
    struct meg_model_conf other = *m;
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, &other }, { 0 } };

    return meg_opt_apply(groups, line, "checkpoint", NULL) < 0 || meg_model_conf_check(&other, NULL) < 0 ||
           !has_equal_params(m, &other);
}

/* List the options that differ between two models and change the parameters of `model`. */
static void list_differences(struct meg_str *diff, const struct meg_model_conf *saved,
                             const struct meg_model_conf *model)
{
    for (const struct meg_opt *row = meg_model_opts; row->name; row++) {
        char *old = meg_opt_value(row, saved), *new = meg_opt_value(row, model);
        struct meg_str line = { 0 };

        meg_str_printf(&line, "%s = %s\n", row->name, old);
        if (strcmp(old, new) != 0 && changes_params(model, line.s))
            meg_str_printf(diff, "%s--%s is %s in the checkpoint, but %s in this run", diff->n ? "; " : "", row->name,
                           old, new);
        meg_str_free(&line);
        free(old);
        free(new);
    }
}

int meg_ckpt_check_tokenizer(const struct meg_ckpt *c, const struct meg_tokenizer *tok, int64_t rows, bool is_own,
                             struct meg_err *e)
{
    if (meg_tokenizer_num_text_ids(tok) <= rows)
        return 0;
    if (!is_own)
        return meg_fail(e, MEG_EUSAGE,
                        "%s: the tokenizer (%s) has %" PRId64
                        " tokens, but the vocabulary of the model has only %" PRId64
                        "; specify the tokenizer that the model was trained with",
                        c->path, meg_tokenizer_type(tok), meg_tokenizer_vocab_size(tok), rows);
    meg_warn("%s: the tokenizer (%s) has %" PRId64 " tokens, but the vocabulary of the model has only %" PRId64
             "; text with a token of id %" PRId64 " or more is refused",
             c->path, meg_tokenizer_type(tok), meg_tokenizer_vocab_size(tok), rows, rows);
    return 0;
}

int64_t meg_ckpt_run_vocab_size(const struct meg_ckpt *c, int64_t tokens)
{
    if (c->vocab_rows == 0)
        return c->vocab_size;
    return tokens < c->vocab_rows ? tokens : c->vocab_rows;
}

int meg_ckpt_check_conf(const struct meg_ckpt *c, const struct meg_model_conf *model, struct meg_err *e)
{
    struct meg_model_conf saved;
    struct meg_str diff = { 0 };
    int64_t vocab_size;
    int r = meg_ckpt_model_conf(c, &saved, e);

    if (r < 0)
        return r;
    vocab_size = saved.vocab_size;
    saved.vocab_size = model->vocab_size; /* the vocabulary sizes are compared below */
    if (!has_equal_params(&saved, model)) {
        list_differences(&diff, &saved, model);
        if (!diff.n)
            meg_str_printf(&diff, "their parameters differ");
    }
    if (c->vocab_rows ? model->vocab_size > c->vocab_rows : vocab_size != model->vocab_size)
        meg_str_printf(&diff, "%svocabulary size is %" PRId64 " in the checkpoint, but %" PRId64 " in this run",
                       diff.n ? "; " : "", vocab_size, model->vocab_size);
    if (diff.n)
        r = meg_fail(e, MEG_EUSAGE,
                     "the shape of the model differs from that of the checkpoint %s: %s; use the checkpoint's values "
                     "or --use-checkpoint-args",
                     c->path, diff.s);
    meg_str_free(&diff);
    return r;
}
