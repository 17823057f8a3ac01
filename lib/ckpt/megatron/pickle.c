/* pickle.c - interpret the opcodes of a pickle to build a graph of nodes. */
#include "ckpt/megatron/pickle.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

/* ---- the virtual machine: a stack of nodes with marks, and a memo ---- */

struct vm {
    struct meg_pickle *out;
    const unsigned char *p;
    size_t n, at;
    const char *from;
    struct meg_py **stack;
    size_t nstack, stack_cap;
    size_t *mark; /* stack index of each MARK */
    size_t nmarks, mark_cap;
    struct meg_py **memo;
    size_t nmemo, memo_cap;
    size_t op_at; /* offset of the current opcode */
    struct meg_err *e;
};

static int broken(struct vm *m, const char *why)
{
    return meg_fail(m->e, MEG_EFORMAT, "%s: pickle, opcode 0x%02x at byte %zu: %s", m->from, m->p[m->op_at], m->op_at,
                    why);
}

enum { BLOCK = 1024 };

/* Allocate a node.  Return NULL if there are already MEG_PICKLE_NODES nodes. */
static struct meg_py *node(struct vm *m, enum meg_py_type type)
{
    struct meg_pickle *k = m->out;
    struct meg_py *o;

    if (k->nnodes == MEG_PICKLE_NODES)
        return NULL;
    if (k->nnodes == k->nblocks * BLOCK) {
        k->block = meg_realloc_array(k->block, k->nblocks + 1, sizeof *k->block);
        k->block[k->nblocks++] = meg_new(BLOCK * sizeof **k->block);
    }
    o = &k->block[k->nnodes / BLOCK][k->nnodes % BLOCK];
    k->nnodes++;
    o->type = type;
    return o;
}

static int push(struct vm *m, struct meg_py *o)
{
    if (!o)
        return broken(m, "the pickle has too many objects");
    if (m->nstack == m->stack_cap) {
        m->stack_cap = m->stack_cap ? 2 * m->stack_cap : 64;
        m->stack = meg_realloc_array(m->stack, m->stack_cap, sizeof(struct meg_py *));
    }
    m->stack[m->nstack++] = o;
    return 0;
}

static int push_int(struct vm *m, enum meg_py_type type, int64_t v)
{
    struct meg_py *o = node(m, type);

    if (o)
        o->i = v;
    return push(m, o);
}

/* Return the lowest stack index that an opcode may pop: the first index above the last mark, or 0 without a mark. */
static size_t floor_of(const struct vm *m)
{
    return m->nmarks ? m->mark[m->nmarks - 1] : 0;
}

static int need(struct vm *m, size_t n)
{
    return m->nstack - floor_of(m) >= n ? 0 : broken(m, "stack underflow");
}

static void add(struct meg_py *o, const struct meg_py *member)
{
    if (o->nv == o->cap) {
        o->cap = o->cap ? 2 * o->cap : 4;
        o->v = meg_realloc_array(o->v, o->cap, sizeof *o->v);
    }
    o->v[o->nv++] = member;
}

/* ---- operands ---- */

static int take(struct vm *m, size_t n, const unsigned char **out)
{
    if (n > m->n - m->at)
        return broken(m, "the pickle is truncated");
    *out = m->p + m->at;
    m->at += n;
    return 0;
}

/* Read an n-byte little-endian number. */
static int number(struct vm *m, size_t n, uint64_t *out)
{
    const unsigned char *b = NULL;
    int r = take(m, n, &b);

    *out = 0;
    for (size_t i = 0; r == 0 && i < n; i++)
        *out |= (uint64_t)b[i] << 8 * i;
    return r;
}

/* Read a length, which is stored in nlength bytes, and a string of this length; push the string. */
static int text(struct vm *m, enum meg_py_type type, size_t nlength)
{
    const unsigned char *b = NULL;
    struct meg_py *o;
    uint64_t n;
    int r;

    if ((r = number(m, nlength, &n)) < 0 || (r = take(m, (size_t)n, &b)) < 0)
        return r;
    o = node(m, type);
    if (o) {
        o->s = (const char *)b;
        o->n = (size_t)n;
    }
    return push(m, o);
}

/*
 * Read a length, which is stored in nlength bytes, and a little-endian two's complement integer of this length; push
 * the integer.
 */
