/*
 * opt.c - parse words into the fields of config structs.  A row contains the type and the offset of a field.
 * Therefore, one function, opt_assign, sets values from the table's defaults, from argv and from config files.
 */
#include "option/opt.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/num.h"
#include "base/signals.h"
#include "option/internal.h"

struct opt_common opt_common;

static const struct meg_opt common_opts[] = {
    { "help", 'h', MEG_BOOL(struct opt_common, help), NULL, NULL, "print this help and exit" },
    { "version", 0, MEG_BOOL(struct opt_common, version), NULL, NULL, "print the version and exit" },
    { "config", 0, MEG_STR(struct opt_common, config), "FILE", NULL,
      "read options from FILE, one `name = value` per line; options after --config override them" },
    { "dump-config", 0, MEG_BOOL(struct opt_common, dump_config), NULL, NULL,
      "print the options that have a value, in the format of a --config file, and exit" },
    { "list-options", 0, MEG_BOOL(struct opt_common, list_options), NULL, NULL,
      "print one line per option for use by other programs, with tab-separated fields, and exit" },
    { "completion", 0, MEG_STR(struct opt_common, completion), "bash", NULL,
      "print a bash script that completes the options of this command, and exit" },
    { "quiet", 'q', MEG_BOOL(struct opt_common, quiet), NULL, NULL,
      "print only warnings and errors on standard error" },
    { "verbose", 'v', MEG_BOOL(struct opt_common, verbose), NULL, NULL, "print more detail on standard error" },
    { 0 }
};

/* ---- memory that stays allocated until the process ends ---- */

struct allocation {
    struct allocation *next;
};
static struct allocation *allocations; /* list that keeps all allocations reachable for leak checkers */

void *opt_alloc(size_t n)
{
    struct allocation *a = (struct allocation *)meg_new(sizeof *a + n);

    a->next = allocations;
    allocations = a;
    return a + 1;
}

void opt_free_values(void)
{
    while (allocations) {
        struct allocation *next = allocations->next;

        free(allocations);
        allocations = next;
    }
}

const char *opt_intern(const char *s, size_t n)
{
    char *copy = (char *)opt_alloc(n + 1);

    memcpy(copy, s, n);
    return copy;
}

void opt_add_word(struct meg_str_list *words, const char *s, size_t n)
{
    const char **v = words->v;

    if ((words->n & (words->n - 1)) == 0) { /* the array is full at 0, 1, 2, 4, ... words */
        v = (const char **)opt_alloc((size_t)(words->n ? 2 * words->n : 1) * sizeof *v);
        if (words->n)
            memcpy(v, words->v, (size_t)words->n * sizeof *v);
        words->v = v;
    }
    v[words->n++] = opt_intern(s, n);
}

static const void **given_fields;
static size_t ngiven_fields;

void opt_set_given(const struct meg_opt *row, void *conf)
{
    const void *field = opt_field(row, conf);

    if (meg_opt_was_given(field))
        return;
    given_fields = (const void **)meg_realloc_array(given_fields, ngiven_fields + 1, sizeof *given_fields);
    given_fields[ngiven_fields++] = field;
}

bool meg_opt_was_given(const void *field)
{
    size_t i;

    for (i = 0; i < ngiven_fields; i++)
        if (given_fields[i] == field)
            return true;
    return false;
}

/* ---- finding a row ---- */

static bool is_name(const char *name, size_t n, const char *row)
{
    size_t i;

    for (i = 0; i < n && row[i]; i++)
        if (opt_normalize_dash(name[i]) != opt_normalize_dash(row[i]))
            return false;
    return i == n && !row[i];
}

static const struct meg_opt *find_in(const struct meg_opt *rows, const char *name, size_t n)
{
    const struct meg_opt *row;

    for (row = rows; row->name; row++)
        if (is_name(name, n, row->name))
            return row->type == MEG_OPT_ALIAS ? find_in(rows, row->default_value, strlen(row->default_value)) : row;
    return NULL;
}

const struct meg_opt *opt_find(const struct meg_optgroup *groups, const char *name, size_t n,
                               const struct meg_optgroup **group)
{
    const struct meg_opt *row;

    for (; groups->title; groups++) {
        row = find_in(groups->rows, name, n);
        if (row) {
            *group = groups;
            return row;
        }
    }
    return NULL;
}

