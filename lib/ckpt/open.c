/* open.c - find the checkpoint in a directory, open it, and return the checkpoint's configuration. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "base/num.h"
#include "ckpt/megatron/megatron.h"
#include "ckpt/megatron/pt.h"
#include "ckpt/torch_dist/open.h"
#include "file/commit.h"
#include "file/file.h"
#include "foreign/foreign.h"
#include "io/json.h"

/*
 * Store the path of the current contents of dir in *at, which the caller frees, also after an error: dir without
 * trailing slashes, a temporary name if a commit to dir was interrupted, or a snapshot in the cache of the Hub.
 */
static int find_folder(char **at, const char *dir, struct meg_err *e)
{
    char *name = meg_strdup(dir), *snapshot;
    int r;

    for (size_t n = strlen(name); n > 1 && name[n - 1] == '/'; n--)
        name[n - 1] = 0;
    *at = meg_commit_resolve(name);
    free(name);
    if ((r = meg_foreign_hub_snapshot(&snapshot, *at, e)) == 0 && snapshot) {
        free(*at);
        *at = snapshot;
    }
    return r;
}

bool meg_ckpt_exists(const char *dir)
{
    char *at;
    const bool exists =
        find_folder(&at, dir, NULL) == 0 &&
        (ckpt_path_exists(at, CKPT_TRACKER) || ckpt_is_megatron(at) || meg_foreign_is_distributed(at) ||
         ckpt_path_exists(at, "manifest.json") || ckpt_path_exists(at, "config.json") || ckpt_has_iterations(at));

    free(at);
    return exists;
}

/* Check that a path which contains no checkpoint is not a file, and not a checkpoint in an unsupported format. */
static int check_foreign(const char *path, struct meg_err *e)
{
    const int r = meg_foreign_check_path(path, MEG_EXPECT_CHECKPOINT, e);

    return r < 0 ? r : meg_foreign_check_folder(path, e);
}

bool meg_ckpt_is_foreign(const char *path)
{
    char *at;
    const bool is_foreign = find_folder(&at, path, NULL) < 0 || check_foreign(at, NULL) < 0;

    free(at);
    return is_foreign;
}

int ckpt_add_file(struct meg_ckpt *c, const char *name, const char *list, const char *tensor, struct meg_err *e)
{
    char *path = ckpt_path(c->path, name);
    struct meg_st *st = NULL;
    size_t n;
    int r = 0;

    for (int i = c->nfiles; i-- > 0;)
        if (strcmp(c->file[i]->path, path) == 0)
            goto out;
    if (strchr(name, '/')) {
        r = meg_fail(
            e, MEG_EFORMAT,
            "%s/%s: the file name '%.100s' of tensor %.200s contains '/'; expected a file in the same directory",
            c->path, list, name, tensor);
        goto out;
    }
    n = strlen(name);
    if ((r = n > 4 && strcmp(name + n - 4, ".bin") == 0 ? meg_pt_open_tensors(&st, path, e)
                                                        : meg_st_open(&st, path, e)) < 0)
        goto out;
    c->file = meg_realloc_array(c->file, (size_t)c->nfiles + 1, sizeof(struct meg_st *));
    c->file[c->nfiles++] = st;
out:
    free(path);
    return r;
}

const struct meg_st_tensor *ckpt_find_tensor(const struct meg_ckpt *c, int64_t tp, const char *name, struct meg_st **st)
{
    if (c->index) {
        const int64_t i = meg_strtab_find(&c->index[tp].names, name, (int64_t)strlen(name));

        if (i < 0)
            return NULL;
        *st = c->index[tp].v[i].st;
        return c->index[tp].v[i].t;
    }
    for (int64_t i = tp; i < c->nfiles; i += c->tp) {
        const struct meg_st_tensor *t = meg_st_find(c->file[i], name);

        if (t) {
            *st = c->file[i];
            return t;
        }
    }
    return NULL;
}

