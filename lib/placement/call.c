/* call.c - the tensors of a call of an operation: addresses, placements, and the letters of their shapes. */
#include "placement/internal.h"
#ifdef MEG_DEBUG
#    include <ctype.h>
#    include <stdio.h>
#    include <string.h>

bool placement_contains(const char *list, const char *word)
{
    for (size_t n; list && *list; list += n + (list[n] == ' ')) {
        n = strcspn(list, " ");
        if (n == strlen(word) && strncmp(list, word, n) == 0)
            return true;
    }
    return false;
}

const struct meg_op_field *placement_nth(const struct placement_call *c, const char *list, int i)
{
    for (const struct meg_op_field *f = c->row->field; list && f->name; f++)
        if (f->role && placement_contains(list, f->name) && meg_op_pointer(f, c->args) && i-- == 0)
            return f;
    return NULL;
}

struct placement_range placement_extent(const struct placement_call *c, const struct meg_op_field *f)
{
    const struct meg_mat m = meg_op_mat(&c->sizes, c->row, f, c->args);
    int64_t begin = c->begin, last = (m.rows - 1) * m.ld + m.cols - 1;

    if (m.rows <= 0 || m.cols <= 0) {
        last = begin - 1;
    } else if (c->n) {
        last = begin + c->n - 1;
    } else if (f->type == MEG_FIELD_HEADS) {
        const struct meg_heads *h = meg_op_field(f, c->args);
        const int64_t ld[] = { h->ld_s, h->ld_b, h->ld_g, h->ld_h, 1 };
        /* the sequences of dst are not in its shape, because they may be at other offsets */
        const char *shape = c->row == &meg_row_copy_heads ? "s b g 1 d" : f->shape, *unused;
        int len;

        last = 0;
        for (int i = 0; i < 5; i++)
            last += (meg_op_term(&c->sizes, shape, i, &unused, &len) - 1) * ld[i];
    }
    return (struct placement_range){ .begin = meg_element(m.p, begin, m.dtype),
                                     .end = meg_element(m.p, last + 1, m.dtype) };
}

struct placement placement_value(const struct placement_call *c, const struct meg_op_field *f)
{
    const struct placement_range r = placement_extent(c, f);
    int differs;
    const struct placement v = placement_of(r.begin, (size_t)(r.end - r.begin), &differs);

    if (differs >= 0)
        PLACEMENT_FAIL(c, f, v.axis[differs], differs, "a part of it has another placement");
    return v;
}

/* Return the letter of a term of a shape without its factor. */
static int letter_of(const char *term)
{
    char name[16];

    term += strspn(term, "0123456789");
    snprintf(name, sizeof name, "%.*s", (int)strcspn(term, " "), term);
    if (placement_contains("n s b b_k s_q s_k", name))
        return PLACEMENT_TOKENS;
    if (placement_contains("a g r heads", name))
        return PLACEMENT_HEADS;
    return *name && name[1] ? toupper(*name) : *name;
}

static const char *next_term(const char *term)
{
    const char *space = strchr(term, ' ');

    return space ? space + 1 : NULL;
}

int placement_sharding_along(const struct meg_op_field *f, int letter)
{
    for (const char *term = f->shape; letter && term; term = next_term(term))
        if (letter_of(term) == letter)
            return letter == PLACEMENT_TOKENS || !strchr(f->shape, ' ') ||
                           (f->type == MEG_FIELD_MAT && term == f->shape)
                       ? MEG_PLACEMENT_ROWS
                       : MEG_PLACEMENT_COLUMNS;
    return 0;
}

int placement_letter(const struct meg_op_field *f, int s)
{
    if (s == MEG_PLACEMENT_OUTER)
        return PLACEMENT_OUTER;
    for (const char *term = f->shape; term; term = next_term(term))
        if (placement_sharding_along(f, letter_of(term)) == s)
            return letter_of(term);
    return PLACEMENT_NONE;
}
#endif
