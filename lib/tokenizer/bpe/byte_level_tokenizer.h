/*
 * byte_level_tokenizer.h - code shared by GPT2BPETokenizer and TikTokenizer: byte-level BPE of the text between special
 * tokens (private to lib/tokenizer).
 */
#pragma once
#include "tokenizer/bpe/byte_level.h"
#include "tokenizer/internal.h"
#include "tokenizer/special_tokens.h"

/* The vocabulary of a tokenizer: what its files contain. */
struct meg_bytebpe_files {
    struct meg_strtab tokens; /* bytes of each token by id; tiktoken: indexed */
    struct meg_tok_special_ids special_ids;
    struct meg_bytebpe vocab;
    /* tokens parsed in text; empty before --megatron-release 0.15, and for the text format of tiktoken */
    struct meg_special_tokens special_tokens;
};
void meg_bytebpe_files_free(void *files); /* accepts NULL */

struct meg_bytebpe_tokenizer {
    struct meg_tokenizer base; /* files: struct meg_bytebpe_files */
    struct meg_bytebpe_encoder encoder;
};

/* Implement functions of struct meg_tok_class. */
void meg_bytebpe_tokenizer_free_buffers(struct meg_tokenizer *base);
int meg_bytebpe_tokenizer_encode(struct meg_tokenizer *base, const char *text, int64_t n, struct meg_ids *out,
                                 const struct meg_id_sink *sink, struct meg_err *e);
void meg_bytebpe_tokenizer_bytes(const struct meg_tokenizer *t, const int32_t *ids, int64_t n, struct meg_str *out);

#define MEG_BYTEBPE_CLASS(type_name, lib, open_files)                                                                  \
    {                                                                                                                  \
        .name = type_name, .origin = lib, .size = sizeof(struct meg_bytebpe_tokenizer), .open = open_files,            \
        .free_files = meg_bytebpe_files_free, .free_buffers = meg_bytebpe_tokenizer_free_buffers,                      \
        .encode = meg_bytebpe_tokenizer_encode, .bytes = meg_bytebpe_tokenizer_bytes, .decode = meg_tok_decode_bytes   \
    }
