/* shard.c - options of the distributed optimizer and ZeRO, and the shard that a rank updates. */
#include "optim/zero/shard.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

#define C struct meg_zero_conf
const struct meg_opt meg_zero_opts[] = {
    { "use-distributed-optimizer", 0, MEG_BOOL(C, use_distributed_optimizer), NULL, "no",
      "shard the optimizer state over the data- and context-parallel ranks (ZeRO stage 1)" },
    { "num-distributed-optimizer-instances", 0, MEG_I64(C, num_instances), "N", "1",
      "number of replicas of the optimizer state, each of which is sharded over a group of data-parallel ranks" },
    { "overlap-grad-reduce", 0, MEG_BOOL(C, overlap_grad_reduce), NULL, "no",
      "overlap the data-parallel reduction of gradients with the last backward pass of a step; with --zero-stage 2 or "
      "3, "
      "with every backward pass" },
    { "overlap-param-gather", 0, MEG_BOOL(C, overlap_param_gather), NULL, "no",
      "overlap the all-gather of the updated parameters with the next forward pass; with --zero-stage 3, gather the "
      "parameters of the next layer while a layer is computed" },
    { "ddp-bucket-size", 0, MEG_I64(C, bucket_size), "N", NULL,
      "number of parameters per gradient bucket; default: 40 million, or 1 million times the data-parallel size if "
      "that is more" },
    { "zero-stage", 0, MEG_I64(C, zero_stage), "N", NULL,
      "ZeRO stage: shard nothing (0), the optimizer state (1), also gradients (2), or also parameters (3) over the "
      "data- and context-parallel ranks" },
    { "use-torch-fsdp2", 0, MEG_BOOL(C, use_torch_fsdp2), NULL, "no",
      "same as --zero-stage 3; requires --untie-embeddings-and-output-weights, and cannot be combined with --fp16" },
    { "nccl-ub", 0, MEG_BOOL(C, nccl_ub), NULL, "no",
      "on GPUs, register the memory of parameters and gradients with NCCL, so that data-parallel collectives can "
      "access it directly" },
    { 0 }
};
#undef C

/* Derive the ZeRO stage from the three options that set it. */
static int zero_stage_of(int *stage, const struct meg_zero_conf *c, struct meg_err *e)
{
    const int64_t requested = c->zero_stage;

    *stage = c->use_torch_fsdp2 ? 3 : requested != MEG_UNSET ? (int)requested : c->use_distributed_optimizer;
    if (requested == MEG_UNSET)
        return 0;
    if (requested < 0 || requested > 3)
        return meg_fail(e, MEG_EUSAGE, "--zero-stage %" PRId64 ": must be 0, 1, 2 or 3", requested);
    if (requested == 0 && c->use_distributed_optimizer)
        return meg_fail(e, MEG_EUSAGE, "--zero-stage 0: contradicts --use-distributed-optimizer, which is stage 1");
    if (requested != 3 && c->use_torch_fsdp2)
        return meg_fail(e, MEG_EUSAGE, "--zero-stage %" PRId64 ": contradicts --use-torch-fsdp2, which is stage 3",
                        requested);
    return 0;
}

static int check_stage(const struct meg_layout *l, const struct meg_zero_conf *c, int stage, bool is_tied,
                       enum meg_dtype params, struct meg_err *e)
{
    const char *option = c->use_torch_fsdp2 ? "--use-torch-fsdp2" : stage == 2 ? "--zero-stage 2" : "--zero-stage 3";

    if (stage >= 2 && l->pp > 1)
        return meg_fail(e, MEG_EUSAGE, "%s: requires --pipeline-model-parallel-size 1, not %" PRId64, option, l->pp);
    if (c->use_torch_fsdp2 && is_tied)
        return meg_fail(e, MEG_EUSAGE, "%s: requires --untie-embeddings-and-output-weights", option);
    if (c->use_torch_fsdp2 && params == MEG_DTYPE_F16)
        return meg_fail(e, MEG_EUSAGE, "%s: cannot be combined with --fp16; use --bf16", option);
    return 0;
}

int meg_zero_fit(struct meg_layout *l, const struct meg_zero_conf *c, bool is_tied, enum meg_dtype params,
                 struct meg_err *e)
{
    const int64_t default_size = l->dp > 40 ? l->dp * 1000000 : 40000000;
    int stage, r;

