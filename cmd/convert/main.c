/* meg-convert: a checkpoint of one format written in another, or described. */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "ckpt/ckpt.h"
#include "file/commit.h"
#include "file/lock.h"
#include "io/json.h"

struct conf {
    const char *load_dir, *save_dir, *loader, *saver, *model_type, *saver_impl, *vocab_file, *info, *dtype, *shard_size;
    int64_t ckpt_step, tensor, pipeline, vocab_multiple, true_vocab;
    bool overwrite, json, verify;
};

#define C struct conf
static const struct meg_opt own_opts[] = {
    { "load-dir", 0, MEG_STR(C, load_dir), "DIR", NULL, "checkpoint to convert" },
    { "save-dir", 0, MEG_STR(C, save_dir), "DIR", NULL, "folder to write; new or empty" },
    { "loader", 0, MEG_STR(C, loader), "auto|native|hf|megatron|mcore|llama_mistral", "auto",
      "format that is read; auto looks" },
    { "saver", 0, MEG_STR(C, saver), "auto|native|hf|megatron|mcore", "auto",
      "format that is written; auto: native, hf of a native one, mcore for target sizes" },
    { "model-type", 0, MEG_STR(C, model_type), "GPT", "GPT", "kind of model" },
    { "target-tensor-parallel-size", 0, MEG_I64(C, tensor), "N", NULL,
      "tensor ranks to cut for (those of the source)" },
    { "target-pipeline-parallel-size", 0, MEG_I64(C, pipeline), "N", NULL,
      "pipeline ranks to cut for (those of the source)" },
    { "make-vocab-size-divisible-by", 0, MEG_I64(C, vocab_multiple), "N", "128",
      "pad the vocabulary of each tensor rank to a multiple of it" },
    { "true-vocab-size", 0, MEG_I64(C, true_vocab), "N", NULL, "rows of the source's vocabulary that are no padding" },
    { "vocab-file", 0, MEG_STR(C, vocab_file), "FILE", NULL, "JSON whose length is the true size of the vocabulary" },
    { "saver-transformer-impl", 0, MEG_STR(C, saver_impl), "local|transformer_engine", "local",
      "whose names norms get" },
    { "params-dtype", 0, MEG_STR(C, dtype), "auto|fp32|bf16|fp16", "auto",
      "type of the weights written, for hf and native; auto: that of the source" },
    { "max-shard-size", 0, MEG_STR(C, shard_size), "SIZE", "5GB",
      "most bytes of a weights file of hf: a number, or one with KB, MB, GB or KiB, MiB, GiB; 0: one file" },
    { "ckpt-step", 0, MEG_I64(C, ckpt_step), "N", NULL, "iteration to read in place of the latest" },
    { "overwrite", 0, MEG_BOOL(C, overwrite), NULL, "no", "replace a checkpoint in --save-dir" },
    { "info", 0, MEG_STR(C, info), "DIR", NULL, "describe the checkpoint in DIR, and convert nothing" },
    { "json", 0, MEG_BOOL(C, json), NULL, "no", "describe as one JSON object" },
    { "verify", 0, MEG_BOOL(C, verify), NULL, "no", "compare every byte that has a checksum before describing" },
    { 0 }
};
#undef C

static const struct meg_opt_unsupported absent[] = {
    { "target-expert-*", "mixtures of experts are not there yet; see meg(7)" }, { 0 }
};

static const struct meg_opt ignored_opts[] = {
    MEG_IGNORED("megatron-path", "DIR", "no other program is run"),
    MEG_IGNORED("max-queue-size", "N", "there is no queue"),
    MEG_IGNORED("no-checking", NULL, "checks cost nothing here"),
    MEG_IGNORED("loader-transformer-impl", "NAME", "both spellings are read"),
    MEG_IGNORED("checkpoint-type", "TYPE", "what --load-dir holds is found out"),
    MEG_IGNORED("model-size", "NAME", "sizes are those of the checkpoint"),
    MEG_IGNORED("tokenizer-model", "FILE", "the tokenizer's files in --load-dir go along"),
    MEG_IGNORED("bf16", NULL, "--params-dtype says what is written"),
    MEG_IGNORED("fp16", NULL, "--params-dtype says what is written"),
    { 0 }
};

/* ---- --info ---- */

static void print_tensor(const json_t *t)
{
    char *shape = json_dumps(json_object_get(t, "shape"), JSON_COMPACT);

    printf("%-60s %-5s %-16s %12" PRId64 "  %s\n", json_string_value(json_object_get(t, "name")),
           json_string_value(json_object_get(t, "dtype")), shape,
           (int64_t)json_integer_value(json_object_get(t, "bytes")), json_string_value(json_object_get(t, "file")));
    free(shape);
}

