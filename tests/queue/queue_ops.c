/* queue_ops.c - the operations of the queue device: each queues a call of the CPU's operation. */
#include <string.h>
#include "queue.h"

static const struct meg_ops *cpu;

/*
 * Return the value that the task stores for argument x.  If x points to one of these host structs, which the caller may
 * change before the task runs, the value is a pointer to a copy of the struct; otherwise, it is x.
 */
#define KEEP(x)                                                                                                        \
    _Generic((x),                                                                                                      \
        const struct meg_drop *: keep(&(x), sizeof(struct meg_drop)),                                                  \
        const struct meg_attn_desc *: keep(&(x), sizeof(struct meg_attn_desc)),                                        \
        const struct meg_attn_bwd_args *: keep(&(x), sizeof(struct meg_attn_bwd_args)),                                \
        const struct meg_glu *: keep(&(x), sizeof(struct meg_glu)),                                                    \
        const struct meg_qk_norm *: keep(&(x), sizeof(struct meg_qk_norm)),                                            \
        const struct meg_adam *: keep(&(x), sizeof(struct meg_adam)),                                                  \
        const struct meg_step_conf *: keep(&(x), sizeof(struct meg_step_conf)),                                        \
        const struct meg_update_arrays *: keep(&(x), sizeof(struct meg_update_arrays)),                                \
        default: (x))

/*
 * Copy the nbytes at *p, where p is the address of a pointer, and return the copy.  Return NULL if the pointer is NULL.
 */
static void *keep(const void *p, size_t nbytes)
{
    const void *target;

    memcpy(&target, p, sizeof target);
    return target ? queue_keep(target, nbytes) : NULL;
}

/* OP(name, types) defines operation `name`, which queues a call of the CPU's operation; `types` are its arguments. */
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
/* clang-format off */
/* Expand to the fields, parameters, values and kept values (KEEP) of n arguments, which are named a<n> to a1. */
#define FIELDS1(T) T a1;
#define FIELDS2(T, ...) T a2; FIELDS1(__VA_ARGS__)
#define FIELDS3(T, ...) T a3; FIELDS2(__VA_ARGS__)
#define FIELDS4(T, ...) T a4; FIELDS3(__VA_ARGS__)
#define FIELDS5(T, ...) T a5; FIELDS4(__VA_ARGS__)
#define FIELDS6(T, ...) T a6; FIELDS5(__VA_ARGS__)
#define FIELDS7(T, ...) T a7; FIELDS6(__VA_ARGS__)
#define FIELDS8(T, ...) T a8; FIELDS7(__VA_ARGS__)
#define FIELDS9(T, ...) T a9; FIELDS8(__VA_ARGS__)
#define FIELDS10(T, ...) T a10; FIELDS9(__VA_ARGS__)
#define FIELDS11(T, ...) T a11; FIELDS10(__VA_ARGS__)
#define FIELDS12(T, ...) T a12; FIELDS11(__VA_ARGS__)
#define PARAMS1(T) , T a1
#define PARAMS2(T, ...) , T a2 PARAMS1(__VA_ARGS__)
#define PARAMS3(T, ...) , T a3 PARAMS2(__VA_ARGS__)
#define PARAMS4(T, ...) , T a4 PARAMS3(__VA_ARGS__)
#define PARAMS5(T, ...) , T a5 PARAMS4(__VA_ARGS__)
#define PARAMS6(T, ...) , T a6 PARAMS5(__VA_ARGS__)
#define PARAMS7(T, ...) , T a7 PARAMS6(__VA_ARGS__)
#define PARAMS8(T, ...) , T a8 PARAMS7(__VA_ARGS__)
#define PARAMS9(T, ...) , T a9 PARAMS8(__VA_ARGS__)
#define PARAMS10(T, ...) , T a10 PARAMS9(__VA_ARGS__)
#define PARAMS11(T, ...) , T a11 PARAMS10(__VA_ARGS__)
#define PARAMS12(T, ...) , T a12 PARAMS11(__VA_ARGS__)
#define VALUES1 , x->a1
#define VALUES2 , x->a2 VALUES1
#define VALUES3 , x->a3 VALUES2
#define VALUES4 , x->a4 VALUES3
#define VALUES5 , x->a5 VALUES4
#define VALUES6 , x->a6 VALUES5
#define VALUES7 , x->a7 VALUES6
#define VALUES8 , x->a8 VALUES7
#define VALUES9 , x->a9 VALUES8
#define VALUES10 , x->a10 VALUES9
#define VALUES11 , x->a11 VALUES10
#define VALUES12 , x->a12 VALUES11
#define KEPT1 KEEP(a1)
#define KEPT2 KEEP(a2), KEPT1
#define KEPT3 KEEP(a3), KEPT2
#define KEPT4 KEEP(a4), KEPT3
#define KEPT5 KEEP(a5), KEPT4
#define KEPT6 KEEP(a6), KEPT5
#define KEPT7 KEEP(a7), KEPT6
#define KEPT8 KEEP(a8), KEPT7
#define KEPT9 KEEP(a9), KEPT8
#define KEPT10 KEEP(a10), KEPT9
#define KEPT11 KEEP(a11), KEPT10
#define KEPT12 KEEP(a12), KEPT11

