/* pt.c - find the tensors of a torch.save file in its pickle and its ZIP members. */
#include "ckpt/megatron/pt.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "foreign/foreign.h"

enum { DEPTH_MAX = 16, VISITS_MAX = 1 << 20 };
enum { EXPANDED_MAX = 1 << 30 }; /* maximum bytes of all tensors of a file that have more elements than their storage */

static const struct {
    const char *torch, *name;
    int nbytes;
} storages[] = {
    { "FloatStorage", "F32", 4 },  { "HalfStorage", "F16", 2 }, { "BFloat16Storage", "BF16", 2 },
    { "DoubleStorage", "F64", 8 }, { "LongStorage", "I64", 8 }, { "IntStorage", "I32", 4 },
    { "ShortStorage", "I16", 2 },  { "CharStorage", "I8", 1 },  { "ByteStorage", "U8", 1 },
    { "BoolStorage", "BOOL", 1 },
};
enum { NSTORAGES = sizeof storages / sizeof storages[0] };

/* ---- the ZIP file ---- */

/* Find the member NAME/data.pkl, and set pt->folder to "NAME/".  Return NULL if there is no such member. */
static const struct meg_zip_member *find_pickle(struct meg_pt *pt)
{
    static const char end[] = "/data.pkl";

    for (int i = 0; i < pt->zip.n; i++) {
        const struct meg_zip_member *m = &pt->zip.member[i];
        const char *slash = strchr(m->name, '/');

        if (slash && strcmp(slash, end) == 0) {
            pt->folder = meg_strndup(m->name, (size_t)(slash - m->name) + 1);
            return m;
        }
    }
    return NULL;
}

static int read_pickle(struct meg_pt *pt, struct meg_err *e)
{
    const struct meg_zip_member *m = find_pickle(pt), *order;
    struct meg_str from = { 0 }, name = { 0 };
    int r;

    if (!m)
        return meg_fail(e, MEG_EFORMAT,
                        "%s: the ZIP file has no member NAME/data.pkl; it was not written by torch.save", pt->path);
    meg_str_printf(&from, "%s: member %s", pt->path, m->name);
    meg_str_printf(&name, "%sbyteorder", pt->folder);
    order = meg_zip_find(&pt->zip, name.s);
    if (order && (order->n != 6 || memcmp(order->p, "little", 6) != 0))
        r = meg_fail(e, MEG_EFORMAT, "%s: member %s is '%.*s', expected little", pt->path, name.s,
                     order->n < 20 ? (int)order->n : 20, (const char *)order->p);
    else if (m->n > MEG_PT_PICKLE_MAX)
        r = meg_fail(e, MEG_EFORMAT, "%s: size is %zu bytes, expected at most %d", from.s, m->n, MEG_PT_PICKLE_MAX);
    else
        r = meg_pickle_read(&pt->pickle, m->p, m->n, from.s, e);
    meg_str_free(&from);
    meg_str_free(&name);
    return r;
}

int meg_pt_open(struct meg_pt **out, const char *path, struct meg_err *e)
{
    struct meg_pt *pt = meg_new(sizeof *pt);
    int r;

    pt->path = meg_strdup(path);
    if ((r = meg_mmap_open(&pt->map, path, e)) < 0)
        goto out;
    pt->bytes = pt->map.p;
    pt->n = pt->map.n;
    if ((r = meg_zip_open(&pt->zip, pt->bytes, pt->n, path, e)) == 0)
        r = read_pickle(pt, e);
    if ((r = meg_foreign_explain(r, path, pt->map.p, pt->map.n, MEG_EXPECT_TORCH, e)) < 0)
        goto out;
    *out = pt;
    pt = NULL;
out:
    meg_pt_close(pt);
    return r;
}

int meg_pt_parse(struct meg_pt **out, const char *from, const void *bytes, size_t n, struct meg_err *e)
{
    struct meg_pt *pt = meg_new(sizeof *pt);
    int r;

    pt->path = meg_strdup(from);
    pt->bytes = bytes;
    pt->n = n;
    if ((r = meg_zip_open(&pt->zip, bytes, n, from, e)) == 0 && (r = read_pickle(pt, e)) == 0)
        *out = pt;
    else
        meg_pt_close(pt);
    return r;
}

void meg_pt_close(struct meg_pt *pt)
{
    if (!pt)
        return;
    meg_pickle_free(&pt->pickle);
    meg_zip_free(&pt->zip);
    meg_mmap_close(&pt->map);
    free(pt->folder);
    free(pt->path);
    free(pt);
}

