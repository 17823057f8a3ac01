/*
 * Pickles, the programs that Python's pickle module writes, read without running anything: what they
 * would build becomes a tree, and calls of classes and functions stay calls, with their arguments.
 * Protocols 2 to 5, after the comments in CPython's Lib/pickletools.py.
 */
#ifndef MEG_CKPT_MEGATRON_PICKLE_H
#define MEG_CKPT_MEGATRON_PICKLE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

MEG_BEGIN_DECLS

enum meg_py_type {
    MEG_PY_NONE,
    MEG_PY_BOOL,
    MEG_PY_INT,
    MEG_PY_BIGINT, /* an integer of more than 64 bits */
    MEG_PY_FLOAT,
    MEG_PY_STR,
    MEG_PY_BYTES,
    MEG_PY_TUPLE,
    MEG_PY_LIST,
    MEG_PY_SET,
    MEG_PY_DICT,   /* members: key, value, key, value, ... */
    MEG_PY_GLOBAL, /* a class or function, by name */
    MEG_PY_OBJECT, /* what calling fn with args gives, then state; members as it was filled */
    MEG_PY_PERSID  /* what the container knows by args */
};

/* May be a member of itself: a walk over a tree has to bound its depth. */
struct meg_py {
    enum meg_py_type type;
    int64_t i;     /* of BOOL and INT */
    double f;      /* of FLOAT */
    const char *s; /* STR, BYTES; the module of a GLOBAL.  Lies in the pickle, not terminated */
    size_t n;
    const char *name; /* of a GLOBAL in its module */
    size_t nname;
    const struct meg_py **v; /* members */
    size_t nv, cap;
    const struct meg_py *fn, *args, *state;
};

/* All nodes of a pickle, and the one that it leaves. */
struct meg_pickle {
    struct meg_py **block;
    size_t nblocks, nnodes;
    const struct meg_py *root;
    size_t nbytes; /* of the program: where it stops */
};

/*
 * Read the pickle that begins at p, of at most n bytes, which have to stay while nodes are used.
 * Free afterwards, whatever came of it.  MEG_EFORMAT, from and offset named, for an opcode that is
 * not known, one cut short or out of place, and more than MEG_PICKLE_NODES nodes.
 */
enum { MEG_PICKLE_NODES = 1 << 22 };
int meg_pickle_read(struct meg_pickle *out, const void *p, size_t n, const char *from, struct meg_err *e);
void meg_pickle_free(struct meg_pickle *p);

/* Comparisons and look-ups; a NULL node is none of anything. */
bool meg_py_is_str(const struct meg_py *o, const char *text);
bool meg_py_is_global(const struct meg_py *o, const char *module, const char *name);
/* The last value under a key of a dict, or of an object that was filled as one; else NULL. */
const struct meg_py *meg_py_get(const struct meg_py *o, const char *key);
/* An attribute of an object. */
const struct meg_py *meg_py_attr(const struct meg_py *o, const char *name);
/* Whether o is an integer; then *out is set. */
bool meg_py_int(const struct meg_py *o, int64_t *out);

MEG_END_DECLS
#endif
