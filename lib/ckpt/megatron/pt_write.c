/* pt_write.c - write a pickle of protocol 2, opcode by opcode. */
#include "ckpt/megatron/pt_write.h"
#include <stdio.h>
#include <string.h>

static void op(struct meg_pickle_writer *p, char code)
{
    meg_str_add(&p->s, &code, 1);
}

/* Append an n-byte little-endian number. */
static void number(struct meg_pickle_writer *p, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        op(p, (char)(v >> 8 * i & 255));
}

void meg_pickle_begin(struct meg_pickle_writer *p)
{
    meg_str_add(&p->s, "\x80\x02", 2);
}

void meg_pickle_end(struct meg_pickle_writer *p)
{
    op(p, '.');
}

void meg_pickle_put_none(struct meg_pickle_writer *p)
{
    op(p, 'N');
}

void meg_pickle_put_bool(struct meg_pickle_writer *p, bool v)
{
    op(p, v ? '\x88' : '\x89');
}

void meg_pickle_put_int(struct meg_pickle_writer *p, int64_t v)
{
    if (v >= INT32_MIN && v <= INT32_MAX) {
        op(p, 'J');
        number(p, (uint64_t)v, 4);
    } else {
        op(p, '\x8a');
        op(p, 8);
        number(p, (uint64_t)v, 8);
    }
}

void meg_pickle_put_float(struct meg_pickle_writer *p, double v)
{
    uint64_t bits;

    memcpy(&bits, &v, sizeof bits);
    op(p, 'G');
    number(p, __builtin_bswap64(bits), 8);
}

void meg_pickle_put_str(struct meg_pickle_writer *p, const char *s)
{
    op(p, 'X');
    number(p, strlen(s), 4);
    meg_str_add(&p->s, s, strlen(s));
}

void meg_pickle_put_global(struct meg_pickle_writer *p, const char *module, const char *name)
{
    meg_str_printf(&p->s, "c%s\n%s\n", module, name);
}

void meg_pickle_put_dict_begin(struct meg_pickle_writer *p)
{
    op(p, '}');
    op(p, '(');
}

void meg_pickle_put_dict_end(struct meg_pickle_writer *p)
{
    op(p, 'u');
}

void meg_pickle_put_list_begin(struct meg_pickle_writer *p)
{
    op(p, ']');
    op(p, '(');
}

void meg_pickle_put_list_end(struct meg_pickle_writer *p)
{
    op(p, 'e');
}

void meg_pickle_put_tuple_begin(struct meg_pickle_writer *p)
{
    op(p, '(');
}

void meg_pickle_put_tuple_end(struct meg_pickle_writer *p)
{
    op(p, 't');
}

void meg_pickle_put_call(struct meg_pickle_writer *p)
{
    op(p, 'R');
}

void meg_pickle_put_object_begin(struct meg_pickle_writer *p, const char *module, const char *class)
{
    meg_pickle_put_global(p, module, class);
    op(p, ')');
    op(p, '\x81');
}

void meg_pickle_put_object_end(struct meg_pickle_writer *p)
{
    op(p, 'b');
}

void meg_pickle_put_namespace_begin(struct meg_pickle_writer *p)
{
    meg_pickle_put_object_begin(p, "argparse", "Namespace");
    meg_pickle_put_dict_begin(p);
}

void meg_pickle_put_namespace_end(struct meg_pickle_writer *p)
{
    meg_pickle_put_dict_end(p);
    meg_pickle_put_object_end(p);
}

void meg_pickle_put_ints(struct meg_pickle_writer *p, const int64_t *v, int n)
{
    meg_pickle_put_tuple_begin(p);
    for (int i = 0; i < n; i++)
        meg_pickle_put_int(p, v[i]);
    meg_pickle_put_tuple_end(p);
}

void meg_pickle_put_size(struct meg_pickle_writer *p, const int64_t *v, int n)
{
    meg_pickle_put_global(p, "torch", "Size");
    meg_pickle_put_tuple_begin(p);
    meg_pickle_put_ints(p, v, n);
    meg_pickle_put_tuple_end(p);
    meg_pickle_put_call(p);
}

void meg_pickle_put_tensor(struct meg_pickle_writer *p, const int64_t *dim, int ndim)
{
    int64_t stride[8], numel = 1;
    char key[16];

    MEG_ASSERT_LE(ndim, 8);
    for (int i = ndim; i-- > 0; numel *= dim[i])
        stride[i] = numel;
    snprintf(key, sizeof key, "%d", p->ntensors++);
    meg_pickle_put_global(p, "torch._utils", "_rebuild_tensor_v2");
    meg_pickle_put_tuple_begin(p);
    meg_pickle_put_tuple_begin(p);
    meg_pickle_put_str(p, "storage");
    meg_pickle_put_global(p, "torch", "FloatStorage");
    meg_pickle_put_str(p, key);
    meg_pickle_put_str(p, "cpu");
    meg_pickle_put_int(p, numel);
    meg_pickle_put_tuple_end(p);
    op(p, 'Q');
    meg_pickle_put_int(p, 0);
    meg_pickle_put_ints(p, dim, ndim);
    meg_pickle_put_ints(p, stride, ndim);
    meg_pickle_put_bool(p, false); /* requires_grad */
    meg_pickle_put_global(p, "collections", "OrderedDict");
    op(p, ')');
    meg_pickle_put_call(p); /* backward hooks: none */
    meg_pickle_put_tuple_end(p);
    meg_pickle_put_call(p);
}

void meg_pickle_writer_free(struct meg_pickle_writer *p)
{
    meg_str_free(&p->s);
}
