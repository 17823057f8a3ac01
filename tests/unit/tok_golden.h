/*
 * tok_golden.h - compare a tokenizer with reference vectors.
 *
 * Each line of $MEG_SHARED/golden/tokenizers/NAME.jsonl is encoded twice, the second time with filled word caches.
 * Each line of decode/NAME.jsonl in the same directory is decoded twice: all ids in one call, and one id per call.
 */
#ifndef TESTS_TOK_GOLDEN_H
#define TESTS_TOK_GOLDEN_H
#include "golden.h"
#include "tokenizer/tokenizer.h"

/* Return $MEG_SHARED/data/tokenizers/NAME, which the caller frees; skip the test without MEG_SHARED. */
static inline char *tok_file(const char *name)
{
    struct meg_str path = { 0 };

    meg_str_printf(&path, "%s/%s", shared("data/tokenizers"), name);
    return path.s;
}

static inline int tok_encodes_one(struct meg_tokenizer *t, const json_t *text, const json_t *ids)
{
    struct meg_ids got = { 0 };
    struct meg_err e;
    size_t n = json_string_length(text);
    char *exact = malloc(n + (n == 0)); /* allocated exactly, so that ASan reports reads past the end */
    int bad = 0;

    memcpy(exact, json_string_value(text), n);
    for (int again = 0; again < 2; again++) {
        got.n = 0;
        if (meg_tokenizer_encode(t, exact, (int64_t)n, &got, &e) < 0)
            fail_msg("%s", e.msg);
        bad |= got.n != (int64_t)json_array_size(ids);
        for (int64_t i = 0; i < got.n && !bad; i++)
            bad |= got.v[i] != json_integer_value(json_array_get(ids, (size_t)i));
    }
    free(exact);
    free(got.v);
    return bad;
}

static inline int tok_decodes_one(struct meg_tokenizer *t, const json_t *text, const json_t *ids)
{
    struct meg_detok detok = { .tok = t };
    struct meg_str full = { 0 }, parts = { 0 };
    struct meg_ids in = { 0 };
    struct meg_err e;
    size_t n = json_string_length(text);
    int bad;

    for (size_t i = 0; i < json_array_size(ids); i++) {
        meg_ids_reserve(&in, 1);
        in.v[in.n++] = (int32_t)json_integer_value(json_array_get(ids, i));
    }
    if (meg_tokenizer_decode(t, in.v, in.n, &full, &e) < 0)
        fail_msg("%s", e.msg);
    for (int64_t i = 0; i < in.n; i++) {
        if (meg_detok_add(&detok, in.v + i, 1, false, &parts, &e) < 0)
            fail_msg("%s", e.msg);
    }
    assert_int_equal(meg_detok_add(&detok, NULL, 0, true, &parts, &e), 0);
    bad = full.n != n || (n && memcmp(full.s, json_string_value(text), n) != 0) || parts.n != n ||
          (n && memcmp(parts.s, json_string_value(text), n) != 0);
    if (bad)
        print_message("# at once [%s], id by id [%s]\n", full.s ? full.s : "", parts.s ? parts.s : "");
    free(in.v);
    meg_str_free(&full);
    meg_str_free(&parts);
    meg_detok_free(&detok);
    return bad;
}

/* Compare all lines of NAME.jsonl by fn, which returns 0 if equal; fail if a line differs; return their number. */
static inline int tok_golden(struct meg_tokenizer *t, const char *name,
                             int (*fn)(struct meg_tokenizer *t, const json_t *text, const json_t *ids))
{
    struct meg_str file = { 0 };
    char *line = NULL;
    size_t cap = 0;
    int n = 0, differing = 0;
    FILE *f;

    meg_str_printf(&file, "golden/tokenizers/%s.jsonl", name);
    f = fopen(shared(file.s), "r");
    assert_non_null(f);
    for (; getline(&line, &cap, f) > 0; n++) {
        json_t *j = json_loads(line, JSON_ALLOW_NUL, NULL);
        const json_t *text = json_object_get(j, "text");

        assert_non_null(text);
        if (fn(t, text, json_object_get(j, "ids"))) {
            print_message("# %s, line %d differs: %s\n", file.s, n + 1, json_string_value(text));
            differing++;
        }
        json_decref(j);
    }
    fclose(f);
    free(line);
    meg_str_free(&file);
    assert_int_equal(differing, 0);
    return n;
}

static inline void tok_both_golden(struct meg_tokenizer *t, const char *name)
{
    char decode[80];

    snprintf(decode, sizeof decode, "decode/%s", name);
    assert_true(tok_golden(t, name, tok_encodes_one) > 100);
    assert_true(tok_golden(t, decode, tok_decodes_one) > 50);
}

#endif
