/*
 * tokenizer.h - text to token ids and back, one interface for every --tokenizer-type.
 */
#ifndef MEG_TOKENIZER_TOKENIZER_H
#define MEG_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "option/opt.h"

/* Token ids that grow; starts as { 0 }, ends with free(v). */
struct meg_ids {
    int32_t *v;
    int64_t n, cap;
};

/* Grow the capacity to at least n more ids. */
void meg_ids_reserve(struct meg_ids *ids, int64_t n);

/* Consumer of the ids of a text that is still being encoded. */
struct meg_id_sink {
    void *ctx;
    /* Consume ids [n], which it may overwrite.  A negative return value, with e filled, ends the encoding. */
    int (*write)(void *ctx, int32_t *ids, int64_t n, struct meg_err *e);
};
enum { MEG_IDS_FLUSH_COUNT = 1 << 20 }; /* ids buffered before they are written to a sink */

struct meg_tok_conf {
    const char *type;                                                   /* --tokenizer-type */
    const char *vocab_file;                                             /* --vocab-file */
    const char *merge_file;                                             /* --merge-file */
    const char *tokenizer_model;                                        /* --tokenizer-model */
    const char *name_or_path;                                           /* --tokenizer-name-or-path */
    const char *tokenizer_json, *tokenizer_config, *special_tokens_map; /* see meg_tok_find_files */
    int64_t vocab_extra_ids;                                            /* --vocab-extra-ids, or MEG_UNSET */
    int64_t vocab_size;                                                 /* --vocab-size, or MEG_UNSET */
    const char *tiktoken_pattern;                                       /* --tiktoken-pattern, or NULL */
    int64_t tiktoken_num_special_tokens;                                /* --tiktoken-num-special-tokens */
    struct meg_str_list tiktoken_special_tokens;                        /* --tiktoken-special-tokens */
    const char *megatron_release; /* --megatron-release, or NULL: tokenizer/megatron_release.h */
};
extern const struct meg_opt meg_tok_opts[];

/* The options that name a file (or the folder of some), and what such a file is called in the folder of a model. */
enum {
    MEG_TOK_FILE_VOCAB,
    MEG_TOK_FILE_BERT_VOCAB, /* --vocab-file, too, of the BERT types */
    MEG_TOK_FILE_MERGES,
    MEG_TOK_FILE_MODEL,
    MEG_TOK_FILE_JSON,
    MEG_TOK_FILE_CONFIG,
    MEG_TOK_FILE_SPECIAL_MAP,
    MEG_NUM_TOK_FILES
};
extern const struct meg_tok_file {
    const char *name;
    size_t offset; /* of the path in struct meg_tok_conf */
} meg_tok_files[MEG_NUM_TOK_FILES];

static inline const char **meg_tok_file_path(struct meg_tok_conf *c, int file)
{
    return (const char **)(void *)((char *)c + meg_tok_files[file].offset);
}

/*
 * meg_tok_find_files - where c names a folder of Hugging Face's, or the tokenizer.json in it, set the
 * paths of its files in place of the folder's; owned has those that the caller frees.
 */
void meg_tok_find_files(struct meg_tok_conf *c, char *owned[3]);

/*
 * meg_tokenizer_open - the tokenizer that c describes, ready to use.  c is not kept.
 * MEG_EUSAGE when an option it needs is missing, MEG_ENOENT or MEG_EFORMAT when a file is.
 */
struct meg_tokenizer;
int meg_tokenizer_open(struct meg_tokenizer **out, const struct meg_tok_conf *c, struct meg_err *e);
void meg_tokenizer_close(struct meg_tokenizer *t); /* accepts NULL */

/*
 * meg_tokenizer_clone - a second tokenizer with the same vocabulary, for another thread: one
 * tokenizer serves one thread at a time, since it remembers words.  t must outlive it.
 */
struct meg_tokenizer *meg_tokenizer_clone(const struct meg_tokenizer *t);

/*
 * meg_tokenizer_encode - append the ids of text to out
 *   text  [n]  UTF-8; a zero byte is an ordinary character
 * MEG_EFORMAT when text is not well-formed (the message gives the offset) or not what this kind of
 * tokenizer reads; out is then as before.  Less than INT32_MAX bytes at once.
 */
int meg_tokenizer_encode(struct meg_tokenizer *t, const char *text, int64_t n, struct meg_ids *out, struct meg_err *e);

/*
 * meg_tokenizer_encode_to_sink - encode text [n], well-formed UTF-8, in bounded memory
 *   out   receives the ids; may begin with ids of earlier texts
 *   sink  NULL, or called during the encoding whenever out holds more than MEG_IDS_FLUSH_COUNT ids: gets the first of
 *         them, which are then removed from out; the last ids of the text remain there
 * Returns as meg_tokenizer_encode, or what sink->write returned.  After a failure out holds no id of this text.
 */
int meg_tokenizer_encode_to_sink(struct meg_tokenizer *t, const char *text, int64_t n, struct meg_ids *out,
                                 const struct meg_id_sink *sink, struct meg_err *e);

/*
 * meg_tokenizer_bytes - append what each of ids stands for by itself: characters may be cut.
 * meg_tokenizer_decode - the text that ids make as the reference decodes it, UTF-8.
 * MEG_EFORMAT for an id outside of the vocabulary; out is then as before.
 */
int meg_tokenizer_bytes(const struct meg_tokenizer *t, const int32_t *ids, int64_t n, struct meg_str *out,
                        struct meg_err *e);
int meg_tokenizer_decode(const struct meg_tokenizer *t, const int32_t *ids, int64_t n, struct meg_str *out,
                         struct meg_err *e);

/* Text as it grows from ids.  Starts as { .tok = t }; the other fields are the tokenizer's. */
struct meg_detok {
    const struct meg_tokenizer *tok;
    struct meg_str pending; /* not yet shown: what the next ids may complete or change */
    int64_t n;              /* ids so far */
    int64_t nemitted;       /* those of them whose text is out, where their kind counts them */
    int state;              /* whatever else its kind remembers */
};

/*
 * meg_detok_add - append to out what ids [n] add to the text: whole characters that no later id
 * changes; all that is held back comes out when is_last.  All calls together append what
 * meg_tokenizer_decode would of all ids.  MEG_EFORMAT as there, before anything is appended.
 */
int meg_detok_add(struct meg_detok *d, const int32_t *ids, int64_t n, bool is_last, struct meg_str *out,
                  struct meg_err *e);
void meg_detok_free(struct meg_detok *d);

/* Number of ids, not padded; ids are 0 .. size-1. */
int64_t meg_tokenizer_vocab_size(const struct meg_tokenizer *t);

/* Ids with a part to play, as Megatron-LM's class of this type gives them; -1: there is none. */
struct meg_tok_special_ids {
    int32_t eod; /* ends a document */
    int32_t bos; /* begins a text */
    int32_t eos; /* ends a text */
    int32_t pad, cls, sep, mask;
};
extern const struct meg_tok_special_ids meg_tok_no_special_ids; /* all -1 */
const struct meg_tok_special_ids *meg_tokenizer_special_ids(const struct meg_tokenizer *t);

static inline int32_t meg_tokenizer_eod(const struct meg_tokenizer *t)
{
    return meg_tokenizer_special_ids(t)->eod;
}

/*
 * Return Megatron's unique_identifiers of the tokenizer, which enter the names of cached indices: a JSON
 * object of class, files and options, indented by 4 as at the top of a file, without a newline at the
 * end.  The string belongs to t.
 */
const char *meg_tokenizer_description(const struct meg_tokenizer *t);

#endif
