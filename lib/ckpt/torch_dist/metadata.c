/* metadata.c - read .metadata: the tensors, their chunks, and the items that store the chunks. */
#include "ckpt/torch_dist/metadata.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ckpt/megatron/pt.h"
#include "ckpt/torch_dist/chunks.h"

#define METADATA "torch.distributed.checkpoint.metadata"
#define MEGATRON "megatron.core.dist_checkpointing.strategies.torch"
#define FILESYSTEM "torch.distributed.checkpoint.filesystem"

/* The look-up of an attribute takes a time proportional to their number, and objects may share their attributes. */
enum { REPEATED_MAX = 8, ATTRIBUTES_MAX = 64 };

/* State while the file is read. */
struct reader {
    struct dist_metadata *m;
    const char *path;
    /*
     * Chunks that the remaining tensors may have.  Each chunk has an item, unless the chunk is repeated.  Without a
     * limit, a small file could refer many times to one long list.
     */
    int64_t nchunks_left;
    size_t nnodes; /* Python objects in the file */
    struct meg_err *e;
};

static int __attribute__((format(printf, 2, 3))) broken(const struct reader *rd, const char *fmt, ...)
{
    char text[600];

    MEG_FORMAT_ARGS(text, fmt);
    return meg_fail(rd->e, MEG_EFORMAT, "%s: %s", rd->path, text);
}

/* Return whether o is an object of a class, and has few attributes. */
static bool is_a(const struct meg_py *o, const char *module, const char *class)
{
    return o && o->type == MEG_PY_OBJECT && meg_py_is_global(o->fn, module, class) &&
           (!o->state || o->state->nv <= 2 * ATTRIBUTES_MAX);
}

static bool is_dict(const struct meg_py *o)
{
    return o && (o->type == MEG_PY_DICT || o->type == MEG_PY_OBJECT);
}

/* Check that o is a name of at most 1000 bytes without zero bytes. */
static int check_name(const struct reader *rd, const struct meg_py *o, const char *what)
{
    if (o && o->type == MEG_PY_STR && o->n > 0 && o->n <= 1000 && !memchr(o->s, 0, o->n))
        return 0;
    return broken(rd, "%s is not a string of 1 to 1000 bytes", what);
}

/* ---- state_dict_metadata ---- */

static int read_chunk(const struct reader *rd, struct dist_tensor *t, const struct meg_py *o)
{
    struct dist_chunk *k = &t->chunk[t->nchunks++];

    *k = (struct dist_chunk){ .item = { .file = -1 } };
    if (!is_a(o, METADATA, "ChunkStorageMetadata") || meg_pt_sizes(meg_py_attr(o, "offsets"), k->offset) != t->ndim ||
        meg_pt_sizes(meg_py_attr(o, "sizes"), k->size) != t->ndim)
        return broken(rd, "tensor %.200s: chunk %d has no offsets and sizes of %d dimensions", t->name, t->nchunks - 1,
                      t->ndim);
    return 0;
}

static int read_tensor(struct reader *rd, const struct meg_py *name, const struct meg_py *o)
{
    const struct meg_py *properties = meg_py_attr(o, "properties"), *chunks = meg_py_attr(o, "chunks");
    struct dist_metadata *m = rd->m;
    const int64_t n = m->tensor_names.n;
    struct dist_tensor *t = &m->tensor[n];
    int r = 0;

    if (meg_strtab_add(&m->tensor_names, name->s, (int64_t)name->n) != n)
        return broken(rd, "tensor %.*s is listed twice", name->n < 200 ? (int)name->n : 200, name->s);
    *t = (struct dist_tensor){ .name = meg_strndup(name->s, name->n) };
    if (!is_a(properties, METADATA, "TensorProperties") || !properties->state ||
        properties->state->type != MEG_PY_TUPLE || properties->state->nv < 1)
        return broken(rd, "tensor %.200s has no TensorProperties", t->name);
    t->dtype = meg_pt_dtype(properties->state->v[0]);
    t->ndim = meg_pt_sizes(meg_py_attr(o, "size"), t->dim);
    if (t->ndim < 0)
        return broken(rd, "tensor %.200s has no size of at most %d dimensions", t->name, MEG_ST_MAXDIM);
    if (!chunks || chunks->type != MEG_PY_LIST || (int64_t)chunks->nv > rd->nchunks_left)
        return broken(rd, "tensor %.200s has no list of chunks, or a chunk is repeated more than %d times on average",
                      t->name, REPEATED_MAX);
    rd->nchunks_left -= (int64_t)chunks->nv;
    t->chunk = meg_new(chunks->nv * sizeof *t->chunk);
    for (size_t i = 0; r == 0 && i < chunks->nv; i++)
        r = read_chunk(rd, t, chunks->v[i]);
    if (r < 0 || (r = dist_sort_chunks(t, rd->path, rd->e)) < 0)
        return r;
    t->chunk = meg_realloc_array(t->chunk, (size_t)t->nchunks, sizeof *t->chunk);
    return 0;
}

