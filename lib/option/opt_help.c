/* opt_help.c - print option tables: --help, --version, --list-options, --completion. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "option/internal.h"
#include "option/opt.h"

#define HELP_COLUMN 30
#define USAGE_COLUMN 7
#define CHOICES_COLUMN 10 /* column at which the continuation lines of a long list of choices begin */

static const char *version_lines[8];
static int nversion_lines;

void meg_opt_add_version_line(const char *text)
{
    MEG_ASSERT(nversion_lines < (int)(sizeof version_lines / sizeof *version_lines));
    version_lines[nversion_lines++] = text;
}

void opt_version(struct meg_str *out)
{
    int i;

    meg_str_printf(out, "%s %s\n", meg_progname(), MEG_VERSION);
    for (i = 0; i < nversion_lines; i++)
        meg_str_printf(out, "%s\n", version_lines[i]);
}

static int columns(void)
{
    const char *env = getenv("COLUMNS");
    struct winsize w;
    int n = env ? atoi(env) : ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 ? w.ws_col : 80;

    return n < HELP_COLUMN + 20 ? HELP_COLUMN + 20 : n > 110 ? 110 : n;
}

/*
 * Append text, starting at `column`.  Break lines that are longer than `width` before a word or, if `breaks` contains
 * '|', after a '|'.  Continuation lines begin at column `indent`.
 */
static void wrap(struct meg_str *out, const char *text, const char *breaks, int column, int indent, int width)
{
    for (int n; *text; text += n) {
        const bool is_spaced = *text == ' ';

        text += is_spaced;
        n = (int)strcspn(text, breaks);
        n += text[n] == '|';
        if (column > indent && column + is_spaced + n > width) {
            meg_str_printf(out, "\n%*s", indent, "");
            column = indent;
        } else if (is_spaced && column > indent) {
            meg_str_add(out, " ", 1);
            column++;
        }
        meg_str_add(out, text, (size_t)n);
        column += n;
    }
}

/* Print the ignored options that have one reason.  Returns the last of these rows. */
static const struct meg_opt *help_ignored(const struct meg_opt *row, int width, struct meg_str *out)
{
    struct meg_str names = { 0 };

    for (;; row++) {
        meg_str_printf(&names, "--%s%s%s", row->name, row->metavar ? " " : "", row->metavar ? row->metavar : "");
        if (!row[1].name || row[1].help != row->help)
            break;
        meg_str_add(&names, ", ", 2);
    }
    meg_str_add(out, "      ", 6);
    wrap(out, names.s, " |", 6, CHOICES_COLUMN, width);
    meg_str_printf(out, "\n%*s", HELP_COLUMN, "");
    wrap(out, row->help, " ", HELP_COLUMN, HELP_COLUMN, width);
    meg_str_add(out, "\n", 1);
    meg_str_free(&names);
    return row;
}

static void help_row(const struct meg_optgroup *g, const struct meg_opt *row, int width, struct meg_str *out)
{
    const struct meg_opt *opposite = opt_opposite(g, row), *alias;
    struct meg_str left = { 0 }, right = { 0 };

    meg_str_printf(&left, row->letter ? "  -%c, " : "      ", row->letter);
    meg_str_printf(&left, "--%s%s", row->name, row->metavar ? " " : "");
    if (row->metavar)
        wrap(&left, row->metavar, " |", (int)left.n, CHOICES_COLUMN, width);
    if (row->type == MEG_OPT_RENAMED) {
        meg_str_add(&right, "now ", 4);
        opt_add_replacement(&right, row);
    } else if (opposite)
        meg_str_printf(&right, "the opposite of --%s", opposite->name);
    else
        meg_str_printf(&right, "%s", row->help);
    if (row->default_value && !opt_is_flag(row) && row->type != MEG_OPT_RENAMED)
        meg_str_printf(&right, " (default: %s)", row->default_value);
    for (alias = g->rows; alias->name; alias++)
        if (alias->type == MEG_OPT_ALIAS && strcmp(alias->default_value, row->name) == 0)
            meg_str_printf(&right, " (also --%s)", alias->name);
    if (left.n > HELP_COLUMN - 2)
        meg_str_printf(out, "%s\n%*s", left.s, HELP_COLUMN, "");
    else
        meg_str_printf(out, "%-*s", HELP_COLUMN, left.s);
    wrap(out, right.s, " ", HELP_COLUMN, HELP_COLUMN, width);
    meg_str_add(out, "\n", 1);
    meg_str_free(&left);
    meg_str_free(&right);
}

