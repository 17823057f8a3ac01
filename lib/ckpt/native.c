/* native.c - open a checkpoint written by meg: manifest.json lists its files, state.json has the options. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/hash.h"
#include "ckpt/torch_dist/open.h"
#include "io/json.h"

/* Transformer Engine's names of norms, accepted in addition to the native names. */
#define LAYER "decoder.layers.#."
static const struct ckpt_rename fused_norms[] = {
    { LAYER "input_layernorm.weight", LAYER "self_attention.linear_qkv.layer_norm_weight", CKPT_SAME },
    { LAYER "input_layernorm.bias", LAYER "self_attention.linear_qkv.layer_norm_bias", CKPT_SAME },
    { LAYER "pre_mlp_layernorm.weight", LAYER "mlp.linear_fc1.layer_norm_weight", CKPT_SAME },
    { LAYER "pre_mlp_layernorm.bias", LAYER "mlp.linear_fc1.layer_norm_bias", CKPT_SAME },
    { 0 }
};
static const struct ckpt_format native = { .name = "native", .rename = fused_norms };

/* Read a metadata file.  Check its size and checksum against `entry`, the object for the file in the manifest. */
static int read_metadata_file(const struct meg_ckpt *c, const char *name, const json_t *entry, struct meg_str *out,
                              struct meg_err *e)
{
    char *path = ckpt_path(c->path, name), hash[33];
    int64_t nbytes = 0;
    const char *expected = NULL;
    int r;

    if ((r = meg_read_regular(path, out, e)) < 0 ||
        (r = meg_json_get_i64(entry, "bytes", MEG_JSON_REQUIRED, &nbytes, name, e)) < 0 ||
        (r = meg_json_get_str(entry, "xxh3_128", MEG_JSON_REQUIRED, &expected, name, e)) < 0)
        goto out;
    meg_xxh3_128_hex(hash, out->s, out->n);
    if (out->n != (size_t)nbytes)
        r = meg_fail(e, MEG_EFORMAT,
                     "%s: size is %zu bytes, but manifest.json has %" PRId64
                     "; the file is damaged or was edited: copy the checkpoint again",
                     path, out->n, nbytes);
    else if (strcmp(hash, expected) != 0)
        r = meg_fail(e, MEG_EFORMAT,
                     "%s: checksum is %s, but manifest.json has %s; the file is damaged or was edited: copy the "
                     "checkpoint again",
                     path, hash, expected);
out:
    free(path);
    return r;
}

static int read_state(struct meg_ckpt *c, const struct meg_str *text, struct meg_err *e)
{
    char *path = ckpt_path(c->path, "state.json");
    struct meg_str options = { 0 };
    int64_t eod = -1, bos = -1;
    json_t *lines, *line;
    size_t i;
    int r;

    c->iteration = MEG_CKPT_RELEASE;
    if ((r = meg_json_parse(&c->state, text->s, text->n, path, e)) < 0 ||
        (r = meg_json_get_i64(c->state, "iteration", MEG_JSON_OPTIONAL, &c->iteration, path, e)) < 0 ||
        (r = meg_json_get_i64(c->state, "vocab_size", MEG_JSON_REQUIRED, &c->vocab_size, path, e)) < 0 ||
        (r = meg_json_get_i64(c->state, "eod_id", MEG_JSON_OPTIONAL, &eod, path, e)) < 0 ||
        (r = meg_json_get_i64(c->state, "bos_id", MEG_JSON_OPTIONAL, &bos, path, e)) < 0 ||
        (r = meg_json_get_array(c->state, "options", MEG_JSON_REQUIRED, &lines, path, e)) < 0)
        goto out;
    c->bos = bos < c->vocab_size ? (int32_t)bos : -1;
    ckpt_add_id(&c->eos_ids, eod, c->vocab_size);
    ckpt_add_ids(&c->eos_ids, json_object_get(c->state, "end_ids"), c->vocab_size);
    meg_str_add(&options, "", 0);
    json_array_foreach(lines, i, line)
    {
        meg_str_printf(&options, "%s\n", json_is_string(line) ? json_string_value(line) : "");
    }
    c->options = options.s;
out:
    free(path);
    return r;
}

/* If `name` is a file of the tokenizer or one of meg_ckpt_extra_files, set its path in c->tok_file or c->extra_file. */
static void set_metadata_path(struct meg_ckpt *c, const char *name)
{
    for (int i = 0; i < MEG_NUM_TOK_FILES; i++)
        if (strcmp(name, meg_tok_files[i].name) == 0)
            c->tok_file[i] = ckpt_path(c->path, name);
    for (int i = 0; i < MEG_CKPT_EXTRA_FILES; i++)
        if (strcmp(name, meg_ckpt_extra_files[i]) == 0)
            c->extra_file[i] = ckpt_path(c->path, name);
}

