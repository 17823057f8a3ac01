/*
 * opt_config.c - read option files (--config, the options in a checkpoint) and write them (--dump-config).
 * meg-conf(5) describes the format: lines `name = value`, values split at whitespace, quotes, # comments.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "base/num.h"
#include "file/file.h"
#include "option/internal.h"
#include "option/opt.h"

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Append the word at p to `out` without its quotes.  Returns the end of the word, or NULL on error. */
static const char *read_word(const char *p, const char *end, struct meg_str *out, struct meg_err *e)
{
    char quote = 0;

    for (; p < end && (quote || !is_space(*p)); p++) {
        char c = *p;

        if (c == quote) {
            quote = 0;
        } else if (!quote && (c == '"' || c == '\'')) {
            quote = c;
        } else if (quote == '"' && c == '\\') {
            p++;
            if (p == end || !strchr("\"\\n", *p)) {
                meg_fail(e, MEG_EUSAGE, "in double quotes, a backslash must be followed by \", \\ or n");
                return NULL;
            }
            meg_str_add(out, *p == 'n' ? "\n" : p, 1);
        } else {
            meg_str_add(out, &c, 1);
        }
    }
    if (quote) {
        meg_fail(e, MEG_EUSAGE, "a quote (%c) is not closed", quote);
        return NULL;
    }
    return p;
}

int opt_split(const char *text, size_t n, struct meg_str_list *words, struct meg_err *e)
{
    const char *p = text, *end = text + n;
    struct meg_str word = { 0 };

    for (;;) {
        while (p < end && is_space(*p))
            p++;
        if (p == end || *p == '#')
            break;
        word.n = 0;
        meg_str_add(&word, "", 0);
        p = read_word(p, end, &word, e);
        if (!p)
            break;
        opt_add_word(words, word.s, word.n);
    }
    meg_str_free(&word);
    return p ? 0 : MEG_EUSAGE;
}

/* Call opt_unknown for an option whose values are the text from p to `end`. */
static int unknown_in_file(const struct meg_optgroup *groups, const char *name, size_t n, const char *p,
                           const char *end, struct meg_err *e)
{
    struct meg_str_list words = { 0 };
    int r = opt_split(p, (size_t)(end - p), &words, e);

    return r < 0 ? r : opt_unknown(groups, name, n, words.n == 1 ? words.v[0] : NULL, e);
}

/*
 * Read one line.  is_stored means that an earlier run wrote the line: unknown names are then ignored, and fields for
 * which meg_opt_was_given returns true keep their values.
 */
static int read_line(const struct meg_optgroup *groups, const char *line, size_t n, bool is_stored, struct meg_err *e)
{
    const struct meg_optgroup *group;
    const struct meg_opt *row;
    struct meg_str_list words = { 0 };
    const char *end = line + n, *name, *p;
    int r;

    while (line < end && is_space(*line))
        line++;
    if (line == end || *line == '#')
        return 0;
    name = line;
    for (p = name; p < end && !is_space(*p) && *p != '='; p++)
        ;
    n = (size_t)(p - name);
    while (p < end && is_space(*p))
        p++;
    if (p == end || *p != '=')
        return meg_fail(e, MEG_EUSAGE, "expected `name = value`, found '%.*s'", (int)(end - line), line);
    row = opt_find(groups, name, n, &group);
    if (!row)
        return is_stored ? 0 : unknown_in_file(groups, name, n, p + 1, end, e);
    if (group->conf == &opt_common)
        return meg_fail(e, MEG_EUSAGE, "--%s is allowed only on the command line", row->name);
    if ((r = opt_split(p + 1, (size_t)(end - p - 1), &words, e)) < 0 ||
        (is_stored && meg_opt_was_given(opt_field(row, group->conf))))
        return r;
    return is_stored ? opt_assign(row, group->conf, &words, e) : opt_give(groups, group, row, &words, e);
}

static int read_lines(const struct meg_optgroup *groups, const char *text, size_t n, const char *source, bool is_stored,
                      struct meg_err *e)
{
    const char *end = text + n, *eol;
    struct meg_err why;
    int line;

    for (line = 1; text < end; line++, text = eol + 1) {
        eol = (const char *)memchr(text, '\n', (size_t)(end - text));
        if (!eol)
            eol = end;
        if (memchr(text, 0, (size_t)(eol - text)))
            return meg_fail(e, MEG_EUSAGE, "%s: line %d: contains a zero byte; expected a text file", source, line);
        if (read_line(groups, text, (size_t)(eol - text), is_stored, &why) < 0)
            return meg_fail(e, why.code, "%s: line %d: %s", source, line, why.msg);
    }
    return 0;
}

int meg_opt_read_config(const struct meg_optgroup *groups, const char *path, struct meg_err *e)
{
    struct meg_str text = { 0 };
    int r = meg_read_text(path, &text, e);

    if (r == 0)
        r = read_lines(groups, text.s, text.n, path, false, e);
    meg_str_free(&text);
    return r;
}

static const char *preset_option;
static int (*preset_options)(struct meg_str *text, const char *name, struct meg_err *e);

