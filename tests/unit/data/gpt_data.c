/* GPT data from --data-path to micro-batches: options, samples, index cache, blends, loader. */
#include "data_util.h"

#include <fcntl.h>
#include <math.h>
#include <sys/wait.h>
#include <time.h>

#include "data/dataset_internal.h"
#include "data/gpt_data.h"
#include "data/loader.h"

#define NULL_TOKENIZER                                                                                                 \
    "{\n    \"class\": \"_NullTokenizer\",\n    \"tokenizer_path\": [\n        null\n    ],\n"                         \
    "    \"vocab_size\": \"1000\"\n}"

enum { T = 8 };

static struct meg_data_conf defaults(void)
{
    const struct meg_data_conf c = { .dataloader_type = "single", .data_order = "auto" };
    return c;
}

static struct meg_str_list words(const char **v)
{
    struct meg_str_list l = { v, 0 };
    while (v[l.n])
        l.n++;
    return l;
}

static struct meg_dataset_spec spec_of(int64_t train, int64_t valid, int64_t test)
{
    const struct meg_dataset_spec n = { T, 1234, { train, valid, test }, 1000, -1, 1001, NULL_TOKENIZER, NULL };
    return n;
}

/* The arrays of one sample. */
struct row {
    int32_t tokens[64], labels[64], position_ids[64], doc_start[64];
    float loss_mask[64];
};

static struct meg_batch sample_of(struct row *r)
{
    struct meg_batch s = { .tokens = r->tokens, .labels = r->labels, .position_ids = r->position_ids };

    s.doc_start = r->doc_start;
    s.loss_mask = r->loss_mask;
    return s;
}

static void read_row(const struct meg_dataset *ds, int64_t i, struct row *r)
{
    struct meg_batch s = sample_of(r);
    struct meg_err e;
    if (meg_dataset_sample(ds, i, &s, &e) < 0)
        fail_msg("%s", e.msg);
}

/* ---- without reference data ------------------------------------------------------------------------- */

static void reset_options_and_loss_mask_follow_the_eod_token(void **state)
{
    const int length[] = { 4, 20 }; /* 1 2 3 0 | 1 2 ... 19 0 */
    const char *path[] = { "mark", NULL };
    struct meg_data_conf c = defaults();
    struct meg_dataset_spec spec = spec_of(1, 0, 0);
    struct meg_data_splits *d;
    struct meg_err e;
    struct row r;
    int at = -1;

    (void)state;
    make_dataset("mark", length, 2);
    c.data_path = words(path);
    c.split = "1";
    c.reset_position_ids = c.reset_attention_mask = c.eod_mask_loss = true;
    spec.eod = 0;
    assert_int_equal(gpt_data_open(&d, &c, &spec, &e), 0);
    for (int64_t i = 0; i < meg_dataset_len(meg_data_splits_dataset(d, MEG_SPLIT_TRAIN)); i++) {
        read_row(meg_data_splits_dataset(d, MEG_SPLIT_TRAIN), i, &r);
        for (int t = 0; t + 1 < T; t++)
            if (r.tokens[t] == 0) {
                at = t;
                assert_true(r.loss_mask[t] == 0);
                assert_int_equal(r.position_ids[t + 1], 0);
                assert_int_equal(r.doc_start[t + 1], t + 1);
                assert_int_equal(r.doc_start[t], 0);
            } else {
                assert_true(r.loss_mask[t] == 1);
            }
        for (int t = 0; t + 1 < T; t++)
            assert_int_equal(r.labels[t], r.tokens[t + 1]);
    }
    assert_true(at >= 0);
    assert_null(meg_data_splits_dataset(d, MEG_SPLIT_VALID));
    meg_data_splits_close(d);
}

/*
 * As in Megatron-LM with a tokenizer that has a pad token, a pad token in the text becomes 0 in tokens and labels, and
 * its loss is masked.
 */
static void a_pad_token_in_the_text_is_masked(void **state)
{
    const int length[] = { 9 }; /* 1 2 3 4 5 6 7 8 0 */
    static const int32_t tokens[T] = { 1, 2, 3, 0, 5, 6, 7, 8 }, labels[T] = { 2, 3, 0, 5, 6, 7, 8, 0 };
    static const float mask[T] = { 1, 1, 0, 1, 1, 1, 1, 1 };
    const char *path[] = { "padded", NULL };
    struct meg_data_conf c = defaults();
    struct meg_dataset_spec spec = spec_of(1, 0, 0);
    struct meg_data_splits *d;
    struct meg_err e;
    struct row r;

    (void)state;
    make_dataset("padded", length, 1);
    c.data_path = words(path);
    c.split = "1";
    spec.pad = 4;
    assert_int_equal(gpt_data_open(&d, &c, &spec, &e), 0);
    read_row(meg_data_splits_dataset(d, MEG_SPLIT_TRAIN), 0, &r);
    assert_memory_equal(r.tokens, tokens, sizeof tokens);
    assert_memory_equal(r.labels, labels, sizeof labels);
    assert_memory_equal(r.loss_mask, mask, sizeof mask);
    meg_data_splits_close(d);
}

