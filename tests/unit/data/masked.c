/* Samples of BERT and T5: complete datasets against Megatron-LM's, blends, and invalid settings. */
#include "child.h"
#include "data_util.h"

#include "data/dataset_internal.h"
#include "data/loader.h"
#include "data/masked/bert_t5_dataset.h"
#include "data/masked/masked_vocab.h"

enum { MOST = 128 };

static struct meg_str_list one_word(const char *const *word)
{
    return (struct meg_str_list){ (const char **)word, 1 };
}

static struct meg_data_conf data_of(const char *const *prefix, const char *split)
{
    struct meg_data_conf c = {
        .data_path = one_word(prefix), .split = split, .dataloader_type = "single", .data_order = "auto"
    };
    return c;
}

/* ---- against the reference ---------------------------------------------------------------------- */

static unsigned char continues[256];
static int32_t sentinels[128];

/* Return the vocabulary of vocab.txt with the special ids, which follow its tokens. */
static struct meg_masked_vocab golden_vocab(const json_t *special)
{
    struct meg_masked_vocab v = { .size = get_int(special, "vocab_size"),
                                  .is_continuation = continues,
                                  .cls = (int32_t)get_int(special, "cls"),
                                  .sep = (int32_t)get_int(special, "sep"),
                                  .mask = (int32_t)get_int(special, "mask"),
                                  .pad = (int32_t)get_int(special, "pad"),
                                  .bos = (int32_t)get_int(special, "bos"),
                                  .eos = (int32_t)get_int(special, "eos"),
                                  .sentinel = sentinels };
    const json_t *ids = json_object_get(special, "sentinels"), *id;
    size_t n, i;
    char *text = slurp(golden_path("masked/vocab.txt"), &n), *line;

    memset(continues, 0, sizeof continues);
    for (line = strtok(text, "\n"), i = 0; line; line = strtok(NULL, "\n"))
        continues[i++] = strncmp(line, "##", 2) == 0;
    free(text);
    assert_true(v.size <= (int64_t)sizeof continues);
    json_array_foreach(ids, i, id) sentinels[v.nsentinel++] = (int32_t)json_integer_value(id);
    return v;
}

static struct meg_masked_conf golden_conf(const json_t *c, enum meg_masked_type type)
{
    assert_false(get_int(c, "masking_do_permutation"));
    return (struct meg_masked_conf){ .type = type,
                                     .decoder_seq_length =
                                         type == MEG_MASKED_T5 ? get_int(c, "sequence_length_decoder") : 0,
                                     .short_seq_prob =
                                         json_number_value(json_object_get(c, "short_sequence_probability")),
                                     .has_pairs = type == MEG_MASKED_BERT && get_int(c, "classification_head"),
                                     .mask = { .prob = json_number_value(json_object_get(c, "masking_probability")),
                                               .max_ngram = get_int(c, "masking_max_ngram"),
                                               .whole_word = get_int(c, "masking_do_full_word"),
                                               .longer_ngrams = get_int(c, "masking_use_longer_ngrams"),
                                               .geometric = get_int(c, "masking_use_geometric_distribution") } };
}

static void same(const json_t *sample, const char *key, const int32_t *got, int64_t n)
{
    const json_t *want = json_object_get(sample, key);

    if (json_array_size(want) != (size_t)n)
        fail_msg("%s: %zu values, expected %lld", key, json_array_size(want), (long long)n);
    for (int64_t i = 0; i < n; i++)
        if (int_at(want, (size_t)i) != got[i])
            fail_msg("sample %lld, %s[%lld]: %d, expected %lld", (long long)get_int(sample, "index"), key, (long long)i,
                     got[i], (long long)int_at(want, (size_t)i));
}