static int index_file(struct ckpt_tensor_index *x, struct meg_st *st, struct meg_err *e)
{
    x->v = meg_realloc_array(x->v, (size_t)(x->names.n + st->n) + 1, sizeof *x->v);
    for (int k = 0; k < st->n; k++) {
        const int64_t n = x->names.n;
        const int64_t i = meg_strtab_add(&x->names, st->t[k].name, (int64_t)strlen(st->t[k].name));

        if (i < n)
            return meg_fail(e, MEG_EFORMAT, "%s: tensor %.200s is also in %s; expected each tensor in only one file",
                            st->path, st->t[k].name, x->v[i].st->path);
        x->v[i] = (struct ckpt_mapped_tensor){ st, &st->t[k] };
    }
    return 0;
}

int ckpt_index_tensors(struct meg_ckpt *c, struct meg_err *e)
{
    int r = 0;

    c->index = meg_new((size_t)c->tp * sizeof *c->index);
    for (int i = 0; r == 0 && i < c->nfiles; i++)
        r = index_file(&c->index[i % c->tp], c->file[i], e);
    return r;
}

/* Set c->save_dir and c->step, which ckpt_suggest_older reads.  A release counts as newer than all iterations. */
static void set_iteration(struct meg_ckpt *c, const char *dir, int64_t iteration)
{
    free(c->save_dir);
    c->save_dir = meg_strdup(dir);
    c->step = iteration == MEG_CKPT_RELEASE ? INT64_MAX : iteration;
}

/* Find the directory of an iteration.  If there are no iterations, dir may be a checkpoint of DeepSpeed. */
static int find_iteration(struct meg_ckpt *c, const char *dir, int64_t iteration, struct meg_err *e)
{
    const int r = ckpt_find_iteration(&c->path, dir, iteration, e);

    return r < 0 && !ckpt_has_iterations(dir) && meg_foreign_check_folder(dir, e) < 0 ? MEG_EFORMAT : r;
}

static int fail_no_checkpoint(const char *dir, struct meg_err *e)
{
    const int r = check_foreign(dir, e);

    if (r < 0)
        return r;
    if (access(dir, F_OK) < 0)
        return meg_fail(e, MEG_ENOENT,
                        "%s: found no such directory, expected a checkpoint; check the name: models are not "
                        "downloaded from the Hugging Face Hub",
                        dir);
    return meg_fail(e, MEG_ENOENT,
                    "%s: found none of %s, iter_*, manifest.json, mp_rank_00 and config.json, expected a checkpoint of "
                    "meg, Megatron-LM or Hugging Face; check the name",
                    dir, CKPT_TRACKER);
}

/*
 * Set c->path to the directory of the weights: dir itself, or the directory of an iteration in dir.  The iteration is
 * step.  If step is MEG_UNSET, the iteration is that of the tracker or, without a tracker, the newest complete one.  If
 * dir is a single checkpoint, step must be MEG_UNSET.
 */
static int resolve_dir(struct meg_ckpt *c, const char *dir, int64_t step, struct meg_err *e)
{
    int64_t it = step;
    int r;

    if (ckpt_path_exists(dir, "manifest.json") || ckpt_is_megatron(dir) || meg_foreign_is_distributed(dir)) {
        c->path = meg_strdup(dir);
    } else if (ckpt_path_exists(dir, CKPT_TRACKER)) {
        set_iteration(c, dir, INT64_MAX);
        if (step == MEG_UNSET && (r = ckpt_read_tracker(dir, &it, e)) < 0)
            return r;
        set_iteration(c, dir, it);
        return find_iteration(c, dir, it, e);
    } else if (ckpt_path_exists(dir, "config.json")) {
        c->path = meg_strdup(dir);
    } else if (ckpt_has_iterations(dir)) {
        if (step == MEG_UNSET) {
            if ((r = ckpt_newest_complete(dir, &it, e)) < 0)
                return r;
            meg_info("%s: no %s; loading iteration %" PRId64 ", the newest complete iteration", dir, CKPT_TRACKER, it);
        }
        set_iteration(c, dir, it);
        return ckpt_find_iteration(&c->path, dir, it, e);
    } else {
        return fail_no_checkpoint(dir, e);
    }
    if (step != MEG_UNSET)
        return meg_fail(e, MEG_EUSAGE,
                        "--ckpt-step %" PRId64
                        ": %s contains a single checkpoint, not one per iteration; remove the option",
                        step, dir);
    return 0;
}

