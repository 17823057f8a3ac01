/* AdamW, SGD, gradient clipping and norms agree with their formulas in fp64, element by element. */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "cpu/cpu.h"
#include "model/internal.h"
#include "optim/optim.h"

enum { STEPS = 4 };

/*
 * Create a parameter table: a matrix with weight decay, its bias without it, an embedding with a decoupled rate, and a
 * frozen vector.
 */
static void make_params(struct meg_params *p)
{
    const int64_t embedding[] = { 9, 5 }, weight[] = { 7, 5 }, bias[] = { 7 };
    struct meg_param *row;

    row = meg_params_add(p, 0, 2, embedding, "embedding");
    row->is_decayed = row->is_decoupled = 1;
    row = meg_params_add(p, 1, 2, weight, "weight");
    row->is_decayed = 1;
    meg_params_add(p, 1, 1, bias, "bias");
    row = meg_params_add(p, 1, 1, bias, "frozen");
    row->is_decayed = row->is_frozen = 1;
    meg_params_shard(p, &meg_mesh_one);
}

static double grad_at(int step, int64_t i)
{
    return 0.1 * sin((double)(i * 7 + step * 3 + 1));
}

struct fixture {
    struct meg_model model; /* has parameters but no layers */
    struct meg_params params;
    struct meg_optim_conf conf;
    struct meg_optim *optim;
    float *w, *g;
};

static struct meg_model_state no_layers;

static void begin(struct fixture *f, int optimizer, double clip)
{
    const struct meg_zero_conf zero = { .num_instances = 1 };
    const struct meg_device *device = meg_device_cpu();
    const struct meg_ops *op = device->op;

    memset(f, 0, sizeof *f);
    make_params(&f->params);
    f->conf.optimizer = optimizer;
    f->conf.adam_beta1 = 0.9;
    f->conf.adam_beta2 = 0.95;
    f->conf.adam_eps = 1e-8;
    f->conf.sgd_momentum = 0.9;
    f->conf.clip_grad = clip;
    f->w = op->alloc((size_t)f->params.flat_numel * sizeof(float));
    f->g = op->alloc((size_t)f->params.flat_numel * sizeof(float));
    f->model = (struct meg_model){ .mesh = &meg_mesh_one,
                                   .params = f->params,
                                   .device = device,
                                   .op = op,
                                   .w = f->w,
                                   .g = f->g,
                                   .state = &no_layers };
    assert_int_equal(meg_optim_create(&f->optim, &f->conf, &zero, &f->model, NULL), 0);
    for (int i = 0; i < f->params.n; i++)
        for (int64_t j = 0; j < f->params.row[i].numel; j++)
            f->w[f->params.row[i].offset + j] = (float)(1.0 / (double)(i + j + 1));
}

static void end(struct fixture *f)
{
    f->optim->op->release(f->w);
    f->optim->op->release(f->g);
    meg_optim_close(f->optim);
    meg_params_free(&f->params);
}

/* Compare STEPS steps of the optimizer with the same steps in double.  The loss scale is 1 / grad_scale. */
static void run(struct fixture *f, double grad_scale)
{
    const struct meg_optim_rates rates = { 1e-2, 3e-2, 0.1 };
    const struct meg_optim_step one_step = { .rates = { rates, rates }, .has_grad_norm = true };
    const struct meg_scaler scaler = { .type = MEG_SCALER_CONSTANT, .scale = 1 / grad_scale };
    double *w = calloc((size_t)f->params.flat_numel, sizeof *w), *m = calloc((size_t)f->params.flat_numel, sizeof *m),
           *v = calloc((size_t)f->params.flat_numel, sizeof *v);

    for (int64_t i = 0; i < f->params.flat_numel; i++)
        w[i] = f->w[i];
    meg_optim_restore(f->optim, 0, &scaler);
    for (int step = 0; step < STEPS; step++) {
        double sum = 0, norm, clip;

        meg_optim_begin(f->optim, 1, false);

        for (int k = 0; k < f->params.n; k++)
            for (int64_t j = 0; j < f->params.row[k].numel; j++) {
                int64_t i = f->params.row[k].offset + j;
                f->g[i] = (float)grad_at(step, i);
                sum += f->params.row[k].is_frozen ? 0 : (double)f->g[i] * f->g[i];
            }
        norm = grad_scale * sqrt(sum);
        clip = f->conf.clip_grad > 0 ? fmin(1, f->conf.clip_grad / (norm + 1e-6)) : 1;
        for (int k = 0; k < f->params.n; k++) {
            const struct meg_param *p = &f->params.row[k];
            double lr = p->is_decoupled ? rates.decoupled_lr : rates.lr, wd = p->is_decayed ? rates.weight_decay : 0;
            for (int64_t i = p->offset; i < p->offset + p->numel && !p->is_frozen; i++) {
                double g = grad_scale * clip * f->g[i];
                if (f->conf.optimizer == MEG_OPTIMIZER_SGD) {
                    g += wd * w[i];
                    m[i] = step ? 0.9 * m[i] + g : g;
                    w[i] -= lr * m[i];
                } else {
                    m[i] = 0.9 * m[i] + 0.1 * g;
                    v[i] = 0.95 * v[i] + 0.05 * g * g;
                    w[i] -= lr * (m[i] / (1 - pow(0.9, step + 1)) / (sqrt(v[i] / (1 - pow(0.95, step + 1))) + 1e-8) +
                                  wd * w[i]);
                }
            }
        }
        meg_optim_reduce_grads(f->optim);
        meg_optim_decide(f->optim, &one_step);
        meg_optim_update(f->optim);
        meg_optim_end(f->optim);
        assert_true(fabs(meg_optim_result(f->optim)->grad_norm - norm) < 1e-12 * norm);
        for (int64_t i = 0; i < f->params.flat_numel; i++) {
            if (!(fabs(f->w[i] - w[i]) <= 2e-6 * (fabs(w[i]) + 1e-2)))
                fail_msg("step %d, element %" PRId64 ": %.9g, expected %.9g", step, i, f->w[i], w[i]);
        }
    }
    free(w);
    free(m);
    free(v);
}