static int big_int(struct vm *m, size_t nlength)
{
    const unsigned char *b = NULL;
    uint64_t n, v;
    int r;

    if ((r = number(m, nlength, &n)) < 0 || (r = take(m, (size_t)n, &b)) < 0)
        return r;
    if (n > 8)
        return push_int(m, MEG_PY_BIGINT, 0);
    v = n && b[n - 1] & 0x80 ? UINT64_MAX : 0;
    for (size_t i = n; i-- > 0;)
        v = v << 8 | b[i];
    return push_int(m, MEG_PY_INT, (int64_t)v);
}

static int float_of(struct vm *m)
{
    const unsigned char *b = NULL;
    struct meg_py *o;
    uint64_t bits = 0;
    int r = take(m, 8, &b);

    if (r < 0)
        return r;
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | b[i];
    o = node(m, MEG_PY_FLOAT);
    if (o)
        memcpy(&o->f, &bits, sizeof o->f);
    return push(m, o);
}

static int line(struct vm *m, const char **s, size_t *n)
{
    const unsigned char *from = m->p + m->at, *end = memchr(from, '\n', m->n - m->at);

    if (!end)
        return broken(m, "the pickle is truncated");
    *s = (const char *)from;
    *n = (size_t)(end - from);
    m->at += *n + 1;
    return 0;
}

/* ---- opcodes ---- */

static int global(struct vm *m)
{
    struct meg_py *o = node(m, MEG_PY_GLOBAL);
    int r = 0;

    if (o && ((r = line(m, &o->s, &o->n)) < 0 || (r = line(m, &o->name, &o->nname)) < 0))
        return r;
    return push(m, o);
}

static int stack_global(struct vm *m)
{
    const struct meg_py *module, *name;
    struct meg_py *o;
    int r = need(m, 2);

    if (r < 0)
        return r;
    name = m->stack[--m->nstack];
    module = m->stack[--m->nstack];
    if (name->type != MEG_PY_STR || module->type != MEG_PY_STR)
        return broken(m, "the name of a class is not a string");
    o = node(m, MEG_PY_GLOBAL);
    if (o) {
        o->s = module->s;
        o->n = module->n;
        o->name = name->s;
        o->nname = name->n;
    }
    return push(m, o);
}

/* Pop n values and push a node with these values as members. */
static int gather(struct vm *m, enum meg_py_type type, size_t n)
{
    struct meg_py *o = node(m, type);

    m->nstack -= n;
    for (size_t i = 0; o && i < n; i++)
        add(o, m->stack[m->nstack + i]);
    return push(m, o);
}

static int pop_mark(struct vm *m, size_t *n)
{
    if (!m->nmarks)
        return broken(m, "the stack has no MARK");
    *n = m->nstack - m->mark[--m->nmarks];
    return 0;
}

static int gather_marked(struct vm *m, enum meg_py_type type)
{
    size_t n = 0;
    int r = pop_mark(m, &n);

    if (r == 0 && type == MEG_PY_DICT && n % 2)
        r = broken(m, "a key has no value");
    return r < 0 ? r : gather(m, type, n);
}

/* Pop n values, and append the values to the members of the node that is then on top of the stack. */
static int fill(struct vm *m, size_t n, bool is_pairs)
{
    struct meg_py *o;

    if (m->nstack - floor_of(m) < n + 1)
        return broken(m, "stack underflow");
    if (is_pairs && n % 2)
        return broken(m, "a key has no value");
    o = m->stack[m->nstack - n - 1];
    if (o->type != MEG_PY_OBJECT && o->type != MEG_PY_DICT && o->type != MEG_PY_LIST && o->type != MEG_PY_SET)
        return broken(m, "items are added to an object without members");
    for (size_t i = m->nstack - n; i < m->nstack; i++)
        add(o, m->stack[i]);
    m->nstack -= n;
    return 0;
}

static int fill_marked(struct vm *m, bool is_pairs)
{
    size_t n = 0;
    int r = pop_mark(m, &n);

    return r < 0 ? r : fill(m, n, is_pairs);
}

