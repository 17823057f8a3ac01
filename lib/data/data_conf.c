#include "data/data_conf.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"

#define C struct meg_data_conf
const struct meg_opt meg_data_opts[] = {
    { "data-path", 0, MEG_LIST(C, data_path), "PREFIX...", NULL,
      "datasets, names without .bin and .idx: one; several, used whole; or WEIGHT PREFIX pairs" },
    { "split", 0, MEG_STR(C, split), "A,B,C", NULL,
      "shares of --data-path for training, validation and test (969, 30, 1 when not given)" },
    { "train-data-path", 0, MEG_LIST(C, split_path[MEG_TRAIN]), "PREFIX...", NULL,
      "datasets for training alone, in the forms of --data-path" },
    { "valid-data-path", 0, MEG_LIST(C, split_path[MEG_VALID]), "PREFIX...", NULL,
      "datasets for validation alone" },
    { "test-data-path", 0, MEG_LIST(C, split_path[MEG_TEST]), "PREFIX...", NULL,
      "datasets for the test alone" },
    { "data-args-path", 0, MEG_STR(C, data_args_path), "FILE", NULL,
      "read the words of --data-path from FILE" },
    { "per-split-data-args-path", 0, MEG_STR(C, per_split_data_args_path), "FILE", NULL,
      "read the words for each split from a JSON object with keys train, valid and test" },
    { "mock-data", 0, MEG_BOOL(C, mock_data), NULL, "no",
      "train on made-up tokens, the same on every machine" },
    { "data-cache-path", 0, MEG_STR(C, data_cache_path), "FOLDER", NULL,
      "keep sample indices here (PREFIX/cache/GPTDataset_indices when not given)" },
    { "renormalize-blend-weights", 0, MEG_BOOL(C, renormalize_blend_weights), NULL, "no",
      "weigh the datasets of a blend by the samples each was built for" },
    { "reset-position-ids", 0, MEG_BOOL(C, reset_position_ids), NULL, "no",
      "count positions from 0 again after each end of document" },
    { "reset-attention-mask", 0, MEG_BOOL(C, reset_attention_mask), NULL, "no",
      "let no token see what lies before its own document" },
    { "eod-mask-loss", 0, MEG_BOOL(C, eod_mask_loss), NULL, "no",
      "take no loss at tokens that end a document" },
    { "dataloader-type", 0, MEG_STR(C, dataloader_type), "single|cyclic", "single",
      "once through the samples in order, or every epoch permuted anew" },
    { "no-data-sharding", 0, MEG_BOOL(C, no_data_sharding), NULL, "no",
      "permute all samples of an epoch together, not each rank's share (cyclic)" },
    { 0 }
};
#undef C

enum meg_sampler_kind meg_data_sampler_kind(const struct meg_data_conf *c)
{
    if (strcmp(c->dataloader_type, "cyclic") != 0)
        return MEG_SAMPLER_SINGLE;
    return c->no_data_sharding ? MEG_SAMPLER_CYCLIC_SHARED : MEG_SAMPLER_CYCLIC;
}

/* ---- words to files --------------------------------------------------------------------------- */

struct words {
    char **v;
    int64_t n;
};

static void add_word(struct words *w, const char *s, size_t n)
{
    w->v = meg_realloc_array(w->v, (size_t)w->n + 1, sizeof *w->v);
    w->v[w->n++] = meg_strndup(s, n);
}

static void add_split_at_blanks(struct words *w, const char *text)
{
    static const char blank[] = " \t\n\r\v\f";
    for (const char *p = text + strspn(text, blank); *p; p += strspn(p, blank)) {
        size_t n = strcspn(p, blank);
        add_word(w, p, n);
        p += n;
    }
}

static void free_words(struct words *w)
{
    for (int64_t i = 0; i < w->n; i++)
        free(w->v[i]);
    free(w->v);
    *w = (struct words){ 0 };
}

/* from: the option or file that gave the words, for messages. */
static int parse_blend(struct meg_data_blend *b, const struct words *w, const char *from,
                       struct meg_err *e)
{
    int64_t n = w->n, numbers = 0, step;
    double x;

    for (int64_t i = 0; n % 2 == 0 && i < n; i += 2)
        numbers += meg_parse_f64(w->v[i], &x);
    if (numbers > 0 && numbers < n / 2)
        return meg_fail(e, MEG_EUSAGE,
                        "%s: %lld of the %lld words in the places of weights are numbers; give "
                        "a weight before every prefix, or before none",
                        from, (long long)numbers, (long long)(n / 2));
    step = numbers > 0 ? 2 : 1;
    if (n / step > 32766)
        return meg_fail(e, MEG_EUSAGE, "%s: %lld datasets, at most 32766 can be blended", from,
                        (long long)(n / step));
    b->n = (int)(n / step);
    b->prefix = meg_new((size_t)b->n * sizeof *b->prefix);
    b->weight = step == 2 ? meg_new((size_t)b->n * sizeof *b->weight) : NULL;
    for (int i = 0; i < b->n; i++) {
        b->prefix[i] = meg_strdup(w->v[i * step + step - 1]);
        if (step == 2 && (!meg_parse_f64(w->v[i * step], &b->weight[i]) || !(b->weight[i] > 0)))
            return meg_fail(e, MEG_EUSAGE, "%s: weight %s of %s is not above 0", from,
                            w->v[i * step], b->prefix[i]);
    }
    return 0;
}

