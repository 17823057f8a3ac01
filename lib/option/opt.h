/*
 * opt.h - one table of options, five uses: the command line, --help, --config and --dump-config,
 * --list-options, --completion.  A table lies beside the config struct it fills; a command is a
 * list of groups.  meg-conf(5) describes the config file.
 *
 *     const struct meg_opt meg_tok_opts[] = {
 *         { "vocab-file", 0, MEG_STR(struct meg_tok_conf, vocab), "FILE", NULL, "vocabulary" },
 *         { "append-eod", 0, MEG_BOOL(struct meg_tok_conf, eod), NULL, "no", "end with an id" },
 *         MEG_ALIAS("vocab", "vocab-file"),
 *         { 0 }
 *     };
 *
 * Names take - and _ for each other and are never abbreviated.  No name may stand twice in the
 * groups of a command.
 */
#ifndef MEG_OPTION_OPT_H
#define MEG_OPTION_OPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/decls.h"
#include "base/err.h"
#include "base/mem.h"

MEG_BEGIN_DECLS

/* The value of a field whose row has no default and whose option was not given: MEG_UNSET, NaN, NULL, MEG_ENUM_UNSET,
 * false or an empty list. */
#define MEG_UNSET INT64_MIN
#define MEG_ENUM_UNSET (-1)

/* The values of a list option; v[n] is not there. */
struct meg_str_list {
    const char **v;
    int64_t n;
};

enum {
    MEG_OPT_END,
    MEG_OPT_STR,
    MEG_OPT_I64,
    MEG_OPT_F64,
    MEG_OPT_ENUM, /* the index of one of the choices in metavar */
    MEG_OPT_BOOL,
    MEG_OPT_STORE_FALSE, /* a flag that makes its field false */
    MEG_OPT_LIST,
    MEG_OPT_ALIAS,
    MEG_OPT_IGNORED
};

/*
 * arg     what stands for the value in the help.  "a|b|c": only these are accepted (of a list:
 *         each value).  Of a list also the count: "START STEP SAMPLES" wants three values,
 *         "KEY..." one or more.  NULL for a flag.
 * def     the default, spelled as in a config file; NULL leaves the field unset.
 * help    one phrase without a full stop; the help text wraps it.
 */
struct meg_opt {
    const char *name;
    char letter; /* -x, or 0 */
    int type;
    size_t offset;
    const char *metavar, *default_value, *help;
};

/* clang-format off */
/* Kind and place of a field f of struct S; a field of another type does not compile. */
#define MEG_STR(S, f)                                                                              \
    _Generic(&((S *)0)->f, const char **: MEG_OPT_STR, char **: MEG_OPT_STR), offsetof(S, f)
#define MEG_I64(S, f) _Generic(&((S *)0)->f, int64_t *: MEG_OPT_I64), offsetof(S, f)
#define MEG_F64(S, f) _Generic(&((S *)0)->f, double *: MEG_OPT_F64), offsetof(S, f)
/*
 * An int, or an enum whose enumerators are in the order of the choices in metavar: "single|cyclic" gives 0 or 1.  The enum
 * of a row without a default needs an enumerator that equals MEG_ENUM_UNSET, which also makes it signed.
 */
#define MEG_ENUM(S, f)                                                                             \
    _Generic(&((S *)0)->f, int *: MEG_OPT_ENUM, unsigned *: MEG_OPT_ENUM), offsetof(S, f)
#define MEG_BOOL(S, f) _Generic(&((S *)0)->f, bool *: MEG_OPT_BOOL), offsetof(S, f)
#define MEG_LIST(S, f) _Generic(&((S *)0)->f, struct meg_str_list *: MEG_OPT_LIST), offsetof(S, f)
/* A flag whose presence makes a bool field false; its default, "no", makes the field true. */
#define MEG_STORE_FALSE(S, f) _Generic(&((S *)0)->f, bool *: MEG_OPT_STORE_FALSE), offsetof(S, f)