static const struct meg_opt *find_letter(const struct meg_optgroup *groups, char letter,
                                         const struct meg_optgroup **group)
{
    const struct meg_opt *row;

    for (; groups->title; groups++)
        for (row = groups->rows; row->name; row++)
            if (row->letter == letter) {
                *group = groups;
                return row;
            }
    return NULL;
}

/* ---- setting a field ---- */

void *opt_field(const struct meg_opt *row, void *conf)
{
    return (char *)conf + row->offset;
}

bool opt_is_flag(const struct meg_opt *row)
{
    return row->type == MEG_OPT_BOOL || row->type == MEG_OPT_STORE_FALSE ||
           ((row->type == MEG_OPT_IGNORED || row->type == MEG_OPT_RENAMED) && !row->metavar);
}

bool opt_takes_many(const struct meg_opt *row)
{
    return row->type == MEG_OPT_LIST || ((row->type == MEG_OPT_IGNORED || row->type == MEG_OPT_RENAMED) &&
                                         row->metavar && strstr(row->metavar, "..."));
}

const struct meg_opt *opt_opposite(const struct meg_optgroup *group, const struct meg_opt *row)
{
    const struct meg_opt *other;

    if (row->type != MEG_OPT_STORE_FALSE)
        return NULL;
    for (other = group->rows; other->name; other++)
        if (other->type == MEG_OPT_BOOL && other->offset == row->offset)
            return other;
    return NULL;
}

size_t opt_choices(const char *arg)
{
    const char *dots = strstr(arg, "...");

    return !strchr(arg, '|') ? 0 : dots ? (size_t)(dots - arg) : strlen(arg);
}

/* Return the choice at *p and its length *n, and move *p to the next choice; return NULL at `end`. */
static const char *next_choice(const char **p, const char *end, size_t *n)
{
    const char *choice = *p;

    if (choice >= end)
        return NULL;
    *n = strcspn(choice, "|");
    if (*n > (size_t)(end - choice))
        *n = (size_t)(end - choice);
    *p = choice + *n + 1;
    return choice;
}

/* Return the index of word among the row's choices, 0 if any value is allowed, or MEG_EUSAGE. */
static int find_choice(const struct meg_opt *row, const char *word, struct meg_err *e)
{
    const char *p = row->metavar, *end = p ? p + opt_choices(p) : p, *choice, *why;
    size_t n;

    if (p == end)
        return 0;
    for (int i = 0; (choice = next_choice(&p, end, &n)); i++)
        if (n == strlen(word) && memcmp(choice, word, n) == 0)
            return i;
    why = opt_unsupported_value(row, word);
    if (why)
        return meg_fail(e, MEG_EUSAGE, "--%s %s: %s", row->name, word, why);
    return meg_fail(e, MEG_EUSAGE, "--%s: '%s' is not one of %s", row->name, word, row->metavar);
}

int opt_parse_bool(const struct meg_opt *row, const char *word, bool *is_yes, struct meg_err *e)
{
    *is_yes = strcmp(word, "yes") == 0 || strcmp(word, "true") == 0;
    if (!*is_yes && strcmp(word, "no") != 0 && strcmp(word, "false") != 0)
        return meg_fail(e, MEG_EUSAGE, "--%s: '%s' is not one of yes, no, true and false", row->name, word);
    return 0;
}

static int set_bool(const struct meg_opt *row, bool *field, const char *word, struct meg_err *e)
{
    bool is_yes;
    int r = opt_parse_bool(row, word, &is_yes, e);

    if (r == 0)
        *field = is_yes != (row->type == MEG_OPT_STORE_FALSE);
    return r;
}

static int set_list(const struct meg_opt *row, struct meg_str_list *field, const struct meg_str_list *words,
                    struct meg_err *e)
{
    struct meg_str_list copy = { 0 };
    int64_t nvalues = 1, i;
    const char *p;
    int r;

