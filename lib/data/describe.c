#include "data/describe.h"

#include <inttypes.h>
#include <string.h>

#include "base/num.h"
#include "data/gpt_index.h"
#include "text/utf8.h"

/* text, every line after the first further in */
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
        meg_str_printf(out, "    \"%s\": null,\n", key);
    else
        meg_str_printf(out, "    \"%s\": %" PRId64 ",\n", key, v);
}

/* Pairs of fractions, null for an absent split; the very first number is the integer 0. */
static void add_matrix(struct meg_str *out, const struct meg_split *s)
{
    meg_str_printf(out, "[\n");
    for (int i = 0; i < MEG_SPLITS; i++) {
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
        meg_str_printf(out, i + 1 < MEG_SPLITS ? ",\n" : "\n    ]");
    }
}

void meg_describe_gpt(struct meg_str *out, const struct meg_gpt_identity *g)
{
    meg_str_printf(out, "{\n    \"class\": \"GPTDataset\",\n    \"dataset_path\": ");
    meg_utf8_add_json(out, g->path);
    meg_str_printf(out, ",\n");
    add_count(out, "num_samples", g->wanted);
    meg_str_printf(out,
                   "    \"index_split\": \"%s\",\n    \"random_seed\": %" PRId64 ",\n"
                   "    \"sequence_length\": %" PRId64 ",\n    \"split\": ",
                   g->which, g->seed, g->seq_length);
    if (g->split_text)
        meg_utf8_add_json(out, g->split_text);
    else
        meg_str_printf(out, "null");
    meg_str_printf(out, ",\n    \"split_matrix\": ");
    if (g->split_text)
        add_matrix(out, g->split);
    else
        meg_str_printf(out, "null");
    meg_str_printf(out, ",\n    \"tokenizer\": ");
    add_indented(out, g->tokenizer ? g->tokenizer : "null", 4);
    meg_str_printf(out, "\n}");
}

void meg_describe_blend(struct meg_str *out, char *const *member, int n, const char *which,
                        const double *weight, const int64_t *count, int64_t size, bool renormalize)
{
    meg_str_printf(out, "{\n    \"class\": \"BlendedDataset\",\n    \"datasets\": [\n");
    for (int i = 0; i < n; i++) {
        meg_str_printf(out, "        ");
        add_indented(out, member[i], 8);
        meg_str_printf(out, i + 1 < n ? ",\n" : "\n    ],\n");
    }
    meg_str_printf(out, "    \"split\": \"%s\",\n    \"weights\": [\n", which);
    for (int i = 0; i < n; i++) {
        meg_str_printf(out, "        ");
        if (count)
            meg_str_printf(out, "%" PRId64, count[i]);
        else
            add_double(out, weight[i]);
        meg_str_printf(out, i + 1 < n ? ",\n" : "\n    ],\n");
    }
    add_count(out, "size", size);
    meg_str_printf(out, "    \"renormalize_blend_weights\": %s\n}", renormalize ? "true" : "false");
}
