/* fuzz.h - write the input of a fuzz target to a file, for readers that take a path. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/*
 * Write n bytes to the file `name` in $TMPDIR, or in /tmp if TMPDIR is not set.  Return its path, which is valid until
 * the next call.
 */
static inline const char *fuzz_file(const char *name, const uint8_t *bytes, size_t n)
{
    static char path[512];
    const char *dir = getenv("TMPDIR");
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir ? dir : "/tmp", name);
    f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0)
        abort();
    return path;
}

#endif
