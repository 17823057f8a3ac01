/*
 * Three steps of a complete training run, from options and files to the checkpoint, against the same steps in fp64:
 * initial weights, dropout masks, gradients (central differences of ref_gpt.h), clipping, updates, losses and
 * validation losses. All samples have the same tokens, so that the order of the data does not matter; only their
 * dropout masks differ.
 */
#include <inttypes.h>
#include <jansson.h>
#include "base/hash.h"
#include "base/log.h"
#include "data_util.h"
#include "ckpt/ckpt.h"
#include "ref_gpt.h"
#include "tiny_gpt.h"
#include "train/train.h"

enum { S = 8, H = 8, A = 2, L = 1, F = 16, V = 12, BATCH = 10, STEPS = 3, DOCUMENTS = 10, PERIODS = 20 };

static const int32_t period[S] = { 3, 1, 4, 1, 5, 9, 2, 6 };

/* Options in addition to those of every run, and the resulting hyper-parameters of each step. */
static const struct run {
    const char *name, *options;
    bool is_sgd, is_xavier;
    double beta1, beta2, eps, momentum, clip, hidden_dropout, attention_dropout;
    double lr[STEPS], decoupled_lr[STEPS], weight_decay[STEPS];
} runs[] = {
    { "AdamW with a warm-up",
      "--lr 1e-2 --lr-warmup-iters 2 --lr-warmup-init 1e-3 --decoupled-lr 3e-2 --weight-decay 0.5 --adam-eps 1e-4",
      false,
      false,
      0.9,
      0.999,
      1e-4,
      0,
      1.0,
      0.1,
      0.1,
      { 1e-3, 5.5e-3, 1e-2 },
      { 1e-3, 15.5e-3, 3e-2 },
      { 0.5, 0.5, 0.5 } },
    { "momentum SGD with a growing weight decay",
      "--optimizer sgd --sgd-momentum 0.5 --lr 0.1 --min-lr 0.02 --decoupled-lr 0.2 --decoupled-min-lr 0.05 "
      "--lr-warmup-fraction 0.2 --lr-warmup-init 0.01 --weight-decay-incr-style linear --start-weight-decay 0.1 "
      "--end-weight-decay 0.7 --clip-grad 0.3",
      true,
      false,
      0,
      0,
      0,
      0.5,
      0.3,
      0.1,
      0.1,
      { 0.01, 0.02 + 0.08 * 20 / 24, 0.02 + 0.08 * 10 / 24 },
      { 0.01, 0.05 + 0.15 * 20 / 24, 0.05 + 0.15 * 10 / 24 },
      { 0.1, 0.3, 0.5 } },
    { "other averages, dropouts and initial weights",
      "--lr 2e-2 --lr-decay-style constant --adam-beta1 0.5 --adam-beta2 0.8 --adam-eps 1e-3 "
      "--init-method-xavier-uniform --weight-decay-incr-style cosine --start-weight-decay 0 --end-weight-decay 0.8 "
      "--clip-grad 0 --hidden-dropout 0.3 --attention-dropout 0.2",
      false,
      true,
      0.5,
      0.8,
      1e-3,
      0,
      INFINITY,
      0.3,
      0.2,
      { 2e-2, 2e-2, 2e-2 },
      { 2e-2, 2e-2, 2e-2 },
      { 0, 0.2, 0.6 } },
};

/* ---- the run ---- */

static void write_dataset(void)
{
    struct meg_indexed_writer *w;
    int32_t ids[PERIODS * S];
    struct meg_err e;

    for (int i = 0; i < PERIODS * S; i++)
        ids[i] = period[i % S];
    assert_int_equal(meg_indexed_create(&w, "ids", MEG_IDX_I32, &e), 0);
    for (int i = 0; i < DOCUMENTS; i++) {
        assert_int_equal(indexed_append(w, ids, PERIODS * S, &e), 0);
        meg_indexed_end_document(w);
    }
    assert_int_equal(meg_indexed_commit(&w, 1, &e), 0);
}

