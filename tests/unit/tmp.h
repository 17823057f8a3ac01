/* tmp.h - temporary files and directories of tests, in TMPDIR or /tmp. */
#ifndef TESTS_UNIT_TMP_H
#define TESTS_UNIT_TMP_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { TMP_NAME = 256, TMP_PATH = TMP_NAME + 128 }; /* size of a temporary path, and of a path in it */

static inline char *tmp_name(char name[TMP_NAME], const char *what)
{
    const char *tmp = getenv("TMPDIR");
    const int n = snprintf(name, TMP_NAME, "%s/meg-%s.XXXXXX", tmp && *tmp ? tmp : "/tmp", what);

    if (n < 0 || n >= TMP_NAME) {
        fprintf(stderr, "TMPDIR has a name of more than %d bytes\n", TMP_NAME);
        exit(1);
    }
    return name;
}

/* Create a directory; return its name, or NULL. */
static inline char *tmp_dir(char name[TMP_NAME], const char *what)
{
    return mkdtemp(tmp_name(name, what));
}

/* Create an empty file; return its descriptor, or -1. */
static inline int tmp_file(char name[TMP_NAME], const char *what)
{
    return mkstemp(tmp_name(name, what));
}

#endif
