/*
 * stage_string.c - parser of --pipeline-model-parallel-layout.  Whitespace is not permitted, and commas are ignored:
 *
 *     layout  = { item }
 *     item    = symbol [ "*" number ] | "(" group ")" "*" number
 *     group   = symbol [ "*" number ] { symbol [ "*" number ] }
 *     symbol  = "E" | "t" | "L" | "|"
 *
 * E is the embedding, t a layer of the transformer, L the output layer and the loss, and | ends a virtual stage.  "*"
 * repeats the symbol or the group before it.  The grammar is that of PipelineParallelLayerLayout.parse_str_to_list in
 * Megatron-LM 0.18.
 */
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "parallel/internal.h"

#define OPTION "--pipeline-model-parallel-layout"

enum { MAX_SYMBOLS = 65536 }; /* maximum number of symbols after repetition */

struct parser {
    const char *text;
    int64_t at;       /* index of the next character in text */
    int64_t *nlayers; /* [nvirtual] number of layers of each virtual stage */
    int64_t nvirtual, nsymbols;
    bool has_embedding, has_loss;
    struct meg_err *e;
};

/* Skip commas, and return the next character without consuming it; 0 at the end. */
static char peek(struct parser *p)
{
    while (p->text[p->at] == ',')
        p->at++;
    return p->text[p->at];
}

/* Fail because of the character at index `at`.  `expected` ends the message. */
static int refuse_char(const struct parser *p, int64_t at, const char *expected)
{
    if (p->text[at] == '\0')
        return meg_fail(p->e, MEG_EUSAGE, OPTION " %s: ends after %" PRId64 " characters, expected %s", p->text, at,
                        expected);
    return meg_fail(p->e, MEG_EUSAGE, OPTION " %s: found '%c' at position %" PRId64 ", expected %s", p->text,
                    p->text[at], at + 1, expected);
}

static void add_virtual_stage(struct parser *p)
{
    p->nlayers = meg_realloc_array(p->nlayers, (size_t)p->nvirtual + 1, sizeof *p->nlayers);
    p->nlayers[p->nvirtual++] = 0;
}

/* Add the symbol at index `at` to the description of the stages. */
static int add_symbol(struct parser *p, int64_t at)
{
    const char symbol = p->text[at];

    if (symbol == 'm')
        return refuse_char(p, at, "E, t, L or |: multi-token prediction (m) is not supported yet");
    if (!strchr("EtL|", symbol))
        return refuse_char(p, at, "E, t, L, | or a group in parentheses");
    if (p->has_loss)
        return refuse_char(p, at, "the end after L, because L is the last symbol of the last stage");
    if (!p->has_embedding && symbol != 'E')
        return refuse_char(p, at, "E, because the first stage begins with the embedding");
    if (p->has_embedding && symbol == 'E')
        return refuse_char(p, at, "t, L or |, because only one E is permitted");
    if (++p->nsymbols > MAX_SYMBOLS)
        return meg_fail(p->e, MEG_EUSAGE, OPTION " %s: has more than %d symbols", p->text, MAX_SYMBOLS);
    switch (symbol) {
    case 'E': p->has_embedding = true; break;
    case 'L': p->has_loss = true; break;
    case 't': p->nlayers[p->nvirtual - 1]++; break;
    default: add_virtual_stage(p);
    }
    return 0;
}

/* Read "*" and a number into *n.  If there is no "*", set *n to 1, or fail if is_required. */
static int read_repeats(struct parser *p, bool is_required, int64_t *n)
{
    *n = 1;
    if (peek(p) != '*')
        return is_required ? refuse_char(p, p->at, "* and a number after )") : 0;
    p->at++;
    if (!isdigit((unsigned char)peek(p)))
        return refuse_char(p, p->at, "a number after *");
    for (*n = 0; isdigit((unsigned char)peek(p)); p->at++)
        if ((*n = 10 * *n + (p->text[p->at] - '0')) > MAX_SYMBOLS)
            return meg_fail(p->e, MEG_EUSAGE,
                            OPTION " %s: the number at position %" PRId64 " is too large, expected at most %d", p->text,
                            p->at + 1, MAX_SYMBOLS);
    return 0;
}

/* Read a symbol and its number of repetitions. */
static int read_symbol(struct parser *p)
{
    const int64_t at = p->at++;
    int64_t n;
    int r = read_repeats(p, false, &n);

    for (int64_t i = 0; i < n && r == 0; i++)
        r = add_symbol(p, at);
    return r;
}

/*
 * Check the group in parentheses that begins at p->at, and read its number of repetitions into *n.  Set *end to the
 * index of the closing parenthesis.
 */
static int read_group_repeats(struct parser *p, int64_t *end, int64_t *n)
{
    const bool is_empty = peek(p) == ')';

    p->at += (int64_t)strcspn(p->text + p->at, "()");
    *end = p->at;
    if (p->text[*end] != ')')
        return refuse_char(p, *end, p->text[*end] ? "), because a group cannot contain a group" : ")");
    if (is_empty)
        return refuse_char(p, *end, "a symbol in the group");
    p->at++;
    return read_repeats(p, true, n);
}

/* Read a group and its number of repetitions. */
static int read_group(struct parser *p)
{
    const int64_t begin = ++p->at;
    int64_t end, n, after;
    int r = read_group_repeats(p, &end, &n);

    after = p->at;
    for (int64_t i = 0; i < n && r == 0; i++)
        for (p->at = begin; r == 0 && peek(p) && p->at < end;)
            r = read_symbol(p);
    p->at = after;
    return r;
}

static int read_layout(struct parser *p)
{
    int r = 0;

    add_virtual_stage(p);
    while (r == 0 && peek(p))
        r = peek(p) == '(' ? read_group(p) : read_symbol(p);
    if (r == 0 && !p->has_loss)
        r = refuse_char(p, p->at, p->has_embedding ? "L, because the last stage ends with the loss" : "E");
    return r;
}

int stage_string_parse(int64_t **nlayers, int64_t *nvirtual, const char *text, struct meg_err *e)
{
    struct parser p = { .text = text, .e = e };
    const int r = read_layout(&p);

    if (r < 0) {
        free(p.nlayers);
        return r;
    }
    *nlayers = p.nlayers;
    *nvirtual = p.nvirtual;
    return 0;
}