#define FAILS(conf, spec, code, message)                                                                               \
    do {                                                                                                               \
        struct meg_data_splits *d_;                                                                                    \
        struct meg_err e_;                                                                                             \
        assert_int_equal(gpt_data_open(&d_, conf, spec, &e_), code);                                                   \
        assert_string_equal(e_.msg, message);                                                                          \
    } while (0)

static void a_dataset_or_split_without_tokens_is_an_error(void **state)
{
    const int none[] = { 0, 0 }, more[] = { 10, 10, 10, 10, 10, 10, 10, 10, 10, 10 };
    const char *empty[] = { "empty", NULL }, *ten[] = { "ten", NULL };
    struct meg_data_conf c = defaults();
    struct meg_dataset_spec spec = spec_of(4, 0, 1);

    (void)state;
    make_dataset("empty", none, 2);
    make_dataset("ten", more, 10);
    c.data_path = words(empty);
    c.split = "1";
    FAILS(&c, &spec, MEG_EFORMAT,
          "empty: found no tokens in 2 sequences, but a dataset needs at least one token; preprocess the text again");
    c.data_path = words(ten);
    c.split = "949,50,1";
    FAILS(&c, &spec, MEG_EUSAGE,
          "--split 949,50,1: the test split of ten has 0 of 10 sequences and no tokens, but one sample needs 9 tokens; "
          "use a larger ratio, or 0 to omit this split");
}

/* As in Megatron-LM, a dataset is repeated within a sample, down to a dataset of one token. */
static void a_dataset_shorter_than_a_sample_is_repeated(void **state)
{
    static const int32_t tokens[2][T] = { { 1, 2, 3, 0, 1, 2, 3, 0 }, { 0, 0, 0, 0, 0, 0, 0, 0 } };
    static const int32_t labels[2][T] = { { 2, 3, 0, 1, 2, 3, 0, 1 }, { 0, 0, 0, 0, 0, 0, 0, 0 } };
    const char *path[2][2] = { { "tiny", NULL }, { "one", NULL } };
    const int length[] = { 4, 1 };
    const int64_t epochs[] = { 13, 49 }; /* 6 samples of 8 tokens and one label */

    (void)state;
    for (int k = 0; k < 2; k++) {
        struct meg_data_conf c = defaults();
        struct meg_dataset_spec spec = spec_of(6, 0, 0);
        struct meg_data_splits *d;
        struct meg_err e;
        struct row r;
        int n;

        make_dataset(path[k][0], &length[k], 1);
        c.data_path = words(path[k]);
        c.split = "1";
        if (gpt_data_open(&d, &c, &spec, &e) < 0)
            fail_msg("%s", e.msg);
        assert_int_equal(meg_data_splits_mid_datasets(d, &n)->epochs, epochs[k]);
        assert_int_equal(meg_dataset_len(meg_data_splits_dataset(d, MEG_SPLIT_TRAIN)), 6);
        for (int64_t i = 0; i < 6; i++) {
            read_row(meg_data_splits_dataset(d, MEG_SPLIT_TRAIN), i, &r);
            assert_memory_equal(r.tokens, tokens[k], sizeof tokens[k]);
            assert_memory_equal(r.labels, labels[k], sizeof labels[k]);
        }
        meg_data_splits_close(d);
    }
}

/*
 * As in Megatron-LM, a split with fewer tokens than a sample is repeated to get a requested number of samples.  If one
 * epoch is requested, this is an error.
 */
static void a_short_split_is_repeated(void **state)
{
    const int length[] = { 40, 5 };
    const char *path[] = { "short", NULL };
    struct meg_data_conf c = defaults();
    struct meg_dataset_spec spec = spec_of(0, 3, 0);
    const struct meg_mid_dataset *part;
    struct meg_data_splits *d;
    struct meg_err e;
    int n;

    (void)state;
    make_dataset("short", length, 2);
    c.data_path = words(path);
    c.split = "1,1";
    assert_int_equal(gpt_data_open(&d, &c, &spec, &e), 0);
    part = meg_data_splits_mid_datasets(d, &n);
    assert_int_equal(n, 1);
    assert_true(part->tokens == 5 && part->epochs == 5 && part->samples == 3);
    assert_int_equal(meg_dataset_len(meg_data_splits_dataset(d, MEG_SPLIT_VALID)), 3);
    meg_data_splits_close(d);
    spec.num_samples[MEG_SPLIT_VALID] = MEG_ONE_EPOCH;
    FAILS(&c, &spec, MEG_EFORMAT,
          "short: the valid split has 5 tokens, but one sample needs 9 and no number of samples is requested; use more "
          "text, a shorter --seq-length or, in a blend, weights");
}

