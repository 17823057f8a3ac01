/*
 * A checkpoint is written: tensor files first, then what describes them, the manifest last, in a
 * folder that is renamed into place.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "ckpt/internal.h"

#define INDEX "model.safetensors.index.json"

/* What is known of the folder so far. */
struct folder {
    const struct meg_ckpt_save *s;
    char *path;              /* DIR/iter_NNNNNNN.tmp */
    json_t *tensors, *files; /* members of the manifest */
    json_t *weight_map;      /* of the index */
};

/* The files of section i: "model-1-layer-00000.safetensors" is layer 0. */
static void section_file(char buf[64], const char *kind, int i, int nsections)
{
    if (i == 0)
        snprintf(buf, 64, "%s-0-embedding.safetensors", kind);
    else if (i == nsections - 1)
        snprintf(buf, 64, "%s-2-head.safetensors", kind);
    else
        snprintf(buf, 64, "%s-1-layer-%05d.safetensors", kind, i - 1);
}

/* A row of the parameter table as a tensor of the file. */
static struct meg_st_tensor tensor_of(const struct meg_param *row, const char *name,
                                      const float *flat)
{
    struct meg_st_tensor t = {
        .name = name, .dtype = "F32", .ndim = row->ndim, .data = flat + row->offset
    };

    memcpy(t.dim, row->dim, (size_t)row->ndim * sizeof *row->dim);
    return t;
}

static int write_section(struct folder *f, const char *file, struct meg_st_tensor *t, int n,
                         struct meg_err *e)
{
    struct meg_str header = { 0 };
    int r;

    meg_st_place(t, n, false, &header);
    r = ckpt_write_tensors(f->path, file, t, n, &header, f->tensors, e);
    meg_str_free(&header);
    return r;
}

static int write_model(struct folder *f, struct meg_err *e)
{
    const struct meg_params *p = f->s->params;
    struct meg_st_tensor *t = meg_new((size_t)p->n * sizeof *t);
    char file[64];
    int r = 0;

    for (int i = 0; r == 0 && i < p->nsections; i++) {
        int n = 0;

        section_file(file, "model", i, p->nsections);
        for (int k = 0; k < p->n; k++)
            if (p->row[k].section == i) {
                t[n++] = tensor_of(&p->row[k], p->row[k].name, f->s->w);
                json_object_set_new(f->weight_map, p->row[k].name, json_string(file));
            }
        r = write_section(f, file, t, n, e);
    }
    free(t);
    return r;
}

static int write_optim(struct folder *f, struct meg_err *e)
{
    const struct meg_params *p = f->s->params;
    const int nslots = f->s->nslots;
    struct meg_st_tensor *t = meg_new((size_t)(p->n * nslots) * sizeof *t);
    char(*name)[CKPT_NAME_CHARS] = meg_new((size_t)(p->n * nslots) * sizeof *name);
    char file[64];
    int r = 0;

    for (int i = 0; r == 0 && nslots > 0 && i < p->nsections; i++) {
        int n = 0;

        section_file(file, "optim", i, p->nsections);
        for (int k = 0; k < p->n; k++)
            for (int j = 0; j < nslots && p->row[k].section == i; j++, n++) {
                ckpt_slot_name(name[n], f->s->slot[j].name, p->row[k].name);
                t[n] = tensor_of(&p->row[k], name[n], f->s->slot[j].p);
            }
        r = write_section(f, file, t, n, e);
    }
    free(name);
    free(t);
    return r;
}

/* A small file and its entry in the manifest. */
static int write_small(struct folder *f, const char *name, const struct meg_str *text,
                       struct meg_err *e)
{
    char *path = ckpt_path(f->path, name), hash[33];
    int r = meg_write_file(path, text->s, text->n, e);

    meg_xxh3_128_hex(hash, text->s, text->n);
    json_object_set_new(f->files, name,
                        json_pack("{s:I,s:s}", "bytes", (json_int_t)text->n, "xxh3_128", hash));
    free(path);
    return r;
}

static int write_json(struct folder *f, const char *name, const json_t *value, struct meg_err *e)
{
    struct meg_str text = { 0 };
    int r;

    meg_json_dump(value, 1, &text);
    meg_str_add(&text, "\n", 1);
    r = write_small(f, name, &text, e);
    meg_str_free(&text);
    return r;
}

/* The dump of the options, a line a string. */
static json_t *options(const struct meg_optgroup *groups)
{
    json_t *lines = json_array();
    struct meg_str text = { 0 };
    char *save = NULL;

    meg_opt_dump(groups, &text);
    for (char *line = text.s ? strtok_r(text.s, "\n", &save) : NULL; line;
         line = strtok_r(NULL, "\n", &save))
        json_array_append_new(lines, json_string_nocheck(line));
    meg_str_free(&text);
    return lines;
}

