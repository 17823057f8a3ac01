/* Sums of gradients over the tensor-parallel ranks of dense parameters and of experts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "optim/zero/tp_grads.h"

enum { N = 64 }; /* elements of a vector */

static float g[4 * N];
static struct meg_comm tp = { .size = 4 }, etp = { .size = 2 };

/* Add 10 to the elements that are reduced over tp, and 1 to those that are reduced over etp. */
static struct meg_work *start(struct meg_comm *c, struct meg_stream *st, const struct meg_comm_call *x)
{
    (void)st;
    assert_int_equal(x->op, MEG_ALL_REDUCE);
    for (int64_t i = 0; i < x->n; i++)
        ((float *)x->out)[i] += c == &tp ? 10 : 1;
    return NULL;
}

static void wait_for(struct meg_work *work, struct meg_stream *st)
{
    (void)work, (void)st;
}

/*
 * A layer group has a norm, a sharded vector, and two replicated vectors of experts, of which the gradient of the first
 * one is partial.  Return the gradients after the reduction on the first of four tensor-parallel ranks.
 */
static void reduce(float sum[4], int64_t etp_size, bool has_sp)
{
    static const struct meg_comm_ops ops = { .start = start, .wait = wait_for };
    const int64_t vector[] = { N }, experts[] = { 4 / etp_size, N / 4 * etp_size };
    struct meg_mesh mesh = meg_mesh_one;
    struct meg_params p = { 0 };
    struct meg_tp_grads s;

    tp.op = etp.op = &ops;
    mesh.tp = &tp;
    mesh.etp = etp_size == 4 ? &tp : &etp;
    mesh.layout.tp = 4;
    mesh.layout.etp = etp_size;
    mesh.layout.ep = 4 / etp_size;
    mesh.layout.has_sp = has_sp;
    meg_params_add(&p, 0, 1, vector, "norm");
    meg_params_add(&p, 0, 1, (const int64_t[]){ 4 * N }, "sharded")->sharding[0].part[0].axis = MEG_AXIS_TP;
    for (int i = 0; i < 2; i++) {
        struct meg_param *row = meg_params_add(&p, 0, 2, experts, "experts%d", i);

        row->sharding[0].part[0].axis = MEG_AXIS_EP;
        row->grad_is_partial_over_tp = i == 0;
    }
    meg_params_shard(&p, &mesh);
    assert_int_equal(meg_tp_grads_init(&s, &mesh, &p, meg_device_cpu(), MEG_DTYPE_F32), 0);
    memset(g, 0, sizeof g);
    meg_tp_grads_reduce(&s, 0, g);
    for (int i = 0; i < 4; i++) {
        sum[i] = g[p.row[i].offset];
        assert_true(sum[i] == g[p.row[i].offset + p.row[i].shard_numel - 1]);
    }
    meg_tp_grads_free(&s);
    meg_params_free(&p);
}

static void experts_are_reduced_over_their_tensor_parallel_ranks(void **state)
{
    static const float want[][4] = { { 0, 0, 10, 0 }, { 10, 0, 10, 0 }, { 0, 0, 1, 0 }, { 10, 0, 1, 0 } };
    float sum[4];

    (void)state;
    for (int i = 0; i < 4; i++) {
        reduce(sum, i < 2 ? 4 : 2, i % 2);
        for (int k = 0; k < 4; k++)
            assert_true(sum[k] == want[i][k]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(experts_are_reduced_over_their_tensor_parallel_ranks) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