static void train(const char *options)
{
    static const char common[] =
        "train --num-layers 1 --hidden-size 8 --ffn-hidden-size 16 --num-attention-heads 2 --seq-length 8 "
        "--max-position-embeddings 8 --micro-batch-size 5 --global-batch-size 10 --train-iters 3 --init-method-std 0.2 "
        "--data-path ids --split 80,20,0 --tokenizer-type NullTokenizer --vocab-size 11 --eval-iters 1 "
        "--eval-interval 100 --log-interval 1 --log-json log --save run --seed 99";
    struct meg_train_job *job = meg_new(sizeof *job);
    struct meg_optgroup groups[MEG_TRAIN_OPTION_GROUPS];
    char line[2000], *argv[120], *save;
    struct meg_err e;
    int argc = 0;

    remove("log");
    remove_tree("run");
    snprintf(line, sizeof line, "%s %s", common, options);
    for (char *word = strtok_r(line, " ", &save); word; word = strtok_r(NULL, " ", &save))
        argv[argc++] = word;
    argv[argc] = NULL;
    meg_train_option_groups(groups, job);
    meg_opt_defaults(groups);
    if (meg_opt_parse_args(groups, argc, argv, &e) < 0 || meg_train(job, groups, &meg_comm_self, &e) < 0)
        fail_msg("%s", e.msg);
    free(job);
}

/* Return the number `key` of line n of the metrics, counted from 0 among the lines of steps or of evaluations. */
static double logged(const char *key, int n, bool is_evaluation)
{
    FILE *f = fopen("log", "r");
    double v = NAN;
    char text[4096];

    assert_non_null(f);
    while (n >= 0 && fgets(text, sizeof text, f)) {
        json_t *line = json_loads(text, 0, NULL);

        if (!!json_object_get(line, "split") == is_evaluation && n-- == 0)
            v = json_number_value(json_object_get(line, key));
        json_decref(line);
    }
    fclose(f);
    return v;
}

