/* data_conf.c - the data options of a run, and the datasets and weights that they specify. */
#include "data/blend/data_conf.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "data/blend/blend.h"
#include "data/blend/data_group.h"
#include "data/indexed/list_datasets.h"
#include "file/file.h"
#include "io/json.h"
#include "tokenizer/megatron_release.h"

#define C struct meg_data_conf
const struct meg_opt meg_data_opts[] = {
    { "data-path", 0, MEG_LIST(C, data_path), "PREFIX...", NULL,
      "read these datasets, named without .bin and .idx: PREFIX..., or WEIGHT PREFIX pairs" },
    { "split", 0, MEG_STR(C, split), "A,B,C", NULL,
      "divide each dataset of --data-path into training, validation and test data in these ratios; default: 969,30,1, "
      "or 1,1,1 with --mock-data" },
    { "train-data-path", 0, MEG_LIST(C, per_split_path[MEG_SPLIT_TRAIN]), "PREFIX...", NULL,
      "read these datasets for training only; same syntax as --data-path" },
    { "valid-data-path", 0, MEG_LIST(C, per_split_path[MEG_SPLIT_VALID]), "PREFIX...", NULL,
      "read these datasets for validation only; same syntax as --data-path" },
    { "test-data-path", 0, MEG_LIST(C, per_split_path[MEG_SPLIT_TEST]), "PREFIX...", NULL,
      "read these datasets for testing only; same syntax as --data-path" },
    { "data-args-path", 0, MEG_STR(C, data_args_path), "FILE", NULL, "read the value of --data-path from FILE" },
    { "per-split-data-args-path", 0, MEG_STR(C, per_split_data_args_path), "FILE", NULL,
      "read the datasets of each split from FILE, a JSON object with keys train, valid and test" },
    { "train-weighted-split-paths", 0, MEG_LIST(C, weighted_split[MEG_SPLIT_TRAIN]), "'NAME: DATASET, ...'", NULL,
      "read one group of datasets for the training split only; the group is one quoted argument; NAME is any name "
      "without "
      "blanks; DATASET is WEIGHT BEGIN:END PREFIX, where BEGIN and END are fractions of the dataset" },
    { "valid-weighted-split-paths", 0, MEG_LIST(C, weighted_split[MEG_SPLIT_VALID]), "'NAME: DATASET, ...'", NULL,
      "read groups of datasets, each one argument, for the validation split only; each group is evaluated separately; "
      "same "
      "syntax as --train-weighted-split-paths" },
    { "test-weighted-split-paths", 0, MEG_LIST(C, weighted_split[MEG_SPLIT_TEST]), "'NAME: DATASET, ...'", NULL,
      "read groups of datasets, each one argument, for the test split only; each group is evaluated separately; same "
      "syntax as --train-weighted-split-paths" },
    { "train-weighted-split-paths-path", 0, MEG_STR(C, weighted_split_file[MEG_SPLIT_TRAIN]), "FILE", NULL,
      "read the value of --train-weighted-split-paths from FILE, where it must be enclosed in double quotes" },
    { "valid-weighted-split-paths-path", 0, MEG_STR(C, weighted_split_file[MEG_SPLIT_VALID]), "FILE", NULL,
      "read the value of --valid-weighted-split-paths from FILE, where each group must be enclosed in double quotes" },
    { "test-weighted-split-paths-path", 0, MEG_STR(C, weighted_split_file[MEG_SPLIT_TEST]), "FILE", NULL,
      "read the value of --test-weighted-split-paths from FILE, where each group must be enclosed in double quotes" },
    { "data-order", 0, MEG_STR(C, data_order), "auto|megatron-lm|megatron-deepspeed", "auto",
      "program whose sample order is reproduced; auto: megatron-deepspeed with any --*-weighted-split-paths option, "
      "else megatron-lm" },
    { "mock-data", 0, MEG_BOOL(C, mock_data), NULL, "no",
      "use synthetic tokens, generated reproducibly, instead of a dataset" },
    { "data-cache-path", 0, MEG_STR(C, data_cache_path), "DIR", NULL,
      "store sample indexes in DIR; default: PREFIX/cache/CLASS_indices, for the dataset PREFIX.bin, where CLASS is "
      "GPTDataset, BERTMaskedWordPieceDataset or T5MaskedWordPieceDataset; with --data-order megatron-deepspeed: the "
      "directory of the dataset" },
    { "renormalize-blend-weights", 0, MEG_BOOL(C, renormalize_blend_weights), NULL, "no",
      "weight each dataset of a blend by the number of samples built from it; requires --megatron-release 0.10" },
    { "mid-level-dataset-surplus", 0, MEG_F64(C, mid_level_dataset_surplus), "FRACTION", NULL,
      "build (1 + FRACTION) times as many samples of each dataset in a blend as its weight requires; requires "
      "--megatron-release 0.11 or later; default: 0.005" },
    { "reset-position-ids", 0, MEG_BOOL(C, reset_position_ids), NULL, "no",
      "restart position ids at 0 after each end-of-document token" },
    { "reset-attention-mask", 0, MEG_BOOL(C, reset_attention_mask), NULL, "no",
      "mask attention across document boundaries" },
    { "eod-mask-loss", 0, MEG_BOOL(C, eod_mask_loss), NULL, "no",
      "exclude positions whose input is an end-of-document token from the loss" },
    { "mask-prob", 0, MEG_F64(C, mask_prob), "P", NULL,
      "fraction of the tokens of a sample that are masked (--model bert and t5); default: 0.15" },
    { "short-seq-prob", 0, MEG_F64(C, short_seq_prob), "P", NULL,
      "cut about this fraction of the samples to a random length (--model bert and t5); default: 0.1" },
    { "dataloader-type", 0, MEG_STR(C, dataloader_type), "single|cyclic", "single",
      "single: read the samples once, in order; cyclic: shuffle them in each epoch" },
    { "no-data-sharding", 0, MEG_BOOL(C, no_data_sharding), NULL, "no",
      "with --dataloader-type cyclic: shuffle the samples of all ranks together instead of each rank's "
      "separately" },
    { 0 }
};
#undef C

