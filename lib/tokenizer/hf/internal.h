/*
 * internal.h - components of a Hugging Face tokenizer.json (private to lib/tokenizer/hf).
 *
 * Encoding runs the normalizer, the pre-tokenizer and the model, in this order; decoding runs the decoder.  A component
 * is loaded from its JSON value, which need not outlive the call.  Loading returns MEG_EFORMAT for an unknown type and
 * for members that are missing or of the wrong type; the message begins with `where` ("FILE: normalizer").  Any number
 * of threads may use a loaded component.  Text arguments are well-formed UTF-8.  Reference: the types of the same names
 * in https://github.com/huggingface/tokenizers.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "base/mem.h"
#include "base/strtab.h"
#include "io/json_scan.h"
#include "tokenizer/pretokenize/pretokenize.h"
#include "tokenizer/regex.h"
#include "tokenizer/tokenizer.h"

/* ---- JSON members (steps.c) ---- */

/* Set *type to the member "type" of the object `part`, which owns the string. */
int meg_hf_get_type(const json_t *part, const char **type, const char *where, struct meg_err *e);
/* Return MEG_EFORMAT with the message that this type of component is not supported. */
int meg_hf_unknown_type(const char *type, const char *where, struct meg_err *e);
/* Read a token id from 0 to 2^24-1.  `what` is the name of the token in error messages. */
int meg_hf_get_id(const json_t *value, const char *what, const char *where, int32_t *id, struct meg_err *e);

/*
 * ---- Steps (steps.c) ----
 * A normalizer, pre-tokenizer or decoder is loaded as a list of steps.  The JSON value of the component is a step or a
 * Sequence of such values.  Nested Sequences, which may be eight levels deep, become one list.
 */

/* A member of a step in JSON, and the field of the step that is set to it. */
struct meg_hf_member {
    const char *key;
    enum { MEG_HF_BOOL = 1, MEG_HF_I64, MEG_HF_STRING, MEG_HF_TEXT, MEG_HF_PATTERN } type;
    size_t offset;        /* of the field: bool, int64_t, const char *, struct meg_str or struct meg_hf_pattern */
    const char *fallback; /* value if the member is missing; NULL: the field is not changed, but MEG_HF_TEXT fails */
};

/* The step types of one component (normalizer, pre-tokenizer or decoder), and functions to finish and free a step. */
struct meg_hf_step_class {
    const char *list_key; /* key of the array in a Sequence, such as "normalizers" */
    const struct meg_hf_step_type {
        const char *name;                /* value of "type" */
        struct meg_hf_member members[6]; /* ends with { 0 } */
    } * types;                           /* [ntypes] */
    int ntypes;
    size_t size; /* bytes per step */
    /*
     * Finish a step of type types[type].  Its members are set, other fields are zero.  Strings are valid during the
     * call only.  The caller frees the step, even after a failure.
     */
    int (*finish)(void *step, int type, const char *where, struct meg_err *e);
    void (*free)(void *step); /* free the memory that the step owns */
};

/* A loaded component.  The pointer is NULL if tokenizer.json has no such component. */
struct meg_hf_steps {
    const struct meg_hf_step_class *type;
    void *v; /* [n] steps of type->size bytes each */
    int64_t n;
};
int meg_hf_steps_load(struct meg_hf_steps **out, const struct meg_hf_step_class *type, const json_t *part,
                      const char *where, struct meg_err *e);
void meg_hf_steps_free(struct meg_hf_steps *s); /* accepts NULL */

/* Return step i, or NULL if there is none. */
static inline const void *meg_hf_step(const struct meg_hf_steps *s, int64_t i)
{
    return s && i >= 0 && i < s->n ? (const char *)s->v + (size_t)i * s->type->size : NULL;
}

/*
 * ---- Pattern (pattern.c) ----
 * The pattern that Split and Replace search for: a string, given as "s" or {"String": "s"}, or a regular expression,
 * given as {"Regex": "r"}.
 */