static void an_id_outside_the_vocabulary_is_refused(void **state)
{
    const int length[] = { 40 };
    const char *path[] = { "ids", NULL };
    struct meg_data_conf c = defaults();
    struct meg_dataset_spec spec = spec_of(1, 0, 0);
    struct meg_data_splits *d;
    struct meg_batch s;
    struct meg_err e;
    struct row r;
    int bad = 0;

    (void)state;
    make_dataset("ids", length, 1);
    c.data_path = words(path);
    c.split = "1";
    spec.vocab_size = 30;
    s = sample_of(&r);
    assert_int_equal(gpt_data_open(&d, &c, &spec, &e), 0);
    for (int64_t i = 0; i < 4; i++)
        if (meg_dataset_sample(meg_data_splits_dataset(d, MEG_SPLIT_TRAIN), i, &s, &e) == MEG_EFORMAT)
            bad++;
    assert_int_equal(bad, 1); /* the last of four: tokens 25 to 33 */
    assert_non_null(
        strstr(e.msg, "is outside the vocabulary of 30 ids; preprocess the text with the tokenizer of this run"));
    meg_data_splits_close(d);
}

static void contradicting_options_are_refused(void **state)
{
    const char *path[] = { "ten", NULL }, *mixed[] = { "1", "ten", "x", "ten", NULL }, *zero[] = { "0", "ten", NULL },
               *huge[] = { "1e308", "ten", "1e308", "ten", NULL };
    struct meg_data_conf c = defaults();
    struct meg_dataset_spec spec = spec_of(4, 0, 0);

    (void)state;
    FAILS(&c, &spec, MEG_EUSAGE, "no data is specified; use --data-path PREFIX, or --mock-data for generated tokens");
    c.data_path = words(path);
    c.mock_data = true;
    FAILS(&c, &spec, MEG_EUSAGE,
          "several sources of data are specified; use only one of --data-path, --data-args-path, "
          "--{train,valid,test}-data-path, --per-split-data-args-path, --*-weighted-split-paths and --mock-data");
    c.mock_data = false;
    c.data_path = words(mixed);
    FAILS(&c, &spec, MEG_EUSAGE,
          "--data-path: only 1 of 2 WEIGHT PREFIX pairs begin with a number; specify a weight before every prefix or "
          "before none");
    c.data_path = words(zero);
    FAILS(&c, &spec, MEG_EUSAGE, "--data-path: weight 0 of ten must be above 0");
    c.data_path = words(huge);
    FAILS(&c, &spec, MEG_EUSAGE,
          "--data-path: the sum of the weights exceeds 1.79769e+308; use smaller weights, because only their ratios "
          "matter");
    c.data_path.n = 0;
    c.per_split_path[MEG_SPLIT_TRAIN] = words(path);
    c.split = "1,1";
    FAILS(&c, &spec, MEG_EUSAGE,
          "--split cannot be combined with options that specify the datasets of each split; remove --split");
    c.split = NULL;
    spec.seed = -1;
    FAILS(&c, &spec, MEG_EUSAGE, "--seed -1: must be from 0 to 4294967295");
}

static void argument_files_name_the_datasets(void **state)
{
    const int length[] = { 30, 30 };
    struct meg_data_conf c = defaults();
    struct meg_dataset_spec spec = spec_of(4, 2, 1);
    const struct meg_mid_dataset *part;
    struct meg_data_splits *d;
    struct meg_err e;
    int n;

    (void)state;
    make_dataset("wa", length, 2);
    make_dataset("wb", length, 2);
    spew_text("args", " 0.25 wa\n0.75\twb \n");
    c.data_args_path = "args";
    c.split = "1";
    assert_int_equal(meg_gpt_data_plan(&d, &c, &spec, &e), 0);
    part = meg_data_splits_mid_datasets(d, &n);
    assert_int_equal(n, 2);
    assert_string_equal(part[0].name, "wa");
    assert_true(part[1].weight == 0.75 && part[1].num_samples == 4 && part[1].tokens == 60 && part[1].epochs == 1 &&
                part[1].samples == 7);
    meg_data_splits_close(d);
    assert_int_equal(access("wa", F_OK), -1); /* planning writes nothing */

    c = defaults();
    spew_text("split.json", "{\"train\": [\"1\", \"wa\", \"1\", \"wb\"], \"valid\": \"wb\", \"test\": null}");
    c.per_split_data_args_path = "split.json";
    assert_int_equal(meg_gpt_data_plan(&d, &c, &spec, &e), 0);
    part = meg_data_splits_mid_datasets(d, &n);
    assert_int_equal(n, 3);
    assert_true(part[2].split == MEG_SPLIT_VALID && part[2].num_samples == 2 && part[2].begin == 0 && part[2].end == 2);
    meg_data_splits_close(d);
    spew_text("split.json", "{\"train\": [\"wa\"]}");
    FAILS(&c, &spec, MEG_EFORMAT,
          "split.json: the key \"valid\" is required and must be a list of strings, a string or null");
}

static void mock_data_needs_no_file(void **state)
{
    struct meg_data_conf c = defaults();
    struct meg_dataset_spec spec = spec_of(10, 4, 0);
    struct meg_data_splits *d;
    struct meg_err e;
    struct row r;

    (void)state;
    c.mock_data = true;
    assert_int_equal(gpt_data_open(&d, &c, &spec, &e), 0);
    read_row(meg_data_splits_dataset(d, MEG_SPLIT_TRAIN), 3, &r);
    assert_int_equal(r.labels[0], r.tokens[1]);
    assert_null(meg_data_splits_dataset(d, MEG_SPLIT_TEST));
    meg_data_splits_close(d);
}

