#include "train/internal.h"
#include "train/stop.h"

/* The rank that tells why ends this one. */
static void wait_for_the_end(const struct trainer *t)
{
    meg_barrier(t->mesh->world);
}

int meg_train_agree(const struct trainer *t, int r)
{
    struct meg_comm *world = t->mesh->world;
    int32_t failed = r < 0 ? world->size - world->rank : 0;

    meg_all_reduce(world, &failed, 1, MEG_DTYPE_I32, MEG_MAX);
    if (failed && failed != world->size - world->rank)
        wait_for_the_end(t);
    return r;
}

int meg_train_fail_once(const struct trainer *t, int r)
{
    if (!meg_train_speaks(t))
        wait_for_the_end(t);
    return r;
}

bool meg_train_stop_asked(const struct trainer *t)
{
    int32_t asked = meg_stop_asked() != 0;

    meg_all_reduce(t->mesh->world, &asked, 1, MEG_DTYPE_I32, MEG_MAX);
    return asked;
}

double meg_train_max(const struct trainer *t, double x)
{
    meg_all_reduce(t->mesh->world, &x, 1, MEG_DTYPE_F64, MEG_MAX);
    return x;
}