static int read_metadata_files(struct meg_ckpt *c, json_t *files, struct meg_err *e)
{
    struct meg_str text = { 0 };
    const char *name;
    json_t *entry;
    int r = 0;

    if (!json_object_get(files, "state.json"))
        return meg_fail(e, MEG_EFORMAT, "%s/manifest.json: the entry for state.json is missing", c->path);
    json_object_foreach(files, name, entry)
    {
        text.n = 0;
        if (strchr(name, '/'))
            r = meg_fail(e, MEG_EFORMAT,
                         "%s/manifest.json: the file name '%.100s' contains '/'; expected a file in the same directory",
                         c->path, name);
        else if ((r = read_metadata_file(c, name, entry, &text, e)) == 0 && strcmp(name, "state.json") == 0)
            r = read_state(c, &text, e);
        if (r < 0)
            break;
        set_metadata_path(c, name);
    }
    meg_str_free(&text);
    return r;
}

/* ---- metadata that rank 0 sends to the other ranks ---- */

/* Set *t, except its size in bytes, from an entry of the manifest, which may not agree with the header of the file. */
static int list_tensor(struct meg_st_tensor *t, const char *name, const json_t *entry, struct meg_err *e)
{
    json_t *shape, *dim;
    size_t i;
    int r;

    *t = (struct meg_st_tensor){ .name = name };
    if ((r = meg_json_get_str(entry, "dtype", MEG_JSON_REQUIRED, &t->dtype, name, e)) < 0 ||
        (r = meg_json_get_i64(entry, "offset", MEG_JSON_REQUIRED, &t->file_offset, name, e)) < 0 ||
        (r = meg_json_get_array(entry, "shape", MEG_JSON_REQUIRED, &shape, name, e)) < 0)
        return r;
    if (json_array_size(shape) > MEG_ST_MAXDIM)
        return meg_fail(e, MEG_EFORMAT, "%s: the shape in manifest.json has %zu dimensions, expected at most %d", name,
                        json_array_size(shape), MEG_ST_MAXDIM);
    json_array_foreach(shape, i, dim)
    {
        t->dim[t->ndim++] = json_integer_value(dim);
    }
    return 0;
}

/*
 * Return the last file of c if it has this name; otherwise append a file.  The manifest lists tensors file by file, so
 * earlier files need not be compared.
 */
static struct meg_st *list_file(struct meg_ckpt *c, const char *name)
{
    struct meg_st *st = c->nfiles ? c->file[c->nfiles - 1] : NULL;
    char *path = ckpt_path(c->path, name);

    if (st && strcmp(st->path, path) == 0) {
        free(path);
        return st;
    }
    st = meg_new(sizeof *st);
    st->path = path;
    c->file = meg_realloc_array(c->file, (size_t)c->nfiles + 1, sizeof(struct meg_st *));
    c->file[c->nfiles++] = st;
    return st;
}

/* List a tensor of a file from the manifest, which rank 0 has checked. */
static int add_tensor(struct meg_ckpt *c, const char *file, const char *name, const json_t *entry, struct meg_err *e)
{
    struct meg_st *st = list_file(c, file);
    struct meg_st_tensor *t;
    int r;

    st->t = meg_realloc_array(st->t, (size_t)st->n + 1, sizeof *st->t);
    t = &st->t[st->n];
    if ((r = list_tensor(t, name, entry, e)) < 0)
        return r;
    t->nbytes = meg_st_numel(t) * meg_st_dtype_nbytes(t->dtype);
    st->n++;
    return 0;
}

/*
 * Open the tensor files of the optimizer state (is_optim) or of the weights.  If rank 0 sent the metadata, only list
 * their tensors.
 */
static int open_tensor_files(struct meg_ckpt *c, bool is_optim, struct meg_err *e)
{
    const char *name, *file;
    json_t *entry;
    int r = 0;

    json_object_foreach(c->manifest, name, entry)
    {
        if (ckpt_is_optim_name(name) != is_optim)
            continue;
        if ((r = meg_json_get_str(entry, "file", MEG_JSON_REQUIRED, &file, name, e)) < 0 ||
            (r = c->is_received ? add_tensor(c, file, name, entry, e)
                                : ckpt_add_file(c, file, "manifest.json", name, e)) < 0)
            return r;
    }
    for (int i = 0; r == 0 && c->is_received && i < c->nfiles; i++)
        r = meg_st_sort(c->file[i], e);
    return r;
}

json_t *ckpt_pack_native(const struct meg_ckpt *c)
{
    json_t *files = json_array();

    for (int i = 0; i < MEG_NUM_TOK_FILES; i++)
        if (c->tok_file[i])
            json_array_append_new(files, json_string(meg_tok_files[i].name));
    for (int i = 0; i < MEG_CKPT_EXTRA_FILES; i++)
        if (c->extra_file[i])
            json_array_append_new(files, json_string(meg_ckpt_extra_files[i]));
    return json_pack("{s:s,s:s?,s:I,s:o,s:O,s:O}", "path", c->path, "save_dir", c->save_dir, "step",
                     (json_int_t)c->step, "files", files, "state", c->state, "tensors", c->manifest);
}