/* Detect the format of the checkpoint from the files in c->path, and open the checkpoint. */
static int open_folder(struct meg_ckpt *c, struct meg_err *e)
{
    if (ckpt_path_exists(c->path, "manifest.json"))
        return ckpt_open_native(c, e);
    if (ckpt_is_megatron(c->path))
        return ckpt_open_megatron(c, e);
    if (meg_foreign_is_distributed(c->path))
        return ckpt_path_exists(c->path, ".metadata") ? ckpt_open_torch_dist(c, e)
                                                      : meg_foreign_check_folder(c->path, e);
    if (ckpt_path_exists(c->path, "config.json"))
        return ckpt_open_hf(c, e);
    return ckpt_open_native(c, e); /* fails and names the missing file */
}

/* Set the members of c whose default values are not 0; the other members must be 0. */
static void set_defaults(struct meg_ckpt *c)
{
    c->bos = -1;
    c->tp = 1;
    c->iteration = c->source_iteration = MEG_CKPT_RELEASE;
    c->consumed_samples = -1;
    c->seq_length = c->decoder_seq_length = MEG_UNSET;
}

/* Open a checkpoint, and set *c, which must be { 0 }.  The caller closes *c, also after an error. */
static int open_into(struct meg_ckpt *c, const char *dir, int64_t step, struct meg_err *e)
{
    struct meg_params p = { 0 };
    struct meg_model_conf model;
    int64_t it;
    int r;

    set_defaults(c);
    if ((r = resolve_dir(c, dir, step, e)) < 0 || (r = open_folder(c, e)) < 0 || (r = ckpt_index_tensors(c, e)) < 0 ||
        (r = meg_ckpt_model_conf(c, &model, e)) < 0)
        return r;
    it = c->dist ? c->source_iteration : c->iteration;
    if ((c->is_native || (c->dist && it >= 0)) && step != MEG_UNSET && it != step)
        return meg_fail(e, MEG_EFORMAT,
                        "%s%s: iteration is %" PRId64 ", expected %" PRId64 " from the name of the directory", c->path,
                        c->dist ? "" : "/state.json", it, step);
    meg_model_params(&p, &model, &meg_mesh_one);
    if ((r = ckpt_match_model(c, &model, &p, e)) == 0)
        r = ckpt_check_manifest(c, false, e);
    meg_params_free(&p);
    return r;
}

void ckpt_suggest_older(const struct meg_ckpt *c, struct meg_err *e)
{
    int64_t *it = NULL;
    int n = c->save_dir && e ? ckpt_list_older(&it, c->save_dir, c->step) : 0, r = -1;

    while (r < 0 && n-- > 0) {
        struct meg_ckpt *older = meg_new(sizeof *older);

        r = open_into(older, c->save_dir, it[n], NULL);
        meg_ckpt_close(older);
    }
    if (r == 0) {
        const size_t at = strlen(e->msg);

        snprintf(e->msg + at, sizeof e->msg - at, "; to load iteration %" PRId64 " instead, use --ckpt-step %" PRId64,
                 it[n], it[n]);
    }
    free(it);
}

int meg_ckpt_open_given(struct meg_ckpt **out, const char *dir, int64_t step, const struct meg_given_model *given,
                        struct meg_err *e)
{
    struct meg_ckpt *c = meg_new(sizeof *c);
    char *at;
    int r = find_folder(&at, dir, e);

