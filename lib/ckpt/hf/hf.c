/* hf.c - Hugging Face directories: config.json, weights in one file or in shards with an index, tokenizer files. */
#include <ctype.h>
#include <dirent.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/internal.h"
#include "file/commit.h"
#include "file/temporary.h"
#include "foreign/foreign.h"
#include "io/json.h"
#include "tokenizer/export/export.h"

#define WEIGHTS CKPT_HF_WEIGHTS ".safetensors"
#define INDEX WEIGHTS ".index.json"
enum { GENERATION_CONFIG }; /* index in meg_ckpt_extra_files */
/*
 * File name of a tokenizer model that is not a SentencePiece BPE model.  Other programs expect a SentencePiece BPE
 * model in a file called tokenizer.model.
 */
#define MEG_MODEL "meg_tokenizer.model"
#define T5_MODEL "spiece.model" /* file name of the SentencePiece model of T5 */

/* ---- reading ---- */

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

static const struct ckpt_format *format_of(const struct ckpt_hf_family *family, const struct meg_model_conf *m)
{
    return family->gated_format && meg_model_is_gated(m) ? family->gated_format : family->format;
}

static const char *bos_key_of(const struct ckpt_hf_family *family)
{
    return family->bos_key ? family->bos_key : "bos_token_id";
}

/* Add the eos ids of one JSON file to c.  If c has no bos id, also set c->bos to the bos id of the file, if any. */
static void add_text_ids(struct meg_ckpt *c, const struct ckpt_hf_family *family, const json_t *file,
                         int64_t vocab_size)
{
    struct meg_ids bos = { 0 };

    ckpt_add_ids(&c->eos_ids, json_object_get(file, "eos_token_id"), vocab_size);
    ckpt_add_ids(&bos, json_object_get(file, bos_key_of(family)), vocab_size);
    if (c->bos < 0 && bos.n > 0)
        c->bos = bos.v[0];
    free(bos.v);
}

/*
 * Set c->extra_file, and read the bos and eos ids of config.json and of generation_config.json, which often has more
 * eos ids.
 */
static int read_text_ids(struct meg_ckpt *c, const struct ckpt_hf_family *family, int64_t vocab_size, struct meg_err *e)
{
    json_t *generation = NULL;
    int r;

    for (int i = 0; i < MEG_CKPT_EXTRA_FILES; i++)
        if (ckpt_path_exists(c->path, meg_ckpt_extra_files[i]))
            c->extra_file[i] = ckpt_path(c->path, meg_ckpt_extra_files[i]);
    add_text_ids(c, family, c->state, vocab_size);
    if (!c->extra_file[GENERATION_CONFIG])
        return 0;
    if ((r = meg_json_load_regular(&generation, c->extra_file[GENERATION_CONFIG], e)) == 0)
        add_text_ids(c, family, generation, vocab_size);
    json_decref(generation);
    return r;
}

/* ---- the tokenizer ---- */

static void find_tokenizer(struct meg_ckpt *c)
{
    static const char *const other_models[] = { T5_MODEL, MEG_MODEL };

    for (int i = 0; i < MEG_NUM_TOK_FILES; i++)
        if (ckpt_path_exists(c->path, meg_tok_files[i].name))
            c->tok_file[i] = ckpt_path(c->path, meg_tok_files[i].name);
    for (int i = 0; i < 2; i++)
        if (ckpt_path_exists(c->path, other_models[i])) {
            free(c->tok_file[MEG_TOK_FILE_MODEL]);
            c->tok_file[MEG_TOK_FILE_MODEL] = ckpt_path(c->path, other_models[i]);
        }
}

/*
 * Return whether the directory has the files of a tokenizer type: those that `needs` lists or, for a type that is not
 * listed, the file of the tokenizer model.
 */
