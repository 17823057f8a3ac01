/* Fuzz the reader of config files: unless it rejects a file, a dump of the options reads back identically. */
#include <string.h>

#include "option/internal.h"
#include "fuzz.h"

struct conf {
    const char *name;
    int64_t n;
    double x;
    bool is_on;
    struct meg_str_list words;
};

static const struct meg_opt opts[] = { { "name", 0, MEG_STR(struct conf, name), "NAME", NULL, "" },
                                       { "n", 0, MEG_I64(struct conf, n), "N", "7", "" },
                                       { "x", 0, MEG_F64(struct conf, x), "X", NULL, "" },
                                       { "is-on", 0, MEG_BOOL(struct conf, is_on), NULL, "no", "" },
                                       { "words", 0, MEG_LIST(struct conf, words), "WORD...", NULL, "" },
                                       { 0 } };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct conf c;
    const struct meg_optgroup groups[] = { { "any", opts, &c }, { 0 } };
    struct meg_str first = { 0 }, second = { 0 };
    struct meg_err e;

    opt_free_values();
    meg_opt_defaults(groups);
    if (meg_opt_read_config(groups, fuzz_file("any.conf", bytes, n), &e) < 0)
        return 0;
    meg_opt_dump(groups, &first);
    meg_opt_defaults(groups);
    if (meg_opt_read_config(groups, fuzz_file("dump.conf", (uint8_t *)first.s, first.n), &e) < 0)
        abort();
    meg_opt_dump(groups, &second);
    if (first.n != second.n || memcmp(first.s, second.s, first.n))
        abort();
    meg_str_free(&first);
    meg_str_free(&second);
    return 0;
}