/* Whole rows: an older spelling of a row of the same table, and the opposite of a MEG_BOOL row. */
#define MEG_ALIAS(old, name) { old, 0, MEG_OPT_ALIAS, 0, NULL, name, NULL }
#define MEG_NEGATED(name, S, f) { name, 0, MEG_STORE_FALSE(S, f), NULL, NULL, NULL }
/* A name that is accepted, has no effect, and warns.  arg NULL: a flag; why: a phrase. */
#define MEG_IGNORED(name, arg, why) { name, 0, MEG_OPT_IGNORED, 0, arg, NULL, why }
/* clang-format on */

struct meg_optgroup {
    const char *title;
    const struct meg_opt *rows; /* up to { 0 } */
    void *conf;                 /* the struct its rows fill; NULL for a table of ignored names */
};

/*
 * meg_opt_parse - set every field to its default, then to what argv says, in the order given.
 *   groups  up to { 0 }
 *   usage   what follows the program's name in the first line of --help
 *   what    one sentence: what the program does
 * Every command has, beside its own: --help, --version, --config FILE, --dump-config,
 * --list-options, --completion bash, -q, -v.  Ends the process after those that print, and with
 * status 2 (66 for a missing config file) after saying what is wrong.
 * Strings and lists stay valid until the process ends and belong to no caller.
 * Every command begins here, so this also calls meg_signals_init.
 */
void meg_opt_parse(const struct meg_optgroup *groups, const char *usage, const char *what, int argc, char **argv);

/* The two halves of meg_opt_parse that end nothing, without the options every command has. */
void meg_opt_defaults(const struct meg_optgroup *groups);
int meg_opt_parse_args(const struct meg_optgroup *groups, int argc, char **argv, struct meg_err *e);

/* Set the field of one row from text as a config file spells it (of a scalar: without quotes). */
int meg_opt_set(const struct meg_opt *row, void *conf, const char *text, struct meg_err *e);

/*
 * meg_opt_choice - the choice, as a user types it, that conf holds for the MEG_ENUM row called name in rows.  NULL when it
 * is unset.  The text stays valid until the process ends.
 */
const char *meg_opt_choice(const struct meg_opt *rows, const char *name, const void *conf);

/* Whether the command line or a config file of it gave the option that fills this field. */
bool meg_opt_was_given(const void *field);

/*
 * meg_opt_read_config - set fields from a file of lines `name = value`; each counts as given.
 * MEG_EUSAGE with FILE:LINE for what is wrong in it, MEG_ENOENT or MEG_EIO when it cannot be read.
 */
int meg_opt_read_config(const struct meg_optgroup *groups, const char *path, struct meg_err *e);

/*
 * meg_opt_apply - set fields from the text of an earlier meg_opt_dump, except those that were
 * given.  Names the groups do not have are passed over.  from is the text's name in messages.
 */
int meg_opt_apply(const struct meg_optgroup *groups, const char *text, const char *from, struct meg_err *e);

/* Append to out every option that is set, as meg_opt_read_config reads it back identically. */
void meg_opt_dump(const struct meg_optgroup *groups, struct meg_str *out);

/*
 * meg_opt_list - what --list-options prints: a line a row, tab-separated: name, argument, default,
 * group, letter, and the name it is an alias or the opposite of.  Empty where there is none.
 */
void meg_opt_list(const struct meg_optgroup *groups, struct meg_str *out);

/*
 * Names that others have and this command does not, up to { 0 }, and what is said of one in place of "unknown option";
 * a name that ends in * stands for all that begin so, and the first row that fits is taken.  Kept, not copied.
 */
struct meg_opt_unsupported {
    const char *name, *hint;
};
void meg_opt_set_unsupported(const struct meg_opt_unsupported *rows);

/* One more line for --version; text is kept, not copied. */
void meg_opt_add_version_line(const char *text);

MEG_END_DECLS

#endif
