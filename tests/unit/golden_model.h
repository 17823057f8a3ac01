/*
 * golden_model.h - compare a model with the reference numbers of a folder of tests/data/golden/models.  The references
 * have Hugging Face's names and layouts; a test maps each row of a parameter with a function hf_row_of.
 */
#ifndef TESTS_GOLDEN_MODEL_H
#define TESTS_GOLDEN_MODEL_H
#include <math.h>
#include "golden.h"
#include "golden_device.h"
#include "optim/optim.h"

/* Return the path of a file of a model, relative to tests/data/golden.  It is valid until the next call. */
static inline const char *in_dir(const char *dir, const char *name)
{
    static char path[128];

    snprintf(path, sizeof path, "models/%s/%s", dir, name);
    return path;
}

/* Fail unless |got - want| <= most; NaN fails. */
static inline void close_to(double got, double want, double most, const char *what)
{
    if (!(fabs(got - want) <= most))
        fail_msg("%s: %.10g, wanted %.10g to within %.2g", what, got, want, most);
}

static inline double number(const json_t *j, const char *key)
{
    const json_t *v = json_object_get(j, key);

    if (!json_is_number(v))
        fail_msg("no number %s", key);
    return json_number_value(v);
}

/* The Hugging Face tensor, and its row or column, that correspond to row o of a tensor of Megatron's layout. */
struct hf_row {
    char name[96];
    int64_t row;
    bool is_column;
};

/* Create a model with the weights of a folder. */
static inline struct meg_model *create_from_golden(const struct meg_model_conf *conf, const struct meg_model_run *run,
                                                   const char *dir,
                                                   struct hf_row hf_row_of(const char *name, int64_t o))
{
    struct golden_file w = golden_open(in_dir(dir, "model.safetensors"));
    struct meg_model_conf c = *conf;
    struct meg_model *g = NULL;
    struct meg_err e;
    float *host;

    if (meg_model_conf_check(&c, &e) < 0 || meg_model_create(&g, &c, run, golden_device(), &meg_mesh_one, &e) < 0)
        fail_msg("%s", e.msg);
    host = meg_new((size_t)g->params.flat_numel * sizeof *host);
    for (int i = 0; i < g->params.n; i++) {
        const struct meg_param *row = &g->params.row[i];
        const int64_t cols = row->ndim > 1 ? row->dim[1] : 1;

        for (int64_t o = 0; o < row->dim[0]; o++) {
            const struct hf_row p = hf_row_of(row->name, o);
            int64_t n;
            const float *from = golden_tensor(&w, p.name, "F32", &n);

            memcpy(host + row->offset + o * cols, from + p.row * cols, (size_t)cols * sizeof *host);
        }
    }
    set_weights(g, host);
    free(host);
    golden_close(&w);
    return g;
}

static inline double grad_norm(const struct meg_model *g)
{
    float *grad = copy_to_host(g, g->g);
    double squares = 0;

    for (int64_t i = 0; i < g->params.flat_numel; i++)
        squares += (double)grad[i] * (double)grad[i];
    free(grad);
    return sqrt(squares);
}

/* Compare every gradient with the reference.  The tolerance is ten times the error of the reference's float32 run. */
static inline void check_gradients(const struct meg_model *g, const struct golden_file *tensors, const json_t *want,
                                   struct hf_row hf_row_of(const char *name, int64_t o))
{
    float *got = copy_to_host(g, g->g);

    for (int i = 0; i < g->params.n; i++) {
        const struct meg_param *row = &g->params.row[i];
        const int64_t cols = row->ndim > 1 ? row->dim[1] : 1;

        for (int64_t o = 0; o < row->dim[0]; o++) {
            const struct hf_row p = hf_row_of(row->name, o);
            const double most = 10 * number(json_object_get(want, p.name), "f32_max_abs_err");
            char full[128];
            int64_t n;
            const float *grad;

            snprintf(full, sizeof full, "grad.%s", p.name);
            grad = golden_tensor(tensors, full, "F32", &n);
            for (int64_t c = 0; c < cols; c++)
                close_to(got[row->offset + o * cols + c], grad[p.is_column ? c * (n / cols) + p.row : p.row * cols + c],
                         most, full);
        }
    }
    free(got);
}

/*
 * The exact gradient of a key bias, to which softmax is invariant, is 0.  The computed gradient is a rounding error
 * of at most e, and a step of AdamW is at most lr * e / (e + eps).  Return the sum of five such steps.
 */
static inline double rounding_of_steps(const json_t *grad)
{
    const double e = 10 * number(grad, "f32_max_abs_err");

    return 5 * 1e-3 * e / (e + 1e-8);
}

static inline bool is_zero(const json_t *grad)
{
    return number(grad, "max_abs") <= 10 * number(grad, "f32_max_abs_err");
}

