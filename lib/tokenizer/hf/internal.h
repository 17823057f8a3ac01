/*
 * internal.h - components of a Hugging Face tokenizer.json (private to lib/tokenizer/hf).
 *
 * Encoding runs normalizer, pre-tokenizer and model in this order; decoding runs the decoder.  A component is loaded
 * from its JSON value, which need not outlive the call; `where` ("FILE: normalizer") begins its error messages.
 * Loading returns MEG_EFORMAT for an unknown type and for members that are missing or of the wrong type.  A loaded
 * component is read-only: any number of threads may use it.  All text is well-formed UTF-8.
 * Reference: https://github.com/huggingface/tokenizers, the type of the same name.
 */
#ifndef MEG_TOKENIZER_HF_INTERNAL_H
#define MEG_TOKENIZER_HF_INTERNAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/decls.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/regex.h"
#include "base/strtab.h"
#include "io/json_scan.h"
#include "tokenizer/pretokenize/pretokenize.h"
#include "tokenizer/tokenizer.h"

MEG_BEGIN_DECLS

/*
 * ---- JSON members (json_members.c) ----
 * Read the members that several components have.
 */

/* Set *type to the member "type" of an object; it belongs to part. */
int meg_hf_get_type(const json_t *part, const char **type, const char *where, struct meg_err *e);
/* Return MEG_EFORMAT with the message that type is not supported. */
int meg_hf_unknown_type(const char *type, const char *where, struct meg_err *e);
/* Append string member key to out, or fallback when the member is absent.  With fallback NULL it is required. */
int meg_hf_get_string(const json_t *part, const char *key, const char *fallback, struct meg_str *out, const char *where,
                      struct meg_err *e);
/* Read a token id, 0 .. 2^24-1; what names its token in the message. */
int meg_hf_get_id(const json_t *value, const char *what, const char *where, int32_t *id, struct meg_err *e);

/*
 * ---- Steps (steps.c) ----
 * A normalizer, pre-tokenizer or decoder is a list of steps: one step, or a Sequence of components, at most eight
 * deep, which is flattened.
 */

/* How a component (normalizer, pre-tokenizer or decoder) loads its steps. */
struct meg_hf_step_class {
    const char *list_key;     /* the member of a Sequence that holds its components */
    const char *const *types; /* [ntypes] values of "type" */
    int ntypes;
    size_t size; /* of a step in bytes */
    /* Fill a zeroed step of types[type]; on failure the caller frees it, too. */
    int (*load)(void *step, int type, const json_t *part, const char *where, struct meg_err *e);
    void (*free)(void *step); /* release what the step owns */
};

struct meg_hf_steps {
    void *v; /* [n] steps of class->size bytes */
    int64_t n;
};

/* Load all steps of a component in order.  On failure out owns nothing. */
int meg_hf_steps_load(struct meg_hf_steps *out, const struct meg_hf_step_class *c, const json_t *part,
                      const char *where, struct meg_err *e);
void meg_hf_steps_free(void *v, int64_t n, const struct meg_hf_step_class *c);

/*
 * ---- Pattern (pattern.c) ----
 * What Split and Replace search for: {"String": s}, a plain string, or {"Regex": r}.
 */

struct meg_hf_pattern {
    struct meg_str literal;
    struct meg_regex *regex; /* NULL: search for literal */
    int pretok;              /* enum meg_pretok with this regex, or -1 */
};
int meg_hf_pattern_load(struct meg_hf_pattern *p, const json_t *part, const char *where, struct meg_err *e);
void meg_hf_pattern_free(struct meg_hf_pattern *p);
/* Append all matches in s [n] to out; they point into s.  Fails as meg_regex_find_all. */
int meg_hf_pattern_find(const struct meg_hf_pattern *p, const char *s, int64_t n, struct meg_spans *out,
                        struct meg_err *e);
/* Append s [n] to out with every match replaced by `to`.  Stop replacing once out exceeds max_bytes. */
int meg_hf_pattern_replace(const struct meg_hf_pattern *p, const char *s, int64_t n, const struct meg_str *to,
                           int64_t max_bytes, struct meg_str *out, struct meg_err *e);

