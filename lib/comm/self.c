#include "comm/comm.h"

static void all_reduce(struct meg_comm *c, void *buf, int64_t n, enum meg_dtype dtype, enum meg_reduce how)
{
    (void)c, (void)buf, (void)n, (void)dtype, (void)how;
}

static const struct meg_comm_ops self = { "self", all_reduce };

struct meg_comm meg_comm_self = { &self, 0, 1 };
