/* normal_form.h - Unicode's normal forms (UAX 15), by utf8proc, of text that mostly has the form already. */
#ifndef MEG_UNICODE_NORMAL_FORM_H
#define MEG_UNICODE_NORMAL_FORM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "unicode/char_class_simd.h"

enum { MEG_NORMAL_FORM_TABLE_SIZE = 0x20000 }; /* of which a form knows whether they may change */

/* Once made it is only read, by any number of threads. */
struct meg_normal_form {
    bool is_composed, is_compatible;
    meg_class_masks_fn *find_classes;               /* the best that this machine has */
    unsigned char kind[MEG_NORMAL_FORM_TABLE_SIZE]; /* of each code point, see normal_form.c; of the first, a table of
                                                  unicode/char_class_simd.h */
};

/* NFC, NFD, NFKC or NFKD.  Takes some milliseconds. */
void meg_normal_form_init(struct meg_normal_form *f, bool is_composed, bool is_compatible);

/*
 * meg_normal_form_add - append text [n], well-formed UTF-8, in that form
 * MEG_EFORMAT when out would be longer than most bytes, and for more than MEG_NORMAL_FORM_MAX_RUN characters
 * in a row that have to be looked at together: marks, most of all.
 */
enum { MEG_NORMAL_FORM_MAX_RUN = 1 << 22 };
int meg_normal_form_add(const struct meg_normal_form *f, const char *text, int64_t n, int64_t most, struct meg_str *out,
                        struct meg_err *e);
/* MEG_EFORMAT where out with n bytes more would be longer than most, some MiB. */
int meg_normal_form_check_size(const struct meg_str *out, int64_t n, int64_t most, struct meg_err *e);

#endif