static void load_weights(float *w, struct meg_params *p)
{
    struct meg_ckpt_shard slot = { .dtype = MEG_DTYPE_F32, .data = w };
    struct meg_ckpt *c;
    struct meg_err e;

    if (meg_ckpt_open(&c, "run", MEG_UNSET, &e) < 0 || meg_ckpt_load(c, p, &meg_mesh_one, &slot, 1, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(meg_ckpt_iteration(c), STEPS);
    meg_ckpt_close(c);
}

/* ---- the same steps in fp64 ---- */

struct reference {
    struct meg_model_conf conf;
    struct meg_params params;
    int64_t n;
    double *w, *g, *m, *v;
    struct meg_batch x;
    int32_t tokens[S * BATCH], labels[S * BATCH], position[S * BATCH];
    int64_t sample[BATCH];
    struct ref_gpt ref;
};

/*
 * Return an initial value: 1 for norm weights and 0 for biases; for a matrix, normal with standard deviation 0.2,
 * divided by sqrt(2 L) for outputs of sublayers, or, if r->is_xavier, Xavier-uniform.
 */
static double initial(const struct run *r, const struct meg_param *row, int64_t i)
{
    const uint64_t name = meg_xxh3_64(row->name, strlen(row->name));
    const bool is_out = strstr(row->name, "linear_proj") || strstr(row->name, "linear_fc2");

    if (row->ndim == 1)
        return strstr(row->name, "layernorm.weight") ? 1 : 0;
    if (r->is_xavier)
        return sqrt(6.0 / (double)(row->dim[0] + row->dim[1])) *
               (2 * meg_philox_init_uniform(99, name, (uint64_t)i) - 1);
    return 0.2 / (is_out ? sqrt(2 * L) : 1) * meg_philox_init_normal(99, name, (uint64_t)i);
}

static void begin(struct reference *t, const struct run *r)
{
    t->conf = tiny_gpt(L, H, F, A, S, V);
    t->conf.hidden_dropout = r->hidden_dropout;
    t->conf.attn.dropout = r->attention_dropout;
    meg_model_params(&t->params, &t->conf, &meg_mesh_one);
    t->n = t->params.flat_numel;
    t->w = meg_new((size_t)(4 * t->n) * sizeof *t->w);
    t->g = t->w + t->n;
    t->m = t->g + t->n;
    t->v = t->m + t->n;
    for (int i = 0; i < t->params.n; i++)
        for (int64_t j = 0; j < t->params.row[i].numel; j++)
            t->w[t->params.row[i].offset + j] = (float)initial(r, &t->params.row[i], j);
    for (int i = 0; i < S * BATCH; i++) {
        t->position[i] = i / BATCH;
        t->tokens[i] = period[i / BATCH];
        t->labels[i] = period[(i / BATCH + 1) % S];
    }
    t->x =
        (struct meg_batch){ .s = S, .b = BATCH, .tokens = t->tokens, .labels = t->labels, .position_ids = t->position };
    t->ref = (struct ref_gpt){ &t->conf, &t->params, t->w, 99, &t->x };
}

static void end(struct reference *t)
{
    free(t->w);
    meg_params_free(&t->params);
}

/* Return the mean loss of a step's samples; step -1 is an evaluation, without dropout. */
static double loss_of(struct reference *t, int step)
{
    for (int i = 0; i < BATCH; i++)
        t->sample[i] = step * BATCH + i;
    t->x.sample_id = step < 0 ? NULL : t->sample;
    return ref_loss(&t->ref) / (S * BATCH);
}

/* Compute the gradients of a step by central differences, and clip them; return their norm before clipping. */
static double gradients(struct reference *t, const struct run *r, int step)
{
    double sum = 0, norm;

    memset(t->g, 0, (size_t)t->n * sizeof *t->g);
    for (int i = 0; i < t->params.n; i++)
        for (int64_t k = t->params.row[i].offset; k < t->params.row[i].offset + t->params.row[i].numel; k++) {
            const double at = t->w[k], d = 1e-5;

            t->w[k] = at + d;
            t->g[k] = loss_of(t, step);
            t->w[k] = at - d;
            t->g[k] = (t->g[k] - loss_of(t, step)) / (2 * d);
            t->w[k] = at;
            sum += t->g[k] * t->g[k];
        }
    norm = sqrt(sum);
    for (int64_t k = 0; k < t->n && r->clip / (norm + 1e-6) < 1; k++)
        t->g[k] *= r->clip / (norm + 1e-6);
    return norm;
}

static void update(struct reference *t, const struct run *r, int step)
{
    for (int i = 0; i < t->params.n; i++) {
        const struct meg_param *row = &t->params.row[i];
        const double lr = strstr(row->name, "word_embeddings") ? r->decoupled_lr[step] : r->lr[step];
        const double decay = row->ndim > 1 ? r->weight_decay[step] : 0;

        for (int64_t k = row->offset; k < row->offset + row->numel; k++) {
            double *w = &t->w[k], *m = &t->m[k], *v = &t->v[k], g = t->g[k];

            if (r->is_sgd) {
                *m = (step ? r->momentum * *m : 0) + g + decay * *w;
                *w -= lr * *m;
                continue;
            }
            *m = r->beta1 * *m + (1 - r->beta1) * g;
            *v = r->beta2 * *v + (1 - r->beta2) * g * g;
            *w -= lr * (*m / (1 - pow(r->beta1, step + 1)) / (sqrt(*v / (1 - pow(r->beta2, step + 1))) + r->eps) +
                        decay * *w);
        }
    }
}

/* ---- comparison ---- */

static void near(const struct run *r, const char *what, int step, double got, double want)
{
    if (!(fabs(got - want) <= 1e-5 * fabs(want)))
        fail_msg("%s: %s of step %d is %.9g, not %.9g", r->name, what, step + 1, got, want);
}

/*
 * Compare the weights: a step changes them by about the learning rate, with a relative rounding error of 1e-4 in
 * fp32.
 */
static void compare_weights(struct reference *t, const struct run *r)
{
    float *w = meg_new((size_t)t->n * sizeof *w);

    load_weights(w, &t->params);
    for (int i = 0; i < t->params.n; i++) {
        const struct meg_param *row = &t->params.row[i];

        for (int64_t j = 0; j < row->numel; j++) {
            const double got = w[row->offset + j], want = t->w[row->offset + j];

            if (!(fabs(got - want) <= 1e-3 * r->lr[STEPS - 1]))
                fail_msg("%s: element %" PRId64 " of %s is %.9g, not %.9g", r->name, j, row->name, got, want);
        }
    }
    free(w);
}

static void check(const struct run *r)
{
    struct reference t;

    train(r->options);
    begin(&t, r);
    near(r, "validation loss", -1, logged("lm_loss", 0, true), loss_of(&t, -1));
    for (int step = 0; step < STEPS; step++) {
        near(r, "loss", step, logged("lm_loss", step, false), loss_of(&t, step));
        const double norm = gradients(&t, r, step);

        if (isfinite(r->clip))
            near(r, "gradient norm", step, logged("grad_norm", step, false), norm);
        update(&t, r, step);
    }
    compare_weights(&t, r);
    near(r, "validation loss", STEPS - 1, logged("lm_loss", 1, true), loss_of(&t, -1));
    end(&t);
}

static void three_steps_follow_the_formulas(void **state)
{
    (void)state;
    meg_log_set_level(MEG_LOG_WARN);
    write_dataset();
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        check(&runs[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(three_steps_follow_the_formulas) };

    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