int ckpt_unpack_native(struct meg_ckpt *c, const json_t *packed, struct meg_err *e)
{
    static const char from[] = "checkpoint that rank 0 opened";
    const char *path, *save_dir = NULL;
    json_t *files, *state, *tensors, *name;
    struct meg_str text = { 0 };
    size_t i;
    int r;

    c->is_native = true;
    c->format = &native;
    if ((r = meg_json_get_str(packed, "path", MEG_JSON_REQUIRED, &path, from, e)) < 0 ||
        (r = meg_json_get_str(packed, "save_dir", MEG_JSON_OPTIONAL, &save_dir, from, e)) < 0 ||
        (r = meg_json_get_i64(packed, "step", MEG_JSON_REQUIRED, &c->step, from, e)) < 0 ||
        (r = meg_json_get_array(packed, "files", MEG_JSON_REQUIRED, &files, from, e)) < 0 ||
        (r = meg_json_get_object(packed, "state", MEG_JSON_REQUIRED, &state, from, e)) < 0 ||
        (r = meg_json_get_object(packed, "tensors", MEG_JSON_REQUIRED, &tensors, from, e)) < 0)
        return r;
    c->path = meg_strdup(path);
    c->save_dir = save_dir ? meg_strdup(save_dir) : NULL;
    json_array_foreach(files, i, name)
    {
        set_metadata_path(c, json_string_value(name));
    }
    c->manifest = json_incref(tensors);
    meg_json_dump(state, 0, &text);
    if ((r = read_state(c, &text, e)) == 0)
        r = open_tensor_files(c, false, e);
    meg_str_free(&text);
    return r;
}

/* ---- opening ---- */

/* Check that the file has the tensor that an entry of the manifest describes. */
static int check_entry(const struct meg_ckpt *c, const char *name, const json_t *entry, struct meg_err *e)
{
    const char *file = json_string_value(json_object_get(entry, "file"));
    struct meg_st_tensor t;
    int r = list_tensor(&t, name, entry, e);

    for (int i = 0; r == 0 && i < c->nfiles; i++)
        if (strcmp(strrchr(c->file[i]->path, '/') + 1, file) == 0 && meg_st_is_same(meg_st_find(c->file[i], name), &t))
            return 0;
    return r < 0 ? r
                 : meg_fail(e, MEG_EFORMAT,
                            "%s/%.100s: tensor %.200s is missing, or its dtype, shape or offset differs from "
                            "manifest.json; the checkpoint is damaged or was edited: copy it again, or load a "
                            "different iteration with --ckpt-step",
                            c->path, file, name);
}

int ckpt_check_manifest(const struct meg_ckpt *c, bool is_optim, struct meg_err *e)
{
    const char *name;
    json_t *entry;
    int r;

    json_object_foreach(c->manifest, name, entry)
    {
        if (ckpt_is_optim_name(name) == is_optim && (r = check_entry(c, name, entry, e)) < 0)
            return r;
    }
    return 0;
}

int ckpt_open_optim(struct meg_ckpt *out, const struct meg_ckpt *c, struct meg_err *e)
{
    int r = 0;

    *out = *c;
    out->file = NULL;
    out->nfiles = 0;
    out->index = NULL;
    if (c->dist)
        r = ckpt_open_dist_optim(out, c, e);
    else if (c->manifest)
        r = open_tensor_files(out, true, e);
    if (r < 0 || (r = ckpt_index_tensors(out, e)) < 0 ||
        (!c->is_received && (r = ckpt_check_manifest(out, true, e)) < 0))
        ckpt_close_files(out);
    return r;
}

int ckpt_open_native(struct meg_ckpt *c, struct meg_err *e)
{
    char *path = ckpt_path(c->path, "manifest.json");
    json_t *manifest = NULL, *files, *tensors;
    const char *format = "";
    int64_t version = 0;
    int r;

    c->is_native = true;
    c->format = &native;
    if ((r = meg_json_load_regular(&manifest, path, e)) < 0) {
        if (r == MEG_ENOENT)
            r = meg_fail(e, MEG_EFORMAT,
                         "%s: no manifest.json; this is not a meg checkpoint, or the checkpoint is incomplete",
                         c->path);
        goto out;
    }
    if ((r = meg_json_get_str(manifest, "format", MEG_JSON_REQUIRED, &format, path, e)) < 0 ||
        (r = meg_json_get_i64(manifest, "version", MEG_JSON_REQUIRED, &version, path, e)) < 0)
        goto out;
    if (strcmp(format, CKPT_FORMAT) != 0 || version != CKPT_VERSION) {
        r = meg_fail(e, MEG_EFORMAT, "%s: format is '%.40s', version %" PRId64 "; expected '%s', version %d", path,
                     format, version, CKPT_FORMAT, CKPT_VERSION);
        goto out;
    }
    if ((r = meg_json_get_object(manifest, "files", MEG_JSON_REQUIRED, &files, path, e)) < 0 ||
        (r = meg_json_get_object(manifest, "tensors", MEG_JSON_REQUIRED, &tensors, path, e)) < 0 ||
        (r = read_metadata_files(c, files, e)) < 0)
        goto out;
    c->manifest = json_incref(tensors);
    r = open_tensor_files(c, false, e);
out:
    json_decref(manifest);
    free(path);
    return r;
}
