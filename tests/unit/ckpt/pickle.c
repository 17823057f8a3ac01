/*
 * Reading of Python pickles: bytes that CPython 3.11 wrote, damaged bytes, and a checkpoint in protocol 4, as written
 * by torch.save with pickle_protocol=4.  With shared = [1], the pickles of protocols 2, 4 and 5 below were written by
 *
 *     pickle.dumps({'ints': [0, 255, 65535, -1, 2**31, -2**63, 2**63], 'f': -0.5, 't': (1,), 't4': (1, 2, 3, 4),
 *                   'none': (None, True, False), 'od': collections.OrderedDict([('k', 'v')]),
 *                   'ns': argparse.Namespace(tp=2, name='\xe9'), 'same': [shared, shared]}, protocol)
 *     pickle.dumps({'b': b'\0\xff', 'set': {7}, 'frozen': frozenset([8]), 'ba': bytearray(b'ab')}, 5)
 */
#include "ckpt_fixture.h"
#include "ckpt/megatron/pickle.h"
#include "ckpt/megatron/zip.h"

#include <inttypes.h>

#define BYTES(s) (s), sizeof(s) - 1

static const char protocol2[] = "\200\002}q\000(X\004\000\000\000intsq\001]q\002(K\000K\377M\377\377J\377\377\377\377"
                                "\212\005\000\000\000\200\000\212\010\000\000\000\000\000\000\000\200\212\011\000\000"
                                "\000\000\000\000\000\200\000eX\001\000\000\000fq\003G\277\340\000\000\000\000\000"
                                "\000X\001\000\000\000tq\004K\001\205q\005X\002\000\000\000t4q\006(K\001K\002K\003K"
                                "\004tq\007X\004\000\000\000noneq\010N\210\211\207q\011X\002\000\000\000odq\012ccolle"
                                "ctions\012OrderedDict\012q\013)Rq\014X\001\000\000\000kq\015X\001\000\000\000vq\016s"
                                "X\002\000\000\000nsq\017cargparse\012Namespace\012q\020)\201q\021}q\022(X\002\000"
                                "\000\000tpq\023K\002X\004\000\000\000nameq\024X\002\000\000\000\303\251q\025ubX\004"
                                "\000\000\000sameq\026]q\027(]q\030K\001ah\030eu.";
static const char protocol4[] = "\200\004\225\343\000\000\000\000\000\000\000}\224(\214\004ints\224]\224(K\000K\377M"
                                "\377\377J\377\377\377\377\212\005\000\000\000\200\000\212\010\000\000\000\000\000"
                                "\000\000\200\212\011\000\000\000\000\000\000\000\200\000e\214\001f\224G\277\340\000"
                                "\000\000\000\000\000\214\001t\224K\001\205\224\214\002t4\224(K\001K\002K\003K\004t"
                                "\224\214\004none\224N\210\211\207\224\214\002od\224\214\013collections\224\214\013Or"
                                "deredDict\224\223\224)R\224\214\001k\224\214\001v\224s\214\002ns\224\214\010argparse"
                                "\224\214\011Namespace\224\223\224)\201\224}\224(\214\002tp\224K\002\214\004name\224"
                                "\214\002\303\251\224ub\214\004same\224]\224(]\224K\001ah\034eu.";
static const char protocol5[] = "\200\005\2259\000\000\000\000\000\000\000}\224(\214\001b\224C\002\000\377\224\214"
                                "\003set\224\217\224(K\007\220\214\006frozen\224(K\010\221\224\214\002ba\224\226\002"
                                "\000\000\000\000\000\000\000ab\224u.";

static void show(struct meg_str *s, const struct meg_py *o);

static void show_members(struct meg_str *s, const struct meg_py *o, const char *brackets)
{
    const char pair = o->type == MEG_PY_DICT ? ':' : ',';

    meg_str_printf(s, "%c", brackets[0]);
    for (size_t i = 0; i < o->nv; i++) {
        if (i)
            meg_str_printf(s, "%c", i % 2 ? pair : ',');
        show(s, o->v[i]);
    }
    meg_str_printf(s, "%c", brackets[1]);
}

/* Print the parts of an object: its call, its state, and its items. */
static void show_object(struct meg_str *s, const struct meg_py *o)
{
    show(s, o->fn);
    show(s, o->args);
    if (o->state) {
        meg_str_printf(s, "@");
        show(s, o->state);
    }
    if (o->nv)
        show_members(s, o, "[]");
}

