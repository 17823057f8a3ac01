/* Indexed datasets (.bin and .idx): bytes written, round trips, files of Megatron-LM, and damaged files. */
#include "data_util.h"

#include <inttypes.h>

#include "data/indexed/idx_format.h"
#include "data/indexed/legacy_index.h"

static void writes_the_bytes_of_the_format(void **state)
{
    /* two documents, the second empty; bytes from meg-idx(5) */
    static const unsigned char idx[] = { 'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 8, 2, 0, 0,
                                         0,   0,   0,   0,   0,   3,   0,   0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0,
                                         0,   0,   0,   0,   0,   0,   0,   0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                         0,   0,   0,   2,   0,   0,   0,   0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0 };
    static const unsigned char bin[] = { 1, 0, 2, 1, 255, 255, 7, 0 };
    struct meg_indexed_writer *w;
    struct meg_err e;
    size_t n;
    char *p;

    (void)state;
    assert_int_equal(meg_indexed_create(&w, "hand", MEG_IDX_U16, &e), 0);
    assert_int_equal(indexed_append(w, (int32_t[]){ 1, 258, 65535 }, 3, &e), 0);
    assert_int_equal(indexed_append(w, (int32_t[]){ 7 }, 1, &e), 0);
    meg_indexed_end_document(w);
    meg_indexed_end_document(w);
    assert_int_equal(meg_indexed_commit(&w, 1, &e), 0);
    assert_null(w);
    p = slurp("hand.idx", &n);
    assert_int_equal(n, sizeof idx);
    assert_memory_equal(p, idx, n);
    free(p);
    p = slurp("hand.bin", &n);
    assert_int_equal(n, sizeof bin);
    assert_memory_equal(p, bin, n);
    free(p);
}

static void reads_back_every_type(void **state)
{
    static const enum meg_idx_dtype types[] = { MEG_IDX_U8,  MEG_IDX_I8,  MEG_IDX_I16,
                                                MEG_IDX_I32, MEG_IDX_I64, MEG_IDX_U16 };
    (void)state;
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        struct meg_indexed_writer *w;
        struct meg_indexed *d;
        struct meg_err e;
        int32_t out[4];
        assert_int_equal(meg_indexed_create(&w, "t", types[k], &e), 0);
        assert_int_equal(indexed_append(w, (int32_t[]){ 9 }, 1, &e), 0);
        assert_int_equal(indexed_append(w, NULL, 0, &e), 0);
        assert_int_equal(indexed_append(w, (int32_t[]){ 5, 127, 0, 1 }, 4, &e), 0);
        meg_indexed_end_document(w);
        assert_int_equal(meg_indexed_commit(&w, 1, &e), 0);
        assert_int_equal(meg_indexed_open(&d, "t", &e), 0);
        assert_int_equal(d->dtype, types[k]);
        assert_int_equal(d->sequences, 3);
        assert_int_equal(d->documents, 1);
        assert_int_equal(d->tokens, 5);
        assert_int_equal(meg_indexed_length(d, 1), 0);
        assert_int_equal(meg_indexed_document(d, 1), 3);
        assert_int_equal(meg_indexed_get(d, 2, 1, 3, out, &e), 0);
        assert_int_equal(out[0], 127);
        assert_int_equal(out[2], 1);
        assert_int_equal(meg_indexed_get(d, 0, 0, 1, out, &e), 0);
        assert_int_equal(out[0], 9);
        meg_indexed_close(d);
    }
}