/* ---- the cache ---------------------------------------------------------------------------------- */

static int open_train(struct meg_data_splits **d, const char *prefix, const char *cache, struct meg_err *e)
{
    const char *path[] = { prefix, NULL };
    struct meg_data_conf c = defaults();
    struct meg_dataset_spec spec = spec_of(9, 0, 0);

    c.data_path = words(path);
    c.split = "1";
    c.data_cache_path = cache;
    return gpt_data_open(d, &c, &spec, e);
}

static const struct meg_dataset *train_of(struct meg_data_splits **d, const char *prefix, const char *cache)
{
    struct meg_err e;

    if (open_train(d, prefix, cache, &e) < 0)
        fail_msg("%s", e.msg);
    return meg_data_splits_dataset(*d, MEG_SPLIT_TRAIN);
}

static char *cache_file(const char *dir, const char *name)
{
    static char path[1024];
    struct dirent *f;
    DIR *d = opendir(dir);
    assert_non_null(d);
    while ((f = readdir(d)) && (!strstr(f->d_name, name) || strstr(f->d_name, ".tmp.")))
        ;
    assert_non_null(f);
    snprintf(path, sizeof path, "%s/%s", dir, f->d_name);
    closedir(d);
    return path;
}

static void a_damaged_cache_is_rebuilt(void **state)
{
    static const char *const names[] = { "description", "document_index", "sample_index", "shuffle_index",
                                         "checksums" };
    const int length[] = { 11, 12, 13, 14, 15, 16 };
    struct row want, got;
    struct meg_data_splits *d;
    const struct meg_dataset *ds;

    (void)state;
    make_dataset("cached", length, 6);
    ds = train_of(&d, "cached", "cc");
    assert_null(ds->map[0].p);
    read_row(ds, 5, &want);
    meg_data_splits_close(d);
    ds = train_of(&d, "cached", "cc");
    assert_non_null(ds->map[0].p); /* cache hit: the array is mapped */
    read_row(ds, 5, &got);
    assert_memory_equal(&want.tokens, &got.tokens, T * sizeof(int32_t));
    meg_data_splits_close(d);
    for (int i = 0; i < 10; i++) {
        char *path = cache_file("cc", names[i / 2]), *bytes;
        size_t n;
        bytes = slurp(path, &n);
        if (i % 2)
            assert_int_equal(truncate(path, (off_t)n - 1), 0);
        else
            assert_int_equal(unlink(path), 0);
        ds = train_of(&d, "cached", "cc");
        assert_null(ds->map[0].p);
        read_row(ds, 5, &got);
        assert_memory_equal(&want.tokens, &got.tokens, T * sizeof(int32_t));
        meg_data_splits_close(d);
        ds = train_of(&d, "cached", "cc");
        assert_non_null(ds->map[0].p);
        meg_data_splits_close(d);
        free(bytes);
    }
}

static void a_cache_older_than_its_dataset_is_rebuilt(void **state)
{
    const int length[] = { 20, 30 }, other[] = { 30, 20 };
    const struct timespec past[2] = { { 1000000000, 0 }, { 1000000000, 0 } };
    struct meg_data_splits *d;

    (void)state;
    make_dataset("older", length, 2);
    train_of(&d, "older", "older.cache");
    meg_data_splits_close(d);
    assert_int_equal(utimensat(AT_FDCWD, cache_file("older.cache", "sample_index"), past, 0), 0);
    make_dataset(
        "older", other,
        2); /* with equal numbers of sequences and tokens: only the modification times show that the cache is stale */
    assert_null(train_of(&d, "older", "older.cache")->map[0].p);
    meg_data_splits_close(d);
}

/* Swap the last two numbers of an array; the header, the size and the set of numbers are unchanged. */
static void swap_last_two(const char *path)
{
    size_t n;
    char *bytes = slurp(path, &n), last[4];

    memcpy(last, bytes + n - 4, 4);
    memcpy(bytes + n - 4, bytes + n - 8, 4);
    memcpy(bytes + n - 8, last, 4);
    spew(path, bytes, n);
    free(bytes);
}

static void check_built_again(const struct row *want)
{
    struct meg_data_splits *d;
    struct row got;

    for (int again = 0; again < 2; again++) {
        const struct meg_dataset *ds = train_of(&d, "bare", "bare.cache");

        assert_int_equal(ds->map[0].p != NULL, again);
        for (int64_t i = 0; i < meg_dataset_len(ds); i++) {
            read_row(ds, i, &got);
            assert_memory_equal(want[i].tokens, got.tokens, T * sizeof(int32_t));
        }
        meg_data_splits_close(d);
    }
}

