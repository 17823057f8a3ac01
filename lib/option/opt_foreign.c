/* opt_foreign.c - accept options of other programs that have another name or no effect here. */
#include <string.h>
#include "base/log.h"
#include "option/internal.h"
#include "option/opt.h"

static const struct meg_opt_names *ignored;

void meg_opt_set_ignored(const struct meg_opt_names *rows)
{
    ignored = rows;
}

const char *opt_next_name(const char **p, size_t *n)
{
    const char *name = *p + strspn(*p, " ");

    *n = strcspn(name, " ");
    *p = name + *n;
    return *n ? name : NULL;
}

const struct meg_opt *opt_ignored_rows(const struct meg_optgroup *groups)
{
    const struct meg_optgroup *found;
    struct meg_opt *rows, *row;
    const char *p, *name;
    size_t nrows = 1, n;

    for (const struct meg_opt_names *a = ignored; a && a->names; a++)
        for (p = a->names; opt_next_name(&p, &n); nrows++)
            ;
    row = rows = (struct meg_opt *)opt_alloc(nrows * sizeof *rows);
    for (const struct meg_opt_names *a = ignored; a && a->names; a++) {
        for (p = a->names; (name = opt_next_name(&p, &n));) {
            const size_t name_length = strcspn(name, "= ");

            if (opt_find(groups, name, name_length, &found))
                continue;
            row->type = MEG_OPT_IGNORED;
            row->name = opt_intern(name, name_length);
            row->metavar = name_length < n ? opt_intern(name + name_length + 1, n - name_length - 1) : NULL;
            (row++)->help = a->why;
        }
    }
    return rows;
}

/* ---- remarks ---- */

static struct meg_str renamed_remark, ignored_remark;

/* Append ", " and the text to a remark, unless the remark contains the text. */
static void add_remark(struct meg_str *remark, const char *text)
{
    const size_t n = strlen(text);

    for (const char *p = remark->s; p && (p = strstr(p, text)); p += n)
        if (!p[n] || p[n] == ',')
            return;
    meg_str_printf(remark, "%s%s", remark->n ? ", " : "", text);
}

void opt_remark_ignored(const char *name, size_t n)
{
    struct meg_str text = { 0 };

    meg_str_printf(&text, "--%.*s", (int)n, name);
    add_remark(&ignored_remark, text.s);
    meg_str_free(&text);
}

void opt_print_remarks(void)
{
    if (meg_log_rank() == 0 && (renamed_remark.n || ignored_remark.n))
        meg_warn("%s%s%s%s%s", renamed_remark.n ? "these options have new names: " : "",
                 renamed_remark.n ? renamed_remark.s : "", renamed_remark.n && ignored_remark.n ? "; " : "",
                 ignored_remark.n ? "these options have no effect, for reasons that --help lists: " : "",
                 ignored_remark.n ? ignored_remark.s : "");
    meg_str_free(&renamed_remark);
    meg_str_free(&ignored_remark);
}

/* ---- other names ---- */

void opt_add_replacement(struct meg_str *out, const struct meg_opt *row)
{
    const char *p = row->default_value, *name;
    size_t n;

    while ((name = opt_next_name(&p, &n))) {
        const size_t name_length = strcspn(name, "= ");

        meg_str_printf(out, "%s--%.*s", name == row->default_value ? "" : " ", (int)name_length, name);
        if (name_length < n && strncmp(name + name_length, "=yes", n - name_length) != 0)
            meg_str_printf(out, " %.*s", (int)(n - name_length - 1), name + name_length + 1);
        else if (name_length == n && row->metavar)
            meg_str_printf(out, " %s", row->metavar);
    }
}

/* Set the option name[=value], an element of the list of a MEG_RENAMED row. */
static int give_replacement(const struct meg_optgroup *groups, const char *name, size_t n,
                            const struct meg_str_list *words, struct meg_err *e)
{
    const size_t name_length = strcspn(name, "= ");
    const struct meg_optgroup *group;
    const struct meg_opt *row = opt_find(groups, name, name_length, &group);

    MEG_ASSERT(row);
    if (name_length == n)
        return opt_give(groups, group, row, words, e);
    if (meg_opt_was_given(opt_field(row, group->conf)))
        return 0;
    return meg_opt_set(row, group->conf, opt_intern(name + name_length + 1, n - name_length - 1), e);
}

int opt_give_renamed(const struct meg_optgroup *groups, const struct meg_opt *row, const struct meg_str_list *words,
                     struct meg_err *e)
{
    struct meg_str remark = { 0 };
    const char *p = row->default_value, *name;
    bool is_on = true;
    size_t n;
    int r = 0;

    if (opt_is_flag(row) && (r = opt_parse_bool(row, words->n ? words->v[0] : "", &is_on, e)) < 0)
        return r;
    while (is_on && r == 0 && (name = opt_next_name(&p, &n)))
        r = give_replacement(groups, name, n, words, e);
    meg_str_printf(&remark, "--%s (now ", row->name);
    opt_add_replacement(&remark, row);
    meg_str_add(&remark, ")", 1);
    add_remark(&renamed_remark, remark.s);
    meg_str_free(&remark);
    return r;
}
