/* Indexed datasets with the legacy index format (TNTIDX), which --dataset-impl lazy and cached write. */
#include "data_util.h"

/*
 * An index file of two documents, with fields in file order.  The first document has the sequences (7, 8) and (9), the
 * second has the sequence (5).  Tokens are int32.
 */
struct legacy {
    char magic[8];
    uint64_t version, type, size, items, sizes, entries;
    int64_t dims[4], starts[4], lengths[3], documents[3];
};

static struct legacy good(void)
{
    return (struct legacy){ "TNTIDX", 1, 4, 4, 3, 3, 3, { 0, 1, 2, 3 }, { 0, 2, 3, 4 }, { 2, 1, 1 }, { 0, 2, 3 } };
}

static int open_it(struct meg_indexed **d, const struct legacy *x, size_t n, struct meg_err *e)
{
    static const int32_t tokens[] = { 7, 8, 9, 5 };

    spew("old.idx", x, n);
    spew("old.bin", tokens, sizeof tokens);
    return meg_indexed_open(d, "old", e);
}

static void reads_sequences_and_documents(void **state)
{
    const struct legacy x = good();
    struct meg_indexed *d;
    struct meg_err e;
    int32_t ids[2];

    (void)state;
    if (open_it(&d, &x, sizeof x, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(d->dtype, MEG_IDX_I32);
    assert_int_equal(d->sequences, 3);
    assert_int_equal(d->documents, 2);
    assert_int_equal(meg_indexed_document(d, 1), 2);
    assert_int_equal(d->tokens, 4);
    assert_int_equal(meg_indexed_length(d, 0), 2);
    assert_int_equal(meg_indexed_get(d, 0, 0, 2, ids, &e), 0);
    assert_true(ids[0] == 7 && ids[1] == 8);
    assert_int_equal(meg_indexed_get(d, 2, 0, 1, ids, &e), 0);
    assert_int_equal(ids[0], 5);
    meg_indexed_close(d);
}

#define REFUSES(n, change, message)                                                                                    \
    do {                                                                                                               \
        struct legacy x = good();                                                                                      \
        struct meg_indexed *d_;                                                                                        \
        struct meg_err e_;                                                                                             \
        change;                                                                                                        \
        assert_int_equal(open_it(&d_, &x, n, &e_), MEG_EFORMAT);                                                       \
        assert_string_equal(e_.msg, message);                                                                          \
    } while (0)

static void refuses_a_damaged_index(void **state)
{
    const size_t all = sizeof(struct legacy);

    (void)state;
    REFUSES(55, , "old.idx: 55 bytes, expected at least 56, the size of the header; the file is truncated");
    REFUSES(all - 1, , "old.idx: 167 bytes, expected 168 for 3 sequences and 3 document index entries");
    REFUSES(all - 8, , "old.idx: 160 bytes, expected 168 for 3 sequences and 3 document index entries");
    REFUSES(all, x.items = x.sizes = UINT64_MAX / 8,
            "old.idx: 168 bytes, expected 55340232221128654848 for 2305843009213693951 sequences "
            "and 3 "
            "document index entries");
    REFUSES(all, x.version = 2, "old.idx: version 2 of the legacy format, expected 1");
    REFUSES(all, x.type = 9,
            "old.idx: found dtype code 9 with 4 bytes per token at byte 16, expected a code from 1 to 8 and the size "
            "of this dtype (meg-idx(5))");
    REFUSES(all, x.type = 8,
            "old.idx: found dtype code 8 with 4 bytes per token at byte 16, expected a code from 1 to 8 and the size "
            "of this dtype (meg-idx(5))");
    REFUSES(all, x.sizes = 6, "old.idx: found 6 dimension sizes for 3 sequences, expected one for each sequence");
    REFUSES(all, x.dims[1] = 2,
            "old.idx: sequence 0 has length 2 and dimension offsets 0 and 2; expected a length from 0 to 2147483647 "
            "and offsets 0 and 1");
    REFUSES(all, x.lengths[1] = -1,
            "old.idx: sequence 1 has length -1 and dimension offsets 1 and 2; expected a length from 0 to 2147483647 "
            "and offsets 1 and 2");
    REFUSES(all, x.lengths[1] = (INT64_C(1) << 32) + 1,
            "old.idx: sequence 1 has length 4294967297 and dimension offsets 1 and 2; expected a length from 0 to "
            "2147483647 and offsets 1 and 2");
    REFUSES(all, x.starts[2] = INT64_MAX,
            "old.idx: sequence 2 starts at token 9223372036854775807, expected 0 to 1152921504606846975");
    REFUSES(all, x.starts[2] = 2,
            "old.idx: sequence 2 starts at byte 8 of .bin, but the sequences before it end at byte 12");
    REFUSES(all, x.documents[2] = 2, "old.idx: the document index ends at sequence 2, expected 3");
    REFUSES(all, (x.lengths[2] = 2, x.starts[3] = 5),
            "old.bin: 16 bytes, expected 20 for the 5 int32 tokens of old.idx; the file is "
            "truncated or belongs to another index");
}

/* In the reference data, a document is a list of sequences. */
static void golden_files_are_read(void **state)
{
    json_t *all = golden_data("fork/datasets.json"), *want;
    const char *name;

    (void)state;
    assert_true(json_object_size(all) >= 9);
    json_object_foreach(all, name, want)
    {
        const json_t *doc, *seq;
        struct meg_indexed *d;
        struct meg_err e;
        char path[64];
        size_t i, k;

        snprintf(path, sizeof path, "fork/%s", name);
        if (meg_indexed_open(&d, golden_path(path), &e) < 0)
            fail_msg("%s", e.msg);
        assert_int_equal(d->documents, json_array_size(json_object_get(want, "documents")));
        json_array_foreach(json_object_get(want, "documents"), i, doc)
        {
            const int64_t first = meg_indexed_document(d, (int64_t)i);

            assert_int_equal(meg_indexed_document(d, (int64_t)i + 1) - first, json_array_size(doc));
            json_array_foreach(doc, k, seq)
            {
                int32_t ids[64];
                const int64_t s = first + (int64_t)k;
                const int32_t n = meg_indexed_length(d, s);

                assert_int_equal(n, json_array_size(seq));
                assert_true(n <= 64);
                assert_int_equal(meg_indexed_get(d, s, 0, n, ids, &e), 0);
                for (int32_t t = 0; t < n; t++)
                    assert_int_equal(ids[t], int_at(seq, (size_t)t));
            }
        }
        meg_indexed_close(d);
    }
    json_decref(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_sequences_and_documents),
        cmocka_unit_test(refuses_a_damaged_index),
        cmocka_unit_test(golden_files_are_read),
    };
    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
