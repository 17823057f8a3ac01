/*
 * family_golden.c - decoders of Hugging Face's model types against independent float64 implementations
 * (golden/models/README.md): each folder is imported, under config.json of transformers 4 and 5, and its logits, loss,
 * gradients, steps of AdamW, variants and greedy text are compared; then it is exported, and imported again.  The
 * gradients and weights are compared under the names of the folder, by the maps of the export.  The tolerances of
 * outputs and gradients are ten times the error of the reference's own float32 run.
 *
 * To add a family, add its folder to `folders`, and options that its variants change to `variants`.
 */
#include "family_golden.h"
#include "infer/generate.h"
#include "optim/optim.h"

static const char *const folders[] = {
    "gpt2-tiny",       "llama-tiny",    "qwen2-tiny",       "qwen3-tiny",         "ernie4_5-tiny", "glm-tiny",
    "seed-oss-tiny",   "stablelm-tiny", "gpt-bigcode-tiny", "granite-tiny",       "olmo-tiny",     "cohere-tiny",
    "gemma-tiny",      "opt-tiny",      "gpt-neox-tiny",    "falcon-tiny",        "glm4-tiny",     "llama-bias-tiny",
    "nemotron-tiny",   "phi-tiny",      "gptj-tiny",        "hunyuan-tiny",       "mistral-tiny",  "phi3-tiny",
    "starcoder2-tiny", "llama31-tiny",  "llama-yarn-tiny",  "ministral3-tiny",    "smollm3-tiny",  "gpt-neo-tiny",
    "gemma2-tiny",     "olmo2-tiny",    "cohere2-tiny",     "exaone4-tiny",       "bloom-tiny",    "mpt-tiny",
    "codegen-tiny",    "gemma3-tiny",   "olmo3-tiny",       "phi3-longrope-tiny", "arcee-tiny",
};

/* Variants of the expected numbers, and the model options that they change; "padded" is checked in every folder. */
static const struct variant {
    const char *folder, *name, *options;
} variants[] = {
    { "gpt2-tiny", "exact-gelu", "no-bias-gelu-fusion = yes" },
    { "gpt2-tiny", "eps-1e-2", "norm-epsilon = 1e-2" },
    { "gptj-tiny", "rotary-all", "rotary-percent = 1" },
    { "llama-tiny", "rotary-percent-0.5", "rotary-percent = 0.5" },
    { "llama-tiny", "rotary-base-500000", "rotary-base = 500000" },
    { "llama-tiny", "rotary-interleaved", "rotary-interleaved = yes" },
    { "llama-tiny", "rotary-interp-4", "rotary-seq-len-interpolation-factor = 4" },
    { "llama-tiny", "rope-scaling-llama3", "use-rope-scaling = yes" },
    { "granite-tiny", "embedding_multiplier", "embedding-multiplier = 1" },
    { "granite-tiny", "logits_scaling", "logit-multiplier = 1" },
    { "granite-tiny", "residual_multiplier", "residual-multiplier = 1" },
    { "granite-tiny", "attention_multiplier", "softmax-scale = 1" },
    { "cohere-tiny", "logit-scale-1", "logit-multiplier = 1" },
    { "gpt-neox-tiny", "no-parallel-residual", "parallel-residual = none" },
    { "llama-tiny", "window-8", "window-size = 8,0" },
    { "gpt2-tiny", "window-8", "window-size = 8,0" },
    { "mistral-tiny", "no-window", "window-size = -1,0" },
    { "mistral-tiny", "window-plus-1", "window-size = 9,0" },
    { "llama-tiny", "rope-scaling-short",
      "use-rope-scaling = yes\nrope-scaling-original-max-position-embeddings = 64" },
};

static const float *expected_grad(const struct family_golden *g, const struct foreign *f)
{
    char name[CKPT_NAME_CHARS + 8];
    const struct meg_st_tensor *t;

    snprintf(name, sizeof name, "grad.%s", f->name);
    t = tensor(g->expected, name);
    assert_int_equal(meg_st_numel(t), f->n);
    return t->data;
}

