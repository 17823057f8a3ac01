/* open.h - open distributed checkpoints (private to lib/ckpt). */
#pragma once
#include "ckpt/internal.h"

/* Open the directory c->path, and set c->dist. */
int ckpt_open_torch_dist(struct meg_ckpt *c, struct meg_err *e);
/* Add the tensors of the optimizer's state to out, a copy of c without files; none if they cannot be read. */
int ckpt_open_dist_optim(struct meg_ckpt *out, const struct meg_ckpt *c, struct meg_err *e);
/* Return MEG_EFORMAT, with the reason and what to do, if the optimizer's state cannot be read. */
int ckpt_check_dist_optim(const struct ckpt_dist *d, struct meg_err *e);
bool ckpt_has_dist_optim_state(const struct ckpt_dist *d, const char *name);
void ckpt_close_dist(struct ckpt_dist *d);
