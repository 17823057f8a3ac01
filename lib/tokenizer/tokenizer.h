/* tokenizer.h - encode text to token ids and decode ids to text, through one interface for every --tokenizer-type. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "base/mem.h"
#include "option/opt.h"

/* A growable array of token ids.  It starts as { 0 } and is freed by free(v). */
struct meg_ids {
    int32_t *v;
    int64_t n, cap;
};

/* Grow the capacity so that at least n more ids fit. */
void meg_ids_reserve(struct meg_ids *ids, int64_t n);

static inline void meg_ids_add(struct meg_ids *ids, int32_t id)
{
    meg_ids_reserve(ids, 1);
    ids->v[ids->n++] = id;
}

/* A callback that receives ids while their text is still being encoded. */
struct meg_id_sink {
    void *ctx;
    /* Consume ids [n], which the function may overwrite.  A negative return value, with e set, ends the encoding. */
    int (*write)(void *ctx, int32_t *ids, int64_t n, struct meg_err *e);
};
enum { MEG_IDS_FLUSH_COUNT = 1 << 20 }; /* number of ids that are buffered before a write to a sink */

struct meg_tok_conf {
    const char *type;            /* --tokenizer-type */
    const char *vocab_file;      /* --vocab-file */
    const char *merge_file;      /* --merge-file */
    const char *tokenizer_model; /* --tokenizer-model */
    const char *name_or_path;    /* --tokenizer-name-or-path */
    /* see meg_tok_find_files */
    const char *tokenizer_json, *tokenizer_config, *special_tokens_map, *added_tokens;
    int64_t vocab_extra_ids;                     /* --vocab-extra-ids, or MEG_UNSET */
    int64_t vocab_size;                          /* --vocab-size, or MEG_UNSET */
    const char *tiktoken_pattern;                /* --tiktoken-pattern, or NULL */
    int64_t tiktoken_num_special_tokens;         /* --tiktoken-num-special-tokens */
    struct meg_str_list tiktoken_special_tokens; /* --tiktoken-special-tokens */
    const char *megatron_release;                /* --megatron-release, or NULL: see tokenizer/megatron_release.h */
};
extern const struct meg_opt meg_tok_opts[];

/*
 * Indices of the tokenizer files in meg_tok_files.  An element of that array contains the usual name of the file in a
 * model directory, and the offset of the file's path in struct meg_tok_conf.
 */
enum {
    MEG_TOK_FILE_VOCAB,
    MEG_TOK_FILE_BERT_VOCAB, /* --vocab-file of the BERT types */
    MEG_TOK_FILE_MERGES,
    MEG_TOK_FILE_MODEL,
    MEG_TOK_FILE_JSON,
    MEG_TOK_FILE_CONFIG,
    MEG_TOK_FILE_SPECIAL_MAP,
    MEG_TOK_FILE_ADDED,
    MEG_NUM_TOK_FILES
};
extern const struct meg_tok_file {
    const char *name;
    size_t offset; /* byte offset of the path in struct meg_tok_conf */
} meg_tok_files[MEG_NUM_TOK_FILES];

static inline const char **meg_tok_file_path(struct meg_tok_conf *c, int file)
{
    return (const char **)(void *)((char *)c + meg_tok_files[file].offset);
}

/*
 * meg_tok_find_files - find the files of a Hugging Face tokenizer
 * The path is c->name_or_path or, if that is NULL, c->tokenizer_model.  If the path is a file called tokenizer.json or
 * a directory with such a file, sets these members:
 *   - c->tokenizer_json, c->tokenizer_config, c->special_tokens_map and c->added_tokens: the paths of the files; NULL
 *     for a missing file
 *   - c->tokenizer_model: NULL
 * Of a directory in the cache of the Hugging Face Hub, reads the snapshot (meg_foreign_hub_snapshot).
 * Otherwise, c is unchanged.  If c->tokenizer_json is already set, c is unchanged as well.
 *   owned  out  the paths, or NULL; the caller frees them
 */
