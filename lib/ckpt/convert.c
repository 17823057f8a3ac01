/*
 * convert.c - convert a checkpoint: open and check the source, lock and check the target, then read and write the
 * weights in parts, so that memory never contains all weights.
 */
#include "ckpt/convert.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/log.h"
#include "io/json.h"
#include "model/family.h"

#define C struct meg_convert_conf
const struct meg_opt meg_convert_opts[] = {
    { "load-dir", 0, MEG_STR(C, load_dir), "DIR", NULL, "directory of the checkpoint to convert" },
    { "save-dir", 0, MEG_STR(C, save_dir), "DIR", NULL,
      "directory to write to; must be new or empty, unless --overwrite is given" },
    { "loader", 0, MEG_STR(C, loader), "auto|native|hf|megatron|mcore|torch_dist|llama_mistral", "auto",
      "format of the source; auto: detect it" },
    { "saver", 0, MEG_STR(C, saver), "auto|native|hf|megatron|mcore", "auto",
      "format to write; auto: mcore with --target-tensor-parallel-size or --target-pipeline-parallel-size, else hf for "
      "a native source, else native" },
    { "model-type", 0, MEG_STR(C, model_type), "GPT|BERT|T5", NULL, "fail unless the source has this type of model" },
    { "target-tensor-parallel-size", 0, MEG_I64(C, tensor), "N", NULL,
      "tensor-parallel size of the checkpoint to write; default: as in a Megatron source, else 1" },
    { "target-pipeline-parallel-size", 0, MEG_I64(C, pipeline), "N", NULL,
      "pipeline-parallel size of the checkpoint to write; default: as in a Megatron source, else 1" },
    { "make-vocab-size-divisible-by", 0, MEG_I64(C, vocab_multiple), "N", "128",
      "pad the vocabulary rows of each tensor-parallel rank to a multiple of N" },
    { "true-vocab-size", 0, MEG_I64(C, true_vocab), "N", NULL, "vocabulary size of the source, without padding" },
    { "ignore-config-keys", 0, MEG_STR(C, model.ignored_config_keys), "NAMES", NULL,
      "read config.json of a Hugging Face directory without these members, separated by commas; A.B is the member B of "
      "the object A" },
    { "vocab-file", 0, MEG_STR(C, vocab_file), "FILE", NULL,
      "JSON vocabulary, or that of a BERT; its number of tokens is used as --true-vocab-size" },
    { "saver-transformer-impl", 0, MEG_STR(C, saver_impl), "local|transformer_engine", "local",
      "with --saver mcore: name the norm tensors as this layer implementation of Megatron does" },
    { "params-dtype", 0, MEG_STR(C, dtype), "auto|fp32|bf16|fp16", "auto",
      "dtype of the weights with --saver hf or native; auto: as in the source" },
    { "max-shard-size", 0, MEG_STR(C, shard_size), "SIZE", "5GB",
      "maximum size of a weights file with --saver hf, in bytes or in KB, MB, GB, KiB, MiB or GiB; 0: write one file" },
    { "ckpt-step", 0, MEG_I64(C, ckpt_step), "N", NULL, "iteration to load; default: the latest" },
    { "overwrite", 0, MEG_BOOL(C, overwrite), NULL, "no", "replace a checkpoint in --save-dir" },
    { "info", 0, MEG_STR(C, info), "DIR", NULL, "describe the checkpoint in DIR instead of converting" },
    { "json", 0, MEG_BOOL(C, json), NULL, "no", "with --info: print one JSON object" },
    { "verify", 0, MEG_BOOL(C, verify), NULL, "no", "with --info: verify all checksums first" },
    { 0 }
};
#undef C

const struct meg_opt meg_convert_old_opts[] = {
    MEG_RENAMED("load", "DIR", "load-dir"),
    MEG_RENAMED("save", "DIR", "save-dir"),
    MEG_RENAMED("tensor-model-parallel-size", "N", "target-tensor-parallel-size=1 saver=megatron"),
    MEG_RENAMED("target-pipeline-model-parallel-size", "N", "target-pipeline-parallel-size saver=megatron"),
    { 0 }
};

/* ---- formats ---- */

enum target_format { TO_NATIVE, TO_HF, TO_MEGATRON, TO_MCORE };
static const char *const target_names[] = { "native", "hf", "megatron", "mcore" };

/*
 * Resolve --saver.  With --saver auto, the target format is mcore if a target parallel size is set.  Otherwise, it is
 * hf for a native source, and native for any other source.
 */
