/* The environment of torchrun: who this rank is, and where ranks meet. */
#ifndef MEG_COMM_TORCHRUN_H
#define MEG_COMM_TORCHRUN_H
#include "watchdog/watchdog.h"

struct meg_torchrun {
    int rank, size, local_rank;
    struct meg_rendezvous meeting;
};

/*
 * Reads WORLD_SIZE, RANK, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, and LOCAL_WORLD_SIZE where it is set:
 * where it is WORLD_SIZE, ranks meet on this machine's loopback.  The port is the one after MASTER_PORT
 * where torchrun's agent has that itself (TORCHELASTIC_USE_AGENT_STORE).  MEG_EUSAGE names the variable.
 */
int meg_torchrun_read(struct meg_torchrun *t, struct meg_err *e);

#endif
