/* internal.h - what the files behind opt.h share. */
#ifndef MEG_OPTION_INTERNAL_H
#define MEG_OPTION_INTERNAL_H

#include "option/opt.h"

/* The options every command has; they stand in no config file. */
struct opt_common {
    bool help, version, dump_config, list_options, quiet, verbose;
    const char *config, *completion;
};
extern struct opt_common opt_common;

/* The row called name (n bytes), aliases followed, and its group; NULL: there is none. */
const struct meg_opt *opt_find(const struct meg_optgroup *groups, const char *name, size_t n,
                               const struct meg_optgroup **group);
/* MEG_EUSAGE, naming the nearest option there is. */
int opt_unknown(const struct meg_optgroup *groups, const char *name, size_t n, struct meg_err *e);

/* Set a row's field from words; set_given: as meg_opt_was_given will say from now on. */
int opt_assign(const struct meg_opt *row, void *conf, const struct meg_str_list *words, struct meg_err *e);
void opt_set_given(const struct meg_opt *row, void *conf);
void *opt_field(const struct meg_opt *row, void *conf);
bool opt_is_flag(const struct meg_opt *row);
/* How much of arg is "a|b|c"; 0 where any value will do. */
size_t opt_choices(const char *metavar);
/* The choice at *p, of n bytes, and move *p to the next one; NULL at end. */
const char *opt_next_choice(const char **p, const char *end, size_t *n);
/* The choice with this index among those of a MEG_ENUM row; NULL for MEG_ENUM_UNSET. */
const char *opt_enum_choice(const struct meg_opt *row, int value, size_t *n);

/* The row whose field a MEG_NEGATED row shares; NULL for other rows. */
const struct meg_opt *opt_opposite(const struct meg_optgroup *group, const struct meg_opt *row);

/* Add a word to a list; both stay until the process ends, or until opt_free_kept. */
void opt_add_word(struct meg_str_list *words, const char *s, size_t n);
/* Free all words and values of options, for a fuzzer, which parses millions of them. */
void opt_free_values(void);
/* Cut text into words at blanks; quotes and # as in meg-conf(5). */
int opt_split(const char *text, size_t n, struct meg_str_list *words, struct meg_err *e);

void opt_help(const struct meg_optgroup *groups, const char *usage, const char *what, struct meg_str *out);
void opt_version(struct meg_str *out);
void opt_completion(const struct meg_optgroup *groups, struct meg_str *out);

#endif