struct meg_hf_pattern {
    struct meg_str literal;
    struct meg_regex *regex; /* NULL: search for literal */
    int pretok;              /* the enum meg_pretok with this regular expression, or -1 if there is none */
};
int meg_hf_pattern_load(struct meg_hf_pattern *p, const json_t *part, const char *where, struct meg_err *e);
void meg_hf_pattern_free(struct meg_hf_pattern *p);
/* Append the matches in s [n] to out, as spans of s.  Fails as meg_regex_find_all does. */
int meg_hf_pattern_find(const struct meg_hf_pattern *p, const char *s, int64_t n, struct meg_spans *out,
                        struct meg_err *e);
/*
 * Append s [n] to out with matches replaced by `to`.  Once out exceeds max_bytes, the remaining matches are not
 * replaced.  Fails as meg_regex_find_all does; only the matches before the failure are then replaced.
 */
int meg_hf_pattern_replace(const struct meg_hf_pattern *p, const char *s, int64_t n, const struct meg_str *to,
                           int64_t max_bytes, struct meg_str *out, struct meg_err *e);

/*
 * ---- Normalizer (normalizer.c) ----
 * A normalizer rewrites text before it is split: Unicode normalization, lowercasing, accent stripping, replacements.
 * All functions but run accept NULL.
 */

extern const struct meg_hf_step_class meg_hf_normalizer;
/*
 * Normalize text [n] and set `out` to the result.  is_first_chunk is false if text begins at a safe split point inside
 * a longer text; the step Prepend then does nothing.  Returns MEG_EFORMAT if a step produces more than max_bytes, a
 * multiple of 1 MiB; otherwise fails as meg_normal_form_add and meg_regex_find_all do.
 */
int meg_hf_normalizer_run(const struct meg_hf_steps *norm, const char *text, int64_t n, bool is_first_chunk,
                          int64_t max_bytes, struct meg_str *out, struct meg_err *e);

/*
 * Return true if the normalizer removes whitespace at the start of text [n].  The normalized text then does not begin
 * at the start of the input text: a Metaspace with the scheme "first" prepends nothing to it.
 */
bool meg_hf_normalizer_strips_start(const struct meg_hf_steps *norm, const char *text, int64_t n);

/*
 * Return true if cutting text before a space, tab, newline or carriage return (but not inside \r\n) does not change the
 * normalized text.  If true, set two flags:
 *   is_by_char            text can be cut before any other ASCII character
 *   is_around_ideographs  the normalizer surrounds ideographs with spaces, so text can be cut before ideographs
 */
bool meg_hf_normalizer_can_split_at_space(const struct meg_hf_steps *n, bool *is_by_char, bool *is_around_ideographs);
/*
 * Return true if the normalizer is a Replace that maps each space to a fixed string, or a Prepend followed by such a
 * Replace.  If true, set *mark to this string, which the normalizer owns.
 */
bool meg_hf_normalizer_is_metaspace(const struct meg_hf_steps *n, struct meg_span *mark);

/*
 * ---- Pre-tokens ----
 * Normalized text is split into pre-tokens.  The model encodes each pre-token separately.
 */

struct meg_hf_pretoken {
    int32_t offset, n;  /* byte range in meg_hf_pretokens.text */
    bool is_text_start; /* true if the pre-token is at the start of the input text */
};

struct meg_hf_pretokens {
    struct meg_str text; /* text of all pre-tokens, concatenated */
    struct meg_hf_pretoken *v;
    int64_t n, cap;
};
/* Append a copy of s [n] as a pre-token, or nothing if n is 0. */
void meg_hf_pretokens_add(struct meg_hf_pretokens *p, const char *s, int64_t n, bool is_text_start);
void meg_hf_pretokens_free(struct meg_hf_pretokens *p);

