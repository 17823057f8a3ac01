/* grads.c - the placements of gradients at the optimizer, of their norm, and of the sums of a step. */
#include "placement/internal.h"
#ifdef MEG_DEBUG
#    include <stdlib.h>
#    include "base/mem.h"

/* The arrays that were added to sums in this step. */
static struct summand {
    const char *sum, *begin, *end;
} * summand;
static int64_t nsummands, summand_cap;

static const char *grad_sum; /* the sum of squares of the gradients in this step; NULL: there is none */

void placement_norm_begin(const void *sums, size_t nbytes)
{
    const char *begin = sums;

    if (nsummands && summand[0].sum >= begin && summand[0].sum < begin + nbytes)
        nsummands = 0;
}

void placement_norm_end(void)
{
    free(summand);
    summand = NULL;
    nsummands = summand_cap = 0;
}

void placement_norm_add(const void *sum, const void *x, size_t nbytes)
{
    struct placement v = placement_of(sum, sizeof(double), &(int){ 0 });

    summand = meg_grow(summand, nsummands, &summand_cap, sizeof *summand);
    summand[nsummands++] = (struct summand){ sum, x, (const char *)x + nbytes };
    for (struct placement_range r = { .end = x }; placement_next(&r, (const char *)x + nbytes);)
        for (int i = 0; i < placement_naxes; i++)
            if (placement_is_sharded(r.v.axis[i]))
                v.axis[i] = MEG_PLACEMENT_PARTIAL;
    placement_set(sum, sizeof(double), v);
}

static void check_sum(const char *name, const void *sum, size_t nbytes)
{
    for (struct placement_range r = { .end = sum }; placement_next(&r, (const char *)sum + nbytes);)
        for (int i = 0; i < placement_naxes; i++)
            if (r.v.axis[i] != MEG_PLACEMENT_REPLICATED && r.v.axis[i] != PLACEMENT_ZERO)
                placement_fail("step_finish", name, r.begin, r.v.axis[i], i, "it must be summed over these ranks");
}

void placement_step_finish(const struct meg_step_finish_args *a)
{
    const struct meg_step_sums *sums = &a->record->sums;

    check_sum("the loss divisor", &sums->loss_divisor, sizeof sums->loss_divisor);
    check_sum("the loss", sums->loss, sizeof sums->loss);
    check_sum("the squared gradient norm", &sums->grad_sumsq, sizeof sums->grad_sumsq);
    grad_sum = a->conf->has_grad_norm ? (const char *)&sums->grad_sumsq : NULL;
}

/* Check that exactly one of the ranks that reduce the norm has the gradient g in it. */
static void check_norm(const struct placement_range *g, const struct meg_param *row)
{
    const unsigned mask = placement_of(grad_sum, sizeof(double), &(int){ 0 }).reduced;
    int times = 0, expected = 1, axis = 0;

    for (int64_t i = 0; i < nsummands; i++)
        times += summand[i].sum == grad_sum && g->begin >= summand[i].begin && g->begin < summand[i].end;
    for (int i = 0; i < placement_naxes; i++) {
        const bool is_first = placement_axis[i].type == PLACEMENT_PP ? !row->is_tied_replica : !placement_axis[i].rank;
        const int s = g->v.axis[i];

        if (s == PLACEMENT_ZERO)
            return;
        if (!(mask >> i & 1) && placement_is_sharded(s))
            placement_fail("gradient norm", row->name, g->begin, s, i, "the norm is not summed over these ranks");
        if ((mask >> i & 1) && !placement_is_sharded(s) && !is_first) {
            expected = 0;
            axis = i;
        }
    }
    if (times > expected)
        placement_fail("gradient norm", row->name, g->begin, g->v.axis[axis], axis,
                       "this rank counts the gradient %d times, instead of %d", times, expected);
    if (times < expected)
        placement_fail("gradient norm", row->name, g->begin, g->v.axis[axis], axis,
                       "this rank does not count the gradient");
}

/* Check that the gradient g of a part w of a parameter has the placement of w. */
static void check_grad(const char *op, const struct placement_range *g, const struct placement_range *w,
                       const char *name)
{
    for (int i = 0; i < placement_naxes; i++) {
        const int from = g->v.axis[i], to = w->v.axis[i];

        if (to == MEG_PLACEMENT_UNKNOWN || to == PLACEMENT_IN_FLIGHT)
            placement_fail(op, name, w->begin, to, i, "declare or gather the parameter first");
        if (from != to && from != PLACEMENT_ZERO && !(from == MEG_PLACEMENT_FLAT && to == MEG_PLACEMENT_REPLICATED))
            placement_fail(op, name, g->begin, from, i, "the parameter is %s, so its gradient must be",
                           placement_name(to));
    }
}

/* Mark elements of an updated array: where the gradients are shards, they are, too, until they are gathered. */
static void mark(const struct meg_array *x, int64_t begin, int64_t n, const struct placement *g, struct placement v)
{
    for (int i = 0; i < placement_naxes; i++)
        if (g->axis[i] == MEG_PLACEMENT_FLAT)
            v.axis[i] = MEG_PLACEMENT_FLAT;
    if (x->p)
        placement_set(meg_element(x->p, begin, x->dtype), (size_t)n * meg_dtype_size(x->dtype), v);
}

void placement_update(const char *op, const struct meg_update_arrays *x, const struct meg_update_range *range,
                      int nranges)
{
    const int64_t gsize = (int64_t)meg_dtype_size(x->g.dtype), wsize = (int64_t)meg_dtype_size(x->w.dtype);

    for (int i = 0; i < nranges; i++)
        for (int64_t k = range[i].begin, n; k < range[i].end; k += n) {
            const struct meg_param *row = &placement_params_table->row[range[i].row];
            const int64_t left = range[i].end - k;
            struct placement_range g = { .end = meg_element(x->g.p, k, x->g.dtype) };
            struct placement_range w = { .end = meg_element(x->w.p, k, x->w.dtype) };

            placement_next(&g, g.end + left * gsize);
            placement_next(&w, w.end + left * wsize);
            n = (g.end - g.begin) / gsize;
            if (n > (w.end - w.begin) / wsize)
                n = (w.end - w.begin) / wsize;
            check_grad(op, &g, &w, row->name);
            if (grad_sum)
                check_norm(&g, row);
            mark(&x->w, k, n, &g.v, w.v);
            mark(&x->copy, k, n, &g.v, w.v);
        }
}
#endif
