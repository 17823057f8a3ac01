/* data_group.c - parse Megatron-DeepSpeed's dataset groups. */
#include "data/blend/data_group.h"
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/num.h"
#include "data/blend/blend.h"
#include "file/file.h"

static const char blank[] = " \t\n\r\v\f";

/* Return an allocated copy of the next word of [*at, end) and advance *at past it; return NULL if there is none. */
static char *next_word(const char **at, const char *end)
{
    const char *s = *at;

    while (s < end && strchr(blank, *s))
        s++;
    *at = s;
    while (*at < end && !strchr(blank, **at))
        (*at)++;
    return *at > s ? meg_strndup(s, (size_t)(*at - s)) : NULL;
}

static bool parse_range(char *text, double *begin, double *end)
{
    char *colon = strchr(text, ':');

    if (!colon)
        return false;
    *colon++ = 0;
    return meg_parse_f64(text, begin) && meg_parse_f64(colon, end) && *begin >= 0 && *begin < *end && *end <= 1;
}

/* Parse "WEIGHT BEGIN:END PREFIX" and append it to b.  Returns false for other text. */
static bool parse_member(struct meg_data_blend *b, const char *s, const char *end)
{
    char *word[4] = { 0 };
    double weight, range[2];
    bool is_valid;

    for (int i = 0; i < 4; i++)
        word[i] = next_word(&s, end);
    is_valid = word[2] && !word[3] && meg_parse_f64(word[0], &weight) && weight > 0 &&
               parse_range(word[1], &range[0], &range[1]);
    if (is_valid) {
        const size_t n = (size_t)++b->n;

        b->prefix = meg_realloc_array(b->prefix, n, sizeof *b->prefix);
        b->weight = meg_realloc_array(b->weight, n, sizeof *b->weight);
        b->range = meg_realloc_array(b->range, n, sizeof *b->range);
        b->prefix[n - 1] = word[2];
        b->weight[n - 1] = weight;
        memcpy(b->range[n - 1], range, sizeof range);
        word[2] = NULL;
    }
    for (int i = 0; i < 4; i++)
        free(word[i]);
    return is_valid;
}

int meg_data_parse_group(struct meg_data_blend *b, const char *text, const char *origin, struct meg_err *e)
{
    const char *colon = strchr(text, ':');

    if (!colon || strcspn(text, blank) < (size_t)(colon - text))
        return meg_fail(
            e, MEG_EUSAGE,
            "%s: '%s' does not begin with a name and a colon; expected 'NAME: WEIGHT BEGIN:END PREFIX, ...'", origin,
            text);
    b->name = meg_strndup(text, (size_t)(colon - text));
    for (const char *s = colon + 1, *comma; s; s = *comma ? comma + 1 : NULL) {
        comma = s + strcspn(s, ",");
        if (!parse_member(b, s, comma))
            return meg_fail(e, MEG_EUSAGE,
                            "%s: '%.*s' is not WEIGHT BEGIN:END PREFIX with WEIGHT > 0 and "
                            "0 <= BEGIN < END <= 1",
                            origin, (int)(comma - s), s);
    }
    if (b->n > MEG_MAX_BLEND_DATASETS)
        return meg_fail(e, MEG_EUSAGE, "%s: found %d datasets, expected at most %d", origin, b->n,
                        MEG_MAX_BLEND_DATASETS);
    return meg_blend_check_weights(b->weight, b->n, origin, e);
}

int meg_data_parse_group_file(struct meg_data_blends *b, int split, const char *path, struct meg_err *e)
{
    struct meg_str text = { 0 };
    int r = meg_read_text(path, &text, e);
    char *s = text.s ? text.s : (char *)"";

    if (r == 0 && strlen(s) != text.n)
        r = meg_fail(e, MEG_EFORMAT, "%s: contains a zero byte; expected a text file", path);
    for (s += r == 0 ? strspn(s, blank) : 0; r == 0 && *s; s += strspn(s, blank)) {
        char *end = *s == '"' ? strchr(s + 1, '"') : NULL;

        if (!end) {
            r = meg_fail(e, MEG_EFORMAT,
                         "%s: expected dataset groups, each between an opening and a closing double quote: "
                         "\"NAME: WEIGHT BEGIN:END PREFIX, ...\"",
                         path);
        } else {
            *end = 0;
            r = meg_data_parse_group(meg_data_blends_add(b, split), s + 1, path, e);
            s = end + 1;
        }
    }
    if (r == 0 && b->num[split] == 0)
        r = meg_fail(e, MEG_EUSAGE,
                     "%s: the file is empty; expected dataset groups in double quotes: "
                     "\"NAME: WEIGHT BEGIN:END PREFIX, ...\"",
                     path);
    meg_str_free(&text);
    return r;
}