static void check_grad(const struct family_golden *g, const struct foreign *f, const void *arg)
{
    const json_t *row = json_object_get(json_object_get(g->want, "grads"), f->name);
    const double most = 10 * number(row, "f32_max_abs_err");
    const float *want = expected_grad(g, f);

    (void)arg;
    for (int64_t i = 0; i < f->n; i++)
        close_to(f->v[i], want[i], most, f->name);
}

/*
 * The gradient of a key bias, to which softmax is invariant, is 0, and its rounding errors are at most e.  A step of
 * AdamW then moves the weight by at most lr * e / (e + eps), and five steps by `rounding`.  Return whether an element
 * of the tensor described by `row` has such a gradient: the reference has its own rounding error or, if all elements
 * have such gradients, possibly 0.
 */
static bool has_only_rounding(const json_t *row, double grad)
{
    return fabs(grad) < 1e-12 && (grad != 0 || number(row, "max_abs") < 1e-12);
}

static void check_stepped(const struct family_golden *g, const struct foreign *f, const void *arg)
{
    const json_t *want = json_object_get(arg, f->name);
    const json_t *row = json_object_get(json_object_get(g->want, "grads"), f->name);
    const double e = 10 * number(row, "f32_max_abs_err"), rounding = 5 * 1e-3 * e / (e + 1e-8);
    const double l2 = number(want, "l2"), first = number(want, "first"), last = number(want, "last");
    const float *grad = expected_grad(g, f);
    double squares = 0, nzero = 0;

    for (int64_t i = 0; i < f->n; i++) {
        squares += (double)f->v[i] * f->v[i];
        nzero += has_only_rounding(row, grad[i]);
    }
    close_to(sqrt(squares), l2, 1e-5 * l2 + rounding * sqrt(nzero), f->name);
    close_to(f->v[0], first, 1e-4 * fabs(first) + has_only_rounding(row, grad[0]) * rounding, f->name);
    close_to(f->v[f->n - 1], last, 1e-4 * fabs(last) + has_only_rounding(row, grad[f->n - 1]) * rounding, f->name);
}

/* ---- numbers ---- */

static double grad_norm(const struct meg_model *model)
{
    float *grad = copy_to_host(model, model->g);
    double squares = 0;

    for (int64_t i = 0; i < model->params.flat_numel; i++)
        squares += (double)grad[i] * (double)grad[i];
    free(grad);
    return sqrt(squares);
}

static double train_pass(struct meg_model *model, const struct meg_batch *x)
{
    const double den = (double)x->num_unmasked;

    return meg_model_forward_backward(model, x, 1 / den) / den;
}

static void check_outputs(const struct family_golden *g)
{
    const double loss = number(g->want, "loss_f64"), norm = number(g->want, "grad_global_norm");
    const double most = 10 * number(json_object_get(g->want, "f32_vs_f64_output_max_abs"), "logits");
    const struct meg_st_tensor *want = tensor(g->expected, "logits");
    struct meg_batch x = batch_of(g, "tokens", "loss_mask");
    struct meg_model *model = create(g, &g->m, true);
    const int64_t v = g->m.vocab_size;
    float *logits = meg_new((size_t)(g->n * v) * sizeof *logits), *grad;

    assert_int_equal(meg_st_numel(want), g->n * v);
    meg_model_logits(model, &x, logits);
    for (int64_t r = 0; r < g->n; r++)
        for (int64_t i = 0; i < v; i++)
            close_to(logits[r * v + i], ((const float *)want->data)[(r % g->b * g->s + r / g->b) * v + i], most,
                     "logit");
    close_to(meg_model_loss(model, &x, NULL) / (double)x.num_unmasked, loss, 1e-6 * loss, "loss");
    close_to(train_pass(model, &x), loss, 1e-6 * loss, "loss while training");
    grad = copy_to_host(model, model->g);
    assert_int_equal(each_foreign(g, grad, check_grad, NULL), json_object_size(json_object_get(g->want, "grads")));
    close_to(grad_norm(model), norm, 1e-6 * norm, "gradient norm");
    free(grad);
    free(logits);
    free_batch(&x);
    meg_model_close(model);
}