static int read_entry(struct reader *rd, const struct meg_py *name, const struct meg_py *o)
{
    struct dist_metadata *m = rd->m;
    const int64_t n = m->object_names.n;
    int r = check_name(rd, name, "a key of state_dict_metadata");

    if (r < 0)
        return r;
    if (is_a(o, METADATA, "TensorStorageMetadata"))
        return read_tensor(rd, name, o);
    if (!is_a(o, METADATA, "BytesStorageMetadata"))
        return broken(rd, "%.*s is neither TensorStorageMetadata nor BytesStorageMetadata",
                      name->n < 200 ? (int)name->n : 200, name->s);
    if (meg_strtab_add(&m->object_names, name->s, (int64_t)name->n) != n)
        return broken(rd, "%.*s is listed twice", name->n < 200 ? (int)name->n : 200, name->s);
    m->object[n] = (struct dist_item){ .file = -1 };
    return 0;
}

/* ---- storage_data ---- */

/* Return the index in m of the file that o names, or -1 if o is not the name of a file in the directory. */
static int64_t file_of(struct dist_metadata *m, const struct meg_py *o)
{
    const int64_t n = m->files.n;
    int64_t i;

    if (!o || o->type != MEG_PY_STR || o->n == 0 || o->n > 255 || memchr(o->s, 0, o->n) || memchr(o->s, '/', o->n))
        return -1;
    i = meg_strtab_add(&m->files, o->s, (int64_t)o->n);
    if (i == n) {
        m->path = meg_realloc_array(m->path, (size_t)n + 1, sizeof *m->path);
        m->path[n] = meg_strndup(o->s, o->n);
    }
    return i;
}

static int read_item(struct reader *rd, struct dist_item *item, const char *name, const struct meg_py *info)
{
    const struct meg_py *transforms;
    bool is_list;

    if (!is_a(info, FILESYSTEM, "_StorageInfo") || !meg_py_int(meg_py_attr(info, "offset"), &item->at) ||
        !meg_py_int(meg_py_attr(info, "length"), &item->nbytes) || item->at < 0 || item->nbytes < 0)
        return broken(rd, "%.200s: the entry in storage_data is not a _StorageInfo with offset and length", name);
    transforms = meg_py_attr(info, "transform_descriptors");
    is_list = transforms && (transforms->type == MEG_PY_LIST || transforms->type == MEG_PY_TUPLE);
    if (transforms && transforms->type != MEG_PY_NONE && (!is_list || transforms->nv > 0)) {
        const struct meg_py *first = is_list ? transforms->v[0] : transforms;
        const bool has_name = first->type == MEG_PY_STR && first->n < 40;

        return broken(rd,
                      "%.200s: the item at byte %" PRId64 " is transformed by '%.*s', such as compression; save the "
                      "checkpoint without stream transforms",
                      name, item->at, has_name ? (int)first->n : 0, has_name ? first->s : "");
    }
    item->file = file_of(rd->m, meg_py_attr(info, "relative_path"));
    return item->file >= 0 ? 0
                           : broken(rd, "%.200s: relative_path is not the name of a file in the same directory", name);
}

/* Find the chunk of a tensor that begins at `offset`. */
static struct dist_item *find_chunk(const struct dist_metadata *m, int64_t i, const struct meg_py *offset)
{
    struct dist_tensor *t = &m->tensor[i];
    struct dist_chunk key;
    struct dist_chunk *found;