/* ---- tensors ---- */

const char *meg_pt_dtype(const struct meg_py *o)
{
    static const char *const dtypes[][2] = { { "float32", "F32" }, { "float16", "F16" }, { "bfloat16", "BF16" },
                                             { "float64", "F64" }, { "int64", "I64" },   { "int32", "I32" },
                                             { "int16", "I16" },   { "int8", "I8" },     { "uint8", "U8" },
                                             { "bool", "BOOL" } };

    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (meg_py_is_global(o, "torch", dtypes[i][0]))
            return dtypes[i][1];
    return NULL;
}

static bool is_call(const struct meg_py *o, const char *name)
{
    return o && o->type == MEG_PY_OBJECT && meg_py_is_global(o->fn, "torch._utils", name) && o->args &&
           o->args->type == MEG_PY_TUPLE;
}

/*
 * Return the call node that builds a tensor: o, or its first argument if o is a torch.nn.Parameter.  Return NULL if o
 * is neither a tensor nor a parameter.
 */
static const struct meg_py *tensor_call(const struct meg_py *o)
{
    if ((is_call(o, "_rebuild_parameter") || is_call(o, "_rebuild_parameter_with_state")) && o->args->nv > 0)
        o = o->args->v[0];
    return is_call(o, "_rebuild_tensor_v2") || is_call(o, "_rebuild_tensor") ? o : NULL;
}

/* State while one tensor of the pickle is decoded. */
struct view {
    const struct meg_pt *pt;
    const char *name;
    struct meg_st_tensor t;
    int64_t stride[MEG_ST_MAXDIM];
    int64_t first, storage_numel; /* index of the first element in the storage; number of elements of the storage */
    int nbytes;                   /* bytes per element */
    const struct meg_zip_member *member;
    struct meg_err *e;
};

static int bad(const struct view *v, const char *why)
{
    return meg_fail(v->e, MEG_EFORMAT, "%s: tensor %.200s: %s", v->pt->path, v->name, why);
}

int meg_pt_sizes(const struct meg_py *o, int64_t out[MEG_ST_MAXDIM])
{
    if (o && o->type == MEG_PY_OBJECT && meg_py_is_global(o->fn, "torch", "Size") && o->args &&
        o->args->type == MEG_PY_TUPLE && o->args->nv == 1)
        o = o->args->v[0];
    if (!o || o->type != MEG_PY_TUPLE || o->nv > MEG_ST_MAXDIM)
        return -1;
    for (size_t i = 0; i < o->nv; i++)
        if (!meg_py_int(o->v[i], &out[i]) || out[i] < 0)
            return -1;
    return (int)o->nv;
}

/* Decode the persistent id of a storage: ("storage", class, key, device, elements). */
static int find_storage(struct view *v, const struct meg_py *id)
{
    const struct meg_py *t = id && id->type == MEG_PY_PERSID ? id->args : NULL;
    struct meg_str name = { 0 };
    int i = 0, r = 0;

    if (!t || t->type != MEG_PY_TUPLE || t->nv < 5 || !meg_py_is_str(t->v[0], "storage") ||
        t->v[2]->type != MEG_PY_STR || !meg_py_int(t->v[4], &v->storage_numel) || v->storage_numel < 0)
        return bad(v, "the storage is not in the format of torch.save");
    while (i < NSTORAGES && !meg_py_is_global(t->v[1], "torch", storages[i].torch))
        i++;
    if (i == NSTORAGES)
        return bad(v, "the storage type is not supported; convert the tensor to float32, float16 or bfloat16");
    v->t.dtype = storages[i].name;
    v->nbytes = storages[i].nbytes;
    meg_str_printf(&name, "%sdata/%.*s", v->pt->folder, (int)(t->v[2]->n < 100 ? t->v[2]->n : 100), t->v[2]->s);
    v->member = meg_zip_find(&v->pt->zip, name.s);
    if (!v->member)
        r = meg_fail(v->e, MEG_EFORMAT, "%s: tensor %.200s: the ZIP file has no member %s", v->pt->path, v->name,
                     name.s);
    else if ((size_t)v->storage_numel > v->member->n / (size_t)v->nbytes)
        r = meg_fail(v->e, MEG_EFORMAT,
                     "%s: tensor %.200s: member %s has %zu bytes, too few for %" PRId64 " elements of %s", v->pt->path,
                     v->name, name.s, v->member->n, v->storage_numel, v->t.dtype);
    meg_str_free(&name);
    return r;
}