/* The tokens exceed the writer's buffer, in sequences that cross its end. */
static void sequences_larger_than_the_buffer_are_written(void **state)
{
    enum { N = 200001 };
    int32_t *ids = malloc(N * sizeof *ids), *back = malloc(N * sizeof *back);
    struct meg_indexed_writer *w;
    struct meg_indexed *d;
    struct meg_err e;

    (void)state;
    for (int i = 0; i < N; i++)
        ids[i] = i * 37 % 70000;
    assert_int_equal(meg_indexed_create(&w, "large", MEG_IDX_I32, &e), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(indexed_append(w, ids + i, N - i, &e), 0);
    meg_indexed_end_document(w);
    assert_int_equal(meg_indexed_commit(&w, 1, &e), 0);
    assert_int_equal(meg_indexed_open(&d, "large", &e), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(meg_indexed_get(d, i, 0, N - i, back, &e), 0);
        assert_memory_equal(back, ids + i, (size_t)(N - i) * sizeof *ids);
    }
    meg_indexed_close(d);
    free(ids);
    free(back);
}

/*
 * Two sequences have 2^31 bytes each, and a third has two tokens.  Only the first token of the first sequence and the
 * third sequence are written.  The index is compared with bytes from meg-idx(5).
 */
static void offsets_beyond_2_gib_are_written(void **state)
{
    static const unsigned char want[] = {
        0, 0, 0, 64, 0, 0, 0, 64, 2, 0, 0, 0,                                       /* lengths */
        0, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0, 128, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, /* offsets */
        0, 0, 0, 0,  0, 0, 0, 0,  3, 0, 0, 0,   0, 0, 0, 0,                         /* documents */
    };
    struct meg_indexed_writer *w;
    struct meg_err e;
    int64_t at = 0;
    size_t n;
    char *p;

    (void)state;
    assert_int_equal(meg_indexed_create(&w, "far", MEG_IDX_U16, &e), 0);
    assert_int_equal(meg_indexed_reserve(w, 1 << 30), 0);
    assert_int_equal(meg_indexed_reserve(w, 1 << 30), INT64_C(1) << 31);
    assert_int_equal(at = meg_indexed_reserve(w, 2), INT64_C(1) << 32);
    assert_int_equal(meg_indexed_pwrite(w, 0, "\1\0", 1, &e), 0);
    assert_int_equal(meg_indexed_pwrite(w, at, "\7\0\10\1", 2, &e), 0);
    meg_indexed_end_document(w);
    assert_int_equal(meg_indexed_commit(&w, 1, &e), 0);
    p = slurp("far.idx", &n);
    assert_int_equal(n, MEG_IDX_HEADER + sizeof want);
    assert_memory_equal(p + MEG_IDX_HEADER, want, sizeof want);
    free(p);
    assert_true(file_size("far.bin") == (INT64_C(1) << 32) + 4);
    remove("far.bin");
}

/* The test creates the file: .bin is sparse, with two tokens at its end. */
static void offsets_beyond_2_gib_are_read(void **state)
{
    static const char idx[] = "MMIDIDX\0\0\1\0\0\0\0\0\0\0\10\3\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0"
                              "\0\0\0\100\0\0\0\100\2\0\0\0"
                              "\0\0\0\0\0\0\0\0\0\0\0\200\0\0\0\0\0\0\0\0\1\0\0\0"
                              "\0\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0";
    struct meg_indexed *d;
    struct meg_err e;
    int32_t ids[2];
    FILE *f = fopen("hole.bin", "wb");

    (void)state;
    assert_non_null(f);
    assert_int_equal(fseeko(f, (off_t)1 << 32, SEEK_SET), 0);
    assert_int_equal(fwrite("\7\0\10\1", 1, 4, f), 4);
    assert_int_equal(fclose(f), 0);
    spew("hole.idx", idx, sizeof idx - 1);
    if (meg_indexed_open(&d, "hole", &e) < 0)
        fail_msg("%s", e.msg);
    assert_true(d->tokens == (INT64_C(1) << 31) + 2);
    assert_int_equal(meg_indexed_get(d, 2, 0, 2, ids, &e), 0);
    assert_int_equal(ids[0], 7);
    assert_int_equal(ids[1], 264);
    assert_int_equal(meg_indexed_get(d, 1, (1 << 30) - 2, 2, ids, &e), 0);
    assert_int_equal(ids[0], 0);
    meg_indexed_close(d);
    remove("hole.bin");
}

static void an_id_too_large_for_the_type_is_refused(void **state)
{
    struct meg_indexed_writer *w;
    struct meg_err e;
    (void)state;
    assert_int_equal(meg_indexed_create(&w, "wide", MEG_IDX_U16, &e), 0);
    assert_int_equal(indexed_append(w, (int32_t[]){ 65535, 65536 }, 2, &e), MEG_EFORMAT);
    assert_string_equal(e.msg, "wide.bin: token id 65536 is out of the range of uint16, 0 to 65535");
    assert_int_equal(indexed_append(w, (int32_t[]){ -1 }, 1, &e), MEG_EFORMAT);
    meg_indexed_abandon(w);
    assert_int_equal(file_size("wide.bin"), -1);
    assert_int_equal(file_size("wide.idx"), -1);
}

/* 0 to 70 ids are converted, also in place; an id out of the range of the type is an error at every index. */
static void ids_are_converted_to_the_type_of_the_file(void **state)
{
    static const enum meg_idx_dtype types[] = { MEG_IDX_U8, MEG_IDX_U16, MEG_IDX_I32 };
    enum { N = 70 };

    (void)state;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        const size_t size = meg_idx_dtype_size(types[t]);
        struct meg_indexed_writer *w;
        struct meg_err e;

        assert_int_equal(meg_indexed_create(&w, "convert", types[t], &e), 0);
        for (int n = 0; n <= N; n++) {
            int32_t ids[N], got[N];

            for (int i = 0; i < n; i++)
                ids[i] = got[i] = (1000003 * (i + 1)) & (size < 4 ? (1 << 8 * size) - 1 : INT32_MAX);
            assert_int_equal(meg_indexed_convert(w, got, n, got, &e), 0);
            for (int i = 0; i < n; i++)
                assert_memory_equal((char *)got + (size_t)i * size, &ids[i], size);
            for (int i = 0; i < n; i++) {
                int32_t was = ids[i];

                ids[i] = size < 4 ? 1 << 8 * size : 0;
                assert_int_equal(meg_indexed_convert(w, ids, n, got, &e), size < 4 ? MEG_EFORMAT : MEG_OK);
                ids[i] = -1;
                assert_int_equal(meg_indexed_convert(w, ids, n, got, &e), size < 4 ? MEG_EFORMAT : MEG_OK);
                ids[i] = was;
            }
        }
        meg_indexed_abandon(w);
    }
}