    c->given = given;
    if (r == 0)
        r = open_into(c, at, step, e);
    free(at);
    if (r == 0) {
        *out = c;
        return 0;
    }
    ckpt_suggest_older(c, e);
    meg_ckpt_close(c);
    return r;
}

int meg_ckpt_open(struct meg_ckpt **out, const char *dir, int64_t step, struct meg_err *e)
{
    return meg_ckpt_open_given(out, dir, step, NULL, e);
}

static int unpack(struct meg_ckpt **out, const struct meg_str *text, struct meg_err *e)
{
    struct meg_ckpt *c = meg_new(sizeof *c);
    json_t *packed = NULL;
    int r;

    set_defaults(c);
    c->is_received = true;
    if ((r = meg_json_parse(&packed, text->s, text->n, "checkpoint that rank 0 opened", e)) == 0 &&
        (r = ckpt_unpack_native(c, packed, e)) == 0)
        r = ckpt_index_tensors(c, e);
    json_decref(packed);
    if (r < 0)
        meg_ckpt_close(c);
    else
        *out = c;
    return r;
}

int meg_ckpt_open_on_all(struct meg_ckpt **out, const char *dir, int64_t step, struct meg_comm *world,
                         struct meg_err *e)
{
    const bool is_rank0 = world->rank == 0;
    struct meg_str text = { 0 };
    int32_t result[2] = { 0 }; /* the result of rank 0, and whether the format is native */
    json_t *packed;
    int r = is_rank0 ? meg_ckpt_open(out, dir, step, e) : 0;

    if (world->size == 1)
        return r;
    if (is_rank0) {
        result[0] = r;
        result[1] = r == 0 && (*out)->is_native;
    }
    meg_host_broadcast(world, result, 2, MEG_DTYPE_I32, 0);
    if (result[0] < 0)
        return is_rank0 ? r : meg_fail(e, result[0], "%s: rank 0 cannot open the checkpoint", dir);
    if (!result[1])
        return is_rank0 ? r : meg_ckpt_open(out, dir, step, e);
    if (is_rank0) {
        packed = ckpt_pack_native(*out);
        meg_json_dump(packed, 0, &text);
        json_decref(packed);
    }
    meg_host_broadcast_str(world, &text, 0);
    if (!is_rank0)
        r = unpack(out, &text, e);
    meg_str_free(&text);
    return r;
}

void ckpt_close_files(struct meg_ckpt *c)
{
    for (int i = 0; i < c->nfiles; i++)
        meg_st_close(c->file[i]);
    free(c->file);
    for (int64_t i = 0; c->index && i < c->tp; i++) {
        meg_strtab_free(&c->index[i].names);
        free(c->index[i].v);
    }
    free(c->index);
}

void meg_ckpt_close(struct meg_ckpt *c)
{
    if (!c)
        return;
    ckpt_close_files(c);
    ckpt_close_dist(c->dist);
    json_decref(c->state);
    json_decref(c->manifest);
    free(c->options);
    for (int i = 0; i < MEG_NUM_TOK_FILES; i++)
        free(c->tok_file[i]);
    for (int i = 0; i < MEG_CKPT_EXTRA_FILES; i++)
        free(c->extra_file[i]);
    free(c->eos_ids.v);
    free(c->path);
    free(c->save_dir);
    free(c);
}

const char *meg_ckpt_path(const struct meg_ckpt *c)
{
    return c->path;
}

bool meg_ckpt_is_native(const struct meg_ckpt *c)
{
    return c->is_native;
}

const char *meg_ckpt_format(const struct meg_ckpt *c)
{
    return c->format->name;
}

int64_t meg_ckpt_source_iteration(const struct meg_ckpt *c)
{
    return c->is_native ? c->iteration : c->source_iteration;
}