static bool has_files_of(const struct meg_ckpt *c, const char *type)
{
    static const struct {
        const char *type;
        int file, other;
    } needs[] = { { "GPT2BPETokenizer", MEG_TOK_FILE_VOCAB, MEG_TOK_FILE_MERGES },
                  { "BertWordPieceLowerCase", MEG_TOK_FILE_BERT_VOCAB, MEG_TOK_FILE_BERT_VOCAB },
                  { "BertWordPieceCase", MEG_TOK_FILE_BERT_VOCAB, MEG_TOK_FILE_BERT_VOCAB },
                  { "HuggingFaceTokenizer", MEG_TOK_FILE_JSON, MEG_TOK_FILE_JSON },
                  { "PretrainedFromHF", MEG_TOK_FILE_JSON, MEG_TOK_FILE_JSON } };

    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        if (strcmp(type, needs[i].type) == 0)
            return c->tok_file[needs[i].file] && c->tok_file[needs[i].other];
    return c->tok_file[MEG_TOK_FILE_MODEL] != NULL;
}

/*
 * Set the tokenizer options to the values that an export by meg saved in tokenizer_config.json.  If these values are
 * missing or invalid, or a file of the tokenizer is missing, set the default options and return false.
 */
static bool read_own_options(const struct meg_ckpt *c, const json_t *config, const struct meg_optgroup *group,
                             const struct meg_tok_conf *tok)
{
    struct meg_str text = { 0 };
    const json_t *line;
    size_t i;
    bool is_read;

    meg_str_add(&text, "", 0);
    json_array_foreach(json_object_get(config, MEG_TOK_EXPORT_KEY), i, line)
    {
        meg_str_printf(&text, "%s\n", json_is_string(line) ? json_string_value(line) : "");
    }
    is_read = text.n > 0 && meg_opt_apply(group, text.s, MEG_TOK_EXPORT_KEY, NULL) == 0 && tok->type &&
              has_files_of(c, tok->type);
    meg_str_free(&text);
    if (!is_read)
        meg_opt_defaults(group);
    return is_read;
}

/*
 * Return the tokenizer type for a vocab.txt.  Return NULL if tokenizer_config.json has a setting that neither type has.
 */
static const char *guess_wordpiece_type(const json_t *config)
{
    const bool is_cased = json_is_false(json_object_get(config, "do_lower_case"));
    const json_t *strips_accents = json_object_get(config, "strip_accents");

    if ((json_is_boolean(strips_accents) && json_is_true(strips_accents) == is_cased) ||
        json_is_false(json_object_get(config, "tokenize_chinese_chars")))
        return NULL;
    return is_cased ? "BertWordPieceCase" : "BertWordPieceLowerCase";
}

/*
 * Guess the tokenizer type; return NULL if the files do not determine a type.  A tokenizer.json is preferred, as in
 * transformers: vocab.json and merges.txt do not define the pre-tokenizer, and a vocab.txt defines neither added tokens
 * nor [CLS] and [SEP] around a text.  For a BERT or T5, its type is PretrainedFromHF, which has [PAD] in every release
 * of Megatron-LM.  A tokenizer.model that begins with '[' (JSON) or a base64 character is a tiktoken vocabulary;
 * SentencePiece protobufs begin with byte 0x0A.
 */
static const char *guess_tokenizer_type(const struct meg_ckpt *c, const json_t *config,
                                        const struct ckpt_hf_family *family)
{
    char *path = c->tok_file[MEG_TOK_FILE_MODEL];
    struct meg_mmap m = { 0 };
    const int first = path && meg_mmap_open(&m, path, NULL) == 0 && m.n ? m.p[0] : 0;

    meg_mmap_close(&m);
    if (c->tok_file[MEG_TOK_FILE_JSON])
        return family->is_bert || family == &ckpt_hf_t5 ? "PretrainedFromHF" : "HuggingFaceTokenizer";
    if (family->is_bert && c->tok_file[MEG_TOK_FILE_BERT_VOCAB])
        return guess_wordpiece_type(config);
    if (c->tok_file[MEG_TOK_FILE_VOCAB] && c->tok_file[MEG_TOK_FILE_MERGES])
        return "GPT2BPETokenizer";
    if (!path)
        return NULL;
    if (first == '[' || first == '+' || first == '/' || isalnum(first))
        return "TikTokenizer";
    return family == &ckpt_hf_t5 || json_is_false(json_object_get(config, "add_bos_token"))
               ? "GPTSentencePieceTokenizer"
               : "Llama2Tokenizer";
}

