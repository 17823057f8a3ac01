/* write.c - write a Hugging Face directory; weights.c writes the weights. */
#include <stdlib.h>
#include <string.h>
#include "ckpt/hf/internal.h"
#include "file/temporary.h"
#include "io/json.h"

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
    if (!tok->extra_file[CKPT_HF_GENERATION_CONFIG].s && json_object_size(generation) > 0)
        r = write_sorted(dir, meg_ckpt_extra_files[CKPT_HF_GENERATION_CONFIG], generation, e);
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

    if ((r = ckpt_write_hf_weights(dir, ckpt_hf_format_of(family, s->model), s, to, e)) < 0 ||
        (r = write_config(dir, family, s, to->dtype, e)) < 0 ||
        (s->tok && (r = write_extras(dir, family, s->tok, e)) < 0))
        return r;
    for (int i = 0; s->tok && i < MEG_NUM_TOK_FILES && r == 0; i++)
        if (s->tok->file[i].s)
            r = ckpt_write_text(
                dir, i == MEG_TOK_FILE_MODEL && s->tok->is_not_spm_bpe ? CKPT_HF_MEG_MODEL : meg_tok_files[i].name,
                &s->tok->file[i], e);
    return r;
}

static const struct ckpt_hf_family *family_of_model(const struct meg_model_conf *m)
{
    if (m->family == MEG_FAMILY_BERT)
        return m->residual_from_norm ? &ckpt_hf_bert : &ckpt_hf_megatron_bert;
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