/*
 * Return whether all elements are inside the storage.  The tensor may have more elements than the storage, up to
 * EXPANDED_MAX bytes: torch.Tensor.expand returns such a tensor, with stride 0.
 */
static bool fits(const struct view *v)
{
    int64_t last = v->first, numel = 1, reach;

    for (int i = 0; i < v->t.ndim; i++)
        if (__builtin_mul_overflow(numel, v->t.dim[i], &numel))
            return false;
    if (numel == 0)
        return true;
    for (int i = 0; i < v->t.ndim; i++)
        if (__builtin_mul_overflow(v->t.dim[i] - 1, v->stride[i], &reach) || __builtin_add_overflow(last, reach, &last))
            return false;
    return last < v->storage_numel && (numel <= v->storage_numel || numel <= EXPANDED_MAX / v->nbytes);
}

static bool is_contiguous(const struct view *v)
{
    int64_t n = 1;

    for (int i = v->t.ndim; i-- > 0; n *= v->t.dim[i])
        if (v->t.dim[i] > 1 && v->stride[i] != n)
            return false;
    return true;
}

/* Create a view of the elements; st owns it. */
static const struct meg_st_view *add_view(struct meg_st *st, const struct view *v)
{
    struct meg_st_view *out = meg_new(sizeof *out);

    out->first = v->t.data;
    memcpy(out->stride, v->stride, sizeof out->stride);
    out->nbytes = v->nbytes;
    meg_st_own(st, out);
    return out;
}

static int add_tensor(struct meg_st *st, const struct meg_pt *pt, const struct meg_py *o, const char *name,
                      struct meg_err *e)
{
    const struct meg_py *args = tensor_call(o)->args;
    struct view v = { .pt = pt, .name = name, .e = e };
    char *copy;
    int r;

    if (args->nv < 4 || !meg_py_int(args->v[1], &v.first) || v.first < 0)
        return bad(&v, "the entry in data.pkl is not in the format of torch.save");
    v.t.ndim = meg_pt_sizes(args->v[2], v.t.dim);
    if (v.t.ndim < 0 || meg_pt_sizes(args->v[3], v.stride) != v.t.ndim)
        return bad(&v, "size and stride must have equal lengths of at most 8");
    if ((r = find_storage(&v, args->v[0])) < 0)
        return r;
    if (!fits(&v))
        return meg_fail(e, MEG_EFORMAT, "%s: tensor %.200s exceeds the %" PRId64 " elements of member %s", pt->path,
                        name, v.storage_numel, v.member->name);
    v.t.nbytes = meg_st_numel(&v.t) * v.nbytes;
    v.t.data = v.member->p + (v.t.nbytes ? v.first * v.nbytes : 0);
    v.t.file_offset = (const unsigned char *)v.t.data - pt->bytes;
    v.t.container_data = v.member->crc ? v.member->p : NULL;
    v.t.container_nbytes = v.member->n;
    v.t.crc = v.member->crc;
    if (v.t.nbytes && !is_contiguous(&v)) {
        v.t.view = add_view(st, &v);
        v.t.data = NULL;
    }
    copy = meg_strdup(name);
    meg_st_own(st, copy);
    v.t.name = copy;
    st->t = meg_realloc_array(st->t, (size_t)st->n + 1, sizeof *st->t);
    st->t[st->n++] = v.t;
    return 0;
}

int meg_pt_tensor(struct meg_st *st, const struct meg_pt *pt, const struct meg_py *o, const char *name,
                  struct meg_err *e)
{
    const struct meg_st_tensor *t;
    int r;

    if (!tensor_call(o))
        return meg_fail(e, MEG_EFORMAT, "%s: tensor %.200s: member %sdata.pkl does not contain a tensor", pt->path,
                        name, pt->folder);
    if ((r = add_tensor(st, pt, o, name, e)) < 0)
        return r;
    t = &st->t[st->n - 1];
    if ((uint64_t)t->nbytes > t->container_nbytes)
        r = meg_fail(e, MEG_EFORMAT, "%s: tensor %.200s has %" PRId64 " bytes, but its storage has only %zu", pt->path,
                     name, t->nbytes, t->container_nbytes);
    return r;
}

