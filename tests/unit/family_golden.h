/*
 * family_golden.h - a folder of golden/models: its expected numbers, and the model that its config.json and weights
 * are, as the importer reads them.  Tensors are compared under the names of the folder, by the maps of the export.
 */
#ifndef TESTS_FAMILY_GOLDEN_H
#define TESTS_FAMILY_GOLDEN_H
#include <math.h>
#include "ckpt_fixture.h"
#include "golden_device.h"
#include "reference.h"
#include "ckpt/hf/internal.h"
#include "io/json.h"

/* A folder, and the model that its config.json describes. */
struct family_golden {
    const char *name;
    char dir[8192];
    json_t *want;
    struct meg_st *inputs, *expected;
    struct meg_ckpt *c;
    const struct ckpt_hf_family *family;
    struct meg_model_conf m;
    struct meg_params p;
    float *w;
    int64_t s, b, n; /* n = s * b */
};

static inline double number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);

    if (!json_is_number(v))
        fail_msg("no number %s", key);
    return json_number_value(v);
}

static inline double element(const json_t *o, const char *key, size_t i)
{
    const json_t *v = json_array_get(json_object_get(o, key), i);

    if (!json_is_number(v))
        fail_msg("no number %s[%zu]", key, i);
    return json_number_value(v);
}

/* Fail unless |got - want| <= most; NaN fails. */
static inline void close_to(double got, double want, double most, const char *what)
{
    if (!(fabs(got - want) <= most))
        fail_msg("%s: %.10g, wanted %.10g to within %.2g", what, got, want, most);
}

static inline const struct meg_st_tensor *tensor(const struct meg_st *st, const char *name)
{
    const struct meg_st_tensor *t = meg_st_find(st, name);

    if (!t)
        fail_msg("no tensor %s", name);
    return t;
}

/* Return a copy of an [b,s] tensor as [s,b] of f32 or, from int64, int32; the caller frees it. */
static inline void *transposed(const struct family_golden *g, const char *name)
{
    const struct meg_st_tensor *t = tensor(g->inputs, name);
    const bool is_float = strcmp(t->dtype, "F32") == 0;
    void *out = meg_new((size_t)g->n * 4);

    assert_int_equal(meg_st_numel(t), g->n);
    for (int64_t r = 0; r < g->n; r++) {
        const int64_t from = r % g->b * g->s + r / g->b;
        int64_t v;

        if (is_float)
            memcpy((float *)out + r, (const char *)t->data + 4 * from, 4);
        memcpy(&v, (const char *)t->data + (is_float ? 0 : 8 * from), 8);
        if (!is_float)
            ((int32_t *)out)[r] = (int32_t)v;
    }
    return out;
}

static inline struct meg_batch batch_of(const struct family_golden *g, const char *tokens, const char *mask)
{
    struct meg_batch b = { .s = g->s, .b = g->b, .tokens = transposed(g, tokens), .loss_mask = transposed(g, mask) };

    b.labels = transposed(g, "labels");
    b.position_ids = meg_new((size_t)g->n * sizeof *b.position_ids);
    for (int64_t r = 0; r < g->n; r++) {
        b.position_ids[r] = (int32_t)(r / g->b);
        b.num_unmasked += b.loss_mask[r] != 0;
    }
    return b;
}

static inline void free_batch(struct meg_batch *b)
{
    free(b->tokens);
    free(b->labels);
    free(b->position_ids);
    free(b->loss_mask);
}

