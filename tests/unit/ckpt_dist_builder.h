/* ckpt_dist_builder.h - build a distributed checkpoint (torch_dist) chunk by chunk: .metadata, an item a chunk. */
#ifndef CKPT_DIST_BUILDER_H
#define CKPT_DIST_BUILDER_H
#include "ckpt_fixture.h"
#include "ckpt/megatron/pt_write.h"
#include "ckpt/megatron/zip.h"

#define DIST_CLASSES "torch.distributed.checkpoint.metadata"

struct dist_builder {
    const char *dir;
    const char *transform; /* name in transform_descriptors, or NULL */
    int64_t overlap;       /* bytes before an item that .metadata counts as part of it */
    struct meg_pickle_writer tensors, storage, originals;
    struct meg_file items; /* __0_0.distcp */
    int64_t nitem_bytes;   /* its bytes until now */
    char name[CKPT_NAME_CHARS];
    int ndim;
};

/* Create the directory of a checkpoint, without its previous contents. */
static inline void dist_begin(struct dist_builder *b, const char *dir)
{
    struct meg_err e;
    char path[200];

    *b = (struct dist_builder){ .dir = dir };
    meg_remove_tree(dir, NULL);
    assert_int_equal(meg_mkdirs(dir, &e), 0);
    snprintf(path, sizeof path, "%s/__0_0.distcp", dir);
    assert_int_equal(meg_file_create(&b->items, path, &e), 0);
}

static inline void dist_op(struct meg_pickle_writer *p, const char *codes)
{
    meg_str_add(&p->s, codes, strlen(codes));
}

/* Begin an object whose attributes follow, as in a dict. */
static inline void dist_object_begin(struct meg_pickle_writer *p, const char *module, const char *class)
{
    meg_pickle_put_global(p, module, class);
    dist_op(p, ")\x81}(");
}

static inline void dist_object_end(struct meg_pickle_writer *p)
{
    dist_op(p, "ub");
}

static inline void dist_put_size(struct meg_pickle_writer *p, const int64_t *v, int n)
{
    meg_pickle_put_global(p, "torch", "Size");
    dist_op(p, "((");
    for (int i = 0; i < n; i++)
        meg_pickle_put_int(p, v[i]);
    dist_op(p, "ttR");
}

static inline void dist_tensor_begin(struct dist_builder *b, const char *name, const int64_t *dim, int ndim)
{
    struct meg_pickle_writer *p = &b->tensors;

    snprintf(b->name, sizeof b->name, "%s", name);
    b->ndim = ndim;
    meg_pickle_put_str(p, name);
    dist_object_begin(p, DIST_CLASSES, "TensorStorageMetadata");
    meg_pickle_put_str(p, "properties");
    meg_pickle_put_global(p, DIST_CLASSES, "TensorProperties");
    dist_op(p, ")\x81(");
    meg_pickle_put_global(p, "torch", "float32");
    dist_op(p, "NtbX\4");
    meg_str_add(&p->s, "\0\0\0size", 7);
    dist_put_size(p, dim, ndim);
    meg_pickle_put_str(p, "chunks");
    dist_op(p, "](");
}

static inline void dist_tensor_end(struct dist_builder *b)
{
    dist_op(&b->tensors, "e");
    dist_object_end(&b->tensors);
}

/* Append the item of a tensor v of shape size [ndim]. */
static inline void dist_add_item(struct dist_builder *b, const int64_t *size, int ndim, const float *v)
{
    struct meg_pickle_writer pickle = { 0 };
    struct meg_zip_writer z = { .f = &b->items };
    struct meg_err e;
    int64_t n = 1;

    for (int i = 0; i < ndim; i++)
        n *= size[i];
    meg_pickle_begin(&pickle);
    meg_pickle_put_tensor(&pickle, size, ndim);
    meg_pickle_end(&pickle);
    assert_int_equal(meg_zip_add(&z, "archive/data.pkl", pickle.s.s, pickle.s.n, &e), 0);
    assert_int_equal(meg_zip_add(&z, "archive/data/0", v, (size_t)n * sizeof *v, &e), 0);
    assert_int_equal(meg_zip_finish(&z, &e), 0);
    b->nitem_bytes += (int64_t)z.at;
    meg_zip_writer_free(&z);
    meg_pickle_writer_free(&pickle);
}

/* Add a chunk of the current tensor to .metadata, without an item. */
static inline void dist_list_chunk(struct dist_builder *b, const int64_t *offset, const int64_t *size)
{
    dist_object_begin(&b->tensors, DIST_CLASSES, "ChunkStorageMetadata");
    meg_pickle_put_str(&b->tensors, "offsets");
    dist_put_size(&b->tensors, offset, b->ndim);
    meg_pickle_put_str(&b->tensors, "sizes");
    dist_put_size(&b->tensors, size, b->ndim);
    dist_object_end(&b->tensors);
}

/* Add a chunk of the current tensor with the elements v. */
static inline void dist_add_chunk(struct dist_builder *b, const int64_t *offset, const int64_t *size, const float *v)
{
    const int64_t at = b->nitem_bytes;
    struct meg_pickle_writer *p = &b->storage;

    dist_list_chunk(b, offset, size);
    dist_add_item(b, size, b->ndim, v);
    dist_object_begin(p, DIST_CLASSES, "MetadataIndex");
    meg_pickle_put_str(p, "fqn");
    meg_pickle_put_str(p, b->name);
    meg_pickle_put_str(p, "offset");
    dist_put_size(p, offset, b->ndim);
    dist_object_end(p);
    dist_object_begin(p, "torch.distributed.checkpoint.filesystem", "_StorageInfo");
    meg_pickle_put_str(p, "relative_path");
    meg_pickle_put_str(p, "__0_0.distcp");
    meg_pickle_put_str(p, "offset");
    meg_pickle_put_int(p, at ? at - b->overlap : 0);
    meg_pickle_put_str(p, "length");
    meg_pickle_put_int(p, b->nitem_bytes - at);
    if (b->transform) {
        meg_pickle_put_str(p, "transform_descriptors");
        dist_op(p, "](");
        meg_pickle_put_str(p, b->transform);
        dist_op(p, "e");
    }
    dist_object_end(p);
}

