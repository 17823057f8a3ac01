/*
 * reset.c - replace meg_opt_parse by a function that then resets the option that the environment variable
 * MEG_RESET_OPTION names to its default, as if no code read the option.  Programs that are linked with this file show
 * which options tests/effects_*.t do not notice (make check-effects).
 */
#include <stdlib.h>
#include <string.h>
#include "option/opt.h"

void __real_meg_opt_parse(const struct meg_optgroup *groups, const char *usage, const char *summary, int argc,
                          char **argv);
void __wrap_meg_opt_parse(const struct meg_optgroup *groups, const char *usage, const char *summary, int argc,
                          char **argv);

void __wrap_meg_opt_parse(const struct meg_optgroup *groups, const char *usage, const char *summary, int argc,
                          char **argv)
{
    const char *name = getenv("MEG_RESET_OPTION");

    __real_meg_opt_parse(groups, usage, summary, argc, argv);
    for (; name && groups->title; groups++)
        for (const struct meg_opt *row = groups->rows; row->name; row++)
            if (strcmp(row->name, name) == 0) {
                const struct meg_opt rows[] = { *row, { 0 } };

                meg_opt_defaults((const struct meg_optgroup[]){ { groups->title, rows, groups->conf }, { 0 } });
            }
}
