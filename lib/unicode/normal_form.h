/* normal_form.h - Unicode normalization forms (UAX 15) by utf8proc, fast for text that is mostly normalized already. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "base/mem.h"
#include "unicode/char_class_simd.h"

enum { MEG_NORMAL_FORM_TABLE_SIZE = 0x20000 }; /* code points below this number have a table entry */

/* A normalization form and its table.  It is immutable after initialization, so any number of threads can use it. */
struct meg_normal_form {
    bool is_composed, is_compatible;
    meg_class_masks_fn *find_classes; /* fastest implementation that this CPU supports */
    /* stability of each code point (see normal_form.c), as a table for unicode/char_class_simd.h */
    unsigned char stability[MEG_NORMAL_FORM_TABLE_SIZE];
};

/* Initialize the table of NFC, NFD, NFKC or NFKD, which takes a few milliseconds. */
void meg_normal_form_init(struct meg_normal_form *f, bool is_composed, bool is_compatible);

/*
 * meg_normal_form_add - append the normal form of text [n], which is valid UTF-8
 * Returns MEG_EFORMAT if out exceeds max_bytes, or if more than MEG_NORMAL_FORM_MAX_RUN characters, for example
 * combining marks, must be normalized together.  After a failure, out may contain a part of the result.
 */
enum { MEG_NORMAL_FORM_MAX_RUN = 1 << 22 };
int meg_normal_form_add(const struct meg_normal_form *f, const char *text, int64_t n, int64_t max_bytes,
                        struct meg_str *out, struct meg_err *e);
/* Return MEG_EFORMAT if `out` with n more bytes exceeds max_bytes, a multiple of 1 MiB; else 0. */
int meg_normal_form_check_size(const struct meg_str *out, int64_t n, int64_t max_bytes, struct meg_err *e);