/* Compare sequence i of a batch with a reference sample of BERT.  Padding has type 0, unlike in Megatron-LM. */
static void same_bert_sequence(const struct meg_batch *x, int64_t i, const json_t *sample, int32_t pad)
{
    int32_t a[4][MOST], types[MOST];
    int64_t n = 0;

    for (int64_t t = 0; t < x->s; t++) {
        const int64_t at = t * x->b + i;
        const bool is_token = int_at(json_object_get(sample, "padding_mask"), (size_t)t) == 1 && t < x->key_length[i];

        a[0][t] = x->tokens[at];
        a[1][t] = x->labels[at];
        a[2][t] = (int32_t)x->loss_mask[at];
        types[t] = x->token_types[at];
        a[3][t] = is_token ? types[t] : pad;
        assert_int_equal(x->position_ids[at], t);
        if (t >= x->key_length[i])
            assert_true(types[t] == 0 && x->tokens[at] == pad);
        n += is_token;
    }
    assert_int_equal(n, x->key_length[i]);
    same(sample, "text", a[0], x->s);
    same(sample, "labels", a[1], x->s);
    same(sample, "loss_mask", a[2], x->s);
    same(sample, "types", a[3], x->s);
    assert_int_equal(x->sentence_order[i], get_int(sample, "is_random"));
}

/* Compare sequence i of a batch with a reference sample of T5. */
static void same_t5_sequence(const struct meg_batch *x, int64_t i, const json_t *sample, int32_t pad)
{
    int32_t decoder[3][MOST], encoder[MOST], mask[MOST];

    (void)pad;
    for (int64_t t = 0; t < x->s; t++) {
        const int64_t at = t * x->b + i;

        decoder[0][t] = x->tokens[at];
        decoder[1][t] = x->labels[at];
        decoder[2][t] = (int32_t)x->loss_mask[at];
        assert_int_equal(x->position_ids[at], t);
    }
    for (int64_t t = 0; t < x->s_enc; t++) {
        encoder[t] = x->enc_tokens[t * x->b + i];
        mask[t] = t < x->enc_key_length[i];
        assert_int_equal(x->enc_position_ids[t * x->b + i], t);
    }
    same(sample, "text_dec", decoder[0], x->s);
    same(sample, "labels", decoder[1], x->s);
    same(sample, "loss_mask", decoder[2], x->s);
    same(sample, "text_enc", encoder, x->s_enc);
    same(sample, "enc_mask", mask, x->s_enc);
}

/* Read sample i, or return the error. */
static int sample_of(const struct meg_dataset *ds, int64_t i, unsigned fields, struct meg_batch *x, struct meg_err *e)
{
    meg_batch_alloc(x, meg_dataset_seq_length(ds), meg_dataset_enc_length(ds), 1, fields, NULL);
    return meg_dataset_sample(ds, i, x, e);
}

static void same_sample(const struct meg_dataset *ds, const json_t *sample, enum meg_masked_type type, int32_t pad)
{
    struct meg_batch x;
    struct meg_err e;

    if (sample_of(ds, get_int(sample, "index"), type == MEG_MASKED_T5 ? MEG_BATCH_T5_FIELDS : MEG_BATCH_BERT_FIELDS, &x,
                  &e) < 0)
        fail_msg("%s", e.msg);
    (type == MEG_MASKED_T5 ? same_t5_sequence : same_bert_sequence)(&x, 0, sample, pad);
    meg_batch_free(&x);
}

static void same_rows(const struct meg_dataset *ds, const json_t *want)
{
    assert_int_equal(meg_dataset_len(ds), json_array_size(want));
    for (int64_t i = 0; i < ds->len; i++)
        for (int k = 0; k < 3; k++)
            assert_int_equal(meg_sentence_map_at(&ds->sentence_map, i, k),
                             int_at(json_array_get(want, (size_t)i), (size_t)k));
}

/*
 * Compare the names of the files in the cache, and the text of the description, with the reference.  Unlike those of
 * GPTDataset, the names of MaskedWordPieceDataset do not contain the split.
 */
static void same_cache(const json_t *x, const char *class_name)
{
    char path[512];
    size_t n;
    char *text;

    snprintf(path, sizeof path, "sents_text_sentence/cache/%s_indices/%s-%s-sample_index.npy", class_name,
             get_str(x, "cache_hash"), class_name);
    assert_int_equal(access(path, F_OK), 0);
    snprintf(path, sizeof path, "sents_text_sentence/cache/%s_indices/%s-%s-description.txt", class_name,
             get_str(x, "cache_hash"), class_name);
    text = slurp(path, &n);
    assert_string_equal(text, get_str(x, "cache_description"));
    free(text);
}

