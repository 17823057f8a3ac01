/*
 * opt_set.c - find the row of an option, and parse words into its field.  A row contains the type and the offset of a
 * field.  Therefore, one function, opt_assign, sets values from the table's defaults, from argv and from config files.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/num.h"
#include "option/internal.h"

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

/* Make meg_opt_was_given return true for the field of an option. */
static void set_given(const struct meg_opt *row, void *conf)
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
    if (opt_is_preset(row))
        return opt_give_preset(groups, words->v[0], e);
    if ((r = opt_assign(row, group->conf, words, e)) < 0)
        return r;
    set_given(row, group->conf);
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

void meg_opt_reset(const struct meg_opt *row, void *conf)
{
    unset(row, conf);
    if (row->default_value && row->type != MEG_OPT_ALIAS && row->type != MEG_OPT_RENAMED)
        MEG_ASSERT(meg_opt_set(row, conf, row->default_value, NULL) == 0);
}

void meg_opt_defaults(const struct meg_optgroup *groups)
{
    for (; groups->title; groups++)
        for (const struct meg_opt *row = groups->rows; row->name; row++)
            meg_opt_reset(row, groups->conf);
}
