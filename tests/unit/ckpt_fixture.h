/* ckpt_fixture.h - a small model with optimizer state to save and load. */
#ifndef CKPT_FIXTURE_H
#define CKPT_FIXTURE_H
#include "ckpt_util.h"

struct ckpt_fixture {
    struct meg_model_conf m;
    const struct meg_mesh *mesh; /* NULL: one rank */
    bool is_async;               /* saved asynchronously */
    struct meg_params p;
    float *w, *exp_avg, *exp_avg_sq;
    const struct meg_lock *lock; /* lock on the directory of the save, or NULL */
};

static inline float *new_params(const struct meg_params *p, int seed)
{
    float *v = meg_new((size_t)p->flat_numel * sizeof *v);

    fill_params(v, p, seed);
    return v;
}

static inline void make_fixture(struct ckpt_fixture *b, int64_t layers, int64_t hidden, int seed)
{
    b->m = small_gpt_conf(layers, hidden);
    b->mesh = &meg_mesh_one;
    b->is_async = false;
    b->lock = NULL;
    meg_model_params(&b->p, &b->m, &meg_mesh_one);
    b->w = new_params(&b->p, seed);
    b->exp_avg = new_params(&b->p, 100 + seed);
    b->exp_avg_sq = new_params(&b->p, 200 + seed);
}

/* Like make_fixture, a SwiGLU model with query groups, so that every type of sharding occurs. */
static inline void make_gated(struct ckpt_fixture *b, int64_t layers, int seed)
{
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, &b->m }, { 0 } };
    struct meg_err e;

    memset(b, 0, sizeof *b);
    meg_opt_defaults(groups);
    b->m.num_layers = layers;
    b->m.hidden_size = 16;
    b->m.mlp.f = 6;
    b->m.attn.a = 4;
    b->m.group_query_attention = true;
    b->m.attn.g = 2;
    b->m.max_position_embeddings = 6;
    b->m.vocab_size = 11;
    b->m.swiglu = true;
    if (meg_model_conf_check(&b->m, &e) < 0)
        fail_msg("%s", e.msg);
    meg_model_params(&b->p, &b->m, &meg_mesh_one);
    b->w = new_params(&b->p, seed);
    b->exp_avg = new_params(&b->p, 100 + seed);
    b->exp_avg_sq = new_params(&b->p, 200 + seed);
}

static inline void free_fixture(struct ckpt_fixture *b)
{
    free(b->w);
    free(b->exp_avg);
    free(b->exp_avg_sq);
    meg_params_free(&b->p);
}

/* Save asynchronously: begin, then poll without blocking until the save ends. */
static inline int save_async(const struct meg_ckpt_save_args *s, struct meg_err *e)
{
    struct meg_ckpt_async_save *saving;
    int r = meg_ckpt_save_begin(&saving, s, e);

    while (r == 0)
        r = meg_ckpt_save_poll(&saving, false, e);
    return r < 0 ? r : 0;
}

static inline int save_fixture(struct ckpt_fixture *b, const char *dir, int64_t iteration, int64_t keep, int64_t loaded,
                               struct meg_err *e)
{
    const struct meg_ckpt_shard slot[] = { { .name = "exp_avg", .data = b->exp_avg },
                                           { .name = "exp_avg_sq", .data = b->exp_avg_sq } };
    struct meg_tok_conf tok = { .type = "GPT2BPETokenizer",
                                .vocab_file = "v",
                                .merge_file = "m",
                                .vocab_size = MEG_UNSET,
                                .vocab_extra_ids = MEG_UNSET };
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, &b->m },
                                           { "tokenizer", meg_tok_opts, &tok },
                                           { 0 } };
    struct meg_ckpt_tokenizer files = { .file = { [MEG_TOK_FILE_VOCAB] = { .s = "{}", .n = 2 },
                                                  [MEG_TOK_FILE_MERGES] = { .s = "a b\n", .n = 4 },
                                                  [MEG_TOK_FILE_MODEL] = { .s = "\n\0x", .n = 3 } },
                                        .eod = 3 };
    struct meg_str options = { 0 };
    json_t *state = json_pack("{s:i,s:f}", "consumed", 40, "x", 0.1);
    struct meg_ckpt_save_args s = { .dir = dir,
                                    .lock = b->lock,
                                    .iteration = iteration,
                                    .model = &b->m,
                                    .mesh = b->mesh ? b->mesh : &meg_mesh_one,
                                    .params = &b->p,
                                    .weights = { .data = b->w },
                                    .optim = slot,
                                    .noptim = 2,
                                    .tok = &files,
                                    .state = state,
                                    .keep_last = keep,
                                    .loaded_iteration = loaded };
    int r;

    meg_opt_dump(groups, &options);
    s.options = options.s;
    r = b->is_async ? save_async(&s, e) : meg_ckpt_save(&s, e);
    meg_str_free(&options);
    json_decref(state);
    return r;
}

