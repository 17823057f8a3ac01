/* queue_ops.c - the operations of the queue device: each queues a call of the CPU's operation. */
#include <string.h>
#include "queue.h"

static const struct meg_ops *cpu;

/* The value of an argument that the task keeps: a copy of what a pointer to a small host struct points to. */
#define KEEP(x)                                                                                                        \
    _Generic((x),                                                                                                      \
        const struct meg_drop *: keep(&(x), sizeof(struct meg_drop)),                                                  \
        const struct meg_attn_geom *: keep(&(x), sizeof(struct meg_attn_geom)),                                        \
        const struct meg_adam *: keep(&(x), sizeof(struct meg_adam)),                                                  \
        default: (x))

/* Copy what the pointer at p points to, unless it is NULL. */
static void *keep(const void *p, size_t nbytes)
{
    const void *target;

    memcpy(&target, p, sizeof target);
    return target ? queue_keep(target, nbytes) : NULL;
}

/* OP(name, types): an operation that queues a call of the CPU's with arguments of these types. */
#define OP(name, ...) OP_(name, COUNT(__VA_ARGS__), __VA_ARGS__)
#define OP_(name, n, ...) OP__(name, n, __VA_ARGS__)
#define OP__(name, n, ...)                                                                                             \
    struct name##_args {                                                                                               \
        FIELDS##n(__VA_ARGS__)                                                                                         \
    };                                                                                                                 \
    static bool run_##name(void *args)                                                                                 \
    {                                                                                                                  \
        const struct name##_args *x = args;                                                                            \
                                                                                                                       \
        cpu->name(NULL VALUES##n);                                                                                     \
        return true;                                                                                                   \
    }                                                                                                                  \
    static void name(struct meg_stream *st PARAMS##n(__VA_ARGS__))                                                     \
    {                                                                                                                  \
        const struct name##_args x = { KEPT##n };                                                                      \
                                                                                                                       \
        queue_push(st, run_##name, &x, sizeof x);                                                                      \
    }
#define COUNT(...) COUNT_(__VA_ARGS__, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2)
#define COUNT_(a, b, c, d, e, f, g, h, i, j, k, l, n, ...) n
#define FIELDS2(T0, T1)                                                                                                \
    T0 a;                                                                                                              \
    T1 b;
#define PARAMS2(T0, T1) , T0 a, T1 b
#define VALUES2 , x->a, x->b
#define KEPT2 KEEP(a), KEEP(b)
#define FIELDS3(T0, T1, T2)                                                                                            \
    T0 a;                                                                                                              \
    T1 b;                                                                                                              \
    T2 c;
#define PARAMS3(T0, T1, T2) , T0 a, T1 b, T2 c
#define VALUES3 , x->a, x->b, x->c
#define KEPT3 KEEP(a), KEEP(b), KEEP(c)
#define FIELDS4(T0, T1, T2, T3)                                                                                        \
    T0 a;                                                                                                              \
    T1 b;                                                                                                              \
    T2 c;                                                                                                              \
    T3 d;
#define PARAMS4(T0, T1, T2, T3) , T0 a, T1 b, T2 c, T3 d
#define VALUES4 , x->a, x->b, x->c, x->d
#define KEPT4 KEEP(a), KEEP(b), KEEP(c), KEEP(d)
#define FIELDS5(T0, T1, T2, T3, T4)                                                                                    \
    T0 a;                                                                                                              \
    T1 b;                                                                                                              \
    T2 c;                                                                                                              \
    T3 d;                                                                                                              \
    T4 e;
#define PARAMS5(T0, T1, T2, T3, T4) , T0 a, T1 b, T2 c, T3 d, T4 e
#define VALUES5 , x->a, x->b, x->c, x->d, x->e
#define KEPT5 KEEP(a), KEEP(b), KEEP(c), KEEP(d), KEEP(e)
#define FIELDS6(T0, T1, T2, T3, T4, T5)                                                                                \
    T0 a;                                                                                                              \
    T1 b;                                                                                                              \
    T2 c;                                                                                                              \
    T3 d;                                                                                                              \
    T4 e;                                                                                                              \
    T5 f;
#define PARAMS6(T0, T1, T2, T3, T4, T5) , T0 a, T1 b, T2 c, T3 d, T4 e, T5 f
#define VALUES6 , x->a, x->b, x->c, x->d, x->e, x->f
#define KEPT6 KEEP(a), KEEP(b), KEEP(c), KEEP(d), KEEP(e), KEEP(f)
#define FIELDS7(T0, T1, T2, T3, T4, T5, T6)                                                                            \
    T0 a;                                                                                                              \
    T1 b;                                                                                                              \
    T2 c;                                                                                                              \
    T3 d;                                                                                                              \
    T4 e;                                                                                                              \
    T5 f;                                                                                                              \
    T6 g;
#define PARAMS7(T0, T1, T2, T3, T4, T5, T6) , T0 a, T1 b, T2 c, T3 d, T4 e, T5 f, T6 g
#define VALUES7 , x->a, x->b, x->c, x->d, x->e, x->f, x->g
#define KEPT7 KEEP(a), KEEP(b), KEEP(c), KEEP(d), KEEP(e), KEEP(f), KEEP(g)
#define FIELDS8(T0, T1, T2, T3, T4, T5, T6, T7)                                                                        \
    T0 a;                                                                                                              \
    T1 b;                                                                                                              \
    T2 c;                                                                                                              \
    T3 d;                                                                                                              \
    T4 e;                                                                                                              \
    T5 f;                                                                                                              \
    T6 g;                                                                                                              \
    T7 h;
#define PARAMS8(T0, T1, T2, T3, T4, T5, T6, T7) , T0 a, T1 b, T2 c, T3 d, T4 e, T5 f, T6 g, T7 h
#define VALUES8 , x->a, x->b, x->c, x->d, x->e, x->f, x->g, x->h
#define KEPT8 KEEP(a), KEEP(b), KEEP(c), KEEP(d), KEEP(e), KEEP(f), KEEP(g), KEEP(h)
#define FIELDS11(T0, T1, T2, T3, T4, T5, T6, T7, T8, T9, T10)                                                          \
    T0 a;                                                                                                              \
    T1 b;                                                                                                              \
    T2 c;                                                                                                              \
    T3 d;                                                                                                              \
    T4 e;                                                                                                              \
    T5 f;                                                                                                              \
    T6 g;                                                                                                              \
    T7 h;                                                                                                              \
    T8 i;                                                                                                              \
    T9 j;                                                                                                              \
    T10 k;
#define PARAMS11(T0, T1, T2, T3, T4, T5, T6, T7, T8, T9, T10)                                                          \
    , T0 a, T1 b, T2 c, T3 d, T4 e, T5 f, T6 g, T7 h, T8 i, T9 j, T10 k
#define VALUES11 , x->a, x->b, x->c, x->d, x->e, x->f, x->g, x->h, x->i, x->j, x->k
#define KEPT11 KEEP(a), KEEP(b), KEEP(c), KEEP(d), KEEP(e), KEEP(f), KEEP(g), KEEP(h), KEEP(i), KEEP(j), KEEP(k)
#define FIELDS12(T0, T1, T2, T3, T4, T5, T6, T7, T8, T9, T10, T11)                                                     \
    T0 a;                                                                                                              \
    T1 b;                                                                                                              \
    T2 c;                                                                                                              \
    T3 d;                                                                                                              \
    T4 e;                                                                                                              \
    T5 f;                                                                                                              \
    T6 g;                                                                                                              \
    T7 h;                                                                                                              \
    T8 i;                                                                                                              \
    T9 j;                                                                                                              \
    T10 k;                                                                                                             \
    T11 l;
#define PARAMS12(T0, T1, T2, T3, T4, T5, T6, T7, T8, T9, T10, T11)                                                     \
    , T0 a, T1 b, T2 c, T3 d, T4 e, T5 f, T6 g, T7 h, T8 i, T9 j, T10 k, T11 l
#define VALUES12 , x->a, x->b, x->c, x->d, x->e, x->f, x->g, x->h, x->i, x->j, x->k, x->l
#define KEPT12                                                                                                         \
    KEEP(a), KEEP(b), KEEP(c), KEEP(d), KEEP(e), KEEP(f), KEEP(g), KEEP(h), KEEP(i), KEEP(j), KEEP(k), KEEP(l)

/* clang-format off */
OP(zero, void *, size_t)
OP(linear_fwd, struct meg_linear *, struct meg_mat, struct meg_mat, struct meg_mat, struct meg_mat, const void *, enum meg_act)
OP(linear_bwd_data, struct meg_linear *, struct meg_mat, struct meg_mat, struct meg_mat, struct meg_mat, enum meg_act)
OP(linear_bwd_weight, struct meg_linear *, struct meg_mat, void *, struct meg_mat, struct meg_mat)
OP(swiglu_fwd, struct meg_mat, struct meg_mat)
OP(swiglu_bwd, struct meg_mat, struct meg_mat, struct meg_mat)
OP(rope, struct meg_heads, int64_t, int64_t, int64_t, int64_t, int64_t, int, const float *, const float *, const int32_t *, float)
OP(norm_fwd, enum meg_norm, struct meg_mat, float *, float *, struct meg_mat, const void *, const void *, float)
OP(norm_bwd, enum meg_norm, struct meg_mat, void *, void *, enum meg_dtype, struct meg_mat, struct meg_mat, struct meg_mat, const void *, const float *, const float *)
OP(add_fwd, struct meg_mat, struct meg_mat, struct meg_mat, const void *, const struct meg_drop *)
OP(add_bwd, struct meg_mat, void *, enum meg_dtype, struct meg_mat, const struct meg_drop *)
OP(add_norm_fwd, enum meg_norm, struct meg_mat, struct meg_mat, float *, float *, struct meg_mat, struct meg_mat, const void *, const struct meg_drop *, const void *, const void *, float)
OP(attn_fwd, const struct meg_attn_geom *, struct meg_heads, float *, struct meg_heads, struct meg_heads, struct meg_heads, const struct meg_drop *)
OP(attn_merge, const struct meg_attn_geom *, struct meg_heads, float *, struct meg_heads, const float *)
OP(attn_delta, const struct meg_attn_geom *, float *, struct meg_heads, struct meg_heads)
OP(attn_bwd, const struct meg_attn_geom *, struct meg_heads, struct meg_heads, struct meg_heads, struct meg_heads, const float *, const float *, struct meg_heads, struct meg_heads, struct meg_heads, const struct meg_drop *, int)
OP(copy_heads, struct meg_heads, struct meg_heads, int64_t, int64_t, int64_t, int64_t)
OP(embed_fwd, struct meg_mat, const int32_t *, struct meg_mat, int64_t)
OP(embed_bwd, struct meg_mat, int64_t, struct meg_mat, const int32_t *)
OP(position_fwd, struct meg_mat, const int32_t *, struct meg_mat, const struct meg_drop *)
OP(position_bwd, struct meg_mat, struct meg_mat, const int32_t *, const struct meg_drop *)
OP(xent_partial, float *, struct meg_mat, const int32_t *, int64_t)
OP(xent_combine, float *, float *, const float *, int64_t, int64_t)
OP(xent_bwd, struct meg_mat, const float *, const int32_t *, int64_t, const float *)
OP(cast, void *, enum meg_dtype, const void *, enum meg_dtype, int64_t)
OP(sumsq, double *, const void *, enum meg_dtype, int64_t)
OP(count_zeros, int64_t *, const void *, enum meg_dtype, int64_t)
OP(adamw, float *, float *, float *, float *, const struct meg_hparam_range *, int, const struct meg_adam *, const struct meg_step_hparams *)
OP(sgd, float *, float *, float *, const struct meg_hparam_range *, int, float, const struct meg_step_hparams *)
/* clang-format on */

const struct meg_ops *queue_ops(const struct meg_ops *base)
{
    static struct meg_ops table;

    cpu = base;
    table = *base; /* supports, pinned memory, plans of linears */
    table.zero = zero;
    table.linear_fwd = linear_fwd;
    table.linear_bwd_data = linear_bwd_data;
    table.linear_bwd_weight = linear_bwd_weight;
    table.swiglu_fwd = swiglu_fwd;
    table.swiglu_bwd = swiglu_bwd;
    table.rope = rope;
    table.norm_fwd = norm_fwd;
    table.norm_bwd = norm_bwd;
    table.add_fwd = add_fwd;
    table.add_bwd = add_bwd;
    table.add_norm_fwd = add_norm_fwd;
    table.attn_fwd = attn_fwd;
    table.attn_merge = attn_merge;
    table.attn_delta = attn_delta;
    table.attn_bwd = attn_bwd;
    table.copy_heads = copy_heads;
    table.embed_fwd = embed_fwd;
    table.embed_bwd = embed_bwd;
    table.position_fwd = position_fwd;
    table.position_bwd = position_bwd;
    table.xent_partial = xent_partial;
    table.xent_combine = xent_combine;
    table.xent_bwd = xent_bwd;
    table.cast = cast;
    table.sumsq = sumsq;
    table.count_zeros = count_zeros;
    table.adamw = adamw;
    table.sgd = sgd;
    return &table;
}