void opt_help(const struct meg_optgroup *groups, const char *usage, const char *summary, struct meg_str *out)
{
    const struct meg_opt *row;
    int width = columns();

    meg_str_printf(out, "usage: %s ", meg_progname());
    wrap(out, usage, " ", (int)out->n, USAGE_COLUMN, width);
    meg_str_printf(out, "\n%s\n", summary);
    for (; groups->title; groups++) {
        meg_str_printf(out, "\n%s:\n", groups->title);
        for (row = groups->rows; row->name; row++)
            if (row->type == MEG_OPT_IGNORED)
                row = help_ignored(row, width, out);
            else if (row->type != MEG_OPT_ALIAS)
                help_row(groups, row, width, out);
    }
}

void meg_opt_list(const struct meg_optgroup *groups, struct meg_str *out)
{
    struct meg_str target = { 0 };

    for (; groups->title; groups++) {
        const struct meg_opt *row;

        for (row = groups->rows; row->name; row++) {
            const struct meg_opt *opposite = opt_opposite(groups, row);
            const bool is_alias = row->type == MEG_OPT_ALIAS, is_renamed = row->type == MEG_OPT_RENAMED;

            target.n = 0;
            if (is_renamed)
                opt_add_replacement(&target, row);
            else if (is_alias || opposite)
                meg_str_printf(&target, "%s", is_alias ? row->default_value : opposite->name);

            meg_str_printf(out, "%s\t%s\t%s\t%s\t%.1s\t%s\n", row->name, row->metavar ? row->metavar : "",
                           row->default_value && !is_alias && !is_renamed ? row->default_value : "", groups->title,
                           &row->letter, target.n ? target.s : "");
        }
    }
    meg_str_free(&target);
}

void opt_completion(const struct meg_optgroup *groups, struct meg_str *out)
{
    struct meg_str names = { 0 }, cases = { 0 };
    char *fn = meg_strdup(meg_progname());
    const struct meg_optgroup *g, *found;
    const struct meg_opt *row, *target;
    char *p;

    while ((p = strchr(fn, '-')))
        *p = '_';
    for (g = groups; g->title; g++) {
        for (row = g->rows; row->name; row++) {
            meg_str_printf(&names, " --%s", row->name);
            target = opt_find(groups, row->name, strlen(row->name), &found);
            if (!target->metavar || !opt_choices(target->metavar))
                continue;
            meg_str_printf(&cases, "    --%s) words='%.*s' ;;\n", row->name, (int)opt_choices(target->metavar),
                           target->metavar);
        }
    }
    for (p = cases.s; p && *p; p++)
        if (*p == '|')
            *p = ' ';
    meg_str_printf(out,
                   "_%s()\n{\n"
                   "    local cur=${COMP_WORDS[COMP_CWORD]} words=\n"
                   "    case ${COMP_WORDS[COMP_CWORD-1]} in\n%s    esac\n"
                   "    [[ -z $words && $cur == -* ]] && words='%s'\n"
                   "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
                   "}\n"
                   "complete -o default -F _%s %s\n",
                   fn, cases.s ? cases.s : "", names.s + 1, fn, meg_progname());
    free(fn);
    meg_str_free(&names);
    meg_str_free(&cases);
}
