/*
 * internal.h - the parts of a tokenizer.json, as Hugging Face's tokenizers write it, in the order they work
 * on a text: normaliser, pre-tokeniser, model; and back: decoder.  Private to hf*.c.
 *
 * Each part is loaded from its JSON value, of which nothing is kept; from names it in messages
 * ("FILE: normalizer").  MEG_EFORMAT for a type that is not known and for members that make no sense.
 * Once loaded a part is only read, by any number of threads.  Text is well-formed UTF-8 throughout.
 */
#ifndef MEG_TOKENIZER_HF_INTERNAL_H
#define MEG_TOKENIZER_HF_INTERNAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/regex.h"
#include "base/strtab.h"
#include "io/json_scan.h"
#include "tokenizer/pretokenize/pretokenize.h"
#include "tokenizer/tokenizer.h"

/* The member "type" of a part. */
int meg_hf_get_type(const json_t *part, const char **type, const char *from, struct meg_err *e);
int meg_hf_unknown_type(const char *type, const char *from, struct meg_err *e);
/* Append a string member, or otherwise where it is not there and that is not NULL. */
int meg_hf_get_string(const json_t *part, const char *key, const char *otherwise, struct meg_str *out, const char *from,
                      struct meg_err *e);

/* A part that is one step, or a Sequence of such parts, at most eight deep. */
struct meg_hf_sequence {
    const char *list;        /* the member of a Sequence that holds its parts */
    const char *const *type; /* [n] what a step may be */
    int n;
    int (*add)(void *to, int kind, const json_t *part, const char *from, struct meg_err *e);
};
/* Call add with to for each step in turn, whose type is p->type[kind]; stop at the first failure. */
int meg_hf_sequence_load(const struct meg_hf_sequence *p, const json_t *part, void *to, const char *from,
                         struct meg_err *e);

/* What Split and Replace look for: {"String": s}, a plain string, or {"Regex": r}. */
struct meg_hf_pattern {
    struct meg_str literal;
    struct meg_regex *regex; /* NULL: the literal */
    int split;               /* enum meg_pretok that regex spells, or -1 */
};
int meg_hf_pattern_load(struct meg_hf_pattern *p, const json_t *part, const char *from, struct meg_err *e);
void meg_hf_pattern_free(struct meg_hf_pattern *p);
/* Append s [n] with every match replaced by to; where out grows beyond most bytes the rest is left out. */
int meg_hf_pattern_replace(const struct meg_hf_pattern *p, const char *s, int64_t n, const struct meg_str *to,
                           int64_t most, struct meg_str *out, struct meg_err *e);

/* ---- normaliser: NULL is none -------------------------------------------------------------------- */

struct meg_hf_normalizer;
int meg_hf_normalizer_load(struct meg_hf_normalizer **out, const json_t *part, const char *from, struct meg_err *e);
void meg_hf_normalizer_free(struct meg_hf_normalizer *n);
/* Set out to text normalised; what Prepend puts in front only where the text is_first of what is cut.
 * MEG_EFORMAT where a step gives more than most bytes, some MiB. */
int meg_hf_normalizer_run(const struct meg_hf_normalizer *norm, const char *text, int64_t n, bool is_first,
                          int64_t most, struct meg_str *out, struct meg_err *e);

/* May text be cut before a blank, tab, newline or carriage return (not between \r\n), whatever stands on
 * either side: is what is before and behind normalised as it is by itself?  Then it may be cut at any other
 * ASCII character, too, where *is_by_char, and before ideographs where *is_around_ideographs, which have blanks
 * put around them. */
bool meg_hf_normalizer_can_split_at_space(const struct meg_hf_normalizer *n, bool *is_by_char,
                                          bool *is_around_ideographs);
/* Does it only replace blanks, by mark, and perhaps put something in front? */
bool meg_hf_normalizer_is_metaspace(const struct meg_hf_normalizer *n, struct meg_span *mark);

/* ---- pre-tokeniser: NULL is none ------------------------------------------------------------------ */

struct meg_hf_pretoken {
    int32_t at, n; /* in text */
    bool is_start; /* begins where the whole text begins */
};

struct meg_hf_pretokens {
    struct meg_str text;
    struct meg_hf_pretoken *v;
    int64_t n, cap;
};
void meg_hf_pretokens_add(struct meg_hf_pretokens *p, const char *s, int64_t n, bool is_start);
void meg_hf_pretokens_free(struct meg_hf_pretokens *p);

struct meg_hf_pretokenizer;
int meg_hf_pretokenizer_load(struct meg_hf_pretokenizer **out, const json_t *part, const char *from, struct meg_err *e);
void meg_hf_pretokenizer_free(struct meg_hf_pretokenizer *p);
/* Cut pieces into smaller ones; other is room to work in.  MEG_EFORMAT where a step makes 256 MiB of them, or as
 * meg_regex_find_all. */
int meg_hf_pretokenizer_run(const struct meg_hf_pretokenizer *p, struct meg_hf_pretokens *pieces,
                            struct meg_hf_pretokens *other, struct meg_err *e);
