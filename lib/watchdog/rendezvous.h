/* rendezvous.h - the TCP address at which ranks find each other before they have a communicator. */
#pragma once
#include <stdbool.h>

/*
 * Rank 0 listens on `port`.  The other ranks connect to that port of `host`, or of loopback if is_local (all ranks run
 * on one machine).  Rank 0 refuses a process that does not send the token.
 */
struct meg_rendezvous {
    const char *host; /* host name of rank 0; ignored if is_local */
    int port;
    bool is_local;
    unsigned char token[16];
};
