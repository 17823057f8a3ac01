/* call.c - the tensors of a call of an operation: addresses, placements, and the letters of their shapes. */
#include "placement/call.h"
#ifdef MEG_DEBUG
#    include <string.h>

bool placement_contains(const char *list, const char *word, int len)
{
    for (int i = 0; list && *list; list += i + (list[i] == ' ')) {
        i = (int)strcspn(list, " ");
        if (i == len && strncmp(list, word, (size_t)len) == 0)
            return true;
    }
    return false;
}

const struct meg_op_field *placement_nth(const struct placement_call *c, const char *list, int i)
{
    for (const struct meg_op_field *f = c->row->field; list && f->name; f++)
        if (f->role && placement_contains(list, f->name, (int)strlen(f->name)) && meg_op_pointer(f, c->args) &&
            i-- == 0)
            return f;
    return NULL;
}

size_t placement_extent(const struct placement_call *c, const struct meg_op_field *f, const char **begin)
{
    const struct meg_mat m = meg_op_mat(&c->sizes, c->row, f, c->args);
    const size_t size = meg_dtype_size(m.dtype);
    int64_t last = (m.rows - 1) * m.ld + m.cols - 1;

    *begin = m.p;
    if (m.rows <= 0 || m.cols <= 0)
        return 0;
    if (c->n) {
        *begin += (size_t)c->begin * size;
        return (size_t)c->n * size;
    }
    if (f->type == MEG_FIELD_HEADS) {
        const struct meg_heads *h = meg_op_field(f, c->args);
        const int64_t ld[] = { h->ld_s, h->ld_b, h->ld_g, h->ld_h, 1 };
        /* the sequences of dst are not in its shape, because they may be at other offsets */
        const char *shape = c->row == &meg_row_copy_heads ? "s b g 1 d" : f->shape, *unused;
        int len;

        last = 0;
        for (int i = 0; i < 5; i++)
            last += (meg_op_term(&c->sizes, shape, i, &unused, &len) - 1) * ld[i];
    }
    return (size_t)(last + 1) * size;
}

struct placement placement_value(const struct placement_call *c, const struct meg_op_field *f)
{
    const char *begin;
    const size_t nbytes = placement_extent(c, f, &begin);
    int differs;
    const struct placement v = placement_of(begin, nbytes, &differs);

    if (differs >= 0)
        placement_fail(c->row->name, f->name, begin, v.axis[differs], differs, "a part of it has another placement");
    return v;
}

void placement_fail_call(const struct placement_call *c, const struct meg_op_field *f, int s, int axis,
                         const char *text)
{
    const char *begin;

    placement_extent(c, f, &begin);
    placement_fail(c->row->name, f->name, begin, s, axis, "%s", text);
}

bool placement_is_letter(struct placement_letter a, struct placement_letter b)
{
    return a.s && b.s && a.len == b.len && strncmp(a.s, b.s, (size_t)a.len) == 0;
}

/* Return term i of a shape without its factor, and one letter for all sizes of tokens and of heads. */
static struct placement_letter term(const struct meg_op_field *f, int i)
{
    const char *s = f->shape;
    struct placement_letter l;

    for (; i > 0; i--) {
        s += strcspn(s, " ");
        s += *s == ' ';
    }
    l.s = s + strspn(s, "0123456789");
    l.len = (int)strcspn(l.s, " ");
    if (placement_contains("n s b b_k s_q s_k", l.s, l.len))
        return (struct placement_letter){ "n", 1 };
    if (placement_contains("a g r heads", l.s, l.len))
        return (struct placement_letter){ "g", 1 };
    return l.len ? l : (struct placement_letter){ NULL, 0 };
}

static int num_terms(const struct meg_op_field *f)
{
    int n = 1;

    for (const char *s = f->shape; *s; s++)
        n += *s == ' ';
    return n;
}

int placement_sharding_along(const struct meg_op_field *f, struct placement_letter l)
{
    const int n = num_terms(f);

    for (int i = 0; i < n; i++)
        if (placement_is_letter(term(f, i), l))
            return placement_is_letter(l, (struct placement_letter){ "n", 1 }) || n == 1 ||
                           (f->type == MEG_FIELD_MAT && i == 0)
                       ? MEG_PLACEMENT_ROWS
                       : MEG_PLACEMENT_COLUMNS;
    return 0;
}

const struct placement_letter placement_outer = { "outer", 5 };

struct placement_letter placement_letter_of(const struct meg_op_field *f, int s)
{
    if (s == MEG_PLACEMENT_OUTER)
        return placement_outer;
    for (int i = 0; i < num_terms(f); i++)
        if (term(f, i).s && placement_sharding_along(f, term(f, i)) == s)
            return term(f, i);
    return (struct placement_letter){ NULL, 0 };
}
#endif
