/*
 * pickle.h - read Python pickles safely.
 *
 * A pickle is a program that builds Python objects.  The reader executes no Python code: it builds a graph of nodes,
 * which represent the objects.  A call of a class or function becomes a node with the function and the arguments.
 * Supports protocols 2 to 5, as specified by the comments in CPython's Lib/pickletools.py, without the extension
 * registry and out-of-band buffers.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

enum meg_py_type {
    MEG_PY_NONE,
    MEG_PY_BOOL,
    MEG_PY_INT,
    MEG_PY_BIGINT, /* an integer stored in more than 8 bytes; its value is not read */
    MEG_PY_FLOAT,
    MEG_PY_STR,
    MEG_PY_BYTES,
    MEG_PY_TUPLE,
    MEG_PY_LIST,
    MEG_PY_SET,
    MEG_PY_DICT,   /* members are key, value, key, value, ... */
    MEG_PY_GLOBAL, /* a class or function */
    MEG_PY_OBJECT, /* the result of fn(*args), with state; members are the items added to the object */
    MEG_PY_PERSID  /* a persistent id, stored in args; in torch.save, a reference to the storage of a tensor */
};

/* A Python object of the pickle.  A node may contain itself, so a traversal must bound its depth. */
struct meg_py {
    enum meg_py_type type;
    int64_t i;     /* BOOL, INT */
    double f;      /* FLOAT */
    const char *s; /* [n] STR, BYTES; GLOBAL: module name; points into the pickle, not NUL-terminated */
    size_t n;
    const char *name; /* [nname] GLOBAL: name of the class or function in the module */
    size_t nname;
    const struct meg_py **v; /* [nv] members */
    size_t nv, cap;
    const struct meg_py *fn, *args, *state;
};

/* The nodes of a pickle; root is its result. */
struct meg_pickle {
    struct meg_py **block;
    size_t nblocks, nnodes;
    const struct meg_py *root;
    size_t nbytes; /* length of the pickle, up to and including its STOP opcode */
};

/*
 * Read the pickle at p, which has at most n bytes.  These bytes must outlive the nodes.  Call meg_pickle_free after
 * success and after an error.  Returns MEG_EFORMAT if an opcode is unknown, truncated or invalid at its position, if
 * there is no STOP opcode, or if there are more than MEG_PICKLE_NODES nodes.  The message begins with `from` and
 * contains the byte offset of the error.
 */
enum { MEG_PICKLE_NODES = 1 << 22 };
int meg_pickle_read(struct meg_pickle *out, const void *p, size_t n, const char *from, struct meg_err *e);
void meg_pickle_free(struct meg_pickle *p);

/* Comparisons and look-ups; NULL is a valid node that matches nothing. */
bool meg_py_is_str(const struct meg_py *o, const char *text);
bool meg_py_is_global(const struct meg_py *o, const char *module, const char *name);
/* Return the last value stored under key in a dict or an object with items, or NULL if there is none. */
const struct meg_py *meg_py_get(const struct meg_py *o, const char *key);
/* Return an attribute of an object, or NULL if the object does not have it. */
const struct meg_py *meg_py_attr(const struct meg_py *o, const char *name);
/* Return whether o is an integer; if so, set *out to its value. */
bool meg_py_int(const struct meg_py *o, int64_t *out);
