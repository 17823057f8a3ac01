/*
 * write.c - write a distributed checkpoint that Megatron core 0.10 to 0.20 reads: .metadata, one file __0_0.distcp with
 * all items, common.pt and metadata.json.  The layers of a tensor are the chunks of one tensor with a leading axis.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ckpt/megatron/megatron.h"
#include "ckpt/megatron/zip.h"
#include "ckpt/torch_dist/torch_dist.h"

#define DCP "torch.distributed.checkpoint."
#define ITEMS "__0_0.distcp"

/* State of an export. */
struct dist_export {
    struct ckpt_export x;
    struct meg_file file;                      /* of the items */
    int64_t at;                                /* its size */
    struct meg_pickle_writer storage, tensors; /* members of two dicts: storage_data and state_dict_metadata */
};

/* ---- items ---- */

/* Begin an item, a file of torch.save, with the pickle of its value. */
static int begin_item(struct meg_zip_writer *z, const struct meg_pickle_writer *value, struct meg_err *e)
{
    const int r = meg_zip_add(z, "archive/data.pkl", value->s.s, value->s.n, e);

    return r < 0 ? r : meg_zip_add(z, "archive/byteorder", "little", 6, e);
}

static int finish_item(struct meg_zip_writer *z, struct meg_err *e)
{
    const int r = meg_zip_add(z, "archive/version", "3\n", 2, e);

    return r < 0 ? r : meg_zip_finish(z, e);
}

/* End an item, and add it to storage_data under the index of an object or, if ndim > 0, of a chunk at an offset. */
static int end_item(struct dist_export *d, struct meg_zip_writer *z, const char *name, const int64_t *offset, int ndim,
                    struct meg_err *e)
{
    struct meg_pickle_writer *p = &d->storage;
    const int r = finish_item(z, e);

    if (r < 0)
        return r;
    meg_pickle_put_object_begin(p, DCP "metadata", "MetadataIndex");
    meg_pickle_put_dict_begin(p);
    meg_pickle_put_str(p, "fqn");
    meg_pickle_put_str(p, name);
    meg_pickle_put_str(p, "index");
    meg_pickle_put_none(p);
    if (ndim > 0) {
        meg_pickle_put_str(p, "offset");
        meg_pickle_put_size(p, offset, ndim);
    }
    meg_pickle_put_dict_end(p);
    meg_pickle_put_object_end(p);

    meg_pickle_put_object_begin(p, DCP "filesystem", "_StorageInfo");
    meg_pickle_put_dict_begin(p);
    meg_pickle_put_str(p, "relative_path");
    meg_pickle_put_str(p, ITEMS);
    meg_pickle_put_str(p, "offset");
    meg_pickle_put_int(p, d->at);
    meg_pickle_put_str(p, "length");
    meg_pickle_put_int(p, (int64_t)z->at);
    meg_pickle_put_dict_end(p);
    meg_pickle_put_object_end(p);
    d->at += (int64_t)z->at;
    return 0;
}

/* Write the item of an object that is not a tensor; `value` is its pickle. */
static int write_object(struct dist_export *d, const char *name, const struct meg_pickle_writer *value,
                        struct meg_err *e)
{
    struct meg_zip_writer z = { .f = &d->file };
    int r = begin_item(&z, value, e);

    if (r == 0)
        r = end_item(d, &z, name, NULL, 0, e);
    meg_pickle_put_str(&d->tensors, name);
    meg_pickle_put_object_begin(&d->tensors, DCP "metadata", "BytesStorageMetadata");
    meg_pickle_put_dict_begin(&d->tensors);
    meg_pickle_put_dict_end(&d->tensors);
    meg_pickle_put_object_end(&d->tensors);
    meg_zip_writer_free(&z);
    return r;
}

/* ---- tensors ---- */

/* A tensor of the checkpoint.  If it is stacked, the first dimension is that of the layers. */
struct stacked {
    char name[CKPT_NAME_CHARS];
    int64_t dim[1 + MEG_PARAM_MAXDIM];
    int ndim;
    int64_t layers; /* number of chunks */
    bool is_in_layer;
};

