#include "nn/cp_groups.h"

const struct meg_cp meg_cp_one = { false, 1, 1, &meg_comm_self, &meg_comm_self };

void meg_cp_make(struct meg_cp *cp, enum meg_cp_comm_type kind, const struct meg_mesh *mesh)
{
    const int64_t size = mesh->layout.cp, near = mesh->layout.cp_near;

    switch (kind) {
    case MEG_CP_A2A: *cp = (struct meg_cp){ false, size, 1, mesh->cp, &meg_comm_self }; break;
    case MEG_CP_A2A_P2P: *cp = (struct meg_cp){ false, near, size / near, mesh->cp_near, mesh->cp_far }; break;
    default: *cp = (struct meg_cp){ kind == MEG_CP_ALL_GATHER, 1, size, &meg_comm_self, mesh->cp };
    }
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

void meg_attn_workspace_suballoc(struct meg_attn_workspace *r, struct meg_suballoc *cut,
                                 const struct meg_attn_size *size, const struct meg_cp *cp, int n)
{
    const int64_t rows = size->n, qkv = (size->a + 2 * size->g) * size->d, o = size->a * size->d;
    const int64_t kv = rows * 2 * size->g * size->d;
    const size_t element = meg_dtype_size(size->dtype);
    int64_t a2a_size = 1, ring_size = 1, slots = 0, dslots = 0;

    for (int i = 0; i < n; i++) {
        a2a_size = larger(a2a_size, cp[i].a2a_size);
        ring_size = larger(ring_size, cp[i].ring_size);
        if (cp[i].ring_size > 1) {
            slots = larger(slots, cp[i].is_all_gather ? cp[i].ring_size : 2);
            dslots = larger(dslots, cp[i].is_all_gather ? cp[i].ring_size : 3);
        }
    }
    if (a2a_size > 1) { /* statistics and starts of documents go the same way, in four bytes each */
        const size_t wide = (size_t)(rows * qkv) * element;
        const size_t small = (size_t)(rows * larger(size->a, a2a_size)) * sizeof(float);

        r->a2a_recv = meg_suballoc(cut, wide > small ? wide : small);
        r->a2a_send = meg_suballoc(cut, wide > small ? wide : small);
        r->doc_start = meg_suballoc(cut, (size_t)(rows * a2a_size) * sizeof *r->doc_start);
    }
    if (ring_size > 1) {
        r->kv = meg_suballoc(cut, (size_t)(slots * kv) * element);
        r->o_part = meg_suballoc(cut, (size_t)(rows * o / 2) * sizeof *r->o_part);
        r->lse_part = meg_suballoc(cut, (size_t)(rows * size->a / 2) * sizeof *r->lse_part);
    }
    if (ring_size > 1 && size->dtype != MEG_DTYPE_F32)
        r->o = meg_suballoc(cut, (size_t)(rows * o) * sizeof *r->o);
    if (!size->is_training)
        return;
    if (ring_size > 1)
        r->dkv = meg_suballoc(cut, (size_t)(dslots * kv) * sizeof *r->dkv);
    if (size->dtype != MEG_DTYPE_F32)
        r->dqkv = meg_suballoc(cut, (size_t)(rows * qkv) * sizeof *r->dqkv);
}