    if ((r = zero_stage_of(&stage, c, e)) < 0 || (r = check_stage(l, c, stage, is_tied, params, e)) < 0)
        return r;
    if (c->num_instances < 1)
        return meg_fail(e, MEG_EUSAGE, "--num-distributed-optimizer-instances %" PRId64 ": must be at least 1",
                        c->num_instances);
    if (l->dp % c->num_instances)
        return meg_fail(e, MEG_EUSAGE,
                        "--num-distributed-optimizer-instances %" PRId64
                        ": must divide the data-parallel size, %" PRId64,
                        c->num_instances, l->dp);
    if (stage && meg_layout_dp_size(l, MEG_DP_EXPERT) % c->num_instances)
        return meg_fail(e, MEG_EUSAGE,
                        "--num-distributed-optimizer-instances %" PRId64
                        ": must divide the data-parallel size of experts, %" PRId64,
                        c->num_instances, meg_layout_dp_size(l, MEG_DP_EXPERT));
    if (c->num_instances > 1 && stage == 0)
        return meg_fail(e, MEG_EUSAGE,
                        "--num-distributed-optimizer-instances %" PRId64
                        ": requires --use-distributed-optimizer or --zero-stage of 1 or more",
                        c->num_instances);
    if (c->overlap_param_gather && !(stage && c->overlap_grad_reduce))
        return meg_fail(e, MEG_EUSAGE,
                        "--overlap-param-gather: requires --overlap-grad-reduce, and --use-distributed-optimizer or "
                        "--zero-stage of 1 or more");
    if (c->bucket_size != MEG_UNSET && c->bucket_size < 1)
        return meg_fail(e, MEG_EUSAGE, "--ddp-bucket-size %" PRId64 ": must be at least 1", c->bucket_size);
    l->zero.bucket_numel = c->bucket_size == MEG_UNSET ? default_size : c->bucket_size;
    l->zero.nshards = stage ? l->dp * l->cp / c->num_instances : 0;
    l->zero.stage = stage;
    return 0;
}

int64_t meg_zero_bucket_shard_numel(const struct meg_params *p, const struct meg_layout *l, int b)
{
    const struct meg_elem_range r = p->bucket[b].range;

    return (r.end - r.begin) / (l->zero.nshards ? meg_layout_num_shards(l, p->bucket[b].dp_group) : 1);
}

int64_t meg_zero_shard_numel(const struct meg_params *p, const struct meg_layout *l)
{
    int64_t n = 0;

    for (int b = 0; b < p->nbuckets; b++)
        if (p->bucket[b].range.begin < p->grad_numel)
            n += meg_zero_bucket_shard_numel(p, l, b);
    return n;
}

size_t meg_zero_shard_nbytes(const struct meg_params *p, const struct meg_layout *l, enum meg_dtype dtype)
{
    size_t n = 0;

    for (int b = 0; b < p->nbuckets; b++)
        n += (size_t)meg_zero_bucket_shard_numel(p, l, b) *
             meg_dtype_size(meg_params_dtype(p, p->bucket[b].range.begin, dtype));
    return n;
}

/*
 * Append the element ranges of parameters that are in bucket shard k, in the order of the flat buffer.  Rows in f32 are
 * after the others in the flat buffer, but between them in the table.
 */
static void add_param_ranges(struct meg_zero_shard *s, const struct meg_params *p, int k)
{
    struct meg_zero_bucket_shard *v = &s->bucket_shard[k];

    v->first_range = s->nparam_ranges;
    for (int row = p->n - 1; row >= 0; row--) {
        const struct meg_param *q = &p->row[row];

        if (q->offset >= v->end || q->offset + q->shard_numel <= v->begin)
            continue;
        for (int64_t i = 0; i < meg_param_num_spans(q); i++) {
            const struct meg_param_span span = meg_param_span_at(q, i);
            const int64_t begin = q->offset + span.begin, end = q->offset + span.end;
            const struct meg_zero_param_range r = { k, row, i, begin > v->begin ? begin - v->begin : 0,
                                                    (end < v->end ? end : v->end) - v->begin };

            if (r.begin < r.end)
                s->param_range[s->nparam_ranges++] = r;
        }
    }
    v->nranges = s->nparam_ranges - v->first_range;
}

static struct meg_elem_range shard_of(const struct meg_bucket *b, const struct meg_layout *l, struct meg_rank_coords at)
{
    const int64_t nshards = meg_layout_num_shards(l, b->dp_group);

    return meg_zero_shard_of(b->range, nshards, meg_layout_dp_rank(l, at, b->dp_group) % nshards);
}

void meg_zero_shard_make(struct meg_zero_shard *s, const struct meg_params *p, const struct meg_layout *l,
                         struct meg_rank_coords at)
{
    int64_t nspans = 0, offset = 0;

    for (int i = 0; i < p->n; i++)
        nspans += meg_param_num_spans(&p->row[i]);
    *s = (struct meg_zero_shard){ .nbucket_shards =
                                      l->zero.nshards ? p->nbuckets : 1 + (p->f32[0].begin < p->f32[0].end) };
    s->bucket_shard = meg_new((size_t)s->nbucket_shards * sizeof *s->bucket_shard);
    s->range = meg_new((size_t)s->nbucket_shards * sizeof *s->range);
    s->param_range = meg_new((size_t)(nspans + s->nbucket_shards) * sizeof *s->param_range);
    for (int k = 0; k < s->nbucket_shards; k++) {
        struct meg_zero_bucket_shard *v = &s->bucket_shard[k];

        s->range[k] = l->zero.nshards ? shard_of(&p->bucket[k], l, at)
                      : k             ? p->f32[0]
                                      : (struct meg_elem_range){ 0, p->f32[0].begin };
        v->begin = s->range[k].begin;
        v->end = s->range[k].end;
        v->shard_offset = offset;
        offset += v->end - v->begin;
        if (v->begin < p->grad_numel) {
            s->nupdated = k + 1;
            s->numel = offset;
        }
        add_param_ranges(s, p, k);
    }
}

void meg_zero_shard_free(struct meg_zero_shard *s)
{
    free(s->bucket_shard);
    free(s->range);
    free(s->param_range);
    memset(s, 0, sizeof *s);
}