int64_t meg_ckpt_consumed_samples(const struct meg_ckpt *c)
{
    const json_t *n = json_object_get(meg_ckpt_run_state(c), "consumed_train_samples");

    return json_is_integer(n) ? json_integer_value(n) : c->consumed_samples;
}

void meg_ckpt_parallel_sizes(const struct meg_ckpt *c, int64_t *tensor, int64_t *pipeline)
{
    *tensor = c->tp;
    *pipeline = c->vocab_rows ? c->nfiles / c->tp : 1;
}

int meg_ckpt_set_vocab_size(struct meg_ckpt *c, int64_t n, struct meg_err *e)
{
    if (n < 1 || n > (c->vocab_rows ? c->vocab_rows : c->vocab_size))
        return meg_fail(e, MEG_EUSAGE,
                        "%s: --true-vocab-size or --vocab-file gives a vocabulary of %" PRId64
                        " tokens, expected 1 to %" PRId64 ", the number of rows of the word embedding",
                        c->path, n, c->vocab_rows ? c->vocab_rows : c->vocab_size);
    if (!c->vocab_rows && n != c->vocab_size)
        return meg_fail(e, MEG_EUSAGE,
                        "%s: --true-vocab-size or --vocab-file gives a vocabulary of %" PRId64
                        " tokens, but the word embedding has %" PRId64
                        " rows; these must be equal, because only Megatron checkpoints may have padding rows",
                        c->path, n, c->vocab_size);
    c->vocab_size = n;
    return 0;
}

int64_t meg_ckpt_iteration(const struct meg_ckpt *c)
{
    return c->iteration;
}

const json_t *meg_ckpt_run_state(const struct meg_ckpt *c)
{
    const json_t *run = c->is_native || c->dist ? json_object_get(c->state, "run") : NULL;

    return json_is_object(run) ? run : NULL;
}

int32_t meg_ckpt_bos(const struct meg_ckpt *c)
{
    return c->bos;
}

int32_t meg_ckpt_eod(const struct meg_ckpt *c)
{
    return c->eos_ids.n > 0 ? c->eos_ids.v[0] : -1;
}

const struct meg_ids *meg_ckpt_eos_ids(const struct meg_ckpt *c)
{
    return &c->eos_ids;
}

enum meg_dtype meg_ckpt_dtype(const struct meg_ckpt *c)
{
    const char *all = NULL;

    for (int i = 0; i < c->nfiles; i++)
        for (int k = 0; k < c->file[i]->n; k++) {
            const char *dtype = c->file[i]->t[k].dtype;

            if (!ckpt_is_float(dtype))
                continue; /* not a weight, e.g. an integer mask */
            if (all && strcmp(all, dtype) != 0)
                return MEG_DTYPE_F32;
            all = dtype;
        }
    return !all || strcmp(all, "F32") == 0 ? MEG_DTYPE_F32 : strcmp(all, "BF16") == 0 ? MEG_DTYPE_BF16 : MEG_DTYPE_F16;
}

int64_t meg_ckpt_vocab_size(const struct meg_ckpt *c)
{
    return c->vocab_size;
}

const char *meg_ckpt_options(const struct meg_ckpt *c)
{
    return c->options;
}

/* Check that each size is from 1 to its limit; the limit of the number of layers is the number of tensors. */
static int check_sizes(const struct meg_ckpt *c, const struct meg_model_conf *m, struct meg_err *e)
{
    const struct {
        const char *name;
        int64_t v, max;
    } size[] = {
        { "number of layers", meg_model_all_layers(m), 0 },
        { "hidden-size", m->hidden_size, INT32_MAX },
        { "ffn-hidden-size", m->mlp.f, INT32_MAX },
        { "num-attention-heads", m->attn.a, 1 << 20 },
        { "kv-channels", m->attn.d, 1 << 20 },
        { "max-position-embeddings", m->max_position_embeddings, INT32_MAX },
        { "vocabulary size", m->vocab_size, INT32_MAX },
    };
    int64_t ntensors = 0, max;

    for (int i = 0; i < c->nfiles; i++)
        ntensors += c->file[i]->n;
    for (size_t i = 0; i < sizeof size / sizeof size[0]; i++) {
        max = size[i].max ? size[i].max : ntensors;
        if (size[i].v < 1 || size[i].v > max)
            return meg_fail(e, MEG_EFORMAT, "%s: %s is %" PRId64 ", expected 1 to %" PRId64, c->path, size[i].name,
                            size[i].v, max);
    }
    return 0;
}