/* Set c->options to the options of the model and those of the tokenizer, which the files of the directory determine. */
static int set_options(struct meg_ckpt *c, struct meg_model_conf *m, const struct ckpt_hf_family *family,
                       struct meg_err *e)
{
    struct meg_tok_conf tok = { 0 };
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, m }, { "tokenizer", meg_tok_opts, &tok }, { 0 } };
    struct meg_str options = { 0 };
    json_t *config = NULL;
    int r = 0;

    find_tokenizer(c);
    if (c->tok_file[MEG_TOK_FILE_CONFIG] &&
        (r = meg_json_load_regular(&config, c->tok_file[MEG_TOK_FILE_CONFIG], e)) < 0)
        return r;
    meg_opt_defaults(groups + 1);
    if (!read_own_options(c, config, groups + 1, &tok))
        tok.type = guess_tokenizer_type(c, config, family);
    json_decref(config);
    meg_opt_dump(groups, &options);
    c->options = options.s;
    return 0;
}

/* Read config.json: set *family and *m, the model without changes of family->fit_tensors, and the eos ids. */
static int read_config(struct meg_ckpt *c, const struct ckpt_hf_family **family, struct meg_model_conf *m,
                       struct meg_err *e)
{
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, m }, { 0 } };
    char *path = ckpt_path(c->path, "config.json");
    const struct ckpt_hf_family *f;
    int r;

    if ((r = meg_json_load_regular(&c->state, path, e)) < 0 || (r = ckpt_hf_find_family(&f, c->state, path, e)) < 0)
        goto out;
    meg_opt_defaults(groups);
    if ((r = f->read_config(m, c->state, path, e)) < 0 || (r = read_text_ids(c, f, m->vocab_size, e)) < 0)
        goto out;
    *family = f;
    c->format = format_of(f, m);
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
    return set_options(c, &m, family, e);
}

/* ---- writing; weights.c writes the weights ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Write a JSON object with its members sorted by name, as Hugging Face does. */
static int write_sorted(const char *dir, const char *name, json_t *object, struct meg_err *e)
{
    const char **key = meg_new(json_object_size(object) * sizeof *key), *k;
    json_t *sorted = json_object(), *value;
    struct meg_str text = { 0 };
    size_t n = 0;
    int r;

    json_object_foreach(object, k, value)
    {
        key[n++] = k;
    }
    qsort(key, n, sizeof *key, by_name);
    for (size_t i = 0; i < n; i++)
        json_object_set(sorted, key[i], json_object_get(object, key[i]));
    meg_json_dump(sorted, 2, &text);
    meg_str_add(&text, "\n", 1);
    r = ckpt_write_text(dir, name, &text, e);
    json_decref(sorted);
    free(key);
    meg_str_free(&text);
    return r;
}

/*
 * Set bos_token_id and eos_token_id of o if they are known and the model is not a BERT.  For GPT-2, the bos id
 * defaults to the end-of-document id.
 */
static void set_text_ids(json_t *o, const struct ckpt_hf_family *family, const struct meg_ckpt_tokenizer *tok)
{
    struct meg_ids ends = { 0 };
    const int32_t bos = tok->bos < 0 && family == &ckpt_hf_gpt2 ? tok->eod : tok->bos;

    if (family->is_bert)
        return;
    ckpt_add_id(&ends, tok->eod, INT32_MAX);
    for (int64_t i = 0; i < tok->eos_ids.n; i++)
        ckpt_add_id(&ends, tok->eos_ids.v[i], INT32_MAX);
    if (bos >= 0)
        json_object_set_new(o, bos_key_of(family), json_integer(bos));
    if (ends.n > 0)
        json_object_set_new(o, "eos_token_id", ckpt_ids_json(&ends));
    free(ends.v);
}

