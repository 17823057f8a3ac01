/*
 * files.h - read the files of a Hugging Face tokenizer directory: tokenizer.json, tokenizer_config.json,
 * special_tokens_map.json and added_tokens.json (private to lib/tokenizer and its tests).
 *
 * The components of tokenizer.json are declared in tokenizer/hf/internal.h.
 */
#pragma once
#include "tokenizer/bpe/byte_level.h"
#include "tokenizer/hf/added.h"
#include "tokenizer/hf/internal.h"
#include "tokenizer/safe_split.h"

/* The points at which text can be cut before normalization without changing its ids (safe_split.c). */
struct meg_hf_safe_split {
    struct meg_safe_split table;
    bool is_tokenless[256]; /* true for a whitespace byte that is encoded to no ids if it is the entire chunk */
    int64_t max_gap;        /* maximum bytes of a chunk after normalization */
};

struct meg_hf_files {
    struct meg_hf_steps *normalizer, *pretokenizer, *decoder;
    struct meg_hf_model model;
    bool is_byte_level; /* encoding uses byte_level instead of pretokenizer and model */
    bool add_prefix_space;
    struct meg_bytebpe byte_level;
    struct meg_hf_safe_split *safe_split; /* NULL: no safe split points are known */
    struct meg_hf_added added;
    bool splits_special_tokens;                     /* special tokens in a text are encoded as ordinary text */
    struct meg_ids template_before, template_after; /* ids that the post-processor adds to a text */
    bool clean_up;                                  /* decoding removes spaces before punctuation */
    struct meg_tok_special_ids special_ids;
    /*
     * for meg_hf_explain: the tokenizer class; the normalizer and the pre-tokenizer of tokenizer.json, as changed by
     * the class; contradictions between the files
     */
    const char *class_name; /* NULL: there are no files beside tokenizer.json */
    json_t *normalizer_json, *pretokenizer_json, *differences;
    int64_t vocab_size;    /* largest id + 1 */
    struct meg_str *token; /* [vocab_size] tokens by id, borrowed from model.vocab and added; .s is NULL if unused */
};

/*
 * meg_hf_files_load - read c->tokenizer_json and the other files of a tokenizer
 * tokenizer/hf/config.h describes the other files, which may be missing.  Returns MEG_EFORMAT if a file is invalid or
 * larger than 64 MiB, or requires an unsupported feature.  Otherwise fails as meg_mmap_open does.
 */
int meg_hf_files_load(struct meg_hf_files **out, const struct meg_tok_conf *c, struct meg_err *e);
void meg_hf_files_free(void *files); /* accepts NULL */

/* Return the member `name` of file, or NULL if it is missing or null. */
static inline const json_t *meg_hf_component_of(const json_t *file, const char *name)
{
    const json_t *p = json_object_get(file, name);

    return json_is_null(p) ? NULL : p;
}

/* Parse a JSON text whose value must be an object; `path` is its name in messages. */
int meg_hf_parse_object(json_t **out, const void *bytes, size_t n, const char *path, struct meg_err *e);

/* ---- Post-processor (post_processor.c) ---- */

/* If is_before, prepend ids to template_before; otherwise append ids to template_after. */
void meg_hf_add_template_ids(struct meg_hf_files *f, bool is_before, const int32_t *ids, int64_t n);
/* Set the template to that of the post-processor of tokenizer.json. */
int meg_hf_load_post_processor(struct meg_hf_files *f, const json_t *post, const char *where, struct meg_err *e);

/*
 * Maximum number of bytes that are encoded at once.  Without byte-level BPE, a byte of original text requires about 15
 * bytes of memory, and a byte of normalized text about 35 bytes.
 */
enum {
    MEG_HF_MAX_CHUNK = 16 << 20,     /* a chunk between safe split points, before normalization */
    MEG_HF_MAX_UNSPLIT = 6 << 20,    /* text between added tokens if the tokenizer has no safe split points */
    MEG_HF_MAX_BYTE_LEVEL = 64 << 20 /* byte-level BPE: text after normalization, if there is a normalizer */
};

/*
 * meg_hf_safe_split_build - set f->safe_split
 * If safe_split.c does not find safe split points for f, f->safe_split remains NULL.  All other fields must be set
 * before the call.  Fails as meg_hf_normalizer_run and meg_hf_pretokenizer_run do.
 */
int meg_hf_safe_split_build(struct meg_hf_files *f, struct meg_err *e);
