/* nccl_memory.c - memory that is registered with the channels for collectives. */
#include <stdlib.h>
#include "base/log.h"
#include "base/mem.h"
#include "comm/nccl_internal.h"

/* Register nbytes of memory at p with the channel for collectives of a group. */
static void register_memory(struct meg_nccl *g, void *p, size_t nbytes)
{
    struct nccl_registration *r = meg_new(sizeof *r);

    *r = (struct nccl_registration){ .next = g->registrations, .p = p };
    NCCL(g->collectives, ncclCommRegister(g->collectives->comm, p, nbytes, &r->handle));
    g->registrations = r;
}

/* Deregister the memory at p, which must be registered. */
static void deregister_memory(struct meg_nccl *g, const void *p)
{
    struct nccl_registration **link = &g->registrations, *r;

    while (*link && (*link)->p != p)
        link = &(*link)->next;
    r = *link;
    MEG_ASSERT(r);
    *link = r->next;
    NCCL(g->collectives, ncclCommDeregister(g->collectives->comm, r->handle));
    free(r);
}

void *nccl_alloc(struct meg_comm *const *groups, int n, size_t nbytes)
{
    ncclResult_t r;
    void *p;

    nbytes = nbytes ? nbytes : 1;
    nccl_stop_if_aborted();
    if ((r = nccl.ncclMemAlloc(&p, nbytes)) == ncclUnhandledCudaError) {
        meg_warn("NCCL cannot allocate %zu MiB of device memory; %zu MiB are free", nbytes >> 20,
                 nccl_device->free_nbytes() >> 20);
        return NULL;
    }
    if (r != ncclSuccess)
        nccl_failed(groups[0]->nccl->collectives, "ncclMemAlloc", r);
    for (int i = 0; i < n; i++)
        register_memory(groups[i]->nccl, p, nbytes);
    return p;
}

void nccl_release(struct meg_comm *const *groups, int n, void *p)
{
    for (int i = 0; i < n; i++) {
        nccl_drain(groups[i]->nccl->collectives);
        deregister_memory(groups[i]->nccl, p);
    }
    NCCL(groups[0]->nccl->collectives, ncclMemFree(p));
}