static inline struct meg_model *create(const struct family_golden *g, const struct meg_model_conf *conf,
                                       bool is_training)
{
    const struct meg_model_run run = { .s = g->s, .b = is_training ? g->b : 1, .is_training = is_training, .seed = 1 };
    struct meg_model *model = NULL;
    struct meg_err e;

    if (meg_model_create(&model, conf, &run, golden_device(), &meg_mesh_one, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(model->params.flat_numel, g->p.flat_numel);
    set_weights(model, g->w);
    return model;
}

/* ---- import ---- */

static inline void link_file(const char *dir, const char *file, const char *as)
{
    char path[sizeof((struct family_golden *)0)->dir + TMP_NAME];

    snprintf(path, sizeof path, "%s/%s", dir, file);
    unlink(as);
    assert_int_equal(symlink(path, as), 0);
}

/* Set g->dir to the folder in tests/data/golden/models or, if it is not there, in MEG_SHARED. */
static inline void find_folder(struct family_golden *g)
{
    char name[TMP_NAME];

    snprintf(name, sizeof name, "models/%s", g->name);
    snprintf(g->dir, sizeof g->dir, "%s", golden(name));
    if (ckpt_path_exists(g->dir, "expected.json"))
        return;
    snprintf(name, sizeof name, "golden/models/%s", g->name);
    snprintf(g->dir, sizeof g->dir, "%s", shared(name));
}

static inline void open_weights(struct family_golden *g, const char *dir)
{
    struct meg_err e;

    g->c = open_ok(dir, MEG_UNSET);
    if (meg_ckpt_model_conf(g->c, &g->m, &e) < 0 || ckpt_hf_find_family(&g->family, g->c->state, "config.json", &e) < 0)
        fail_msg("%s", e.msg);
    g->m.attn.dropout = g->m.hidden_dropout = 0;
    meg_model_params(&g->p, &g->m, &meg_mesh_one);
    g->w = meg_new((size_t)g->p.flat_numel * sizeof *g->w);
    if (load_f32_weights(g->c, &g->p, g->w, &e) < 0)
        fail_msg("%s", e.msg);
}

static inline void close_weights(struct family_golden *g)
{
    meg_ckpt_close(g->c);
    meg_params_free(&g->p);
    free(g->w);
}

static inline void open_golden(struct family_golden *g, const char *name, const char *config)
{
    char path[sizeof g->dir + TMP_NAME];
    const struct meg_st_tensor *t;
    struct meg_err e;

    *g = (struct family_golden){ .name = name };
    find_folder(g);
    meg_remove_tree("in", NULL);
    assert_int_equal(meg_mkdirs("in", &e), 0);
    link_file(g->dir, config, "in/config.json");
    link_file(g->dir, "model.safetensors", "in/model.safetensors");
    open_weights(g, "in");
    snprintf(path, sizeof path, "%s/expected.json", g->dir);
    if (meg_json_load(&g->want, path, &e) < 0)
        fail_msg("%s", e.msg);
    snprintf(path, sizeof path, "%s/expected.safetensors", g->dir);
    assert_int_equal(meg_st_open(&g->expected, path, &e), 0);
    snprintf(path, sizeof path, "%s/inputs.safetensors", g->dir);
    assert_int_equal(meg_st_open(&g->inputs, path, &e), 0);
    t = tensor(g->inputs, "tokens");
    g->b = t->dim[0];
    g->s = t->dim[1];
    g->n = g->s * g->b;
}

static inline void close_golden(struct family_golden *g)
{
    meg_st_close(g->inputs);
    meg_st_close(g->expected);
    json_decref(g->want);
    close_weights(g);
}

/* ---- tensors under the names of the folder ---- */

struct foreign {
    char name[CKPT_NAME_CHARS];
    float *v; /* [n] */
    int64_t n;
};

/* Call check(g, tensor, arg) for each foreign tensor of a flat buffer; return the number of tensors. */
static inline int each_foreign(const struct family_golden *g, float *flat,
                               void check(const struct family_golden *g, const struct foreign *f, const void *arg),
                               const void *arg)
{
    const struct meg_ckpt_save_args args = { .model = &g->m, .params = &g->p, .weights = { .data = flat } };
    int count = 0;

    for (int i = 0; i < g->p.n; i++)
        for (const struct ckpt_rename *re = g->c->format->rename; re->native; re++) {
            const struct meg_param *row = &g->p.row[i];
            const struct ckpt_tp_shard shard = { .model = &g->m, .tp_size = 1, .vocab_rows = row->dim[0] };
            struct foreign f = { .n = 1 };
            int64_t dim[MEG_PARAM_MAXDIM];
            struct meg_err e;

            if (!ckpt_foreign_name(g->c->format, re, row->name, g->m.num_layers, false, f.name))
                continue;
            for (int k = ckpt_foreign_shape(dim, &shard, row, re->remap); k-- > 0;)
                f.n *= dim[k];
            f.v = meg_new((size_t)f.n * sizeof *f.v);
            if (ckpt_build_foreign(f.v, &args, &shard, row, re->remap, &e) < 0)
                fail_msg("%s", e.msg);
            check(g, &f, arg);
            free(f.v);
            count++;
        }
    return count;
}

#endif