    for (p = row->metavar; *p; p++)
        nvalues += *p == ' ';
    if (!strstr(row->metavar, "...") && words->n != nvalues)
        return meg_fail(e, MEG_EUSAGE, "--%s requires %" PRId64 " values (%s), found %" PRId64, row->name, nvalues,
                        row->metavar, words->n);
    if (words->n == 0)
        return meg_fail(e, MEG_EUSAGE, "--%s requires a value: %s", row->name, row->metavar);
    for (i = 0; i < words->n; i++) {
        if ((r = find_choice(row, words->v[i], e)) < 0)
            return r;
        opt_add_word(&copy, words->v[i], strlen(words->v[i]));
    }
    *field = copy;
    return 0;
}

int opt_give(const struct meg_optgroup *groups, const struct meg_optgroup *group, const struct meg_opt *row,
             const struct meg_str_list *words, struct meg_err *e)
{
    int r;

    if (row->type == MEG_OPT_RENAMED)
        return opt_give_renamed(groups, row, words, e);
    if ((r = opt_assign(row, group->conf, words, e)) < 0)
        return r;
    opt_set_given(row, group->conf);
    return 0;
}

int opt_assign(const struct meg_opt *row, void *conf, const struct meg_str_list *words, struct meg_err *e)
{
    const char *word = words->n ? words->v[0] : NULL;
    void *field = opt_field(row, conf);
    int64_t number;
    int r;

    if (row->type == MEG_OPT_LIST)
        return set_list(row, (struct meg_str_list *)field, words, e);
    if (row->type == MEG_OPT_IGNORED) {
        for (int64_t i = 0; row->metavar && i < words->n; i++)
            if ((r = find_choice(row, words->v[i], e)) < 0)
                return r;
        opt_remark_ignored(row->name, strlen(row->name));
        return 0;
    }
    if (words->n != 1)
        return meg_fail(e, MEG_EUSAGE, "--%s requires one value, found %" PRId64, row->name, words->n);
    if ((r = find_choice(row, word, e)) < 0)
        return r;
    switch (row->type) {
    case MEG_OPT_STR: *(const char **)field = opt_intern(word, strlen(word)); return 0;
    case MEG_OPT_ENUM: *(int *)field = r; return 0;
    case MEG_OPT_BOOL:
    case MEG_OPT_STORE_FALSE: return set_bool(row, (bool *)field, word, e);
    case MEG_OPT_I64:
        if (meg_parse_i64(word, &number) && number != MEG_UNSET) {
            *(int64_t *)field = number;
            return 0;
        }
        break;
    case MEG_OPT_F64:
        if (meg_parse_f64(word, (double *)field))
            return 0;
        break;
    default: MEG_ASSERT(!"a type of option that can be set");
    }
    return meg_fail(e, MEG_EUSAGE, "--%s: '%s' is not %s", row->name, word,
                    row->type == MEG_OPT_I64 ? "a 64-bit integer" : "a finite number");
}

const char *opt_enum_choice(const struct meg_opt *row, int value, size_t *n)
{
    const char *p = row->metavar, *choice = NULL;

    for (int i = 0; i <= value; i++)
        choice = next_choice(&p, row->metavar + strlen(row->metavar), n);
    MEG_ASSERT(choice || value == MEG_ENUM_UNSET);
    return choice;
}

const char *meg_opt_choice(const struct meg_opt *rows, const char *name, const void *conf)
{
    const struct meg_opt *row = find_in(rows, name, strlen(name));
    const char *choice;
    size_t n;

    MEG_ASSERT(row && row->type == MEG_OPT_ENUM);
    choice = opt_enum_choice(row, *(const int *)((const char *)conf + row->offset), &n);
    return choice ? opt_intern(choice, n) : NULL;
}

int meg_opt_set(const struct meg_opt *row, void *conf, const char *text, struct meg_err *e)
{
    struct meg_str_list words = { 0 };
    struct meg_err why;

    if (row->type != MEG_OPT_LIST)
        opt_add_word(&words, text, strlen(text));
    else if (opt_split(text, strlen(text), &words, &why) < 0)
        return meg_fail(e, why.code, "--%s: %s", row->name, why.msg);
    return opt_assign(row, conf, &words, e);
}