/* Pop a function and nargs values, and push a call node.  The first of the values is the argument tuple. */
static int call(struct vm *m, size_t nargs)
{
    struct meg_py *o;
    int r = need(m, nargs + 1);

    if (r < 0)
        return r;
    m->nstack -= nargs + 1;
    o = node(m, MEG_PY_OBJECT);
    if (o) {
        o->fn = m->stack[m->nstack];
        o->args = m->stack[m->nstack + 1];
    }
    return push(m, o);
}

static int build(struct vm *m)
{
    int r = need(m, 2);

    if (r < 0)
        return r;
    m->nstack--;
    m->stack[m->nstack - 1]->state = m->stack[m->nstack];
    return 0;
}

static int persid(struct vm *m)
{
    struct meg_py *o;
    int r = need(m, 1);

    if (r < 0)
        return r;
    o = node(m, MEG_PY_PERSID);
    if (o)
        o->args = m->stack[--m->nstack];
    return push(m, o);
}

static int put(struct vm *m, uint64_t i)
{
    int r = need(m, 1);

    if (r < 0)
        return r;
    if (i >= MEG_PICKLE_NODES)
        return broken(m, "the memo index is too large");
    if (i >= m->memo_cap) {
        const size_t cap = 2 * (size_t)i + 64;

        m->memo = meg_realloc_array(m->memo, cap, sizeof(struct meg_py *));
        memset(m->memo + m->memo_cap, 0, (cap - m->memo_cap) * sizeof(struct meg_py *));
        m->memo_cap = cap;
    }
    m->nmemo += !m->memo[i];
    m->memo[i] = m->stack[m->nstack - 1];
    return 0;
}

static int get(struct vm *m, uint64_t i)
{
    if (i >= m->memo_cap || !m->memo[i])
        return broken(m, "the memo entry is empty");
    return push(m, m->memo[i]);
}

static int push_mark(struct vm *m)
{
    if (m->nmarks == m->mark_cap) {
        m->mark_cap = m->mark_cap ? 2 * m->mark_cap : 16;
        m->mark = meg_realloc_array(m->mark, m->mark_cap, sizeof *m->mark);
    }
    m->mark[m->nmarks++] = m->nstack;
    return 0;
}

static int drop(struct vm *m, unsigned char op)
{
    size_t n = 0;
    int r;

    if (op == '1') {
        if ((r = pop_mark(m, &n)) == 0)
            m->nstack -= n;
        return r;
    }
    if ((r = need(m, 1)) == 0)
        m->nstack--;
    return r;
}

/* Execute an opcode with a numeric operand: push an integer, or put or get a memo entry. */
static int numbered(struct vm *m, unsigned char op)
{
    static const struct {
        unsigned char op, nbytes;
    } size[] = { { 'J', 4 }, { 'K', 1 }, { 'M', 2 }, { 'q', 1 }, { 'r', 4 }, { 'h', 1 }, { 'j', 4 } };
    uint64_t v;
    size_t i = 0;
    int r;

    while (size[i].op != op)
        i++;
    if ((r = number(m, size[i].nbytes, &v)) < 0)
        return r;
    switch (op) {
    case 'J': return push_int(m, MEG_PY_INT, (int32_t)(uint32_t)v);
    case 'K':
    case 'M': return push_int(m, MEG_PY_INT, (int64_t)v);
    case 'q':
    case 'r': return put(m, v);
    default: return get(m, v);
    }
}

