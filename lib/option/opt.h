/*
 * opt.h - command-line options from tables.  One table serves the command line, --help, --config, --dump-config,
 * --list-options and --completion.  A table fills a config struct, and is declared in the module of that struct.  Each
 * command passes a list of tables to meg_opt_parse.  meg-conf(5) describes the config file.
 *
 *     const struct meg_opt meg_tok_opts[] = {
 *         { "vocab-file", 0, MEG_STR(struct meg_tok_conf, vocab), "FILE", NULL, "vocabulary" },
 *         { "append-eod", 0, MEG_BOOL(struct meg_tok_conf, eod), NULL, "no", "append the end-of-document token" },
 *         MEG_ALIAS("vocab", "vocab-file"),
 *         { 0 }
 *     };
 *
 * In names, - and _ are equivalent.  Names cannot be abbreviated.  A name must be unique among the tables of a command.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "base/mem.h"

/*
 * Values of unset fields, for options that have no default and were not given: MEG_UNSET, NaN, NULL, MEG_ENUM_UNSET,
 * false or an empty list.
 */
#define MEG_UNSET INT64_MIN
#define MEG_ENUM_UNSET (-1)

/* The values of a list option, v[0..n-1]; there is no terminating NULL. */
struct meg_str_list {
    const char **v;
    int64_t n;
};

enum {
    MEG_OPT_END,
    MEG_OPT_STR,
    MEG_OPT_I64,
    MEG_OPT_F64,
    MEG_OPT_ENUM, /* index of one of the choices in metavar */
    MEG_OPT_BOOL,
    MEG_OPT_STORE_FALSE, /* a flag that makes its field false */
    MEG_OPT_LIST,
    MEG_OPT_ALIAS,
    MEG_OPT_RENAMED,
    MEG_OPT_IGNORED
};

/*
 * A row of an option table.
 * metavar        name of the value in the help; NULL for a flag.  "a|b|c" lists the permitted values of the option
 *                or, for a list, of each element.  For a list, metavar determines the number of values: "START STEP
 *                SAMPLES" requires three values, "KEY..." one or more.
 * default_value  default, as written in a config file; NULL leaves the field unset.
 * help           one phrase without a full stop; --help wraps it.
 */
struct meg_opt {
    const char *name;
    char letter; /* letter of the short option, or 0 */
    int type;
    size_t offset;
    const char *metavar, *default_value, *help;
};

/* clang-format off */
/* Expand to the type and offset of field f of struct S; a field of another type does not compile. */
#define MEG_STR(S, f)                                                                              \
    _Generic(&((S *)0)->f, const char **: MEG_OPT_STR, char **: MEG_OPT_STR), offsetof(S, f)
#define MEG_I64(S, f) _Generic(&((S *)0)->f, int64_t *: MEG_OPT_I64), offsetof(S, f)
#define MEG_F64(S, f) _Generic(&((S *)0)->f, double *: MEG_OPT_F64), offsetof(S, f)
/*
 * The field is an int, or an enum with enumerators in the order of the choices in metavar: "single|cyclic" sets the
 * field to 0 or 1.  If the row has no default, the enum must have an enumerator that equals MEG_ENUM_UNSET.  This
 * negative value makes the type of the enum signed.
 */
#define MEG_ENUM(S, f)                                                                             \
    _Generic(&((S *)0)->f, int *: MEG_OPT_ENUM, unsigned *: MEG_OPT_ENUM), offsetof(S, f)
#define MEG_BOOL(S, f) _Generic(&((S *)0)->f, bool *: MEG_OPT_BOOL), offsetof(S, f)
#define MEG_LIST(S, f) _Generic(&((S *)0)->f, struct meg_str_list *: MEG_OPT_LIST), offsetof(S, f)
/*
 * A flag that sets a bool field to false.  The default of the row must be "no" (the flag is not given), so that the
 * field is initially true.  Only MEG_NEGATED rows have no default.
 */
#define MEG_STORE_FALSE(S, f) _Generic(&((S *)0)->f, bool *: MEG_OPT_STORE_FALSE), offsetof(S, f)

/*
 * Complete rows of a table.  MEG_ALIAS makes `old` another name of the option `name` in the same table.  MEG_NEGATED is
 * a flag that sets the field f of a MEG_BOOL row in the same table to false.
 */
#define MEG_ALIAS(old, name) { old, 0, MEG_OPT_ALIAS, 0, NULL, name, NULL }
#define MEG_NEGATED(name, S, f) { name, 0, MEG_STORE_FALSE(S, f), NULL, NULL, NULL }
/*
 * An option of an earlier release, in a table of its own, whose conf is NULL.  metavar is NULL for a flag.  `now` is a
 * list of options that may be in any table of the command, separated by spaces: NAME gets the value of the old option,
 * and NAME=VALUE gets VALUE unless the user has set this option.
 */
#define MEG_RENAMED(old, metavar, now) { old, 0, MEG_OPT_RENAMED, 0, metavar, now, NULL }
/* clang-format on */

/* Return whether a row is MEG_NEGATED. */
static inline bool meg_opt_is_negated(const struct meg_opt *row)
{
    return row->type == MEG_OPT_STORE_FALSE && !row->default_value;
}

struct meg_optgroup {
    const char *title;
    const struct meg_opt *rows; /* array that ends with { 0 } */
    void *conf;                 /* the struct that the rows fill; NULL for a table of MEG_RENAMED rows */
};