static void abandon_removes_temporary_files_and_keeps_the_old_dataset(void **state)
{
    const int one[] = { 3 };
    struct meg_indexed_writer *w;
    struct meg_err e;
    DIR *dir;
    int files = 0;

    (void)state;
    assert_int_equal(mkdir("sub", 0777), 0);
    make_dataset("sub/d", one, 1);
    assert_int_equal(meg_indexed_create(&w, "sub/d", MEG_IDX_I32, &e), 0);
    assert_int_equal(indexed_append(w, (int32_t[]){ 1, 2 }, 2, &e), 0);
    meg_indexed_abandon(w);
    assert_int_equal(file_size("sub/d.bin"), 6);
    dir = opendir("sub");
    while (readdir(dir))
        files++;
    closedir(dir);
    assert_int_equal(files, 4); /* ".", "..", d.bin, d.idx */
    assert_int_equal(meg_indexed_create(&w, "nowhere/d", MEG_IDX_I32, &e), MEG_EIO);
}

static void the_token_type_follows_the_vocabulary_size(void **state)
{
    (void)state;
    assert_int_equal(meg_idx_dtype_for_vocab(65499), MEG_IDX_U16);
    assert_int_equal(meg_idx_dtype_for_vocab(65500), MEG_IDX_I32);
}

/* ---- damaged files -------------------------------------------------------------------------------- */

/*
 * Create a dataset of two documents, of 3 tokens and 1 token; in its file with the extension ext, replace nbytes bytes
 * at offset `at`.  Unless size is negative, truncate the file or append zeros to get this size.  Return the status of
 * opening the dataset.
 */
static int open_changed(const char *ext, long at, const void *bytes, size_t nbytes, long size, struct meg_err *e)
{
    const int length[] = { 3, 1 };
    char path[16];
    struct meg_indexed *d;
    size_t n;
    char *p;
    int r;

    make_dataset("bad", length, 2);
    snprintf(path, sizeof path, "bad.%s", ext);
    p = slurp(path, &n);
    if (size >= 0 && (size_t)size > n) {
        p = realloc(p, (size_t)size);
        memset(p + n, 0, (size_t)size - n);
    }
    if (nbytes)
        memcpy(p + at, bytes, nbytes);
    spew(path, p, size >= 0 ? (size_t)size : n);
    free(p);
    r = meg_indexed_open(&d, "bad", e);
    if (r == 0)
        meg_indexed_close(d);
    return r;
}

#define REFUSES(ext, at, bytes, size, message)                                                                         \
    do {                                                                                                               \
        struct meg_err e_;                                                                                             \
        assert_int_equal(open_changed(ext, at, bytes, sizeof(bytes) - 1, size, &e_), MEG_EFORMAT);                     \
        assert_string_equal(e_.msg, message);                                                                          \
    } while (0)

