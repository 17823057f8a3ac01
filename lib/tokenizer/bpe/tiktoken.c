/*
 * tiktoken.c - Megatron-LM's TikTokenizer.  It reads tiktoken's files, for example Llama 3's tokenizer.model.  The
 * files contain ranked tokens instead of ranked merges.  Two adjacent tokens merge if their concatenation is a token.
 * The concatenation of lowest rank is merged first.  This equals BPE with one merge for each split of a token into two
 * tokens.  Each of these merges has the rank of the token that is split.
 */
#include <inttypes.h>
#include <stdio.h>
#include "tokenizer/bpe/tiktoken_files.h"

static void describe(struct meg_tokenizer *t, const struct meg_tok_conf *c, enum meg_pretok pretok)
{
    struct meg_str special = { 0 };
    char size[32], nspecial[32];

    snprintf(size, sizeof size, "%" PRId64, t->vocab_size);
    snprintf(nspecial, sizeof nspecial, "%" PRId64, c->tiktoken_num_special_tokens);
    meg_tok_add_python_list(&special, &c->tiktoken_special_tokens);
    meg_tok_set_description(t, "CustomTikTokenizer", (const char *const[]){ c->tokenizer_model, NULL },
                            (const char *const[]){ "pattern", meg_pretok_pattern[pretok], "vocab_size", size,
                                                   "num_special_tokens", nspecial, "special_tokens", special.s, NULL });
    meg_str_free(&special);
}

static int tiktoken_open(struct meg_tokenizer *t, const struct meg_tok_conf *c, struct meg_err *e)
{
    struct meg_bytebpe_files *files;
    int r;

    if (!c->tokenizer_model)
        return meg_fail(e, MEG_EUSAGE, "TikTokenizer requires --tokenizer-model");
    if ((r = meg_tiktoken_files_load(&files, c, e)) < 0)
        return r;
    t->files = files;
    t->vocab_size = files->tokens.n;
    t->special_ids = files->special_ids;
    describe(t, c, files->vocab.pretok);
    return 0;
}

const struct meg_tok_class meg_tok_tiktoken = MEG_BYTEBPE_CLASS("TikTokenizer", MEG_TOK_LIB_TIKTOKEN, tiktoken_open);