static enum target_format target_format_of(const struct meg_convert_conf *c, bool is_source_native)
{
    for (int i = TO_NATIVE; i <= TO_MCORE; i++)
        if (strcmp(c->saver, target_names[i]) == 0)
            return (enum target_format)i;
    if (c->tensor != MEG_UNSET || c->pipeline != MEG_UNSET)
        return TO_MCORE;
    return is_source_native ? TO_HF : TO_NATIVE;
}

static bool is_per_rank(enum target_format to)
{
    return to == TO_MEGATRON || to == TO_MCORE;
}

int64_t meg_convert_shard_nbytes(const char *size)
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

int meg_convert_check(const struct meg_convert_conf *c, struct meg_err *e)
{
    const bool has_size = c->tensor != MEG_UNSET || c->pipeline != MEG_UNSET, is_auto = strcmp(c->saver, "auto") == 0;
    const bool to_ranks = is_per_rank(target_format_of(c, false));

    if (c->model_type && strcmp(c->model_type, "GPT") != 0 && strcmp(c->model_type, "BERT") != 0 &&
        strcmp(c->model_type, "T5") != 0)
        return meg_fail(e, MEG_EUSAGE, "--model-type %s: only GPT, BERT and T5 are supported; see meg(7)",
                        c->model_type);
    if (c->info && (c->load_dir || c->save_dir))
        return meg_fail(e, MEG_EUSAGE, "--info cannot be combined with --load-dir or --save-dir");
    if (!c->info && (c->json || c->verify))
        return meg_fail(e, MEG_EUSAGE, "--%s requires --info", c->json ? "json" : "verify");
    if (!c->info && (!c->load_dir || !c->save_dir))
        return meg_fail(e, MEG_EUSAGE, "specify --load-dir and --save-dir, or --info");
    if (!to_ranks && has_size)
        return meg_fail(
            e, MEG_EUSAGE,
            "--saver %s: this format is not sharded; --target-tensor-parallel-size and --target-pipeline-parallel-size "
            "require --saver megatron or mcore",
            c->saver);
    if (to_ranks && strcmp(c->dtype, "auto") != 0)
        return meg_fail(
            e, MEG_EUSAGE,
            "--saver %s: the weights of this format are always fp32; --params-dtype requires --saver hf or native",
            is_auto ? "mcore" : c->saver);
    if (meg_convert_shard_nbytes(c->shard_size) < 0)
        return meg_fail(
            e, MEG_EUSAGE,
            "--max-shard-size %s: must be a non-negative integer, optionally followed by KB, MB, GB, KiB, MiB or GiB",
            c->shard_size);
    return 0;
}

/* ---- the source ---- */

/* Check --loader against the detected format. */
static int check_loader(const struct meg_convert_conf *c, const struct meg_ckpt *ckpt, struct meg_err *e)
{
    const char *format = meg_ckpt_format(ckpt), *expected = c->loader;

    if (strcmp(expected, "mcore") == 0)
        expected = strcmp(format, "torch_dist") == 0 ? format : "megatron";
    if (strcmp(expected, "llama_mistral") == 0)
        expected = "hf";
    if (strcmp(expected, "auto") == 0 || strcmp(expected, format) == 0)
        return 0;
    return meg_fail(e, MEG_EFORMAT, "%s: --loader is %s, but the format of the checkpoint is %s; use --loader auto",
                    meg_ckpt_path(ckpt), c->loader, format);
}

/*
 * Set *n to the number of tokens in --vocab-file.  The file contains either a JSON object that maps tokens to ids, or
 * the vocabulary of a BERT, with one token per line.
 */
static int count_tokens(int64_t *n, const char *file, struct meg_err *e)
{
    const struct meg_tok_conf bert = { .type = "BertWordPieceLowerCase", .vocab_file = file };
    struct meg_str text = { 0 };
    struct meg_tokenizer *tok;
    json_t *vocab;
    int r = meg_read_file(file, &text, e);

    if (r == 0 && text.n > 0 && strchr("{ \n", text.s[0])) {
        if ((r = meg_json_load(&vocab, file, e)) == 0) {
            if (!json_is_object(vocab))
                r = meg_fail(e, MEG_EFORMAT, "%s: expected a JSON object that maps each token to its id", file);
            *n = (int64_t)json_object_size(vocab);
            json_decref(vocab);
        }
    } else if (r == 0 && (r = meg_tokenizer_open(&tok, &bert, e)) == 0) {
        *n = meg_tokenizer_vocab_size(tok);
        meg_tokenizer_close(tok);
    }
    meg_str_free(&text);
    return r;
}