/* Megatron-LM stores no checksums, and does not update those of meg when it writes the arrays again. */
static void only_arrays_that_match_their_checksums_are_used(void **state)
{
    const int length[] = { 11, 12, 13, 14, 15, 16 };
    struct row want[32];
    struct meg_data_splits *d;
    const struct meg_dataset *ds;

    (void)state;
    make_dataset("bare", length, 6);
    ds = train_of(&d, "bare", "bare.cache");
    assert_in_range(meg_dataset_len(ds), 1, 32);
    for (int64_t i = 0; i < meg_dataset_len(ds); i++)
        read_row(ds, i, &want[i]);
    meg_data_splits_close(d);

    assert_int_equal(unlink(cache_file("bare.cache", "checksums")), 0);
    check_built_again(want);
    assert_int_equal(unlink(cache_file("bare.cache", "checksums")), 0);
    swap_last_two(cache_file("bare.cache", "shuffle_index"));
    check_built_again(want);
    swap_last_two(cache_file("bare.cache", "document_index"));
    check_built_again(want);
}

/* The arrays are mapped, so overwriting their file changes them while a run uses them. */
static void a_cache_overwritten_during_a_run_is_refused(void **state)
{
    const int length[] = { 20, 30 };
    struct meg_data_splits *d;
    struct meg_err e;
    struct row r;
    struct meg_batch s = sample_of(&r);
    char *path;
    int bad = 0, fd;

    (void)state;
    make_dataset("flip", length, 2);
    train_of(&d, "flip", "flip.cache");
    meg_data_splits_close(d);
    train_of(&d, "flip", "flip.cache");
    path = cache_file("flip.cache", "document_index");
    fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "\x7f", 1, (off_t)file_size(path) - 1), 1);
    close(fd);
    for (int64_t i = 0; i < meg_dataset_len(meg_data_splits_dataset(d, MEG_SPLIT_TRAIN)); i++)
        bad += meg_dataset_sample(meg_data_splits_dataset(d, MEG_SPLIT_TRAIN), i, &s, &e) == MEG_EFORMAT;
    assert_true(bad > 0);
    assert_string_equal(e.msg, "flip: the cached index does not match this dataset; remove the .npy files of the index "
                               "(see --data-cache-path)");
    meg_data_splits_close(d);
}

static void without_a_writable_cache_the_index_is_kept_in_memory(void **state)
{
    const int length[] = { 20, 30 };
    struct meg_data_splits *d;
    struct row r;

    (void)state;
    make_dataset("nocache", length, 2);
    spew_text("file", "x");
    read_row(train_of(&d, "nocache", "file/cache"), 0, &r);
    meg_data_splits_close(d);
}

/*
 * Open the dataset called race 20 times and read a sample; if `removed` is not NULL, unlink that file each time.
 * Return 0, or another value after printing an error: the function runs in a child process, where a failed assertion
 * would continue with the next tests.
 */
static int read_in_a_race(const struct row *want, const char *removed)
{
    struct meg_err e;

    for (int k = 0; k < 20; k++) {
        struct row r;
        struct meg_batch s = sample_of(&r);
        struct meg_data_splits *d;

        if (open_train(&d, "race", "race.cache", &e) < 0 ||
            meg_dataset_sample(meg_data_splits_dataset(d, MEG_SPLIT_TRAIN), 3, &s, &e) < 0)
            return fprintf(stderr, "%s\n", e.msg);
        meg_data_splits_close(d);
        if (memcmp(want->tokens, r.tokens, T * sizeof *r.tokens))
            return fprintf(stderr, "another sample\n");
        if (removed)
            unlink(removed);
    }
    return 0;
}

/*
 * For 20 samples with weights 3 and 7, all releases build 7 and 15 samples of the datasets.  Release 0.10, which is the
 * default, makes the blend as large as both datasets; later releases keep the requested size.
 */
static void the_size_of_a_blend_depends_on_the_megatron_release(void **state)
{
    static const struct {
        const char *release;
        int64_t size, built[2];
        bool names_renormalize;
    } of[] = { { NULL, 22, { 7, 15 }, true },
               { "0.10", 22, { 7, 15 }, true },
               { "0.11", 20, { 7, 15 }, false },
               { "0.19", 20, { 7, 15 }, false } };
    const char *path[] = { "3", "one", "7", "two", NULL };
    const int length[] = { 40, 50, 60 };

    (void)state;
    make_dataset("one", length, 3);
    make_dataset("two", length, 3);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct meg_data_conf c = defaults();
        struct meg_dataset_spec spec = spec_of(20, 0, 0);
        struct meg_data_splits *d;
        struct meg_err e;
        char dir[32], *text;
        size_t n;
        int parts;

        c.data_path = words(path);
        c.split = "1";
        c.mid_level_dataset_surplus = NAN;
        snprintf(dir, sizeof dir, "blend.%zu", i);
        c.data_cache_path = dir;
        spec.megatron_release = of[i].release;
        assert_int_equal(gpt_data_open(&d, &c, &spec, &e), 0);
        assert_int_equal(meg_dataset_len(meg_data_splits_dataset(d, MEG_SPLIT_TRAIN)), of[i].size);
        for (int k = 0; k < 2; k++)
            assert_int_equal(meg_data_splits_mid_datasets(d, &parts)[k].num_samples, of[i].built[k]);
        assert_int_equal(parts, 2);
        text = slurp(cache_file(dir, "BlendedDataset-train-description"), &n);
        assert_int_equal(strstr(text, "renormalize_blend_weights") != NULL, of[i].names_renormalize);
        free(text);
        meg_data_splits_close(d);
    }
}

