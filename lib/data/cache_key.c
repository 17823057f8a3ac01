/* cache_key.c - descriptions of cached indices. */
#include "data/cache_key.h"
#include <inttypes.h>
#include <string.h>
#include "base/num.h"
#include "data/gpt_index.h"
#include "io/json.h"

/* Append text with its second and later lines indented by `by` columns. */
static void add_indented(struct meg_str *out, const char *text, int by)
{
    for (const char *nl; (nl = strchr(text, '\n')); text = nl + 1) {
        meg_str_add(out, text, (size_t)(nl + 1 - text));
        meg_str_printf(out, "%*s", by, "");
    }
    meg_str_add(out, text, strlen(text));
}

static void add_double(struct meg_str *out, double v)
{
    char buf[MEG_DOUBLE_CHARS];
    meg_str_printf(out, "%s", meg_fmt_double(buf, v));
}

static void add_count(struct meg_str *out, const char *key, int64_t v)
{
    if (v == MEG_ONE_EPOCH)
        meg_str_printf(out, "    \"%s\": null", key);
    else
        meg_str_printf(out, "    \"%s\": %" PRId64, key, v);
}

/*
 * Append the pair of fractions of each split, or null for an absent split.  As in Megatron-LM, the beginning of the
 * first split is the integer 0; all other fractions are printed as floats.
 */
static void add_matrix(struct meg_str *out, const struct meg_split_matrix *s)
{
    meg_str_printf(out, "[\n");
    for (int i = 0; i < MEG_NUM_SPLITS; i++) {
        if (!s->is_present[i]) {
            meg_str_printf(out, "        null");
        } else {
            meg_str_printf(out, "        [\n            ");
            if (i == 0)
                meg_str_printf(out, "0");
            else
                add_double(out, s->begin[i]);
            meg_str_printf(out, ",\n            ");
            add_double(out, s->end[i]);
            meg_str_printf(out, "\n        ]");
        }
        meg_str_printf(out, i + 1 < MEG_NUM_SPLITS ? ",\n" : "\n    ]");
    }
}

static void add_bool(struct meg_str *out, const char *key, bool v)
{
    meg_str_printf(out, ",\n    \"%s\": %s", key, v ? "true" : "false");
}

static void add_masked(struct meg_str *out, const struct meg_masked_conf *c)
{
    meg_str_printf(out, ",\n    \"masking_probability\": ");
    add_double(out, c->mask.prob);
    meg_str_printf(out, ",\n    \"short_sequence_probability\": ");
    add_double(out, c->short_seq_prob);
    meg_str_printf(out, ",\n    \"masking_max_ngram\": %" PRId64, c->mask.max_ngram);
    add_bool(out, "masking_do_full_word", c->mask.whole_word);
    add_bool(out, "masking_do_permutation", false);
    add_bool(out, "masking_use_longer_ngrams", c->mask.longer_ngrams);
    add_bool(out, "masking_use_geometric_distribution", c->mask.geometric);
    if (c->type == MEG_MASKED_BERT)
        add_bool(out, "classification_head", c->has_pairs);
    else
        meg_str_printf(out, ",\n    \"sequence_length_decoder\": %" PRId64, c->decoder_seq_length);
}

void meg_cache_key_add_dataset(struct meg_str *out, const struct meg_cache_key *id)
{
    meg_str_printf(out, "{\n    \"class\": \"%s\",\n    \"dataset_path\": ", id->class_name);
    meg_json_add_ascii(out, id->path);
    meg_str_printf(out, ",\n");
    add_count(out, "num_samples", id->num_samples);
    meg_str_printf(out,
                   ",\n    \"index_split\": \"%s\",\n    \"random_seed\": %" PRId64 ",\n"
                   "    \"sequence_length\": %" PRId64 ",\n    \"split\": ",
                   id->split, id->seed, id->seq_length);
    if (id->split_string)
        meg_json_add_ascii(out, id->split_string);
    else
        meg_str_printf(out, "null");
    meg_str_printf(out, ",\n    \"split_matrix\": ");
    if (id->split_string)
        add_matrix(out, id->split_matrix);
    else
        meg_str_printf(out, "null");
    meg_str_printf(out, ",\n    \"tokenizer\": ");
    add_indented(out, id->tokenizer ? id->tokenizer : "null", 4);
    if (id->masked)
        add_masked(out, id->masked);
    meg_str_printf(out, "\n}");
}

void meg_cache_key_add_blend(struct meg_str *out, const struct meg_blend_key *id)
{
    meg_str_printf(out, "{\n    \"class\": \"BlendedDataset\",\n    \"datasets\": [\n");
    for (int i = 0; i < id->n; i++) {
        meg_str_printf(out, "        ");
        add_indented(out, id->member[i], 8);
        meg_str_printf(out, i + 1 < id->n ? ",\n" : "\n    ],\n");
    }
    meg_str_printf(out, "    \"split\": \"%s\",\n    \"weights\": [\n", id->split);
    for (int i = 0; i < id->n; i++) {
        meg_str_printf(out, "        ");
        if (id->count)
            meg_str_printf(out, "%" PRId64, id->count[i]);
        else
            add_double(out, id->weight[i]);
        meg_str_printf(out, i + 1 < id->n ? ",\n" : "\n    ],\n");
    }
    add_count(out, "size", id->size);
    if (id->renormalize)
        add_bool(out, "renormalize_blend_weights", *id->renormalize);
    meg_str_printf(out, "\n}");
}