static void unset(const struct meg_opt *row, void *conf)
{
    void *field = opt_field(row, conf);

    switch (row->type) {
    case MEG_OPT_STR: *(const char **)field = NULL; break;
    case MEG_OPT_ENUM: *(int *)field = MEG_ENUM_UNSET; break;
    case MEG_OPT_I64: *(int64_t *)field = MEG_UNSET; break;
    case MEG_OPT_F64: *(double *)field = NAN; break;
    case MEG_OPT_BOOL: *(bool *)field = false; break;
    case MEG_OPT_LIST: memset(field, 0, sizeof(struct meg_str_list)); break;
    default: break;
    }
}

void meg_opt_defaults(const struct meg_optgroup *groups)
{
    const struct meg_opt *row;

    for (; groups->title; groups++) {
        for (row = groups->rows; row->name; row++) {
            unset(row, groups->conf);
            if (row->default_value && row->type != MEG_OPT_ALIAS && row->type != MEG_OPT_RENAMED)
                MEG_ASSERT(meg_opt_set(row, groups->conf, row->default_value, NULL) == 0);
        }
    }
}

/* ---- the command line ---- */

/* Return whether a word can be a value: it does not begin with a dash, is a single dash, or is a number. */
static bool is_value(const char *word)
{
    double v;

    return word && (word[0] != '-' || !word[1] || meg_parse_f64(word, &v));
}

/*
 * Set an option.  `joined` is the value in --name=VALUE or -xVALUE.  If `joined` is NULL, the value of an option that
 * requires one is in the words `rest`.  For --config, also read the file.  Returns the number of words of `rest` that
 * are used, or an error code.
 */
static int parse_option(const struct meg_optgroup *groups, const struct meg_optgroup *group, const struct meg_opt *row,
                        const char *joined, char **rest, struct meg_err *e)
{
    struct meg_str_list words = { 0 };
    int n = 0, r;

    if (joined)
        opt_add_word(&words, joined, strlen(joined));
    else if (opt_is_flag(row))
        opt_add_word(&words, "yes", 3);
    else
        for (; is_value(rest[n]) && (n == 0 || opt_takes_many(row)); n++)
            opt_add_word(&words, rest[n], strlen(rest[n]));
    if (words.n == 0)
        return meg_fail(e, MEG_EUSAGE, "--%s requires a value: %s (write --%s=-... if the value begins with a dash)",
                        row->name, row->metavar, row->name);
    if ((r = opt_give(groups, group, row, &words, e)) < 0)
        return r;
    if (opt_field(row, group->conf) == &opt_common.config &&
        (r = meg_opt_read_config(groups, opt_common.config, e)) < 0)
        return r;
    return n;
}

/* Parse short options: -v, -qv, -s 4 or -s4.  Returns how many words of `rest` are used as values, or an error code. */
static int parse_letters(const struct meg_optgroup *groups, const char *letters, char **rest, struct meg_err *e)
{
    const struct meg_optgroup *group;
    const struct meg_opt *row;
    int r;

    for (; *letters; letters++) {
        row = find_letter(groups, *letters, &group);
        if (!row)
            return meg_fail(e, MEG_EUSAGE, "unknown option -%c", *letters);
        if (!opt_is_flag(row))
            return parse_option(groups, group, row, letters[1] ? letters + 1 : NULL, rest, e);
        if ((r = parse_option(groups, group, row, NULL, rest, e)) < 0)
            return r;
    }
    return 0;
}

/*
 * Append the message for an unknown option to `unknown`.  `joined` is as in parse_option.  Returns how many words of
 * `rest` look like values of that option.
 */
static int collect_unknown(const struct meg_optgroup *groups, const char *name, size_t n, const char *joined,
                           char **rest, struct meg_str *unknown)
{
    struct meg_err why;
    int values = 0;

    while (!joined && is_value(rest[values]))
        values++;
    if (opt_unknown(groups, name, n, joined ? joined : values == 1 ? rest[0] : NULL, &why) == 0)
        return values;
    if (unknown->n)
        meg_str_printf(unknown, "\n%s: ", meg_progname());
    meg_str_printf(unknown, "%s", why.msg);
    return values;
}

