/* What launch.c has for groups of several ranks, and what it needs of them in builds that have them. */
#ifndef MEG_COMM_INTERNAL_H
#define MEG_COMM_INTERNAL_H
#include <stdbool.h>
#include "comm/torchrun.h"

/* Counted by meg_comm_waited_s. */
void meg_comm_add_wait(double seconds);

int meg_comm_open_mpi(struct meg_comm **world, struct meg_err *e);
struct meg_comm *meg_comm_open_nccl(const struct meg_torchrun *t);

#endif