/* Set *t to the tensor of a parameter, and return the parameter's layer. */
static int64_t tensor_of(struct stacked *t, const struct dist_export *d, const struct meg_param *row)
{
    const struct ckpt_tp_shard shard = { .model = d->x.s->model, .tp_size = 1, .vocab_rows = d->x.vocab_rows };
    struct meg_str name = { 0 };
    int64_t layer = 0;
    int n = 0;

    t->is_in_layer = sscanf(row->name, "decoder.layers.%" SCNd64 ".%n", &layer, &n) == 1 && n > 0;
    t->layers = t->is_in_layer ? d->x.s->model->num_layers : 1;
    t->dim[0] = t->layers;
    t->ndim = t->is_in_layer + ckpt_foreign_shape(t->dim + t->is_in_layer, &shard, row, CKPT_SAME);
    if (t->is_in_layer)
        meg_str_printf(&name, "decoder.layers.");
    if (!t->is_in_layer || !ckpt_replace_prefix(&name, row->name + n, ckpt_te_names, false))
        meg_str_printf(&name, "%s", row->name + n);
    snprintf(t->name, sizeof t->name, "%s", name.s);
    meg_str_free(&name);
    return layer;
}

/* Set the offset and the size of the chunk of a layer. */
static void chunk_of(int64_t offset[1 + MEG_PARAM_MAXDIM], int64_t size[1 + MEG_PARAM_MAXDIM], const struct stacked *t,
                     int64_t layer)
{
    memset(offset, 0, (size_t)t->ndim * sizeof *offset);
    memcpy(size, t->dim, (size_t)t->ndim * sizeof *size);
    if (t->is_in_layer) {
        offset[0] = layer;
        size[0] = 1;
    }
}

/* Add a tensor to state_dict_metadata. */
static void put_tensor(struct meg_pickle_writer *p, const struct stacked *t)
{
    int64_t offset[1 + MEG_PARAM_MAXDIM], size[1 + MEG_PARAM_MAXDIM];

    meg_pickle_put_str(p, t->name);
    meg_pickle_put_object_begin(p, DCP "metadata", "TensorStorageMetadata");
    meg_pickle_put_dict_begin(p);
    meg_pickle_put_str(p, "properties");
    meg_pickle_put_object_begin(p, DCP "metadata", "TensorProperties");
    meg_pickle_put_tuple_begin(p); /* dtype, layout, requires_grad, memory format, pin_memory */
    meg_pickle_put_global(p, "torch", "float32");
    meg_pickle_put_global(p, "torch.serialization", "_get_layout");
    meg_pickle_put_tuple_begin(p);
    meg_pickle_put_str(p, "torch.strided");
    meg_pickle_put_tuple_end(p);
    meg_pickle_put_call(p);
    meg_pickle_put_bool(p, false);
    meg_pickle_put_global(p, DCP "metadata", "_MEM_FORMAT_ENCODING");
    meg_pickle_put_ints(p, (const int64_t[]){ 0 }, 1); /* torch.contiguous_format */
    meg_pickle_put_call(p);
    meg_pickle_put_bool(p, false);
    meg_pickle_put_tuple_end(p);
    meg_pickle_put_object_end(p);
    meg_pickle_put_str(p, "size");
    meg_pickle_put_size(p, t->dim, t->ndim);
    meg_pickle_put_str(p, "chunks");
    meg_pickle_put_list_begin(p);
    for (int64_t i = 0; i < t->layers; i++) {
        chunk_of(offset, size, t, i);
        meg_pickle_put_object_begin(p, DCP "metadata", "ChunkStorageMetadata");
        meg_pickle_put_dict_begin(p);
        meg_pickle_put_str(p, "offsets");
        meg_pickle_put_size(p, offset, t->ndim);
        meg_pickle_put_str(p, "sizes");
        meg_pickle_put_size(p, size, t->ndim);
        meg_pickle_put_dict_end(p);
        meg_pickle_put_object_end(p);
    }
    meg_pickle_put_list_end(p);
    meg_pickle_put_dict_end(p);
    meg_pickle_put_object_end(p);
}