static int write_state(struct folder *f, struct meg_err *e)
{
    const struct meg_ckpt_save *s = f->s;
    json_t *state = json_object();
    int r;

    json_object_set_new(state, "iteration",
                        s->iteration == MEG_CKPT_RELEASE ? json_null()
                                                         : json_integer(s->iteration));
    json_object_set_new(state, "vocab_size", json_integer(s->model->vocab_size));
    json_object_set_new(state, "eod_id",
                        s->tok && s->tok->eod >= 0 ? json_integer(s->tok->eod) : json_null());
    json_object_set_new(state, "options", options(s->groups));
    json_object_set_new(state, "run", s->state ? json_deep_copy(s->state) : json_null());
    r = write_json(f, "state.json", state, e);
    json_decref(state);
    return r;
}

static int write_index(struct folder *f, struct meg_err *e)
{
    json_t *index = json_pack("{s:{s:I},s:O}", "metadata", "total_size",
                              (json_int_t)f->s->params->numel * 4, "weight_map", f->weight_map);
    int r = write_json(f, INDEX, index, e);

    json_decref(index);
    return r;
}

static int write_manifest(struct folder *f, struct meg_err *e)
{
    json_t *manifest = json_pack("{s:s,s:i,s:O,s:O}", "format", CKPT_FORMAT, "version",
                                 CKPT_VERSION, "files", f->files, "tensors", f->tensors);
    int r = write_json(f, "manifest.json", manifest, e);

    json_decref(manifest);
    return r;
}

static int write_tokenizer(struct folder *f, struct meg_err *e)
{
    const struct meg_ckpt_tokenizer *tok = f->s->tok;
    int r = 0;

    for (int i = 0; tok && i < MEG_TOK_FILES && r == 0; i++)
        if (tok->file[i].s)
            r = write_small(f, meg_tok_files[i].name, &tok->file[i], e);
    return r;
}

static int write_folder(struct folder *f, struct meg_err *e)
{
    int r;

    if ((r = meg_mkdirs(f->path, e)) < 0 || (r = write_model(f, e)) < 0 ||
        (r = write_optim(f, e)) < 0 || (r = write_tokenizer(f, e)) < 0 ||
        (r = write_index(f, e)) < 0 || (r = write_state(f, e)) < 0)
        return r;
    return write_manifest(f, e);
}

int meg_ckpt_save(const struct meg_ckpt_save *s, struct meg_err *e)
{
    char name[64];
    struct folder f = { .s = s,
                        .path = ckpt_path(s->dir, ckpt_name(name, s->iteration, ".tmp")),
                        .tensors = json_object(),
                        .files = json_object(),
                        .weight_map = json_object() };
    int r;

    if ((r = meg_mkdirs(s->dir, e)) < 0 || (r = ckpt_tidy(s->dir, e)) < 0 ||
        (r = write_folder(&f, e)) < 0 || (r = ckpt_commit(s->dir, f.path, s->iteration, e)) < 0) {
        ckpt_tidy(s->dir, NULL);
        goto out;
    }
    if (s->keep_last > 0 && s->iteration != MEG_CKPT_RELEASE)
        ckpt_keep_last(s->dir, s->iteration, s->keep_last, s->loaded);
out:
    json_decref(f.tensors);
    json_decref(f.files);
    json_decref(f.weight_map);
    free(f.path);
    return r;
}

int64_t meg_ckpt_nbytes(const struct meg_params *p, int nslots)
{
    return 4 * p->numel * (1 + nslots);
}

int meg_ckpt_tokenizer_read(struct meg_ckpt_tokenizer *t, const struct meg_tok_conf *c,
                            const struct meg_tokenizer *tok, struct meg_err *e)
{
    struct meg_tok_conf conf = *c;
    char *own[3];
    int r = 0;

    meg_tok_find_files(&conf, own);
    t->eod = tok ? meg_tokenizer_eod(tok) : -1;
    for (int i = 0; i < MEG_TOK_FILES && r == 0; i++)
        if (*meg_tok_path(&conf, i))
            r = meg_read_file(*meg_tok_path(&conf, i), &t->file[i], e);
    for (int i = 0; i < 3; i++)
        free(own[i]);
    return r;
}

void meg_ckpt_tokenizer_free(struct meg_ckpt_tokenizer *t)
{
    for (int i = 0; i < MEG_TOK_FILES; i++)
        meg_str_free(&t->file[i]);
}
