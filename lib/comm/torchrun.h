/* torchrun.h - the environment variables of torchrun: this process's rank, and the rendezvous address. */
#pragma once
#include "base/err.h"
#include "watchdog/rendezvous.h"

struct meg_torchrun {
    int rank, size;
    int local_size; /* number of ranks on this machine; 0 if unknown */
    struct meg_rendezvous rendezvous;
};

/*
 * Read WORLD_SIZE, RANK, MASTER_ADDR, MASTER_PORT and, if set, LOCAL_WORLD_SIZE.  If LOCAL_WORLD_SIZE equals
 * WORLD_SIZE, the ranks connect over loopback.  The port is MASTER_PORT, or the next port if torchrun's agent itself
 * listens at MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE).  If WORLD_SIZE is 1, only size is set.  Return MEG_EUSAGE,
 * with a message that names the variable, if one is missing or invalid.
 */
int meg_torchrun_read(struct meg_torchrun *t, struct meg_err *e);
