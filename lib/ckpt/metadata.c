/* metadata.c - the files of a native checkpoint other than tensor files and the manifest. */
#include <string.h>
#include "base/hash.h"
#include "ckpt/save_internal.h"
#include "io/json.h"

#define INDEX "model.safetensors.index.json"

static void add_metadata_file(struct ckpt_metadata *m, const char *name, bool is_listed, const struct meg_str *text)
{
    struct ckpt_metadata_file *f = &m->file[m->n++];

    f->name = name;
    f->is_listed = is_listed;
    meg_str_add(&f->text, text->s, text->n);
}

static void add_json(struct ckpt_metadata *m, const char *name, const json_t *value)
{
    struct meg_str text = { 0 };

    meg_json_dump(value, 1, &text);
    meg_str_add(&text, "\n", 1);
    add_metadata_file(m, name, true, &text);
    meg_str_free(&text);
}

/* Split text into a JSON array of its lines. */
static json_t *lines_of(const char *text)
{
    json_t *lines = json_array();

    for (size_t n; *text; text += n + (text[n] == '\n')) {
        n = strcspn(text, "\n");
        json_array_append_new(lines, json_stringn_nocheck(text, n));
    }
    return lines;
}

/* Add eod_id (null: unknown), end_ids (eos ids other than eod_id, if any) and bos_id (if known) to the object state. */
static void add_text_ids(json_t *state, const struct meg_ckpt_tokenizer *tok)
{
    json_t *ends = json_array();

    json_object_set_new(state, "eod_id", tok && tok->eod >= 0 ? json_integer(tok->eod) : json_null());
    for (int64_t i = 0; tok && i < tok->eos_ids.n; i++)
        if (tok->eos_ids.v[i] != tok->eod)
            json_array_append_new(ends, json_integer(tok->eos_ids.v[i]));
    if (json_array_size(ends) > 0)
        json_object_set(state, "end_ids", ends);
    if (tok && tok->bos >= 0)
        json_object_set_new(state, "bos_id", json_integer(tok->bos));
    json_decref(ends);
}

static void add_state(struct ckpt_metadata *m, const struct meg_ckpt_save_args *s)
{
    json_t *state = json_object();

    json_object_set_new(state, "iteration",
                        s->iteration == MEG_CKPT_RELEASE ? json_null() : json_integer(s->iteration));
    json_object_set_new(state, "vocab_size", json_integer(s->model->vocab_size));
    add_text_ids(state, s->tok);
    json_object_set_new(state, "options", lines_of(s->options));
    json_object_set_new(state, "run", s->state ? json_deep_copy(s->state) : json_null());
    add_json(m, "state.json", state);
    json_decref(state);
}

static void add_index(struct ckpt_metadata *m, const struct meg_ckpt_save_args *s, const struct ckpt_file *file)
{
    json_t *files = json_object(), *index;
    json_int_t nbytes = 0;

    for (int i = 0; i < s->params->n; i++) {
        const struct meg_param *row = &s->params->row[i];

        json_object_set_new(files, row->name, json_string(file[row->layer_group].name));
        nbytes += row->numel * (json_int_t)meg_dtype_size(ckpt_shard_dtype(&s->weights, row));
    }
    index = json_pack("{s:{s:I},s:o}", "metadata", "total_size", nbytes, "weight_map", files);
    add_json(m, INDEX, index);
    json_decref(index);
}

void ckpt_metadata_list(struct ckpt_metadata *m, const struct meg_ckpt_save_args *s, const struct ckpt_file *file)
{
    for (int i = 0; s->tok && i < MEG_NUM_TOK_FILES; i++)
        if (s->tok->file[i].s)
            add_metadata_file(m, meg_tok_files[i].name, true, &s->tok->file[i]);
    for (int i = 0; s->tok && i < MEG_CKPT_EXTRA_FILES; i++)
        if (s->tok->extra_file[i].s)
            add_metadata_file(m, meg_ckpt_extra_files[i], true, &s->tok->extra_file[i]);
    add_index(m, s, file);
    add_state(m, s);
    if (s->run_conf) {
        struct meg_str text = { 0 };

        meg_str_printf(&text, "%s", s->run_conf);
        add_metadata_file(m, "run.conf", false, &text);
        meg_str_free(&text);
    }
}

int ckpt_metadata_write(const struct ckpt_metadata *m, const char *dir, json_t *files, struct meg_err *e)
{
    char hash[33];
    int r = 0;

    for (int i = 0; r == 0 && i < m->n; i++) {
        const struct ckpt_metadata_file *f = &m->file[i];

        r = ckpt_write_text(dir, f->name, &f->text, e);
        meg_xxh3_128_hex(hash, f->text.s, f->text.n);
        if (f->is_listed)
            json_object_set_new(files, f->name,
                                json_pack("{s:I,s:s}", "bytes", (json_int_t)f->text.n, "xxh3_128", hash));
    }
    return r;
}

void ckpt_metadata_free(struct ckpt_metadata *m)
{
    for (int i = 0; i < m->n; i++)
        meg_str_free(&m->file[i].text);
}