/* Set the size of the vocabulary from --true-vocab-size or --vocab-file. */
static int set_vocab_size(const struct meg_convert_conf *c, struct meg_ckpt *ckpt, struct meg_err *e)
{
    int64_t n = c->true_vocab, counted = 0;
    int r = 0;

    if (c->vocab_file) {
        if ((r = count_tokens(&counted, c->vocab_file, e)) < 0)
            return r;
        if (n != MEG_UNSET && n != counted)
            r = meg_fail(e, MEG_EUSAGE,
                         "--true-vocab-size %" PRId64 ": contradicts --vocab-file %s, which has %" PRId64
                         " tokens; use only one of the two options",
                         n, c->vocab_file, counted);
        n = counted;
    }
    if (r == 0 && n != MEG_UNSET)
        r = meg_ckpt_set_vocab_size(ckpt, n, e);
    return r;
}

static int open_source(struct meg_ckpt **ckpt, const struct meg_convert_conf *c, struct meg_err *e)
{
    int r = meg_ckpt_open_given(ckpt, c->load_dir, c->ckpt_step, &c->model, e);

    return r < 0 ? r : check_loader(c, *ckpt, e);
}

/* ---- the target ---- */

/* Lock the target directory.  Hugging Face's format replaces the directory itself, the others its files. */
static int lock_target(struct meg_dir_lock *l, const char *dir, enum target_format to, struct meg_err *e)
{
    return to == TO_HF ? meg_lock_replaced_dir(l, dir, e) : meg_lock_dir(&l->content, dir, e);
}

/*
 * Check that dir may be written: dir is empty, or --overwrite is given and dir contains a checkpoint.  A checkpoint is
 * replaced by a Hugging Face directory only if meg_ckpt_check_replaceable accepts dir.
 */
static int check_target(const struct meg_convert_conf *c, const char *dir, enum target_format to, struct meg_err *e)
{
    if (meg_lock_dir_is_empty(dir))
        return 0;
    if (!meg_ckpt_exists(dir))
        return meg_fail(e, MEG_EUSAGE,
                        "--save-dir %s: the directory is not empty and contains no checkpoint; choose a new directory",
                        c->save_dir);
    if (!c->overwrite)
        return meg_fail(e, MEG_EUSAGE,
                        "--save-dir %s: the directory contains a checkpoint; choose a new directory or use --overwrite",
                        c->save_dir);
    return to == TO_HF ? meg_ckpt_check_replaceable(dir, dir, e) : 0;
}

/* ---- conversion ---- */

static enum meg_dtype dtype_of(const struct meg_convert_conf *c, const struct meg_ckpt *ckpt, enum target_format to)
{
    if (is_per_rank(to))
        return MEG_DTYPE_F32;
    if (strcmp(c->dtype, "auto") == 0)
        return meg_ckpt_dtype(ckpt);
    return strcmp(c->dtype, "fp32") == 0   ? MEG_DTYPE_F32
           : strcmp(c->dtype, "bf16") == 0 ? MEG_DTYPE_BF16
                                           : MEG_DTYPE_F16;
}

static int export_megatron(const struct meg_convert_conf *c, const struct meg_ckpt *ckpt, enum target_format to,
                           const struct meg_ckpt_save_args *s, struct meg_err *e)
{
    struct meg_ckpt_megatron_conf conf = { .vocab_multiple = c->vocab_multiple,
                                           .iteration = meg_ckpt_source_iteration(ckpt),
                                           .consumed_samples = meg_ckpt_consumed_samples(ckpt),
                                           .seq_length = meg_ckpt_seq_length(ckpt),
                                           .decoder_seq_length = meg_ckpt_decoder_seq_length(ckpt) };

    meg_ckpt_parallel_sizes(ckpt, &conf.tensor, &conf.pipeline);
    if (c->tensor != MEG_UNSET)
        conf.tensor = c->tensor;
    if (c->pipeline != MEG_UNSET)
        conf.pipeline = c->pipeline;
    if (to == TO_MEGATRON)
        conf.names = MEG_CKPT_NAMES_LEGACY;
    else
        conf.names = strcmp(c->saver_impl, "local") == 0 ? MEG_CKPT_NAMES_MCORE : MEG_CKPT_NAMES_TE;
    return meg_ckpt_export_megatron(s, &conf, e);
}

static int write_target(const struct meg_convert_conf *c, const struct meg_ckpt *ckpt, enum target_format to,
                        const struct meg_ckpt_save_args *s, struct meg_dir_lock *lock, struct meg_err *e)
{
    const struct meg_ckpt_hf_conf hf = { dtype_of(c, ckpt, to), meg_convert_shard_nbytes(c->shard_size), lock };

    switch (to) {
    case TO_NATIVE: return meg_ckpt_save(s, e);
    case TO_HF: return meg_ckpt_export_hf(s, &hf, e);
    default: return export_megatron(c, ckpt, to, s, e);
    }
}

