/*
 * Fuzz meg_foreign_check: it accepts any bytes, a message is not longer than 400 bytes, and bytes after the prefix do
 * not change the result.
 */
#include <string.h>

#include "foreign/foreign.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    const size_t prefix = n < MEG_FOREIGN_PREFIX ? n : MEG_FOREIGN_PREFIX;
    uint8_t *head = malloc(prefix ? prefix : 1);

    if (prefix)
        memcpy(head, bytes, prefix);
    for (int i = 0; i < MEG_NUM_EXPECTED; i++) {
        struct meg_err e;
        const int r = meg_foreign_check("in", bytes, n, (enum meg_expected)i, &e);

        if ((r != 0 && r != MEG_EFORMAT) || (r < 0 && strlen(e.msg) > 400))
            abort();
        if (meg_foreign_check("in", head, prefix, (enum meg_expected)i, NULL) != r)
            abort();
    }
    free(head);
    return 0;
}
