/* Order of samples as in Megatron-DeepSpeed: splits, indices, blends, dataset groups and cache file names. */
#include "data_util.h"

#include "data/blend/data_group.h"
#include "data/dataset_internal.h"
#include "data/gpt_data.h"
#include "data/masked/bert_t5_dataset.h"

static struct meg_str_list words(const char *const *v)
{
    struct meg_str_list l = { (const char **)v, 0 };

    while (v[l.n])
        l.n++;
    return l;
}

static struct meg_data_conf deepspeed(void)
{
    return (struct meg_data_conf){ .dataloader_type = "single", .data_order = "megatron-deepspeed" };
}

static struct meg_data_splits *opened(const struct meg_data_conf *c, const struct meg_dataset_spec *spec)
{
    struct meg_data_splits *d;
    struct meg_err e;

    if (gpt_data_open(&d, c, spec, &e) < 0)
        fail_msg("%s", e.msg);
    return d;
}

/* ---- against the reference ---------------------------------------------------------------------- */

static void golden_splits(void **state)
{
    json_t *all = golden_data("fork/splits.json"), *x;
    struct meg_data_blends b = { 0 };
    struct meg_err e;
    int64_t begin, end;
    size_t i;

    (void)state;
    assert_true(json_array_size(all) > 50);
    json_array_foreach(all, i, x)
    {
        if (get_str(x, "split")) {
            struct meg_split_matrix s;

            assert_int_equal(meg_split_parse(&s, get_str(x, "split"), &e), 0);
            s.is_deepspeed = true;
            for (size_t k = 0; k < MEG_NUM_SPLITS; k++) {
                const json_t *at = json_object_get(x, "boundaries");

                meg_split_range(&s, (int)k, get_int(x, "n"), &begin, &end);
                if (int_at(at, k) == int_at(at, k + 1)) {
                    assert_int_equal(begin, end);
                    continue;
                }
                assert_int_equal(begin, int_at(at, k));
                assert_int_equal(end, int_at(at, k + 1));
            }
        } else {
            char group[64];

            snprintf(group, sizeof group, "G: 1 %s p", get_str(x, "range"));
            assert_int_equal(meg_data_parse_group(meg_data_blends_add(&b, 0), group, "here", &e), 0);
            meg_fraction_range(b.blend[0]->range[0], get_int(x, "n"), &begin, &end);
            assert_int_equal(begin, int_at(json_object_get(x, "bounds"), 0));
            assert_int_equal(end, int_at(json_object_get(x, "bounds"), 1));
            meg_data_blends_free(&b);
        }
    }
    json_decref(all);
}

static void same_index(const struct meg_dataset *ds, const json_t *x)
{
    const json_t *document = json_object_get(x, "document_index"), *sample = json_object_get(x, "sample_index"),
                 *shuffle = json_object_get(x, "shuffle_index");

    assert_int_equal(meg_dataset_len(ds), get_int(x, "length"));
    assert_int_equal(ds->index.ndocument, json_array_size(document));
    for (int64_t i = 0; i < ds->index.ndocument; i++)
        assert_int_equal(ds->index.document[i], int_at(document, (size_t)i));
    for (int64_t i = 0; i <= ds->len; i++) {
        int64_t k, offset;

        meg_gpt_index_start(&ds->index, i, &k, &offset);
        assert_int_equal(k, int_at(json_array_get(sample, (size_t)i), 0));
        assert_int_equal(offset, int_at(json_array_get(sample, (size_t)i), 1));
        if (i < ds->len)
            assert_int_equal(meg_gpt_index_shuffled(&ds->index, i), int_at(shuffle, (size_t)i));
    }
}

static void same_samples(const struct meg_dataset *ds, const json_t *x)
{
    const json_t *first;
    size_t i;

    json_array_foreach(json_object_get(x, "first_samples"), i, first)
    {
        int32_t ids[4][64];
        float mask[64];
        struct meg_batch got = {
            .tokens = ids[0], .labels = ids[1], .position_ids = ids[2], .doc_start = ids[3], .loss_mask = mask
        };
        const size_t s = (size_t)meg_dataset_seq_length(ds);
        struct meg_err e;

        assert_int_equal(meg_dataset_sample(ds, (int64_t)i, &got, &e), 0);
        for (size_t k = 0; k < s; k++)
            assert_int_equal(got.tokens[k], int_at(first, k));
        assert_int_equal(got.labels[s - 1], int_at(first, s));
    }
}

