/* optimizer.c - the list of optimizers: AdamW and SGD. */
#include "optim/optimizer.h"
#include <stdio.h>
#include <string.h>
#include "optim/optim.h"

static void adamw(const struct meg_optim *o, const struct meg_update_arrays *x, const struct meg_update_range *range,
                  int nranges)
{
    MEG_CALL(o->op, o->stream, adamw, .arrays = x, .range = range, .nranges = nranges, .adam = &o->adam,
             .step = &o->record->hparams);
}

static void sgd(const struct meg_optim *o, const struct meg_update_arrays *x, const struct meg_update_range *range,
                int nranges)
{
    MEG_CALL(o->op, o->stream, sgd, .arrays = x, .range = range, .nranges = nranges, .momentum = o->momentum,
             .step = &o->record->hparams);
}

enum { MAX_OPTIMIZERS = 8 };

static struct meg_optimizer optimizers[MAX_OPTIMIZERS] = {
    [MEG_OPTIMIZER_ADAM] = { .name = "adam",
                             .nstates = 2,
                             .state = { { "exp_avg", offsetof(struct meg_optim_conf, exp_avg_dtype) },
                                        { "exp_avg_sq", offsetof(struct meg_optim_conf, exp_avg_sq_dtype) } },
                             .update = adamw },
    [MEG_OPTIMIZER_SGD] = { .name = "sgd", .nstates = 1, .state = { { "momentum_buffer", 0 } }, .update = sgd },
};
char meg_optimizer_choices[64] = "adam|sgd";

const struct meg_optimizer *meg_optimizer_of(const struct meg_optim_conf *c)
{
    return &optimizers[c->optimizer];
}

enum meg_dtype meg_optimizer_state_dtype(const struct meg_optim_conf *c, int i)
{
    const size_t member = meg_optimizer_of(c)->state[i].dtype;

    return member ? *(const enum meg_dtype *)((const char *)c + member) : MEG_DTYPE_F32;
}

bool meg_optimizer_has_state(const struct meg_optim_conf *c, const char *name)
{
    const struct meg_optimizer *r = meg_optimizer_of(c);
    int i = 0;

    while (i < r->nstates && strcmp(r->state[i].name, name) != 0)
        i++;
    return i < r->nstates;
}

void meg_optimizer_add(const struct meg_optimizer *r)
{
    const size_t used = strlen(meg_optimizer_choices);
    int n = 0;

    while (n < MAX_OPTIMIZERS && optimizers[n].name)
        n++;
    MEG_ASSERT_LT(n, MAX_OPTIMIZERS);
    optimizers[n] = *r;
    MEG_ASSERT_LT(used + strlen(r->name) + 1, sizeof meg_optimizer_choices);
    snprintf(meg_optimizer_choices + used, sizeof meg_optimizer_choices - used, "|%s", r->name);
}