static void check_five_steps(const struct family_golden *g)
{
    const struct meg_optim_rates rates = { 1e-3, 1e-3, 0.1 };
    const struct meg_optim_step one_step = { .rates = { rates, rates }, .has_grad_norm = true };
    const struct meg_optim_conf conf = {
        .optimizer = MEG_OPTIMIZER_ADAM, .adam_beta1 = 0.9, .adam_beta2 = 0.95, .adam_eps = 1e-8, .clip_grad = 1
    };
    const struct meg_zero_conf zero = { .num_instances = 1 };
    const json_t *want = json_object_get(g->want, "adamw"), *after = json_object_get(want, "after_5_steps");
    struct meg_batch x = batch_of(g, "tokens", "loss_mask");
    struct meg_model *model = create(g, &g->m, true);
    struct meg_optim *o = NULL;
    float *weights;

    assert_int_equal(meg_optim_create(&o, &conf, &zero, model, NULL), 0);
    for (size_t step = 0; step <= 5; step++) {
        const double loss = element(want, "loss_before_step_f64", step);

        meg_optim_begin(o, 1, false);
        close_to(train_pass(model, &x), loss, 1e-6 * loss, "loss before a step");
        if (step == 5)
            break;
        meg_optim_reduce_grads(o);
        meg_optim_decide(o, &one_step);
        meg_optim_update(o);
        meg_optim_end(o);
        close_to(meg_optim_result(o)->grad_norm, element(want, "grad_norm_f64", step),
                 1e-5 * element(want, "grad_norm_f64", step), "gradient norm of a step");
    }
    weights = copy_to_host(model, model->w);
    assert_int_equal(each_foreign(g, weights, check_stepped, after), json_object_size(after));
    free(weights);
    meg_optim_close(o);
    meg_model_close(model);
    free_batch(&x);
}

static void check_variant(const struct family_golden *g, const char *name, const struct meg_model_conf *conf,
                          struct meg_batch x)
{
    struct meg_model *model = create(g, conf, true);
    int found = 0;
    json_t *v;
    size_t i;

    json_array_foreach(json_object_get(g->want, "variants"), i, v)
    {
        if (strcmp(json_string_value(json_object_get(v, "name")), name) != 0)
            continue;
        found++;
        close_to(train_pass(model, &x), number(v, "loss_f64"), 1e-6 * number(v, "loss_f64"), name);
        close_to(grad_norm(model), number(v, "grad_global_norm_f64"), 1e-5 * number(v, "grad_global_norm_f64"), name);
    }
    if (found != 1)
        fail_msg("expected.json has no variant %s", name);
    meg_model_close(model);
    free_batch(&x);
}

static void check_variants(const struct family_golden *g)
{
    if (meg_st_find(g->inputs, "tokens_padded"))
        check_variant(g, "padded", &g->m, batch_of(g, "tokens_padded", "loss_mask_padded"));
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        struct meg_model_conf conf = g->m;
        const struct meg_optgroup groups[] = { { "model", meg_model_opts, &conf }, { 0 } };
        struct meg_err e;

        if (strcmp(variants[i].folder, g->name) != 0)
            continue;
        if (meg_opt_apply(groups, variants[i].options, "variant", &e) < 0 || meg_model_conf_check(&conf, &e) < 0)
            fail_msg("%s", e.msg);
        check_variant(g, variants[i].name, &conf, batch_of(g, "tokens", "loss_mask"));
    }
}

