/* golden.h - read reference numbers of tests/data/golden: tensors of small safetensors files, and JSON. */
#ifndef TESTS_GOLDEN_H
#define TESTS_GOLDEN_H
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "reference.h"

static inline json_t *golden_json(const char *name)
{
    json_error_t e;
    json_t *j = json_load_file(golden(name), JSON_DECODE_ANY, &e);

    if (!j)
        fail_msg("%s: %s", name, e.text);
    return j;
}

struct golden_file {
    json_t *header;
    char *data;
};

static inline struct golden_file golden_open(const char *name)
{
    struct golden_file g;
    uint64_t n;
    long size;
    FILE *f = fopen(golden(name), "rb");

    assert_non_null(f);
    assert_int_equal(fread(&n, 8, 1, f), 1);
    fseek(f, 0, SEEK_END);
    size = ftell(f) - 8;
    fseek(f, 8, SEEK_SET);
    g.data = malloc((size_t)size);
    assert_int_equal(fread(g.data, 1, (size_t)size, f), (size_t)size);
    fclose(f);
    g.header = json_loadb(g.data, n, 0, NULL);
    assert_non_null(g.header);
    memmove(g.data, g.data + n, (size_t)size - n);
    return g;
}

static inline void golden_close(struct golden_file *g)
{
    json_decref(g->header);
    free(g->data);
}

/* Return the data of a tensor of type dtype; set *n to the number of its elements. */
static inline const void *golden_tensor(const struct golden_file *g, const char *name, const char *dtype, int64_t *n)
{
    const json_t *t = json_object_get(g->header, name);
    json_int_t begin = -1;
    size_t i;
    const json_t *d;

    if (!t)
        fail_msg("no tensor %s", name);
    assert_string_equal(json_string_value(json_object_get(t, "dtype")), dtype);
    *n = 1;
    json_array_foreach(json_object_get(t, "shape"), i, d) *n *= json_integer_value(d);
    begin = json_integer_value(json_array_get(json_object_get(t, "data_offsets"), 0));
    return g->data + begin;
}

#endif
