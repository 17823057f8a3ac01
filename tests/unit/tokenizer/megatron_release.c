/*
 * --megatron-release: tokenizers, descriptions and blend sizes equal those of each release of Megatron-LM.
 * tests/data/releases has the output of the classes of each release (last patch release) for its input files.
 * ids.json: token ids of texts; descriptions.json: descriptions, and the MD5 sums of datasets that contain them;
 * blends.json: numbers of samples of the datasets of a blend.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "base/hash.h"
#include "data/blend/blend.h"
#include "data/cache_key.h"
#include "tokenizer/megatron_release.h"
#include "tokenizer/tokenizer.h"

#define FOLDER "tests/data/releases/"

static json_t *load(const char *path)
{
    json_error_t why;
    json_t *j = json_load_file(path, 0, &why);

    if (!j)
        fail_msg("%s: %s", path, why.text);
    return j;
}

static const char *str(const json_t *j, const char *key)
{
    return json_string_value(json_object_get(j, key));
}

/* Open a tokenizer with the options of a JSON object { name: value } and, unless NULL, --megatron-release release. */
static int open_as(struct meg_tokenizer **t, json_t *options, const char *release, struct meg_err *e)
{
    struct meg_tok_conf c = { 0 };
    const struct meg_optgroup groups[] = { { "tokenizer", meg_tok_opts, &c }, { 0 } };
    struct meg_str text = { 0 };
    const char *name;
    json_t *value;
    int r;

    meg_opt_defaults(groups);
    json_object_foreach(options, name, value)
    {
        if (json_is_integer(value))
            meg_str_printf(&text, "%s = %lld\n", name, (long long)json_integer_value(value));
        else
            meg_str_printf(&text, "%s = %s\n", name, json_string_value(value));
    }
    if (release)
        meg_str_printf(&text, "megatron-release = %s\n", release);
    r = meg_opt_apply(groups, text.s, "options", e);
    meg_str_free(&text);
    return r < 0 ? r : meg_tokenizer_open(t, &c, e);
}

static void same_ids(struct meg_tokenizer *t, const json_t *line, const char *type, const char *release)
{
    const json_t *text = json_object_get(line, "text"), *want = json_object_get(line, "ids");
    struct meg_ids got = { 0 };
    struct meg_err e;

    if (meg_tokenizer_encode(t, json_string_value(text), (int64_t)json_string_length(text), &got, &e) < 0)
        fail_msg("%s of %s, '%s': %s", type, release, json_string_value(text), e.msg);
    if (got.n != (int64_t)json_array_size(want))
        fail_msg("%s of %s, '%s': %lld ids, want %zu", type, release, json_string_value(text), (long long)got.n,
                 json_array_size(want));
    for (int64_t i = 0; i < got.n; i++)
        if (got.v[i] != json_integer_value(json_array_get(want, (size_t)i)))
            fail_msg("%s of %s, '%s': id %lld is %d", type, release, json_string_value(text), (long long)i, got.v[i]);
    free(got.v);
}

static void same_tokenizer(json_t *want, const char *release, const char *name)
{
    json_t *options = json_object_get(want, "options"), *line;
    const char *type = str(options, "tokenizer-type");
    struct meg_tokenizer *t, *clone;
    struct meg_err e;
    size_t i;

    if (open_as(&t, options, release, &e) < 0)
        fail_msg("%s of %s: %s", type, name, e.msg);
    clone = meg_tokenizer_clone(t);
    if (meg_tokenizer_eod(t) != json_integer_value(json_object_get(want, "eod")) ||
        meg_tokenizer_special_ids(t)->pad != json_integer_value(json_object_get(want, "pad")) ||
        meg_tokenizer_vocab_size(t) != json_integer_value(json_object_get(want, "vocab_size")))
        fail_msg("%s of %s: eod %d, padding %d, size %lld", type, name, meg_tokenizer_eod(t),
                 meg_tokenizer_special_ids(t)->pad, (long long)meg_tokenizer_vocab_size(t));
    json_array_foreach(json_object_get(want, "lines"), i, line)
    {
        same_ids(t, line, type, name);
        same_ids(clone, line, type, name);
    }
    meg_tokenizer_close(clone);
    meg_tokenizer_close(t);
}