static void copy_sentences(void)
{
    for (int i = 0; i < 2; i++) {
        size_t n;
        char *bytes = slurp(golden_path(i ? "masked/sents_text_sentence.bin" : "masked/sents_text_sentence.idx"), &n);

        spew(i ? "sents_text_sentence.bin" : "sents_text_sentence.idx", bytes, n);
        free(bytes);
    }
}

static void check_run(const json_t *x, enum meg_masked_type type)
{
    static const char *const prefix[] = { "sents_text_sentence", NULL };
    static const char *const class_names[] = { "BERTMaskedWordPieceDataset", "T5MaskedWordPieceDataset" };
    const json_t *config = json_object_get(x, "config"), *sample;
    const struct meg_masked_conf c = golden_conf(config, type);
    const struct meg_masked_vocab v = golden_vocab(json_object_get(x, "special"));
    const struct meg_data_conf conf = data_of(prefix, get_str(config, "split"));
    struct meg_dataset_spec spec = { .seq_length = get_int(config, "sequence_length"),
                                     .seed = get_int(config, "random_seed") };
    struct meg_data_splits *d;
    struct meg_err e;
    char tokenizer[256];
    int split = 0;
    size_t i;

    while (strcmp(meg_split_names[split], get_str(x, "which")) != 0)
        split++;
    spec.num_samples[split] = get_int(x, "num_samples");
    snprintf(tokenizer, sizeof tokenizer,
             "{\n    \"class\": \"_BertWordPieceTokenizer\",\n    \"tokenizer_path\": [\n"
             "        \"vocab.txt\"\n    ],\n    \"lower_case\": \"True\",\n"
             "    \"vocab_extra_ids\": \"%d\"\n}",
             (int)v.nsentinel);
    spec.tokenizer = tokenizer;
    for (int pass = 0; pass < 2; pass++) {
        const struct meg_dataset *ds;
        const int r = masked_data_open(&d, &conf, &spec, &c, &v, &e);

        if (get_int(x, "length") == 0) { /* Megatron-LM's loop over the epochs does not end in this case */
            assert_int_equal(r, MEG_EFORMAT);
            assert_non_null(strstr(e.msg, "yields a sample"));
            return;
        }
        if (r < 0)
            fail_msg("%s", e.msg);
        ds = meg_data_splits_dataset(d, split);
        assert_true((ds->map[0].p != NULL) == pass); /* the second pass reads the cache */
        same_rows(ds, json_object_get(x, "sample_index"));
        assert_true(json_array_size(json_object_get(x, "samples")) > 0);
        json_array_foreach(json_object_get(x, "samples"), i, sample)
        {
            same_sample(ds, sample, type, v.pad);
        }
        meg_data_splits_close(d);
        same_cache(x, class_names[type]);
    }
}

/* Load the batches of all of `ranks` data-parallel ranks, and return how many reference samples are in them. */
static int samples_in_batches(const struct meg_dataset *ds, const json_t *samples, int ranks, int32_t pad,
                              enum meg_masked_type type)
{
    int found = 0;

    for (int rank = 0; rank < ranks; rank++) {
        const struct meg_data_loader_conf c = { .sampler = { .micro_batch = 2, .rank = rank, .ranks = ranks },
                                                .read_ahead = 1,
                                                .fields = type == MEG_MASKED_T5 ? MEG_BATCH_T5_FIELDS
                                                                                : MEG_BATCH_BERT_FIELDS };
        struct meg_data_loader *l;
        struct meg_batch x = { 0 };
        struct meg_err e;

        assert_int_equal(meg_data_loader_open(&l, ds, &c, &e), 0);
        while (meg_data_loader_next(l, &x, &e) == 0)
            for (int64_t i = 0; i < x.b; i++) {
                const json_t *sample;
                size_t k;

                json_array_foreach(samples, k, sample)
                {
                    if (get_int(sample, "index") != x.sample_id[i])
                        continue;
                    (type == MEG_MASKED_T5 ? same_t5_sequence : same_bert_sequence)(&x, i, sample, pad);
                    found++;
                }
            }
        meg_batch_free(&x);
        meg_data_loader_close(l);
    }
    return found;
}