static void show(struct meg_str *s, const struct meg_py *o)
{
    static const char *const brackets[] = {
        [MEG_PY_TUPLE] = "()", [MEG_PY_LIST] = "[]", [MEG_PY_SET] = "<>", [MEG_PY_DICT] = "{}"
    };

    switch (o->type) {
    case MEG_PY_NONE: meg_str_printf(s, "None"); break;
    case MEG_PY_BOOL: meg_str_printf(s, "%s", o->i ? "True" : "False"); break;
    case MEG_PY_INT: meg_str_printf(s, "%" PRId64, o->i); break;
    case MEG_PY_BIGINT: meg_str_printf(s, "big"); break;
    case MEG_PY_FLOAT: meg_str_printf(s, "%g", o->f); break;
    case MEG_PY_STR: meg_str_printf(s, "'%.*s'", (int)o->n, o->s); break;
    case MEG_PY_BYTES:
        for (size_t i = 0; i < o->n; i++)
            meg_str_printf(s, "%02x", (unsigned char)o->s[i]);
        break;
    case MEG_PY_GLOBAL: meg_str_printf(s, "%.*s.%.*s", (int)o->n, o->s, (int)o->nname, o->name); break;
    case MEG_PY_OBJECT: show_object(s, o); break;
    case MEG_PY_PERSID: meg_str_printf(s, "persid"); break;
    default: show_members(s, o, brackets[o->type]);
    }
}