/*
 * Return the id of [PAD] in BERT's vocab.txt: the number of the last line that contains it, counted from 0, as in
 * transformers; 0 if there is no such line.
 */
static int64_t pad_id_of(const struct meg_str *vocab)
{
    static const char pad[] = "[PAD]";
    int64_t id = 0, found = 0;

    for (const char *line = vocab->s, *end = line + vocab->n, *next; line && line < end; line = next + 1, id++) {
        next = memchr(line, '\n', (size_t)(end - line));
        next = next ? next : end;
        if ((size_t)(next - line) >= sizeof pad - 1 && memcmp(line, pad, sizeof pad - 1) == 0 &&
            (next - line == sizeof pad - 1 || line[sizeof pad - 1] == '\r'))
            found = id;
    }
    return found;
}

static int write_config(const char *dir, const struct ckpt_hf_family *family, const struct meg_ckpt_save_args *s,
                        enum meg_dtype dtype, struct meg_err *e)
{
    static const char *const name[MEG_DTYPES] = {
        [MEG_DTYPE_F32] = "float32", [MEG_DTYPE_BF16] = "bfloat16", [MEG_DTYPE_F16] = "float16"
    };
    json_t *config = family->make_config(s->model);
    int r;

    if (s->tok)
        set_text_ids(config, family, s->tok);
    if (s->tok && json_object_get(config, "pad_token_id"))
        json_object_set_new(config, "pad_token_id", json_integer(pad_id_of(&s->tok->file[MEG_TOK_FILE_BERT_VOCAB])));
    json_object_set_new(config, "torch_dtype", json_string(name[dtype]));
    r = write_sorted(dir, "config.json", config, e);
    json_decref(config);
    return r;
}

/*
 * Write the extra files in tok.  If tok has no generation_config.json and a bos or eos id is known, write a
 * generation_config.json with the known ids.
 */
static int write_extras(const char *dir, const struct ckpt_hf_family *family, const struct meg_ckpt_tokenizer *tok,
                        struct meg_err *e)
{
    json_t *generation = json_object();
    int r = 0;

    set_text_ids(generation, family, tok);
    if (!tok->extra_file[GENERATION_CONFIG].s && json_object_size(generation) > 0)
        r = write_sorted(dir, meg_ckpt_extra_files[GENERATION_CONFIG], generation, e);
    for (int i = 0; i < MEG_CKPT_EXTRA_FILES && r == 0; i++)
        if (tok->extra_file[i].s)
            r = ckpt_write_text(dir, meg_ckpt_extra_files[i], &tok->extra_file[i], e);
    json_decref(generation);
    return r;
}

static int write_folder(const char *dir, const struct ckpt_hf_family *family, const struct meg_ckpt_save_args *s,
                        const struct meg_ckpt_hf_conf *to, struct meg_err *e)
{
    int r;

    if ((r = ckpt_write_hf_weights(dir, format_of(family, s->model), s, to, e)) < 0 ||
        (r = write_config(dir, family, s, to->dtype, e)) < 0 ||
        (s->tok && (r = write_extras(dir, family, s->tok, e)) < 0))
        return r;
    for (int i = 0; s->tok && i < MEG_NUM_TOK_FILES && r == 0; i++)
        if (s->tok->file[i].s)
            r = ckpt_write_text(dir,
                                i == MEG_TOK_FILE_MODEL && s->tok->is_not_spm_bpe ? MEG_MODEL : meg_tok_files[i].name,
                                &s->tok->file[i], e);
    return r;
}

static const struct ckpt_hf_family *family_of_model(const struct meg_model_conf *m)
{
    if (m->family == MEG_FAMILY_BERT)
        return m->is_post_norm ? &ckpt_hf_bert : &ckpt_hf_megatron_bert;
    if (m->family == MEG_FAMILY_T5)
        return &ckpt_hf_t5;
    return meg_model_is_rotary(m) ? &ckpt_hf_llama : &ckpt_hf_gpt2;
}