/*
 * ---- Normalizer (normalizer.c) ----
 * Rewrites text before it is split: Unicode normal forms, lowercase, accents, replacements.  NULL where
 * tokenizer.json has none; the three queries accept NULL.
 */

struct meg_hf_normalizer;
int meg_hf_normalizer_load(struct meg_hf_normalizer **out, const json_t *part, const char *where, struct meg_err *e);
void meg_hf_normalizer_free(struct meg_hf_normalizer *n);
/*
 * Set out to the normalized text.  Prepend adds its string only if is_first_chunk: the text is not a later chunk of
 * text that was cut at safe split points.  MEG_EFORMAT when a step produces more than max_bytes.
 */
int meg_hf_normalizer_run(const struct meg_hf_normalizer *norm, const char *text, int64_t n, bool is_first_chunk,
                          int64_t max_bytes, struct meg_str *out, struct meg_err *e);

/*
 * Return true if text can be cut before any space, tab, newline or carriage return (not inside \r\n) so that each
 * side is normalized independently of the other.  *is_by_char: then it can also be cut at any other ASCII character.
 * *is_around_ideographs: also before ideographs, which the normalizer surrounds with spaces.
 */
bool meg_hf_normalizer_can_split_at_space(const struct meg_hf_normalizer *n, bool *is_by_char,
                                          bool *is_around_ideographs);
/* Return true if it only replaces each space by *mark (borrowed), perhaps after a Prepend. */
bool meg_hf_normalizer_is_metaspace(const struct meg_hf_normalizer *n, struct meg_span *mark);

/*
 * ---- Pre-tokens ----
 * The normalized text split into pre-tokens.  Each pre-token is encoded by the model on its own.
 */

struct meg_hf_pretoken {
    int32_t offset, n;  /* bytes of meg_hf_pretokens.text */
    bool is_text_start; /* it begins where the text given to encode begins */
};

struct meg_hf_pretokens {
    struct meg_str text; /* of all pre-tokens, concatenated */
    struct meg_hf_pretoken *v;
    int64_t n, cap;
};
/* Append a copy of s [n]; nothing when n is 0. */
void meg_hf_pretokens_add(struct meg_hf_pretokens *p, const char *s, int64_t n, bool is_text_start);
void meg_hf_pretokens_free(struct meg_hf_pretokens *p);

/*
 * ---- Pre-tokenizer (pretokenizer.c) ----
 * NULL where tokenizer.json has none; the queries accept NULL.
 */

struct meg_hf_pretokenizer;
int meg_hf_pretokenizer_load(struct meg_hf_pretokenizer **out, const json_t *part, const char *where,
                             struct meg_err *e);
void meg_hf_pretokenizer_free(struct meg_hf_pretokenizer *p);
/*
 * Split each of pretokens further, in place; scratch is a second buffer that the caller keeps between calls.
 * MEG_EFORMAT when a step produces more than 256 MiB, or as meg_regex_find_all.
 */
int meg_hf_pretokenizer_run(const struct meg_hf_pretokenizer *p, struct meg_hf_pretokens *pretokens,
                            struct meg_hf_pretokens *scratch, struct meg_err *e);
/*
 * Return true if it is one of the known patterns followed by GPT-2's mapping of bytes to characters: then
 * tokenizer/bpe/byte_level.h encodes the text without this mapping.
 */
bool meg_hf_pretokenizer_is_byte_level(const struct meg_hf_pretokenizer *p, enum meg_pretok *pretok,
                                       bool *add_prefix_space);
/* Return true if its first step splits at whitespace and removes it; *is_around_punctuation: and isolates
 * punctuation. */
bool meg_hf_pretokenizer_splits_whitespace(const struct meg_hf_pretokenizer *p, bool *is_around_punctuation);
/* Return true if its first step replaces each space by a mark and splits before each mark. */
bool meg_hf_pretokenizer_splits_metaspace(const struct meg_hf_pretokenizer *p);
/* Return true if it only replaces each space by *mark (borrowed), perhaps with one in front of the text. */
bool meg_hf_pretokenizer_is_metaspace(const struct meg_hf_pretokenizer *p, struct meg_span *mark);

