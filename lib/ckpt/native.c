/* native.c - open a checkpoint written by meg: manifest.json lists its files, state.json has the options. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "ckpt/internal.h"
#include "io/json.h"

/* Transformer Engine's names of norms, accepted in addition to the native names. */
/* clang-format off */
#define LAYER "decoder.layers.#."
static const struct ckpt_rename fused_norms[] = {
    { LAYER "input_layernorm.weight", LAYER "self_attention.linear_qkv.layer_norm_weight", CKPT_SAME },
    { LAYER "input_layernorm.bias", LAYER "self_attention.linear_qkv.layer_norm_bias", CKPT_SAME },
    { LAYER "pre_mlp_layernorm.weight", LAYER "mlp.linear_fc1.layer_norm_weight", CKPT_SAME },
    { LAYER "pre_mlp_layernorm.bias", LAYER "mlp.linear_fc1.layer_norm_bias", CKPT_SAME },
    { 0 }
};
/* clang-format on */
static const struct ckpt_format native = { "native", fused_norms, NULL, NULL };

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
        r = meg_fail(e, MEG_EFORMAT, "%s: size is %zu bytes, but manifest.json has %" PRId64, path, out->n, nbytes);
    else if (strcmp(hash, expected) != 0)
        r = meg_fail(e, MEG_EFORMAT, "%s: checksum is %s, but manifest.json has %s; the file is damaged or was edited",
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

static int read_metadata_files(struct meg_ckpt *c, json_t *files, struct meg_err *e)
{
    struct meg_str text = { 0 };
    const char *name;
    json_t *entry;
    int r = 0;

    if (!json_object_get(files, "state.json"))
        return meg_fail(e, MEG_EFORMAT, "%s/manifest.json: no entry for state.json", c->path);
    json_object_foreach(files, name, entry)
    {
        text.n = 0;
        if (strchr(name, '/'))
            r = meg_fail(
                e, MEG_EFORMAT,
                "%s/manifest.json: the name '%.100s' contains '/'; expected the name of a file in this directory",
                c->path, name);
        else if ((r = read_metadata_file(c, name, entry, &text, e)) == 0 && strcmp(name, "state.json") == 0)
            r = read_state(c, &text, e);
        if (r < 0)
            break;
        for (int i = 0; i < MEG_NUM_TOK_FILES; i++)
            if (strcmp(name, meg_tok_files[i].name) == 0)
                c->tok_file[i] = ckpt_path(c->path, name);
        for (int i = 0; i < MEG_CKPT_EXTRA_FILES; i++)
            if (strcmp(name, meg_ckpt_extra_files[i]) == 0)
                c->extra_file[i] = ckpt_path(c->path, name);
    }
    meg_str_free(&text);
    return r;
}

/* Open the tensor files of the optimizer state, or of the weights. */
static int open_tensor_files(struct meg_ckpt *c, bool is_optim, struct meg_err *e)
{
    const char *name, *file;
    json_t *entry;
    int r;

    json_object_foreach(c->manifest, name, entry)
    {
        if (ckpt_is_optim_name(name) != is_optim)
            continue;
        if ((r = meg_json_get_str(entry, "file", MEG_JSON_REQUIRED, &file, name, e)) < 0 ||
            (r = ckpt_add_file(c, file, e)) < 0)
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
    if ((c->manifest && (r = open_tensor_files(out, true, e)) < 0) || (r = ckpt_index_tensors(out, e)) < 0)
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