/*
 * If the model has a setting that only T5's format can express, return the reason why other formats cannot represent
 * the model.  Otherwise return NULL.
 */
static const char *t5_option_of(const struct meg_model_conf *m)
{
    if (m->glu_activation != MEG_GLU_ACTIVATION_NONE || m->activation_func != MEG_ACTIVATION_FUNC_GELU)
        return "the format has neither --glu-activation nor --activation-func relu";
    return m->softmax_scale > 0 ? "the format has no --softmax-scale" : NULL;
}

/* Choose the family of a model.  Return MEG_EUSAGE, with the reason, if the family cannot represent the model. */
static int choose_family(const struct ckpt_hf_family **out, const struct meg_model_conf *m, struct meg_err *e)
{
    const struct ckpt_hf_family *f = family_of_model(m);
    const char *why = f->unsupported_reason(m);

    if (!why && f != &ckpt_hf_t5)
        why = t5_option_of(m);
    if (why)
        return meg_fail(e, MEG_EUSAGE, "the model cannot be converted to Hugging Face's %s format: %s",
                        f->model_types[0], why);
    *out = f;
    return 0;
}

/* Patterns of the names of files that transformers, the model hub and meg write to Hugging Face directories. */
static const char *const known_files[] = {
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "pytorch_model*.bin",
    "pytorch_model.bin.index.json",
    "tokenizer*",
    "vocab.*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "README.md",
    "LICENSE*",
    "USE_POLICY.md",
    ".gitattributes",
    "training_args.bin",
    "preprocessor_config.json",
    MEG_MODEL,
    T5_MODEL,
    MEG_LOCK_DIR_FILE "*",
};

static bool is_known(const char *name)
{
    for (size_t i = 0; i < sizeof known_files / sizeof *known_files; i++)
        if (fnmatch(known_files[i], name, 0) == 0)
            return true;
    return false;
}

int meg_ckpt_check_replaceable(const char *at, const char *dir, struct meg_err *e)
{
    struct meg_ckpt *c = NULL;
    struct dirent *f;
    int r = 0;
    DIR *d;

    if (meg_ckpt_open(&c, at, MEG_UNSET, NULL) < 0 || strcmp(meg_ckpt_path(c), at) != 0 || c->is_native)
        r = meg_fail(e, MEG_EUSAGE,
                     "--overwrite: %s does not contain a complete Hugging Face checkpoint, so it is not replaced; "
                     "choose a new directory",
                     dir);
    meg_ckpt_close(c);
    d = opendir(at);
    while (r == 0 && d && (f = readdir(d)))
        if (strcmp(f->d_name, ".") != 0 && strcmp(f->d_name, "..") != 0 && !is_known(f->d_name))
            r = meg_fail(e, MEG_EUSAGE,
                         "--overwrite: %s/%s is not a file of a Hugging Face checkpoint, but would be removed; move it "
                         "or choose a new directory",
                         dir, f->d_name);
    if (d)
        closedir(d);
    return r;
}

int meg_ckpt_export_hf(const struct meg_ckpt_save_args *s, const struct meg_ckpt_hf_conf *to, struct meg_err *e)
{
    const struct ckpt_hf_family *family = NULL;
    char *tmp = NULL;
    int r = choose_family(&family, s->model, e);

    if (r < 0)
        return r;
    meg_temporary_remove_stale(s->dir);
    if ((r = meg_temporary_dir(&tmp, s->dir, e)) == 0 && (r = write_folder(tmp, family, s, to, e)) == 0)
        r = meg_lock_commit_dir(to->lock, tmp, s->dir, meg_ckpt_check_replaceable, e);
    if (r < 0 && tmp)
        meg_remove_tree(tmp, NULL);
    free(tmp);
    return r;
}