/*
 * ---- Pre-tokenizer (pretokenizer.c) ----
 * A pre-tokenizer splits normalized text.  All functions but run accept NULL.
 */

extern const struct meg_hf_step_class meg_hf_pretokenizer;
/*
 * Split each pre-token further, in place.  The call may exchange the buffers of pretokens and scratch; the caller owns
 * both.  Returns MEG_EFORMAT if a step produces more than 256 MiB; otherwise fails as meg_regex_find_all does.
 */
int meg_hf_pretokenizer_run(const struct meg_hf_steps *p, struct meg_hf_pretokens *pretokens,
                            struct meg_hf_pretokens *scratch, struct meg_err *e);
/*
 * Return true if the pre-tokenizer splits by a pattern of enum meg_pretok and then maps bytes to characters as GPT-2
 * does.  If so, set *pretok, and set *add_prefix_space to whether a space is prepended to text that does not begin with
 * one.  If the model is byte-level BPE, tokenizer/bpe/byte_level.h can then encode the text without this mapping.
 */
bool meg_hf_pretokenizer_is_byte_level(const struct meg_hf_steps *p, enum meg_pretok *pretok, bool *add_prefix_space);
/*
 * Return true if the first step is BertPreTokenizer or WhitespaceSplit.  Both split at whitespace and remove the
 * whitespace.  Set *is_around_punctuation to whether the first step is BertPreTokenizer, which isolates punctuation.
 */
bool meg_hf_pretokenizer_splits_whitespace(const struct meg_hf_steps *p, bool *is_around_punctuation);
/* Return true if the first step is Metaspace and splits before each replacement character (usually U+2581). */
bool meg_hf_pretokenizer_splits_metaspace(const struct meg_hf_steps *p);
/*
 * Return true if the pre-tokenizer is one Metaspace step, this step does not split, and its prepend_scheme is not
 * "always".  Such a step replaces each space by a replacement character (usually U+2581).  With the scheme "first", the
 * step prepends a replacement character to an input text that does not begin with one.  If true, set *mark to the
 * replacement character, which the pre-tokenizer owns.
 */
bool meg_hf_pretokenizer_is_metaspace(const struct meg_hf_steps *p, struct meg_span *mark);

/*
 * ---- Raw vocabulary (vocab_scan.c) ----
 * The model's members "vocab" (an object) and "merges" (an array) are scanned in the text of the file.  Building a JSON
 * tree for them would take most of the time of opening the file.
 */

struct meg_hf_raw_vocab {
    struct meg_span vocab, merges; /* JSON text of each member; .s is NULL if it is missing or of another type */
};
/*
 * Find vocab and merges in the text of a tokenizer.json.  Append the text to rest, with vocab and merges replaced by
 * empty values.  Returns MEG_EFORMAT if the text is not well-formed UTF-8 or if the scan finds a syntax error.
 */
int meg_hf_raw_vocab_extract(struct meg_hf_raw_vocab *raw, const char *text, int64_t n, struct meg_str *rest,
                             struct meg_err *e);
/*
 * Advance s to the next item of an array or object.  Before the call, s is at the opening bracket or at the end of an
 * item.  Return false at the closing bracket.
 */
bool meg_hf_json_next(struct meg_json_scan *s);
/* Read a string.  out points into the JSON text, or into buf if the string has escapes. */
int meg_hf_json_string(struct meg_json_scan *s, struct meg_str *buf, struct meg_span *out);

/*
 * ---- Model (model.c, model_bpe.c, model_unigram.c) ----
 * A model segments a pre-token into tokens of its vocabulary by BPE, Unigram, WordPiece or WordLevel.
 */