    if (meg_pt_sizes(offset, key.offset) != t->ndim)
        return NULL;
    found = dist_find_chunk(t, key.offset);
    return found ? &found->item : NULL;
}

static int read_storage(struct reader *rd, const struct meg_py *index, const struct meg_py *info)
{
    struct dist_metadata *m = rd->m;
    struct dist_item *item = NULL;
    const struct meg_py *fqn;
    char name[201];
    int64_t i;
    int r;

    if (!is_a(index, METADATA, "MetadataIndex"))
        return broken(rd, "a key of storage_data is not a MetadataIndex");
    fqn = meg_py_attr(index, "fqn");
    if ((r = check_name(rd, fqn, "fqn of a key of storage_data")) < 0)
        return r;
    snprintf(name, sizeof name, "%.*s", fqn->n < 200 ? (int)fqn->n : 200, fqn->s);
    if ((i = meg_strtab_find(&m->object_names, fqn->s, (int64_t)fqn->n)) >= 0)
        item = &m->object[i];
    else if ((i = meg_strtab_find(&m->tensor_names, fqn->s, (int64_t)fqn->n)) >= 0)
        item = find_chunk(m, i, meg_py_attr(index, "offset"));
    if (!item)
        return broken(rd, "%s: an entry of storage_data matches no chunk in state_dict_metadata", name);
    if (item->file >= 0)
        return broken(rd, "%s: two entries of storage_data are for the same chunk", name);
    return read_item(rd, item, name, info);
}

/* Check that storage_data has an item for each chunk and object. */
static int check_items(const struct reader *rd)
{
    const struct dist_metadata *m = rd->m;
    char at[MEG_ST_SHAPE_CHARS];

    for (int64_t i = 0; i < m->tensor_names.n; i++)
        for (int k = 0; k < m->tensor[i].nchunks; k++)
            if (m->tensor[i].chunk[k].item.file < 0)
                return broken(rd, "tensor %.200s: storage_data has no item for the chunk at %s", m->tensor[i].name,
                              meg_st_shape(at, m->tensor[i].chunk[k].offset, m->tensor[i].ndim));
    for (int64_t i = 0; i < m->object_names.n; i++)
        if (m->object[i].file < 0) {
            const struct meg_str name = meg_strtab_get(&m->object_names, i);

            return broken(rd, "%.*s: storage_data has no item", name.n < 200 ? (int)name.n : 200, name.s);
        }
    return 0;
}