/*
 * In cases with "error", Megatron-DeepSpeed failed at the last of the three splits.  meg does not fail there, so only
 * the first two splits are built, and the names of their files are compared.
 */
static void golden_indices_and_file_names(void **state)
{
    json_t *all = golden_data("fork/gpt_indices.json"), *names = golden_data("fork/cache_file_names.json"), *x, *name;
    const char *prefix[] = { "tiny_text_document", NULL };
    size_t i, nfiles = 0;
    struct dirent *f;
    DIR *dir;

    (void)state;
    copy_golden("tiny_text_document");
    assert_true(json_array_size(all) >= 20);
    json_array_foreach(all, i, x)
    {
        struct meg_data_conf c = deepspeed();
        struct meg_dataset_spec spec = {
            .seq_length = get_int(x, "sequence_length"), .seed = get_int(x, "seed"), .eod = -1, .pad = -1
        };
        const json_t *wanted = json_object_get(x, "num_samples");
        struct meg_data_splits *d;

        assert_string_equal(get_str(x, "dataset"), prefix[0]);
        c.data_path = words(prefix);
        c.split = get_str(x, "split");
        if (json_object_get(x, "error")) {
            spec.num_samples[MEG_SPLIT_TRAIN] = int_at(wanted, 0);
            spec.num_samples[MEG_SPLIT_VALID] = int_at(wanted, 1);
            meg_data_splits_close(opened(&c, &spec));
            continue;
        }
        assert_string_equal(get_str(x, "which"), "train");
        spec.num_samples[MEG_SPLIT_TRAIN] = json_integer_value(wanted);
        for (int pass = 0; pass < 2; pass++) {
            d = opened(&c, &spec);
            if (pass)
                assert_non_null(meg_data_splits_dataset(d, MEG_SPLIT_TRAIN)->map[0].p);
            same_index(meg_data_splits_dataset(d, MEG_SPLIT_TRAIN), x);
            same_samples(meg_data_splits_dataset(d, MEG_SPLIT_TRAIN), x);
            meg_data_splits_close(d);
        }
    }
    json_array_foreach(names, i, name) if (access(json_string_value(name), F_OK) < 0)
        fail_msg("no file %s", json_string_value(name));
    dir = opendir(".");
    while ((f = readdir(dir)))
        nfiles += strstr(f->d_name, "_indexmap_") && strstr(f->d_name, ".npy");
    closedir(dir);
    assert_int_equal(nfiles, json_array_size(names));
    json_decref(all);
    json_decref(names);
}

static void golden_blends(void **state)
{
    json_t *all = golden_data("fork/blend.json"), *x, *word;
    size_t i, k;

    (void)state;
    copy_golden("tiny_text_document");
    copy_golden("second_text_document");
    assert_true(json_array_size(all) >= 2);
    json_array_foreach(all, i, x)
    {
        struct meg_data_conf c = deepspeed();
        struct meg_dataset_spec spec = {
            .seq_length = get_int(x, "sequence_length"), .seed = get_int(x, "seed"), .eod = -1, .pad = -1
        };
        const char *path[16] = { NULL };
        const struct meg_dataset *ds;
        struct meg_data_splits *d;
        int which = 0;

        json_array_foreach(json_object_get(x, "data_path"), k, word) path[k] = json_string_value(word);
        c.data_path = words(path);
        c.split = get_str(x, "split");
        while (strcmp(meg_split_names[which], get_str(x, "which")) != 0)
            which++;
        spec.num_samples[which] = int_at(json_object_get(x, "targets"), (size_t)which);
        d = opened(&c, &spec);
        ds = meg_data_splits_dataset(d, which);
        assert_int_equal(meg_dataset_len(ds), get_int(x, "size"));
        for (int m = 0; m < ds->nmember; m++)
            assert_int_equal(ds->member[m]->len, int_at(json_object_get(x, "lengths"), (size_t)m));
        for (int64_t s = 0; s < ds->len; s++) {
            assert_int_equal(ds->blend.dataset[s], int_at(json_object_get(x, "dataset_index"), (size_t)s));
            assert_int_equal(ds->blend.sample[s], int_at(json_object_get(x, "dataset_sample_index"), (size_t)s));
        }
        meg_data_splits_close(d);
    }
    json_decref(all);
}