OP(zero, void *, size_t)
OP(linear_fwd, struct meg_linear *, struct meg_mat, struct meg_mat, struct meg_mat, struct meg_mat, const void *,
   enum meg_act)
OP(linear_bwd_data, struct meg_linear *, struct meg_mat, struct meg_mat, struct meg_mat, struct meg_mat, enum meg_act)
OP(linear_bwd_weight, struct meg_linear *, struct meg_mat, void *, struct meg_mat, struct meg_mat, bool)
OP(act_bwd, struct meg_mat, struct meg_mat, struct meg_mat, enum meg_act)
OP(scale, struct meg_mat, struct meg_mat, float)
OP(glu_fwd, const struct meg_glu *, struct meg_mat, struct meg_mat)
OP(glu_bwd, const struct meg_glu *, struct meg_mat, struct meg_mat, struct meg_mat)
OP(rope, struct meg_heads, int64_t, int64_t, int64_t, int64_t, int64_t, int, const float *, const float *,
   const int32_t *, float)
OP(qk_norm_fwd, const struct meg_qk_norm *, struct meg_heads, float *, struct meg_heads, const void *)
OP(qk_norm_bwd, const struct meg_qk_norm *, struct meg_heads, void *, enum meg_dtype, struct meg_heads,
   struct meg_heads, const void *, const float *, bool)
OP(norm_fwd, enum meg_norm, struct meg_mat, float *, float *, struct meg_mat, const void *, const void *, float)
OP(norm_bwd, enum meg_norm, struct meg_mat, void *, void *, enum meg_dtype, struct meg_mat, struct meg_mat,
   struct meg_mat, const void *, const float *, const float *, bool)
OP(add_fwd, struct meg_mat, struct meg_mat, struct meg_mat, const void *, const struct meg_drop *)
OP(add_bwd, struct meg_mat, void *, enum meg_dtype, struct meg_mat, const struct meg_drop *, bool)
OP(add_norm_fwd, enum meg_norm, struct meg_mat, struct meg_mat, float *, float *, struct meg_mat, struct meg_mat,
   const void *, const struct meg_drop *, const void *, const void *, float)
OP(attn_fwd, const struct meg_attn_desc *, struct meg_heads, float *, struct meg_heads, struct meg_heads,
   struct meg_heads, const struct meg_drop *)
OP(attn_merge, const struct meg_attn_desc *, struct meg_heads, float *, struct meg_heads, const float *)
OP(attn_delta, const struct meg_attn_desc *, float *, struct meg_heads, struct meg_heads)
OP(attn_bwd, const struct meg_attn_desc *, const struct meg_attn_bwd_args *, const struct meg_drop *)
OP(copy_heads, struct meg_heads, const int64_t *, struct meg_heads, int64_t, int64_t, int64_t, int64_t)
OP(embed_fwd, struct meg_mat, const int32_t *, struct meg_mat, int64_t)
OP(embed_bwd, struct meg_mat, int64_t, struct meg_mat, const int32_t *, bool)
OP(position_fwd, struct meg_mat, const int32_t *, struct meg_mat, const struct meg_drop *)
OP(position_bwd, struct meg_mat, struct meg_mat, const int32_t *, const struct meg_drop *, bool)
OP(xent_partial, float *, struct meg_mat, const int32_t *, int64_t)
OP(xent_combine, float *, float *, const float *, const int32_t *, int64_t, int64_t, float)
OP(xent_bwd, struct meg_mat, const float *, const int32_t *, int64_t, float, struct meg_loss_weight)
OP(xent_fwd_bwd, float *, struct meg_mat, const int32_t *, float, struct meg_loss_weight)
OP(cast, void *, enum meg_dtype, const void *, enum meg_dtype, int64_t)
OP(sumsq, double *, const void *, enum meg_dtype, int64_t)
OP(sumsq_ranges, double *, const void *, enum meg_dtype, const struct meg_range *, int)
OP(weighted_sum, double *, const float *, const float *, int64_t, const double *)
OP(count_zeros, int64_t *, const void *, enum meg_dtype, int64_t)
OP(sample, struct meg_sampled_token *, struct meg_mat, int64_t, const struct meg_sampling_args *, bool,
   struct meg_workspace)