static int by_position(const void *a, const void *b)
{
    const struct dist_item *x = *(const struct dist_item *const *)a, *y = *(const struct dist_item *const *)b;

    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

/* Check that no byte of a file is part of two items. */
static int check_overlap(const struct reader *rd)
{
    const struct dist_metadata *m = rd->m;
    size_t max = (size_t)m->object_names.n, n = 0;
    const struct dist_item **item;
    int r = 0;

    for (int64_t i = 0; i < m->tensor_names.n; i++)
        max += (size_t)m->tensor[i].nchunks;
    item = meg_new(max * sizeof *item + 1);
    for (int64_t i = 0; i < m->tensor_names.n; i++)
        for (int k = 0; k < m->tensor[i].nchunks; k++)
            item[n++] = &m->tensor[i].chunk[k].item;
    for (int64_t i = 0; i < m->object_names.n; i++)
        item[n++] = &m->object[i];
    qsort(item, n, sizeof *item, by_position);
    for (size_t i = 1; r == 0 && i < n; i++)
        if (item[i - 1]->file == item[i]->file && item[i - 1]->nbytes > item[i]->at - item[i - 1]->at)
            r = broken(rd, "the items at bytes %" PRId64 " and %" PRId64 " of %s overlap", item[i - 1]->at, item[i]->at,
                       m->path[item[i]->file]);
    free(item);
    return r;
}

/* ---- mcore_data ---- */

/* Read the original shapes of flattened tensors, which Megatron core 0.10 to 0.15 stores. */
static int read_originals(const struct reader *rd, const struct meg_py *data)
{
    if (!is_dict(data))
        return 0;
    for (size_t i = 0; i + 1 < data->nv; i += 2) {
        const struct meg_py *name = data->v[i];
        const struct meg_py *entry = data->v[i + 1];
        const struct meg_py *shape =
            entry->nv > 2 * ATTRIBUTES_MAX ? NULL : meg_py_get(entry, "nd_reformulated_orig_global_shape");
        const int64_t at =
            name->type == MEG_PY_STR ? meg_strtab_find(&rd->m->tensor_names, name->s, (int64_t)name->n) : -1;

        if (at < 0 || !shape || shape->type == MEG_PY_NONE)
            continue;
        rd->m->tensor[at].noriginal = meg_pt_sizes(shape, rd->m->tensor[at].original);
        if (rd->m->tensor[at].noriginal < 1 || rd->m->tensor[at].noriginal != rd->m->tensor[at].ndim - 1)
            return broken(rd, "tensor %.200s: nd_reformulated_orig_global_shape does not have %d dimensions",
                          rd->m->tensor[at].name, rd->m->tensor[at].ndim - 1);
    }
    return 0;
}

/* ---- the file ---- */

static int read_all(struct reader *rd, const struct meg_py *root)
{
    const struct meg_py *state = meg_py_attr(root, "state_dict_metadata"), *storage = meg_py_attr(root, "storage_data");
    int r = 0;

    if ((!is_a(root, METADATA, "Metadata") && !is_a(root, MEGATRON, "MCoreMetadata")) || !is_dict(state) ||
        !is_dict(storage))
        return broken(rd, "expected a Metadata of torch.distributed.checkpoint with state_dict_metadata and "
                          "storage_data");
    if (state->nv / 2 > rd->nnodes || storage->nv / 2 > rd->nnodes)
        return broken(rd, "state_dict_metadata or storage_data has repeated members");
    rd->nchunks_left = REPEATED_MAX * (int64_t)storage->nv / 2;
    if (rd->nchunks_left > (int64_t)rd->nnodes)
        rd->nchunks_left = (int64_t)rd->nnodes;
    rd->m->tensor = meg_new(state->nv / 2 * sizeof *rd->m->tensor);
    rd->m->object = meg_new(state->nv / 2 * sizeof *rd->m->object);
    for (size_t i = 0; r == 0 && i + 1 < state->nv; i += 2)
        r = read_entry(rd, state->v[i], state->v[i + 1]);
    for (size_t i = 0; r == 0 && i + 1 < storage->nv; i += 2)
        r = read_storage(rd, storage->v[i], storage->v[i + 1]);
    if (r < 0 || (r = check_items(rd)) < 0 || (r = check_overlap(rd)) < 0)
        return r;
    return read_originals(rd, meg_py_attr(root, "mcore_data"));
}

int dist_metadata_read(struct dist_metadata *m, const char *path, struct meg_err *e)
{
    struct reader rd = { .m = m, .path = path, .e = e };
    struct meg_pickle pickle = { 0 };
    struct meg_mmap map = { 0 };
    int r;

    *m = (struct dist_metadata){ 0 };
    if ((r = meg_mmap_open(&map, path, e)) == 0 && map.n > MEG_PT_PICKLE_MAX)
        r = broken(&rd, "size is %zu bytes, expected at most %d", map.n, MEG_PT_PICKLE_MAX);
    if (r == 0 && (r = meg_pickle_read(&pickle, map.p, map.n, path, e)) == 0) {
        rd.nnodes = pickle.nnodes;
        r = read_all(&rd, pickle.root);
    }
    meg_pickle_free(&pickle);
    meg_mmap_close(&map);
    return r;
}

void dist_metadata_free(struct dist_metadata *m)
{
    for (int64_t i = 0; i < m->tensor_names.n; i++) {
        free(m->tensor[i].name);
        free(m->tensor[i].chunk);
    }
    for (int64_t i = 0; i < m->files.n; i++)
        free(m->path[i]);
    free(m->tensor);
    free(m->object);
    free(m->path);
    meg_strtab_free(&m->tensor_names);
    meg_strtab_free(&m->object_names);
    meg_strtab_free(&m->files);
    *m = (struct dist_metadata){ 0 };
}

const struct dist_item *dist_find_object(const struct dist_metadata *m, const char *name)
{
    const int64_t i = meg_strtab_find(&m->object_names, name, (int64_t)strlen(name));

    return i < 0 ? NULL : &m->object[i];
}