/*
 * meg_opt_parse - set each field to its default, then to the values in argv, in order
 *   groups   array that ends with { 0 }
 *   usage    the arguments that --help prints after the program's name
 *   summary  one sentence that describes the program
 * Adds the options of all commands: --help, --version, --config FILE, --dump-config, --list-options, --completion bash,
 * -q, -v.  Options that print text and exit, such as --help, exit with status 0.
 * An error ends the process with a message and a status:
 *   2   the command line or a config file is wrong
 *   66  a config file does not exist
 *   74  a config file cannot be read, or standard output cannot be written
 * Strings and lists stay valid until the process ends; callers do not free them.
 * Sets the log level to the one that -q or -v selects, and ignores SIGXFSZ.  Rank 0 prints one warning that contains
 * all given options that have a new name or no effect.
 */
void meg_opt_parse(const struct meg_optgroup *groups, const char *usage, const char *summary, int argc, char **argv);

/*
 * meg_opt_defaults - set each field to its default
 * meg_opt_parse_args - set fields from argv
 * Unlike meg_opt_parse, these functions return instead of exiting, and do not add the common options.
 * meg_opt_parse_args returns 0, or MEG_EUSAGE if argv is wrong.
 */
void meg_opt_defaults(const struct meg_optgroup *groups);
int meg_opt_parse_args(const struct meg_optgroup *groups, int argc, char **argv, struct meg_err *e);

/*
 * Set the field of one option.  For a list, `text` is split into values as in a config file; for other types, `text` is
 * the value, without quotes.  Returns 0, or MEG_EUSAGE if the value is wrong.
 */
int meg_opt_set(const struct meg_opt *row, void *conf, const char *text, struct meg_err *e);

/*
 * meg_opt_choice - return the value of the MEG_ENUM option `name` in conf as text, for example "cyclic"
 * Returns NULL if the field of conf is unset.  The text stays valid until the process ends.
 */
const char *meg_opt_choice(const struct meg_opt *rows, const char *name, const void *conf);

/* Set the field of one option to its default. */
void meg_opt_reset(const struct meg_opt *row, void *conf);

/* Return whether the command line or a config file set the option that fills this field. */
bool meg_opt_was_given(const void *field);

/*
 * meg_opt_read_config - set fields from a file of lines `name = value`
 * For the fields that the file sets, meg_opt_was_given returns true.
 * Returns MEG_EUSAGE, with file and line, for an error in the file.  Returns MEG_ENOENT if the file does not exist, and
 * MEG_EIO if it cannot be read.
 */
int meg_opt_read_config(const struct meg_optgroup *groups, const char *path, struct meg_err *e);

/*
 * meg_opt_set_presets - make the value of a MEG_STR option the name of a set of options, as in --model-preset NAME
 * When the option is given, options_of appends lines `name = value` to `text`, and these options are set as --config
 * sets those of a file; options after it override them.  The field of the option remains NULL.
 */
void meg_opt_set_presets(const char *option,
                         int (*options_of)(struct meg_str *text, const char *name, struct meg_err *e));

/*
 * meg_opt_apply - set fields from `text`, the output of an earlier meg_opt_dump
 *   source  name of `text` in messages
 * Fields for which meg_opt_was_given returns true keep their values.  Unknown names are ignored.  Returns 0, or
 * MEG_EUSAGE if a line or value is wrong.
 */
int meg_opt_apply(const struct meg_optgroup *groups, const char *text, const char *source, struct meg_err *e);

/*
 * Return whether `names`, which may be NULL, has an option with this value.  Spaces separate the elements: NAME, NAME*
 * for all names with this prefix, or NAME=VALUE.
 */
bool meg_opt_is_listed(const char *names, const char *option, const char *value);
/* Return whether an option that is not a list has the same value in the structs a and b; unset values are equal. */
bool meg_opt_is_equal(const struct meg_opt *row, const void *a, const void *b);
/* Return the value of an option in the notation of a config file, or "unset"; the caller frees it. */
char *meg_opt_value(const struct meg_opt *row, const void *conf);
/* Return whether such a value is neither the default of the option nor 0. */
bool meg_opt_is_set(const struct meg_opt *row, const char *value);

/*
 * Append to `out` the options that are set, as lines `name = value`.  meg_opt_read_config reads the same values from
 * these lines.
 */
void meg_opt_dump(const struct meg_optgroup *groups, struct meg_str *out);

/*
 * meg_opt_list - append the output of --list-options, one line per row
 * The tab-separated fields are name, metavar, default, group, letter and target.  A missing field is empty.  For an
 * alias, an old name or a negation, target is the name of the other option, or all options that the old name sets.
 */
void meg_opt_list(const struct meg_optgroup *groups, struct meg_str *out);

/*
 * Options of other programs that have the same reason not to be in the tables of a command.  `names` are separated by
 * spaces.  Arrays of this type end with { 0 } and are borrowed until the process ends.
 */
struct meg_opt_names {
    const char *why, *names;
};
/*
 * Set the options that this command does not support.  `why`, a phrase, replaces "unknown option".  A name that ends in
 * * matches all names with that prefix.  NAME=VALUE means that the option has no effect if it has this value.
 * NAME:VALUE is a value that an option of the tables does not support.  The first name that matches is used.
 */
void meg_opt_set_unsupported(const struct meg_opt_names *rows);
/*
 * Set the options that meg_opt_parse accepts although they have no effect, for the reason `why`, a phrase.  A name is
 * NAME for a flag, or NAME=METAVAR.  A name in a table of the command is skipped.  METAVAR has the format of that of a
 * list if it contains "...".
 */
void meg_opt_set_ignored(const struct meg_opt_names *rows);

/* Add a line to the output of --version; text is borrowed until the process ends. */
void meg_opt_add_version_line(const char *text);
