/* num.c - parse numbers strictly, and print doubles so that they parse to the same value. */
#include "base/num.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool meg_parse_i64(const char *text, int64_t *out)
{
    long long v;
    char *end;

    if (!isdigit((unsigned char)text[*text == '-' || *text == '+']))
        return false;
    errno = 0;
    v = strtoll(text, &end, 10);
    if (*end || errno)
        return false;
    *out = v;
    return true;
}

bool meg_parse_f64(const char *text, double *out)
{
    double v;
    char *end;

    if (strspn(text, "+-.0123456789eE") != strlen(text)) /* strtod also accepts hexadecimal, inf and spaces */
        return false;
    errno = 0;
    v = strtod(text, &end);
    if (end == text || *end || !isfinite(v) || (v == 0 && errno == ERANGE))
        return false;
    *out = v;
    return true;
}

const char *meg_fmt_double(char buf[], double v)
{
    int digits, exp10;

    if (!isfinite(v))
        return strcpy(buf, isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
    for (digits = 0; digits < 17; digits++) { /* number of digits after the decimal point */
        snprintf(buf, MEG_DOUBLE_CHARS, "%.*e", digits, v);
        if (strtod(buf, NULL) == v)
            break;
    }
    exp10 = atoi(strchr(buf, 'e') + 1);
    if (exp10 >= -4 && exp10 < 16) /* print the same digits without an exponent */
        snprintf(buf, MEG_DOUBLE_CHARS, "%.*f", digits > exp10 ? digits - exp10 : 1, v);
    return buf;
}