enum { MEG_TOK_MAX_FOUND = 4 };
void meg_tok_find_files(struct meg_tok_conf *c, char *owned[MEG_TOK_MAX_FOUND]);

/*
 * meg_tok_implied_class - return the tokenizer class that config.json beside c->tokenizer_json implies
 * Sets *name to NULL if there is no config.json, or if tokenizer_config.json names the class.  Otherwise, the caller
 * frees *name.  Fails as meg_json_load does.
 */
int meg_tok_implied_class(char **name, const struct meg_tok_conf *c, struct meg_err *e);

/*
 * meg_tok_guess - set the options of a tokenizer from the path of its directory or of one of its files
 * If c->type is NULL, sets it to the type that the name or the content of the file suggests.  Sets the members of c
 * that take the files of this type.  Returns MEG_ENOENT if path is a directory without a known file.
 *   owned  out  paths that c may refer to, or NULL; the caller frees them after c is used
 */
int meg_tok_guess(struct meg_tok_conf *c, const char *path, char *owned[2], struct meg_err *e);

/*
 * meg_tokenizer_open - load the tokenizer that c describes; c is borrowed for the call
 * Returns:
 *   - MEG_EUSAGE if an option is missing or invalid
 *   - MEG_ENOENT if a file is missing
 *   - MEG_EIO if a file cannot be read
 *   - MEG_EFORMAT if a file is invalid
 */
struct meg_tokenizer;
int meg_tokenizer_open(struct meg_tokenizer **out, const struct meg_tok_conf *c, struct meg_err *e);
void meg_tokenizer_close(struct meg_tokenizer *t); /* accepts NULL */

/*
 * meg_tokenizer_clone - create a tokenizer for another thread
 * The clone uses the vocabulary of t, which must outlive the clone.  Only one thread may use a tokenizer at a time,
 * since most types have buffers and a word cache.
 */
struct meg_tokenizer *meg_tokenizer_clone(const struct meg_tokenizer *t);

/*
 * meg_tokenizer_encode - append the ids of text to out
 *   text  [n]  UTF-8, which may contain zero bytes
 * Returns MEG_EFORMAT if n >= INT32_MAX, if text is not well-formed UTF-8 (the message contains the offset), or if this
 * tokenizer type cannot encode the text.  After a failure, `out` is unchanged.
 */
int meg_tokenizer_encode(struct meg_tokenizer *t, const char *text, int64_t n, struct meg_ids *out, struct meg_err *e);

/*
 * meg_tokenizer_encode_to_sink - encode a text without keeping all ids in memory
 *   text  [n]  well-formed UTF-8
 *   out        the ids are appended; `out` may begin with ids of earlier texts
 *   sink       once `out` has more than MEG_IDS_FLUSH_COUNT ids, ids are moved from the front of `out` to the sink.
 *              The last ids of the text remain in `out`.  If `sink` is NULL, all ids remain there.
 * Fails as meg_tokenizer_encode and sink->write do.  After a failure before the first write to the sink, `out`
 * is unchanged.  After a later failure, the contents of `out` are unspecified.
 */
int meg_tokenizer_encode_to_sink(struct meg_tokenizer *t, const char *text, int64_t n, struct meg_ids *out,
                                 const struct meg_id_sink *sink, struct meg_err *e);

/*
 * meg_tokenizer_bytes - append the bytes of ids [n], each decoded separately; NullTokenizer separates ids by spaces
 * meg_tokenizer_decode - append the text of ids [n] in UTF-8, as the reference implementation decodes the ids
 * The bytes of an id may begin or end inside a UTF-8 character.  If an id is outside of the vocabulary, both functions
 * return MEG_EFORMAT and leave `out` unchanged.
 */
int meg_tokenizer_bytes(const struct meg_tokenizer *t, const int32_t *ids, int64_t n, struct meg_str *out,
                        struct meg_err *e);
int meg_tokenizer_decode(const struct meg_tokenizer *t, const int32_t *ids, int64_t n, struct meg_str *out,
                         struct meg_err *e);

