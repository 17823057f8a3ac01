/* update.h - one block of the arrays of an optimizer step, converted to f32. */
#ifndef MEG_CPU_UPDATE_H
#define MEG_CPU_UPDATE_H
#include <string.h>
#include "cpu/row.h"

MEG_BEGIN_DECLS

/*
 * Elements [at, at + n), n <= COL_BLOCK.  w, g and state point to the elements: in place if they are f32, else to a
 * converted copy.
 */
struct update_block {
    int64_t at, n;
    float *w, *g, *state[2];
    float buf[4][COL_BLOCK];
};

static inline float *update_load(struct meg_array x, int64_t at, int64_t n, float *buf)
{
    return x.p ? row_load(row_vector(x.p, x.dtype, at + n), 0, at, n, buf) : NULL;
}

static inline void update_begin(struct update_block *b, const struct meg_update_arrays *x, int64_t at, int64_t n)
{
    b->at = at;
    b->n = n;
    b->w = update_load(x->w, at, n, b->buf[0]);
    b->g = update_load(x->g, at, n, b->buf[1]);
    for (int i = 0; i < 2; i++)
        b->state[i] = update_load(x->state[i], at, n, b->buf[2 + i]);
}

static inline void update_zero_grad(const struct meg_update_arrays *x, int64_t at, int64_t n)
{
    memset(meg_element(x->g.p, at, x->g.dtype), 0, (size_t)n * meg_dtype_size(x->g.dtype));
}

static inline void update_store(struct meg_array x, int64_t at, int64_t n, const float *v)
{
    if (x.p && x.dtype != MEG_DTYPE_F32)
        MEG_FN(from_f32)(meg_element(x.p, at, x.dtype), x.dtype, v, n);
}

/* Store w, its copy and the state, and zero the gradients. */
static inline void update_end(const struct update_block *b, const struct meg_update_arrays *x)
{
    update_store(x->w, b->at, b->n, b->w);
    if (x->copy.p)
        MEG_FN(from_f32)(meg_element(x->copy.p, b->at, x->copy.dtype), x->copy.dtype, b->w, b->n);
    for (int i = 0; i < 2; i++)
        update_store(x->state[i], b->at, b->n, b->state[i]);
    update_zero_grad(x, b->at, b->n);
}

MEG_END_DECLS
#endif