static void several_processes_may_build_one_index_at_once(void **state)
{
    const int length[] = { 20, 30, 40, 50 };
    struct meg_data_splits *d;
    struct row want;
    const char *shuffle;
    pid_t child[4];
    int status, files = 0;
    DIR *dir;

    (void)state;
    make_dataset("race", length, 4);
    read_row(train_of(&d, "race", "race.cache"), 3, &want);
    meg_data_splits_close(d);
    shuffle = cache_file("race.cache", "shuffle_index");
    unlink(shuffle);
    fflush(NULL);
    for (int i = 0; i < 4; i++)
        if ((child[i] = fork()) == 0)
            _exit(read_in_a_race(&want, i ? NULL : shuffle) ? 1 : 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_int_equal(status, 0);
    }
    train_of(&d, "race", "race.cache");
    meg_data_splits_close(d);
    dir = opendir("race.cache");
    while (readdir(dir))
        files++;
    closedir(dir);
    assert_int_equal(files, 7); /* ".", ".." and five: no temporary file is left */
}

/* ---- micro-batches -------------------------------------------------------------------------------- */

/*
 * Check that sequence i of b, a batch of two, equals sample r.  Unless it is NULL, position [b->s] lists the positions
 * of the sample that the batch contains.
 */
static void check_sequence(const struct meg_batch *b, int i, const struct row *r, const int64_t *position)
{
    for (int t = 0; t < b->s; t++) {
        const int64_t p = position ? position[t] : t;

        assert_int_equal(b->tokens[2 * t + i], r->tokens[p]);
        assert_int_equal(b->labels[2 * t + i], r->labels[p]);
        assert_true(b->loss_mask[2 * t + i] == r->loss_mask[p]);
        assert_int_equal(b->position_ids[2 * t + i], r->position_ids[p]);
        if (b->doc_start)
            assert_int_equal(b->doc_start[2 * t + i], r->doc_start[p]);
    }
}

static int num_pinned; /* pinned arrays that exist */

static void *alloc_pinned(size_t nbytes)
{
    num_pinned++;
    return malloc(nbytes);
}

static void release_pinned(void *p)
{
    num_pinned--;
    free(p);
}

static void check_batches(const struct meg_dataset *ds, const struct meg_data_loader_conf *c)
{
    struct meg_data_loader *l;
    struct meg_batch b[2] = { { .s = 0 } };
    struct meg_err e;
    struct row r;

    assert_int_equal(meg_data_loader_open(&l, ds, c, &e), 0);
    for (int step = 0; step < 4; step++) { /* from step 2 on, arrays of an earlier batch are reused */
        struct meg_batch *x = &b[step % 2];

        assert_int_equal(meg_data_loader_next(l, x, &e), 0);
        assert_true(x->s == (c->position ? c->s : T) && x->b == 2);
        assert_int_equal(x->num_unmasked, 2 * T);
        assert_true(x->is_pinned == (c->pinned != NULL));
        assert_int_equal(meg_batch_present(x), c->fields);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(x->sample_id[i], 4 + 4 * step + 2 + i);
            read_row(ds, x->sample_id[i], &r);
            check_sequence(x, i, &r, c->position);
        }
        if (step > 0) { /* the previous batch is unchanged */
            read_row(ds, b[1 - step % 2].sample_id[0], &r);
            check_sequence(&b[1 - step % 2], 0, &r, c->position);
        }
    }
    for (int again = 0; again < 2; again++) {
        assert_int_equal(meg_data_loader_next(l, &b[0], &e), MEG_EFAIL);
        assert_string_equal(e.msg, "the 22 samples that this run prepared are too few for one more micro-batch on each "
                                   "data-parallel rank; increase --train-iters or --train-samples or, for validation, "
                                   "increase --eval-iters or "
                                   "decrease --eval-interval");
    }
    meg_data_loader_close(l);
    assert_true((num_pinned > 0) == (c->pinned != NULL));
    meg_batch_free(&b[0]);
    meg_batch_free(&b[1]);
    assert_int_equal(num_pinned, 0);
}

static void a_batch_is_sequence_first_and_holds_the_positions_of_its_rank(void **state)
{
    static const int64_t first_and_last[] = { 0, 1, T - 2, T - 1 };
    static const struct meg_batch_memory pinned = { alloc_pinned, release_pinned };
    const int length[] = { 50, 60, 70 };
    struct meg_data_loader_conf c = { .sampler = { .consumed = 4, .micro_batch = 2, .rank = 1, .ranks = 2 },
                                      .fields = MEG_BATCH_GPT_FIELDS };
    struct meg_data_splits *d;
    struct meg_data_loader *l;
    const struct meg_dataset *ds;
    struct meg_err e;

    (void)state;
    make_dataset("batch", length, 3);
    ds = train_of(&d, "batch", "batch.cache");
    assert_int_equal(meg_dataset_len(ds), 22);
    for (c.read_ahead = 0; c.read_ahead <= 2; c.read_ahead++) {
        c.position = NULL;
        c.pinned = NULL;
        check_batches(ds, &c);
        c.pinned = &pinned;
        c.position = first_and_last;
        c.s = 4;
        c.fields |= 1u << MEG_BATCH_DOC_START;
        check_batches(ds, &c);
        c.fields = MEG_BATCH_GPT_FIELDS;
        assert_int_equal(meg_data_loader_open(&l, ds, &c, &e), 0);
        meg_data_loader_close(l); /* while its thread, if it has one, reads */
    }
    meg_data_splits_close(d);
}

