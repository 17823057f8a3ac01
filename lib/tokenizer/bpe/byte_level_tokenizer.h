/*
 * byte_level_tokenizer.h - code shared by GPT2BPETokenizer and TikTokenizer: byte-level BPE of the text between special
 * tokens, and clones, which use the vocabulary of the original tokenizer (private to lib/tokenizer/bpe).
 */
#ifndef MEG_TOKENIZER_BPE_BYTE_LEVEL_TOKENIZER_H
#define MEG_TOKENIZER_BPE_BYTE_LEVEL_TOKENIZER_H
#include "tokenizer/bpe/byte_level.h"
#include "tokenizer/internal.h"
#include "tokenizer/special_tokens.h"

MEG_BEGIN_DECLS

struct meg_bytebpe_tokenizer {
    struct meg_tokenizer base;
    void *files; /* struct meg_gpt2_files or struct meg_tiktoken_files; borrowed by clones */
    bool is_clone;
    const struct meg_special_tokens *special_tokens; /* owned by `files`; empty: special tokens are not parsed */
    struct meg_bytebpe_encoder encoder;
};

/*
 * Allocate a tokenizer, which takes ownership of `files`.  The object `files` must own `vocab` and `special_tokens`.
 * The caller sets the member `base`.
 */
struct meg_bytebpe_tokenizer *meg_bytebpe_tokenizer_new(void *files, const struct meg_bytebpe *vocab,
                                                        const struct meg_special_tokens *special_tokens);

/* Implement functions of struct meg_tok_class.  meg_bytebpe_tokenizer_close calls free_files unless base is a clone. */
void meg_bytebpe_tokenizer_close(struct meg_tokenizer *base, void (*free_files)(void *files));
struct meg_tokenizer *meg_bytebpe_tokenizer_clone(const struct meg_tokenizer *base);
int meg_bytebpe_tokenizer_encode(struct meg_tokenizer *base, const char *text, int64_t n, struct meg_ids *out,
                                 const struct meg_id_sink *sink, struct meg_err *e);

MEG_END_DECLS

#endif
