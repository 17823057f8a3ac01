/*
 * Test of context-parallel attention, forward and backward, against attention of one rank: every communication type,
 * with dropout, rotary embedding and grouped queries, with and without packed documents and a window, in f32 and bf16.
 * Each rank also computes the attention of complete sequences, and compares its rows and the summed weight gradients.
 * Rank 0 prints TAP.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "cpu/cpu.h"
#include "nn/attn/self_attention.h"
#include "tensor/half.h"

enum { S = 32, B = 2, H = 24, A = 16, G = 8, D = 6, QKV = (A + 2 * G) * D };

static const struct meg_ops *op;
static struct meg_comm *w;
static int tests, failed;

/* Inputs and outputs for complete sequences, in order of position, in f32.  Inputs are exact in the tested dtype. */
struct tensors {
    float x[S * B * H], dy[S * B * H], wqkv[QKV * H], wproj[H * A * D];
    float y[S * B * H], dx[S * B * H], dwqkv[QKV * H], dwproj[H * A * D];
    int32_t position[S * B], doc_start[S * B];
};

static void ok(int is_ok, const char *what)
{
    int32_t bad = !is_ok;

    meg_host_all_reduce(w, &bad, 1, MEG_DTYPE_I32, MEG_REDUCE_MAX);
    tests++;
    failed += bad;
    if (w->rank == 0)
        printf("%sok %d - %s\n", bad ? "not " : "", tests, what);
}

static void *convert(const float *x, int64_t n, enum meg_dtype t)
{
    void *p = meg_new((size_t)n * meg_dtype_size(t));

    MEG_CALL(op, NULL, cast, .dst = p, .dst_type = t, .src = x, .src_type = MEG_DTYPE_F32, .n = n);
    return p;
}

static void random_numbers(float *x, int64_t n, enum meg_dtype t)
{
    void *p;

    for (int64_t i = 0; i < n; i++)
        x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    p = convert(x, n, t);
    MEG_CALL(op, NULL, cast, .dst = x, .dst_type = MEG_DTYPE_F32, .src = p, .src_type = t, .n = n);
    free(p);
}

static void fill(struct tensors *all, enum meg_dtype t)
{
    srand(7);
    random_numbers(all->x, S * B * H, t);
    random_numbers(all->dy, S * B * H, t);
    random_numbers(all->wqkv, QKV * H, t);
    random_numbers(all->wproj, H * A * D, t);
    for (int r = 0; r < S * B; r++) {
        const int pos = r / B, start = (pos + r % B) / 11 * 11 - r % B; /* documents of 11 tokens */

        all->position[r] = pos;
        all->doc_start[r] = start > 0 ? start : 0;
    }
}

struct run {
    struct meg_attn l;
    struct meg_attn_acts acts;
    struct meg_attn_acts grads;
    struct meg_attn_workspace workspace;
    struct meg_ctx c;
    struct meg_mat x, y, dx, dy;
};

/* Allocate the tensors of a run of s positions from arena, or count their bytes if arena->base is NULL. */
static void alloc_run(struct run *r, struct meg_suballoc *arena, const struct meg_cp *cp, int64_t s, enum meg_dtype t)
{
    const struct meg_attn_size size = { t, s * B, s, B, A, G, D, 0, false, true };

    r->x = meg_suballoc_mat(arena, t, s * B, H);
    r->y = meg_suballoc_mat(arena, t, s * B, H);
    r->dx = meg_suballoc_mat(arena, t, s * B, H);
    r->dy = meg_suballoc_mat(arena, t, s * B, H);
    r->acts.qkv = meg_suballoc_mat(arena, t, s * B, QKV);
    r->acts.o = meg_suballoc_mat(arena, t, s * B, A * D);
    r->acts.lse = meg_suballoc(arena, (size_t)(s * B * A) * sizeof(float));
    r->grads.qkv = meg_suballoc_mat(arena, t, s * B, QKV);
    r->grads.o = meg_suballoc_mat(arena, t, s * B, A * D);
    meg_attn_workspace_suballoc(&r->workspace, arena, op, &size, cp, 1);
}