/* Compare the batches of one and of two data-parallel ranks with the samples in a file. */
static void check_batches(const char *file, enum meg_masked_type type)
{
    static const char *const prefix[] = { "sents_text_sentence", NULL };
    json_t *all = golden_data(file), *x;
    int runs = 0;
    size_t i;

    copy_sentences();
    json_array_foreach(all, i, x)
    {
        const json_t *config = json_object_get(x, "config"), *samples = json_object_get(x, "samples");
        const struct meg_masked_conf c = golden_conf(config, type);
        const struct meg_masked_vocab v = golden_vocab(json_object_get(x, "special"));
        const struct meg_data_conf conf = data_of(prefix, get_str(config, "split"));
        struct meg_dataset_spec spec = { .seq_length = get_int(config, "sequence_length"),
                                         .seed = get_int(config, "random_seed") };
        const struct meg_dataset *ds;
        struct meg_data_splits *d;
        struct meg_err e;
        int split = 0;

        if (get_int(x, "length") == 0)
            continue;
        while (strcmp(meg_split_names[split], get_str(x, "which")) != 0)
            split++;
        spec.num_samples[split] = get_int(x, "num_samples");
        if (masked_data_open(&d, &conf, &spec, &c, &v, &e) < 0)
            fail_msg("%s", e.msg);
        ds = meg_data_splits_dataset(d, split);
        for (int ranks = 1; ranks <= 2 && meg_dataset_len(ds) >= 2 * ranks; ranks++) {
            const int64_t used = meg_dataset_len(ds) / (2 * ranks) * (2 * ranks); /* the last batch is incomplete */
            const json_t *sample;
            int want = 0;
            size_t k;

            json_array_foreach(samples, k, sample) want += get_int(sample, "index") < used;
            assert_int_equal(samples_in_batches(ds, samples, ranks, v.pad, type), want);
            runs += want > 0;
        }
        meg_data_splits_close(d);
    }
    assert_true(runs >= 8);
    json_decref(all);
}

static void batches_have_megatrons_bert_samples(void **state)
{
    (void)state;
    check_batches("masked/bert.json", MEG_MASKED_BERT);
}

static void batches_have_megatrons_t5_samples(void **state)
{
    (void)state;
    check_batches("masked/t5.json", MEG_MASKED_T5);
}

static void check_file(const char *name, enum meg_masked_type type)
{
    json_t *all = golden_data(name), *x;
    size_t i;

    copy_sentences();
    assert_true(json_array_size(all) >= 5);
    json_array_foreach(all, i, x) check_run(x, type);
    json_decref(all);
}

static void bert_samples_equal_megatrons(void **state)
{
    (void)state;
    check_file("masked/bert.json", MEG_MASKED_BERT);
}

static void t5_samples_equal_megatrons(void **state)
{
    (void)state;
    check_file("masked/t5.json", MEG_MASKED_T5);
}

/* ---- without reference data --------------------------------------------------------------------- */

static const unsigned char no_continuation[64];
static const int32_t few_sentinels[] = { 56, 57, 58, 59, 60, 61, 62, 63 };

static struct meg_masked_vocab small_vocab(void)
{
    return (struct meg_masked_vocab){ .size = 64,
                                      .is_continuation = no_continuation,
                                      .cls = 50,
                                      .sep = 51,
                                      .mask = 52,
                                      .pad = 53,
                                      .bos = 54,
                                      .eos = 55,
                                      .sentinel = few_sentinels,
                                      .nsentinel = 8 };
}

/* Write two documents of four sentences.  Each sentence has the n tokens 0, 1, ... (modulo 50). */
static void make_sentences(const char *prefix, int n)
{
    struct meg_indexed_writer *w;
    struct meg_err e;
    int32_t ids[64];

    assert_int_equal(meg_indexed_create(&w, prefix, MEG_IDX_U16, &e), 0);
    for (int i = 0; i < n; i++)
        ids[i] = i % 50;
    for (int doc = 0; doc < 2; doc++) {
        for (int s = 0; s < 4; s++)
            assert_int_equal(indexed_append(w, ids, n, &e), 0);
        meg_indexed_end_document(w);
    }
    assert_int_equal(meg_indexed_commit(&w, 1, &e), 0);
}

