/* cp_groups.c - groups and workspace of context parallelism. */
#include "base/int64.h"
#include "nn/attn/internal.h"

const struct meg_cp meg_cp_one = { false, 1, 1, &meg_comm_self, &meg_comm_self };

void meg_cp_make(struct meg_cp *cp, enum meg_cp_comm_type type, const struct meg_mesh *mesh)
{
    const int64_t size = mesh->layout.cp, a2a_size = mesh->layout.a2a_size;

    switch (type) {
    case MEG_CP_A2A: *cp = (struct meg_cp){ false, size, 1, mesh->cp, &meg_comm_self }; break;
    case MEG_CP_A2A_P2P: *cp = (struct meg_cp){ false, a2a_size, size / a2a_size, mesh->cp_a2a, mesh->cp_ring }; break;
    default: *cp = (struct meg_cp){ type == MEG_CP_ALL_GATHER, 1, size, &meg_comm_self, mesh->cp };
    }
}

void meg_attn_workspace_suballoc(struct meg_attn_workspace *w, struct meg_suballoc *arena, const struct meg_ops *op,
                                 const struct meg_attn_size *size, const struct meg_cp *cp, int n)
{
    const int64_t rows = size->n, qkv = (size->a + 2 * size->g) * size->d, o = size->a * size->d;
    const int64_t kv = rows * 2 * size->g * size->d;
    const size_t element = meg_dtype_size(size->dtype);
    int64_t a2a_size = 1, ring_size = 1, kv_blocks = 0, dkv_blocks = 0;

    for (int i = 0; i < n; i++) {
        a2a_size = meg_max64(a2a_size, cp[i].a2a_size);
        ring_size = meg_max64(ring_size, cp[i].ring_size);
        if (cp[i].ring_size > 1) {
            kv_blocks = meg_max64(kv_blocks, cp[i].is_all_gather ? cp[i].ring_size : 2);
            dkv_blocks = meg_max64(dkv_blocks, cp[i].is_all_gather ? cp[i].ring_size : 3);
        }
    }
    if (a2a_size > 1) { /* statistics and doc_start, which use these buffers, have 4 bytes per element */
        const size_t qkv_nbytes = (size_t)(rows * qkv) * element;
        const size_t stats_nbytes = (size_t)(rows * meg_max64(size->a, a2a_size)) * sizeof(float);
        const size_t nbytes = qkv_nbytes > stats_nbytes ? qkv_nbytes : stats_nbytes;

        w->a2a_recv = meg_suballoc(arena, nbytes);
        w->a2a_send = meg_suballoc(arena, nbytes);
        w->doc_start = meg_suballoc(arena, (size_t)(rows * a2a_size) * sizeof *w->doc_start);
    }
    if (ring_size > 1) {
        w->kv = meg_suballoc(arena, (size_t)(kv_blocks * kv) * element);
        w->o_part = meg_suballoc(arena, (size_t)(rows * o / 2) * sizeof *w->o_part);
        w->lse_part = meg_suballoc(arena, (size_t)(rows * size->a / 2) * sizeof *w->lse_part);
    }
    if (ring_size > 1 && size->dtype != MEG_DTYPE_F32)
        w->o = meg_suballoc(arena, (size_t)(rows * o) * sizeof *w->o);
    if (size->has_sink)
        w->zero_sink = meg_suballoc(arena, (size_t)size->a * element);
    if (!size->is_training)
        return;
    for (int i = 0; i < n; i++) {
        const size_t nbytes = nn_attn_bwd_nbytes(op, size, &cp[i]);

        w->bwd.nbytes = nbytes > w->bwd.nbytes ? nbytes : w->bwd.nbytes;
    }
    w->bwd.p = meg_suballoc(arena, w->bwd.nbytes);
    if (ring_size > 1)
        w->dkv = meg_suballoc(arena, (size_t)(dkv_blocks * kv) * sizeof *w->dkv);
    if (a2a_size > 1 || ring_size > 1)
        w->delta = meg_suballoc(arena, (size_t)(rows * size->a) * sizeof *w->delta);
    if ((a2a_size > 1 || ring_size > 1) && size->dtype != MEG_DTYPE_F32)
        w->dqkv = meg_suballoc(arena, (size_t)(rows * qkv) * sizeof *w->dqkv);
}