int meg_data_conf_check(const struct meg_data_conf *c, const struct meg_megatron_release *release, struct meg_err *e)
{
    enum { MAX_SURPLUS = 1000 };
    const double surplus = c->mid_level_dataset_surplus;

    if (c->renormalize_blend_weights && !release->renormalizes)
        return meg_fail(e, MEG_EUSAGE,
                        "--renormalize-blend-weights: requires --megatron-release 0.10, because Megatron-LM %s does "
                        "not have this option",
                        release->name);
    if (!isnan(surplus) && !release->blend_sizes_with_surplus)
        return meg_fail(e, MEG_EUSAGE,
                        "--mid-level-dataset-surplus: requires --megatron-release 0.11 or later, because Megatron-LM "
                        "%s does not have this option",
                        release->name);
    if (!isnan(surplus) && !(surplus >= 0 && surplus <= MAX_SURPLUS))
        return meg_fail(e, MEG_EUSAGE, "--mid-level-dataset-surplus %g: must be from 0 to %d", surplus, MAX_SURPLUS);
    return 0;
}

enum meg_data_sampler_type meg_data_conf_sampler_type(const struct meg_data_conf *c)
{
    if (strcmp(c->dataloader_type, "cyclic") != 0)
        return MEG_DATA_SAMPLER_SINGLE;
    return c->no_data_sharding ? MEG_DATA_SAMPLER_CYCLIC_UNSHARDED : MEG_DATA_SAMPLER_CYCLIC;
}

/* ---- parsing the lists of datasets ------------------------------------------------------------ */

static void add_split_at_blanks(struct meg_prefix_list *w, const char *text)
{
    static const char blank[] = " \t\n\r\v\f";
    for (const char *p = text + strspn(text, blank); *p; p += strspn(p, blank)) {
        size_t n = strcspn(p, blank);
        meg_prefix_list_add(w, meg_strndup(p, n));
        p += n;
    }
}

/* Parse a list of prefixes or of WEIGHT PREFIX pairs; origin: option or file that contains the list, for messages. */
static int parse_blend(struct meg_data_blend *b, const struct meg_prefix_list *w, const char *origin, struct meg_err *e)
{
    int64_t n = (int64_t)w->n, numbers = 0, step;
    double x;

    for (int64_t i = 0; n % 2 == 0 && i < n; i += 2)
        numbers += meg_parse_f64(w->v[i], &x);
    if (numbers > 0 && numbers < n / 2)
        return meg_fail(e, MEG_EUSAGE,
                        "%s: only %" PRId64 " of %" PRId64
                        " WEIGHT PREFIX pairs begin with a number; specify a weight before every prefix or before none",
                        origin, numbers, n / 2);
    step = numbers > 0 ? 2 : 1;
    if (n / step > MEG_MAX_BLEND_DATASETS)
        return meg_fail(e, MEG_EUSAGE, "%s: found %" PRId64 " datasets, expected at most %d", origin, n / step,
                        MEG_MAX_BLEND_DATASETS);
    b->n = (int)(n / step);
    b->prefix = meg_new((size_t)b->n * sizeof *b->prefix);
    b->weight = step == 2 ? meg_new((size_t)b->n * sizeof *b->weight) : NULL;
    for (int i = 0; i < b->n; i++) {
        b->prefix[i] = meg_strdup(w->v[i * step + step - 1]);
        if (step == 2 && (!meg_parse_f64(w->v[i * step], &b->weight[i]) || !(b->weight[i] > 0)))
            return meg_fail(e, MEG_EUSAGE, "%s: weight %s of %s must be above 0", origin, w->v[i * step], b->prefix[i]);
    }
    return b->weight ? meg_blend_check_weights(b->weight, b->n, origin, e) : 0;
}