static void adamw_equals_its_formula(void **state)
{
    struct fixture f;

    (void)state;
    begin(&f, MEG_OPTIMIZER_ADAM, 0);
    run(&f, 1);
    assert_int_equal(f.optim->step_count, STEPS);
    end(&f);
}

static void clipping_scales_all_gradients(void **state)
{
    struct fixture f;

    (void)state;
    begin(&f, MEG_OPTIMIZER_ADAM, 0.25);
    run(&f, 0.5);
    end(&f);
    begin(&f, MEG_OPTIMIZER_SGD, 0.25);
    run(&f, 2);
    end(&f);
}

static void sgd_equals_its_formula(void **state)
{
    struct meg_optim_memory m;
    struct fixture f;

    (void)state;
    begin(&f, MEG_OPTIMIZER_SGD, 0);
    run(&f, 1);
    assert_string_equal(f.optim->optimizer->state[0].name, "momentum_buffer");
    meg_optim_memory_size(&m, &f.conf, &f.params, &meg_layout_one, &f.model.run);
    assert_int_equal(m.state, (size_t)f.params.grad_numel * sizeof(float));
    assert_int_equal(m.main, 0);
    end(&f);
}

/* Run a step that sums gradients and parameters without an update, and return its record. */
static const struct meg_step_record *sums(struct fixture *f)
{
    const struct meg_optim_step all = { .has_grad_norm = true, .skips_nonfinite = true };

    meg_optim_begin(f->optim, 1, true);
    meg_optim_reduce_grads(f->optim);
    meg_optim_count_zeros(f->optim);
    meg_optim_decide(f->optim, &all);
    meg_optim_sum_params(f->optim);
    meg_optim_end(f->optim);
    return meg_optim_result(f->optim);
}

static void finds_zero_and_nonfinite_gradients(void **state)
{
    struct fixture f;
    const struct meg_step_record *r;
    const struct meg_param *bias;

    (void)state;
    begin(&f, MEG_OPTIMIZER_ADAM, 1);
    bias = meg_params_find(&f.params, "bias");
    assert_int_equal(sums(&f)->sums.num_zeros, 9 * 5 + 7 * 5 + 7);
    f.g[bias->offset + 2] = 1;
    r = sums(&f);
    assert_int_equal(r->sums.num_zeros, 9 * 5 + 7 * 5 + 6);
    assert_int_equal(r->nonfinite_param, 0);
    assert_false(r->is_skipped);
    f.g[bias->offset + 6] = NAN;
    r = sums(&f);
    assert_ptr_equal(&f.params.row[r->nonfinite_param - 1], bias);
    assert_true(isnan(r->grad_norm));
    assert_true(r->is_skipped);
    memset(f.w, 0, (size_t)f.params.flat_numel * sizeof(float));
    f.w[bias->offset] = 3;
    f.w[meg_params_find(&f.params, "embedding")->offset] = 4;
    assert_true(sums(&f)->sums.param_sumsq == 25);
    end(&f);
}

