/* Hugging Face folders: config.json, weights in one safetensors file or in shards with an index, tokenizer files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "ckpt/internal.h"

#define WEIGHTS "model.safetensors"
#define INDEX "model.safetensors.index.json"

/* ---- reading ---- */

static int open_weights(struct meg_ckpt *c, struct meg_err *e)
{
    char *path = ckpt_path(c->path, INDEX);
    json_t *index = NULL, *map, *file;
    const char *name;
    int r = 0;

    if (ckpt_is_file(c->path, INDEX)) {
        if ((r = meg_json_load(&index, path, e)) < 0 ||
            (r = meg_json_get_object(index, "weight_map", MEG_JSON_NEEDED, &map, path, e)) < 0)
            goto out;
        json_object_foreach (map, name, file) {
            if (!json_is_string(file))
                r = meg_fail(e, MEG_EFORMAT, "%s: the file of %.100s is no string", path, name);
            else
                r = ckpt_add_file(c, json_string_value(file), e);
            if (r < 0)
                goto out;
        }
    } else if (ckpt_is_file(c->path, WEIGHTS)) {
        r = ckpt_add_file(c, WEIGHTS, e);
    } else {
        r = meg_fail(e, MEG_ENOENT,
                     "%s: config.json is there, but neither " WEIGHTS " nor " INDEX "%s", c->path,
                     ckpt_is_file(c->path, "pytorch_model.bin")
                         ? "; pytorch_model.bin is not read: save it as safetensors"
                         : "");
    }
out:
    json_decref(index);
    free(path);
    return r;
}

static int read_config(struct meg_ckpt *c, struct meg_err *e)
{
    char *path = ckpt_path(c->path, "config.json");
    struct meg_gpt_conf m = { 0 };
    struct meg_tok_conf tok = { 0 };
    const struct meg_optgroup groups[] = { { "model", meg_gpt_opts, &m },
                                           { "tokenizer", meg_tok_opts, &tok },
                                           { 0 } };
    struct meg_str options = { 0 };
    const char *type = NULL;
    int64_t eod = -1;
    int r;

    if ((r = meg_json_load(&c->state, path, e)) < 0 ||
        (r = meg_json_get_str(c->state, "model_type", MEG_JSON_NEEDED, &type, path, e)) < 0)
        goto out;
    if (strcmp(type, "gpt2")) {
        r = meg_fail(e, MEG_EFORMAT, "%s: model_type %.40s; read is gpt2", path, type);
        goto out;
    }
    meg_opt_defaults(groups);
    if ((r = ckpt_gpt2_read_config(&m, c->state, path, e)) < 0 ||
        (r = meg_json_get_i64(c->state, "eos_token_id", MEG_JSON_OPTIONAL, &eod, path, e)) < 0)
        goto out;
    c->format = &ckpt_hf_gpt2;
    c->vocab_size = m.vocab_size;
    c->eod = eod >= 0 && eod < m.vocab_size ? (int32_t)eod : -1;
    if (ckpt_is_file(c->path, "vocab.json") && ckpt_is_file(c->path, "merges.txt")) {
        tok.type = "GPT2BPETokenizer";
        c->vocab_file = ckpt_path(c->path, "vocab.json");
        c->merge_file = ckpt_path(c->path, "merges.txt");
    }
    meg_opt_dump(groups, &options);
    c->options = options.s;
out:
    free(path);
    return r;
}

int ckpt_open_hf(struct meg_ckpt *c, struct meg_err *e)
{
    int r = read_config(c, e);

    return r < 0 ? r : open_weights(c, e);
}

/* ---- writing ---- */

/* One tensor of theirs, and the row it is made of. */
struct item {
    const struct meg_param *row;
    enum ckpt_how how;
    char name[128];
};

static const struct item *item_of(const struct item *v, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(v[i].name, name))
            return &v[i];
    return NULL;
}

static int write_tensor(struct meg_file *f, const struct meg_st_tensor *t, const struct item *it,
                        const struct meg_ckpt_save *s, struct meg_err *e)
{
    const int64_t rows = it->row->dim[0], cols = it->row->numel / rows;
    float *theirs = malloc((size_t)t->nbytes);
    int r;

    if (!theirs)
        return meg_fail(e, MEG_EFAIL, "no memory to lay out %s", t->name);
    ckpt_to_theirs(theirs, s->w + it->row->offset, rows, cols, it->how,
                   s->model->num_attention_heads);
    r = meg_file_pwrite(f, theirs, (size_t)t->nbytes, t->begin, e);
    free(theirs);
    return r;
}

