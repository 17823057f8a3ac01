/*
 * files.h - a folder of Hugging Face's tokenizers read: tokenizer.json, of which each part is in
 * tokenizer/hf/internal.h, and what tokenizer_config.json and special_tokens_map.json say besides.
 */
#ifndef MEG_TOKENIZER_HF_FILES_H
#define MEG_TOKENIZER_HF_FILES_H

#include "base/trie.h"
#include "tokenizer/bpe/byte_level.h"
#include "tokenizer/hf/internal.h"
#include "tokenizer/safe_split.h"

/* A token that is found in text as it is spelled. */
struct meg_hf_added_token {
    struct meg_str content; /* as the model's vocabulary or this list spells it */
    int32_t id;
    bool single_word, lstrip, rstrip, normalized;
};

/* Added tokens to look for, by number. */
struct meg_hf_added_matcher {
    struct meg_trie trie;
    bool begins[256];   /* the bytes that they begin with */
    int nbegins;        /* how many those are; 0: there is no token */
    unsigned char byte; /* one of them */
};

struct meg_hf_safe_split {
    struct meg_safe_split at;
    bool is_nothing[256]; /* by itself the byte has no ids */
    int64_t most;         /* bytes between two, when normalised */
};

struct meg_hf_files {
    struct meg_hf_normalizer *norm;
    struct meg_hf_pretokenizer *pre;
    struct meg_hf_model model;
    struct meg_hf_decoder *decoder;
    bool is_bytes; /* pre and model are what bytes says */
    bool add_prefix_space;
    struct meg_bytebpe bytes;
    struct meg_hf_safe_split *seams; /* where text may be cut before it is normalised; NULL: nowhere known */
    struct meg_hf_added_token *added;
    int64_t nadded;
    int32_t max_added;                       /* the largest of their ids, -1: there is none */
    bool is_renumbered;                      /* one of them has another id than the file says */
    struct meg_strtab contents;              /* of added, under the same numbers */
    struct meg_hf_added_matcher raw, normal; /* of added: found in the text as it is, or normalised */
    struct meg_ids before, after;            /* what the post-processor puts around a text */
    bool clean_up;                           /* blanks before punctuation go when decoding */
    struct meg_tok_special_ids roles;
    int64_t vocab_size;    /* the largest id and one */
    struct meg_str *token; /* [vocab_size] spelled, borrowed; s NULL: no such id */
};

/*
 * meg_hf_files_load - read c->tokenizer_json and, where they are given, c->tokenizer_config and
 * c->special_tokens_map.  MEG_EFORMAT, with file and part, for what is no such file, or has types that
 * are not known, ids out of range or used twice, merges of tokens that are not there, or regular
 * expressions that do not compile; more than 64 MiB are not read.
 */
int meg_hf_files_load(struct meg_hf_files **out, const struct meg_tok_conf *c, struct meg_err *e);
void meg_hf_files_free(struct meg_hf_files *f); /* accepts NULL */
/* Bytes of text that are encoded at once, before and after it is normalised, 15 and 35 bytes of memory each: between
 * two seams; where none are known, between two added tokens.  Where the bytes of pieces are looked up there is only
 * a bound when it is normalised. */
enum { MEG_HF_MAX_CHUNK = 16 << 20, MEG_HF_MAX_UNSPLIT = 6 << 20, MEG_HF_MAX_BYTE_LEVEL = 64 << 20 };

/* Those of a tokenizer of this kind: a test takes the seams away. */
struct meg_hf_files *meg_hf_files_of(struct meg_tokenizer *t);

/*
 * meg_hf_safe_split_build - set f->seams, all else being there, where the parts of the file are such that what lies
 * between two seams has the ids that it has in the text; safe_split.c says which those are.
 */
int meg_hf_safe_split_build(struct meg_hf_files *f, struct meg_err *e);

#endif
