/* tokenizer_files.c - the tokenizer's files and ids that are saved with a model. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "ckpt/internal.h"
#include "file/file.h"
#include "io/json.h"
#include "tokenizer/export/export.h"

const char *const meg_ckpt_extra_files[MEG_CKPT_EXTRA_FILES] = { "generation_config.json", "chat_template.jinja" };

/* ---- sets of ids ---- */

void ckpt_add_id(struct meg_ids *set, int64_t id, int64_t vocab_size)
{
    if (id < 0 || id >= vocab_size)
        return;
    for (int64_t i = 0; i < set->n; i++)
        if (set->v[i] == id)
            return;
    meg_ids_add(set, (int32_t)id);
}

void ckpt_add_ids(struct meg_ids *set, const json_t *value, int64_t vocab_size)
{
    const json_t *id;
    size_t i;

    if (json_is_integer(value))
        ckpt_add_id(set, json_integer_value(value), vocab_size);
    json_array_foreach(value, i, id)
    {
        if (json_is_integer(id))
            ckpt_add_id(set, json_integer_value(id), vocab_size);
    }
}

json_t *ckpt_ids_json(const struct meg_ids *set)
{
    json_t *list = json_array();

    if (set->n == 1) {
        json_decref(list);
        return json_integer(set->v[0]);
    }
    for (int64_t i = 0; i < set->n; i++)
        json_array_append_new(list, json_integer(set->v[i]));
    return list;
}

/* ---- the files ---- */

/*
 * Add tokenizer_class to tokenizer_config.json if config.json implies the class: a checkpoint does not contain the
 * config.json of a Hugging Face directory.
 */
static int keep_class(struct meg_str *config, const struct meg_tok_conf *c, struct meg_err *e)
{
    char *name;
    json_t *o;
    int r = meg_tok_implied_class(&name, c, e);

    if (r < 0 || !name)
        return r;
    o = config->s ? json_loadb(config->s, config->n, 0, NULL) : json_object();
    json_object_set_new(o, "tokenizer_class", json_string(name));
    config->n = 0;
    meg_json_dump(o, 2, config);
    meg_str_add(config, "\n", 1);
    json_decref(o);
    free(name);
    return 0;
}

int meg_ckpt_tokenizer_read(struct meg_ckpt_tokenizer *t, const struct meg_tok_conf *c, const struct meg_tokenizer *tok,
                            struct meg_err *e)
{
    struct meg_tok_conf conf = *c;
    const bool is_bert = c->type && strncmp(c->type, "BertWordPiece", strlen("BertWordPiece")) == 0;
    const int other = is_bert ? MEG_TOK_FILE_VOCAB : MEG_TOK_FILE_BERT_VOCAB;
    char *own[MEG_TOK_MAX_FOUND];
    int r = 0;

    meg_tok_find_files(&conf, own);
    t->eod = tok ? meg_tokenizer_eod(tok) : -1;
    t->bos = tok ? meg_tokenizer_special_ids(tok)->bos : -1;
    for (int i = 0; i < MEG_NUM_TOK_FILES && r == 0; i++)
        if (i != other && *meg_tok_file_path(&conf, i))
            r = meg_read_regular(*meg_tok_file_path(&conf, i), &t->file[i], e);
    if (r == 0 && conf.tokenizer_json)
        r = keep_class(&t->file[MEG_TOK_FILE_CONFIG], &conf, e);
    for (int i = 0; i < MEG_TOK_MAX_FOUND; i++)
        free(own[i]);
    return r;
}

int meg_ckpt_tokenizer_inherit(struct meg_ckpt_tokenizer *t, const struct meg_ckpt *c, struct meg_err *e)
{
    bool is_same = t->eod < 0;
    int r = 0;

    for (int64_t i = 0; i < c->eos_ids.n; i++)
        is_same |= c->eos_ids.v[i] == t->eod;
    if (!is_same)
        return 0;
    if (t->bos < 0)
        t->bos = c->bos;
    for (int64_t i = 0; i < c->eos_ids.n; i++)
        ckpt_add_id(&t->eos_ids, c->eos_ids.v[i], INT32_MAX);
    for (int i = 0; i < MEG_CKPT_EXTRA_FILES && r == 0; i++)
        if (c->extra_file[i])
            r = meg_read_regular(c->extra_file[i], &t->extra_file[i], e);
    return r;
}

/* Replace the contents of a file by text; the ownership of text is transferred. */
static void set_file(struct meg_ckpt_tokenizer *t, int file, struct meg_str *text)
{
    meg_str_free(&t->file[file]);
    t->file[file] = *text;
    *text = (struct meg_str){ 0 };
}

/*
 * Merge an existing tokenizer_config.json into *generated: keep its members, such as a chat template, that *generated
 * does not have.  If the existing file is not a JSON object, *generated is not changed.
 */
static void merge_config(struct meg_str *generated, const struct meg_str *existing)
{
    json_t *both = json_loadb(existing->s, existing->n, 0, NULL),
           *own = json_loadb(generated->s, generated->n, 0, NULL);

    if (json_is_object(both)) {
        json_object_update(both, own);
        generated->n = 0;
        meg_json_dump(both, 2, generated);
        meg_str_add(generated, "\n", 1);
    }
    json_decref(both);
    json_decref(own);
}

/*
 * Add the generated files.  An existing tokenizer_config.json is merged; an existing special_tokens_map.json is kept.
 */
static void add_generated(struct meg_ckpt_tokenizer *t, struct meg_tok_export_files *x)
{
    if (x->config.s && t->file[MEG_TOK_FILE_CONFIG].s)
        merge_config(&x->config, &t->file[MEG_TOK_FILE_CONFIG]);
    if (x->config.s)
        set_file(t, MEG_TOK_FILE_CONFIG, &x->config);
    if (x->special_map.s && !t->file[MEG_TOK_FILE_SPECIAL_MAP].s)
        set_file(t, MEG_TOK_FILE_SPECIAL_MAP, &x->special_map);
    if (x->tokenizer.s)
        set_file(t, MEG_TOK_FILE_JSON, &x->tokenizer);
}

void meg_ckpt_tokenizer_export(struct meg_ckpt_tokenizer *t, const struct meg_tok_conf *c)
{
    const bool has_both = t->file[MEG_TOK_FILE_JSON].s && t->file[MEG_TOK_FILE_CONFIG].s;
    struct meg_tok_export_files x = { 0 };
    bool has_files = false;
    struct meg_err e;
    int r;

    for (int i = 0; i < MEG_NUM_TOK_FILES; i++)
        has_files |= t->file[i].s != NULL;
    if (!has_files)
        return;
    if ((r = meg_tok_export(&x, c, &e)) < 0 && !has_both)
        meg_warn("cannot write tokenizer.json: %s; programs that read only this file cannot open the tokenizer", e.msg);
    if (r == 0 && t->eod < 0)
        t->eod = x.eod;
    if (r == 0 && t->bos < 0)
        t->bos = x.bos;
    if (r == 0 || !has_both)
        t->is_not_spm_bpe = x.is_not_spm_bpe;
    if (!has_both)
        add_generated(t, &x);
    meg_tok_export_free(&x);
}

void meg_ckpt_tokenizer_free(struct meg_ckpt_tokenizer *t)
{
    for (int i = 0; i < MEG_NUM_TOK_FILES; i++)
        meg_str_free(&t->file[i]);
    for (int i = 0; i < MEG_CKPT_EXTRA_FILES; i++)
        meg_str_free(&t->extra_file[i]);
    free(t->eos_ids.v);
}
