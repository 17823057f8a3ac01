/* call.h - the tensors of a call of an operation: addresses, placements, and the letters of their shapes. */
#ifndef MEG_PLACEMENT_CALL_H
#define MEG_PLACEMENT_CALL_H
#include "placement/internal.h"
#include "tensor/op_row.h"

MEG_BEGIN_DECLS

/* A call of an operation.  An elementwise operation may be checked for elements [begin, begin + n) only. */
struct placement_call {
    const struct meg_op_row *row;
    const void *args;
    struct meg_op_sizes sizes;
    int64_t begin, n; /* n is 0: all */
};

/* Return whether a list of words, or NULL, contains a word of length len. */
bool placement_contains(const char *list, const char *word, int len);
/* Return field i of those that are in a list of names and present; NULL if there are fewer, or if the list is NULL. */
const struct meg_op_field *placement_nth(const struct placement_call *c, const char *list, int i);
/* Set *begin to the address of a tensor, and return the bytes from its first to its last element. */
size_t placement_extent(const struct placement_call *c, const struct meg_op_field *f, const char **begin);
/* Return the placement of a tensor.  Fail if parts of it have different placements. */
struct placement placement_value(const struct placement_call *c, const struct meg_op_field *f);
/* Fail because of the placement s of a tensor over an axis. */
void placement_fail_call(const struct placement_call *c, const struct meg_op_field *f, int s, int axis,
                         const char *text);

/* A size in a shape, as in Einstein notation.  All sizes of tokens are one letter, and all sizes of heads another. */
struct placement_letter {
    const char *s; /* NULL: none */
    int len;
};
extern const struct placement_letter placement_outer; /* of a dimension outside of the tensor, such as experts */

bool placement_is_letter(struct placement_letter a, struct placement_letter b);
/* Return the placement of a tensor that is sharded along a letter, or 0 if the tensor does not have the letter. */
int placement_sharding_along(const struct meg_op_field *f, struct placement_letter l);
/* Return the letter along which a tensor with placement s is sharded. */
struct placement_letter placement_letter_of(const struct meg_op_field *f, int s);

MEG_END_DECLS
#endif
