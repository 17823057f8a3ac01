/* internal.h - what a kind of tokenizer provides. */
#ifndef MEG_TOKENIZER_INTERNAL_H
#define MEG_TOKENIZER_INTERNAL_H

#include "file/file.h"
#include "tokenizer/megatron_release.h"
#include "tokenizer/tokenizer.h"

/* What does the work in Megatron-LM from core 0.15 on. */
enum meg_tok_library {
    MEG_TOK_LIB_MEGATRON, /* transformers, with files of Megatron's formats */
    MEG_TOK_LIB_HF,
    MEG_TOK_LIB_SENTENCEPIECE,
    MEG_TOK_LIB_TIKTOKEN,
    MEG_TOK_LIB_NULL,
    MEG_NUM_TOK_LIBS
};

struct meg_tok_class {
    const char *name; /* as --tokenizer-type spells it */
    /* Makes what open returns; the rest of base is filled by it. */
    int (*open)(struct meg_tokenizer **out, const struct meg_tok_conf *c, struct meg_err *e);
    void (*close)(struct meg_tokenizer *t);
    struct meg_tokenizer *(*clone)(const struct meg_tokenizer *t);
    /* text is well-formed and n < INT32_MAX; out is put back by the caller on failure */
    int (*encode)(struct meg_tokenizer *t, const char *text, int64_t n, struct meg_ids *out,
                  const struct meg_id_sink *sink, struct meg_err *e);
    /* ids are inside of the vocabulary */
    void (*bytes)(const struct meg_tokenizer *t, const int32_t *ids, int64_t n, struct meg_str *out);
    /* what meg_detok_add says; d->n is counted by the caller */
    void (*decode)(struct meg_detok *d, const int32_t *ids, int64_t n, bool is_last, struct meg_str *out);
    bool has_extra_ids; /* it knows --vocab-extra-ids */
    enum meg_tok_library library;
};

/* The first member of every tokenizer. */
struct meg_tokenizer {
    const struct meg_tok_class *type;
    int64_t vocab_size;
    struct meg_tok_special_ids special_ids;
    struct meg_str description; /* Megatron's, indent 0 */
};

/* Write the first n ids to the sink and remove them. */
int meg_ids_write(struct meg_ids *ids, int64_t n, const struct meg_id_sink *sink, struct meg_err *e);

/*
 * Write all ids but the last one to sink (NULL: none) if there are more than MEG_IDS_FLUSH_COUNT.  Tokenizers call this
 * during encode; the id that remains is one of the current text.
 */
static inline int meg_ids_flush(struct meg_ids *ids, const struct meg_id_sink *sink, struct meg_err *e)
{
    return sink && ids->n > MEG_IDS_FLUSH_COUNT ? meg_ids_write(ids, ids->n - 1, sink, e) : 0;
}

/* A file that a tokenizer is read from, mapped, or appended to out with a zero byte behind it: MEG_EFORMAT
 * for one of more than MEG_TOK_MAX_FILE_BYTES, before any of it is read. */
enum { MEG_TOK_MAX_FILE_BYTES = 64 << 20 };
int meg_tok_mmap_file(struct meg_mmap *map, const char *path, struct meg_err *e);
int meg_tok_read_file(const char *path, struct meg_str *out, struct meg_err *e);

extern const struct meg_tok_class meg_tok_gpt2, meg_tok_null, meg_tok_sentencepiece, meg_tok_gpt_sentencepiece,
    meg_tok_llama2, meg_tok_bert_lower, meg_tok_bert_case, meg_tok_tiktoken, meg_tok_hf, meg_tok_hf_pretrained;

/* decode where the text is the bytes of the ids one after the other: each maximal ill-formed
 * subpart is replaced by U+FFFD. */
void meg_tok_decode_bytes(struct meg_detok *d, const int32_t *ids, int64_t n, bool is_last, struct meg_str *out);

/* Take out the blanks that English has not, as transformers' clean_up_tokenization does, or the WordPiece
 * decoder of a tokenizer.json. */
void meg_tok_clean_up(struct meg_str *text, bool is_wordpiece);

/* The description of a tokenizer: its class in Megatron, its files (an array that ends with NULL,
 * none of them: [null]) and its options as "name", "value" pairs that end with NULL. */
void meg_tok_set_description(struct meg_tokenizer *t, const char *class_name, const char *const *files,
                             const char *const *options);

/* The same as a release from 0.15 on has it. */
void meg_tok_describe_kwargs(struct meg_tokenizer *t, const struct meg_tok_conf *c,
                             const struct meg_megatron_release *release);

/* Append a list of strings as Python's str() gives it; None where it is empty. */
void meg_tok_add_python_list(struct meg_str *out, const struct meg_str_list *list);

#endif