/* Is it one of the known splits and then GPT-2's spelling of bytes, so that bytes may be looked up? */
bool meg_hf_pretokenizer_is_byte_level(const struct meg_hf_pretokenizer *p, enum meg_pretok *split,
                                       bool *add_prefix_space);

/* Does it first cut at whitespace, which goes away, perhaps around punctuation, too? */
bool meg_hf_pretokenizer_splits_whitespace(const struct meg_hf_pretokenizer *p, bool *is_around_punctuation);
/* Does it replace blanks by a mark and cut before each? */
bool meg_hf_pretokenizer_splits_metaspace(const struct meg_hf_pretokenizer *p);
/* Does it only replace blanks by mark, and perhaps put one in front of the whole text? */
bool meg_hf_pretokenizer_is_metaspace(const struct meg_hf_pretokenizer *p, struct meg_span *mark);

/* ---- long lists --------------------------------------------------------------------------------- */

/* The vocabulary, an object, and the merges, an array, of a model as the file spells them, well-formed;
 * s NULL where there is none, or something else. */
struct meg_hf_raw_vocab {
    struct meg_span vocab, merges;
};
/* Find them in a tokenizer.json, and append the file with empty ones in their place to rest.
 * MEG_EFORMAT for what is not JSON. */
int meg_hf_raw_vocab_extract(struct meg_hf_raw_vocab *lists, const char *text, int64_t n, struct meg_str *rest,
                             struct meg_err *e);
/* To the next member of a list, in which s stands at the beginning or behind a member; false: it ends. */
bool meg_hf_json_next(struct meg_json_scan *s);
/* A string, in place or in buf. */
int meg_hf_json_string(struct meg_json_scan *s, struct meg_str *buf, struct meg_span *out);

/* ---- model ---------------------------------------------------------------------------------------- */

/* The vocabulary: token number k has id id[k]. */
struct meg_hf_vocab {
    struct meg_strtab tokens;
    int32_t *id;
    int32_t max_id; /* -1: no token */
};
int32_t meg_hf_vocab_find(const struct meg_hf_vocab *v, const char *s, int64_t n); /* -1: none */
void meg_hf_vocab_add(struct meg_hf_vocab *v, const char *s, int64_t n, int32_t id);

struct meg_hf_model {
    const struct meg_hf_model_type *kind;
    struct meg_hf_raw_vocab lists; /* the caller's, while it is loaded */
    struct meg_hf_vocab vocab;
    void *own;
};
int meg_hf_model_load(struct meg_hf_model *m, const json_t *part, const char *from, struct meg_err *e);
void meg_hf_model_free(struct meg_hf_model *m);
/* Append the ids of a piece of n >= 1 bytes. */
int meg_hf_model_encode(const struct meg_hf_model *m, const char *s, int64_t n, struct meg_ids *out, struct meg_err *e);

/* A kind of model; own is its own. */
struct meg_hf_model_type {
    const char *name;
    int (*load)(struct meg_hf_model *m, const json_t *part, const char *from, struct meg_err *e);
    void (*free)(void *own);
    int (*encode)(const struct meg_hf_model *m, const char *s, int64_t n, struct meg_ids *out, struct meg_err *e);
};
extern const struct meg_hf_model_type meg_hf_bpe, meg_hf_unigram, meg_hf_wordpiece, meg_hf_wordlevel;

/* BPE over bytes, where the model is BPE that never needs more: see tokenizer/bpe/byte_level.h. */
struct meg_bytebpe;
bool meg_hf_bpe_to_byte_level(const struct meg_hf_model *m, struct meg_bytebpe *out);

/* Is it BPE that can be cut where no token has two characters side by side? */
bool meg_hf_bpe_has_safe_splits(const struct meg_hf_model *m);

/* An id in a JSON value: 0 .. 2^24-1. */
int meg_hf_get_id(const json_t *value, const char *what, const char *from, int32_t *id, struct meg_err *e);

/* ---- decoder: NULL joins tokens by blanks ---------------------------------------------------------- */

struct meg_hf_decoder;
int meg_hf_decoder_load(struct meg_hf_decoder **out, const json_t *part, const char *from, struct meg_err *e);
void meg_hf_decoder_free(struct meg_hf_decoder *d);
bool meg_hf_decoder_is_byte_level(const struct meg_hf_decoder *d); /* ByteLevel alone */
bool meg_hf_decoder_can_stream(const struct meg_hf_decoder *d);
/* The byte that a token stands for, which waits for those behind it; -1: it is text. */
int meg_hf_decoder_byte(const struct meg_hf_decoder *d, const char *token, int64_t n);
/* Append the text of tokens first, first + 1, ... of all; *state (from 0) goes from call to call. */
void meg_hf_decoder_run(const struct meg_hf_decoder *d, const struct meg_str *token, int64_t n, int64_t first,
                        int *state, struct meg_str *out);

#endif
