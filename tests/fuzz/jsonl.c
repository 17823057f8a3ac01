/*
 * Fuzz meg_jsonl_read with lines of valid UTF-8: unless it rejects a line, the strings that are read for the keys
 * "text" and "k" are valid UTF-8.
 */
#include <string.h>

#include "fuzz.h"
#include "io/jsonl.h"
#include "unicode/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const char *const keys[] = { "text", "k" };
    struct meg_jsonl j = { .keys = keys, .nkeys = 2 };
    char *line = malloc(n ? n : 1);
    struct meg_err e;

    if (n)
        memcpy(line, bytes, n);
    if (meg_utf8_find_invalid((const char *)bytes, (int64_t)n) < 0 && meg_jsonl_read(&j, line, (int64_t)n, &e) == 0) {
        for (int k = 0; k < j.nkeys; k++)
            for (int64_t i = 0; i < j.value[k].n; i++)
                if (meg_utf8_find_invalid(j.value[k].strings[i].s, j.value[k].strings[i].n) >= 0)
                    abort();
    }
    meg_jsonl_free(&j);
    free(line);
    return 0;
}
