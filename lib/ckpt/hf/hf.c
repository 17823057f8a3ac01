/* hf.c - open a Hugging Face directory: config.json, and weights in one file or in shards with an index. */
#include <stdlib.h>
#include <string.h>
#include "ckpt/hf/internal.h"
#include "foreign/foreign.h"
#include "io/json.h"

#define WEIGHTS CKPT_HF_WEIGHTS ".safetensors"
#define INDEX WEIGHTS ".index.json"

/* Open the weight files that an index of shards lists. */
static int open_shards(struct meg_ckpt *c, const char *name_of_index, struct meg_err *e)
{
    char *path = ckpt_path(c->path, name_of_index);
    json_t *index = NULL, *map, *file;
    const char *name;
    int r;

    if ((r = meg_json_load_regular(&index, path, e)) < 0 ||
        (r = meg_json_get_object(index, "weight_map", MEG_JSON_REQUIRED, &map, path, e)) < 0)
        goto out;
    json_object_foreach(map, name, file)
    {
        if (!json_is_string(file))
            r = meg_fail(e, MEG_EFORMAT, "%s: weight_map: the file name of tensor %.100s is not a string", path, name);
        else
            r = ckpt_add_file(c, json_string_value(file), name_of_index, name, e);
        if (r < 0)
            goto out;
    }
out:
    json_decref(index);
    free(path);
    return r;
}

/*
 * Open the weights.  safetensors files take precedence over files of torch.save; for each of these formats, an index of
 * several files takes precedence over a single file.
 */
static int open_weights(struct meg_ckpt *c, struct meg_err *e)
{
    static const char *const candidates[][2] = { { INDEX, WEIGHTS },
                                                 { "pytorch_model.bin.index.json", "pytorch_model.bin" } };

    for (int i = 0; i < 2; i++) {
        if (ckpt_path_exists(c->path, candidates[i][0]))
            return open_shards(c, candidates[i][0], e);
        if (ckpt_path_exists(c->path, candidates[i][1]))
            return ckpt_add_file(c, candidates[i][1], "", "", e);
    }
    if (meg_foreign_check_folder(c->path, e) < 0)
        return MEG_EFORMAT;
    return meg_fail(e, MEG_ENOENT,
                    "%s: found config.json, but no weights; expected " INDEX ", " WEIGHTS
                    ", pytorch_model.bin.index.json or pytorch_model.bin",
                    c->path);
}

const struct ckpt_format *ckpt_hf_format_of(const struct ckpt_hf_family *family, const struct meg_model_conf *m)
{
    if (family->gated_format && meg_model_is_gated(m))
        return family->gated_format;
    if (family->two_norm_format && m->parallel_residual == MEG_PARALLEL_RESIDUAL_TWO_NORMS)
        return family->two_norm_format;
    return family->format;
}

const char *ckpt_hf_bos_key(const struct ckpt_hf_family *family)
{
    return family->bos_key ? family->bos_key : "bos_token_id";
}

/*
 * Set c->eos_ids and c->bos to the ids of generation_config.json or, if it has none, to those of config.json.  The
 * first eos id of config.json remains the first one, the end-of-document id, if generation_config.json also has it.
 */
static void set_text_ids(struct meg_ckpt *c, const struct ckpt_hf_family *family, const json_t *generation,
                         int64_t vocab_size)
{
    const char *const key[] = { "eos_token_id", ckpt_hf_bos_key(family) };
    struct meg_ids ids[2][2] = { { { 0 } } }; /* of both files, first config.json */

    for (int k = 0; k < 2; k++) {
        ckpt_add_ids(&ids[k][0], json_object_get(c->state, key[k]), vocab_size);
        ckpt_add_ids(&ids[k][1], json_object_get(generation, key[k]), vocab_size);
    }
    for (int64_t i = 0; ids[0][0].n > 0 && i < ids[0][1].n; i++)
        if (ids[0][1].v[i] == ids[0][0].v[0])
            ckpt_add_id(&c->eos_ids, ids[0][0].v[0], vocab_size);
    for (int64_t i = 0; i < ids[0][ids[0][1].n > 0].n; i++)
        ckpt_add_id(&c->eos_ids, ids[0][ids[0][1].n > 0].v[i], vocab_size);
    if (ids[1][ids[1][1].n > 0].n > 0)
        c->bos = ids[1][ids[1][1].n > 0].v[0];
    for (int k = 0; k < 4; k++)
        free(ids[k / 2][k % 2].v);
}