/* ---- without reference data --------------------------------------------------------------------- */

static void a_sample_past_the_end_of_a_blended_dataset_is_an_error(void **state)
{
    static const int length[] = { 20, 20 };
    const char *path[] = { "0.2", "ra", "0.8", "rb", NULL };
    struct meg_data_conf c = deepspeed();
    const struct meg_dataset_spec spec = { .seq_length = 4, .num_samples = { 10, 0, 0 }, .eod = -1, .pad = -1 };
    int32_t ids[4][4];
    float mask[4];
    struct meg_batch got = {
        .tokens = ids[0], .labels = ids[1], .position_ids = ids[2], .doc_start = ids[3], .loss_mask = mask
    };
    const struct meg_dataset *ds;
    struct meg_data_splits *d;
    struct meg_err e;

    (void)state;
    make_dataset("ra", length, 2);
    make_dataset("rb", length, 2);
    c.data_path = words(path);
    c.split = "1";
    d = opened(&c, &spec);
    ds = meg_data_splits_dataset(d, MEG_SPLIT_TRAIN);
    assert_int_equal(meg_dataset_len(ds), 18); /* one epoch of each dataset, although 10 samples are requested */
    for (int64_t i = 0; i < 10; i++)
        assert_int_equal(meg_dataset_sample(ds, i, &got, &e), 0);
    assert_int_equal(meg_dataset_sample(ds, 17, &got, &e), MEG_EFAIL);
    assert_string_equal(e.msg,
                        "rb: the blend needs more samples than the 9 of this dataset; use --renormalize-blend-weights "
                        "(--megatron-release 0.10) or a larger --mid-level-dataset-surplus (0.11 or later)");
    meg_data_splits_close(d);
}

static void validation_and_test_may_have_several_groups(void **state)
{
    static const int length[] = { 9, 9, 9, 9, 9, 9, 9, 9, 9, 9 };
    const char *train[] = { "T: 1 0:0.4 va", NULL };
    const char *valid[] = { "en: 1 0.4:0.6 va", "fr: 1 0.6:0.8 va, 1 0:1 vb", "de: 1 0:1 vb", NULL };
    struct meg_data_conf c = deepspeed();
    const struct meg_dataset_spec spec = {
        .seq_length = 4, .num_samples = { 8, 3, 2 }, .eod = -1, .pad = -1, .seed = 5
    };
    const char *names[] = { "en", "fr", "de" }, *name;
    const struct meg_dataset *ds;
    const struct meg_mid_dataset *p;
    struct meg_data_splits *d;
    int n;

    (void)state;
    make_dataset("va", length, 10);
    make_dataset("vb", length, 10);
    c.weighted_split[MEG_SPLIT_TRAIN] = words(train);
    c.weighted_split[MEG_SPLIT_VALID] = words(valid);
    spew_text("groups.txt", "\"x: 1 0:1 va\"\n\"y: 1 0:1 vb\" ");
    c.weighted_split_file[MEG_SPLIT_TEST] = "groups.txt";
    d = opened(&c, &spec);
    p = meg_data_splits_mid_datasets(d, &n);
    assert_int_equal(n, 7);
    assert_true(p[1].begin == 4 && p[1].end == 6 && p[1].num_samples == 3);
    assert_true(p[2].begin == 6 && p[2].end == 8 && p[2].weight == 0.5);
    for (int i = 0; i < 3; i++) {
        ds = meg_data_splits_group(d, MEG_SPLIT_VALID, i, &name);
        assert_string_equal(name, names[i]);
        assert_int_equal(ds->nmember, i == 1 ? 2 : 0);
    }
    assert_null(meg_data_splits_group(d, MEG_SPLIT_VALID, 3, &name));
    assert_string_equal(meg_data_splits_group(d, MEG_SPLIT_TEST, 1, &name) ? name : "", "y");
    assert_null(meg_data_splits_group(d, MEG_SPLIT_TEST, 2, NULL));
    meg_data_splits_close(d);
    assert_int_equal(access("va_fr_indexmap_2ns_4sl_5s_doc_idx.npy", F_OK), 0);
    assert_int_equal(access("vb_de_indexmap_3ns_4sl_5s_doc_idx.npy", F_OK), 0);
}