static void refuses_a_file_that_is_not_an_index(void **state)
{
    (void)state;
    REFUSES("idx", 0, "", 0,
            "bad.idx: 0 bytes, expected at least 34, the size of the header; the file is truncated or is not the "
            "index of an indexed dataset");
    REFUSES("idx", 0, "", 33,
            "bad.idx: 33 bytes, expected at least 34, the size of the header; the file is truncated or is not the "
            "index of an indexed dataset");
    REFUSES("idx", 0, "PK", -1,
            "bad.idx: the file does not begin with MMIDIDX, so it is not the index of an indexed dataset");
    REFUSES("idx", 9, "\2", -1, "bad.idx: version 2, expected 1");
    REFUSES("idx", 17, "\11", -1, "bad.idx: dtype code 9 at byte 17, expected 1 to 8");
}

static void refuses_a_truncated_index(void **state)
{
    /* complete: 34 + 12 * 2 + 8 * 3 = 82 bytes */
    (void)state;
    REFUSES("idx", 0, "", 81,
            "bad.idx: 81 bytes, expected 82 for 2 sequences and 3 document index "
            "entries; the file is truncated");
    REFUSES("idx", 0, "", 83,
            "bad.idx: 83 bytes, expected 82 for 2 sequences and 3 document index "
            "entries, or 84 if the sequences have modes");
    REFUSES("idx", 25, "\x40", -1,
            "bad.idx: 82 bytes, expected 55340232221128654848 for "
            "4611686018427387906 sequences and 3 document index entries; the file is truncated");
    REFUSES("idx", 26, "\0", -1,
            "bad.idx: the number of document index entries, at byte 26, is 0; expected at least 1");
}

static void refuses_an_index_that_contradicts_itself(void **state)
{
    (void)state;
    REFUSES("idx", 37, "\x80", -1, "bad.idx: sequence 0 has length -2147483645, expected at least 0");
    REFUSES("idx", 34, "\4", -1,
            "bad.idx: sequence 1 starts at byte 6 of .bin, but the sequences before it end at byte 8");
    REFUSES("idx", 58, "\1", -1, "bad.idx: document 0 starts at sequence 1, expected sequence 0");
    REFUSES("idx", 66, "\3", -1, "bad.idx: document 2 starts at sequence 2, expected at least 3");
    REFUSES("idx", 74, "\1", -1, "bad.idx: the document index ends at sequence 1, expected 2");
}

static void refuses_a_short_bin(void **state)
{
    struct meg_err e;
    (void)state;
    REFUSES("bin", 0, "", 7,
            "bad.bin: 7 bytes, expected 8 for the 4 uint16 tokens of bad.idx; the file is "
            "truncated or belongs to another index");
    assert_int_equal(open_changed("bin", 0, "", 0, 9, &e), 0); /* a longer file causes a warning */
    assert_int_equal(unlink("bad.bin"), 0);
    struct meg_indexed *d;
    assert_int_equal(meg_indexed_open(&d, "bad", &e), MEG_ENOENT);
    assert_string_equal(e.msg, "bad.bin: No such file or directory");
    assert_int_equal(meg_indexed_open(&d, "bad.idx", &e), MEG_ENOENT);
    assert_string_equal(e.msg, "bad.idx: specify the dataset without .bin and .idx");
}

static void refuses_ids_that_exceed_int32_and_types_without_ids(void **state)
{
    struct meg_indexed *d;
    struct meg_err e;
    int32_t id;

    (void)state;
    assert_int_equal(open_changed("idx", 17, "\3", 1, -1, &e), 0); /* int16 has the size of uint16 */
    spew("bad.bin", "\1\0\0\0\0\0\0\0", 8);
    spew("bad.idx",
         "MMIDIDX\0\0\1\0\0\0\0\0\0\0\5\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0"
         "\1\0\0\0"
         "\0\0\0\0\0\0\0\0"
         "\0\0\0\0\0\0\0\0"
         "\1\0\0\0\0\0\0\0",
         62);
    assert_int_equal(meg_indexed_open(&d, "bad", &e), 0);
    assert_int_equal(meg_indexed_get(d, 0, 0, 1, &id, &e), 0);
    assert_int_equal(id, 1);
    meg_indexed_close(d);
    spew("bad.bin", "\1\0\0\0\1\0\0\0", 8);
    assert_int_equal(meg_indexed_open(&d, "bad", &e), 0);
    assert_int_equal(meg_indexed_get(d, 0, 0, 1, &id, &e), MEG_EFORMAT);
    assert_string_equal(e.msg, "bad.bin: token 0 of sequence 0 is 4294967297, out of the range of int32");
    meg_indexed_close(d);
}