static struct meg_linear linear(const float *weight, int64_t out, int64_t in, float *dw, enum meg_dtype t)
{
    const struct meg_linear_desc desc = { S * B, in, out, t, t, t, MEG_DTYPE_F32 };
    const char *why;
    struct meg_linear l = { .type = &meg_linear_dense, .tp_dim = -1 };

    l.w = meg_mat(convert(weight, out * in, t), t, out, in);
    l.dw = meg_mat(dw, MEG_DTYPE_F32, out, in);
    l.plan = op->linear_create(&desc, &why);
    return l;
}

/* The variants of attention that are compared. */
struct variant {
    bool has_docs, recomputes;
    int64_t window;
    enum meg_dtype dtype;
};

/*
 * Run forward and backward for the rows of context-parallel rank i, and store outputs and gradients in *all; weight
 * gradients are the partial sums of this rank.
 */
static void run(struct tensors *all, const struct meg_cp *cp, const struct meg_layout *layout, int64_t i,
                const struct variant *v)
{
    const enum meg_dtype t = v->dtype;
    static const int64_t sample[B] = { 5, 4294967296 + 9 };
    const int64_t s = S / layout->cp;
    int32_t position[S * B], doc_start[S * B];
    float cosine[S * D / 2], sine[S * D / 2];
    const struct meg_rope rope = { .cos = cosine, .sin = sine, .half = D / 2 };
    const struct meg_rel_bias rel_bias = { 0 };
    struct run r = { 0 };
    struct meg_suballoc arena = { 0 };

    for (int k = 0; k < S * D / 2; k++) {
        cosine[k] = cosf((float)k);
        sine[k] = sinf((float)k);
    }
    alloc_run(&r, &arena, cp, s, t);
    arena.base = meg_new(arena.used);
    arena.used = 0;
    alloc_run(&r, &arena, cp, s, t);
    r.l = (struct meg_attn){ .rope = &rope,
                             .a = A,
                             .g = G,
                             .d = D,
                             .head0 = 0,
                             .layer = 3,
                             .dropout = 0.1,
                             .scale = 0.7f, /* not 1 / sqrt(D) */
                             .rel_bias = &rel_bias,
                             .cp = cp,
                             .workspace = r.workspace,
                             .window = v->window,
                             .recomputes_core = v->recomputes };
    r.l.qkv = linear(all->wqkv, QKV, H, all->dwqkv, t);
    r.l.proj = linear(all->wproj, H, A * D, all->dwproj, t);
    for (int64_t row = 0; row < s; row++) {
        const int64_t pos = meg_layout_position(layout, i, S, row);

        MEG_CALL(op, NULL, cast, .dst = meg_mat_rows(r.x, row * B, B).p, .dst_type = t, .src = all->x + pos * B * H,
                 .src_type = MEG_DTYPE_F32, .n = B * H);
        MEG_CALL(op, NULL, cast, .dst = meg_mat_rows(r.dy, row * B, B).p, .dst_type = t, .src = all->dy + pos * B * H,
                 .src_type = MEG_DTYPE_F32, .n = B * H);
        memcpy(position + row * B, all->position + pos * B, B * sizeof *position);
        memcpy(doc_start + row * B, all->doc_start + pos * B, B * sizeof *doc_start);
    }
    r.c = (struct meg_ctx){ .op = op,
                            .tp = &meg_comm_self,
                            .dtype = t,
                            .seed = 11,
                            .call = { .s = s,
                                      .b = B,
                                      .sample_id = sample,
                                      .position_ids = position,
                                      .doc_start = v->has_docs ? doc_start : NULL } };
    meg_attn_block.fwd(&r.c, r.y, r.x, &r.acts, &r.l);
    meg_attn_block.bwd(&r.c, r.dx, r.dy, r.x, &r.acts, &r.grads, &r.l);
    for (int64_t row = 0; row < s; row++) {
        const int64_t pos = meg_layout_position(layout, i, S, row);

        MEG_CALL(op, NULL, cast, .dst = all->y + pos * B * H, .dst_type = MEG_DTYPE_F32,
                 .src = meg_mat_rows(r.y, row * B, B).p, .src_type = t, .n = B * H);
        MEG_CALL(op, NULL, cast, .dst = all->dx + pos * B * H, .dst_type = MEG_DTYPE_F32,
                 .src = meg_mat_rows(r.dx, row * B, B).p, .src_type = t, .n = B * H);
    }
    op->linear_destroy(r.l.qkv.plan);
    op->linear_destroy(r.l.proj.plan);
    free(r.l.qkv.w.p);
    free(r.l.proj.w.p);
    free(arena.base);
}

