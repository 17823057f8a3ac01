/* opt_unknown.c - report options that no table has: the hint of an unsupported option, or the most similar name. */
#include <string.h>
#include "option/internal.h"
#include "option/opt.h"

char opt_normalize_dash(char c)
{
    return c == '_' ? '-' : c;
}

/*
 * Return a distance between the option names `a` [n] and b, in which - and _ are equal.  The distance is 63 if one of
 * the names has more than 63 characters.  It is 1 if `a` has at least two characters and is a proper prefix of b.
 * Otherwise, it is the Damerau-Levenshtein distance (optimal string alignment).
 */
static int edit_distance(const char *a, size_t n, const char *b)
{
    enum { MAX_LETTERS = 63 };
    int d[MAX_LETTERS + 1][MAX_LETTERS + 1];
    size_t m = strlen(b), i, j;

    if (n > MAX_LETTERS || m > MAX_LETTERS)
        return MAX_LETTERS;
    for (i = 0; i <= n; i++)
        d[i][0] = (int)i;
    for (j = 0; j <= m; j++)
        d[0][j] = (int)j;
    for (i = 1; i <= n; i++) {
        for (j = 1; j <= m; j++) {
            int best = d[i - 1][j - 1] + (opt_normalize_dash(a[i - 1]) != opt_normalize_dash(b[j - 1]));

            if (d[i - 1][j] + 1 < best)
                best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best)
                best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && opt_normalize_dash(a[i - 1]) == opt_normalize_dash(b[j - 2]) &&
                opt_normalize_dash(a[i - 2]) == opt_normalize_dash(b[j - 1]) && d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    }
    return n >= 2 && m > n && d[n][n] == 0 ? 1 : d[n][m];
}

static const struct meg_opt_names *unsupported;

void meg_opt_set_unsupported(const struct meg_opt_names *rows)
{
    unsupported = rows;
}

/*
 * Return whether the name [n] matches a pattern: a name, or a prefix and *.  The pattern ends at a space, = or zero
 * byte.
 */
static bool matches_pattern(const char *pattern, const char *name, size_t n)
{
    size_t i;

    for (i = 0; i < n && pattern[i] && opt_normalize_dash(pattern[i]) == opt_normalize_dash(name[i]); i++)
        ;
    return pattern[i] == '*' || (i == n && strchr(" =", pattern[i]));
}

/* Return the first pattern that matches the name [n], and set *why to its reason; NULL if there is none. */
static const char *find_unsupported(const char *name, size_t n, const char **why)
{
    for (const struct meg_opt_names *a = unsupported; a && a->names; a++) {
        const char *p = a->names, *pattern;
        size_t length;

        *why = a->why;
        while ((pattern = opt_next_name(&p, &length)))
            if (matches_pattern(pattern, name, n))
                return pattern;
    }
    return NULL;
}

const char *opt_unsupported_value(const struct meg_opt *row, const char *value)
{
    struct meg_str name = { 0 };
    const char *why, *pattern;

    meg_str_printf(&name, "%s:%s", row->name, value);
    pattern = find_unsupported(name.s, name.n, &why);
    meg_str_free(&name);
    return pattern ? why : NULL;
}

/* Return whether `value` (or NULL) equals the value after the = of a pattern. */
static bool has_value(const char *pattern, const char *value)
{
    const char *own = pattern + strcspn(pattern, "= ");
    const size_t n = strcspn(own, " ");

    return value && *own == '=' && n == strlen(value) + 1 && memcmp(own + 1, value, n - 1) == 0;
}

bool meg_opt_is_listed(const char *names, const char *option, const char *value)
{
    const char *pattern;
    size_t n;

    while (names && (pattern = opt_next_name(&names, &n)))
        if (matches_pattern(pattern, option, strlen(option)) && (!memchr(pattern, '=', n) || has_value(pattern, value)))
            return true;
    return false;
}

int opt_unknown(const struct meg_optgroup *groups, const char *name, size_t n, const char *value, struct meg_err *e)
{
    const struct meg_opt *row, *nearest = NULL;
    int min_distance = 1 + (int)n / 3, d;
    const char *why, *pattern = find_unsupported(name, n, &why);

    if (pattern && has_value(pattern, value)) {
        opt_remark_ignored(name, n);
        return 0;
    }
    if (pattern)
        return meg_fail(e, MEG_EUSAGE, "--%.*s: %s", (int)n, name, why);
    for (; groups->title; groups++) {
        for (row = groups->rows; row->name; row++) {
            d = edit_distance(name, n, row->name);
            if (d < min_distance || (d == min_distance && !nearest)) {
                min_distance = d;
                nearest = row;
            }
        }
    }
    if (nearest)
        return meg_fail(e, MEG_EUSAGE, "unknown option --%.*s; did you mean --%s?", (int)n, name, nearest->name);
    return meg_fail(e, MEG_EUSAGE, "unknown option --%.*s", (int)n, name);
}
