/* For harnesses whose reader takes a path: the input as a file. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* Write n bytes to the file of that name in $TMPDIR; the path stays valid until the next call. */
static inline const char *fuzz_file(const char *name, const uint8_t *bytes, size_t n)
{
    static char path[512];
    const char *folder = getenv("TMPDIR");
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", folder ? folder : "/tmp", name);
    f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0)
        abort();
    return path;
}

#endif
