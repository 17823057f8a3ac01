/* What launch.c needs of the MPI communicator, in builds that have it. */
#ifndef MEG_COMM_INTERNAL_H
#define MEG_COMM_INTERNAL_H
#include <stdbool.h>
#include "comm/comm.h"

/* Counted by meg_comm_waited_s. */
void meg_comm_add_wait(double seconds);

int meg_comm_open_mpi(struct meg_comm **world, struct meg_err *e);

#endif
