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

    if (strspn(text, "+-.0123456789eE") != strlen(text)) /* strtod also reads hex, inf and blanks */
        return false;
    v = strtod(text, &end);
    if (end == text || *end || !isfinite(v))
        return false;
    *out = v;
    return true;
}

const char *meg_fmt_double(char buf[], double v)
{
    char sci[MEG_DOUBLE_CHARS], digits[MEG_DOUBLE_CHARS];
    const char *sign = signbit(v) ? "-" : "";
    int prec, n, exp10;

    if (!isfinite(v)) {
        strcpy(buf, isnan(v) ? "nan" : *sign ? "-inf" : "inf");
        return buf;
    }
    for (prec = 0; prec < 17; prec++) {
        snprintf(sci, sizeof sci, "%.*e", prec, fabs(v));
        if (strtod(sci, NULL) == fabs(v))
            break;
    }
    digits[0] = sci[0];
    n = prec + 1;
    memcpy(digits + 1, sci + 2, (size_t)prec); /* sci[1] is the point */
    digits[n] = 0;
    exp10 = atoi(strchr(sci, 'e') + 1);
    if (exp10 < -4 || exp10 >= 16)
        snprintf(buf, MEG_DOUBLE_CHARS, "%s%c%s%se%c%02d", sign, digits[0], n > 1 ? "." : "",
                 digits + 1, exp10 < 0 ? '-' : '+', abs(exp10));
    else if (exp10 < 0)
        snprintf(buf, MEG_DOUBLE_CHARS, "%s0.%.*s%s", sign, -exp10 - 1, "000", digits);
    else if (n <= exp10 + 1)
        snprintf(buf, MEG_DOUBLE_CHARS, "%s%s%.*s.0", sign, digits, exp10 + 1 - n,
                 "000000000000000");
    else
        snprintf(buf, MEG_DOUBLE_CHARS, "%s%.*s.%s", sign, exp10 + 1, digits, digits + exp10 + 1);
    return buf;
}
