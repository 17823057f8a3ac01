/* isa: baseline v3 v4 */
/* The table of one instruction set. */
#include "cpu/internal.h"

const struct meg_ops MEG_FN(table) = {
    .name = "cpu",
    .supports = meg_cpu_supports,
    .alloc = meg_cpu_alloc,
    .release = free,
    .upload = meg_cpu_copy,
    .download = meg_cpu_copy,
    .zero = meg_cpu_zero,
    .copy_heads = meg_cpu_copy_heads,
    .linear_create = meg_cpu_linear_create,
    .linear_destroy = meg_cpu_linear_destroy,
    .linear_fwd = MEG_FN(linear_fwd),
    .linear_bwd_data = MEG_FN(linear_bwd_data),
    .linear_bwd_weight = MEG_FN(linear_bwd_weight),
    .norm_fwd = MEG_FN(norm_fwd),
    .norm_bwd = MEG_FN(norm_bwd),
    .add_fwd = MEG_FN(add_fwd),
    .add_bwd = MEG_FN(add_bwd),
    .add_norm_fwd = MEG_FN(add_norm_fwd),
    .attn_fwd = MEG_FN(attn_fwd),
    .attn_bwd = MEG_FN(attn_bwd),
    .embed_fwd = MEG_FN(embed_fwd),
    .embed_bwd = MEG_FN(embed_bwd),
    .xent_fwd = MEG_FN(xent_fwd),
    .xent_bwd = MEG_FN(xent_bwd),
    .sumsq = MEG_FN(sumsq),
    .count_zeros = MEG_FN(count_zeros),
    .adamw = MEG_FN(adamw),
    .sgd = MEG_FN(sgd),
};
