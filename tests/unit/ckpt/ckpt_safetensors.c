/* safetensors files: the bytes written, round trips, refusals of damaged headers. */
#include "ckpt_util.h"

static void writes_the_bytes_of_the_format(void **state)
{
    /*
     * The header, from the description of the format.  Tensors are ordered by element size, largest first, and then by
     * name.  Spaces pad the header to a multiple of 8 bytes.
     */
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                                 "\"a.b\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
                                 "\"z\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[8,12]},"
                                 "\"c\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[12,16]}}";
    struct meg_st_tensor t[] = { { .name = "c", .dtype = "BF16", .ndim = 1, .dim = { 2 }, .data = "wxyz" },
                                 { .name = "z", .dtype = "F32", .data = "ijkl" },
                                 { .name = "a.b", .dtype = "F32", .ndim = 2, .dim = { 2, 1 }, .data = "abcdefgh" } };
    struct meg_str s;
    uint64_t n;

    (void)state;
    put_tensors("w", t, 3, true);
    s = read_bytes("w");
    memcpy(&n, s.s, 8);
    assert_int_equal(n % 8, 0);
    assert_in_range(n, strlen(header), strlen(header) + 7);
    assert_memory_equal(s.s + 8, header, strlen(header));
    for (size_t i = 8 + strlen(header); i < 8 + n; i++)
        assert_int_equal(s.s[i], ' ');
    assert_int_equal(s.n, 8 + n + 16);
    assert_memory_equal(s.s + 8 + n, "abcdefghijklwxyz", 16);
    assert_int_equal(t[2].file_offset, 8 + n + 12);
    meg_str_free(&s);
}

static void reads_what_it_wrote(void **state)
{
    const float v[6] = { 1, 2, 3, 4, 5, 6 };
    struct meg_st_tensor t[] = { { .name = "y", .dtype = "F32", .ndim = 2, .dim = { 2, 3 }, .data = v },
                                 { .name = "empty", .dtype = "I64", .ndim = 1, .dim = { 0 }, .data = "" },
                                 { .name = "x", .dtype = "U8", .ndim = 1, .dim = { 1 }, .data = "!" } };
    const struct meg_st_tensor *y;
    struct meg_st *st;
    struct meg_err e;

    (void)state;
    put_tensors("r", t, 3, false);
    if (meg_st_open(&st, "r", &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(st->n, 3);
    assert_null(meg_st_find(st, "z"));
    assert_int_equal(meg_st_find(st, "empty")->nbytes, 0);
    assert_memory_equal(meg_st_find(st, "x")->data, "!", 1);
    y = meg_st_find(st, "y");
    assert_string_equal(y->dtype, "F32");
    assert_int_equal(y->ndim, 2);
    assert_int_equal(y->dim[1], 3);
    assert_memory_equal(y->data, v, sizeof v);
    meg_st_close(st);
}

static void refuses_inconsistent_headers(void **state)
{
    static const struct {
        const char *header;
        size_t nbytes;
        const char *message;
    } bad[] = {
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, "truncated|header requires" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, "data after the last tensor" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[9223372036854775807],"
          "\"data_offsets\":[0,9223372036854775807]}}",
          8, "tensor a ends at byte 9223372036854775807 of the data" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[9223372036854775000],"
          "\"data_offsets\":[0,9223372036854775000]}}",
          8, "truncated|header requires 9223372036854775" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 8, "a|[2] and dtype F32" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "a|[2] and dtype F32" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, "data_offsets|expected 2" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, "data_offsets" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8, "shape" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, "shape" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}", 8, "shape" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,8]}}", 8, "do not match" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", 8, "9 dimensions" },
        { "{\"a\":{\"dtype\":\"C64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, "C64" },
        { "{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "dtype|missing" },
        { "{\"a\":[]}", 0, "not a JSON object" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
          "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}",
          6, "b|begins at byte 2|expected byte 4" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
          "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[6,10]}}",
          10, "b|begins at byte 6|expected byte 4" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
          "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
          4, "duplicate" },
        { "{\"__metadata__\":{\"a\":1}}", 0, "__metadata__|not a string" },
        { "{\"__metadata__\":1}", 0, "__metadata__" },
        { "[]", 0, "not a safetensors file" },
        { "", 0, "not a safetensors file" },
        { "{\"a\":", 0, "invalid JSON" },
    };
    struct meg_st *st;
    struct meg_err e;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_safetensors("bad", bad[i].header, bad[i].nbytes);
        if (meg_st_open(&st, "bad", &e) != MEG_EFORMAT)
            fail_msg("accepted: %s", bad[i].header);
        assert_contains(e.msg, "bad|");
        assert_contains(e.msg, bad[i].message);
    }
}

static void refuses_truncated_and_oversized_headers(void **state)
{
    static const struct {
        unsigned char bytes[12];
        size_t n;
        const char *message;
    } bad[] = {
        { { 1, 2, 3 }, 3, "3 bytes|at least 8" },
        { { 255, 255, 255, 255, 255, 255, 255, 255 }, 8, "18446744073709551615|at most 100000000" },
        { { 1, 225, 245, 5, 0, 0, 0, 0 }, 8, "100000001|at most 100000000" },
        { { 100, 0, 0, 0, 0, 0, 0, 0, '{', '}' }, 10, "10 bytes|requires 108" },
    };
    struct meg_st *st;
    struct meg_str deep = { 0 };
    struct meg_err e;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_file("head", bad[i].bytes, bad[i].n);
        assert_int_equal(meg_st_open(&st, "head", &e), MEG_EFORMAT);
        assert_contains(e.msg, bad[i].message);
    }
    meg_str_printf(&deep, "{\"a\":");
    for (int i = 0; i < 100000; i++)
        meg_str_add(&deep, "[", 1);
    put_safetensors("head", deep.s, 0);
    assert_int_equal(meg_st_open(&st, "head", &e), MEG_EFORMAT);
    meg_str_free(&deep);
    assert_int_equal(meg_st_open(&st, "nowhere", &e), MEG_ENOENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_the_bytes_of_the_format),
        cmocka_unit_test(reads_what_it_wrote),
        cmocka_unit_test(refuses_inconsistent_headers),
        cmocka_unit_test(refuses_truncated_and_oversized_headers),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