/*
 * Append the token of an id as the vocabulary spells it, for example with the prefix ## of a WordPiece token that
 * continues a word.  If the id is outside of the vocabulary, return MEG_EFORMAT and leave `out` unchanged.
 */
int meg_tokenizer_token(const struct meg_tokenizer *t, int32_t id, struct meg_str *out, struct meg_err *e);
/*
 * Append the text of an id that is printed alone: its bytes or, if decoding adds spaces between words, as with
 * WordPiece, the token as the vocabulary spells it.  Fails as meg_tokenizer_token does.
 */
int meg_tokenizer_token_text(const struct meg_tokenizer *t, int32_t id, struct meg_str *out, struct meg_err *e);

/* State of incremental detokenization.  It starts as { .tok = t }; the other fields are private to the tokenizer. */
struct meg_detok {
    const struct meg_tokenizer *tok;
    struct meg_str pending; /* text or ids that the next ids may complete or change */
    int64_t n;              /* number of ids passed to meg_detok_add, including pending ones */
    int64_t nemitted;       /* number of ids that were decoded to text; used by some types */
    int state;              /* private to the type */
};

/*
 * meg_detok_add - append the pending text of earlier calls and the text of ids [n]
 * Text that later ids may complete or change is not appended and remains pending.
 *   is_last  true if no ids follow; no text remains pending
 * The concatenated output of all calls equals the output of one call of meg_tokenizer_decode for all ids.  Fails as
 * meg_tokenizer_decode does.
 */
int meg_detok_add(struct meg_detok *d, const int32_t *ids, int64_t n, bool is_last, struct meg_str *out,
                  struct meg_err *e);
void meg_detok_free(struct meg_detok *d);

/*
 * Return the vocabulary size, without padding.  All ids are in 0 .. size-1, but a tokenizer.json may leave some of
 * these ids unused.
 */
int64_t meg_tokenizer_vocab_size(const struct meg_tokenizer *t);

/*
 * Return an exclusive upper bound of the ids that texts can contain.  It is less than the vocabulary size if the type
 * appends tokens that it encodes as ordinary text, as the BERT types append [BOS], [EOS] and the extra ids.
 */
int64_t meg_tokenizer_num_text_ids(const struct meg_tokenizer *t);

/* Return the type, as --tokenizer-type spells it. */
const char *meg_tokenizer_type(const struct meg_tokenizer *t);

/* Special token ids, as defined by the Megatron-LM class of the tokenizer type; -1: none. */
struct meg_tok_special_ids {
    int32_t eod; /* end of document */
    int32_t bos; /* beginning of text */
    int32_t eos; /* end of text */
    int32_t pad, cls, sep, mask;
};
extern const struct meg_tok_special_ids meg_tok_no_special_ids; /* all ids are -1 */
const struct meg_tok_special_ids *meg_tokenizer_special_ids(const struct meg_tokenizer *t);

static inline int32_t meg_tokenizer_eod(const struct meg_tokenizer *t)
{
    return meg_tokenizer_special_ids(t)->eod;
}

/*
 * meg_tokenizer_explain - append a description of a tokenizer to out
 * The description contains the size, added tokens, tokens before and after a text, prefix space, normalization, special
 * ids, contradictions between the files, and the ids of sample: lines "name: value" or, if is_json, a JSON object and a
 * newline.  Fails as meg_tokenizer_encode does.
 */
int meg_tokenizer_explain(struct meg_tokenizer *t, const char *sample, bool is_json, struct meg_str *out,
                          struct meg_err *e);

/*
 * Return Megatron-LM's unique_identifiers of the tokenizer, which are hashed into the names of cached indices.  They
 * are a JSON object, indented by 4 spaces, without a final newline.  Its members are class, files and options or, from
 * Megatron Core 0.15 on, class, path and keyword arguments.  t owns the string.
 */
const char *meg_tokenizer_description(const struct meg_tokenizer *t);