/* Write the item of a parameter, and list its tensor with the first layer. */
static int write_param(struct dist_export *d, const struct meg_param *row, struct meg_err *e)
{
    const struct ckpt_tp_shard shard = { .model = d->x.s->model, .tp_size = 1, .vocab_rows = d->x.vocab_rows };
    struct meg_pickle_writer value = { 0 };
    struct meg_zip_writer z = { .f = &d->file };
    int64_t offset[1 + MEG_PARAM_MAXDIM], size[1 + MEG_PARAM_MAXDIM], numel = 1;
    struct stacked t;
    const int64_t layer = tensor_of(&t, d, row);
    float *v;
    int r;

    chunk_of(offset, size, &t, layer);
    for (int i = 0; i < t.ndim; i++)
        numel *= size[i];
    v = malloc((size_t)numel * sizeof *v);
    if (!v)
        return meg_fail(e, MEG_EFAIL, "out of memory while writing tensor %s", t.name);
    if (layer == 0)
        put_tensor(&d->tensors, &t);
    meg_pickle_begin(&value);
    meg_pickle_put_tensor(&value, size, t.ndim);
    meg_pickle_end(&value);
    if ((r = ckpt_build_foreign(v, d->x.s, &shard, row, CKPT_SAME, e)) == 0 && (r = begin_item(&z, &value, e)) == 0 &&
        (r = meg_zip_add(&z, "archive/data/0", v, (size_t)numel * sizeof *v, e)) == 0)
        r = end_item(d, &z, t.name, offset, t.ndim, e);
    meg_pickle_writer_free(&value);
    meg_zip_writer_free(&z);
    free(v);
    return r;
}

/* ---- other objects ---- */

/* Megatron's linear layers have an extra state, which is None without FP8; loading requires its items. */
static int write_extra_states(struct dist_export *d, struct meg_err *e)
{
    static const char *const linear[] = { "self_attention.linear_proj", "self_attention.linear_qkv", "mlp.linear_fc1",
                                          "mlp.linear_fc2" };
    const int64_t layers = d->x.s->model->num_layers;
    struct meg_pickle_writer none = { 0 };
    int r = 0;

    meg_pickle_begin(&none);
    meg_pickle_put_list_begin(&none);
    meg_pickle_put_none(&none);
    meg_pickle_put_list_end(&none);
    meg_pickle_end(&none);
    for (int64_t i = 0; i < layers; i++)
        for (size_t k = 0; k < sizeof linear / sizeof *linear && r == 0; k++) {
            char name[CKPT_NAME_CHARS];

            snprintf(name, sizeof name, "decoder.layers.%s._extra_state/shard_%" PRId64 "_%" PRId64, linear[k], i,
                     layers);
            r = write_object(d, name, &none, e);
        }
    meg_pickle_writer_free(&none);
    return r;
}

/* Write the dict of the run's settings. */
static void put_common(struct meg_pickle_writer *p, const struct ckpt_export *x)
{
    meg_pickle_put_dict_begin(p);
    meg_pickle_put_str(p, "args");
    ckpt_put_args(p, x);
    meg_pickle_put_str(p, "checkpoint_version");
    meg_pickle_put_float(p, 3.0);
    meg_pickle_put_str(p, "iteration");
    meg_pickle_put_int(p, x->to->iteration > 0 ? x->to->iteration : 0);
    meg_pickle_put_str(p, "num_floating_point_operations_so_far");
    meg_pickle_put_float(p, 0);
    meg_pickle_put_str(p, "content_metadata");
    meg_pickle_put_dict_begin(p);
    meg_pickle_put_str(p, "singleton_local_shards");
    meg_pickle_put_bool(p, false);
    meg_pickle_put_str(p, "chained_optim_avoid_prefix");
    meg_pickle_put_bool(p, true);
    meg_pickle_put_dict_end(p);
    meg_pickle_put_dict_end(p);
}

/* Write the settings as the item that core 0.20 reads, a list of the one dict. */
static int write_common_item(struct dist_export *d, struct meg_err *e)
{
    struct meg_pickle_writer p = { 0 };
    int r;

    meg_pickle_begin(&p);
    meg_pickle_put_list_begin(&p);
    put_common(&p, &d->x);
    meg_pickle_put_list_end(&p);
    meg_pickle_end(&p);
    r = write_object(d, "common_state/shard_0_1", &p, e);
    meg_pickle_writer_free(&p);
    return r;
}

