/*
 * optimizer.h - the optimizers: one row each, with its states and its update.  What --optimizer accepts, the memory of
 * the states and their names in checkpoints are derived from the rows.
 */
#pragma once
#include "tensor/ops.h"

struct meg_optim;
struct meg_optim_conf;

enum { MEG_MAX_STATES = 2 };
/* Indices in the list of optimizers. */
enum { MEG_OPTIMIZER_ADAM, MEG_OPTIMIZER_SGD };

struct meg_optimizer {
    const char *name; /* value of --optimizer */
    int nstates;
    struct {
        const char *name; /* in checkpoints */
        size_t dtype; /* offset of the member of struct meg_optim_conf that sets the dtype; 0: the state is in f32 */
    } state[MEG_MAX_STATES];
    bool needs_complete_params; /* a shard has complete parameters, so that the update knows all elements of a matrix */
    /* Queue the update of ranges [nranges], in device memory, of the arrays of one bucket shard. */
    void (*update)(const struct meg_optim *o, const struct meg_update_arrays *x, const struct meg_update_range *range,
                   int nranges);
};

extern char meg_optimizer_choices[64]; /* the names of the optimizers, separated by '|' */

/* Return the optimizer of a configuration. */
const struct meg_optimizer *meg_optimizer_of(const struct meg_optim_conf *c);
/* Return the dtype of state i of the optimizer of a configuration. */
enum meg_dtype meg_optimizer_state_dtype(const struct meg_optim_conf *c, int i);
bool meg_optimizer_has_state(const struct meg_optim_conf *c, const char *name);
/* Add an optimizer to the choices of --optimizer.  Call this before options are parsed. */
void meg_optimizer_add(const struct meg_optimizer *r);
