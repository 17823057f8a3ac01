/*
 * Single-bit flips in the files of the index cache: a run after a flip rebuilds the cache and reads the same samples.
 * The environment variables MEG_FLIPS and MEG_FLIPS_SEED set the number of flips per test (default 25) and the seed
 * (default 1).
 */
#include "data_util.h"

#include <fcntl.h>

#include "base/hash.h"
#include "base/log.h"
#include "data/dataset_internal.h"
#include "data/gpt_data.h"
#include "data/masked/bert_t5_dataset.h"

enum { S = 8, MAX_FILES = 64 };

/*
 * Open the data with the index cache in "cache" and return a hash of all samples; set *is_mapped to whether all indices
 * were read from the cache.
 */
typedef uint64_t (*hash_samples)(bool *is_mapped);

static uint64_t env_number(const char *name, uint64_t otherwise)
{
    const char *s = getenv(name);

    return s ? strtoull(s, NULL, 10) : otherwise;
}

static uint64_t next_random(uint64_t *x)
{
    uint64_t z = *x += 0x9E3779B97F4A7C15u;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static struct meg_data_conf conf_of(const char **paths, int64_t n)
{
    const struct meg_data_conf c = { .data_path = { paths, n },
                                     .split = "8,2,0",
                                     .data_cache_path = "cache",
                                     .dataloader_type = "single",
                                     .data_order = "auto" };
    return c;
}

static uint64_t hash_gpt(const struct meg_data_conf *c, bool *is_mapped)
{
    const struct meg_dataset_spec spec = { S, 7, { 60, 9, 0 }, 1000, -1, 1001, NULL, NULL };
    struct meg_data_splits *d;
    struct meg_err e;
    struct meg_str all = { 0 };
    uint64_t hash;

    if (gpt_data_open(&d, c, &spec, &e) < 0)
        fail_msg("%s", e.msg);
    *is_mapped = true;
    for (int split = MEG_SPLIT_TRAIN; split <= MEG_SPLIT_VALID; split++) {
        const struct meg_dataset *ds = meg_data_splits_dataset(d, split);

        *is_mapped = *is_mapped && ds->map[0].p;
        for (int i = 0; i < ds->nmember; i++)
            *is_mapped = *is_mapped && ds->member[i]->map[0].p;
        for (int64_t i = 0; i < meg_dataset_len(ds); i++) {
            int32_t tokens[S], labels[S], position_ids[S], doc_start[S];
            float loss_mask[S];
            struct meg_batch s = { .tokens = tokens,
                                   .labels = labels,
                                   .position_ids = position_ids,
                                   .doc_start = doc_start,
                                   .loss_mask = loss_mask };

            if (meg_dataset_sample(ds, i, &s, &e) < 0)
                fail_msg("%s", e.msg);
            meg_str_add(&all, tokens, sizeof tokens);
            meg_str_add(&all, labels, sizeof labels);
        }
    }
    hash = meg_xxh3_64(all.s, all.n);
    meg_str_free(&all);
    meg_data_splits_close(d);
    return hash;
}

static uint64_t hash_one(bool *is_mapped)
{
    const char *paths[] = { "a" };
    const struct meg_data_conf c = conf_of(paths, 1);

    return hash_gpt(&c, is_mapped);
}

static uint64_t hash_blend(bool *is_mapped)
{
    const char *paths[] = { "3", "a", "7", "b" };
    const struct meg_data_conf c = conf_of(paths, 4);

    return hash_gpt(&c, is_mapped);
}

static uint64_t hash_deepspeed(bool *is_mapped)
{
    const char *paths[] = { "a" };
    struct meg_data_conf c = conf_of(paths, 1);

    c.data_order = "megatron-deepspeed";
    return hash_gpt(&c, is_mapped);
}

/* Hash BERT's sentence maps, which are arrays whose length is stored only in their header. */
static uint64_t hash_sentences(bool *is_mapped)
{
    const char *paths[] = { "s" };
    const struct meg_data_conf c = conf_of(paths, 1);
    const struct meg_dataset_spec spec = { 32, 7, { 40, 9, 0 }, -1, 0, 100, NULL, NULL };
    const struct meg_masked_conf masked = {
        .type = MEG_MASKED_BERT, .mask = { .prob = 0.15, .max_ngram = 3 }, .short_seq_prob = 0.1, .has_pairs = true
    };
    const struct meg_masked_vocab vocab = { .size = 100, .cls = 96, .sep = 97, .mask = 98, .pad = 0 };
    struct meg_data_splits *d;
    struct meg_err e;
    uint64_t hash = 0;

    if (masked_data_open(&d, &c, &spec, &masked, &vocab, &e) < 0)
        fail_msg("%s", e.msg);
    *is_mapped = true;
    for (int split = MEG_SPLIT_TRAIN; split <= MEG_SPLIT_VALID; split++) {
        const struct meg_dataset *ds = meg_data_splits_dataset(d, split);
        const struct meg_sentence_map *m = &ds->sentence_map;

        *is_mapped = *is_mapped && ds->map[0].p;
        hash = 31 * hash + meg_xxh3_64(m->row, (size_t)(m->n * MEG_SENTENCE_MAP_COLUMNS) * (m->is_uint64 ? 8 : 4));
    }
    meg_data_splits_close(d);
    return hash;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* List the files of the cache in an order that does not depend on the file system; return their number. */
static int list_cache(char name[MAX_FILES][256])
{
    DIR *dir = opendir("cache");
    int n = 0;

    assert_non_null(dir);
    for (struct dirent *f; (f = readdir(dir));) {
        if (f->d_name[0] == '.')
            continue;
        assert_true(n < MAX_FILES);
        snprintf(name[n++], 256, "cache/%.200s", f->d_name);
    }
    closedir(dir);
    qsort(name, (size_t)n, sizeof *name, by_name);
    return n;
}

static void flip_bit(const char *path, uint64_t bit)
{
    const int fd = open(path, O_RDWR);
    unsigned char byte;

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)(bit / 8)), 1);
    byte = (unsigned char)(byte ^ 1u << bit % 8);
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)(bit / 8)), 1);
    close(fd);
}

