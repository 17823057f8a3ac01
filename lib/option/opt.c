/* opt.c - the command line, and the options of every command. */
#include "option/opt.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/num.h"
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

    signal(SIGXFSZ, SIG_IGN); /* a write beyond ulimit -f fails with EFBIG instead of ending the process */
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
