/* Punkt sentence splitting: boundaries against NLTK, other cases, invalid parameter files, and lower case. */
#include "data_util.h"

#include "sentence/punkt.h"
#include "unicode/case_map.h"

/* Return the sentences of text, each followed by |, as a string that the caller frees. */
static char *joined(const struct meg_punkt *p, const char *text, size_t n)
{
    struct meg_spans out = { 0 };
    char *copy = malloc(n + (n == 0)), *all = malloc(2 * n + 2), *at = all;

    memcpy(copy, text, n); /* copy of the exact size, so that ASan reports reads beyond it */
    for (size_t k = 0; k < n;)
        k += (size_t)meg_punkt_split(p, copy + k, (int64_t)(n - k), &out);
    for (int64_t i = 0; i < out.n; i++) {
        assert_true(out.v[i].n > 0);
        memcpy(at, out.v[i].s, (size_t)out.v[i].n);
        at += out.v[i].n;
        *at++ = '|';
    }
    *at = 0;
    free(copy);
    free(out.v);
    return all;
}

static void splits_n(const struct meg_punkt *p, const char *text, size_t n, const char *want)
{
    char *got = joined(p, text, n);

    assert_string_equal(got, want);
    free(got);
}

static void splits(const struct meg_punkt *p, const char *text, const char *want)
{
    splits_n(p, text, strlen(text), want);
}

static struct meg_punkt *opened(const char *dir, bool keep_newlines)
{
    struct meg_punkt *p;
    struct meg_err e;

    if (meg_punkt_open(&p, dir, keep_newlines, &e) < 0)
        fail_msg("%s", e.msg);
    return p;
}

static void write_params(const char *dir, const char *abbreviations, const char *starters, const char *collocations,
                         const char *contexts)
{
    char path[256];

    mkdir(dir, 0777);
    snprintf(path, sizeof path, "%s/abbrev_types.txt", dir);
    spew_text(path, abbreviations);
    snprintf(path, sizeof path, "%s/sent_starters.txt", dir);
    spew_text(path, starters);
    snprintf(path, sizeof path, "%s/collocations.tab", dir);
    spew_text(path, collocations);
    snprintf(path, sizeof path, "%s/ortho_context.tab", dir);
    spew_text(path, contexts);
}

static void splits_without_parameters(void **state)
{
    struct meg_punkt *p = opened(NULL, false), *keep = opened(NULL, true);
    char *got;

    (void)state;
    splits(p, "", "");
    splits(p, " \n ", "");
    splits(p, "No end", "No end|");
    splits(p, "One. Two.  Three ", "One.|Two.|Three|");
    splits(keep, "One. Two.\n\nThree ", "One. |Two.\n\n|Three|");
    splits(p, "He left.  \" Then we.",
           "He left.  \"|Then we.|"); /* the closing mark belongs to the previous sentence */
    splits(p, "He left. \"-- Then we.", "He left. \"|-- Then we.|"); /* also before two dashes */
    splits(p, "(It is.) So.", "(It is.)|So.|");
    splits(p, "J. S. Bach.", "J. S. Bach.|"); /* initials */
    splits(p, "Dr. No.", "Dr.|No.|");
    splits(p, "Wait... What? Yes", "Wait... What?|Yes|");
    splits(p, "Wait... What?! Yes", "Wait...|What?!|Yes|"); /* in the context of ... there is a word after ? */
    splits(p,
           "A.\xC2\xA0"
           "B. \xE3\x80\x80"
           "C",
           "A.\xC2\xA0"
           "B. \xE3\x80\x80"
           "C|");
    got = joined(p, "a\0b. C\0. D", 10);
    assert_memory_equal(got, "a\0b.|C\0.|D|", 12);
    free(got);
    meg_punkt_close(p);
    meg_punkt_close(keep);
}

static void parameters_change_the_boundaries(void **state)
{
    struct meg_punkt *p;

    (void)state;
    write_params("learned", "dr\r\n\r\nx-y\nco\n", "the\n", "##number##\tstreet\nco\thouse", "we\t40\nhe\t32\n");
    p = opened("learned", false);
    splits(p, "Dr. No left. Bye.", "Dr. No left.|Bye.|");
    splits(p, "So did the wo-Dr. No. Bye.", "So did the wo-Dr. No.|Bye.|"); /* an abbreviation after a hyphen */
    splits(p, "See Dr. The end.", "See Dr.|The end.|");                     /* a frequent first word */
    splits(p, "See Dr. He left.", "See Dr.|He left.|");                     /* a word that also occurs in lower case */
    splits(p, "See 12. Street names. Co. House.", "See 12. Street names.|Co. House.|");
    meg_punkt_close(p);
}

static void long_texts_are_split_in_chunks(void **state)
{
    enum { N = 1000000 };
    struct meg_punkt *p = opened(NULL, false);
    struct meg_spans out = { 0 };
    char *text = malloc(2 * N + 8);

    (void)state;
    for (int i = 0; i < N; i++)
        memcpy(text + 2 * i, "\xC3\xA9", 2);
    memcpy(text + 2 * N, "bb. C", 5);
    assert_int_equal(meg_punkt_split(p, text, 2 * N + 5, &out), 2 * N);
    assert_int_equal(meg_punkt_split(p, text + 2 * N, 5, &out), 5);
    assert_int_equal(out.n, 3);
    assert_int_equal(out.v[0].n, 2 * N);
    assert_int_equal(out.v[1].n, 3);
    free(out.v);
    free(text);
    meg_punkt_close(p);
}