/* ---- reference runs --------------------------------------------------------------------------------- */

static void golden_samples(void **state)
{
    json_t *all = golden_data("gpt/samples.json"), *c;
    size_t i;

    (void)state;
    assert_true(json_array_size(all) > 50);
    copy_golden("tiny_text_document");
    json_array_foreach(all, i, c)
    {
        const char *which = get_str(c, "which");
        const int64_t s = get_int(c, "sequence_length");
        struct meg_dataset ds = { .sample = meg_gpt_sample,
                                  .conf = { .index = { s, (int)get_int(c, "add_extra_token"), false },
                                            .eod = (int32_t)get_int(c, "eod"),
                                            .pad = -1,
                                            .vocab_size = 1001,
                                            .reset_position_ids = get_int(c, "reset_position_ids"),
                                            .reset_attention_mask = get_int(c, "reset_attention_mask"),
                                            .eod_mask_loss = get_int(c, "eod_mask_loss") } };
        struct meg_source *src;
        struct meg_split_matrix split;
        struct meg_gpt_index_sizes p;
        struct meg_err e;
        struct row r;
        int64_t begin, end;

        if (!get_int(c, "drop_last_partial_validation_sequence") && strcmp(which, "valid") == 0)
            continue; /* Megatron-LM has no option that keeps a short last sample */
        assert_int_equal(meg_source_open(&src, "tiny_text_document", &e), 0);
        assert_int_equal(meg_split_parse(&split, get_str(c, "split"), &e), 0);
        meg_split_range(&split, strcmp(which, "valid") == 0 ? MEG_SPLIT_VALID : MEG_SPLIT_TRAIN,
                        meg_source_elements(src), &begin, &end);
        assert_int_equal(meg_gpt_index_plan(&p, end - begin, meg_source_tokens(src, begin, end),
                                            get_int(c, "num_samples"), &ds.conf.index, &e),
                         0);
        meg_gpt_index_shape(&ds.index, &p);
        meg_gpt_index_build(&ds.index, &p, src, begin, &ds.conf.index, (uint32_t)get_int(c, "seed"));
        ds.src = src;
        ds.len = ds.index.nsample;
        read_row(&ds, get_int(c, "index"), &r);
        for (int64_t t = 0; t < s; t++) {
            const size_t k = (size_t)t;
            const char *row = json_string_value(json_array_get(json_object_get(c, "masked_out_rows"), k));
            assert_int_equal(r.tokens[t], int_at(json_object_get(c, "tokens"), k));
            assert_int_equal(r.labels[t], int_at(json_object_get(c, "labels"), k));
            assert_true(r.loss_mask[t] == json_number_value(json_array_get(json_object_get(c, "loss_mask"), k)));
            assert_int_equal(r.position_ids[t], int_at(json_object_get(c, "position_ids"), k));
            for (int64_t key = 0; key < s; key++)
                assert_int_equal(row[key] == '1', key > t || key < r.doc_start[t]);
        }
        meg_gpt_index_free(&ds.index);
        meg_source_close(src);
    }
    json_decref(all);
}

static void golden_cache_bytes(void **state)
{
    char example[4096];
    const char *path[] = { "tiny_text_document", NULL };
    struct meg_data_conf c = defaults();
    struct meg_dataset_spec spec = spec_of(68, 9, 5);
    struct meg_data_splits *d;
    struct meg_err e;
    struct dirent *f;
    DIR *dir;
    int files = 0;

    (void)state;
    snprintf(example, sizeof example, "%s", golden_path("gpt/cache_example"));
    copy_golden("tiny_text_document");
    c.data_path = words(path);
    c.split = "80,15,5";
    assert_int_equal(gpt_data_open(&d, &c, &spec, &e), 0);
    meg_data_splits_close(d);
    dir = opendir(example);
    assert_non_null(dir);
    while ((f = readdir(dir))) {
        char want[5000], got[1024];
        if (f->d_name[0] == '.')
            continue;
        snprintf(want, sizeof want, "%s/%s", example, f->d_name);
        snprintf(got, sizeof got, "tiny_text_document/cache/GPTDataset_indices/%s", f->d_name);
        assert_same_file(got, want);
        files++;
    }
    closedir(dir);
    assert_int_equal(files, 12);
}

static const char *word_list[16];

static struct meg_str_list list_of(const json_t *a)
{
    struct meg_str_list l = { word_list, 0 };
    for (size_t i = 0; i < json_array_size(a); i++)
        word_list[l.n++] = json_string_value(json_array_get(a, i));
    return l;
}