/* The members as lines of name and value, the options and tensors one by one. */
static void print_text(json_t *about)
{
    const char *key, *name;
    json_t *value, *member;
    size_t i;

    json_object_foreach(about, key, value)
    {
        if (json_is_object(value)) {
            printf("\n%s\n", key);
            json_object_foreach(value, name, member)
            {
                printf("    %s = %s\n", name, json_string_value(member));
            }
        } else if (json_is_array(value)) {
            printf("\n%zu %s: name, type, shape, bytes, file\n", json_array_size(value), key);
            json_array_foreach(value, i, member)
            {
                print_tensor(member);
            }
        } else if (json_is_string(value)) {
            printf("%-12s%s\n", key, json_string_value(value));
        } else if (json_is_integer(value)) {
            printf("%-12s%" PRId64 "\n", key, (int64_t)json_integer_value(value));
        } else {
            printf("%-12s-\n", key);
        }
    }
}

static int describe(const struct conf *c, struct meg_err *e)
{
    struct meg_ckpt *k = NULL;
    struct meg_str text = { 0 };
    json_t *about;
    int r;

    if ((r = meg_ckpt_open(&k, c->info, c->ckpt_step, e)) < 0 || (c->verify && (r = meg_ckpt_verify(k, e)) < 0) ||
        (r = meg_ckpt_describe(&about, k, e)) < 0)
        goto out;
    if (c->json) {
        meg_json_dump(about, 0, &text);
        puts(text.s);
    } else {
        print_text(about);
    }
    json_decref(about);
out:
    meg_str_free(&text);
    meg_ckpt_close(k);
    return r;
}

/* ---- conversion ---- */

/* The folder that --save-dir names, links followed, malloc'ed. */
static char *target_of(const struct conf *c)
{
    char *target = realpath(c->save_dir, NULL);

    if (target)
        return target;
    target = meg_strdup(c->save_dir);
    for (size_t n = strlen(target); n > 1 && target[n - 1] == '/'; n--)
        target[n - 1] = 0;
    return target;
}

/*
 * A Hugging Face folder is replaced, so its lock is beside it, and a replacement that was interrupted is
 * completed; in other folders names are replaced.
 */
static int lock_target(struct meg_lock *l, const char *dir, const char *saver, struct meg_err *e)
{
    struct meg_str path = { 0 };
    int r;

    if (strcmp(saver, "hf") != 0)
        return meg_lock_dir(l, dir, e);
    meg_str_printf(&path, "%s.lock", dir);
    if ((r = meg_mkdirs_parent(dir, e)) == 0 && (r = meg_lock_acquire(l, path.s, dir, e)) == 0)
        r = meg_commit_recover(dir, e);
    meg_str_free(&path);
    return r;
}

/* Refuse a folder with other things, and one with a checkpoint unless the user said --overwrite. */
static int check_target(const struct conf *c, const char *dir, const char *saver, struct meg_err *e)
{
    static const char *const nothing[] = { ".", "..", MEG_LOCK_DIR_FILE };
    DIR *d = opendir(dir);
    struct dirent *ent;
    bool is_empty = true;

    while (d && (ent = readdir(d))) {
        bool counts = true;

        for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++)
            counts = counts && strcmp(ent->d_name, nothing[i]);
        is_empty = is_empty && !counts;
    }
    if (d)
        closedir(d);
    if (is_empty)
        return 0;
    if (!meg_ckpt_exists(dir))
        return meg_fail(e, MEG_EUSAGE, "--save-dir %s: it is not empty, and holds no checkpoint; name a new folder",
                        c->save_dir);
    if (!c->overwrite)
        return meg_fail(e, MEG_EUSAGE, "--save-dir %s: it holds a checkpoint; name a new folder or give --overwrite",
                        c->save_dir);
    return strcmp(saver, "hf") ? 0 : meg_ckpt_check_replaceable(dir, e);
}

/* The type of the weights to write. */
static enum meg_dtype dtype_of(const struct conf *c, const struct meg_ckpt *k, const char *saver)
{
    if (strcmp(saver, "hf") != 0 && strcmp(saver, "native") != 0)
        return MEG_DTYPE_F32;
    if (strcmp(c->dtype, "auto") == 0)
        return meg_ckpt_dtype(k);
    return strcmp(c->dtype, "fp32") == 0   ? MEG_DTYPE_F32
           : strcmp(c->dtype, "bf16") == 0 ? MEG_DTYPE_BF16
                                           : MEG_DTYPE_F16;
}

