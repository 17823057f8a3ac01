/* Tensors in files of torch.save that are views of a storage. */
#include <sys/resource.h>

#include "ckpt_pt_builder.h"
#include "ckpt/megatron/pt.h"

static void write_views(const char *path, int nviews, int32_t n)
{
    struct pt_builder f = { 0 };
    float v;

    meg_pickle_begin(&f.pickle);
    meg_pickle_put_dict_begin(&f.pickle);
    for (int i = 0; i < nviews; i++) {
        const int64_t dim[] = { n, n };
        char name[16];

        snprintf(name, sizeof name, "v%d", i);
        meg_pickle_put_str(&f.pickle, name);
        f.pickle.ntensors = 0; /* all tensors in one storage */
        meg_pickle_put_tensor(&f.pickle, dim, 2);
        pt_transpose_last(&f, n);
    }
    f.nbytes[0] = (size_t)n * (size_t)n * sizeof v;
    for (int i = 0; i < n * n; i++) {
        v = (float)i;
        meg_str_add(&f.numbers, &v, sizeof v);
    }
    pt_end(&f, path);
}

static void a_transposed_view_is_read_in_order(void **state)
{
    static const float want[] = { 0, 3, 6, 1, 4, 7, 2, 5, 8 };
    struct meg_st *st = NULL;
    struct meg_err e;
    void *block;

    (void)state;
    write_views("small.bin", 2, 3);
    if (meg_pt_open_tensors(&st, "small.bin", &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(st->n, 2);
    assert_memory_equal(meg_st_data(&st->t[1], &block), want, sizeof want);
    assert_non_null(block);
    free(block);
    meg_st_close(st);
}

/* Write tensors of 2 elements that are expanded to [rows, 2]. */
static void write_expanded(const char *path, int ntensors, int32_t rows)
{
    const int64_t dim[] = { 1, 2 };
    const float v[] = { 5, 7 };
    struct pt_builder f = { 0 };

    meg_pickle_begin(&f.pickle);
    meg_pickle_put_dict_begin(&f.pickle);
    for (int i = 0; i < ntensors; i++) {
        char name[16];

        snprintf(name, sizeof name, "v%d", i);
        meg_pickle_put_str(&f.pickle, name);
        f.pickle.ntensors = 0; /* all tensors in one storage */
        meg_pickle_put_tensor(&f.pickle, dim, 2);
        pt_expand_last(&f, rows, 2);
    }
    f.nbytes[0] = sizeof v;
    meg_str_add(&f.numbers, v, sizeof v);
    pt_end(&f, path);
}

static void an_expanded_tensor_is_read_as_its_repeated_elements(void **state)
{
    static const float want[] = { 5, 7, 5, 7, 5, 7 };
    struct meg_st *st = NULL;
    struct meg_err e;
    void *block;

    (void)state;
    write_expanded("rows.bin", 1, 3);
    if (meg_pt_open_tensors(&st, "rows.bin", &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(st->t[0].ndim, 2);
    assert_int_equal(st->t[0].dim[0], 3);
    assert_int_equal(st->t[0].nbytes, sizeof want);
    assert_memory_equal(meg_st_data(&st->t[0], &block), want, sizeof want);
    free(block);
    meg_st_close(st);
}

/* 1 << 27 rows of 8 bytes are 1 GiB. */
static void expanded_tensors_are_limited_to_1_gib(void **state)
{
    struct meg_st *st = NULL;
    struct meg_err e;

    (void)state;
    write_expanded("most.bin", 1, 1 << 27);
    if (meg_pt_open_tensors(&st, "most.bin", &e) < 0)
        fail_msg("%s", e.msg);
    meg_st_close(st);
    write_expanded("more.bin", 1, (1 << 27) + 1);
    assert_int_equal(meg_pt_open_tensors(&st, "more.bin", &e), MEG_EFORMAT);
    assert_contains(e.msg, "more.bin: tensor v0 exceeds the 2 elements");
    write_expanded("both.bin", 2, 1 << 27);
    assert_int_equal(meg_pt_open_tensors(&st, "both.bin", &e), MEG_EFORMAT);
    assert_contains(e.msg, "both.bin: tensors with more elements than their storage have more than 1073741824 bytes");
}

static long peak_kib(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return u.ru_maxrss;
}

/* Tied weights are views of one storage, but 64 views of one storage are refused. */
static void refuses_many_tensors_of_one_storage(void **state)
{
    struct meg_st *st = NULL;
    struct meg_err e;

    (void)state;
    write_views("many.bin", 64, 256);
    assert_int_equal(meg_pt_open_tensors(&st, "many.bin", &e), MEG_EFORMAT);
    assert_contains(e.msg, "many.bin: the tensors have more than|use the same storage");
}

/* Open a file with two views of 8 MiB eight times; copies would need 128 MiB. */
static void views_take_no_memory_until_they_are_read(void **state)
{
    struct meg_st *st[8];
    struct meg_err e;
    long before;

    (void)state;
    write_views("large.bin", 2, 1448);
    before = peak_kib();
    for (int i = 0; i < 8; i++)
        if (meg_pt_open_tensors(&st[i], "large.bin", &e) < 0)
            fail_msg("%s", e.msg);
    assert_true(peak_kib() - before < 32 << 10);
    for (int i = 0; i < 8; i++)
        meg_st_close(st[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_transposed_view_is_read_in_order),
        cmocka_unit_test(refuses_many_tensors_of_one_storage),
        cmocka_unit_test(an_expanded_tensor_is_read_as_its_repeated_elements),
        cmocka_unit_test(expanded_tensors_are_limited_to_1_gib),
        cmocka_unit_test(views_take_no_memory_until_they_are_read),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