static void check_flips(const char *what, hash_samples hash)
{
    const uint64_t flips = env_number("MEG_FLIPS", 25), seed = env_number("MEG_FLIPS_SEED", 1);
    static char name[MAX_FILES][256];
    uint64_t x = seed, want, differ = 0, used = 0, rebuilt = 0;
    bool is_mapped;
    int n;

    remove_tree("cache");
    want = hash(&is_mapped);
    assert_false(is_mapped);
    assert_true(hash(&is_mapped) == want);
    assert_true(is_mapped); /* else the flips would test nothing */
    n = list_cache(name);
    for (uint64_t i = 0; i < flips; i++) {
        const char *path = name[next_random(&x) % (uint64_t)n];
        const uint64_t bit = next_random(&x) % (uint64_t)(8 * file_size(path));
        const uint64_t got = (flip_bit(path, bit), hash(&is_mapped));

        used += is_mapped;
        if (got != want) {
            differ++;
            print_message("# %s: bit %llu gives other samples\n", path, (unsigned long long)bit);
        }
        if (hash(&is_mapped) == want && is_mapped)
            rebuilt++;
    }
    print_message("# %s: %llu flips over %d files, seed %llu: %llu runs on other samples, %llu on the damaged "
                  "entry, %llu entries rebuilt\n",
                  what, (unsigned long long)flips, n, (unsigned long long)seed, (unsigned long long)differ,
                  (unsigned long long)used, (unsigned long long)rebuilt);
    assert_int_equal(differ, 0);
    assert_int_equal(used, 0);
    assert_int_equal(rebuilt, flips);
}

static int make_data(void **state)
{
    const int a[] = { 40, 31, 22, 57, 18, 44, 39, 61, 25, 33 }, b[] = { 72, 15, 48, 66, 27, 51, 38, 29, 90, 34 };
    const int s[] = { 9, 7, 12, 8, 11, 6 };
    struct meg_indexed_writer *w;
    struct meg_err e;

    meg_log_set_level(MEG_LOG_ERROR);
    if (enter_scratch(state) < 0)
        return -1;
    make_dataset("a", a, 10);
    make_dataset("b", b, 10);
    assert_int_equal(meg_indexed_create(&w, "s", MEG_IDX_U16, &e), 0);
    for (int doc = 0; doc < 20; doc++) {
        for (int k = 0; k < 6; k++) {
            const int32_t ids[12] = { 5 + doc, 6 + k, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 };

            assert_int_equal(indexed_append(w, ids, s[k], &e), 0);
        }
        meg_indexed_end_document(w);
    }
    assert_int_equal(meg_indexed_commit(&w, 1, &e), 0);
    return 0;
}

static void flips_in_the_index_of_a_dataset(void **state)
{
    (void)state;
    check_flips("a dataset", hash_one);
}

static void flips_in_the_index_of_a_blend(void **state)
{
    (void)state;
    check_flips("a blend", hash_blend);
}

static void flips_in_the_index_of_deepspeeds_order(void **state)
{
    (void)state;
    check_flips("Megatron-DeepSpeed's order", hash_deepspeed);
}

static void flips_in_a_sentence_map(void **state)
{
    (void)state;
    check_flips("sentences", hash_sentences);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flips_in_the_index_of_a_dataset),
        cmocka_unit_test(flips_in_the_index_of_a_blend),
        cmocka_unit_test(flips_in_the_index_of_deepspeeds_order),
        cmocka_unit_test(flips_in_a_sentence_map),
    };

    return cmocka_run_group_tests(tests, make_data, leave_scratch);
}