/* Record the shape of which the current tensor is a flattened copy. */
static inline void dist_put_original(struct dist_builder *b, const int64_t *dim, int ndim)
{
    struct meg_pickle_writer *p = &b->originals;

    meg_pickle_put_str(p, b->name);
    meg_pickle_put_dict_begin(p);
    meg_pickle_put_str(p, "nd_reformulated_orig_global_shape");
    dist_op(p, "(");
    for (int i = 0; i < ndim; i++)
        meg_pickle_put_int(p, dim[i]);
    dist_op(p, "t");
    meg_pickle_put_dict_end(p);
}

static inline void dist_put_file(const struct dist_builder *b, const char *name, const char *bytes, size_t n)
{
    char path[200];

    snprintf(path, sizeof path, "%s/%s", b->dir, name);
    put_file(path, bytes, n);
}

/* Write common.pt: the settings of the model m, and the state of a run after 7 iterations. */
static inline void dist_put_common(const struct dist_builder *b, const struct meg_model_conf *m)
{
    const struct {
        const char *name;
        int64_t v;
    } args[] = { { "num_layers", m->num_layers },
                 { "hidden_size", m->hidden_size },
                 { "ffn_hidden_size", m->mlp.f },
                 { "num_attention_heads", m->attn.a },
                 { "num_query_groups", m->attn.g },
                 { "max_position_embeddings", m->max_position_embeddings },
                 { "true_vocab_size", m->vocab_size },
                 { "tensor_model_parallel_size", 1 },
                 { "pipeline_model_parallel_size", 1 },
                 { "consumed_train_samples", 28 },
                 { "seed", 1234 } };
    struct meg_pickle_writer p = { 0 };
    struct meg_file file = { 0 };
    struct meg_zip_writer z = { .f = &file };
    struct meg_err e;
    char path[200];

    meg_pickle_begin(&p);
    meg_pickle_put_dict_begin(&p);
    meg_pickle_put_str(&p, "iteration");
    meg_pickle_put_int(&p, 7);
    meg_pickle_put_str(&p, "args");
    meg_pickle_put_namespace_begin(&p);
    for (size_t i = 0; i < sizeof args / sizeof *args; i++) {
        meg_pickle_put_str(&p, args[i].name);
        meg_pickle_put_int(&p, args[i].v);
    }
    meg_pickle_put_str(&p, "group_query_attention");
    meg_pickle_put_bool(&p, m->group_query_attention);
    meg_pickle_put_str(&p, "swiglu");
    meg_pickle_put_bool(&p, m->swiglu);
    meg_pickle_put_str(&p, "transformer_impl");
    meg_pickle_put_str(&p, "local");
    meg_pickle_put_namespace_end(&p);
    meg_pickle_put_dict_end(&p);
    meg_pickle_end(&p);
    snprintf(path, sizeof path, "%s/common.pt", b->dir);
    assert_int_equal(meg_file_create(&file, path, &e), 0);
    assert_int_equal(meg_zip_add(&z, "common/data.pkl", p.s.s, p.s.n, &e), 0);
    assert_int_equal(meg_zip_finish(&z, &e), 0);
    assert_int_equal(meg_file_commit(&file, &e), 0);
    meg_zip_writer_free(&z);
    meg_pickle_writer_free(&p);
}

/* Write the files of the checkpoint of model m, and free the memory of b. */
static inline void dist_end(struct dist_builder *b, const struct meg_model_conf *m)
{
    static const char complete[] = "{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 1}";
    struct meg_pickle_writer p = { 0 };
    struct meg_err e;

    meg_pickle_begin(&p);
    dist_object_begin(&p, DIST_CLASSES, "Metadata");
    meg_pickle_put_str(&p, "state_dict_metadata");
    meg_pickle_put_dict_begin(&p);
    meg_str_add(&p.s, b->tensors.s.s, b->tensors.s.n);
    meg_pickle_put_dict_end(&p);
    meg_pickle_put_str(&p, "storage_data");
    meg_pickle_put_dict_begin(&p);
    meg_str_add(&p.s, b->storage.s.s, b->storage.s.n);
    meg_pickle_put_dict_end(&p);
    meg_pickle_put_str(&p, "mcore_data");
    meg_pickle_put_dict_begin(&p);
    if (b->originals.s.n)
        meg_str_add(&p.s, b->originals.s.s, b->originals.s.n);
    meg_pickle_put_dict_end(&p);
    dist_object_end(&p);
    meg_pickle_end(&p);
    dist_put_file(b, ".metadata", p.s.s, p.s.n);
    assert_int_equal(meg_file_commit(&b->items, &e), 0);
    dist_put_file(b, "metadata.json", complete, sizeof complete - 1);
    dist_put_common(b, m);
    meg_pickle_writer_free(&p);
    meg_pickle_writer_free(&b->tensors);
    meg_pickle_writer_free(&b->storage);
    meg_pickle_writer_free(&b->originals);
}

#endif