static void a_group_reads_ranges_of_files(void **state)
{
    static const int length[] = { 9, 9, 9, 9, 9, 9, 9, 9, 9, 9 };
    const char *train[] = { "T: 0.25 0:0.6 ga, 0.75 0.5:1 sub/gb", NULL }, *valid[] = { "V1: 1 0.6:0.8 ga", NULL };
    struct meg_data_conf c = deepspeed();
    const struct meg_dataset_spec spec = {
        .seq_length = 4, .num_samples = { 8, 3, 2 }, .eod = -1, .pad = -1, .seed = 5
    };
    const struct meg_mid_dataset *p;
    struct meg_data_splits *d;
    int n;

    (void)state;
    mkdir("sub", 0777);
    make_dataset("ga", length, 10);
    make_dataset("sub/gb", length, 10);
    c.data_order = "auto"; /* selects Megatron-DeepSpeed's order because of the group */
    c.weighted_split[MEG_SPLIT_TRAIN] = words(train);
    c.weighted_split[MEG_SPLIT_VALID] = words(valid);
    spew_text("test.txt", "\"X: 1 0.8:1 ga\"\n");
    c.weighted_split_file[MEG_SPLIT_TEST] = "test.txt";
    for (int pass = 0; pass < 2; pass++) {
        d = opened(&c, &spec);
        p = meg_data_splits_mid_datasets(d, &n);
        assert_int_equal(n, 4);
        assert_true(p[0].begin == 0 && p[0].end == 6 && p[0].weight == 0.25);
        assert_true(p[1].begin == 5 && p[1].end == 10 && p[1].weight == 0.75);
        assert_true(p[2].split == MEG_SPLIT_VALID && p[2].begin == 6 && p[2].end == 8 && p[2].num_samples == 3);
        assert_true(p[3].split == MEG_SPLIT_TEST && p[3].begin == 8 && p[3].end == 10);
        assert_int_equal(meg_data_splits_dataset(d, MEG_SPLIT_VALID)->nmember, 0);
        assert_int_equal(meg_data_splits_dataset(d, MEG_SPLIT_TRAIN)->nmember, 2);
        meg_data_splits_close(d);
    }
    assert_int_equal(access("ga_T_indexmap_3ns_4sl_5s_doc_idx.npy", F_OK), 0);
    assert_int_equal(access("sub/gb_T_indexmap_7ns_4sl_5s_shuffle_idx.npy", F_OK), 0);
    assert_int_equal(access("ga_V1_indexmap_3ns_4sl_5s_sample_idx.npy", F_OK), 0);
    assert_int_equal(access("ga_X_indexmap_2ns_4sl_5s_sample_idx.npy", F_OK), 0);

    /*
     * Different ranges of documents have the same file names.  The arrays of one range are not used for another, even
     * if their sizes are equal: the second range has half the documents and twice the epochs.
     */
    for (int i = 0; i < 3; i++) {
        static const char *const ranges[] = { "V1: 1 0.4:0.6 ga", "V1: 1 0.4:0.5 ga", "V1: 1 0.4:0.6 ga" };

        valid[0] = ranges[i];
        for (int pass = 0; pass < 2; pass++) {
            const struct meg_dataset *ds;
            int32_t last = 0;

            d = opened(&c, &spec);
            ds = meg_data_splits_dataset(d, MEG_SPLIT_VALID);
            assert_int_equal(ds->map[0].p != NULL, pass);
            assert_int_equal(ds->index.ndocument, 2);
            for (int64_t k = 0; k < 2; k++)
                last = ds->index.document[k] > last ? ds->index.document[k] : last;
            assert_int_equal(last, i == 1 ? 4 : 5);
            meg_data_splits_close(d);
        }
    }
    c.data_cache_path = "kept";
    meg_data_splits_close(opened(&c, &spec));
    assert_int_equal(access("kept/gb_T_indexmap_7ns_4sl_5s_shuffle_idx.npy", F_OK), 0);
}