OP(step_finish, struct meg_step_record *, const struct meg_step_conf *)
OP(adamw, const struct meg_update_arrays *, const struct meg_update_range *, int, const struct meg_adam *,
   const struct meg_step_hparams *)
OP(sgd, const struct meg_update_arrays *, const struct meg_update_range *, int, float, const struct meg_step_hparams *)
/* clang-format on */

/*
 * Set the gradients of an update to NaN.  The queue device does this after each update, because the next step must
 * overwrite all gradients.
 */
static void fill_gradients_with_nan(const struct meg_update_arrays *x, const struct meg_update_range *range,
                                    int nranges)
{
    for (int i = 0; i < nranges; i++)
        memset(meg_element(x->g.p, range[i].begin, x->g.dtype), 0xff,
               (size_t)(range[i].end - range[i].begin) * meg_dtype_size(x->g.dtype));
}

static const struct meg_ops *cpu_table;

static void adamw_and_fill(struct meg_stream *st, const struct meg_update_arrays *x,
                           const struct meg_update_range *range, int nranges, const struct meg_adam *adam,
                           const struct meg_step_hparams *step)
{
    cpu_table->adamw(st, x, range, nranges, adam, step);
    fill_gradients_with_nan(x, range, nranges);
}

static void sgd_and_fill(struct meg_stream *st, const struct meg_update_arrays *x, const struct meg_update_range *range,
                         int nranges, float momentum, const struct meg_step_hparams *step)
{
    cpu_table->sgd(st, x, range, nranges, momentum, step);
    fill_gradients_with_nan(x, range, nranges);
}

/* Return a nonzero size even for f32 gradients, as on GPUs, where attn_bwd always requires a workspace. */
static size_t attn_bwd_nbytes(const struct meg_attn_desc *desc, enum meg_dtype grad, bool has_param_grads)
{
    return cpu_table->attn_bwd_nbytes(desc, grad, has_param_grads) +
           (size_t)(desc->b * desc->a * desc->s_q * desc->d) * sizeof(float);
}

static void fill_workspace_and_attn_bwd(struct meg_stream *st, const struct meg_attn_desc *desc,
                                        const struct meg_attn_bwd_args *args, const struct meg_drop *drop)
{
    const bool has_param_grads = args->d_rel_bias.p || args->d_sink.p;

    MEG_ASSERT_LE(attn_bwd_nbytes(desc, args->dq.dtype, has_param_grads), args->workspace.nbytes);
    memset(args->workspace.p, 0xff, args->workspace.nbytes);
    cpu_table->attn_bwd(st, desc, args, drop);
}

const struct meg_ops *queue_ops(const struct meg_ops *base)
{
    static struct meg_ops table, filling;

    cpu_table = base;
    filling = *base;
    filling.adamw = adamw_and_fill;
    filling.sgd = sgd_and_fill;
    filling.attn_bwd = fill_workspace_and_attn_bwd;
    cpu = &filling;
    table = *base; /* operations that are not replaced below, such as linear_create, are not queued */
    table.zero = zero;
    table.linear_fwd = linear_fwd;
    table.linear_bwd_data = linear_bwd_data;
    table.linear_bwd_weight = linear_bwd_weight;
    table.act_bwd = act_bwd;
    table.scale = scale;
    table.glu_fwd = glu_fwd;
    table.glu_bwd = glu_bwd;
    table.rope = rope;
    table.qk_norm_fwd = qk_norm_fwd;
    table.qk_norm_bwd = qk_norm_bwd;
    table.norm_fwd = norm_fwd;
    table.norm_bwd = norm_bwd;
    table.add_fwd = add_fwd;
    table.add_bwd = add_bwd;
    table.add_norm_fwd = add_norm_fwd;
    table.attn_fwd = attn_fwd;
    table.attn_merge = attn_merge;
    table.attn_delta = attn_delta;
    table.attn_bwd = attn_bwd;
    table.attn_bwd_nbytes = attn_bwd_nbytes;
    table.copy_heads = copy_heads;
    table.embed_fwd = embed_fwd;
    table.embed_bwd = embed_bwd;
    table.position_fwd = position_fwd;
    table.position_bwd = position_bwd;
    table.xent_partial = xent_partial;
    table.xent_combine = xent_combine;
    table.xent_bwd = xent_bwd;
    table.xent_fwd_bwd = xent_fwd_bwd;
    table.cast = cast;
    table.sumsq = sumsq;
    table.sumsq_ranges = sumsq_ranges;
    table.weighted_sum = weighted_sum;
    table.count_zeros = count_zeros;
    table.sample = sample;
    table.sample_nbytes = cpu->sample_nbytes;
    table.step_finish = step_finish;
    table.adamw = adamw;
    table.sgd = sgd;
    return &table;
}
