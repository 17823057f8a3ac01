/* The options of meg-preprocess, and which of them make no sense. */
#include <string.h>

#include "data/internal.h"
#include "data/preprocess.h"

enum { MAX_WORKERS = 1024 };

const struct meg_opt meg_preprocess_opts[] = {
    { "input", 0, MEG_LIST(struct meg_preprocess_conf, input), "FILE...", NULL,
      "JSON lines, plain or compressed by gzip, zstd or xz; patterns are expanded; - is standard "
      "input" },
    { "json-keys", 0, MEG_LIST(struct meg_preprocess_conf, json_keys), "KEY...", "text",
      "keys whose texts are encoded, a dataset each" },
    MEG_ALIAS("json-key", "json-keys"),
    { "output-prefix", 0, MEG_STR(struct meg_preprocess_conf, output_prefix), "PREFIX", NULL,
      "write PREFIX_KEY_document.bin and .idx" },
    { "append-eod", 0, MEG_BOOL(struct meg_preprocess_conf, append_eod), NULL, "no",
      "end each document with the id that says so" },
    { "replace-invalid", 0, MEG_BOOL(struct meg_preprocess_conf, replace_invalid), NULL, "no",
      "read invalid UTF-8 as U+FFFD instead of refusing it" },
    { "workers", 0, MEG_I64(struct meg_preprocess_conf, workers), "N", "1",
      "threads that encode; the output is the same for any number" },
    { "partitions", 0, MEG_I64(struct meg_preprocess_conf, partitions), "N", "1",
      "order the documents as Megatron-LM does for N partitions" },
    { "keep-sequential-samples", 0, MEG_BOOL(struct meg_preprocess_conf, keep_sequential_samples),
      NULL, "no", "with partitions: keep the order of the lines" },
    { "log-interval", 0, MEG_I64(struct meg_preprocess_conf, log_interval), "N", NULL,
      "say every N documents how far the work is" },
    { 0 }
};

int meg_preprocess_check(const struct meg_preprocess_conf *c, const struct meg_tokenizer *tok,
                         struct meg_err *e)
{
    if (c->input.n == 0)
        return meg_fail(e, MEG_EUSAGE, "--input is required");
    if (!c->output_prefix)
        return meg_fail(e, MEG_EUSAGE, "--output-prefix is required");
    if (c->workers < 1 || c->workers > MAX_WORKERS)
        return meg_fail(e, MEG_EUSAGE, "--workers: %lld is not in 1..%d", (long long)c->workers,
                        MAX_WORKERS);
    if (c->partitions < 1)
        return meg_fail(e, MEG_EUSAGE, "--partitions: %lld is less than 1",
                        (long long)c->partitions);
    if (c->log_interval != MEG_UNSET && c->log_interval < 1)
        return meg_fail(e, MEG_EUSAGE, "--log-interval: %lld is less than 1",
                        (long long)c->log_interval);
    if (c->append_eod && meg_tokenizer_eod(tok) < 0)
        return meg_fail(e, MEG_EUSAGE,
                        "--append-eod: the tokenizer has no id that ends a document");
    for (int64_t k = 0; k < c->json_keys.n; k++) {
        for (int64_t i = 0; i < k; i++) {
            if (strcmp(c->json_keys.v[i], c->json_keys.v[k]) == 0)
                return meg_fail(e, MEG_EUSAGE, "--json-keys: '%s' stands there twice",
                                c->json_keys.v[k]);
        }
    }
    return MEG_OK;
}