/* Without the option, tokenizers are those of release 0.10. */
static void tokenizers_equal_each_release(void **state)
{
    json_t *all = load(FOLDER "ids.json"), *want, *release;
    size_t i, k, cases = 0;

    (void)state;
    json_array_foreach(all, i, want)
    {
        json_array_foreach(json_object_get(want, "releases"), k, release)
        {
            const char *name = json_string_value(release);

            same_tokenizer(want, name, name);
            if (!strcmp(name, "0.10"))
                same_tokenizer(want, NULL, "the default");
            cases++;
        }
    }
    assert_int_equal(cases, 85); /* 8 tokenizers in 10 releases, and a ninth from 0.15 on */
    json_decref(all);
}

static void describe_dataset(struct meg_str *out, const struct meg_tokenizer *t, const char *path, int64_t wanted)
{
    struct meg_split_matrix split;
    struct meg_err e;
    const struct meg_cache_key id = {
        "GPTDataset", path, wanted, "train", 1234, 8, "80,15,5", &split, meg_tokenizer_description(t), NULL
    };

    memset(&split, 0, sizeof split);
    assert_int_equal(meg_split_parse(&split, "80,15,5", &e), 0);
    meg_cache_key_add_dataset(out, &id);
}

/* Append the description of a weighted blend of two datasets. */
static void describe_blend(struct meg_str *out, const struct meg_tokenizer *t, const char *release)
{
    const bool renormalize = false;
    const double weight[] = { 0.3, 0.7 };
    struct meg_str member[2] = { { 0 }, { 0 } };
    char *text[2];

    describe_dataset(&member[0], t, "a_text_document", 21);
    describe_dataset(&member[1], t, "b_text_document", 48);
    text[0] = member[0].s;
    text[1] = member[1].s;
    meg_cache_key_add_blend(
        out, &(struct meg_blend_key){ .member = text,
                                      .n = 2,
                                      .split = "train",
                                      .weight = weight,
                                      .size = 68,
                                      .renormalize =
                                          meg_megatron_release_find(release)->renormalizes ? &renormalize : NULL });
    meg_str_free(&member[0]);
    meg_str_free(&member[1]);
}

static void same_md5(const struct meg_str *text, const char *want, const char *type, const char *release)
{
    char got[33];

    meg_md5_hex(got, text->s, text->n);
    if (strcmp(got, want) != 0)
        fail_msg("%s of %s: MD5 %s, want %s, of: %s", type, release, got, want, text->s);
}

/* A description has two parts, one of the tokenizer and one of the dataset. */
static void names_of_index_caches_equal_each_release(void **state)
{
    json_t *all = load(FOLDER "descriptions.json"), *want, *release;
    size_t i, k, cases = 0;

    (void)state;
    json_array_foreach(all, i, want)
    {
        json_array_foreach(json_object_get(want, "releases"), k, release)
        {
            json_t *options = json_object_get(want, "options");
            const char *type = str(options, "tokenizer-type"), *name = json_string_value(release);
            struct meg_tokenizer *t;
            struct meg_str text = { 0 };
            struct meg_err e;

            if (open_as(&t, options, name, &e) < 0)
                fail_msg("%s of %s: %s", type, name, e.msg);
            assert_string_equal(meg_tokenizer_description(t), str(want, "description"));
            describe_dataset(&text, t, "a_text_document", 68);
            same_md5(&text, str(want, "gpt_md5"), type, name);
            text.n = 0;
            describe_blend(&text, t, name);
            same_md5(&text, str(want, "blend_md5"), type, name);
            meg_str_free(&text);
            meg_tokenizer_close(t);
            cases++;
        }
    }
    assert_int_equal(cases, 85);
    json_decref(all);
}

