/* internal.h - functions that find, set and print options, shared by the source files of this module. */
#pragma once
#include "option/opt.h"

/* Options that every command has; a config file must not set them. */
struct opt_common {
    bool help, version, dump_config, list_options, quiet, verbose;
    const char *config, *completion;
};
extern struct opt_common opt_common;

/* Return '-' for '_', and any other character unchanged: both are equivalent in names. */
char opt_normalize_dash(char c);
/*
 * Return the table row of the option with this name [n], and set *group to the group of that row.  For an alias, return
 * the row of the option that the alias names.  Return NULL if there is no option with this name.
 */
const struct meg_opt *opt_find(const struct meg_optgroup *groups, const char *name, size_t n,
                               const struct meg_optgroup **group);
/*
 * Return MEG_EUSAGE for an option that is in no table.  If the option is unsupported (meg_opt_set_unsupported), the
 * message says why; otherwise, it suggests the option with the most similar name, if any name is similar.  Return 0 if
 * an unsupported option has the value with which it has no effect.  `value` is NULL if the option has no value or
 * several values.
 */
int opt_unknown(const struct meg_optgroup *groups, const char *name, size_t n, const char *value, struct meg_err *e);

/* Return why an option of the tables does not support this value (meg_opt_set_unsupported), or NULL. */
const char *opt_unsupported_value(const struct meg_opt *row, const char *value);

/*
 * Set the field of an option to the value in `words`.  An ignored option is only remembered for
 * opt_print_remarks.  Returns MEG_EUSAGE if the
 * number of words or a value is wrong.
 */
int opt_assign(const struct meg_opt *row, void *conf, const struct meg_str_list *words, struct meg_err *e);
/* Set an option, or the options that replace a MEG_RENAMED row, because the user gave it: meg_opt_was_given is true. */
int opt_give(const struct meg_optgroup *groups, const struct meg_optgroup *group, const struct meg_opt *row,
             const struct meg_str_list *words, struct meg_err *e);
/* Convert yes, true, no or false.  Returns MEG_EUSAGE for any other word. */
int opt_parse_bool(const struct meg_opt *row, const char *word, bool *is_yes, struct meg_err *e);
int opt_give_renamed(const struct meg_optgroup *groups, const struct meg_opt *row, const struct meg_str_list *words,
                     struct meg_err *e);
/* Return whether an option is that of meg_opt_set_presets. */
bool opt_is_preset(const struct meg_opt *row);
/* Set the options of a preset, as if the user had given them. */
int opt_give_preset(const struct meg_optgroup *groups, const char *name, struct meg_err *e);
/* Remember that the option with this name [n] has no effect. */
void opt_remark_ignored(const char *name, size_t n);
/* Print the remembered options with new names or without effect, on rank 0, in one warning. */
void opt_print_remarks(void);
/*
 * Return one row per name of meg_opt_set_ignored that no table in `groups` has.  The array ends with { 0 } and is
 * allocated until the process ends.
 */
const struct meg_opt *opt_ignored_rows(const struct meg_optgroup *groups);
/* Append the options that replace a MEG_RENAMED row, as a user would write them. */
void opt_add_replacement(struct meg_str *out, const struct meg_opt *row);
/* Return the next of the words at *p that spaces separate, and its length *n, and advance *p; NULL after the last. */
const char *opt_next_name(const char **p, size_t *n);
/* Return zeroed memory that stays allocated until the process ends or opt_free_values is called. */
void *opt_alloc(size_t n);
/* Return a copy of s [n] in memory of opt_alloc. */
const char *opt_intern(const char *s, size_t n);
/* Return whether an option accepts more than one value. */
bool opt_takes_many(const struct meg_opt *row);
void *opt_field(const struct meg_opt *row, void *conf);
bool opt_is_flag(const struct meg_opt *row);
/* Return the length of the list of choices "a|b|c" at the beginning of metavar; 0 if any value is allowed. */
size_t opt_choices(const char *metavar);
/*
 * Return the choice of a MEG_ENUM row with index `value`, and set *n to the length of the choice; no zero byte follows
 * the choice.  Return NULL for MEG_ENUM_UNSET.
 */
const char *opt_enum_choice(const struct meg_opt *row, int value, size_t *n);

/* Return the MEG_BOOL row that a MEG_NEGATED row negates; NULL for other rows. */
const struct meg_opt *opt_opposite(const struct meg_optgroup *group, const struct meg_opt *row);

/*
 * Append a copy of s [n] to a list.  The copy and the array of the list stay allocated until the process ends or
 * opt_free_values is called.
 */
void opt_add_word(struct meg_str_list *words, const char *s, size_t n);
/* Free all words and values of options.  Fuzzers call this function because they parse millions of options. */
void opt_free_values(void);
/*
 * Split text into words at whitespace, with the quotes and comments that meg-conf(5) describes.  Returns MEG_EUSAGE for
 * a quote that is not closed or an unknown escape.
 */
int opt_split(const char *text, size_t n, struct meg_str_list *words, struct meg_err *e);

void opt_help(const struct meg_optgroup *groups, const char *usage, const char *summary, struct meg_str *out);
void opt_version(struct meg_str *out);
void opt_completion(const struct meg_optgroup *groups, struct meg_str *out);
