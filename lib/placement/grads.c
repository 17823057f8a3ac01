/* grads.c - the placements of gradients at the optimizer, of their norm, and of the sums of a step. */
#include "placement/internal.h"
#ifdef MEG_DEBUG
#    include <stdlib.h>
#    include <string.h>
#    include "base/mem.h"

/* The arrays of which squares are summed. */
static struct summand {
    const char *sum, *begin, *end;
} * summand;
static int nsummands, summand_cap;

/* The axes over which sums of squares are reduced, as bit masks; sum is NULL in free elements. */
enum { NREDUCED = 4 };
static struct {
    const char *sum;
    unsigned mask;
} reduced[NREDUCED];

static const char *grad_sum; /* the sum of squares of the gradients in this step; NULL: there is none */

void placement_norm_begin(const void *sums, size_t nbytes)
{
    const char *begin = sums, *end = begin + nbytes;
    int n = 0;

    for (int i = 0; i < nsummands; i++)
        if (summand[i].sum < begin || summand[i].sum >= end)
            summand[n++] = summand[i];
    nsummands = n;
    for (int i = 0; i < NREDUCED; i++)
        if (reduced[i].sum >= begin && reduced[i].sum < end)
            reduced[i].sum = NULL;
}

void placement_norm_add(const void *sum, const void *x, size_t nbytes)
{
    struct placement_range r = { .end = x };
    struct placement v = placement_of(sum, sizeof(double), &(int){ 0 });

    if (nsummands == summand_cap)
        summand = meg_realloc_array(summand, (size_t)(summand_cap = 2 * summand_cap + 64), sizeof *summand);
    summand[nsummands++] = (struct summand){ sum, x, (const char *)x + nbytes };
    while (r.end < (const char *)x + nbytes) {
        r = placement_first(&placement_table, r.end, (const char *)x + nbytes);
        for (int i = 0; i < placement_naxes; i++)
            if (placement_is_sharded(r.v.axis[i]))
                v.axis[i] = MEG_PLACEMENT_PARTIAL;
    }
    placement_set(&placement_table, sum, sizeof(double), v, NULL);
}

unsigned placement_norm_reduce(const void *sum, unsigned mask)
{
    int free_slot = -1;

    for (int i = 0; i < NREDUCED; i++) {
        if (reduced[i].sum == sum)
            return reduced[i].mask |= mask;
        if (!reduced[i].sum)
            free_slot = i;
    }
    if (!mask)
        return 0;
    MEG_ASSERT_LE(0, free_slot);
    reduced[free_slot].sum = sum;
    return reduced[free_slot].mask = mask;
}

void placement_norm_end(void)
{
    free(summand);
    summand = NULL;
    nsummands = summand_cap = 0;
    memset(reduced, 0, sizeof reduced);
}

void placement_step_finish(const struct meg_step_finish_args *a)
{
    const struct {
        const char *name;
        const void *p;
        size_t nbytes;
    } sum[] = { { "the loss divisor", &a->record->sums.loss_divisor, sizeof(double) },
                { "the loss", a->record->sums.loss, sizeof a->record->sums.loss },
                { "the squared gradient norm", &a->record->sums.grad_sumsq, sizeof(double) } };

    grad_sum = a->conf->has_grad_norm ? (const char *)&a->record->sums.grad_sumsq : NULL;
    for (size_t i = 0; i < sizeof sum / sizeof *sum; i++)
        for (struct placement_range r = { .end = sum[i].p }; r.end < (const char *)sum[i].p + sum[i].nbytes;) {
            r = placement_first(&placement_table, r.end, (const char *)sum[i].p + sum[i].nbytes);
            for (int axis = 0; axis < placement_naxes; axis++)
                if (r.v.axis[axis] != MEG_PLACEMENT_REPLICATED && r.v.axis[axis] != PLACEMENT_ZERO)
                    placement_fail("step_finish", sum[i].name, r.begin, r.v.axis[axis], axis,
                                   "it must be summed over these ranks");
        }
}

/* A part of a parameter that one optimizer step updates. */
struct part {
    const char *op, *name;
    const struct meg_param *row;
    const char *g, *w;
    struct placement gv, wv;
};

