/*
 * Simulate stragglers: rank 2 is slow in the batch phase, and rank 1 in forward-backward.  tests/ranks_copies.t checks
 * the report.
 */
#include "base/clock.h"
#include "train/straggler.h"

static void work(double seconds)
{
    const double start = meg_now_s();

    while (meg_now_s() - start < seconds)
        ;
}

int main(void)
{
    struct meg_straggler s = { 0 };
    struct meg_comm_world world;
    struct meg_err e;

    if (meg_comm_open(&world, &e) < 0)
        meg_die_err(&e);
    for (int step = 0; step < 2; step++) {
        meg_straggler_enter(&s, MEG_PHASE_BATCH);
        work(world.world->rank == 2 ? 0.1 : 0);
        meg_host_barrier(world.world);
        meg_straggler_enter(&s, MEG_PHASE_FORWARD_BACKWARD);
        work(world.world->rank == 1 ? 0.1 : 0);
        meg_host_barrier(world.world);
        meg_straggler_end_step(&s);
    }
    meg_straggler_report(&s, world.world, 2);
    meg_comm_close(world.world);
    return 0;
}