/* Both steps are queued before the first result is read; the results are still read in the order of the steps. */
static void results_are_read_in_order(void **state)
{
    const struct meg_optim_step step = { .rates = { { 1, 1, 0 }, { 2, 2, 0 } }, .has_grad_norm = true };
    struct fixture f;

    (void)state;
    begin(&f, MEG_OPTIMIZER_ADAM, 0);
    for (int i = 0; i < 2; i++) {
        meg_optim_begin(f.optim, 1, true);
        f.g[f.params.row[0].offset] = (float)(i + 3);
        meg_optim_reduce_grads(f.optim);
        meg_optim_decide(f.optim, &step);
        meg_optim_update(f.optim);
        meg_optim_end(f.optim);
    }
    for (int i = 0; i < 2; i++) {
        const struct meg_step_record *r = meg_optim_result(f.optim);

        assert_true(r->grad_norm == i + 3);
        assert_true(r->hparams.lr[0] == (float)(i + 1)); /* the first step was not skipped */
        assert_true(r->hparams.adam_c1 == (float)(1 - pow((float)0.9, i + 1)));
        assert_int_equal(f.optim->step_count, i + 1);
    }
    end(&f);
}

/* Tensor-parallel rank 1 of 2 has shards of the first and last part of a weight, and the complete second part. */
static void ranges_follow_the_parts_of_a_parameter(void **state)
{
    static const int64_t dim[] = { 8, 5 }, global_row[] = { 2, 3, 4, 5, 7 };
    const struct meg_zero_conf zero = { .num_instances = 1 };
    struct meg_mesh mesh = meg_mesh_one;
    struct meg_optim_conf conf = { 0 };
    struct meg_model model = { .mesh = &mesh, .device = meg_device_cpu(), .state = &no_layers };
    struct meg_optim *o;
    struct meg_param *row;

    (void)state;
    mesh.layout.tp = mesh.layout.etp = 2;
    mesh.coords.tp = 1;
    row = meg_params_add(&model.params, 0, 2, dim, "weight");
    row->sharding[0] =
        (struct meg_sharding){ 3,
                               { { 4, MEG_AXIS_TP, { 0 } }, { 2, MEG_AXIS_NONE, { 0 } }, { 2, MEG_AXIS_TP, { 0 } } } };
    meg_params_shard(&model.params, &mesh);
    model.op = model.device->op;
    assert_int_equal(meg_optim_create(&o, &conf, &zero, &model, NULL), 0);

    for (int i = 0; i < o->shard.nparam_ranges; i++) {
        const struct meg_update_range *r = &o->ranges[i]; /* device memory of the CPU */

        for (int64_t k = r->begin; k < r->end; k++) {
            const int64_t at = r->first + k - r->begin;

            assert_int_equal(r->base + at / r->cols * r->ld + at % r->cols, 5 * global_row[k / 5] + k % 5);
        }
    }
    /* norms count the replicated part on rank 0 */
    assert_int_equal(o->num_norm_ranges, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(o->norm_ranges[i].begin, i ? 20 : 0);
        assert_int_equal(o->norm_ranges[i].end, i ? 25 : 10);
    }
    meg_optim_close(o);
    meg_params_free(&model.params);
}

static int allocations;

static void *alloc_some(size_t nbytes)
{
    return allocations-- > 0 ? meg_cpu_ops()->alloc(nbytes) : NULL;
}

static void create_fails_cleanly_without_memory(void **state)
{
    struct meg_ops scarce = *meg_cpu_ops();
    struct meg_device device = *meg_device_cpu();
    const struct meg_zero_conf zero = { .num_instances = 1 };
    struct meg_optim *o = NULL;
    struct fixture f;
    struct meg_err e;

    (void)state;
    begin(&f, MEG_OPTIMIZER_ADAM, 0);
    scarce.alloc = alloc_some;
    device.op = f.model.op = &scarce;
    f.model.device = &device;
    for (int n = 0; n < 6; n++) { /* record, two moments, sums and ranges of the NaN guard, ranges of the update */
        allocations = n;
        assert_int_equal(meg_optim_create(&o, &f.conf, &zero, &f.model, &e), MEG_EFAIL);
        assert_non_null(strstr(e.msg, "out of memory: the optimizer requires "));
        assert_null(o);
    }
    allocations = 6;
    assert_int_equal(meg_optim_create(&o, &f.conf, &zero, &f.model, &e), 0);
    meg_optim_close(o);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_equals_its_formula),
        cmocka_unit_test(clipping_scales_all_gradients),
        cmocka_unit_test(sgd_equals_its_formula),
        cmocka_unit_test(finds_zero_and_nonfinite_gradients),
        cmocka_unit_test(results_are_read_in_order),
        cmocka_unit_test(create_fails_cleanly_without_memory),
        cmocka_unit_test(ranges_follow_the_parts_of_a_parameter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