static inline void save_ok(struct ckpt_fixture *b, const char *dir, int64_t iteration, int64_t keep, int64_t loaded)
{
    struct meg_err e;

    if (save_fixture(b, dir, iteration, keep, loaded, &e) < 0)
        fail_msg("%s", e.msg);
}

static inline struct meg_ckpt *open_ok(const char *dir, int64_t step)
{
    struct meg_ckpt *c = NULL;
    struct meg_err e;

    if (meg_ckpt_open(&c, dir, step, &e) < 0)
        fail_msg("%s", e.msg);
    return c;
}

/* Export the weights to a Hugging Face directory. */
static inline int export_hf(const struct ckpt_fixture *b, const char *dir, struct meg_err *e)
{
    const struct meg_ckpt_save_args s = { .dir = dir, .model = &b->m, .params = &b->p, .weights = { .data = b->w } };

    return meg_ckpt_export_hf(
        &s, &(const struct meg_ckpt_hf_conf){ .lock = &(struct meg_dir_lock){ .was_empty = true } }, e);
}

static inline void export_hf_ok(const struct ckpt_fixture *b, const char *dir)
{
    struct meg_err e;

    meg_remove_tree(dir, NULL);
    if (export_hf(b, dir, &e) < 0)
        fail_msg("%s", e.msg);
}

/* Check that two models have the same options. */
static inline void assert_same_options(const struct meg_model_conf *a, const struct meg_model_conf *b)
{
    struct meg_str was = { 0 }, is = { 0 };

    meg_opt_dump((const struct meg_optgroup[]){ { "", meg_model_opts, (void *)a }, { 0 } }, &was);
    meg_opt_dump((const struct meg_optgroup[]){ { "", meg_model_opts, (void *)b }, { 0 } }, &is);
    assert_string_equal(was.s, is.s);
    meg_str_free(&was);
    meg_str_free(&is);
}

/* Replace config.json of the Hugging Face directory "set", and open the directory. */
static inline int open_with_config(const char *config, struct meg_ckpt **c, struct meg_err *e)
{
    put_file("set/config.json", config, strlen(config));
    return meg_ckpt_open(c, "set", MEG_UNSET, e);
}

/* Check that opening "set" with this config.json fails with MEG_EFORMAT and a message with the given words. */
static inline void assert_config_refused(const char *config, const char *message)
{
    struct meg_ckpt *c;
    struct meg_err e;

    if (open_with_config(config, &c, &e) != MEG_EFORMAT)
        fail_msg("not refused as a format: %s", config);
    assert_contains(e.msg, message);
}

/* Check that exporting to Hugging Face writes nothing, and fails with MEG_EUSAGE and a message with the given words. */
static inline void assert_export_refused(const struct ckpt_fixture *b, const char *message)
{
    struct meg_err e;

    assert_int_equal(export_hf(b, "not", &e), MEG_EUSAGE);
    assert_contains(e.msg, message);
    assert_int_equal(access("not", F_OK), -1);
}

/* Load the weights and the optimizer state of c into b. */
static inline int load_fixture(struct ckpt_fixture *b, const struct meg_ckpt *c, struct meg_err *e)
{
    const struct meg_ckpt_shard slot[] = { { .name = "exp_avg", .data = b->exp_avg },
                                           { .name = "exp_avg_sq", .data = b->exp_avg_sq } };
    int r = load_f32_weights(c, &b->p, b->w, e);

    return r < 0 ? r : meg_ckpt_load(c, &b->p, &meg_mesh_one, slot, 2, e);
}

#endif
