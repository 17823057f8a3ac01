/*
 * reference.h - locate reference data: golden(NAME) in tests/data/golden of this repository, and shared(NAME), with
 * files of third parties, in the directory MEG_SHARED.
 */
#ifndef TESTS_REFERENCE_H
#define TESTS_REFERENCE_H
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Tests start in the root of the repository and may change the working directory later. */
static char reference_top[2048];
__attribute__((constructor)) static void reference_init(void)
{
    if (!getcwd(reference_top, sizeof reference_top))
        abort();
}

/* Return the path of NAME below tests/data/golden, valid until the next call. */
static inline const char *golden(const char *name)
{
    static char path[4096];

    snprintf(path, sizeof path, "%s/tests/data/golden/%s", reference_top, name);
    return path;
}

/* Return the path of NAME below $MEG_SHARED, valid until the next call; skip the running test without MEG_SHARED. */
static inline const char *shared(const char *name)
{
    static char path[4096];
    const char *top = getenv("MEG_SHARED");

    if (!top) {
        print_message("# MEG_SHARED is not set: no real tokenizers, corpora or weights\n");
        skip();
    }
    snprintf(path, sizeof path, "%s/%s", top, name);
    return path;
}

#endif
