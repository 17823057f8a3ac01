/* What the ranks of a save or a load say to each other: only whether it went well, and checksums. */
#include "ckpt/internal.h"

int ckpt_agree(struct meg_comm *world, int r, struct meg_err *e)
{
    int32_t failed = r < 0 ? world->size - world->rank : 0;
    struct meg_err theirs = { 0 };

    if (world->size == 1)
        return r;
    meg_all_reduce(world, &failed, 1, MEG_DTYPE_I32, MEG_REDUCE_MAX);
    if (!failed)
        return 0;
    if (r < 0)
        theirs = *e;
    _Static_assert(sizeof theirs % sizeof(int32_t) == 0, "an error is sent as words");
    meg_broadcast(world, &theirs, sizeof theirs / sizeof(int32_t), MEG_DTYPE_I32, world->size - failed);
    if (world->size - failed == world->rank)
        return r;
    return meg_fail(e, theirs.code, "rank %d: %.2000s", world->size - failed, theirs.msg);
}