int meg_opt_parse_args(const struct meg_optgroup *groups, int argc, char **argv, struct meg_err *e)
{
    const struct meg_optgroup *group;
    const struct meg_opt *row;
    struct meg_str unknown = { 0 };
    int i, r = 0;

    for (i = 1; i < argc && r >= 0; i += 1 + r) {
        const char *word = argv[i], *name = word + 2, *joined;
        size_t n;

        if (word[0] != '-' || !word[1] || strcmp(word, "--") == 0) {
            r = meg_fail(e, MEG_EUSAGE, "unexpected argument '%s'", word);
        } else if (word[1] != '-') {
            r = parse_letters(groups, word + 1, argv + i + 1, e);
        } else {
            n = strcspn(name, "=");
            row = opt_find(groups, name, n, &group);
            joined = name[n] ? name + n + 1 : NULL;
            r = row ? parse_option(groups, group, row, joined, argv + i + 1, e)
                    : collect_unknown(groups, name, n, joined, argv + i + 1, &unknown);
        }
    }
    if (unknown.n) {
        r = e->code = MEG_EUSAGE;
        snprintf(e->msg, sizeof e->msg, "%s", unknown.s); /* one line per option, each sanitized by meg_fail */
    }
    meg_str_free(&unknown);
    return r < 0 ? r : 0;
}

/* Assert that names are unique, other names have a target, and MEG_ENUM rows have choices. */
static void check_tables(const struct meg_optgroup *groups)
{
    const struct meg_optgroup *g, *found;
    const struct meg_opt *row, *first;
    const char *now, *name;
    size_t n;

    for (g = groups; g->title; g++) {
        for (row = g->rows; row->name; row++) {
            first = opt_find(groups, row->name, strlen(row->name), &found);
            MEG_ASSERT(first && found == g && (first == row || row->type == MEG_OPT_ALIAS));
            MEG_ASSERT(row->type != MEG_OPT_ENUM || opt_choices(row->metavar));
            now = row->type == MEG_OPT_RENAMED ? row->default_value : "";
            while ((name = opt_next_name(&now, &n)))
                MEG_ASSERT(opt_find(groups, name, strcspn(name, "= "), &found));
        }
    }
}

void meg_opt_parse(const struct meg_optgroup *groups, const char *usage, const char *summary, int argc, char **argv)
{
    struct meg_optgroup *all;
    struct meg_str out = { 0 };
    struct meg_err e;
    size_t n = 0;

    meg_signals_init();
    while (groups[n].title)
        n++;
    all = (struct meg_optgroup *)meg_new((n + 3) * sizeof *all);
    memcpy(all, groups, n * sizeof *all);
    all[n].rows = opt_ignored_rows(groups);
    if (all[n].rows->name)
        all[n++].title = "accepted and ignored";
    all[n].title = "every command";
    all[n].rows = common_opts;
    all[n].conf = &opt_common;
    check_tables(all);
    meg_opt_defaults(all);
    if (meg_opt_parse_args(all, argc, argv, &e) < 0) {
        meg_log_rank0_first();
        if (e.code == MEG_EUSAGE)
            meg_usage_err(&e);
        meg_die_err(&e);
    }
    if (opt_common.completion && strcmp(opt_common.completion, "bash") != 0)
        meg_usage("--completion: '%s' is not supported; bash is the only supported shell", opt_common.completion);
    meg_log_set_level(opt_common.quiet ? MEG_LOG_WARN : opt_common.verbose ? MEG_LOG_DEBUG : MEG_LOG_INFO);
    if (opt_common.help)
        opt_help(all, usage, summary, &out);
    else if (opt_common.version)
        opt_version(&out);
    else if (opt_common.list_options)
        meg_opt_list(all, &out);
    else if (opt_common.completion)
        opt_completion(all, &out);
    else if (opt_common.dump_config)
        meg_opt_dump(groups, &out);
    free(all);
    if (opt_common.help || opt_common.version || opt_common.list_options || opt_common.completion ||
        opt_common.dump_config) {
        if (out.n)
            fwrite(out.s, 1, out.n, stdout);
        meg_str_free(&out);
        exit(meg_close_stdout());
    }
    opt_print_remarks();
}
