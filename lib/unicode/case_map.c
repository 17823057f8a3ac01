/* case_map.c - upper and lower case of all scripts, as in Python's str. */
#include "unicode/case_map.h"
#include "unicode/char_class.h"
#include "unicode/utf8.h"

enum { CAPITAL_I_DOT = 0x130, CAPITAL_SIGMA = 0x3A3, SIGMA = 0x3C3, FINAL_SIGMA = 0x3C2 };

struct range {
    int32_t first, last;
};

/* Other_Uppercase and Other_Lowercase (Unicode 14): upper and lower case outside of the categories Lu and Ll. */
static const struct range other_uppercase[] = {
    { 0x2160, 0x216F }, { 0x24B6, 0x24CF }, { 0x1F130, 0x1F149 }, { 0x1F150, 0x1F169 }, { 0x1F170, 0x1F189 },
};
static const struct range other_lowercase[] = {
    { 0xAA, 0xAA },       { 0xBA, 0xBA },       { 0x2B0, 0x2B8 },     { 0x2C0, 0x2C1 },     { 0x2E0, 0x2E4 },
    { 0x345, 0x345 },     { 0x37A, 0x37A },     { 0x1D2C, 0x1D6A },   { 0x1D78, 0x1D78 },   { 0x1D9B, 0x1DBF },
    { 0x2071, 0x2071 },   { 0x207F, 0x207F },   { 0x2090, 0x209C },   { 0x2170, 0x217F },   { 0x24D0, 0x24E9 },
    { 0x2C7C, 0x2C7D },   { 0xA69C, 0xA69D },   { 0xA770, 0xA770 },   { 0xA7F8, 0xA7F9 },   { 0xAB5C, 0xAB5F },
    { 0x10780, 0x10780 }, { 0x10783, 0x10785 }, { 0x10787, 0x107B0 }, { 0x107B2, 0x107BA },
};
/* Case_Ignorable code points with Word_Break MidLetter, MidNumLet or Single_Quote. */
static const struct range case_ignorable[] = {
    { 0x27, 0x27 },     { 0x2E, 0x2E },     { 0x3A, 0x3A },     { 0xB7, 0xB7 },
    { 0x387, 0x387 },   { 0x55F, 0x55F },   { 0x5F4, 0x5F4 },   { 0x2018, 0x2019 },
    { 0x2024, 0x2024 }, { 0x2027, 0x2027 }, { 0xFE13, 0xFE13 }, { 0xFE52, 0xFE52 },
    { 0xFE55, 0xFE55 }, { 0xFF07, 0xFF07 }, { 0xFF0E, 0xFF0E }, { 0xFF1A, 0xFF1A },
};
#define IS_IN(table, cp) is_in(table, (int)(sizeof table / sizeof *table), cp)

static bool is_in(const struct range *r, int n, int32_t cp)
{
    for (int i = 0; i < n; i++)
        if (cp >= r[i].first && cp <= r[i].last)
            return true;
    return false;
}

bool meg_char_is_upper(int32_t cp)
{
    if (cp < 0x80)
        return cp >= 'A' && cp <= 'Z';
    return utf8proc_category(cp) == UTF8PROC_CATEGORY_LU || IS_IN(other_uppercase, cp);
}

bool meg_char_is_lower(int32_t cp)
{
    if (cp < 0x80)
        return cp >= 'a' && cp <= 'z';
    return utf8proc_category(cp) == UTF8PROC_CATEGORY_LL || IS_IN(other_lowercase, cp);
}

bool meg_char_is_cased(int32_t cp)
{
    return meg_char_is_upper(cp) || meg_char_is_lower(cp) || utf8proc_category(cp) == UTF8PROC_CATEGORY_LT;
}

bool meg_char_is_case_ignorable(int32_t cp)
{
    return meg_char_is_in(cp, MEG_CATEGORY(MN) | MEG_CATEGORY(ME) | MEG_CATEGORY(CF) | MEG_CATEGORY(LM) |
                                  MEG_CATEGORY(SK)) ||
           IS_IN(case_ignorable, cp);
}

/*
 * Evaluate Unicode's condition Final_Sigma for the sigma at s[i]: if case-ignorable characters are skipped, a cased
 * letter is directly before the sigma, and none is directly after it.
 */
static bool is_final_sigma(const char *s, int64_t n, int64_t i)
{
    int32_t cp = 0;

    for (const char *p = s + i; p > s;) {
        p = meg_utf8_prev(p, &cp);
        if (!meg_char_is_case_ignorable(cp))
            break;
        cp = 0;
    }
    if (!meg_char_is_cased(cp))
        return false;
    for (int64_t k = i + 2; k < n;) {
        k += meg_utf8_decode(s + k, n - k, &cp);
        if (!meg_char_is_case_ignorable(cp))
            return !meg_char_is_cased(cp);
    }
    return true;
}

void meg_utf8_add_lower(struct meg_str *out, const char *s, int64_t n)
{
    for (int64_t i = 0; i < n;) {
        char lower[4];
        int32_t cp;
        int len;

        if ((unsigned char)s[i] < 0x80) {
            lower[0] = s[i] >= 'A' && s[i] <= 'Z' ? (char)(s[i] + 'a' - 'A') : s[i];
            meg_str_add(out, lower, 1);
            i++;
            continue;
        }
        len = meg_utf8_decode(s + i, n - i, &cp);
        if (cp == CAPITAL_I_DOT)
            meg_str_add(out, "i\xCC\x87", 3);
        else if (cp == CAPITAL_SIGMA)
            meg_str_add(out, lower, (size_t)meg_utf8_encode(lower, is_final_sigma(s, n, i) ? FINAL_SIGMA : SIGMA));
        else
            meg_str_add(out, lower, (size_t)meg_utf8_encode(lower, utf8proc_tolower(cp)));
        i += len;
    }
}