static void a_blend_has_samples_of_each_dataset(void **state)
{
    static const char *const words[] = { "0.25", "sa", "0.75", "sb", NULL };
    struct meg_data_conf conf = {
        .data_path = { (const char **)words, 4 }, .split = "1", .dataloader_type = "single", .data_order = "auto"
    };
    const struct meg_dataset_spec spec = { .seq_length = 32, .seed = 7, .num_samples = { 20, 0, 0 } };
    const struct meg_masked_conf c = meg_masked_defaults(MEG_MASKED_BERT);
    const struct meg_masked_vocab v = small_vocab();
    struct meg_data_splits *d;
    struct meg_err e;
    int64_t from[2] = { 0 };
    struct meg_batch got;
    const struct meg_dataset *ds;

    (void)state;
    make_sentences("sa", 5);
    make_sentences("sb", 9);
    if (masked_data_open(&d, &conf, &spec, &c, &v, &e) < 0)
        fail_msg("%s", e.msg);
    ds = meg_data_splits_dataset(d, MEG_SPLIT_TRAIN);
    assert_int_equal(meg_dataset_len(ds), 22); /* 1.005 * 5 and 1.005 * 15, rounded up */
    for (int64_t i = 0; i < meg_dataset_len(ds); i++) {
        from[ds->blend.dataset[i]]++;
        assert_int_equal(sample_of(ds, i, MEG_BATCH_BERT_FIELDS, &got, &e), 0);
        meg_batch_free(&got);
    }
    assert_true(from[0] == 6 && from[1] == 16);
    meg_data_splits_close(d);

    conf.data_path.n = 2; /* "0.25 sa", a blend of one dataset */
    if (masked_data_open(&d, &conf, &spec, &c, &v, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(meg_dataset_len(meg_data_splits_dataset(d, MEG_SPLIT_TRAIN)), 21);
    meg_data_splits_close(d);
}

#define REFUSES(code, message)                                                                                         \
    do {                                                                                                               \
        struct meg_data_splits *d_;                                                                                    \
        struct meg_err e_ = { 0, "" };                                                                                 \
        assert_int_equal(masked_data_open(&d_, &conf, &spec, &c, &v, &e_), code);                                      \
        assert_string_equal(e_.msg, message);                                                                          \
    } while (0)

static void invalid_settings_are_refused(void **state)
{
    static const char *const prefix[] = { "sc", NULL };
    struct meg_data_conf conf = data_of(prefix, "1");
    struct meg_dataset_spec spec = { .seq_length = 32, .num_samples = { 4, 0, 0 } };
    struct meg_masked_conf c = meg_masked_defaults(MEG_MASKED_T5);
    struct meg_masked_vocab v = small_vocab();

    (void)state;
    make_sentences("sc", 5);
    REFUSES(MEG_EUSAGE, "--decoder-seq-length 0: must be from 2 to 2147483647");
    c.decoder_seq_length = 8;
    c.mask.prob = 1;
    REFUSES(MEG_EUSAGE, "--mask-prob 1: must be above 0 and below 1");
    c.mask.prob = 0.15;
    c.short_seq_prob = 1e-12;
    REFUSES(MEG_EUSAGE, "--short-seq-prob 1e-12: must be 0, or from 4.65661e-10 to 1");
    c.short_seq_prob = 0;
    v.eos = -1;
    REFUSES(MEG_EUSAGE, "the vocabulary has no [EOS] token");
    v.eos = 55;
    v.pad = -1;
    REFUSES(MEG_EUSAGE,
            "the vocabulary has no [PAD] token; in release 0.10 of Megatron Core, tokenizer.json and TikTokenizer "
            "give none: if the tokenizer has one, use --megatron-release 0.15 or later, or "
            "--tokenizer-type PretrainedFromHF");
    spec.megatron_release = "0.15";
    REFUSES(MEG_EUSAGE, "the vocabulary has no [PAD] token");
    spec.megatron_release = NULL;
    v.pad = small_vocab().pad;
    spec.seq_length = 4;
    REFUSES(MEG_EUSAGE, "--seq-length 4: must be from 5 to 2147483647");
    spec.seq_length = 32;
    conf.split = "98,1,1";
    spec.num_samples[MEG_SPLIT_VALID] = 1;
    REFUSES(MEG_EUSAGE, "--split 98,1,1: the valid split of sc contains none of the 2 documents; use a larger "
                        "ratio, or 0 to omit the split");
    conf.split = NULL;
    conf.data_path.n = 0;
    conf.mock_data = true;
    REFUSES(MEG_EUSAGE, "--mock-data has no sentences, which T5 samples require; use --data-path");
}

/* Return the number of tokens that continue a word, in the vocabulary that a model with num_ids ids uses. */
static int64_t count_continuations(const struct meg_tok_conf *c, int64_t num_ids)
{
    struct meg_tokenizer *t;
    struct meg_masked_vocab v;
    struct meg_err e;
    int64_t n = 0;

    if (meg_tokenizer_open(&t, c, &e) < 0)
        fail_msg("%s", e.msg);
    meg_masked_vocab_make(&v, t, num_ids);
    assert_true(v.size <= num_ids);
    assert_int_equal(v.mask, 4);
    assert_true(v.eos < num_ids);
    for (int64_t i = 0; i < v.size; i++)
        n += v.is_continuation[i];
    meg_masked_vocab_free(&v);
    meg_tokenizer_close(t);
    return n;
}

/* tokenizer.json has the 500 tokens of vocab.txt; the decoder prints a token that continues a word without ##. */
static void whole_words_are_known_from_tokenizer_json(void **state)
{
    char vocab[4096], dir[4096];
    const struct meg_tok_conf lines = {
        .type = "BertWordPieceLowerCase", .vocab_file = vocab, .vocab_size = MEG_UNSET, .vocab_extra_ids = MEG_UNSET
    };
    const struct meg_tok_conf json = {
        .type = "PretrainedFromHF", .name_or_path = dir, .vocab_size = MEG_UNSET, .vocab_extra_ids = MEG_UNSET
    };

    (void)state;
    snprintf(vocab, sizeof vocab, "%s", golden("../tokenizers/bert-lower.txt"));
    snprintf(dir, sizeof dir, "%s", golden("../tokenizers/hf-bert"));
    assert_int_equal(count_continuations(&lines, 502), 212);
    assert_int_equal(count_continuations(&lines, 500), 212);
    assert_int_equal(count_continuations(&json, 502), 212);
}

static void a_sample_too_large_for_the_decoder_is_refused(void **state)
{
    static const char *const prefix[] = { "sd", NULL };
    const struct meg_data_conf conf = data_of(prefix, "1");
    const struct meg_dataset_spec spec = { .seq_length = 32, .num_samples = { 4, 0, 0 } };
    struct meg_masked_conf c = meg_masked_defaults(MEG_MASKED_T5);
    struct meg_masked_vocab v = small_vocab();
    struct meg_batch got;
    struct meg_data_splits *d;
    struct meg_err e;

    (void)state;
    make_sentences("sd", 10);
    c.decoder_seq_length = 3;
    assert_int_equal(masked_data_open(&d, &conf, &spec, &c, &v, &e), 0);
    assert_int_equal(sample_of(meg_data_splits_dataset(d, MEG_SPLIT_TRAIN), 0, MEG_BATCH_T5_FIELDS, &got, &e),
                     MEG_EUSAGE);
    meg_batch_free(&got);
    assert_non_null(strstr(e.msg, "more than --decoder-seq-length"));
    meg_data_splits_close(d);

    c.decoder_seq_length = 32;
    v.nsentinel = 0;
    assert_int_equal(masked_data_open(&d, &conf, &spec, &c, &v, &e), 0);
    assert_int_equal(sample_of(meg_data_splits_dataset(d, MEG_SPLIT_TRAIN), 0, MEG_BATCH_T5_FIELDS, &got, &e),
                     MEG_EUSAGE);
    meg_batch_free(&got);
    assert_non_null(strstr(e.msg, "but the vocabulary has only 0 sentinels; increase --vocab-extra-ids"));
    meg_data_splits_close(d);

    v = small_vocab();
    v.size = 9; /* the data has id 9, which is outside the vocabulary */
    v.cls = v.sep = v.mask = v.pad = v.bos = v.eos = 8;
    assert_int_equal(masked_data_open(&d, &conf, &spec, &c, &v, &e), 0);
    assert_int_equal(sample_of(meg_data_splits_dataset(d, MEG_SPLIT_TRAIN), 0, MEG_BATCH_T5_FIELDS, &got, &e),
                     MEG_EFORMAT);
    meg_batch_free(&got);
    assert_string_equal(e.msg, "sd.bin: token id 9 is outside the vocabulary of 9 ids; preprocess the text "
                               "with the tokenizer of this run");
    meg_data_splits_close(d);
}

static void open_se(void *arg)
{
    static const char *const prefix[] = { "se", NULL };
    const struct meg_data_conf conf = data_of(prefix, "1");
    const struct meg_dataset_spec spec = { .seq_length = 32, .num_samples = { 4, 0, 0 } };
    const struct meg_masked_conf c = meg_masked_defaults(MEG_MASKED_BERT);
    const struct meg_masked_vocab v = small_vocab();
    struct meg_data_splits *d;
    struct meg_err e;

    (void)arg;
    assert_int_equal(masked_data_open(&d, &conf, &spec, &c, &v, &e), 0);
    meg_data_splits_close(d);
}

static void a_damaged_cache_is_rebuilt(void **state)
{
    static const char *const prefix[] = { "se", NULL };
    const struct meg_data_conf conf = data_of(prefix, "1");
    const struct meg_dataset_spec spec = { .seq_length = 32, .num_samples = { 4, 0, 0 } };
    const struct meg_masked_conf c = meg_masked_defaults(MEG_MASKED_BERT);
    const struct meg_masked_vocab v = small_vocab();
    struct meg_data_splits *d;
    struct meg_err e;
    char path[512] = "", *bytes;
    struct child child;
    struct dirent *f;
    DIR *dir;
    size_t n;

    (void)state;
    make_sentences("se", 10);
    for (int how = 0; how < 4; how++) {
        assert_int_equal(masked_data_open(&d, &conf, &spec, &c, &v, &e), 0);
        assert_null(meg_data_splits_dataset(d, MEG_SPLIT_TRAIN)->map[0].p);
        meg_data_splits_close(d);
        assert_int_equal(masked_data_open(&d, &conf, &spec, &c, &v, &e), 0);
        assert_non_null(meg_data_splits_dataset(d, MEG_SPLIT_TRAIN)->map[0].p);
        meg_data_splits_close(d);
        dir = opendir("se/cache/BERTMaskedWordPieceDataset_indices");
        assert_non_null(dir);
        while ((f = readdir(dir)))
            if (strstr(f->d_name, "sample_index"))
                snprintf(path, sizeof path, "se/cache/BERTMaskedWordPieceDataset_indices/%s", f->d_name);
        closedir(dir);
        bytes = slurp(path, &n);
        if (how == 0)
            n--;
        else if (how == 1)
            n = 20;
        else if (how == 2)
            memcpy(strstr(bytes + 10, "<u4"), "<i4", 3);
        else
            memcpy(strstr(bytes + 10, "'shape': (") + 10, "9999999999999999999999", 22);
        spew(path, bytes, n);
        free(bytes);
    }
    spew(path, "\x93NUMPY", 6);
    child_run(&child, open_se, NULL);
    assert_int_equal(child.status, 0);
    assert_non_null(strstr(child.err, "_index.npy: the .npy header is damaged; rebuilding the index"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bert_samples_equal_megatrons),
        cmocka_unit_test(batches_have_megatrons_bert_samples),
        cmocka_unit_test(t5_samples_equal_megatrons),
        cmocka_unit_test(batches_have_megatrons_t5_samples),
        cmocka_unit_test(t5_samples_equal_megatrons),
        cmocka_unit_test(a_blend_has_samples_of_each_dataset),
        cmocka_unit_test(invalid_settings_are_refused),
        cmocka_unit_test(a_sample_too_large_for_the_decoder_is_refused),
        cmocka_unit_test(whole_words_are_known_from_tokenizer_json),
        cmocka_unit_test(a_damaged_cache_is_rebuilt),
    };
    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