/*
 * ---- Raw vocabulary (vocab_scan.c) ----
 * "vocab" (an object) and "merges" (an array) of the model are scanned in the file's text: to build a JSON tree of
 * them would be most of the time that opening the file takes.
 */

struct meg_hf_raw_vocab {
    struct meg_span vocab, merges; /* well-formed JSON in the text given; s NULL: absent, or of another type */
};
/*
 * Find both in a tokenizer.json, and append the file to rest with an empty object and array instead.
 * MEG_EFORMAT if the text is not JSON.
 */
int meg_hf_raw_vocab_extract(struct meg_hf_raw_vocab *raw, const char *text, int64_t n, struct meg_str *rest,
                             struct meg_err *e);
/* Advance s from the opening bracket, or from the end of a member, to the next member; false at the closing one. */
bool meg_hf_json_next(struct meg_json_scan *s);
/* Read a string; out points into the JSON text, or into buf if the string has escapes. */
int meg_hf_json_string(struct meg_json_scan *s, struct meg_str *buf, struct meg_span *out);

/*
 * ---- Model (model.c, model_bpe.c, model_unigram.c) ----
 * Segments a pre-token into tokens of its vocabulary: BPE, Unigram, WordPiece or WordLevel.
 */

/* Tokens in the order of the file; token k has id id[k]. */
struct meg_hf_vocab {
    struct meg_strtab tokens;
    int32_t *id;
    int32_t max_id; /* -1: the vocabulary is empty */
};
int32_t meg_hf_vocab_find(const struct meg_hf_vocab *v, const char *s, int64_t n); /* id, or -1 */
void meg_hf_vocab_add(struct meg_hf_vocab *v, const char *s, int64_t n, int32_t id);

struct meg_hf_model {
    const struct meg_hf_model_type *type;
    struct meg_hf_raw_vocab raw_vocab; /* borrowed, set by the caller of meg_hf_model_load, which alone reads it */
    struct meg_hf_vocab vocab;
    void *impl; /* of type */
};
int meg_hf_model_load(struct meg_hf_model *m, const json_t *part, const char *where, struct meg_err *e);
void meg_hf_model_free(struct meg_hf_model *m);
/* Append the ids of a pre-token of n >= 1 bytes. */
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
 * If m is BPE over the 256 byte characters without prefix, suffix or byte fallback, move its merges to out and
 * return true; m can then no longer encode.  See tokenizer/bpe/byte_level.h.
 */
bool meg_hf_bpe_to_byte_level(struct meg_hf_model *m, struct meg_bytebpe *out);
/* Return true if m is BPE whose text can be cut between any two characters that are not adjacent in a token. */
bool meg_hf_bpe_has_safe_splits(const struct meg_hf_model *m);

/*
 * ---- Decoder (decoder.c) ----
 * Maps the list of tokens to text.  NULL joins tokens with spaces; all but load and free accept NULL.
 */

struct meg_hf_decoder;
int meg_hf_decoder_load(struct meg_hf_decoder **out, const json_t *part, const char *where, struct meg_err *e);
void meg_hf_decoder_free(struct meg_hf_decoder *d);
/* Return true if it is ByteLevel alone. */
bool meg_hf_decoder_is_byte_level(const struct meg_hf_decoder *d);
/* Return true if later tokens never change the text of earlier ones, except for runs of byte tokens. */
bool meg_hf_decoder_can_stream(const struct meg_hf_decoder *d);
/* Return the byte of a byte-fallback token, whose text depends on the bytes after it, or -1. */
int meg_hf_decoder_byte(const struct meg_hf_decoder *d, const char *token, int64_t n);
/*
 * Append the text of tokens [n], which are tokens first .. first+n-1 of the text.  *state is 0 at first and carries
 * over from one call to the next.
 */
void meg_hf_decoder_run(const struct meg_hf_decoder *d, const struct meg_str *token, int64_t n, int64_t first,
                        int *state, struct meg_str *out);

MEG_END_DECLS

#endif