static int parse_list(struct meg_data_blend *b, const struct meg_str_list *list, const char *origin, struct meg_err *e)
{
    struct meg_prefix_list w = { 0 };
    int r;

    for (int64_t i = 0; i < list->n; i++)
        meg_prefix_list_add(&w, meg_strdup(list->v[i]));
    r = parse_blend(b, &w, origin, e);
    meg_prefix_list_free(&w);
    return r;
}

static int parse_file(struct meg_data_blend *b, const char *path, struct meg_err *e)
{
    struct meg_str text = { 0 };
    struct meg_prefix_list w = { 0 };
    int r = meg_read_text(path, &text, e);

    if (r == 0) {
        add_split_at_blanks(&w, text.s);
        r = w.n ? parse_blend(b, &w, path, e)
                : meg_fail(e, MEG_EUSAGE,
                           "%s: the file of --data-args-path is empty; it must contain a value of --data-path", path);
    }
    meg_prefix_list_free(&w);
    meg_str_free(&text);
    return r;
}

static int add_json_words(struct meg_prefix_list *w, const json_t *v, const char *path, const char *key,
                          struct meg_err *e)
{
    const json_t *word;
    size_t i;

    if (json_is_string(v)) {
        add_split_at_blanks(w, json_string_value(v));
        return 0;
    }
    if (!json_is_array(v) && !json_is_null(v))
        return meg_fail(e, MEG_EFORMAT,
                        "%s: the key \"%s\" is required and must be a list of strings, a string or null", path, key);
    json_array_foreach(v, i, word)
    {
        if (!json_is_string(word))
            return meg_fail(e, MEG_EFORMAT, "%s: \"%s\"[%zu] is not a string", path, key, i);
        meg_prefix_list_add(w, meg_strdup(json_string_value(word)));
    }
    return 0;
}

static int parse_per_split_file(struct meg_data_blends *b, const char *path, struct meg_err *e)
{
    json_t *o = NULL;
    int r = meg_json_load(&o, path, e);

    for (int i = 0; i < MEG_NUM_SPLITS && r == 0; i++) {
        struct meg_prefix_list w = { 0 };
        if ((r = add_json_words(&w, json_object_get(o, meg_split_names[i]), path, meg_split_names[i], e)) == 0)
            r = parse_blend(meg_data_blends_add(b, i), &w, path, e);
        meg_prefix_list_free(&w);
    }
    json_decref(o);
    return r;
}

/* ---- selecting the source --------------------------------------------------------------------- */

static const char *const path_names[] = { "--train-data-path", "--valid-data-path", "--test-data-path" };
static const char *const group_names[] = { "--train-weighted-split-paths", "--valid-weighted-split-paths",
                                           "--test-weighted-split-paths" };

static bool has_paths(const struct meg_data_conf *c)
{
    return c->per_split_path[0].n || c->per_split_path[1].n || c->per_split_path[2].n;
}

static bool has_groups(const struct meg_data_conf *c)
{
    bool has = false;

    for (int i = 0; i < MEG_NUM_SPLITS; i++)
        has = has || c->weighted_split[i].n || c->weighted_split_file[i];
    return has;
}

static int check_sources(const struct meg_data_conf *c, bool is_per_split, struct meg_err *e)
{
    const int n = (c->data_path.n > 0) + (c->data_args_path != NULL) + c->mock_data + has_paths(c) +
                  (c->per_split_data_args_path != NULL) + has_groups(c);

    if (n > 1)
        return meg_fail(
            e, MEG_EUSAGE,
            "several sources of data are specified; use only one of --data-path, --data-args-path, "
            "--{train,valid,test}-data-path, --per-split-data-args-path, --*-weighted-split-paths and --mock-data");
    if (n == 0)
        return meg_fail(e, MEG_EUSAGE,
                        "no data is specified; use --data-path PREFIX, or --mock-data for generated tokens");
    if (is_per_split && c->split)
        return meg_fail(
            e, MEG_EUSAGE,
            "--split cannot be combined with options that specify the datasets of each split; remove --split");
    if (has_groups(c) && strcmp(c->data_order, "megatron-lm") == 0)
        return meg_fail(e, MEG_EUSAGE,
                        "--data-order megatron-lm: cannot be combined with --*-weighted-split-paths; use "
                        "megatron-deepspeed or auto");
    return 0;
}