/* ---- reference files -------------------------------------------------------------------------------- */

static double value_at(const struct meg_indexed *d, const unsigned char *p, int64_t i)
{
    float f;
    double g;
    int64_t v = 0;
    size_t size = meg_idx_dtype_size(d->dtype);
    memcpy(&f, p + 4 * i, 4 * (size == 4));
    memcpy(&g, p + 8 * i, 8 * (size == 8));
    memcpy(&v, p + (size_t)i * size, size);
    return d->dtype == MEG_IDX_F32 ? f : d->dtype == MEG_IDX_F64 ? g : (double)v;
}

/* Each pair of .bin and .idx has the expected contents, and appending it to an empty dataset results in equal files. */
static void golden_files_are_read_and_rewritten(void **state)
{
    json_t *all = golden_data("indexed/datasets.json"), *want;
    const char *name;

    (void)state;
    assert_true(json_object_size(all) >= 15);
    json_object_foreach(all, name, want)
    {
        json_t *len = json_object_get(want, "sequence_lengths"), *doc = json_object_get(want, "document_indices");
        json_t *seqs = json_object_get(want, "sequences"), *modes = json_object_get(want, "sequence_modes");
        struct meg_indexed_writer *w;
        struct meg_indexed *d;
        struct meg_err e;
        char path[512];

        copy_golden(name);
        if (meg_indexed_open(&d, name, &e) < 0)
            fail_msg("%s", e.msg);
        assert_string_equal(meg_idx_dtype_name(d->dtype), get_str(want, "dtype"));
        assert_int_equal(d->dtype, get_int(want, "dtype_code"));
        assert_int_equal(d->sequences, json_array_size(len));
        assert_int_equal(d->documents + 1, json_array_size(doc));
        for (int64_t i = 0; i <= d->documents; i++)
            assert_int_equal(meg_indexed_document(d, i), int_at(doc, (size_t)i));
        assert_int_equal(d->has_modes, modes && !json_is_null(modes));
        for (int64_t i = 0; i < d->sequences; i++) {
            json_t *seq = json_array_get(seqs, (size_t)i);
            assert_int_equal(meg_indexed_length(d, i), int_at(len, (size_t)i));
            assert_int_equal(meg_indexed_length(d, i), json_array_size(seq));
            if (d->has_modes)
                assert_int_equal(meg_indexed_mode(d, i), int_at(modes, (size_t)i));
            for (int64_t k = 0; k < meg_indexed_length(d, i); k++)
                assert_true(value_at(d, meg_indexed_bytes(d, i), k) ==
                            json_number_value(json_array_get(seq, (size_t)k)));
        }
        assert_int_equal(meg_indexed_create(&w, "again", d->dtype, &e), 0);
        assert_int_equal(meg_indexed_append_dataset(w, d, &e), 0);
        assert_int_equal(meg_indexed_commit(&w, 1, &e), 0);
        meg_indexed_close(d);
        snprintf(path, sizeof path, "%s.idx", name);
        assert_same_file("again.idx", path);
        snprintf(path, sizeof path, "%s.bin", name);
        assert_same_file("again.bin", path);
    }
    json_decref(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_the_bytes_of_the_format),
        cmocka_unit_test(reads_back_every_type),
        cmocka_unit_test(sequences_larger_than_the_buffer_are_written),
        cmocka_unit_test(offsets_beyond_2_gib_are_written),
        cmocka_unit_test(offsets_beyond_2_gib_are_read),
        cmocka_unit_test(an_id_too_large_for_the_type_is_refused),
        cmocka_unit_test(ids_are_converted_to_the_type_of_the_file),
        cmocka_unit_test(abandon_removes_temporary_files_and_keeps_the_old_dataset),
        cmocka_unit_test(the_token_type_follows_the_vocabulary_size),
        cmocka_unit_test(refuses_a_file_that_is_not_an_index),
        cmocka_unit_test(refuses_a_truncated_index),
        cmocka_unit_test(refuses_an_index_that_contradicts_itself),
        cmocka_unit_test(refuses_a_short_bin),
        cmocka_unit_test(refuses_ids_that_exceed_int32_and_types_without_ids),
        cmocka_unit_test(golden_files_are_read_and_rewritten),
    };
    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