static int parse_list(struct meg_data_blend *b, const struct meg_list *list, const char *from,
                      struct meg_err *e)
{
    struct words w = { 0 };
    int r;

    for (int64_t i = 0; i < list->n; i++)
        add_word(&w, list->v[i], strlen(list->v[i]));
    r = parse_blend(b, &w, from, e);
    free_words(&w);
    return r;
}

static int parse_file(struct meg_data_blend *b, const char *path, struct meg_err *e)
{
    struct meg_str text = { 0 };
    struct words w = { 0 };
    int r = meg_read_file(path, &text, e);

    if (r == 0) {
        add_split_at_blanks(&w, text.s);
        r = w.n ? parse_blend(b, &w, path, e)
                : meg_fail(e, MEG_EUSAGE, "%s: names no dataset (--data-args-path)", path);
    }
    free_words(&w);
    meg_str_free(&text);
    return r;
}

static int json_words(struct words *w, const json_t *v, const char *path, const char *key,
                      struct meg_err *e)
{
    const json_t *word;
    size_t i;

    if (json_is_string(v)) {
        add_split_at_blanks(w, json_string_value(v));
        return 0;
    }
    if (!json_is_array(v) && !json_is_null(v))
        return meg_fail(e, MEG_EFORMAT, "%s: \"%s\" is missing, or no list, string or null", path,
                        key);
    json_array_foreach(v, i, word) {
        if (!json_is_string(word))
            return meg_fail(e, MEG_EFORMAT, "%s: \"%s\"[%zu] is no string", path, key, i);
        add_word(w, json_string_value(word), json_string_length(word));
    }
    return 0;
}

static int parse_per_split_file(struct meg_data_blend *b, const char *path, struct meg_err *e)
{
    json_t *o = NULL;
    int r = meg_json_load(&o, path, e);

    for (int i = 0; i < MEG_SPLITS && r == 0; i++) {
        struct words w = { 0 };
        if ((r = json_words(&w, json_object_get(o, meg_split_names[i]), path, meg_split_names[i],
                            e)) == 0)
            r = parse_blend(&b[i], &w, path, e);
        free_words(&w);
    }
    json_decref(o);
    return r;
}

/* ---- the choice ------------------------------------------------------------------------------- */

static int count_sources(const struct meg_data_conf *c, bool is_per_split, struct meg_err *e)
{
    const bool lists = c->split_path[0].n || c->split_path[1].n || c->split_path[2].n;
    const int n = (c->data_path.n > 0) + (c->data_args_path != NULL) + c->mock_data + lists +
        (c->per_split_data_args_path != NULL);

    if (n > 1)
        return meg_fail(
            e, MEG_EUSAGE,
            "give one of --data-path, --data-args-path, --train-data-path and its like, "
            "--per-split-data-args-path and --mock-data, not several");
    if (n == 0)
        return meg_fail(e, MEG_EUSAGE,
                        "no data: give --data-path PREFIX, or --mock-data for made-up tokens");
    if (is_per_split && c->split)
        return meg_fail(e, MEG_EUSAGE,
                        "--split shares out --data-path; each split has data of its own here");
    return 0;
}

int meg_data_choose(struct meg_data_choice *out, const struct meg_data_conf *c, struct meg_err *e)
{
    static const char *const names[] = { "--train-data-path", "--valid-data-path",
                                         "--test-data-path" };
    struct meg_data_choice ch = { .is_mock = c->mock_data };
    int r;

    ch.is_per_split = c->split_path[0].n || c->split_path[1].n || c->split_path[2].n ||
        c->per_split_data_args_path;
    if ((r = count_sources(c, ch.is_per_split, e)) < 0)
        goto out;
    if (c->per_split_data_args_path)
        r = parse_per_split_file(ch.blend, c->per_split_data_args_path, e);
    else if (c->data_args_path)
        r = parse_file(&ch.blend[0], c->data_args_path, e);
    else if (c->data_path.n)
        r = parse_list(&ch.blend[0], &c->data_path, "--data-path", e);
    else
        for (int i = 0; i < MEG_SPLITS && r == 0; i++)
            r = parse_list(&ch.blend[i], &c->split_path[i], names[i], e);
    if (r < 0)
        goto out;
    if (!ch.is_per_split) {
        ch.split = c->split ? c->split : c->mock_data ? "1,1,1" : "969, 30, 1";
        if (!c->split && !c->mock_data)
            meg_note("no --split given: using %s", ch.split);
    }
    *out = ch;
    return 0;
out:
    meg_data_choice_free(&ch);
    return r;
}

void meg_data_choice_free(struct meg_data_choice *ch)
{
    for (int k = 0; k < MEG_SPLITS; k++) {
        for (int i = 0; i < ch->blend[k].n; i++)
            free(ch->blend[k].prefix[i]);
        free(ch->blend[k].prefix);
        free(ch->blend[k].weight);
    }
    *ch = (struct meg_data_choice){ 0 };
}
