/* torch_dist.c - open distributed checkpoints of Megatron (torch_dist) and of torch.distributed.checkpoint. */
#include "ckpt/torch_dist/torch_dist.h"
#include <stdlib.h>
#include <string.h>
#include "ckpt/megatron/megatron.h"
#include "io/json.h"

static const struct ckpt_rename no_renames[] = { { 0 } };
static const struct ckpt_format format = { .name = "torch_dist", .rename = no_renames };

/*
 * Check metadata.json, which Megatron writes when the checkpoint is complete.  It is not required in a plain checkpoint
 * of torch.distributed.checkpoint, which has no settings of Megatron.
 */
static int check_complete(const struct ckpt_dist *d, struct meg_err *e)
{
    char *path = ckpt_path(d->dir, "metadata.json");
    const char *backend = NULL;
    json_t *json = NULL;
    int r;

    if (!ckpt_path_exists(d->dir, "metadata.json")) {
        r = 0;
        if (ckpt_path_exists(d->dir, "common.pt") || dist_find_object(&d->metadata, "common_state/shard_0_1"))
            r = meg_fail(
                e, MEG_EFORMAT,
                "%s: found no metadata.json, which Megatron writes when a checkpoint is complete; the save was "
                "interrupted: load another iteration with --ckpt-step",
                d->dir);
    } else if ((r = meg_json_load_regular(&json, path, e)) == 0 &&
               (r = meg_json_get_str(json, "sharded_backend", MEG_JSON_REQUIRED, &backend, path, e)) == 0 &&
               strcmp(backend, "torch_dist") != 0) {
        r = meg_fail(e, MEG_EFORMAT, "%s: sharded_backend is '%.40s', expected torch_dist", path, backend);
    }
    json_decref(json);
    free(path);
    return r;
}

/* Set *family to the family of the model, which only the names of its tensors show. */
static int find_family(const struct ckpt_dist *d, enum meg_model_family *family, struct meg_err *e)
{
    *family = MEG_FAMILY_GPT;
    for (int64_t i = 0; i < d->metadata.tensor_names.n; i++) {
        const char *name = dist_skip_wrappers(d->metadata.tensor[i].name);

        if (strcmp(name, "lm_head.dense.weight") == 0 || strcmp(name, "embedding.tokentype_embeddings.weight") == 0)
            *family = MEG_FAMILY_BERT;
        if (dist_is_model_name(name) && strstr(name, ".cross_attention."))
            return meg_fail(e, MEG_EFORMAT,
                            "%s: tensor %.200s: a T5 in this format is not supported; save it in Megatron with "
                            "--ckpt-format torch",
                            d->dir, name);
    }
    return 0;
}

/* Append a file to c that represents .metadata; its tensors are composed of the items in other files. */
static struct meg_st *add_file(struct meg_ckpt *c)
{
    struct meg_st *st = meg_new(sizeof *st);

    st->path = ckpt_path(c->path, ".metadata");
    c->file = meg_realloc_array(c->file, (size_t)c->nfiles + 1, sizeof *c->file);
    c->file[c->nfiles++] = st;
    return st;
}

/*
 * Compose the tensors of the model.  In a plain checkpoint, they have the prefix "model." if any tensor has it; the
 * other tensors are state of the run.
 */
static int compose_model(struct meg_ckpt *c, struct meg_err *e)
{
    const struct dist_metadata *m = &c->dist->metadata;
    struct dist_composer x = { .d = c->dist, .st = add_file(c), .e = e };
    bool has_prefix = false;
    int r = 0;

    for (int64_t i = 0; i < m->tensor_names.n; i++)
        has_prefix = has_prefix || strncmp(m->tensor[i].name, "model.", 6) == 0;
    for (int64_t i = 0; r == 0 && i < m->tensor_names.n; i++) {
        const char *name = m->tensor[i].name;

        if (dist_is_model_name(dist_skip_wrappers(name)) && (!has_prefix || strncmp(name, "model.", 6) == 0))
            r = dist_compose(&x, &m->tensor[i], dist_skip_wrappers(name), NULL);
    }
    return dist_compose_end(&x, r);
}

/* Append to c->options the given options that args lacks, as args of a plain checkpoint may. */
static void add_given(struct meg_ckpt *c, const struct meg_py *args)
{
    struct meg_str options = { 0 };
    char buf[64];

    meg_str_printf(&options, "%s", c->options);
    for (int i = 0; c->given && meg_model_opts[i].name; i++) {
        const char *value = c->given->is_set[i] ? "yes" : c->given->value[i];
        const char *name = ckpt_arg_name(buf, &meg_model_opts[i]);

        if (value && name && !meg_py_attr(args, name))
            meg_str_printf(&options, "%s = %s\n", meg_model_opts[i].name, value);
    }
    free(c->options);
    c->options = options.s;
}

static int read_run(struct meg_ckpt *c, const struct dist_common *k, struct meg_err *e)
{
    enum meg_model_family family;
    json_t *run;
    int r;

    if ((r = ckpt_check_args(k->args, k->from, e)) < 0 || (r = find_family(c->dist, &family, e)) < 0 ||
        (r = ckpt_set_options(c, k->args, family, k->from, e)) < 0)
        return r;
    add_given(c, k->args);
    ckpt_set_run(c, k->args);
    meg_py_int(k->iteration, &c->source_iteration);
    dist_find_optim(c->dist, k);
    if ((r = dist_run_state(&run, c->dist, k, e)) < 0)
        return r;
    if (run && c->source_iteration >= 0) {
        c->iteration = c->source_iteration;
        c->state = json_pack("{s:O}", "run", run);
    }
    json_decref(run);
    return 0;
}

int ckpt_open_torch_dist(struct meg_ckpt *c, struct meg_err *e)
{
    struct dist_common common = { 0 };
    char *path = ckpt_path(c->path, ".metadata");
    int r;

    c->format = &format;
    c->dist = meg_new(sizeof *c->dist);
    c->dist->dir = meg_strdup(c->path);
    if ((r = dist_metadata_read(&c->dist->metadata, path, e)) < 0)
        goto out;
    c->dist->file = meg_new((size_t)c->dist->metadata.files.n * sizeof *c->dist->file + 1);
    if ((r = check_complete(c->dist, e)) < 0 || (r = dist_open_common(&common, c->dist, e)) < 0 ||
        (r = read_run(c, &common, e)) < 0 || (r = compose_model(c, e)) < 0)
        goto out;
    r = ckpt_find_vocab(c, common.from, e);
out:
    dist_close_common(&common);
    free(path);
    return r;
}

int ckpt_open_dist_optim(struct meg_ckpt *out, const struct meg_ckpt *c, struct meg_err *e)
{
    struct dist_composer x = { .d = c->dist, .e = e };
    struct meg_params p = { 0 };
    struct meg_model_conf m;
    int r;

    if (c->dist->optim == DIST_OPTIM_NONE || c->dist->optim_refusal)
        return 0;
    if ((r = meg_ckpt_model_conf(c, &m, e)) < 0)
        return r;
    x.st = add_file(out);
    meg_model_params(&p, &m, &meg_mesh_one);
    r = dist_compose_end(&x, dist_compose_optim(&x, &p, c->vocab_rows));
    meg_params_free(&p);
    return r;
}

void ckpt_close_dist(struct ckpt_dist *d)
{
    if (!d)
        return;
    for (int64_t i = 0; d->file && i < d->metadata.files.n; i++)
        meg_st_close(d->file[i]);
    free(d->file);
    dist_metadata_free(&d->metadata);
    free(d->optim_refusal);
    free(d->dir);
    free(d);
}