/* Check the groups of a split: training reads one group, and groups of one split have different names. */
static int check_groups(const struct meg_data_blends *b, int split, const char *origin, struct meg_err *e)
{
    const struct meg_data_blend *g = b->blend[split];

    if (split == MEG_SPLIT_TRAIN && b->num[split] > 1)
        return meg_fail(e, MEG_EUSAGE,
                        "%s: found %d dataset groups, expected one; blend all training data in one group", origin,
                        b->num[split]);
    for (int i = 0; i < b->num[split]; i++)
        for (int k = 0; k < i; k++)
            if (strcmp(g[i].name, g[k].name) == 0)
                return meg_fail(e, MEG_EUSAGE,
                                "%s: found two dataset groups named %s, expected different names; rename one of them",
                                origin, g[i].name);
    return 0;
}

static int read_groups(struct meg_data_blends *b, const struct meg_data_conf *c, int split, struct meg_err *e)
{
    const struct meg_str_list *list = &c->weighted_split[split];
    const char *file = c->weighted_split_file[split];
    int r = 0;

    if (list->n && file)
        return meg_fail(e, MEG_EUSAGE, "%s: cannot be combined with %s-path; use one of these options",
                        group_names[split], group_names[split]);
    for (int64_t i = 0; i < list->n && r == 0; i++)
        r = meg_data_parse_group(meg_data_blends_add(b, split), list->v[i], group_names[split], e);
    if (file)
        r = meg_data_parse_group_file(b, split, file, e);
    return r < 0 ? r : check_groups(b, split, file ? file : group_names[split], e);
}

int meg_data_blends_read(struct meg_data_blends *out, const struct meg_data_conf *c, struct meg_err *e)
{
    struct meg_data_blends b = { .is_mock = c->mock_data };
    int r;

    b.is_per_split = has_paths(c) || has_groups(c) || c->per_split_data_args_path;
    b.is_deepspeed = has_groups(c) || strcmp(c->data_order, "megatron-deepspeed") == 0;
    if ((r = check_sources(c, b.is_per_split, e)) < 0)
        goto out;
    if (c->per_split_data_args_path)
        r = parse_per_split_file(&b, c->per_split_data_args_path, e);
    else if (c->data_args_path)
        r = parse_file(meg_data_blends_add(&b, 0), c->data_args_path, e);
    else if (c->data_path.n)
        r = parse_list(meg_data_blends_add(&b, 0), &c->data_path, "--data-path", e);
    else
        for (int i = 0; i < MEG_NUM_SPLITS && r == 0; i++)
            r = has_groups(c) ? read_groups(&b, c, i, e)
                              : parse_list(meg_data_blends_add(&b, i), &c->per_split_path[i], path_names[i], e);
    if (r < 0)
        goto out;
    if (!b.is_per_split) {
        b.split = c->split ? c->split : c->mock_data ? "1,1,1" : "969, 30, 1";
        if (!c->split && !c->mock_data)
            meg_info("--split is not set; using %s", b.split);
    }
    *out = b;
    return 0;
out:
    meg_data_blends_free(&b);
    return r;
}

struct meg_data_blend *meg_data_blends_add(struct meg_data_blends *b, int split)
{
    struct meg_data_blend *v = meg_realloc_array(b->blend[split], (size_t)b->num[split] + 1, sizeof *v);

    b->blend[split] = v;
    v[b->num[split]] = (struct meg_data_blend){ 0 };
    return &v[b->num[split]++];
}

static void free_blend(struct meg_data_blend *b)
{
    for (int i = 0; i < b->n; i++)
        free(b->prefix[i]);
    free(b->prefix);
    free(b->weight);
    free(b->range);
    free(b->name);
}

void meg_data_blends_free(struct meg_data_blends *b)
{
    for (int k = 0; k < MEG_NUM_SPLITS; k++) {
        for (int i = 0; i < b->num[k]; i++)
            free_blend(&b->blend[k][i]);
        free(b->blend[k]);
    }
    *b = (struct meg_data_blends){ 0 };
}