static void check_blend(const struct meg_dataset *ds, const json_t *c, const char *cache)
{
    json_t *first = json_object_get(c, "first_samples_tokens"), *lens = json_object_get(c, "mid_lengths");
    json_t *dataset = json_object_get(c, "dataset_index"), *sample = json_object_get(c, "dataset_sample_index");
    char path[1024], *text;
    size_t n;

    assert_int_equal(meg_dataset_len(ds), get_int(c, "length"));
    assert_int_equal(json_array_size(dataset), ds->nmember ? ds->len : 0);
    assert_true(!lens || json_array_size(lens) == (size_t)ds->nmember);
    assert_true(json_array_size(first) > 0);
    for (size_t k = 0; k < json_array_size(dataset); k++) {
        assert_int_equal(ds->blend.dataset[k], int_at(dataset, k));
        assert_int_equal(ds->blend.sample[k], int_at(sample, k));
    }
    for (size_t k = 0; k < json_array_size(lens); k++)
        assert_int_equal(ds->member[k]->len, int_at(lens, k));
    for (size_t k = 0; k < json_array_size(first); k++) {
        struct row r;
        read_row(ds, (int64_t)k, &r);
        for (size_t t = 0; t < T; t++)
            assert_int_equal(r.tokens[t], int_at(json_array_get(first, k), t));
    }
    if (get_str(c, "cache_hash")) {
        snprintf(path, sizeof path, "%s/%s-%s-%s-description.txt", cache, get_str(c, "cache_hash"),
                 ds->nmember ? "BlendedDataset" : "GPTDataset", get_str(c, "which"));
        text = slurp(path, &n);
        assert_string_equal(text, get_str(c, "cache_description"));
        free(text);
    }
}

static void golden_blends(void **state)
{
    json_t *all = golden_data("blend/full.json"), *c;
    size_t i;

    (void)state;
    assert_true(json_array_size(all) >= 19);
    copy_golden("tiny_text_document");
    copy_golden("second_text_document");
    copy_golden("third_text_document");
    json_array_foreach(all, i, c)
    {
        json_t *per_split = json_object_get(c, "per_split_data_path"), *targets = json_object_get(c, "targets");
        struct meg_data_conf conf = defaults();
        struct meg_dataset_spec spec = spec_of(0, 0, 0);
        int w = 0;

        while (strcmp(meg_split_names[w], get_str(c, "which")) != 0)
            w++;
        spec.seed = get_int(c, "seed");
        spec.seq_length = get_int(c, "sequence_length");
        spec.num_samples[w] =
            json_is_null(json_array_get(targets, (size_t)w)) ? MEG_ONE_EPOCH : int_at(targets, (size_t)w);
        if (per_split) {
            conf.per_split_path[w] = list_of(json_array_get(per_split, (size_t)w));
        } else {
            conf.data_path = list_of(json_object_get(c, "data_path"));
            conf.split = get_str(c, "split");
            conf.renormalize_blend_weights = get_int(c, "renormalize");
        }
        conf.data_cache_path = "blends";
        for (int again = 0; again < 2; again++) { /* built first, then read from the cache */
            struct meg_data_splits *d;
            struct meg_err e;
            if (gpt_data_open(&d, &conf, &spec, &e) < 0)
                fail_msg("case %zu: %s", i, e.msg);
            check_blend(meg_data_splits_dataset(d, w), c, "blends");
            if (again)
                assert_non_null(meg_data_splits_dataset(d, w)->map[0].p);
            meg_data_splits_close(d);
        }
    }
    json_decref(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reset_options_and_loss_mask_follow_the_eod_token),
        cmocka_unit_test(a_pad_token_in_the_text_is_masked),
        cmocka_unit_test(a_dataset_or_split_without_tokens_is_an_error),
        cmocka_unit_test(a_dataset_shorter_than_a_sample_is_repeated),
        cmocka_unit_test(a_short_split_is_repeated),
        cmocka_unit_test(an_id_outside_the_vocabulary_is_refused),
        cmocka_unit_test(contradicting_options_are_refused),
        cmocka_unit_test(argument_files_name_the_datasets),
        cmocka_unit_test(mock_data_needs_no_file),
        cmocka_unit_test(a_damaged_cache_is_rebuilt),
        cmocka_unit_test(a_cache_older_than_its_dataset_is_rebuilt),
        cmocka_unit_test(only_arrays_that_match_their_checksums_are_used),
        cmocka_unit_test(a_cache_overwritten_during_a_run_is_refused),
        cmocka_unit_test(without_a_writable_cache_the_index_is_kept_in_memory),
        cmocka_unit_test(the_size_of_a_blend_depends_on_the_megatron_release),
        cmocka_unit_test(several_processes_may_build_one_index_at_once),
        cmocka_unit_test(a_batch_is_sequence_first_and_holds_the_positions_of_its_rank),
        cmocka_unit_test(golden_samples),
        cmocka_unit_test(golden_cache_bytes),
        cmocka_unit_test(golden_blends),
    };
    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