/* The tokens in the order of the file.  Token k has id id[k]. */
struct meg_hf_vocab {
    struct meg_strtab tokens;
    int32_t *id;
    int32_t max_id; /* -1: the vocabulary is empty */
};
int32_t meg_hf_vocab_find(const struct meg_hf_vocab *v, const char *s, int64_t n); /* returns the id, or -1 */
void meg_hf_vocab_add(struct meg_hf_vocab *v, const char *s, int64_t n, int32_t id);
/* Set byte_id to the ids of <0x00> .. <0xFF> if byte_fallback is set; -1: no such token, or no byte_fallback. */
void meg_hf_vocab_byte_ids(const struct meg_hf_vocab *v, bool byte_fallback, int32_t byte_id[256]);

struct meg_hf_model {
    const struct meg_hf_model_type *type;
    struct meg_hf_raw_vocab raw_vocab; /* set by the caller before meg_hf_model_load; not used after that call */
    struct meg_hf_vocab vocab;
    void *impl; /* data of the model type */
};
int meg_hf_model_load(struct meg_hf_model *m, const json_t *part, const char *where, struct meg_err *e);
void meg_hf_model_free(struct meg_hf_model *m);
/* Append the ids of a pre-token of n >= 1 bytes.  Returns MEG_EFORMAT if the model cannot encode the pre-token. */
int meg_hf_model_encode(const struct meg_hf_model *m, const char *s, int64_t n, struct meg_ids *out, struct meg_err *e);

struct meg_hf_model_type {
    const char *name; /* value of "type" */
    int (*load)(struct meg_hf_model *m, const json_t *part, const char *where, struct meg_err *e);
    void (*free)(void *impl);
    int (*encode)(const struct meg_hf_model *m, const char *s, int64_t n, struct meg_ids *out, struct meg_err *e);
};
extern const struct meg_hf_model_type meg_hf_bpe, meg_hf_unigram, meg_hf_wordpiece, meg_hf_wordlevel;

struct meg_bytebpe;
/*
 * Set `out` to a vocabulary for tokenizer/bpe/byte_level.h, move the merges of m to `out`, and return true.  After the
 * move, m can no longer encode.  m must be BPE without prefix, suffix or byte fallback.  Each byte that occurs in UTF-8
 * must be a token, spelled in GPT-2's byte alphabet.  Otherwise return false and leave m unchanged.
 * The caller sets out->pretok.
 */
bool meg_hf_bpe_to_byte_level(struct meg_hf_model *m, struct meg_bytebpe *out);
/*
 * Return true if m is BPE and a text can be cut between two characters that are not adjacent in any token.  Such a cut
 * does not change the ids.
 */
bool meg_hf_bpe_has_safe_splits(const struct meg_hf_model *m);

/*
 * ---- Decoder (decoder.c) ----
 * A decoder maps the list of tokens to text.  A NULL decoder concatenates the tokens with spaces between them.  All
 * functions accept NULL.
 */

extern const struct meg_hf_step_class meg_hf_decoder;
/* Return true if the decoder consists of ByteLevel alone. */
bool meg_hf_decoder_is_byte_level(const struct meg_hf_steps *d);
/* Return true if decoding adds spaces between tokens: a WordPiece step, or no decoder. */
bool meg_hf_decoder_adds_spaces(const struct meg_hf_steps *d);
/*
 * Return true if the text of a token does not depend on later tokens.  Byte-fallback tokens are an exception: they are
 * decoded together with the neighboring byte-fallback tokens.
 */
bool meg_hf_decoder_can_stream(const struct meg_hf_steps *d);
/* Return the byte 0xNN if the decoder has a ByteFallback step and the token is <0xNN>, else -1. */
int meg_hf_decoder_byte(const struct meg_hf_steps *d, const char *token, int64_t n);
/*
 * Append the text of tokens [n], which have indices first .. first+n-1 in the decoded sequence.  *state passes
 * information from call to call.  Set it to 0 before the first call of a sequence, and do not change it afterwards.
 */
void meg_hf_decoder_run(const struct meg_hf_steps *d, const struct meg_str *token, int64_t n, int64_t first, int *state,
                        struct meg_str *out);