/* Write n documents of 4 sentences of 5 tokens each. */
static void make_sentences(const char *prefix, int n)
{
    int32_t ids[5] = { 1, 2, 3, 4, 5 };
    struct meg_indexed_writer *w;
    struct meg_err e;

    assert_int_equal(meg_indexed_create(&w, prefix, MEG_IDX_U16, &e), 0);
    for (int doc = 0; doc < n; doc++) {
        for (int s = 0; s < 4; s++)
            assert_int_equal(indexed_append(w, ids, 5, &e), 0);
        meg_indexed_end_document(w);
    }
    assert_int_equal(meg_indexed_commit(&w, 1, &e), 0);
}

static void a_sentence_map_is_cached_under_deepspeeds_name_for_one_split(void **state)
{
    static const unsigned char no_continuation[64];
    static const int documents[] = {
        9, 10, 5
    }; /* documents of the training split; all splits have the same cache file name */
    static const char *const split[] = { "9,1", "1", "5,5" };
    const char *path[] = { "sentences", NULL };
    const struct meg_masked_vocab v = {
        .size = 64, .is_continuation = no_continuation, .cls = 50, .sep = 51, .mask = 52, .pad = 53
    };
    struct meg_masked_conf c = meg_masked_defaults(MEG_MASKED_BERT);
    struct meg_data_conf conf = deepspeed();
    const struct meg_dataset_spec spec = { .seq_length = 32, .seed = 9, .num_samples = { 4, 0, 0 } };
    const struct meg_dataset *ds;
    struct meg_data_splits *d;
    struct meg_err e;

    (void)state;
    make_sentences("sentences", 10);
    conf.data_path = words(path);
    for (size_t i = 0; i < sizeof split / sizeof *split; i++) {
        conf.split = split[i];
        for (int pass = 0; pass < 2; pass++) {
            int64_t last = 0;

            assert_int_equal(masked_data_open(&d, &conf, &spec, &c, &v, &e), 0);
            ds = meg_data_splits_dataset(d, MEG_SPLIT_TRAIN);
            assert_int_equal(ds->map[0].p != NULL, pass);
            for (int64_t k = 0; k < ds->len; k++)
                last = meg_sentence_map_at(&ds->sentence_map, k, 1) > last
                           ? meg_sentence_map_at(&ds->sentence_map, k, 1)
                           : last;
            assert_int_equal(last, 4 * documents[i]);
            meg_data_splits_close(d);
        }
        assert_int_equal(access("sentences_train_indexmap_4mns_29msl_0.10ssp_9s.npy", F_OK), 0);
    }
}

#define FAILS(code, message)                                                                                           \
    do {                                                                                                               \
        struct meg_data_splits *d_;                                                                                    \
        struct meg_err e_;                                                                                             \
        assert_int_equal(meg_gpt_data_plan(&d_, &c, &spec, &e_), code);                                                \
        assert_string_equal(e_.msg, message);                                                                          \
    } while (0)

