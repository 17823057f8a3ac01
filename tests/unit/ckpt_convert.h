/*
 * ckpt_convert.h - helpers of the tests that convert models of several families: create models, change the tensors of
 * Hugging Face directories, write Megatron's files and change their bytes.  A test defines _GNU_SOURCE, for memmem.
 */
#ifndef CKPT_CONVERT_H
#define CKPT_CONVERT_H
#include "ckpt_fixture.h"
#include "golden.h"

/* Set the options of a model to their defaults.  The caller may change them, and then calls end_model. */
static inline void begin_model(struct ckpt_fixture *b)
{
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, &b->m }, { 0 } };

    memset(b, 0, sizeof *b);
    meg_opt_defaults(groups);
}

/* Check the options, and create the weights. */
static inline void end_model(struct ckpt_fixture *b, int seed)
{
    struct meg_err e;

    if (meg_model_conf_check(&b->m, &e) < 0)
        fail_msg("%s", e.msg);
    meg_model_params(&b->p, &b->m, &meg_mesh_one);
    b->w = new_params(&b->p, seed);
}

/* Check that the checkpoint in dir has the weights and the options of a. */
static inline void check_equal(const struct ckpt_fixture *a, const char *dir)
{
    struct ckpt_fixture b = { 0 };
    struct meg_ckpt *c = open_ok(dir, MEG_UNSET);
    struct meg_err e;

    if (meg_ckpt_model_conf(c, &b.m, &e) < 0)
        fail_msg("%s", e.msg);
    meg_model_params(&b.p, &b.m, &meg_mesh_one);
    b.w = new_params(&b.p, 2);
    if (load_f32_weights(c, &b.p, b.w, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(a->p.flat_numel, b.p.flat_numel);
    assert_memory_equal(a->w, b.w, (size_t)a->p.flat_numel * 4);
    assert_same_options(&a->m, &b.m);
    assert_int_equal(b.m.vocab_size, a->m.vocab_size);
    meg_ckpt_close(c);
    free_fixture(&b);
}

/* ---- Hugging Face ---- */

/* Load the directory `from`, and write its weights to `to`. */
static inline void convert_hf(const char *from, const char *to)
{
    struct meg_ckpt *c = open_ok(from, MEG_UNSET);
    struct ckpt_fixture b = { 0 };
    struct meg_err e;

    assert_int_equal(meg_ckpt_model_conf(c, &b.m, &e), 0);
    meg_model_params(&b.p, &b.m, &meg_mesh_one);
    b.w = new_params(&b.p, 1);
    if (load_f32_weights(c, &b.p, b.w, &e) < 0)
        fail_msg("%s", e.msg);
    export_hf_ok(&b, to);
    meg_ckpt_close(c);
    free_fixture(&b);
}

/*
 * Import the folder tests/data/golden/models/NAME and export it again.  Check that the weights have equal bytes, and
 * that the new config.json has all members of the original one.
 */
static inline void assert_folder_is_reproduced(const char *name)
{
    struct meg_str path = { 0 }, was, is;
    json_t *old, *new, *v;
    const char *key;

    meg_str_printf(&path, "models/%s", name);
    convert_hf(golden(path.s), "again");
    meg_str_printf(&path, "/model.safetensors");
    was = read_bytes(golden(path.s));
    is = read_bytes("again/model.safetensors");
    assert_int_equal(was.n, is.n);
    assert_memory_equal(was.s, is.s, is.n);
    path.n = 0;
    meg_str_printf(&path, "models/%s/config.json", name);
    old = golden_json(path.s);
    new = json_load_file("again/config.json", 0, NULL);
    json_object_foreach(old, key, v)
    {
        if (!json_equal(v, json_object_get(new, key)))
            fail_msg("%s: %s differs", name, key);
    }
    json_decref(old);
    json_decref(new);
    meg_str_free(&path);
    meg_str_free(&was);
    meg_str_free(&is);
}

/*
 * Call `change` for each tensor of "out", and write the results and the tensors `more` to "set".  Tensors whose name
 * becomes NULL are omitted.
 */
static inline void change_tensors(void (*change)(struct meg_st_tensor *t), const struct meg_st_tensor *more, int nmore)
{
    struct meg_st_tensor t[200];
    struct meg_str config = read_bytes("out/config.json");
    struct meg_st *st;
    struct meg_err e;
    int n = 0;

    meg_remove_tree("set", NULL);
    assert_int_equal(meg_mkdirs("set", &e), 0);
    put_file("set/config.json", config.s, config.n);
    assert_int_equal(meg_st_open(&st, "out/model.safetensors", &e), 0);
    for (int i = 0; i < st->n; i++) {
        t[n] = st->t[i];
        change(&t[n]);
        n += t[n].name != NULL;
    }
    for (int i = 0; i < nmore; i++)
        t[n++] = more[i];
    put_tensors("set/model.safetensors", t, n, true);
    meg_st_close(st);
    meg_str_free(&config);
}

/* Check that the tensors of "out" are refused after `change`. */
static inline void assert_change_refused(void (*change)(struct meg_st_tensor *t), const char *message)
{
    struct meg_ckpt *c = NULL;
    struct meg_err e;

    change_tensors(change, NULL, 0);
    assert_int_equal(meg_ckpt_open(&c, "set", MEG_UNSET, &e), MEG_EFORMAT);
    assert_contains(e.msg, message);
}

static inline void keep(struct meg_st_tensor *t)
{
    (void)t;
}

/* ---- Megatron ---- */

static inline int export_ranks(const struct ckpt_fixture *b, const char *dir, int64_t t, int64_t p,
                               enum meg_ckpt_names names, struct meg_err *e)
{
    const struct meg_ckpt_save_args s = { .dir = dir, .model = &b->m, .params = &b->p, .weights = { .data = b->w } };
    const struct meg_ckpt_megatron_conf to = { .tensor = t,
                                               .pipeline = p,
                                               .vocab_multiple = 8,
                                               .iteration = 7,
                                               .consumed_samples = 91,
                                               .seq_length = 5,
                                               .decoder_seq_length = 4,
                                               .names = names };

    meg_remove_tree(dir, NULL);
    return meg_ckpt_export_megatron(&s, &to, e);
}

static inline void export_ranks_ok(const struct ckpt_fixture *b, int64_t t, int64_t p, enum meg_ckpt_names names)
{
    struct meg_err e;

    if (export_ranks(b, "out", t, p, names, &e) < 0)
        fail_msg("%s", e.msg);
}

/* Replace each occurrence of from [n] in a file with to [n]; there must be at least one. */
static inline void patch(const char *path, const char *from, const char *to, size_t n)
{
    struct meg_str s = read_bytes(path);
    char *at = memmem(s.s, s.n, from, n);

    assert_non_null(at);
    for (; at; at = memmem(at, s.n - (size_t)(at - s.s), from, n))
        memcpy(at, to, n);
    put_file(path, s.s, s.n);
    meg_str_free(&s);
}

/* Return the elements of a tensor on tensor-parallel rank tp.  Set *dim to its dimensions.  `name` is native. */
static inline const float *tensor_of(const struct meg_ckpt *c, int64_t tp, const char *name, const int64_t **dim)
{
    struct meg_st *st;
    const struct meg_st_tensor *t = ckpt_find_tensor(c, tp, name, &st);

    assert_non_null(t);
    *dim = t->dim;
    return t->data;
}

/* Return how often a pickle has the string `key`. */
static inline int count_key(const struct meg_str *pickle, const char *key)
{
    const size_t n = strlen(key);
    const char *at = pickle->s, *end = pickle->s + pickle->n;
    char op[64] = { 'X', (char)n };
    int count = 0;

    memcpy(op + 5, key, n);
    while ((at = memmem(at, (size_t)(end - at), op, 5 + n))) {
        at++;
        count++;
    }
    return count;
}

#endif
