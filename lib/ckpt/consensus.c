/* consensus.c - agree over all ranks on the result of a save or a load. */
#include "ckpt/internal.h"

int ckpt_agree(struct meg_comm *world, int r, struct meg_err *e)
{
    int32_t failed = r < 0 ? world->size - world->rank : 0;
    struct meg_err first = { 0 };

    if (world->size == 1)
        return r;
    meg_host_all_reduce(world, &failed, 1, MEG_DTYPE_I32, MEG_REDUCE_MAX);
    if (!failed)
        return 0;
    if (r < 0)
        first = *e;
    _Static_assert(sizeof first % sizeof(int32_t) == 0, "struct meg_err is broadcast as 32-bit integers");
    meg_host_broadcast(world, &first, sizeof first / sizeof(int32_t), MEG_DTYPE_I32, world->size - failed);
    if (world->size - failed == world->rank)
        return r;
    return meg_fail(e, first.code, "rank %d: %.2000s", world->size - failed, first.msg);
}
