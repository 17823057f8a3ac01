/*
 * gpt2.c - GPT2BPETokenizer: byte-level BPE (tokenizer/bpe/byte_level.h) from vocab.json and merges.txt (Radford et al.
 * 2019), with the same ids as in Megatron-LM.  The symbols of BPE are token ids.  A merge with a token that is not in
 * the vocabulary is therefore rejected.
 */
#include "tokenizer/bpe/gpt2_files.h"

/* Build the set of special tokens.  It contains only <|endoftext|>. */
static int build_special_tokens(struct meg_bytebpe_files *f, struct meg_err *e)
{
    struct meg_str eod = meg_strtab_get(&f->tokens, f->special_ids.eod);
    struct meg_trie_key key = { eod.s, (int64_t)eod.n, f->special_ids.eod };

    return meg_special_tokens_build(&f->special_tokens, &key, 1, e);
}

static int gpt2_open(struct meg_tokenizer *t, const struct meg_tok_conf *c, struct meg_err *e)
{
    struct meg_bytebpe_files *files;
    int r;

    if (!c->vocab_file || !c->merge_file)
        return meg_fail(e, MEG_EUSAGE, "GPT2BPETokenizer requires --%s", c->vocab_file ? "merge-file" : "vocab-file");
    if ((r = meg_gpt2_files_load(&files, c->vocab_file, c->merge_file, e)) < 0)
        return r;
    t->files = files;
    t->vocab_size = files->tokens.n;
    t->special_ids = files->special_ids;
    meg_tok_set_description(t, "_GPT2BPETokenizer", (const char *const[]){ c->vocab_file, c->merge_file, NULL },
                            (const char *const[]){ NULL });
    return meg_megatron_release_find(c->megatron_release)->parses_special_tokens ? build_special_tokens(files, e) : 0;
}

const struct meg_tok_class meg_tok_gpt2 = MEG_BYTEBPE_CLASS("GPT2BPETokenizer", MEG_TOK_LIB_MEGATRON, gpt2_open);
