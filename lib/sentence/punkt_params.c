/* punkt_params.c - read the four parameter files of a language: lines of one or two tab-separated fields. */
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/num.h"
#include "file/file.h"
#include "sentence/internal.h"
#include "unicode/utf8.h"

static const struct {
    const char *name;
    size_t table; /* offset of the string table in struct meg_punkt */
    int ntabs;    /* number of tabs per line */
    const char *line_format;
} files[] = {
    { "abbrev_types.txt", offsetof(struct meg_punkt, abbreviations), 0, "an abbreviation" },
    { "sent_starters.txt", offsetof(struct meg_punkt, sent_starters), 0, "a word" },
    { "collocations.tab", offsetof(struct meg_punkt, collocations), 1, "two words with a tab between them" },
    { "ortho_context.tab", offsetof(struct meg_punkt, words), 1, "a word, a tab and a sum of 2, 4, 8, 16, 32 and 64" },
};

static bool parse_ortho_context(struct meg_punkt *p, const char *word, const char *tab, const char *end)
{
    char digits[8] = "";
    int64_t bits, k;

    if (end - (tab + 1) < (int64_t)sizeof digits)
        memcpy(digits, tab + 1, (size_t)(end - (tab + 1)));
    if (!meg_parse_i64(digits, &bits) || bits < 0 || (bits & ~(PUNKT_ORTHO_UC | PUNKT_ORTHO_LC)) != 0)
        return false;
    k = meg_strtab_add(&p->words, word, tab - word);
    p->ortho_context = meg_realloc_array(p->ortho_context, (size_t)p->words.n, 1);
    p->ortho_context[k] = (unsigned char)bits;
    return true;
}

static bool parse_param_line(struct meg_punkt *p, size_t file, const char *s, int64_t n)
{
    struct meg_strtab *table = (struct meg_strtab *)((char *)p + files[file].table);
    const char *tab = memchr(s, '\t', (size_t)n), *end = s + n;
    int ntabs = 0;

    for (const char *t = tab; t; t = memchr(t + 1, '\t', (size_t)(end - (t + 1))))
        ntabs++;
    if (ntabs != files[file].ntabs)
        return false;
    if (table == &p->words)
        return parse_ortho_context(p, s, tab, end);
    meg_strtab_add(table, s, n);
    return true;
}

static int read_params(struct meg_punkt *p, const char *path, size_t file, struct meg_err *e)
{
    struct meg_str text = { 0 };
    int64_t line = 1;
    int64_t bad;
    int r = meg_read_text(path, &text, e);

    if (r < 0)
        goto out;
    if ((bad = meg_utf8_find_invalid(text.s, (int64_t)text.n)) >= 0) {
        r = meg_fail(e, MEG_EFORMAT, "%s: byte %" PRId64 ": invalid UTF-8: 0x%02x", path, bad + 1,
                     (unsigned char)text.s[bad]);
        goto out;
    }
    for (size_t i = 0; i < text.n && r == 0; line++) {
        const char *s = text.s + i, *nl = memchr(s, '\n', text.n - i);
        int64_t n = nl ? nl - s : (int64_t)(text.n - i);

        i += (size_t)n + 1;
        if (n > 0 && s[n - 1] == '\r')
            n--;
        if (n > 0 && !parse_param_line(p, file, s, n))
            r = meg_fail(e, MEG_EFORMAT, "%s: line %" PRId64 ": found '%.*s', expected %s", path, line,
                         (int)(n < 80 ? n : 80), s, files[file].line_format);
    }
out:
    meg_str_free(&text);
    return r;
}

int meg_punkt_open(struct meg_punkt **out, const char *dir, bool keep_newlines, struct meg_err *e)
{
    struct meg_punkt *p = meg_new(sizeof *p);
    int r = 0;

    p->keep_newlines = keep_newlines;
    for (size_t i = 0; dir && i < sizeof files / sizeof *files && r == 0; i++) {
        struct meg_str path = { 0 };

        meg_str_printf(&path, "%s/%s", dir, files[i].name);
        r = read_params(p, path.s, i, e);
        meg_str_free(&path);
    }
    if (r == 0) {
        *out = p;
        p = NULL;
    }
    meg_punkt_close(p);
    return r;
}

void meg_punkt_close(struct meg_punkt *p)
{
    if (!p)
        return;
    meg_strtab_free(&p->abbreviations);
    meg_strtab_free(&p->sent_starters);
    meg_strtab_free(&p->collocations);
    meg_strtab_free(&p->words);
    free(p->ortho_context);
    free(p);
}
