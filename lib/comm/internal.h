/* internal.h - functions that launch.c and the transports provide to each other; private to lib/comm. */
#pragma once
#include "comm/comm.h"
#include "comm/torchrun.h"

/* Add to the time that meg_comm_waited_s returns. */
void meg_comm_add_wait(double seconds);

/* Maximum count passed to an MPI call.  A longer buffer is passed as one derived datatype.  Tests lower the limit. */
extern int64_t meg_mpi_max_count;

int meg_comm_open_mpi(struct meg_comm **world, struct meg_err *e);
/* Set world->op to collectives over NCCL; see meg_comm_open_tensors. */
int meg_comm_open_nccl(struct meg_comm *world, const struct meg_device *d, struct meg_err *e);
/* Create the world communicator of ranks that torchrun started.  It has host collectives only. */
struct meg_comm *meg_comm_open_store(const struct meg_torchrun *t);