static void an_invalid_group_is_refused(void **state)
{
    static const char *const bad[][2] = {
        { "T: 1 0:1", " 1 0:1" },     { "T: 1 0:1 a b", " 1 0:1 a b" },     { "T: 1 0-1 a", " 1 0-1 a" },
        { "T: 0 0:1 a", " 0 0:1 a" }, { "T: 1 0.5:0.5 a", " 1 0.5:0.5 a" }, { "T: 1 0:1.5 a", " 1 0:1.5 a" },
        { "T: 1 0:1 a, ", " " },
    };
    const char *group[] = { NULL, NULL, NULL };
    struct meg_data_conf c = deepspeed();
    const struct meg_dataset_spec spec = { .seq_length = 4, .num_samples = { 8, 0, 0 } };
    char want[256];

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        group[0] = bad[i][0];
        c.weighted_split[MEG_SPLIT_TRAIN] = words(group);
        snprintf(want, sizeof want,
                 "--train-weighted-split-paths: '%s' is not WEIGHT BEGIN:END PREFIX with WEIGHT > 0 "
                 "and 0 <= BEGIN < END <= 1",
                 bad[i][1]);
        FAILS(MEG_EUSAGE, want);
    }
    group[0] = "1 0:1 a";
    FAILS(MEG_EUSAGE, "--train-weighted-split-paths: '1 0:1 a' does not begin with a name and a colon; expected "
                      "'NAME: WEIGHT BEGIN:END PREFIX, ...'");
    group[0] = "T: 1e308 0:1 a, 1e308 0:1 b";
    FAILS(MEG_EUSAGE, "--train-weighted-split-paths: the sum of the weights exceeds 1.79769e+308; use smaller weights, "
                      "because only their ratios matter");
    group[0] = group[1] = "T: 1 0:1 a";
    c.weighted_split[MEG_SPLIT_TRAIN] = words(group);
    FAILS(MEG_EUSAGE, "--train-weighted-split-paths: found 2 dataset groups, expected one; blend all training data in "
                      "one group");
    c.weighted_split[MEG_SPLIT_TRAIN].n = 1;
    c.weighted_split[MEG_SPLIT_VALID] = words(group);
    FAILS(MEG_EUSAGE, "--valid-weighted-split-paths: found two dataset groups named T, expected different names; "
                      "rename one of them");
    c.weighted_split[MEG_SPLIT_VALID].n = 1;
    c.weighted_split_file[MEG_SPLIT_VALID] = "group.txt";
    FAILS(MEG_EUSAGE,
          "--valid-weighted-split-paths: cannot be combined with --valid-weighted-split-paths-path; use one "
          "of these options");
    c.weighted_split[MEG_SPLIT_VALID].n = 0;
    c.weighted_split_file[MEG_SPLIT_VALID] = NULL;
    c.weighted_split[MEG_SPLIT_TRAIN].n = 1;
    c.data_order = "megatron-lm";
    FAILS(MEG_EUSAGE,
          "--data-order megatron-lm: cannot be combined with --*-weighted-split-paths; use megatron-deepspeed or auto");
    c.data_order = "auto";
    c.split = "1";
    FAILS(MEG_EUSAGE,
          "--split cannot be combined with options that specify the datasets of each split; remove --split");
    c.split = NULL;
    c.weighted_split[MEG_SPLIT_TRAIN].n = 0;
    c.weighted_split_file[MEG_SPLIT_TRAIN] = "group.txt";
    spew_text("group.txt", "T: 1 0:1 a\n");
    FAILS(MEG_EFORMAT, "group.txt: expected dataset groups, each between an opening and a closing double quote: "
                       "\"NAME: WEIGHT BEGIN:END PREFIX, ...\"");
    spew_text("group.txt", " \n");
    FAILS(MEG_EUSAGE, "group.txt: the file is empty; expected dataset groups in double quotes: \"NAME: WEIGHT "
                      "BEGIN:END PREFIX, ...\"");
    spew_text("group.txt", "\"T: 1 0:1 a\" \"U: 1 0:1 a\"\n");
    FAILS(MEG_EUSAGE, "group.txt: found 2 dataset groups, expected one; blend all training data in one group");
    spew("group.txt", "\"T: 1\0 0:1 a\"", 14);
    FAILS(MEG_EFORMAT, "group.txt: contains a zero byte; expected a text file");
    c.weighted_split_file[MEG_SPLIT_TRAIN] = "nowhere.txt";
    FAILS(MEG_ENOENT, "nowhere.txt: No such file or directory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_splits),
        cmocka_unit_test(golden_indices_and_file_names),
        cmocka_unit_test(golden_blends),
        cmocka_unit_test(a_sample_past_the_end_of_a_blended_dataset_is_an_error),
        cmocka_unit_test(validation_and_test_may_have_several_groups),
        cmocka_unit_test(a_group_reads_ranges_of_files),
        cmocka_unit_test(a_sentence_map_is_cached_under_deepspeeds_name_for_one_split),
        cmocka_unit_test(an_invalid_group_is_refused),
    };
    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