static void invalid_parameter_files_are_rejected(void **state)
{
    struct meg_punkt *p = NULL;
    struct meg_err e;

    (void)state;
    assert_int_equal(meg_punkt_open(&p, "nowhere", false, &e), MEG_ENOENT);
    assert_string_equal(e.msg, "nowhere/abbrev_types.txt: No such file or directory");
    write_params("bad", "a\tb\n", "", "", "");
    assert_int_equal(meg_punkt_open(&p, "bad", false, &e), MEG_EFORMAT);
    assert_string_equal(e.msg, "bad/abbrev_types.txt: line 1: found 'a\tb', expected an abbreviation");
    write_params("bad", "", "", "a\tb\na b\n", "");
    assert_int_equal(meg_punkt_open(&p, "bad", false, &e), MEG_EFORMAT);
    assert_string_equal(e.msg, "bad/collocations.tab: line 2: found 'a b', expected two words with a tab between them");
    static const char *const contexts[] = { "a\tb\n", "a\t128\n",      "a\t1\n",   "a\t-2\n",
                                            "a\t\n",  "a\t99999999\n", "a\t2\t2\n" };
    for (size_t i = 0; i < sizeof contexts / sizeof *contexts; i++) {
        write_params("bad", "", "", "", contexts[i]);
        assert_int_equal(meg_punkt_open(&p, "bad", false, &e), MEG_EFORMAT);
        assert_non_null(strstr(e.msg, "bad/ortho_context.tab: line 1: found 'a\t"));
    }
    write_params("bad", "", "a\n\xFFz\n", "", "");
    assert_int_equal(meg_punkt_open(&p, "bad", false, &e), MEG_EFORMAT);
    assert_string_equal(e.msg, "bad/sent_starters.txt: byte 3: invalid UTF-8: 0xff");
    assert_null(p);
}

static void lower_case_equals_that_of_python(void **state)
{
    static const char *const pairs[][2] = {
        { "AbC", "abc" },
        { "\xC3\x89T\xC3\x89", "\xC3\xA9t\xC3\xA9" },
        { "\xC4\xB0", "i\xCC\x87" },
        { "\xCE\x9F\xCE\x94\xCE\x9F\xCE\xA3", "\xCE\xBF\xCE\xB4\xCE\xBF\xCF\x82" }, /* final sigma */
        { "\xCE\x91\xCE\xA3'", "\xCE\xB1\xCF\x82'" }, /* case-ignorable characters are skipped */
        { "\xCE\x91\xCE\xA3'\xCE\x91", "\xCE\xB1\xCF\x83'\xCE\xB1" },
        { "\xCE\xA3", "\xCF\x83" }, /* a single sigma is not final */
    };

    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct meg_str s = { 0 };

        meg_utf8_add_lower(&s, pairs[i][0], (int64_t)strlen(pairs[i][0]));
        assert_string_equal(s.s, pairs[i][1]);
        meg_str_free(&s);
    }
    assert_true(meg_char_is_upper('A') && meg_char_is_upper(0x2160) && !meg_char_is_upper(0x1C5));
    assert_true(meg_char_is_lower('a') && meg_char_is_lower(0xAA) && !meg_char_is_lower(0x1C5));
}

static char *lines_of(const json_t *list)
{
    struct meg_str s = { 0 };
    const json_t *v, *field;
    size_t i, k;

    json_array_foreach(list, i, v)
    {
        if (json_is_string(v))
            meg_str_printf(&s, "%s", json_string_value(v));
        json_array_foreach(v, k, field) meg_str_printf(&s, k ? "\t%s" : "%s", json_string_value(field));
        meg_str_printf(&s, "\n");
    }
    return s.s;
}

static void boundaries_equal_those_of_nltk(void **state)
{
    json_t *all = golden_data("sentences/punkt.json"), *params = json_object_get(all, "params"), *c, *v;
    char *abbreviations = lines_of(json_object_get(params, "abbrev_types"));
    char *starters = lines_of(json_object_get(params, "sent_starters"));
    char *collocations = lines_of(json_object_get(params, "collocations"));
    struct meg_str contexts = { 0 };
    const char *key;
    size_t i, k, ncases = 0;

    (void)state;
    json_object_foreach(json_object_get(params, "ortho_context"), key, v)
        meg_str_printf(&contexts, "%s\t%d\n", key, (int)json_integer_value(v));
    write_params("golden", abbreviations, starters, collocations, contexts.s);
    for (int how = 0; how < 4; how++) {
        struct meg_punkt *p = opened(how & 1 ? "golden" : NULL, how & 2);

        json_array_foreach(json_object_get(all, "cases"), i, c)
        {
            const json_t *text = json_object_get(c, "text");
            struct meg_str want = { 0 };

            if (json_is_true(json_object_get(c, "with_params")) != (how & 1))
                continue;
            meg_str_add(&want, "", 0);
            json_array_foreach(json_object_get(c, how & 2 ? "sentences_keep_newlines" : "sentences"), k, v)
                meg_str_printf(&want, "%s|", json_string_value(v));
            splits_n(p, json_string_value(text), json_string_length(text), want.s);
            meg_str_free(&want);
            ncases++;
        }
        meg_punkt_close(p);
    }
    assert_true(ncases > 50);
    free(abbreviations);
    free(starters);
    free(collocations);
    meg_str_free(&contexts);
    json_decref(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_without_parameters),        cmocka_unit_test(parameters_change_the_boundaries),
        cmocka_unit_test(long_texts_are_split_in_chunks),   cmocka_unit_test(invalid_parameter_files_are_rejected),
        cmocka_unit_test(lower_case_equals_that_of_python), cmocka_unit_test(boundaries_equal_those_of_nltk),
    };
    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