static int step(struct vm *m, unsigned char op)
{
    const unsigned char *skipped;

    switch (op) {
    case 0x80: return take(m, 1, &skipped); /* PROTO */
    case 0x95: return take(m, 8, &skipped); /* FRAME */
    case '(': return push_mark(m);
    case '0':
    case '1': return drop(m, op);
    case '2': return need(m, 1) < 0 ? MEG_EFORMAT : push(m, m->stack[m->nstack - 1]);
    case 'N': return push(m, node(m, MEG_PY_NONE));
    case 0x88: return push_int(m, MEG_PY_BOOL, 1);
    case 0x89: return push_int(m, MEG_PY_BOOL, 0);
    case 'J':
    case 'K':
    case 'M':
    case 'q':
    case 'r':
    case 'h':
    case 'j': return numbered(m, op);
    case 0x8a: return big_int(m, 1);
    case 0x8b: return big_int(m, 4);
    case 'G': return float_of(m);
    case 'U':
    case 0x8c: return text(m, MEG_PY_STR, 1);
    case 'T':
    case 'X': return text(m, MEG_PY_STR, 4);
    case 0x8d: return text(m, MEG_PY_STR, 8);
    case 'C': return text(m, MEG_PY_BYTES, 1);
    case 'B': return text(m, MEG_PY_BYTES, 4);
    case 0x8e:
    case 0x96: return text(m, MEG_PY_BYTES, 8);
    case ')': return gather(m, MEG_PY_TUPLE, 0);
    case ']': return gather(m, MEG_PY_LIST, 0);
    case '}': return gather(m, MEG_PY_DICT, 0);
    case 0x8f: return gather(m, MEG_PY_SET, 0);
    case 0x85:
    case 0x86:
    case 0x87: return need(m, op - 0x84) < 0 ? MEG_EFORMAT : gather(m, MEG_PY_TUPLE, op - 0x84);
    case 't': return gather_marked(m, MEG_PY_TUPLE);
    case 'l': return gather_marked(m, MEG_PY_LIST);
    case 'd': return gather_marked(m, MEG_PY_DICT);
    case 0x91: return gather_marked(m, MEG_PY_SET);
    case 'a': return fill(m, 1, false);
    case 's': return fill(m, 2, true);
    case 'e':
    case 0x90: return fill_marked(m, false);
    case 'u': return fill_marked(m, true);
    case 0x94: return put(m, m->nmemo);
    case 'c': return global(m);
    case 0x93: return stack_global(m);
    case 'R':
    case 0x81: return call(m, 1);
    case 0x92: return call(m, 2);
    case 'b': return build(m);
    case 'Q': return persid(m);
    default: return broken(m, "unknown opcode; expected a pickle of protocol 2 to 5");
    }
}

int meg_pickle_read(struct meg_pickle *out, const void *p, size_t n, const char *from, struct meg_err *e)
{
    struct meg_err unread;
    struct vm m = { .out = out, .p = p, .n = n, .from = from, .e = e ? e : &unread };
    int r = 0;

    *out = (struct meg_pickle){ 0 };
    while (r == 0) {
        if (m.at == n) {
            r = meg_fail(e, MEG_EFORMAT, "%s: the pickle ends at byte %zu without STOP", from, n);
            break;
        }
        m.op_at = m.at++;
        if (m.p[m.op_at] == '.') {
            if ((r = need(&m, 1)) == 0)
                out->root = m.stack[m.nstack - 1];
            break;
        }
        r = step(&m, m.p[m.op_at]);
    }
    out->nbytes = m.at;
    free(m.stack);
    free(m.mark);
    free(m.memo);
    return r;
}

void meg_pickle_free(struct meg_pickle *k)
{
    for (size_t i = 0; i < k->nnodes; i++)
        free(k->block[i / BLOCK][i % BLOCK].v);
    for (size_t i = 0; i < k->nblocks; i++)
        free(k->block[i]);
    free(k->block);
    *k = (struct meg_pickle){ 0 };
}

/* ---- look-ups ---- */

static bool is_text(const char *s, size_t n, const char *expected)
{
    return n == strlen(expected) && memcmp(s, expected, n) == 0;
}

bool meg_py_is_str(const struct meg_py *o, const char *text)
{
    return o && o->type == MEG_PY_STR && is_text(o->s, o->n, text);
}

bool meg_py_is_global(const struct meg_py *o, const char *module, const char *name)
{
    return o && o->type == MEG_PY_GLOBAL && is_text(o->s, o->n, module) && is_text(o->name, o->nname, name);
}

const struct meg_py *meg_py_get(const struct meg_py *o, const char *key)
{
    if (!o || (o->type != MEG_PY_DICT && o->type != MEG_PY_OBJECT))
        return NULL;
    for (size_t i = o->nv / 2; i-- > 0;)
        if (meg_py_is_str(o->v[2 * i], key))
            return o->v[2 * i + 1];
    return NULL;
}

const struct meg_py *meg_py_attr(const struct meg_py *o, const char *name)
{
    return o && o->type == MEG_PY_OBJECT ? meg_py_get(o->state, name) : NULL;
}

bool meg_py_int(const struct meg_py *o, int64_t *out)
{
    if (!o || o->type != MEG_PY_INT)
        return false;
    *out = o->i;
    return true;
}
