/* isa: baseline v3 v4 */
/* ops_table.c - the table of operations of one instruction set. */
#include "cpu/internal.h"

#define OP(name) , .name = MEG_FN(name)
const struct meg_ops MEG_FN(ops) = {
    .name = "cpu",
    .is_host_memory = true,
    .decode_rows = GEMM_SKINNY_M,
    .logits_rows = meg_cpu_logits_rows,
    .free_nbytes = meg_cpu_free_nbytes,
    .alloc = meg_cpu_alloc,
    .release = free,
    .alloc_pinned = meg_cpu_alloc,
    .release_pinned = free,
    .copy = meg_cpu_copy,
    .upload = meg_cpu_copy,
    .upload_pinned = meg_cpu_copy,
    .download = meg_cpu_copy,
    .zero = meg_cpu_zero,
    .stream_create = meg_cpu_stream_create,
    .stream_destroy = meg_cpu_stream_destroy,
    .event_create = meg_cpu_event_create,
    .event_destroy = meg_cpu_event_destroy,
    .event_record = meg_cpu_event_record,
    .event_wait = meg_cpu_event_record,
    .event_is_done = meg_cpu_event_is_done,
    .copy_heads = meg_cpu_copy_heads,
    .linear_create = meg_cpu_linear_create,
    .linear_destroy = meg_cpu_linear_destroy,
    .sample = meg_cpu_sample,
    .sample_nbytes = meg_cpu_sample_nbytes,
    .attn_bwd_nbytes = MEG_FN(attn_bwd_nbytes),
    .step_finish = meg_cpu_step_finish MEG_ISA_OPS(OP),
};
