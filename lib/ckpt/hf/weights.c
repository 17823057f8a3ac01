/*
 * weights.c - write the weights of a Hugging Face directory.
 *
 * The weights are in one safetensors file, or in shards of limited size with an index.  Tensors are added to a shard in
 * the order of the parameter table until the next tensor does not fit, as in save_pretrained of transformers.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ckpt/hf/internal.h"
#include "file/file.h"
#include "io/json.h"

/* A foreign tensor, and the parameter to which it belongs. */
struct item {
    const struct meg_param *row;
    enum ckpt_remap remap;
    struct ckpt_tp_shard shard;
    char name[CKPT_NAME_CHARS];
};

/* State of an export to Hugging Face's format. */
struct export
{
    const char *dir;
    const struct meg_ckpt_save_args *s;
    enum meg_dtype dtype;
    struct item *item; /* [nitems] */
    int nitems;
};

static const struct item *item_of(const struct export *x, const char *name)
{
    for (int i = 0; i < x->nitems; i++)
        if (strcmp(x->item[i].name, name) == 0)
            return &x->item[i];
    return NULL;
}

/* Add the foreign tensors of the parameter called `native`, with the values of `row`, to the items of x. */
static void add_items(struct export *x, const struct ckpt_format *f, const struct meg_param *row, const char *native)
{
    const struct meg_model_conf *m = x->s->model;
    const int before = x->nitems;
    struct item it = { .row = row, .shard = { .model = m, .tp_size = 1, .vocab_rows = m->vocab_size } };

    for (const struct ckpt_rename *re = f->rename; re->native; re++)
        if (ckpt_foreign_name(f, re, native, m->num_layers, false, it.name)) {
            it.remap = re->remap;
            x->item = meg_realloc_array(x->item, (size_t)x->nitems + 1, sizeof *x->item);
            x->item[x->nitems++] = it;
        }
    MEG_ASSERT(x->nitems > before);
}

static void list_items(struct export *x, const struct ckpt_format *f)
{
    const struct meg_params *p = x->s->params;

    for (int i = 0; i < p->n; i++)
        add_items(x, f, &p->row[i], p->row[i].name);
    if (f->copies_output_weight && f->copies_output_weight(x->s->model))
        add_items(x, f, meg_params_find(p, "embedding.word_embeddings.weight"), "output_layer.weight");
}

/* Convert the elements v [n] of tensor t to the dtype of the export, and write them. */
static int write_converted(struct meg_file *f, const struct export *x, const struct meg_st_tensor *t, const float *v,
                           int64_t n, struct meg_err *e)
{
    enum { BLOCK = 1 << 20 };
    const int64_t size = (int64_t)meg_dtype_size(x->dtype);
    void *converted = malloc((size_t)(BLOCK * size));
    int r = converted ? 0 : meg_fail(e, MEG_EFAIL, "out of memory while writing tensor %s", t->name);

    for (int64_t i = 0, k; r == 0 && i < n; i += k) {
        k = n - i < BLOCK ? n - i : BLOCK;
        meg_dtype_from_f32(converted, x->dtype, v + i, k);
        r = meg_file_pwrite(f, converted, (size_t)(k * size), t->file_offset + i * size, e);
    }
    free(converted);
    return r;
}

static int write_tensor(struct meg_file *f, const struct export *x, const struct meg_st_tensor *t, struct meg_err *e)
{
    const struct item *it = item_of(x, t->name);
    const int64_t n = meg_st_numel(t);
    float *foreign = malloc((size_t)n * sizeof *foreign);
    int r;

    if (!foreign)
        return meg_fail(e, MEG_EFAIL, "out of memory while writing tensor %s", t->name);
    if ((r = ckpt_build_foreign(foreign, x->s, &it->shard, it->row, it->remap, e)) == 0)
        r = write_converted(f, x, t, foreign, n, e);
    free(foreign);
    return r;
}

/* Write a file of n tensors; t is sorted into the order of the file. */
static int write_file(const struct export *x, const char *name, struct meg_st_tensor *t, int n, struct meg_err *e)
{
    char *path = ckpt_path(x->dir, name);
    struct meg_str header = { 0 };
    struct meg_file f = { 0 };
    int r;

    meg_st_build_header(t, n, true, &header);
    if ((r = meg_file_create(&f, path, e)) < 0 || (r = meg_file_pwrite(&f, header.s, header.n, 0, e)) < 0)
        goto out;
    for (int i = 0; i < n; i++)
        if ((r = write_tensor(&f, x, &t[i], e)) < 0)
            goto out;
    r = meg_file_commit(&f, e);
out:
    meg_file_abandon(&f);
    meg_str_free(&header);
    free(path);
    return r;
}

/*
 * Return how many tensors, from `first` on, are written to one shard: as many as fit in `max` bytes, but at least one;
 * all if `max` is 0.
 */
static int fill_shard(const struct meg_st_tensor *t, int first, int n, int64_t element, int64_t max)
{
    int64_t nbytes = 0;
    int k = first;

    for (; k < n; k++) {
        nbytes += meg_st_numel(&t[k]) * element;
        if (k > first && max > 0 && nbytes > max)
            break;
    }
    return k - first;
}

static int write_index(const struct export *x, json_t *map, int64_t total_nbytes, struct meg_err *e)
{
    json_t *index = json_pack("{s:{s:I},s:O}", "metadata", "total_size", (json_int_t)total_nbytes, "weight_map", map);
    struct meg_str text = { 0 };
    int r;

    meg_json_dump(index, 2, &text);
    meg_str_add(&text, "\n", 1);
    r = ckpt_write_text(x->dir, CKPT_HF_WEIGHTS ".safetensors.index.json", &text, e);
    meg_str_free(&text);
    json_decref(index);
    return r;
}

int ckpt_write_hf_weights(const char *dir, const struct ckpt_format *format, const struct meg_ckpt_save_args *s,
                          const struct meg_ckpt_hf_conf *to, struct meg_err *e)
{
    const int64_t element = (int64_t)meg_dtype_size(to->dtype);
    struct export x = { .dir = dir, .s = s, .dtype = to->dtype };
    json_t *map = json_object();
    char name[64] = CKPT_HF_WEIGHTS ".safetensors";
    struct meg_st_tensor *t;
    int64_t total_nbytes = 0;
    int n, nshards = 0, r = 0;

    list_items(&x, format);
    n = x.nitems;
    t = meg_new((size_t)n * sizeof *t);
    for (int i = 0; i < n; i++) {
        t[i] = (struct meg_st_tensor){ .name = x.item[i].name, .dtype = meg_dtype_name(to->dtype) };
        t[i].ndim = ckpt_foreign_shape(t[i].dim, &x.item[i].shard, x.item[i].row, x.item[i].remap);
        total_nbytes += meg_st_numel(&t[i]) * element;
    }
    for (int i = 0; i < n; i += fill_shard(t, i, n, element, to->shard_bytes))
        nshards++;
    for (int i = 0, k, shard = 1; i < n && r == 0; i += k, shard++) {
        k = fill_shard(t, i, n, element, to->shard_bytes);
        if (nshards > 1)
            snprintf(name, sizeof name, CKPT_HF_WEIGHTS "-%05d-of-%05d.safetensors", shard, nshards);
        for (int j = i; j < i + k; j++)
            json_object_set_new(map, t[j].name, json_string(name));
        r = write_file(&x, name, t + i, k, e);
    }
    if (r == 0 && nshards > 1)
        r = write_index(&x, map, total_nbytes, e);
    json_decref(map);
    free(t);
    free(x.item);
    return r;
}
