/* internal.h - the interface that each tokenizer type implements, and helper functions used by several types. */
#pragma once
#include <jansson.h>
#include "base/strtab.h"
#include "file/file.h"
#include "tokenizer/megatron_release.h"
#include "tokenizer/tokenizer.h"

/* The library that Megatron-LM (Megatron Core 0.15 and later) uses for a tokenizer type. */
enum meg_tok_library {
    MEG_TOK_LIB_MEGATRON, /* transformers, with --vocab-file and --merge-file instead of tokenizer.json */
    MEG_TOK_LIB_HF,
    MEG_TOK_LIB_SENTENCEPIECE,
    MEG_TOK_LIB_TIKTOKEN,
    MEG_TOK_LIB_NULL,
    MEG_NUM_TOK_LIBS
};

struct meg_tok_class {
    const char *name; /* value of --tokenizer-type */
    enum meg_tok_library origin;
    bool has_extra_ids; /* true if the type supports --vocab-extra-ids */
    size_t size;        /* bytes of the struct of the type, which begins with a struct meg_tokenizer */
    /*
     * Implement meg_tokenizer_open: set the members of *t, except is_clone.  Before the call, all are zero except type
     * and special_ids, which are all -1.  The caller closes t after a failure.
     */
    int (*open)(struct meg_tokenizer *t, const struct meg_tok_conf *c, struct meg_err *e);
    void (*free_files)(void *files);               /* free t->files, which may be NULL; NULL: the type has no files */
    void (*free_buffers)(struct meg_tokenizer *t); /* free what the struct of the type owns; NULL: nothing */
    /* Implement meg_tokenizer_encode_to_sink.  text is well-formed UTF-8 and n < INT32_MAX.  On failure the caller
     * removes the ids that were appended to out. */
    int (*encode)(struct meg_tokenizer *t, const char *text, int64_t n, struct meg_ids *out,
                  const struct meg_id_sink *sink, struct meg_err *e);
    /* Implement meg_tokenizer_bytes.  The caller has checked that the ids are in the vocabulary. */
    void (*bytes)(const struct meg_tokenizer *t, const int32_t *ids, int64_t n, struct meg_str *out);
    /* Implement meg_detok_add, but the caller checks that the ids are in the vocabulary and adds n to d->n. */
    void (*decode)(struct meg_detok *d, const int32_t *ids, int64_t n, bool is_last, struct meg_str *out);
    /* Implement meg_tokenizer_token for an id in the vocabulary; NULL: the token is its bytes. */
    void (*token)(const struct meg_tokenizer *t, int32_t id, struct meg_str *out);
};

/*
 * The members that all tokenizer types have.  Each type defines a struct that begins with a struct meg_tokenizer,
 * followed by buffers of that type, which are zero in a new tokenizer and in a new clone.
 */
struct meg_tokenizer {
    const struct meg_tok_class *type;
    void *files; /* the loaded files; clones use those of the original */
    bool is_clone;
    int64_t vocab_size;
    bool adds_spaces;     /* decoding adds spaces between words (meg_tokenizer_token_text) */
    int64_t num_appended; /* the last ids of the vocabulary that no text contains (meg_tokenizer_num_text_ids) */
    struct meg_tok_special_ids special_ids;
    struct meg_str description; /* see meg_tokenizer_description */
};

/* Append the strings ids [n] of a table. */
void meg_tok_add_strings(const struct meg_strtab *tokens, const int32_t *ids, int64_t n, struct meg_str *out);

/*
 * Write the first n ids to the sink, and remove them from the array.  If the sink fails, the length of the array does
 * not change, but the sink may have overwritten the first n ids.
 */
int meg_ids_write(struct meg_ids *ids, int64_t n, const struct meg_id_sink *sink, struct meg_err *e);

/*
 * If `ids` contains more than MEG_IDS_FLUSH_COUNT ids, write all but the last one to the sink.  Do nothing if `sink` is
 * NULL.  Tokenizers call this function after they have appended ids of a text, so the remaining id belongs to this
 * text.  Fails as the sink does.
 */
static inline int meg_ids_flush(struct meg_ids *ids, const struct meg_id_sink *sink, struct meg_err *e)
{
    return sink && ids->n > MEG_IDS_FLUSH_COUNT ? meg_ids_write(ids, ids->n - 1, sink, e) : 0;
}

/*
 * meg_tok_mmap_file - map a tokenizer file into memory
 * meg_tok_read_file - append the contents of a tokenizer file to out
 * Both return MEG_EFORMAT for a file of more than MEG_TOK_MAX_FILE_BYTES.  Otherwise they fail as meg_mmap_open does.
 */
enum { MEG_TOK_MAX_FILE_BYTES = 64 << 20 };
int meg_tok_mmap_file(struct meg_mmap *map, const char *path, struct meg_err *e);
int meg_tok_read_file(const char *path, struct meg_str *out, struct meg_err *e);

/* Return the path of the file `name` in the directory dir [ndir], or NULL if there is no such file. */
char *meg_tok_path_in_dir(const char *dir, int ndir, const char *name);
bool meg_tok_is_dir(const char *path);
/* Fail because path has no tokenizer.json: the message names the tokenizer that is there, and its options. */
int meg_tok_refuse_path(const char *path, struct meg_err *e);

extern const struct meg_tok_class meg_tok_gpt2, meg_tok_null, meg_tok_sentencepiece, meg_tok_gpt_sentencepiece,
    meg_tok_llama2, meg_tok_bert_lower, meg_tok_bert_case, meg_tok_tiktoken, meg_tok_hf, meg_tok_hf_pretrained;

/*
 * Implement meg_tok_class.decode for types in which the text of ids is the output of meg_tok_class.bytes.  Replace
 * ill-formed UTF-8 by one U+FFFD per maximal subpart (Unicode 3.9).
 */
void meg_tok_decode_bytes(struct meg_detok *d, const int32_t *ids, int64_t n, bool is_last, struct meg_str *out);

/*
 * Remove spaces before punctuation and contractions.  Apply the rules of clean_up_tokenization in transformers or, if
 * is_wordpiece, of the WordPiece decoder in Hugging Face's tokenizers.
 */
void meg_tok_clean_up(struct meg_str *text, bool is_wordpiece);

/*
 * Set t->description as releases before 0.15 write it: the name of the class in Megatron-LM, the files and the options.
 * The list `files` is NULL-terminated; an empty list is written as [null].  The list `options` is NULL-terminated and
 * alternates between names and values.
 */
void meg_tok_set_description(struct meg_tokenizer *t, const char *class_name, const char *const *files,
                             const char *const *options);

/* Set t->description as releases from 0.15 on write it: class, path and keyword arguments. */
void meg_tok_describe_kwargs(struct meg_tokenizer *t, const struct meg_tok_conf *c,
                             const struct meg_megatron_release *release);

/*
 * Add members to the report of meg_tokenizer_explain: class, transformers, added_tokens, before_a_text, after_a_text,
 * prefix_space, normalization, pre-tokenization, splits_special_tokens and contradictions.
 */
void meg_hf_explain(struct meg_tokenizer *t, json_t *report);
/* Return ids [n] as an array of objects with "id" and "token". */
json_t *meg_tok_explain_ids(const struct meg_tokenizer *t, const int32_t *ids, int64_t n);

/* Append a list of strings as Python's str() prints it, or None if the list is empty. */
void meg_tok_add_python_list(struct meg_str *out, const struct meg_str_list *list);