/* Return whether a tensor of Megatron core contains key biases.  If so, its last element is a value bias. */
static inline bool contains_key_bias(const char *name)
{
    return strstr(name, "linear_qkv.bias") || strstr(name, "linear_kv.bias");
}

/* Squared norm, size, first and last element of a Hugging Face tensor, collected from rows in Megatron's layout. */
struct summary {
    double squares, first, last;
    int64_t numel, last_row;
};

/* Return the summary of the Hugging Face tensor `name`.  `weights` is a copy of g->w in host memory. */
static inline struct summary summary_of(const struct meg_model *g, const float *weights, const char *name,
                                        struct hf_row hf_row_of(const char *name, int64_t o))
{
    struct summary s = { .last_row = -1 };

    for (int i = 0; i < g->params.n; i++) {
        const struct meg_param *row = &g->params.row[i];
        const int64_t cols = row->ndim > 1 ? row->dim[1] : 1;

        for (int64_t o = 0; o < row->dim[0]; o++) {
            const struct hf_row p = hf_row_of(row->name, o);
            const float *w = weights + row->offset + o * cols;

            if (strcmp(p.name, name))
                continue;
            s.numel += cols;
            for (int64_t c = 0; c < cols; c++)
                s.squares += (double)w[c] * w[c];
            if (p.row == 0)
                s.first = w[0];
            if (p.row > s.last_row) {
                s.last_row = p.row;
                s.last = w[cols - 1];
            }
        }
    }
    return s;
}

/* Compare the weights after five steps by the summary of each Hugging Face tensor. */
static inline void check_weights(const struct meg_model *g, const json_t *after, const json_t *grads,
                                 struct hf_row hf_row_of(const char *name, int64_t o))
{
    float *weights = copy_to_host(g, g->w);
    const char *name;
    json_t *want;
    int n = 0;

    json_object_foreach((json_t *)after, name, want)
    {
        const struct summary got = summary_of(g, weights, name, hf_row_of);
        const json_t *grad = json_object_get(grads, name);
        const double most = is_zero(grad) ? rounding_of_steps(grad) : 0;
        const double most_any = contains_key_bias(name) ? rounding_of_steps(grad) : most;

        close_to(sqrt(got.squares), number(want, "l2"), 1e-5 * number(want, "l2") + most_any * sqrt((double)got.numel),
                 name);
        close_to(got.first, number(want, "first"),
                 1e-4 * fabs(number(want, "first")) + (strstr(name, "linear_kv.bias") ? most_any : most), name);
        close_to(got.last, number(want, "last"), 1e-4 * fabs(number(want, "last")) + most, name);
        n++;
    }
    assert_true(n >= g->params.n);
    free(weights);
}

/*
 * Compare five steps of AdamW.  train_pass runs forward and backward of the batch in `arg`, and returns the mean loss.
 */
static inline void check_five_steps(struct meg_model *g, const char *dir,
                                    double train_pass(struct meg_model *g, void *arg), void *arg,
                                    struct hf_row hf_row_of(const char *name, int64_t o))
{
    const struct meg_optim_rates rates = { 1e-3, 1e-3, 0.1 };
    const struct meg_optim_step one_step = { .rates = { rates, rates }, .has_grad_norm = true };
    const struct meg_optim_conf conf = {
        .optimizer = MEG_OPTIMIZER_ADAM, .adam_beta1 = 0.9, .adam_beta2 = 0.95, .adam_eps = 1e-8, .clip_grad = 1
    };
    const struct meg_zero_conf zero = { .num_instances = 1 };
    json_t *expected = golden_json(in_dir(dir, "expected.json")), *want = json_object_get(expected, "adamw");
    struct meg_optim *o = NULL;

    assert_int_equal(meg_optim_create(&o, &conf, &zero, g, NULL), 0);
    for (size_t step = 0; step <= 5; step++) {
        const double loss = json_number_value(json_array_get(json_object_get(want, "loss_before_step_f64"), step));
        const double norm = json_number_value(json_array_get(json_object_get(want, "grad_norm_f64"), step));

        meg_optim_begin(o, 1, false);
        close_to(train_pass(g, arg), loss, 1e-6 * loss, "loss");
        if (step == 5)
            break;
        meg_optim_reduce_grads(o);
        meg_optim_decide(o, &one_step);
        meg_optim_update(o);
        meg_optim_end(o);
        close_to(meg_optim_result(o)->grad_norm, norm, 1e-5 * norm, "norm");
    }
    check_weights(g, json_object_get(want, "after_5_steps"), json_object_get(expected, "grads"), hf_row_of);
    meg_optim_close(o);
    json_decref(expected);
}

#endif
