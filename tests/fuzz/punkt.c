/*
 * Fuzz the four parameter files of Punkt and a text, separated by zero bytes.  Unless the files are rejected, the
 * sentences of a valid UTF-8 text, with and without keep_newlines, are in order, not empty and valid UTF-8.
 */
#include <string.h>

#include "fuzz.h"
#include "sentence/punkt.h"
#include "unicode/utf8.h"

static void split(const char *dir, bool keep_newlines, const char *text, int64_t n)
{
    struct meg_spans out = { 0 };
    struct meg_punkt *p;
    const char *at = text;
    struct meg_err e;

    if (meg_punkt_open(&p, dir, keep_newlines, &e) < 0)
        return;
    for (int64_t k = 0; k < n;)
        k += meg_punkt_split(p, text + k, n - k, &out);
    for (int64_t i = 0; i < out.n; i++) {
        if (out.v[i].n <= 0 || out.v[i].s < at || meg_utf8_find_invalid(out.v[i].s, out.v[i].n) >= 0)
            abort();
        at = out.v[i].s + out.v[i].n;
    }
    if (at > text + n)
        abort();
    free(out.v);
    meg_punkt_close(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const char *const names[] = { "abbrev_types.txt", "sent_starters.txt", "collocations.tab",
                                         "ortho_context.tab" };
    const uint8_t *end = bytes + n;
    char dir[512];
    char *text;

    for (int i = 0; i < 4; i++) {
        const uint8_t *zero = bytes < end ? memchr(bytes, 0, (size_t)(end - bytes)) : NULL;
        const char *path;

        if (!zero)
            return 0;
        path = fuzz_file(names[i], bytes, (size_t)(zero - bytes));
        snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(path, '/') - path), path);
        bytes = zero + 1;
    }
    n = (size_t)(end - bytes);
    if (meg_utf8_find_invalid((const char *)bytes, (int64_t)n) >= 0)
        return 0;
    text = malloc(n ? n : 1);
    if (n)
        memcpy(text, bytes, n);
    split(dir, false, text, (int64_t)n);
    split(dir, true, text, (int64_t)n);
    free(text);
    return 0;
}