/* Token ids equal the reference's unless the best two logits of a step differ by less than the error of float32. */
static void check_text(const struct family_golden *g, const json_t *want)
{
    const double most = 10 * number(json_object_get(g->want, "f32_vs_f64_output_max_abs"), "token_loss");
    const json_t *tokens = json_object_get(want, "greedy_tokens");
    const struct meg_request request = { .max_tokens = (int64_t)json_array_size(tokens),
                                         .sampling = { .greedy = true, .temperature = 1 } };
    struct meg_continuation c = { .request = &request };
    struct meg_model *model = create(g, &g->m, false);
    struct meg_generator *gen = meg_generator_open(model, g->m.vocab_size, NULL, 1, true, 0);
    int32_t prompt[64];
    size_t n = 0;
    json_t *id;
    struct meg_err e;

    assert_true(number(want, "min_top1_top2_gap") > 2 * most);
    json_array_foreach(json_object_get(want, "prompt"), n, id) prompt[n] = (int32_t)json_integer_value(id);
    if (meg_generator_add(gen, prompt, (int64_t)n, &c, &e) < 0)
        fail_msg("%s", e.msg);
    while (meg_generator_active(gen) > 0)
        assert_int_equal(meg_generator_step(gen, &e), 0);
    assert_int_equal(c.n, json_array_size(tokens));
    for (size_t i = 0; i < (size_t)c.n; i++) {
        assert_int_equal(c.ids[i], (int)element(want, "greedy_tokens", i));
        close_to(c.logprob[i], element(want, "greedy_logprobs", i), most, "log-probability");
    }
    meg_continuation_free(&c);
    meg_generator_close(gen);
    meg_model_close(model);
}

static void numbers_of_a_folder(void **state)
{
    struct family_golden g;
    json_t *text;
    size_t i;

    open_golden(&g, *state, "config.json");
    check_outputs(&g);
    check_five_steps(&g);
    check_variants(&g);
    json_array_foreach(json_object_get(g.want, "generate"), i, text) check_text(&g, text);
    close_golden(&g);
}

/* ---- other files of the same model ---- */

static void assert_same_model(const struct family_golden *a, const struct family_golden *b)
{
    struct meg_str lost = { 0 };

    if (ckpt_list_lost_options(&lost, &a->m, &b->m) > 0)
        fail_msg("%s: %s", a->name, lost.s);
    assert_int_equal(a->m.vocab_size, b->m.vocab_size);
    assert_int_equal(a->p.flat_numel, b->p.flat_numel);
    assert_memory_equal(a->w, b->w, (size_t)a->p.flat_numel * sizeof *a->w);
}

static void config_json_of_transformers_5_is_the_same_model(void **state)
{
    struct family_golden g, v5;

    open_golden(&g, *state, "config.json");
    if (ckpt_path_exists(g.dir, "config-v5.json")) {
        open_golden(&v5, *state, "config-v5.json");
        assert_same_model(&g, &v5);
        close_golden(&v5);
    }
    close_golden(&g);
}

/* Check that the file `out` has the weights of the folder, byte for byte. */
static void check_tensors(const struct family_golden *g, const char *out)
{
    const struct meg_st *in = g->c->file[0];
    struct meg_st *st;
    struct meg_err e;
    int n = 0;

    assert_int_equal(meg_st_open(&st, out, &e), 0);
    for (int i = 0; i < in->n; i++) {
        const struct meg_st_tensor *t;

        if (ckpt_is_ignored(g->c->format, in->t[i].name))
            continue;
        t = tensor(st, in->t[i].name);
        assert_string_equal(t->dtype, in->t[i].dtype);
        assert_int_equal(t->ndim, in->t[i].ndim);
        assert_memory_equal(t->dim, in->t[i].dim, (size_t)t->ndim * sizeof *t->dim);
        assert_memory_equal(t->data, in->t[i].data, (size_t)t->nbytes);
        n++;
    }
    assert_int_equal(st->n, n);
    meg_st_close(st);
}