/* Return whether |got - want| <= tol * |want| in the L2 norm; false if `want` is zero. */
static bool near(const float *got, const float *want, int64_t n, double tol)
{
    double diff = 0, norm = 0;

    for (int64_t i = 0; i < n; i++) {
        diff += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        norm += (double)want[i] * (double)want[i];
    }
    return norm > 0 && diff <= tol * tol * norm;
}

static void check(enum meg_cp_comm_type type, int64_t a2a_size, struct variant v)
{
    static const char *const names[] = { "p2p", "all_gather", "a2a", "a2a+p2p" };
    static struct tensors want, got;
    const double tol =
        v.dtype == MEG_DTYPE_F32 ? 1e-6 : 8e-3; /* bf16: sums in a different order differ by two half ulps */
    struct meg_layout layout = meg_layout_one;
    struct meg_mesh mesh;
    struct meg_cp cp;
    char what[120];
    bool good = true;

    fill(&want, v.dtype);
    run(&want, &meg_cp_one, &meg_layout_one, 0, &v);
    layout.cp = w->size;
    layout.a2a_size = type == MEG_CP_A2A_P2P ? a2a_size : 0;
    meg_mesh_make(&mesh, w, &layout);
    meg_cp_make(&cp, type, &mesh);
    fill(&got, v.dtype);
    run(&got, &cp, &layout, w->rank, &v);
    meg_host_all_reduce(w, got.dwqkv, QKV * H, MEG_DTYPE_F32, MEG_REDUCE_SUM);
    meg_host_all_reduce(w, got.dwproj, H * A * D, MEG_DTYPE_F32, MEG_REDUCE_SUM);
    for (int64_t row = 0; row < S / w->size; row++) {
        const int64_t first = meg_layout_position(&layout, w->rank, S, row) * B * H;

        good &= near(got.y + first, want.y + first, B * H, tol) && near(got.dx + first, want.dx + first, B * H, tol);
    }
    good &= near(got.dwqkv, want.dwqkv, QKV * H, tol) && near(got.dwproj, want.dwproj, H * A * D, tol);
    snprintf(what, sizeof what, "%s on %d ranks, a2a size %" PRId64 ", window %" PRId64 "%s%s, %s", names[type],
             w->size, a2a_size, v.window, v.has_docs ? ", documents" : "", v.recomputes ? ", recomputed output" : "",
             meg_dtype_name(v.dtype));
    ok(good, what);
    meg_mesh_close(&mesh);
}

int main(void)
{
    struct meg_comm_world world;
    struct meg_err e;

    if (meg_comm_open(&world, &e) < 0)
        meg_die_err(&e);
    w = world.world;
    meg_comm_set_timeout(w, 60);
    op = meg_cpu_ops();
    for (int docs = 0; docs < 2; docs++)
        for (enum meg_cp_comm_type type = MEG_CP_P2P; type <= MEG_CP_A2A_P2P; type++)
            for (int64_t a2a = 1; a2a <= w->size; a2a *= 2) {
                if (type == MEG_CP_A2A ? G % w->size || a2a > 1 : G % a2a || (type != MEG_CP_A2A_P2P && a2a > 1))
                    continue;
                for (int64_t window = 0; window <= 9; window += 3)
                    check(type, a2a, (struct variant){ docs, false, window, MEG_DTYPE_F32 });
                if (docs) {
                    check(type, a2a, (struct variant){ true, true, 5, MEG_DTYPE_F32 });
                    check(type, a2a, (struct variant){ true, true, 0, MEG_DTYPE_F32 });
                    check(type, a2a, (struct variant){ true, false, 0, MEG_DTYPE_BF16 });
                }
            }
    meg_host_barrier(w);
    if (w->rank == 0)
        printf("1..%d\n", tests);
    meg_comm_close(w);
    return failed != 0;
}
