/*
 * layer_pattern.c - parse the list of a property of layers.  The grammar of a list, in which blanks are ignored:
 *   list = sum | items      sum = product { "+" product }      product = atom { "*" N }
 *   atom = "[" items "]" | "(" sum ")"      items = digit { "," digit }      digit = "0" | "1"
 */
#include "model/layer_pattern.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/num.h"

/* The rest of the text, and one character, 0 or 1, for each element so far. */
struct parser {
    const char *p;
    struct meg_str list;
    size_t most; /* largest number of elements */
    int parentheses;
};
enum { MAX_PARENTHESES = 8 };

/* Skip character c after blanks, and return whether it was there. */
static bool skip(struct parser *x, char c)
{
    x->p += strspn(x->p, " ");
    if (*x->p != c)
        return false;
    x->p++;
    return true;
}

static bool parse_items(struct parser *x)
{
    do {
        x->p += strspn(x->p, " ");
        if ((*x->p != '0' && *x->p != '1') || x->list.n == x->most)
            return false;
        meg_str_add(&x->list, x->p++, 1);
    } while (skip(x, ','));
    return true;
}

static bool parse_sum(struct parser *x);

static bool parse_product(struct parser *x)
{
    const size_t begin = x->list.n;

    if (skip(x, '[') ? !parse_items(x) || !skip(x, ']')
                     : !skip(x, '(') || ++x->parentheses > MAX_PARENTHESES || !parse_sum(x) || !skip(x, ')'))
        return false;
    while (skip(x, '*')) {
        char *end;
        const long times = strtol(x->p, &end, 10);
        const size_t n = x->list.n - begin;

        if (end == x->p || times < 1 || (size_t)times > (x->most - begin) / n)
            return false;
        x->p = end;
        for (long i = 1; i < times; i++)
            for (size_t k = 0; k < n; k++) {
                const char c = x->list.s[begin + k];

                meg_str_add(&x->list, &c, 1);
            }
    }
    return true;
}

static bool parse_sum(struct parser *x)
{
    do
        if (!parse_product(x))
            return false;
    while (skip(x, '+'));
    return true;
}

int meg_layer_pattern_parse(struct meg_str *out, const char *text, int64_t n, const char *option, struct meg_err *e)
{
    struct parser x = { .p = text, .most = (size_t)n };
    int64_t multiple;
    int r = 0;

    if (meg_parse_i64(text, &multiple) && multiple >= 1) {
        meg_str_printf(out, "%" PRId64, multiple);
        return 0;
    }
    if (!(strchr(text, '[') ? parse_sum(&x) : parse_items(&x)) || x.p[strspn(x.p, " ")] || x.list.n != (size_t)n)
        r = meg_fail(e, MEG_EUSAGE,
                     "--%s %s: must be a number of at least 1, or a list of 0 and 1 for %" PRId64
                     " layers, such as 1,1,0 or [1]*3+[0]",
                     option, text, n);
    for (size_t i = 0; r == 0 && i < x.list.n; i++)
        meg_str_printf(out, "%c%c", i ? ',' : '[', x.list.s[i]);
    if (r == 0)
        meg_str_printf(out, "]");
    meg_str_free(&x.list);
    return r;
}

bool meg_layer_pattern_at(const char *pattern, int64_t i, bool of_multiple)
{
    if (*pattern == '[')
        return pattern[1 + 2 * i] == '1';
    return ((i + 1) % strtoll(pattern, NULL, 10) == 0) == of_multiple;
}