struct source {
    struct meg_model_conf model;
    struct meg_tok_conf tok;
    struct meg_ckpt_tokenizer files;
    struct meg_params params;
    struct meg_ckpt_reader *weights;
    struct meg_str options;
};

/* Read the source's tokenizer files, open the source's weights, and set the remaining arguments of `save`. */
static int open_weights(struct source *src, struct meg_ckpt_save_args *save, const struct meg_convert_conf *c,
                        const struct meg_ckpt *ckpt, enum target_format to, struct meg_err *e)
{
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, &src->model },
                                           { "tokenizer", meg_tok_opts, &src->tok },
                                           { 0 } };
    int r;

    meg_ckpt_tok_conf(ckpt, &src->tok);
    meg_model_params(&src->params, &src->model, &meg_mesh_one);
    meg_opt_dump(groups, &src->options);
    if (meg_ckpt_seq_length(ckpt) != MEG_UNSET)
        meg_str_printf(&src->options, "seq-length = %" PRId64 "\n", meg_ckpt_seq_length(ckpt));
    if (meg_ckpt_decoder_seq_length(ckpt) != MEG_UNSET)
        meg_str_printf(&src->options, "decoder-seq-length = %" PRId64 "\n", meg_ckpt_decoder_seq_length(ckpt));
    save->options = src->options.s;
    if ((r = meg_ckpt_tokenizer_read(&src->files, &src->tok, NULL, e)) < 0 ||
        (r = meg_ckpt_tokenizer_inherit(&src->files, ckpt, e)) < 0)
        return r;
    src->files.eod = meg_ckpt_eod(ckpt);
    if (to == TO_HF)
        meg_ckpt_tokenizer_export(&src->files, &src->tok);
    if (to == TO_NATIVE)
        save->weights.dtype = dtype_of(c, ckpt, to);
    r = meg_ckpt_reader_open(&src->weights, ckpt, &src->params, e);
    save->reader = src->weights;
    return r;
}

static void free_source(struct source *src)
{
    meg_str_free(&src->options);
    meg_ckpt_reader_close(src->weights);
    meg_params_free(&src->params);
    meg_ckpt_tokenizer_free(&src->files);
}

/* Check --model-type against the model of the source. */
static int check_model_type(const struct meg_convert_conf *c, const struct meg_model_conf *m, struct meg_err *e)
{
    const char *type = meg_family_of(m)->title;

    if (!c->model_type || strcmp(c->model_type, type) == 0)
        return 0;
    return meg_fail(e, MEG_EFORMAT,
                    "%s: --model-type is %s, but the model of the checkpoint is a %s; omit --model-type", c->load_dir,
                    c->model_type, type);
}

int meg_convert(const struct meg_convert_conf *c, struct meg_err *e)
{
    struct source src = { .tok = { .vocab_size = MEG_UNSET, .vocab_extra_ids = MEG_UNSET } };
    struct meg_ckpt *ckpt = NULL;
    struct meg_dir_lock lock = { 0 };
    char *target = meg_real_dir(c->save_dir);
    struct meg_ckpt_save_args save = { .dir = target,
                                       .iteration = MEG_CKPT_RELEASE,
                                       .model = &src.model,
                                       .mesh = &meg_mesh_one,
                                       .params = &src.params,
                                       .tok = &src.files,
                                       .lock = &lock.content };
    enum target_format to;
    int r;

    if ((r = open_source(&ckpt, c, e)) < 0)
        goto out;
    to = target_format_of(c, meg_ckpt_is_native(ckpt));
    if ((r = lock_target(&lock, target, to, e)) < 0 || (r = check_target(c, target, to, e)) < 0 ||
        (r = set_vocab_size(c, ckpt, e)) < 0 || (r = meg_ckpt_model_conf(ckpt, &src.model, e)) < 0 ||
        (r = check_model_type(c, &src.model, e)) < 0 || (r = meg_given_model_check(&c->model, ckpt, e)) < 0 ||
        (r = open_weights(&src, &save, c, ckpt, to, e)) < 0)
        goto out;
    if ((r = meg_lock_check_dir(&lock, e)) == 0 && (r = write_target(c, ckpt, to, &save, &lock, e)) == 0)
        meg_info("%s: %d tensors, %" PRId64 " parameters, format %s", c->save_dir, src.params.n, src.params.numel,
                 target_names[to]);
out:
    meg_lock_release_dir(&lock);
    free(target);
    free_source(&src);
    meg_ckpt_close(ckpt);
    return r;
}