/* The bytes that --max-shard-size says; -1: it is no size. */
static int64_t shard_bytes(const char *size)
{
    static const struct {
        const char *name;
        int64_t bytes;
    } unit[] = { { "", 1 },          { "KB", 1000 },     { "MB", 1000000 }, { "GB", 1000000000 },
                 { "KiB", 1 << 10 }, { "MiB", 1 << 20 }, { "GiB", 1 << 30 } };
    const size_t digits = strspn(size, "0123456789");
    int64_t n;

    for (size_t i = 0; digits > 0 && digits < 16 && i < sizeof unit / sizeof *unit; i++)
        if (strcasecmp(size + digits, unit[i].name) == 0 &&
            !__builtin_mul_overflow(strtoll(size, NULL, 10), unit[i].bytes, &n))
            return n;
    return -1;
}

/* The format to write, auto resolved. */
static const char *saver_of(const struct conf *c, const struct meg_ckpt *k)
{
    if (strcmp(c->saver, "auto") != 0)
        return c->saver;
    if (c->tensor != MEG_UNSET || c->pipeline != MEG_UNSET)
        return "mcore";
    return meg_ckpt_is_native(k) ? "hf" : "native";
}

static int check_format(const struct conf *c, const struct meg_ckpt *k, struct meg_err *e)
{
    const char *is = meg_ckpt_format(k), *want = c->loader;

    if (strcmp(want, "mcore") == 0)
        want = "megatron";
    if (strcmp(want, "llama_mistral") == 0)
        want = "hf";
    if (strcmp(want, "auto") == 0 || strcmp(want, is) == 0)
        return 0;
    return meg_fail(e, MEG_EFORMAT, "%s: --loader %s, but its format is %s", meg_ckpt_path(k), c->loader, is);
}

/* The size of the vocabulary, where the user knows it. */
static int set_vocab(const struct conf *c, struct meg_ckpt *k, struct meg_err *e)
{
    int64_t n = c->true_vocab;
    json_t *vocab = NULL;
    int r = 0;

    if (c->vocab_file) {
        if ((r = meg_json_load(&vocab, c->vocab_file, e)) < 0)
            return r;
        if (!json_is_object(vocab))
            r = meg_fail(e, MEG_EFORMAT, "%s: no object of tokens", c->vocab_file);
        else if (n != MEG_UNSET && n != (int64_t)json_object_size(vocab))
            r = meg_fail(e, MEG_EUSAGE, "--true-vocab-size: %" PRId64 ", but --vocab-file %s has %zu tokens", n,
                         c->vocab_file, json_object_size(vocab));
        n = (int64_t)json_object_size(vocab);
        json_decref(vocab);
    }
    if (r == 0 && n != MEG_UNSET)
        r = meg_ckpt_set_vocab_size(k, n, e);
    return r;
}

static int save_as(const char *saver, const struct conf *c, const struct meg_ckpt *k, struct meg_ckpt_save_args *s,
                   enum meg_dtype dtype, struct meg_err *e)
{
    struct meg_ckpt_megatron_conf to = { .vocab_multiple = c->vocab_multiple,
                                         .iteration = meg_ckpt_source_iteration(k),
                                         .consumed_samples = meg_ckpt_consumed_samples(k),
                                         .seq_length = meg_ckpt_seq_length(k) };

    if (strcmp(saver, "native") == 0)
        return meg_ckpt_save(s, e);
    if (strcmp(saver, "hf") == 0)
        return meg_ckpt_export_hf(s, &(const struct meg_ckpt_hf_conf){ dtype, shard_bytes(c->shard_size) }, e);
    meg_ckpt_parallel_sizes(k, &to.tensor, &to.pipeline);
    if (c->tensor != MEG_UNSET)
        to.tensor = c->tensor;
    if (c->pipeline != MEG_UNSET)
        to.pipeline = c->pipeline;
    if (strcmp(saver, "megatron") == 0)
        to.names = MEG_CKPT_NAMES_LEGACY;
    else
        to.names = strcmp(c->saver_impl, "local") == 0 ? MEG_CKPT_NAMES_MCORE : MEG_CKPT_NAMES_TE;
    return meg_ckpt_export_megatron(s, &to, e);
}