static void same_sizes(const json_t *want, const char *release)
{
    const json_t *weights = json_object_get(want, "weights"), *targets = json_object_get(want, "targets");
    const json_t *surplus = json_object_get(want, "surplus");
    const int n = (int)json_array_size(weights);
    double w[16];

    assert_in_range(n, 1, 16);
    for (int i = 0; i < n; i++)
        w[i] = json_number_value(json_array_get(weights, (size_t)i));
    meg_blend_normalize(w, n);
    for (size_t k = 0; k < json_array_size(targets); k++) {
        const int64_t target = json_integer_value(json_array_get(targets, k));
        int64_t drawn[16], built[16];

        if (meg_megatron_release_find(release)->blend_sizes_with_surplus) {
            meg_blend_sizes_with_surplus(drawn, built, w, n, target, surplus ? json_number_value(surplus) : 0.005);
        } else {
            meg_blend_sizes(built, w, n, target);
            memcpy(drawn, built, sizeof drawn);
        }
        for (int i = 0; i < n; i++) {
            const json_t *d = json_array_get(json_object_get(want, "drawn"), (size_t)i);
            const json_t *b = json_array_get(json_object_get(want, "built"), (size_t)i);

            assert_int_equal(drawn[i], json_integer_value(json_array_get(d, k)));
            assert_int_equal(built[i], json_integer_value(json_array_get(b, k)));
        }
    }
}

/* Expected sizes are from _get_size_per_split_per_dataset of each release. */
static void blend_sizes_equal_each_release(void **state)
{
    json_t *all = load(FOLDER "blends.json"), *want, *release;
    size_t i, k, cases = 0;

    (void)state;
    json_array_foreach(all, i, want)
    {
        json_array_foreach(json_object_get(want, "releases"), k, release)
        {
            same_sizes(want, json_string_value(release));
            cases++;
        }
    }
    assert_int_equal(cases, 102); /* 6 blends in 10 releases, also with a different surplus from 0.13 on */
    json_decref(all);
}

static void refuses(const char *options, const char *release, const char *message)
{
    json_t *o = json_loads(options, 0, NULL);
    struct meg_tokenizer *t;
    struct meg_err e;

    assert_non_null(o);
    assert_int_equal(open_as(&t, o, release, &e), MEG_EUSAGE);
    assert_string_equal(e.msg, message);
    json_decref(o);
}

static void options_that_a_release_lacks_are_rejected(void **state)
{
    (void)state;
    refuses("{\"tokenizer-type\": \"BertWordPieceLowerCase\", \"vocab-file\": \"none\"}", "0.15",
            "BertWordPieceLowerCase: not supported with --megatron-release 0.15, which splits words differently; use "
            "0.14 or earlier");
    refuses("{\"tokenizer-type\": \"SentencePieceTokenizer\", \"tokenizer-model\": \"" FOLDER "spm.model\", "
            "\"vocab-extra-ids\": 2}",
            "0.15",
            "--vocab-extra-ids: with --megatron-release 0.15 or later, SentencePieceTokenizer adds no tokens to those "
            "of its model; remove this option");
    refuses("{\"tokenizer-type\": \"TikTokenizer\", \"tokenizer-model\": \"" FOLDER "tik.json\", "
            "\"vocab-size\": 311, \"tiktoken-num-special-tokens\": 12, "
            "\"tiktoken-special-tokens\": \"<unk> <s> </s>\"}",
            "0.15", "--tiktoken-special-tokens: the required token <mask> is missing");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenizers_equal_each_release),
        cmocka_unit_test(names_of_index_caches_equal_each_release),
        cmocka_unit_test(blend_sizes_equal_each_release),
        cmocka_unit_test(options_that_a_release_lacks_are_rejected),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
