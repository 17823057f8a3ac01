#include "text/gpt2_files.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "text/bytemap.h"

#define EOD "<|endoftext|>"
enum { NAMED = 5 }; /* so many wrong merges are named, the others counted */

/* Id of a token; -1 when the vocabulary lacks it. */
static int32_t id_of(const json_t *vocab, const char *token)
{
    const json_t *id = json_object_get(vocab, token);

    return id ? (int32_t)json_integer_value(id) : -1;
}

static int load_vocab(struct meg_gpt2_files *f, json_t *vocab, const char *path, struct meg_err *e)
{
    const char **token, *key;
    json_t *value;
    int lacking = 0, r = MEG_OK;

    if (!json_is_object(vocab))
        return meg_fail(e, MEG_EFORMAT, "%s: not a JSON object that maps tokens to ids", path);
    f->n = (int64_t)json_object_size(vocab);
    token = meg_new((size_t)f->n * sizeof *token);
    json_object_foreach(vocab, key, value)
    {
        json_int_t id = json_integer_value(value);

        if (!json_is_integer(value) || id < 0 || id >= f->n) {
            char *found = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);

            r = meg_fail(e, MEG_EFORMAT,
                         "%s: token '%s' has id %s; the ids of %lld tokens are 0 to %lld", path,
                         key, found, (long long)f->n, (long long)f->n - 1);
            free(found);
            goto out;
        }
        if (token[id]) {
            r = meg_fail(e, MEG_EFORMAT, "%s: tokens '%s' and '%s' both have id %lld", path,
                         token[id], key, (long long)id);
            goto out;
        }
        token[id] = key;
    }
    f->at = meg_new((size_t)(f->n + 1) * sizeof *f->at);
    for (int64_t id = 0; id < f->n; id++) {
        int64_t len = (int64_t)strlen(token[id]);

        if (meg_bytemap_read(&f->bytes, token[id], len) < 0)
            meg_str_add(&f->bytes, token[id], (size_t)len); /* added by hand: stands for itself */
        f->at[id + 1] = (int64_t)f->bytes.n;
    }
    for (int b = 0; b < 256; b++) {
        struct meg_str s = { 0 };
        char c = (char)b;

        meg_bytemap_spell(&s, &c, 1);
        f->byte_id[b] = id_of(vocab, s.s);
        lacking += f->byte_id[b] < 0;
        meg_str_free(&s);
    }
    if (lacking > 0)
        meg_warn("%s: %d of the 256 bytes are no token; as in Megatron-LM they become id 0", path,
                 lacking);
    if ((f->eod = id_of(vocab, EOD)) < 0)
        r = meg_fail(e, MEG_EFORMAT, "%s: no token %s, which ends a document", path, EOD);
out:
    free(token);
    return r;
}

/* The next word of a line, as a string of its own; NULL at the line's end. */
static char *next_word(char **line)
{
    char *s = *line + strspn(*line, " \t\r\v\f"), *end = s + strcspn(s, " \t\r\v\f");

    if (s == end)
        return NULL;
    *line = *end ? end + 1 : end;
    *end = '\0';
    return s;
}

/* What is wrong with merges, for one message. */
struct wrong {
    int64_t n;
    struct meg_str names;
};

static void add_wrong(struct wrong *w, int64_t line, const char *left, const char *right,
                      const char *lacks)
{
    if (w->n++ < NAMED)
        meg_str_printf(&w->names, "%s line %lld: '%s' + '%s', but there is no token '%s'",
                       w->n > 1 ? ";" : "", (long long)line, left, right, lacks);
}

/* One line, which becomes the merge of that rank; 0 when it is blank. */
static int load_merge(struct meg_gpt2_files *f, const json_t *vocab, char *line, int64_t number,
                      int32_t rank, const char *path, struct wrong *wrong, struct meg_err *e)
{
    char *left = next_word(&line), *right = next_word(&line);
    struct meg_str both = { 0 };
    int32_t l, r, id;

    if (!left)
        return 0;
    if (!right || next_word(&line))
        return meg_fail(e, MEG_EFORMAT, "%s, line %lld: a merge is two tokens with a blank between",
                        path, (long long)number);
    meg_str_printf(&both, "%s%s", left, right);
    l = id_of(vocab, left);
    r = id_of(vocab, right);
    id = id_of(vocab, both.s);
    if (l < 0 || r < 0 || id < 0)
        add_wrong(wrong, number, left, right, l < 0 ? left : r < 0 ? right : both.s);
    else
        meg_bpe_add(&f->bpe, l, r, rank, id);
    meg_str_free(&both);
    return 1;
}

static int load_merges(struct meg_gpt2_files *f, const json_t *vocab, const char *path,
                       const char *vocab_path, char *text, size_t n, struct meg_err *e)
{
    struct wrong wrong = { 0 };
    int64_t lines = 0, number = 1;
    char *line = memchr(text, '\n', n), *end;
    int32_t rank = 0;
    int r = MEG_OK;

    for (size_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    meg_bpe_init(&f->bpe, lines);
    if (n > 0 && text[0] != '#')
        meg_warn("%s: the first line is not a version but is not read either, as in Megatron-LM",
                 path);
    for (line = line ? line + 1 : text + n; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        if ((r = load_merge(f, vocab, line, ++number, rank, path, &wrong, e)) < 0)
            goto out;
        rank += r;
    }
    if (*line)
        meg_warn("%s: the last line does not end with a newline and is not read, as in Megatron-LM",
                 path);
    r = MEG_OK;
    if (wrong.n > 0)
        r = meg_fail(e, MEG_EFORMAT, "%s does not match %s (%lld of %d merges):%s%s", path,
                     vocab_path, (long long)wrong.n, rank, wrong.names.s,
                     wrong.n > NAMED ? "; ..." : "");
out:
    meg_str_free(&wrong.names);
    return r;
}

int meg_gpt2_files_load(struct meg_gpt2_files **out, const char *vocab_path, const char *merge_path,
                        struct meg_err *e)
{
    struct meg_gpt2_files *f = meg_new(sizeof *f);
    struct meg_map vocab = { 0 }, merges = { 0 };
    json_t *json = NULL;
    json_error_t where;
    char *text = NULL;
    int r;

    if ((r = meg_map_open(&vocab, vocab_path, e)) < 0 ||
        (r = meg_map_open(&merges, merge_path, e)) < 0)
        goto out;
    json = json_loadb((const char *)vocab.p, vocab.n, JSON_REJECT_DUPLICATES, &where);
    if (!json) {
        r = meg_fail(e, MEG_EFORMAT, "%s: line %d, column %d: %s", vocab_path, where.line,
                     where.column, where.text);
        goto out;
    }
    text = meg_strndup((const char *)merges.p, merges.n);
    if ((r = load_vocab(f, json, vocab_path, e)) < 0 ||
        (r = load_merges(f, json, merge_path, vocab_path, text, strlen(text), e)) < 0)
        goto out;
    *out = f;
    f = NULL;
out:
    meg_gpt2_files_free(f);
    meg_map_close(&vocab);
    meg_map_close(&merges);
    json_decref(json);
    free(text);
    return r;
}

void meg_gpt2_files_free(struct meg_gpt2_files *f)
{
    if (!f)
        return;
    meg_str_free(&f->bytes);
    meg_bpe_free(&f->bpe);
    free(f->at);
    free(f);
}