static int write_weights(const char *dir, const struct meg_ckpt_save *s, struct meg_err *e)
{
    const int n = s->params->n;
    struct item *items = meg_new((size_t)n * sizeof *items);
    struct meg_st_tensor *t = meg_new((size_t)n * sizeof *t);
    char *path = ckpt_path(dir, WEIGHTS);
    struct meg_str header = { 0 };
    struct meg_file f = { 0 };
    int r;

    for (int i = 0; i < n; i++) {
        const struct meg_param *row = &s->params->row[i];
        const struct ckpt_rename *re =
            ckpt_their_name(&ckpt_hf_gpt2, row->name, false, items[i].name);
        const bool is_flipped =
            re && (re->how == CKPT_TRANSPOSED || re->how == CKPT_QKV_TRANSPOSED);

        MEG_ASSERT(re);
        items[i].row = row;
        items[i].how = re->how;
        t[i] = (struct meg_st_tensor){ .name = items[i].name, .dtype = "F32", .ndim = row->ndim };
        for (int k = 0; k < row->ndim; k++)
            t[i].dim[k] = row->dim[is_flipped ? row->ndim - 1 - k : k];
    }
    meg_st_place(t, n, true, &header);
    if ((r = meg_file_create(&f, path, e)) < 0 ||
        (r = meg_file_pwrite(&f, header.s, header.n, 0, e)) < 0)
        goto out;
    for (int i = 0; i < n; i++)
        if ((r = write_tensor(&f, &t[i], item_of(items, n, t[i].name), s, e)) < 0)
            goto out;
    r = meg_file_commit(&f, e);
out:
    meg_file_abandon(&f);
    meg_str_free(&header);
    free(path);
    free(t);
    free(items);
    return r;
}

static int write_small(const char *dir, const char *name, const struct meg_str *text,
                       struct meg_err *e)
{
    char *path = ckpt_path(dir, name);
    int r = meg_write_file(path, text->s, text->n, e);

    free(path);
    return r;
}

static int write_folder(const char *dir, const struct meg_ckpt_save *s, struct meg_err *e)
{
    json_t *config = ckpt_gpt2_config(s->model, s->tok ? s->tok->eod : -1);
    struct meg_str text = { 0 };
    int r;

    meg_json_dump(config, 2, &text);
    meg_str_add(&text, "\n", 1);
    if ((r = meg_mkdirs(dir, e)) == 0 && (r = write_weights(dir, s, e)) == 0 &&
        (r = write_small(dir, "config.json", &text, e)) == 0 && s->tok && s->tok->vocab.s &&
        s->tok->merges.s && (r = write_small(dir, "vocab.json", &s->tok->vocab, e)) == 0)
        r = write_small(dir, "merges.txt", &s->tok->merges, e);
    meg_str_free(&text);
    json_decref(config);
    return r;
}

/* Rename the finished folder to its name; what bears it, if anything, goes once that is done. */
static int put_in_place(const char *tmp, const char *dir, struct meg_err *e)
{
    struct meg_str old = { 0 };
    int r = 0;

    meg_str_printf(&old, "%s.old", dir);
    if (access(dir, F_OK) == 0 &&
        ((r = meg_remove_tree(old.s, e)) < 0 || (r = meg_rename(dir, old.s, e)) < 0))
        goto out;
    if ((r = meg_rename(tmp, dir, e)) < 0)
        rename(old.s, dir);
    else
        r = meg_remove_tree(old.s, e);
out:
    meg_str_free(&old);
    return r;
}

int meg_ckpt_export_hf(const struct meg_ckpt_save *s, struct meg_err *e)
{
    const struct meg_gpt_conf *m = s->model;
    struct meg_str dir = { 0 }, tmp = { 0 };
    int r;

    if (m->kv_channels * m->num_attention_heads != m->hidden_size)
        return meg_fail(e, MEG_EUSAGE,
                        "Hugging Face's GPT-2 has heads of hidden size / heads = %g channels; "
                        "--kv-channels %lld "
                        "cannot be expressed",
                        (double)m->hidden_size / (double)m->num_attention_heads,
                        (long long)m->kv_channels);
    if (meg_gpt_is_rotary(m) || meg_gpt_norm(m) != MEG_NORM_LAYER || m->swiglu || !m->has_bias ||
        m->num_query_groups != m->num_attention_heads)
        return meg_fail(e, MEG_EUSAGE,
                        "Hugging Face's GPT-2 has learned positions, LayerNorm, GELU, biases and a key head for each "
                        "query head; a model without one of these cannot be expressed");
    meg_str_printf(&dir, "%s", s->dir);
    while (dir.n > 1 && dir.s[dir.n - 1] == '/')
        dir.s[--dir.n] = 0;
    meg_str_printf(&tmp, "%s.tmp", dir.s);
    if ((r = meg_remove_tree(tmp.s, e)) < 0 || (r = write_folder(tmp.s, s, e)) < 0 ||
        (r = put_in_place(tmp.s, dir.s, e)) < 0)
        meg_remove_tree(tmp.s, NULL);
    meg_str_free(&tmp);
    meg_str_free(&dir);
    return r;
}