/* Set c->extra_file, and read the bos and eos ids. */
static int read_text_ids(struct meg_ckpt *c, const struct ckpt_hf_family *family, int64_t vocab_size, struct meg_err *e)
{
    const char *path;
    json_t *generation = NULL;
    int r = 0;

    for (int i = 0; i < MEG_CKPT_EXTRA_FILES; i++)
        if (ckpt_path_exists(c->path, meg_ckpt_extra_files[i]))
            c->extra_file[i] = ckpt_path(c->path, meg_ckpt_extra_files[i]);
    path = c->extra_file[CKPT_HF_GENERATION_CONFIG];
    if (path && (r = meg_json_load_regular(&generation, path, e)) < 0)
        return r;
    set_text_ids(c, family, generation, vocab_size);
    json_decref(generation);
    return 0;
}

/* Read config.json: set *family and *m, the model without changes of family->fit_tensors, and the eos ids. */
static int read_config(struct meg_ckpt *c, const struct ckpt_hf_family **family, struct meg_model_conf *m,
                       struct meg_err *e)
{
    char *path = ckpt_path(c->path, "config.json");
    const struct ckpt_hf_family *f;
    int r;

    if ((r = meg_json_load_regular(&c->state, path, e)) < 0)
        goto out;
    ckpt_hf_remove_keys(c->state, c->given ? c->given->ignored_config_keys : NULL);
    if ((r = ckpt_hf_find_family(&f, c->state, path, e)) < 0)
        goto out;
    if ((r = ckpt_hf_read_config(m, f, c->state, path, e)) < 0 || (r = read_text_ids(c, f, m->vocab_size, e)) < 0)
        goto out;
    *family = f;
    c->format = ckpt_hf_format_of(f, m);
    c->vocab_size = m->vocab_size;
out:
    free(path);
    return r;
}

/*
 * Replace names of norms in the first checkpoints of BERT, which were converted from TensorFlow: gamma is the weight of
 * a norm, and beta is its bias.
 */
static int rename_norms(struct meg_st *st, struct meg_err *e)
{
    static const char *const suffix[][2] = { { ".LayerNorm.gamma", ".LayerNorm.weight" },
                                             { ".LayerNorm.beta", ".LayerNorm.bias" } };

    for (int i = 0; i < st->n; i++)
        for (int k = 0; k < 2; k++) {
            const size_t n = strlen(st->t[i].name), nsuffix = strlen(suffix[k][0]);
            struct meg_str name = { 0 };

            if (n < nsuffix || strcmp(st->t[i].name + n - nsuffix, suffix[k][0]) != 0)
                continue;
            meg_str_printf(&name, "%.*s%s", (int)(n - nsuffix), st->t[i].name, suffix[k][1]);
            meg_st_own(st, name.s);
            st->t[i].name = name.s;
        }
    return meg_st_sort(st, e);
}

int ckpt_open_hf(struct meg_ckpt *c, struct meg_err *e)
{
    const struct ckpt_hf_family *family = NULL;
    struct meg_model_conf m = { 0 };
    int r = read_config(c, &family, &m, e);

    if (r < 0 || (r = open_weights(c, e)) < 0)
        return r;
    for (int i = 0; family->is_bert && i < c->nfiles && r == 0; i++)
        r = rename_norms(c->file[i], e);
    if (r < 0)
        return r;
    if (family->fit_tensors)
        family->fit_tensors(&m, c);
    return ckpt_hf_set_ckpt_options(c, &m, family, e);
}