void meg_opt_set_presets(const char *option,
                         int (*options_of)(struct meg_str *text, const char *name, struct meg_err *e))
{
    preset_option = option;
    preset_options = options_of;
}

bool opt_is_preset(const struct meg_opt *row)
{
    return preset_option && strcmp(row->name, preset_option) == 0;
}

int opt_give_preset(const struct meg_optgroup *groups, const char *name, struct meg_err *e)
{
    struct meg_str text = { 0 };
    int r = preset_options(&text, name, e);

    if (r == 0)
        r = read_lines(groups, text.s, text.n, name, false, e);
    meg_str_free(&text);
    return r;
}

int meg_opt_apply(const struct meg_optgroup *groups, const char *text, const char *source, struct meg_err *e)
{
    return read_lines(groups, text, strlen(text), source, true, e);
}

static void dump_word(const char *word, struct meg_str *out)
{
    if (*word && !strpbrk(word, " \t\r\n#\"'\\")) {
        meg_str_add(out, word, strlen(word));
        return;
    }
    meg_str_add(out, "\"", 1);
    for (; *word; word++) {
        if (*word == '\n')
            meg_str_add(out, "\\n", 2);
        else
            meg_str_printf(out, *word == '"' || *word == '\\' ? "\\%c" : "%c", *word);
    }
    meg_str_add(out, "\"", 1);
}

/* Append the values of the field, separated by spaces; append nothing if the field is unset. */
static void dump_value(const struct meg_opt *row, void *field, struct meg_str *out)
{
    const struct meg_str_list *list = (const struct meg_str_list *)field;
    char number[MEG_DOUBLE_CHARS];
    const char *choice;
    size_t n;
    int64_t i;

    switch (row->type) {
    case MEG_OPT_STR:
        if (*(const char **)field)
            dump_word(*(const char **)field, out);
        break;
    case MEG_OPT_ENUM:
        choice = opt_enum_choice(row, *(int *)field, &n);
        if (choice)
            meg_str_add(out, choice, n);
        break;
    case MEG_OPT_I64:
        if (*(int64_t *)field != MEG_UNSET)
            meg_str_printf(out, "%" PRId64, *(int64_t *)field);
        break;
    case MEG_OPT_F64:
        if (!isnan(*(double *)field))
            meg_str_printf(out, "%s", meg_fmt_double(number, *(double *)field));
        break;
    case MEG_OPT_BOOL:
    case MEG_OPT_STORE_FALSE:
        meg_str_printf(out, "%s", *(bool *)field == (row->type == MEG_OPT_BOOL) ? "yes" : "no");
        break;
    case MEG_OPT_LIST:
        for (i = 0; i < list->n; i++) {
            meg_str_printf(out, i ? " " : "");
            dump_word(list->v[i], out);
        }
        break;
    default: break;
    }
}

char *meg_opt_value(const struct meg_opt *row, const void *conf)
{
    struct meg_str value = { 0 };

    dump_value(row, opt_field(row, (void *)conf), &value);
    if (!value.n)
        meg_str_printf(&value, "unset");
    return value.s;
}

bool meg_opt_is_equal(const struct meg_opt *row, const void *a, const void *b)
{
    const void *x = (const char *)a + row->offset, *y = (const char *)b + row->offset;
    const char *s, *t;

    switch (row->type) {
    case MEG_OPT_I64: return *(const int64_t *)x == *(const int64_t *)y;
    case MEG_OPT_F64:
        return *(const double *)x == *(const double *)y || (isnan(*(const double *)x) && isnan(*(const double *)y));
    case MEG_OPT_ENUM: return *(const int *)x == *(const int *)y;
    case MEG_OPT_BOOL:
    case MEG_OPT_STORE_FALSE: return *(const bool *)x == *(const bool *)y;
    case MEG_OPT_STR:
        s = *(const char *const *)x;
        t = *(const char *const *)y;
        return s && t ? strcmp(s, t) == 0 : s == t;
    default: MEG_ASSERT(row->type == MEG_OPT_ALIAS || row->type == MEG_OPT_IGNORED); return true;
    }
}

bool meg_opt_is_set(const struct meg_opt *row, const char *value)
{
    return strcmp(value, row->default_value ? row->default_value : "unset") != 0 && strcmp(value, "0") != 0 &&
           strcmp(value, "0.0") != 0;
}

void meg_opt_dump(const struct meg_optgroup *groups, struct meg_str *out)
{
    struct meg_str value = { 0 };
    const struct meg_opt *row;

    for (; groups->title; groups++) {
        if (!groups->conf) /* other names of options in the other groups */
            continue;
        meg_str_printf(out, "# %s\n", groups->title);
        for (row = groups->rows; row->name; row++) {
            if (row->type == MEG_OPT_ALIAS || opt_opposite(groups, row))
                continue;
            value.n = 0;
            dump_value(row, opt_field(row, groups->conf), &value);
            if (value.n)
                meg_str_printf(out, "%s = %s\n", row->name, value.s);
        }
    }
    meg_str_free(&value);
}
