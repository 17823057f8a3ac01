/* ckpt_util.h - helpers of the checkpoint tests: a temporary directory, files, small models. */
#ifndef CKPT_UTIL_H
#define CKPT_UTIL_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/mem.h"
#include "ckpt/ckpt.h"
#include "ckpt/internal.h"
#include "ckpt/safetensors.h"
#include "file/file.h"
#include "tmp.h"

static char folder[TMP_NAME];

static inline int enter_folder(void **state)
{
    (void)state;
    return tmp_dir(folder, "ckpt") ? chdir(folder) : -1;
}

static inline int leave_folder(void **state)
{
    (void)state;
    return chdir("/") < 0 ? -1 : meg_remove_tree(folder, NULL);
}

static inline void put_file(const char *path, const void *bytes, size_t n)
{
    struct meg_err e;

    if (meg_write_file(path, bytes, n, &e) < 0)
        fail_msg("%s", e.msg);
}

static inline struct meg_str read_bytes(const char *path)
{
    struct meg_str s = { 0 };
    struct meg_err e;

    if (meg_read_file(path, &s, &e) < 0)
        fail_msg("%s", e.msg);
    return s;
}

/* Flip the lowest bit of the byte at offset. */
static inline void flip_byte(const char *path, size_t offset)
{
    struct meg_str s = read_bytes(path);

    assert_true(offset < s.n);
    s.s[offset] ^= 1;
    put_file(path, s.s, s.n);
    meg_str_free(&s);
}

/* Write a safetensors file with this header and nbytes of zeros. */
static inline void put_safetensors(const char *path, const char *header, size_t nbytes)
{
    struct meg_str s = { 0 };
    uint64_t n = strlen(header);

    meg_str_add(&s, &n, 8);
    meg_str_add(&s, header, n);
    for (size_t i = 0; i < nbytes; i++)
        meg_str_add(&s, "", 1);
    put_file(path, s.s, s.n);
    meg_str_free(&s);
}

/* Write a safetensors file of tensors with data. */
static inline void put_tensors(const char *path, struct meg_st_tensor *t, int n, bool is_hf)
{
    struct meg_str s = { 0 };

    meg_st_build_header(t, n, is_hf, &s);
    for (int i = 0; i < n; i++)
        meg_str_add(&s, t[i].data, (size_t)t[i].nbytes);
    put_file(path, s.s, s.n);
    meg_str_free(&s);
}

static inline struct meg_model_conf small_gpt_conf(int64_t layers, int64_t hidden)
{
    struct meg_model_conf m = { 0 };
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, &m }, { 0 } };
    struct meg_err e;

    meg_opt_defaults(groups);
    m.num_layers = layers;
    m.hidden_size = hidden;
    m.attn.a = 2;
    m.max_position_embeddings = 6;
    m.vocab_size = 11;
    assert_int_equal(meg_model_conf_check(&m, &e), 0);
    return m;
}

/* Set element i of a flat buffer to i + 65536 * seed, and padding to 0. */
static inline void fill_params(float *flat, const struct meg_params *p, int seed)
{
    memset(flat, 0, (size_t)p->flat_numel * sizeof *flat);
    for (int i = 0; i < p->n; i++)
        for (int64_t k = 0; k < p->row[i].numel; k++)
            flat[p->row[i].offset + k] = (float)(p->row[i].offset + k) + (float)seed * 65536;
}

/* Copy all rows of the row map p from a foreign tensor to a native one. */
static inline void rows_from_foreign(float *native, const float *foreign, const struct ckpt_row_map *p)
{
    float v[CKPT_ROWS_MAX * 64];

    assert_true(p->cols <= 64);
    for (int64_t i = 0, n; i < p->n; i += n) {
        n = p->n - i < CKPT_ROWS_MAX ? p->n - i : CKPT_ROWS_MAX;
        ckpt_rows_from_foreign(v, foreign, "F32", p, i, n);
        for (int64_t k = 0; k < n; k++)
            memcpy(native + ckpt_native_row(p, i + k), v + k * p->cols, (size_t)p->cols * sizeof *v);
    }
}

/* Load all weights as f32, on one rank. */
static inline int load_f32_weights(const struct meg_ckpt *c, const struct meg_params *p, float *w, struct meg_err *e)
{
    const struct meg_ckpt_shard slot = { .data = w };

    return meg_ckpt_load(c, p, &meg_mesh_one, &slot, 1, e);
}

/* Check that msg contains all parts of words, which are separated by bars. */
static inline void assert_contains(const char *msg, const char *words)
{
    char copy[512], *save = NULL;

    snprintf(copy, sizeof copy, "%s", words);
    for (char *w = strtok_r(copy, "|", &save); w; w = strtok_r(NULL, "|", &save))
        if (!strstr(msg, w))
            fail_msg("'%s' is not in: %s", w, msg);
}

#endif