static int convert(const struct conf *c, struct meg_err *e)
{
    struct meg_gpt_conf model;
    struct meg_tok_conf tok = { .vocab_size = MEG_UNSET };
    const struct meg_optgroup groups[] = { { "model", meg_gpt_opts, &model },
                                           { "tokenizer", meg_tok_opts, &tok },
                                           { 0 } };
    struct meg_ckpt_tokenizer files = { 0 };
    struct meg_params params = { 0 };
    struct meg_arena weights = { 0 };
    struct meg_ckpt *k = NULL;
    struct meg_lock lock = { 0 };
    char *target = target_of(c);
    struct meg_ckpt_save_args save = { .dir = target,
                                       .iteration = MEG_CKPT_RELEASE,
                                       .model = &model,
                                       .mesh = &meg_mesh_one,
                                       .params = &params,
                                       .tok = &files };
    struct meg_str options = { 0 };
    const char *saver;
    int r;

    if ((r = meg_ckpt_open(&k, c->load_dir, c->ckpt_step, e)) < 0 || (r = check_format(c, k, e)) < 0)
        goto out;
    saver = saver_of(c, k);
    if ((r = lock_target(&lock, target, saver, e)) < 0 || (r = check_target(c, target, saver, e)) < 0 ||
        (r = set_vocab(c, k, e)) < 0 || (r = meg_ckpt_gpt_conf(k, &model, e)) < 0)
        goto out;
    meg_ckpt_tok_conf(k, &tok);
    meg_gpt_params(&params, &model, &meg_mesh_one);
    meg_opt_dump(groups, &options);
    if (meg_ckpt_seq_length(k) != MEG_UNSET)
        meg_str_printf(&options, "seq-length = %" PRId64 "\n", meg_ckpt_seq_length(k));
    save.options = options.s;
    if ((r = meg_ckpt_tokenizer_read(&files, &tok, NULL, e)) < 0 ||
        (r = meg_ckpt_tokenizer_inherit(&files, k, e)) < 0 ||
        (r = meg_arena_init(&weights, "weights", (size_t)params.flat_numel * sizeof(float), e)) < 0)
        goto out;
    files.eod = meg_ckpt_eod(k);
    if (strcmp(saver, "hf") == 0)
        meg_ckpt_tokenizer_export(&files, &tok);
    if (strcmp(saver, "native") == 0)
        save.weights.dtype = dtype_of(c, k, saver);
    save.weights.data = meg_arena_alloc(&weights, (size_t)params.flat_numel * sizeof(float), 64);
    if ((r = meg_ckpt_load(k, &params, &meg_mesh_one, &save.weights, 1, e)) < 0)
        goto out;
    if ((r = meg_lock_check(&lock, e)) == 0 && (r = save_as(saver, c, k, &save, dtype_of(c, k, saver), e)) == 0)
        meg_info("%s: %d tensors, %" PRId64 " parameters, %s", c->save_dir, params.n, params.numel, saver);
out:
    meg_lock_release(&lock);
    free(target);
    meg_str_free(&options);
    meg_arena_free(&weights);
    meg_params_free(&params);
    meg_ckpt_tokenizer_free(&files);
    meg_ckpt_close(k);
    return r;
}

/* Options that shape the files of ranks say nothing of other formats. */
static void check_options(const struct conf *c)
{
    const bool has_size = c->tensor != MEG_UNSET || c->pipeline != MEG_UNSET, is_auto = strcmp(c->saver, "auto") == 0;
    const bool is_ranks = is_auto ? has_size : strcmp(c->saver, "native") && strcmp(c->saver, "hf");

    if (strcmp(c->model_type, "GPT") != 0)
        meg_usage("--model-type: '%s' is not GPT, the kind that is there; see meg(7)", c->model_type);
    if (c->info && (c->load_dir || c->save_dir))
        meg_usage("--info describes; it goes without --load-dir and --save-dir");
    if (!c->info && (c->json || c->verify))
        meg_usage("--%s is for --info", c->json ? "json" : "verify");
    if (!c->info && (!c->load_dir || !c->save_dir))
        meg_usage("--load-dir and --save-dir are required, or --info");
    if (!is_ranks && has_size)
        meg_usage("--saver %s: its tensors are whole; target sizes are for megatron and mcore", c->saver);
    if (is_ranks && strcmp(c->dtype, "auto") != 0)
        meg_usage("--saver %s: its weights are F32; --params-dtype is for hf and native", is_auto ? "mcore" : c->saver);
    if (shard_bytes(c->shard_size) < 0)
        meg_usage("--max-shard-size %s: it must be a number of bytes, or one with KB, MB, GB, KiB, MiB or GiB",
                  c->shard_size);
}

int main(int argc, char **argv)
{
    struct conf c = { 0 };
    const struct meg_optgroup groups[] = { { "convert", own_opts, &c }, { "ignored", ignored_opts, NULL }, { 0 } };
    struct meg_err e;

    meg_opt_set_unsupported(absent);
    meg_opt_parse(groups, "[options] --load-dir DIR --save-dir DIR | --info DIR",
                  "Turn a checkpoint into another format, or describe it.", argc, argv);
    check_options(&c);
    if ((c.info ? describe(&c, &e) : convert(&c, &e)) < 0)
        meg_die_err(&e);
    return meg_close_stdout();
}