int meg_ckpt_model_conf(const struct meg_ckpt *c, struct meg_model_conf *out, struct meg_err *e)
{
    struct meg_model_conf m = { 0 };
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, &m }, { 0 } };
    struct meg_err why;
    int r;

    meg_opt_defaults(groups);
    m.vocab_size = c->vocab_size;
    if (meg_opt_apply(groups, c->options, "options", &why) < 0 || meg_model_conf_check(&m, &why) < 0)
        return meg_fail(e, MEG_EFORMAT, "%s: invalid model options: %s%s", c->path, why.msg,
                        c->dist ? "; specify the options that args of the checkpoint lacks" : "");
    if ((r = check_sizes(c, &m, e)) < 0)
        return r;
    *out = m;
    return 0;
}

void meg_ckpt_tok_conf(const struct meg_ckpt *c, struct meg_tok_conf *tok)
{
    struct meg_tok_conf own = { 0 };
    const struct meg_optgroup groups[] = { { "tokenizer", meg_tok_opts, &own }, { 0 } };

    if (tok->type || tok->name_or_path)
        return;
    meg_opt_defaults(groups);
    if (meg_opt_apply(groups, c->options, "options", NULL) < 0)
        return; /* unknown tokenizer option: treat the checkpoint as one without tokenizer */
    tok->type = own.type;
    if (!own.type && c->tok_file[MEG_TOK_FILE_JSON])
        tok->type = "HuggingFaceTokenizer"; /* tokenizer.json implies the type */
    for (int i = 0; i < MEG_NUM_TOK_FILES; i++)
        if (!*meg_tok_file_path(tok, i))
            *meg_tok_file_path(tok, i) = c->tok_file[i];
    if (!tok->tiktoken_pattern)
        tok->tiktoken_pattern = own.tiktoken_pattern;
    tok->tiktoken_num_special_tokens = own.tiktoken_num_special_tokens;
    if (tok->tiktoken_special_tokens.n == 0)
        tok->tiktoken_special_tokens = own.tiktoken_special_tokens;
    if (tok->vocab_extra_ids == MEG_UNSET)
        tok->vocab_extra_ids = own.vocab_extra_ids;
    if (tok->vocab_size == MEG_UNSET)
        tok->vocab_size = own.vocab_size;
    if (!tok->megatron_release)
        tok->megatron_release = own.megatron_release;
}

char *ckpt_option_value(const char *dump, const char *name)
{
    const size_t n = strlen(name);

    for (const char *line = dump; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, n) == 0 && strncmp(line + n, " = ", 3) == 0)
            return meg_strndup(line + n + 3, strcspn(line + n + 3, "\n"));
    }
    return meg_strdup("unset");
}

/* Return the value of an option in c->options, or `other` if the value is not an integer. */
static int64_t integer_of(const struct meg_ckpt *c, const char *name, int64_t other)
{
    char *text = ckpt_option_value(c->options, name);
    int64_t n = other;

    if (!meg_parse_i64(text, &n))
        n = other;
    free(text);
    return n;
}

int64_t meg_ckpt_seq_length(const struct meg_ckpt *c)
{
    return integer_of(c, "seq-length", c->seq_length);
}

int64_t meg_ckpt_decoder_seq_length(const struct meg_ckpt *c)
{
    return integer_of(c, "decoder-seq-length", c->decoder_seq_length);
}