static void reads(const char *bytes, size_t n, const char *want)
{
    struct meg_pickle k;
    struct meg_str s = { 0 };
    struct meg_err e;

    if (meg_pickle_read(&k, bytes, n, "p", &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(k.nbytes, n);
    show(&s, k.root);
    assert_string_equal(s.s, want);
    meg_str_free(&s);
    meg_pickle_free(&k);
}

static void protocols_2_and_4_give_equal_trees(void **state)
{
    static const char want[] =
        "{'ints':[0,255,65535,-1,2147483648,-9223372036854775808,big],'f':-0.5,'t':(1),'t4':(1,2,3,4),"
        "'none':(None,True,False),'od':collections.OrderedDict()['k','v'],"
        "'ns':argparse.Namespace()@{'tp':2,'name':'\303\251'},'same':[[1],[1]]}";

    (void)state;
    reads(BYTES(protocol2), want);
    reads(BYTES(protocol4), want);
}

static void reads_bytes_and_sets(void **state)
{
    (void)state;
    reads(BYTES(protocol5), "{'b':00ff,'set':<7>,'frozen':<8>,'ba':6162}");
}

/* Test LONG1 and LONG4, long forms of strings and bytes, a memo index above 255, and LIST and DICT. */
static void reads_the_long_forms(void **state)
{
    (void)state;
    reads(BYTES("\x80\4\x8a\0."), "0");
    reads(BYTES("\x80\4\x8a\1\xff."), "-1");
    reads(BYTES("\x80\4\x8a\3\0\0\x80."), "-8388608");
    reads(BYTES("\x80\4\x8a\x9\0\0\0\0\0\0\0\0\1."), "big");
    reads(BYTES("\x80\4\x8b\2\0\0\0\0\1."), "256");
    reads(BYTES("\x80\4\x8d\2\0\0\0\0\0\0\0ab."), "'ab'");
    reads(BYTES("\x80\4\x8e\1\0\0\0\0\0\0\0a."), "61");
    reads(BYTES("\x80\4B\1\0\0\0a."), "61");
    reads(BYTES("\x80\4\x8c\1ar\0\1\0\0"
                "0j\0\1\0\0."),
          "'a'");
    reads(BYTES("\x80\4(K\1K\2l."), "[1,2]");
    reads(BYTES("\x80\4(K\1K\2d."), "{1:2}");
}

static void refuses(const char *bytes, size_t n, const char *words)
{
    struct meg_pickle k;
    struct meg_err e;

    assert_int_equal(meg_pickle_read(&k, bytes, n, "p", &e), MEG_EFORMAT);
    assert_contains(e.msg, words);
    meg_pickle_free(&k);
}

static void refuses_damaged_pickles(void **state)
{
    (void)state;
    for (size_t n = 2; n < sizeof protocol4 - 1; n++)
        refuses(protocol4, n, "p: ");
    refuses(BYTES("\x80\4\x8b\xff\xff\xff\xff."), "opcode 0x8b at byte 2|truncated");
    refuses(BYTES("\x80\4\x95\1\0."), "opcode 0x95 at byte 2|truncated");
    refuses(BYTES("\x80\4\x94."), "opcode 0x94 at byte 2|stack underflow");
    refuses(BYTES("\x80\4K\1\x8c\1a\x93."), "opcode 0x93 at byte 7|the name of a class is not a string");
    refuses(BYTES("\x80\4\x8c\1a\x93."), "opcode 0x93 at byte 5|stack underflow");
    refuses(BYTES("\x80\4h\5."), "opcode 0x68 at byte 2|memo");
    refuses(BYTES("\x80\4K\1j\0\0\0\x80."), "opcode 0x6a at byte 4|memo");
    refuses(BYTES("\x80\4K\1r\0\0\0\x80."), "opcode 0x72 at byte 4|memo");
    refuses(BYTES("\x80\4\xff."), "opcode 0xff at byte 2|unknown opcode");
}

/* ---- a checkpoint in protocol 4 ---- */

static void put_short_string(struct meg_str *out, const char *s, size_t n)
{
    const unsigned char length = (unsigned char)n;

    assert_true(n < 256);
    meg_str_add(out, "\x8c", 1);
    meg_str_add(out, &length, 1);
    meg_str_add(out, s, n);
    meg_str_add(out, "\x94", 1);
}

/* Write "MODULE\nNAME\n" at p as STACK_GLOBAL; return the number of bytes read. */
static size_t put_stack_global(struct meg_str *out, const char *p)
{
    const size_t nmodule = strcspn(p, "\n"), nname = strcspn(p + nmodule + 1, "\n");

    put_short_string(out, p, nmodule);
    put_short_string(out, p + nmodule + 1, nname);
    meg_str_add(out, "\x93\x94", 2);
    return nmodule + nname + 2;
}

/* Translate the pickle of an exported checkpoint from protocol 2 to protocol 4, without frames. */
static void translate(struct meg_str *out, const char *p, size_t n)
{
    meg_str_add(out, "\x80\4", 2);
    for (size_t at = 2, used; at < n; at += used) {
        const unsigned char op = (unsigned char)p[at];
        uint32_t length;

        used = op == 'J' ? 5 : op == 'G' ? 9 : op == 0x8a ? 2 + (size_t)p[at + 1] : 1;
        if (op == 'X') {
            memcpy(&length, p + at + 1, 4);
            put_short_string(out, p + at + 5, length);
            used = 5 + length;
        } else if (op == 'c') {
            used = 1 + put_stack_global(out, p + at + 1);
        } else {
            assert_non_null(memchr("J\x8aGN\x88\x89}()tuQR\x81"
                                   "b.",
                                   op, 16));
            meg_str_add(out, p + at, used);
            if (strchr("}tR\x81", op))
                meg_str_add(out, "\x94", 1);
        }
    }
}

static void rewrite_in_protocol_4(const char *path)
{
    struct meg_str was = read_bytes(path), text = { 0 };
    struct meg_file f = { 0 };
    struct meg_zip_writer w = { .f = &f };
    struct meg_zip z;
    struct meg_err e;
    int npickles = 0;

    assert_int_equal(meg_zip_open(&z, was.s, was.n, path, &e), 0);
    assert_int_equal(meg_file_create(&f, path, &e), 0);
    for (int i = 0; i < z.n; i++) {
        const struct meg_zip_member *m = &z.member[i];

        if (strstr(m->name, "/data.pkl")) {
            translate(&text, (const char *)m->p, m->n);
            assert_int_equal(meg_zip_add(&w, m->name, text.s, text.n, &e), 0);
            npickles++;
        } else {
            assert_int_equal(meg_zip_add(&w, m->name, m->p, m->n, &e), 0);
        }
    }
    assert_int_equal(npickles, 1);
    assert_int_equal(meg_zip_finish(&w, &e), 0);
    assert_int_equal(meg_file_commit(&f, &e), 0);
    meg_zip_writer_free(&w);
    meg_zip_free(&z);
    meg_str_free(&text);
    meg_str_free(&was);
}

static void loads_a_checkpoint_of_protocol_4(void **state)
{
    const struct meg_ckpt_megatron_conf to = {
        .tensor = 1, .pipeline = 1, .vocab_multiple = 1, .iteration = 7, .consumed_samples = 91
    };
    struct meg_ckpt *c;
    struct meg_err e;
    struct ckpt_fixture a, b;

    (void)state;
    make_fixture(&a, 1, 8, 1);
    make_fixture(&b, 1, 8, 2);
    const struct meg_ckpt_save_args s = { .dir = "four", .model = &a.m, .params = &a.p, .weights = { .data = a.w } };

    assert_int_equal(meg_ckpt_export_megatron(&s, &to, &e), 0);
    rewrite_in_protocol_4("four/iter_0000007/mp_rank_00/model_optim_rng.pt");
    c = open_ok("four", MEG_UNSET);
    assert_int_equal(meg_ckpt_source_iteration(c), 7);
    assert_int_equal(meg_ckpt_consumed_samples(c), 91);
    if (load_f32_weights(c, &b.p, b.w, &e) < 0)
        fail_msg("%s", e.msg);
    assert_memory_equal(a.w, b.w, (size_t)a.p.flat_numel * sizeof *a.w);
    meg_ckpt_close(c);
    free_fixture(&a);
    free_fixture(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(protocols_2_and_4_give_equal_trees),
        cmocka_unit_test(reads_bytes_and_sets),
        cmocka_unit_test(reads_the_long_forms),
        cmocka_unit_test(refuses_damaged_pickles),
        cmocka_unit_test(loads_a_checkpoint_of_protocol_4),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