/* A traversal of nested dicts. */
struct traversal {
    struct meg_st *st;
    const struct meg_pt *pt;
    struct meg_str name;
    int depth, visits;
    struct meg_err *e;
};

static int traverse(struct traversal *w, const struct meg_py *o)
{
    const size_t n = w->name.n;
    int r = 0;

    if (w->depth == DEPTH_MAX)
        return meg_fail(w->e, MEG_EFORMAT, "%s: dicts are nested more than %d levels deep at %.200s", w->pt->path,
                        DEPTH_MAX, w->name.s);
    w->depth++;
    for (size_t i = 0; r == 0 && i + 1 < o->nv; i += 2) {
        const struct meg_py *key = o->v[i], *value = o->v[i + 1];
        const bool is_dict = value->type == MEG_PY_DICT || (value->type == MEG_PY_OBJECT && value->nv);

        if (w->visits++ == VISITS_MAX)
            r = meg_fail(w->e, MEG_EFORMAT, "%s: the dicts have more than %d entries in total", w->pt->path,
                         VISITS_MAX);
        if (r < 0 || key->type != MEG_PY_STR || memchr(key->s, 0, key->n))
            continue;
        meg_str_printf(&w->name, "%s", n ? "." : "");
        meg_str_add(&w->name, key->s, key->n);
        if (tensor_call(value))
            r = add_tensor(w->st, w->pt, value, w->name.s, w->e);
        else if (is_dict)
            r = traverse(w, value);
        w->name.n = n;
        w->name.s[n] = 0;
    }
    w->depth--;
    return r;
}

/*
 * Check that the tensors from index `first` on have at most twice the bytes of the file.  The factor 2 allows two tied
 * weights to use the same storage.  Tensors with more elements than their storage may have EXPANDED_MAX bytes together.
 * Without a limit, a small file could request any amount of memory.
 */
static int check_total(const struct meg_st *st, int first, const struct meg_pt *pt, struct meg_err *e)
{
    const int64_t max = 2 * (int64_t)pt->n;
    int64_t sum = 0, expanded = 0;

    for (int i = first; i < st->n && sum <= max && expanded <= EXPANDED_MAX; i++) {
        const struct meg_st_tensor *t = &st->t[i]; /* at most the size of a member or EXPANDED_MAX: no overflow */

        if (t->nbytes > (int64_t)t->container_nbytes)
            expanded += t->nbytes;
        else
            sum += t->nbytes;
    }
    if (expanded > EXPANDED_MAX)
        return meg_fail(e, MEG_EFORMAT,
                        "%s: tensors with more elements than their storage have more than %d bytes together; save "
                        "contiguous tensors",
                        pt->path, EXPANDED_MAX);
    if (sum <= max)
        return 0;
    return meg_fail(e, MEG_EFORMAT,
                    "%s: the tensors have more than %" PRId64 " bytes, but the file has only %zu: too many tensors use "
                    "the same storage",
                    pt->path, max, pt->n);
}

int meg_pt_tensors(struct meg_st *st, const struct meg_pt *pt, const struct meg_py *dict, struct meg_err *e)
{
    struct traversal w = { .st = st, .pt = pt, .e = e };
    const int first = st->n;
    int r = traverse(&w, dict);

    meg_str_free(&w.name);
    return r < 0 ? r : check_total(st, first, pt, e);
}

void meg_pt_move(struct meg_st *st, struct meg_pt *pt)
{
    st->map = pt->map;
    pt->map = (struct meg_mmap){ 0 };
}

int meg_pt_open_tensors(struct meg_st **out, const char *path, struct meg_err *e)
{
    struct meg_st *st = meg_new(sizeof *st);
    struct meg_pt *pt = NULL;
    int r;

    st->path = meg_strdup(path);
    if ((r = meg_pt_open(&pt, path, e)) < 0)
        goto out;
    if (pt->pickle.root->type != MEG_PY_DICT && pt->pickle.root->type != MEG_PY_OBJECT) {
        r = meg_fail(e, MEG_EFORMAT, "%s: member %sdata.pkl does not contain a dict of tensors", path, pt->folder);
        goto out;
    }
    if ((r = meg_pt_tensors(st, pt, pt->pickle.root, e)) < 0)
        goto out;
    meg_pt_move(st, pt);
    if ((r = meg_st_sort(st, e)) < 0)
        goto out;
    *out = st;
    st = NULL;
out:
    meg_pt_close(pt);
    meg_st_close(st);
    return r;
}