/* Return how often the part is in the norm. */
static int times_in_norm(const struct part *p)
{
    int n = 0;

    for (int i = 0; i < nsummands; i++)
        n += summand[i].sum == grad_sum && p->g >= summand[i].begin && p->g < summand[i].end;
    return n;
}

/* Check that exactly one of the ranks that reduce the norm has the part in it. */
static void check_norm(const struct part *p)
{
    const unsigned mask = placement_norm_reduce(grad_sum, 0);
    const int times = times_in_norm(p);
    int expected = 1, axis = 0;

    for (int i = 0; i < placement_naxes; i++) {
        const bool is_first =
            placement_axis[i].type == PLACEMENT_PP ? !p->row->is_tied_replica : placement_axis[i].rank == 0;
        const int s = p->gv.axis[i];

        if (s == PLACEMENT_ZERO)
            return;
        if (!(mask >> i & 1) && placement_is_sharded(s))
            placement_fail("gradient norm", p->name, p->g, s, i, "the norm is not summed over these ranks");
        if ((mask >> i & 1) && !placement_is_sharded(s) && !is_first) {
            expected = 0;
            axis = i;
        }
    }
    if (times > expected)
        placement_fail("gradient norm", p->name, p->g, p->gv.axis[axis], axis,
                       "this rank counts the gradient %d times, instead of %d", times, expected);
    if (times < expected)
        placement_fail("gradient norm", p->name, p->g, p->gv.axis[axis], axis, "this rank does not count the gradient");
}

static void check_grad(const struct part *p)
{
    for (int i = 0; i < placement_naxes; i++) {
        const int g = p->gv.axis[i], w = p->wv.axis[i];

        if (w == MEG_PLACEMENT_UNKNOWN || w == PLACEMENT_IN_FLIGHT)
            placement_fail(p->op, p->name, p->w, w, i, "declare or gather the parameter first");
        if (g == w || g == PLACEMENT_ZERO || (g == MEG_PLACEMENT_FLAT && w == MEG_PLACEMENT_REPLICATED))
            continue;
        placement_fail(p->op, p->name, p->g, g, i, "the parameter is %s, so its gradient must be", placement_name(w));
    }
    if (grad_sum)
        check_norm(p);
}

/* Mark an updated array: where the gradients are shards, its elements are, too, until they are gathered. */
static void mark(const struct meg_array *x, int64_t begin, int64_t n, const struct placement *g,
                 const struct placement *w)
{
    struct placement v = *w;

    for (int i = 0; i < placement_naxes; i++)
        if (g->axis[i] == MEG_PLACEMENT_FLAT)
            v.axis[i] = MEG_PLACEMENT_FLAT;
    if (x->p)
        placement_set(&placement_table, meg_element(x->p, begin, x->dtype), (size_t)n * meg_dtype_size(x->dtype), v,
                      NULL);
}

void placement_update(const char *op, const struct meg_update_arrays *x, const struct meg_update_range *range,
                      int nranges)
{
    const int64_t gsize = (int64_t)meg_dtype_size(x->g.dtype), wsize = (int64_t)meg_dtype_size(x->w.dtype);

    for (int i = 0; i < nranges; i++)
        for (int64_t k = range[i].begin, n; k < range[i].end; k += n) {
            const struct meg_param *row = &placement_params_table->row[range[i].row];
            const char *g = meg_element(x->g.p, k, x->g.dtype), *w = meg_element(x->w.p, k, x->w.dtype);
            const int64_t left = range[i].end - k;
            const struct placement_range gr = placement_first(&placement_table, g, g + left * gsize);
            const struct placement_range wr = placement_first(&placement_table, w, w + left * wsize);
            const struct part p = { op, row->name, row, g, w, gr.v, wr.v };

            n = (gr.end - g) / gsize < (wr.end - w) / wsize ? (gr.end - g) / gsize : (wr.end - w) / wsize;
            check_grad(&p);
            mark(&x->w, k, n, &gr.v, &wr.v);
            mark(&x->copy, k, n, &gr.v, &wr.v);
        }
}
#endif
