/*
 * For each --tokenizer-type with small vocabularies, ids and texts equal those of the reference implementations, which
 * tests/data/tokenizers/README.md lists.
 */
#include "tok_golden.h"

#include <dirent.h>
#include <inttypes.h>

#define FOLDER "tests/data/tokenizers/"

/* Open a tokenizer with the options of a JSON object { name: value }. */
static struct meg_tokenizer *open_with(json_t *options)
{
    struct meg_tok_conf c = { 0 };
    const struct meg_optgroup groups[] = { { "tokenizer", meg_tok_opts, &c }, { 0 } };
    struct meg_tokenizer *t = NULL;
    struct meg_str lines = { 0 };
    const char *name;
    json_t *value;
    struct meg_err e;

    meg_opt_defaults(groups);
    json_object_foreach(options, name, value)
    {
        if (json_is_integer(value))
            meg_str_printf(&lines, "%s = %" PRId64 "\n", name, (int64_t)json_integer_value(value));
        else
            meg_str_printf(&lines, "%s = %s\n", name, json_string_value(value));
    }
    if (meg_opt_apply(groups, lines.s, "options", &e) < 0 || meg_tokenizer_open(&t, &c, &e) < 0)
        fail_msg("%s", e.msg);
    meg_str_free(&lines);
    return t;
}

static json_t *next_line(FILE *f, char **line, size_t *cap)
{
    return getline(line, cap, f) > 0 ? json_loads(*line, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL) : NULL;
}

/*
 * Check the remaining lines of a file: [ID...], the ids of the next line of texts.jsonl, {"text", "ids"}, or
 * {"decode": [ID...], "text"}.
 */
static void check_lines(FILE *f, const char *name, struct meg_tokenizer *t)
{
    FILE *texts = fopen(FOLDER "texts.jsonl", "r");
    char *line = NULL, *text_line = NULL;
    size_t cap = 0, text_cap = 0;
    int n = 0, nencoded = 0, ndiffering = 0;
    json_t *j;

    assert_non_null(texts);
    for (; (j = next_line(f, &line, &cap)); n++) {
        const json_t *decode = json_object_get(j, "decode");
        json_t *text =
            json_is_array(j) ? next_line(texts, &text_line, &text_cap) : json_incref(json_object_get(j, "text"));
        int bad;

        assert_non_null(text);
        if (decode)
            bad = tok_decodes_one(t, text, decode);
        else
            bad = tok_encodes_one(t, text, json_is_array(j) ? j : json_object_get(j, "ids"));
        if (bad)
            print_message("# %s, line %d differs: %s\n", name, n + 2, json_string_value(text));
        nencoded += !decode;
        ndiffering += bad;
        json_decref(text);
        json_decref(j);
    }
    assert_true(nencoded >= 3);
    assert_int_equal(ndiffering, 0);
    fclose(texts);
    free(line);
    free(text_line);
}

/* Check one file, and set bit i of *types, where i is the index of its type in the list of --tokenizer-type. */
static void check_file(const char *name, uint64_t *types)
{
    char path[512], *line = NULL;
    size_t cap = 0;
    struct meg_tokenizer *t;
    const char *choice = meg_tok_opts[0].metavar, *type;
    json_t *head, *fact;
    FILE *f;

    snprintf(path, sizeof path, FOLDER "%s", name);
    f = fopen(path, "r");
    assert_non_null(f);
    head = next_line(f, &line, &cap);
    print_message("# %s\n", name);
    t = open_with(json_object_get(head, "options"));
    if ((fact = json_object_get(head, "vocab_size")))
        assert_int_equal(meg_tokenizer_vocab_size(t), json_integer_value(fact));
    if ((fact = json_object_get(head, "eod")))
        assert_int_equal(meg_tokenizer_eod(t), json_is_null(fact) ? -1 : json_integer_value(fact));
    check_lines(f, name, t);
    type = json_string_value(json_object_get(json_object_get(head, "options"), "tokenizer-type"));
    for (int i = 0; *choice; i++, choice += strcspn(choice, "|"), choice += *choice == '|')
        if (strcspn(choice, "|") == strlen(type) && memcmp(choice, type, strlen(type)) == 0)
            *types |= (uint64_t)1 << i;
    meg_tokenizer_close(t);
    json_decref(head);
    fclose(f);
    free(line);
}

static void each_type_equals_its_reference(void **state)
{
    DIR *dir = opendir(FOLDER);
    const struct dirent *entry;
    uint64_t types = 0;
    int ntypes = 1;

    (void)state;
    assert_non_null(dir);
    while ((entry = readdir(dir))) {
        const char *ext = strrchr(entry->d_name, '.');

        if (ext && strcmp(ext, ".jsonl") == 0 && strcmp(entry->d_name, "texts.jsonl") != 0)
            check_file(entry->d_name, &types);
    }
    closedir(dir);
    for (const char *s = meg_tok_opts[0].metavar; *s; s++)
        ntypes += *s == '|';
    assert_int_equal(types, ((uint64_t)1 << ntypes) - 1); /* each type has a file */
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(each_type_equals_its_reference) };

    return cmocka_run_group_tests_name("reference", tests, NULL, NULL);
}