/* Return whether config.json describes the same model without this member. */
static bool is_harmless(const struct family_golden *g, const char *key)
{
    json_t *without = json_copy(g->c->state);
    struct meg_model_conf m;
    bool is_same;

    json_object_del(without, key);
    is_same = ckpt_hf_read_config(&m, g->family, without, "config.json", NULL) == 0 &&
              meg_model_conf_check(&m, NULL) == 0 && ckpt_list_lost_options(NULL, &g->m, &m) == 0;
    json_decref(without);
    return is_same;
}

/* Return whether w equals v, as numbers, or has at least the members of v. */
static bool holds(const json_t *v, const json_t *w)
{
    const char *key;
    json_t *member;

    if (!json_is_object(v) || !json_is_object(w))
        return json_equal(v, w) ||
               (json_is_number(v) && json_is_number(w) && json_number_value(v) == json_number_value(w));
    json_object_foreach((json_t *)v, key, member) if (!holds(member, json_object_get(w, key))) return false;
    return true;
}

/* Check that the family writes the members of the folder, but for those that do not affect the model. */
static void check_config(const struct family_golden *g, const json_t *config)
{
    const char *key;
    json_t *v;

    json_object_foreach(g->c->state, key, v)
    {
        const json_t *w = json_object_get(config, key);

        if (w && !json_is_null(v) ? !holds(v, w) : !is_harmless(g, key))
            fail_msg("%s: %s differs", g->name, key);
    }
}

static void an_export_has_the_bytes_of_the_import(void **state)
{
    struct family_golden g, again = { 0 };
    struct meg_ckpt_save_args s = { .dir = "out" };
    const struct meg_ckpt_hf_conf to = { .lock = &(struct meg_dir_lock){ .was_empty = true } };
    struct meg_err e;
    json_t *config;

    open_golden(&g, *state, "config.json");
    s = (struct meg_ckpt_save_args){ .dir = "out", .model = &g.m, .params = &g.p, .weights = { .data = g.w } };
    meg_remove_tree("out", NULL);
    assert_int_equal(meg_mkdirs("out", &e), 0);
    config = ckpt_hf_make_config(g.family, &g.m);
    check_config(&g, config);
    assert_int_equal(json_dump_file(config, "out/config.json", 0), 0);
    json_decref(config);
    if (ckpt_write_hf_weights("out", g.c->format, &s, &to, &e) < 0)
        fail_msg("%s", e.msg);
    check_tensors(&g, "out/model.safetensors");
    open_weights(&again, "out");
    assert_same_model(&g, &again);
    close_weights(&again);
    meg_remove_tree("out", NULL);
    if (meg_ckpt_export_hf(&s, &to, &e) < 0) /* to the first model type that represents the model */
        fail_msg("%s", e.msg);
    open_weights(&again, "out");
    assert_same_model(&g, &again);
    close_weights(&again);
    close_golden(&g);
}

int main(void)
{
    enum { N = sizeof folders / sizeof *folders };
    static const struct {
        const char *name;
        CMUnitTestFunction run;
    } checks[] = {
        { "logits, gradients, steps, variants, text", numbers_of_a_folder },
        { "config.json of transformers 5", config_json_of_transformers_5_is_the_same_model },
        { "export", an_export_has_the_bytes_of_the_import },
    };
    struct CMUnitTest tests[N * 3];
    static char name[N * 3][TMP_NAME];

    for (size_t i = 0; i < N * 3; i++) {
        snprintf(name[i], sizeof name[i], "%s: %s", folders[i / 3], checks[i % 3].name);
        tests[i] = (struct CMUnitTest){ .name = name[i], .test_func = checks[i % 3].run };
        tests[i].initial_state = (void *)folders[i / 3];
    }
    return _cmocka_run_group_tests("family_golden", tests, N * 3, enter_folder, leave_folder);
}
