/* write.c - write a Hugging Face directory; weights.c writes the weights. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "ckpt/hf/internal.h"
#include "file/temporary.h"
#include "io/json.h"

/* Write a JSON object with its members sorted by name, as Hugging Face does. */
static int write_sorted(const char *dir, const char *name, const json_t *object, struct meg_err *e)
{
    char *members = json_dumps(object, JSON_SORT_KEYS);
    json_t *sorted = json_loads(members, 0, NULL);
    struct meg_str text = { 0 };
    int r;

    meg_json_dump(sorted, 2, &text);
    meg_str_add(&text, "\n", 1);
    r = ckpt_write_text(dir, name, &text, e);
    json_decref(sorted);
    free(members);
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
        json_object_set_new(o, ckpt_hf_bos_key(family), json_integer(bos));
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

static int write_config(const char *dir, const struct ckpt_hf_family *family, const struct meg_model_conf *m,
                        const struct meg_ckpt_tokenizer *tok, enum meg_dtype dtype, struct meg_err *e)
{
    static const char *const name[MEG_DTYPES] = {
        [MEG_DTYPE_F32] = "float32", [MEG_DTYPE_BF16] = "bfloat16", [MEG_DTYPE_F16] = "float16"
    };
    json_t *config = ckpt_hf_make_config(family, m);
    int r;

    if (tok)
        set_text_ids(config, family, tok);
    if (tok && json_object_get(config, "pad_token_id"))
        json_object_set_new(config, "pad_token_id", json_integer(pad_id_of(&tok->file[MEG_TOK_FILE_BERT_VOCAB])));
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
    if (!tok->extra_file[CKPT_HF_GENERATION_CONFIG].s && json_object_size(generation) > 0)
        r = write_sorted(dir, meg_ckpt_extra_files[CKPT_HF_GENERATION_CONFIG], generation, e);
    for (int i = 0; i < MEG_CKPT_EXTRA_FILES && r == 0; i++)
        if (tok->extra_file[i].s)
            r = ckpt_write_text(dir, meg_ckpt_extra_files[i], &tok->extra_file[i], e);
    json_decref(generation);
    return r;
}

static int write_folder(const char *dir, const struct ckpt_hf_family *family, const struct meg_model_conf *m,
                        const struct meg_ckpt_save_args *s, const struct meg_ckpt_hf_conf *to, struct meg_err *e)
{
    int r;

    if ((r = ckpt_write_hf_weights(dir, ckpt_hf_format_of(family, s->model), s, to, e)) < 0 ||
        (r = write_config(dir, family, m, s->tok, to->dtype, e)) < 0 ||
        (s->tok && (r = write_extras(dir, family, s->tok, e)) < 0))
        return r;
    for (int i = 0; s->tok && i < MEG_NUM_TOK_FILES && r == 0; i++)
        if (s->tok->file[i].s)
            r = ckpt_write_text(
                dir, i == MEG_TOK_FILE_MODEL && s->tok->is_not_spm_bpe ? CKPT_HF_MEG_MODEL : meg_tok_files[i].name,
                &s->tok->file[i], e);
    return r;
}

/*
 * Set *out to the family that loses the fewest options of a model when its config.json is read back, preferably one of
 * the same --model.  Set *written to the model that config.json describes.  Return MEG_EUSAGE, with the lost options,
 * if the family cannot represent the model.
 */
static int choose_family(const struct ckpt_hf_family **out, struct meg_model_conf *written,
                         const struct meg_model_conf *m, struct meg_err *e)
{
    struct meg_model_conf back = { 0 };
    const char *warning = NULL;
    int fewest = INT32_MAX;
    char format[64];

    for (const struct ckpt_hf_family *const *f = ckpt_hf_families; *f && fewest > 0; f++) {
        struct meg_model_conf to = *m, from = { 0 };
        const char *why = (*f)->approximate ? (*f)->approximate(&to) : NULL;
        json_t *config = ckpt_hf_make_config(*f, &to);
        int n = INT32_MAX;

        if (ckpt_hf_read_config(&from, *f, config, "config.json", NULL) == 0) {
            meg_model_conf_check(&from, NULL); /* derive unset options */
            n = ckpt_list_lost_options(NULL, &to, &from) + (from.family == m->family ? 0 : 1000);
        }
        json_decref(config);
        if (n < fewest) {
            fewest = n;
            *out = *f;
            *written = to;
            back = from;
            warning = why;
        }
    }
    MEG_ASSERT(*out);
    snprintf(format, sizeof format, "Hugging Face's %s format", (*out)->model_type);
    if (fewest > 0)
        return ckpt_refuse_lost_options(written, &back, format, e);
    if (warning)
        meg_warn("%s", warning);
    return 0;
}

int meg_ckpt_export_hf(const struct meg_ckpt_save_args *s, const struct meg_ckpt_hf_conf *to, struct meg_err *e)
{
    const struct ckpt_hf_family *family = NULL;
    struct meg_model_conf written;
    char *tmp = NULL;
    int r = choose_family(&family, &written, s->model, e);

    if (r < 0)
        return r;
    meg_temporary_remove_stale(s->dir);
    if ((r = meg_temporary_dir(&tmp, s->dir, e)) == 0 && (r = write_folder(tmp, family, &written, s, to, e)) == 0)
        r = meg_lock_commit_dir(to->lock, tmp, s->dir, meg_ckpt_check_replaceable, e);
    if (r < 0 && tmp)
        meg_remove_tree(tmp, NULL);
    free(tmp);
    return r;
}
