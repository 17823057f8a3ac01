/*
 * tokenizer.h - text to token ids and back, one interface for every --tokenizer-type.
 */
#ifndef MEG_TEXT_TOKENIZER_H
#define MEG_TEXT_TOKENIZER_H

#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/opt.h"

/* Token ids that grow; starts as { 0 }, ends with free(v). */
struct meg_ids {
    int32_t *v;
    int64_t n, cap;
};

/* Make room for n more ids than there are. */
void meg_ids_reserve(struct meg_ids *ids, int64_t n);

struct meg_tok_conf {
    const char *type;       /* --tokenizer-type */
    const char *vocab_file; /* --vocab-file */
    const char *merge_file; /* --merge-file */
    int64_t vocab_size;     /* --vocab-size, or MEG_UNSET */
};
extern const struct meg_opt meg_tok_opts[];

/*
 * meg_tokenizer_open - the tokenizer that c describes, ready to use.  c is not kept.
 * MEG_EUSAGE when an option it needs is missing, MEG_ENOENT or MEG_EFORMAT when a file is.
 */
struct meg_tokenizer;
int meg_tokenizer_open(struct meg_tokenizer **out, const struct meg_tok_conf *c, struct meg_err *e);
void meg_tokenizer_close(struct meg_tokenizer *t); /* accepts NULL */

/*
 * meg_tokenizer_share - a second tokenizer with the same vocabulary, for another thread: one
 * tokenizer serves one thread at a time, since it remembers words.  t must outlive it.
 */
struct meg_tokenizer *meg_tokenizer_share(const struct meg_tokenizer *t);

/*
 * meg_tokenizer_encode - append the ids of text to out
 *   text  [n]  UTF-8; a zero byte is an ordinary character
 * MEG_EFORMAT when text is not well-formed (the message gives the offset) or not what this kind of
 * tokenizer reads; out is then as before.  Less than INT32_MAX bytes at once.
 */
int meg_tokenizer_encode(struct meg_tokenizer *t, const char *text, int64_t n, struct meg_ids *out,
                         struct meg_err *e);

/*
 * meg_tokenizer_bytes - append what ids stand for, as it is: characters may be cut.
 * meg_tokenizer_decode - the same as UTF-8, each maximal ill-formed subpart replaced by U+FFFD.
 * MEG_EFORMAT for an id outside of the vocabulary; out is then as before.
 */
int meg_tokenizer_bytes(const struct meg_tokenizer *t, const int32_t *ids, int64_t n,
                        struct meg_str *out, struct meg_err *e);
int meg_tokenizer_decode(const struct meg_tokenizer *t, const int32_t *ids, int64_t n,
                         struct meg_str *out, struct meg_err *e);

/* Number of ids, not padded; ids are 0 .. size-1. */
int64_t meg_tokenizer_vocab_size(const struct meg_tokenizer *t);
/* The id that ends a document, and the one that begins a text; -1 when there is none. */
int32_t meg_tokenizer_eod(const struct meg_tokenizer *t);
int32_t meg_tokenizer_bos(const struct meg_tokenizer *t);

/*
 * meg_tokenizer_describe - append Megatron's unique_description, a JSON object of class, files and
 * options, which enters the names of cached indices.  Lines after the first begin with indent
 * spaces; no newline at the end.
 */
void meg_tokenizer_describe(const struct meg_tokenizer *t, int indent, struct meg_str *out);

#endif