/* Write the settings as the file that earlier releases of core read. */
static int write_common_file(const char *dir, const struct dist_export *d, struct meg_err *e)
{
    struct meg_pickle_writer p = { 0 };
    struct meg_file f = { 0 };
    struct meg_zip_writer z = { .f = &f };
    char *path = ckpt_path(dir, "common.pt");
    int r;

    meg_pickle_begin(&p);
    put_common(&p, &d->x);
    meg_pickle_end(&p);
    if ((r = meg_file_create(&f, path, e)) == 0 && (r = begin_item(&z, &p, e)) == 0 && (r = finish_item(&z, e)) == 0)
        r = meg_file_commit(&f, e);
    meg_file_abandon(&f);
    meg_zip_writer_free(&z);
    meg_pickle_writer_free(&p);
    free(path);
    return r;
}

/* ---- files ---- */

static int write_metadata(const char *dir, const struct dist_export *d, struct meg_err *e)
{
    struct meg_pickle_writer p = { 0 };
    int r;

    meg_pickle_begin(&p);
    meg_pickle_put_object_begin(&p, DCP "metadata", "Metadata");
    meg_pickle_put_dict_begin(&p);
    meg_pickle_put_str(&p, "state_dict_metadata");
    meg_pickle_put_dict_begin(&p);
    meg_str_add(&p.s, d->tensors.s.s, d->tensors.s.n);
    meg_pickle_put_dict_end(&p);
    meg_pickle_put_str(&p, "planner_data");
    meg_pickle_put_none(&p);
    meg_pickle_put_str(&p, "storage_data");
    meg_pickle_put_dict_begin(&p);
    meg_str_add(&p.s, d->storage.s.s, d->storage.s.n);
    meg_pickle_put_dict_end(&p);
    meg_pickle_put_str(&p, "storage_meta");
    meg_pickle_put_none(&p);
    meg_pickle_put_str(&p, "version");
    meg_pickle_put_str(&p, "1.0.0");
    meg_pickle_put_dict_end(&p);
    meg_pickle_put_object_end(&p);
    meg_pickle_end(&p);
    r = ckpt_write_text(dir, ".metadata", &p.s, e);
    meg_pickle_writer_free(&p);
    return r;
}

static int write_folder(const char *dir, struct dist_export *d, struct meg_err *e)
{
    static const char complete[] = "{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 1, "
                                   "\"common_backend\": \"torch\", \"common_backend_version\": 1}";
    const struct meg_params *p = d->x.s->params;
    struct meg_str text = { 0 };
    char *path = ckpt_path(dir, ITEMS);
    int r = meg_file_create(&d->file, path, e);

    for (int i = 0; r == 0 && i < p->n; i++)
        r = write_param(d, &p->row[i], e);
    if (r == 0 && (r = write_extra_states(d, e)) == 0 && (r = write_common_item(d, e)) == 0 &&
        (r = meg_file_commit(&d->file, e)) == 0 && (r = write_metadata(dir, d, e)) == 0 &&
        (r = write_common_file(dir, d, e)) == 0) {
        meg_str_add(&text, complete, sizeof complete - 1);
        r = ckpt_write_text(dir, "metadata.json", &text, e);
    }
    meg_file_abandon(&d->file);
    meg_str_free(&text);
    free(path);
    return r;
}

int meg_ckpt_export_torch_dist(const struct meg_ckpt_save_args *s, const struct meg_ckpt_megatron_conf *to,
                               struct meg_err *e)
{
    struct dist_export d = { .x = { s, to, ckpt_padded_vocab(s->model, to) } };
    char *tmp = NULL;
    int r;

    if (s->model->family != MEG_FAMILY_GPT)
        return meg_fail(e, MEG_EUSAGE, "--saver torch_dist: only GPT models are written in this format");
    if ((r = ckpt_check_written_args(&d.x, e)) == 0 && (r = ckpt_make_folder(&tmp, s->dir, to->iteration, e)) == 0 &&
        (r = write_folder(tmp, &d, e)) == 0)
        r = ckpt_commit(s->dir, tmp, to->iteration, e);
    if (r < 0 && tmp)
        meg_remove_tree(tmp, NULL);
    free(tmp);
    meg_pickle_writer_free(&d.storage);
    meg_pickle_writer_free(&d.tensors);
    return r;
}
