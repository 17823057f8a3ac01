/* conf.c - the options of meg-preprocess, and checks of their values. */
#define _GNU_SOURCE /* declare sched_getaffinity */
#include <inttypes.h>
#include <sched.h>
#include <string.h>
#include "base/num.h"
#include "option/check.h"
#include "preprocess/internal.h"
#include "preprocess/preprocess.h"

enum { MAX_WORKERS = 1024 };

const struct meg_opt meg_preprocess_opts[] = {
    { "input", 0, MEG_LIST(struct meg_preprocess_conf, input), "FILE...", NULL,
      "read JSON lines from these files, plain or compressed with gzip, zstd or xz; shell patterns are expanded; - is "
      "standard input" },
    { "json-keys", 0, MEG_LIST(struct meg_preprocess_conf, json_keys), "KEY...", "text",
      "keys of each JSON line whose values are the texts to encode; each key has its own dataset" },
    MEG_ALIAS("json-key", "json-keys"),
    { "output-prefix", 0, MEG_STR(struct meg_preprocess_conf, output_prefix), "PREFIX", NULL,
      "write PREFIX_KEY_document.bin and PREFIX_KEY_document.idx for each key" },
    { "split-sentences", 0, MEG_BOOL(struct meg_preprocess_conf, split_sentences), NULL, "no",
      "store each sentence as a sequence, in PREFIX_KEY_sentence.bin and PREFIX_KEY_sentence.idx" },
    { "keep-newlines", 0, MEG_BOOL(struct meg_preprocess_conf, keep_newlines), NULL, "no",
      "with --split-sentences: keep the whitespace after each sentence" },
    { "lang", 0, MEG_STR(struct meg_preprocess_conf, lang), "LANGUAGE", "english",
      "with --split-sentences: language of the text, which selects the subdirectory of --punkt-data" },
    { "punkt-data", 0, MEG_STR(struct meg_preprocess_conf, punkt_data), "DIR", NULL,
      "with --split-sentences: read the Punkt parameters, such as abbreviations, from DIR/LANGUAGE" },
    { "append-eod", 0, MEG_BOOL(struct meg_preprocess_conf, append_eod), NULL, "no",
      "append the end-of-document token to each document" },
    { "replace-invalid", 0, MEG_BOOL(struct meg_preprocess_conf, replace_invalid), NULL, "no",
      "replace invalid UTF-8 and lone surrogates by U+FFFD instead of failing" },
    { "workers", 0, MEG_STR(struct meg_preprocess_conf, workers), "N", "1",
      "number of threads, or auto for one per CPU that the process may use; it does not change the output" },
    { "partitions", 0, MEG_I64(struct meg_preprocess_conf, partitions), "N", "1",
      "order the documents as Megatron-LM does with N partitions" },
    { "keep-sequential-samples", 0, MEG_BOOL(struct meg_preprocess_conf, keep_sequential_samples), NULL, "no",
      "with --partitions: keep the order of the input lines" },
    { "dataset-impl", 0, MEG_STR(struct meg_preprocess_conf, dataset_impl), "mmap", "mmap",
      "format of the dataset; only mmap is supported" },
    { "log-interval", 0, MEG_I64(struct meg_preprocess_conf, log_interval), "N", NULL,
      "print progress every N documents; default: every ten seconds, or continuously on a terminal" },
    { 0 }
};

static int count_workers(const char *text, int64_t *out, struct meg_err *e)
{
    cpu_set_t mine;

    if (strcmp(text, "auto") == 0) {
        *out = sched_getaffinity(0, sizeof mine, &mine) < 0 ? 1 : CPU_COUNT(&mine);
        return 0;
    }
    if (!meg_parse_i64(text, out))
        return meg_fail(e, MEG_EUSAGE, "--workers %s: must be a number or auto", text);
    if (*out < 1 || *out > MAX_WORKERS)
        return meg_fail(e, MEG_EUSAGE, "--workers %s: must be from 1 to %d", text, MAX_WORKERS);
    return 0;
}

int meg_preprocess_check(const struct meg_preprocess_conf *c, const struct meg_tokenizer *tok, int64_t *workers,
                         struct meg_err *e)
{
    static const char requires_sentences[] = ": requires --split-sentences";
    const bool lacks_sentences = !c->split_sentences;
    const struct meg_opt_rule rules[] = {
        { c->input.n == 0, "input", " is required" },
        { !c->output_prefix, "output-prefix", " is required" },
        { lacks_sentences && meg_opt_was_given(&c->keep_newlines), "keep-newlines", requires_sentences },
        { lacks_sentences && meg_opt_was_given(&c->punkt_data), "punkt-data", requires_sentences },
        { lacks_sentences && meg_opt_was_given(&c->lang), "lang", requires_sentences },
        { c->partitions < 1, "partitions", ": must be at least 1" },
        { strcmp(c->dataset_impl, "mmap") != 0, "dataset-impl", ": must be mmap, the only format supported" },
        { c->log_interval != MEG_UNSET && c->log_interval < 1, "log-interval", ": must be at least 1" },
        { c->append_eod && meg_tokenizer_eod(tok) < 0, "append-eod",
          ": the tokenizer has no end-of-document token; for a directory with tokenizer.json, set eos_token in "
          "tokenizer_config.json" },
        { 0 },
    };
    int r;

    if ((r = meg_opt_check_rules(rules, meg_preprocess_opts, c, e)) < 0 ||
        (r = count_workers(c->workers, workers, e)) < 0)
        return r;
    for (int64_t k = 0; k < c->json_keys.n; k++) {
        for (int64_t i = 0; i < k; i++) {
            if (strcmp(c->json_keys.v[i], c->json_keys.v[k]) == 0)
                return meg_fail(e, MEG_EUSAGE, "--json-keys: '%s' occurs twice", c->json_keys.v[k]);
        }
    }
    return 0;
}
