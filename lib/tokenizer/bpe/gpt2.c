/*
 * gpt2.c - GPT2BPETokenizer: byte-level BPE (tokenizer/bpe/byte_level.h) from vocab.json and merges.txt (Radford et al.
 * 2019), with the same ids as in Megatron-LM.  The symbols of BPE are token ids.  A merge with a token that is not in
 * the vocabulary is therefore rejected.
 */
#include "tokenizer/bpe/byte_level_tokenizer.h"
#include "tokenizer/bpe/gpt2_files.h"

/* Build the set of special tokens.  It contains only <|endoftext|>. */
static int build_special_tokens(struct meg_gpt2_files *f, struct meg_err *e)
{
    struct meg_trie_key key = { f->bytes.s + f->at[f->eod], f->at[f->eod + 1] - f->at[f->eod], f->eod };

    return meg_special_tokens_build(&f->special_tokens, &key, 1, e);
}

static int gpt2_open(struct meg_tokenizer **out, const struct meg_tok_conf *c, struct meg_err *e)
{
    struct meg_bytebpe_tokenizer *t;
    struct meg_gpt2_files *files;
    int r;

    if (!c->vocab_file || !c->merge_file)
        return meg_fail(e, MEG_EUSAGE, "GPT2BPETokenizer requires --%s", c->vocab_file ? "merge-file" : "vocab-file");
    if ((r = meg_gpt2_files_load(&files, c->vocab_file, c->merge_file, e)) < 0)
        return r;
    if (meg_megatron_release_find(c->megatron_release)->parses_special_tokens &&
        (r = build_special_tokens(files, e)) < 0) {
        meg_gpt2_files_free(files);
        return r;
    }
    t = meg_bytebpe_tokenizer_new(files, &files->vocab, &files->special_tokens);
    t->base.type = &meg_tok_gpt2;
    t->base.vocab_size = files->n;
    t->base.special_ids = meg_tok_no_special_ids;
    t->base.special_ids.eod = files->eod;
    meg_tok_set_description(&t->base, "_GPT2BPETokenizer", (const char *const[]){ c->vocab_file, c->merge_file, NULL },
                            (const char *const[]){ NULL });
    *out = &t->base;
    return 0;
}

static void free_files(void *files)
{
    meg_gpt2_files_free(files);
}

static void gpt2_close(struct meg_tokenizer *base)
{
    meg_bytebpe_tokenizer_close(base, free_files);
}

static void gpt2_bytes(const struct meg_tokenizer *base, const int32_t *ids, int64_t n, struct meg_str *out)
{
    const struct meg_gpt2_files *f = ((const struct meg_bytebpe_tokenizer *)base)->files;

    for (int64_t i = 0; i < n; i++)
        meg_str_add(out, f->bytes.s + f->at[ids[i]], (size_t)(f->at[ids[i] + 1] - f->at[ids[i]]));
}

const struct meg_tok_class meg_tok_gpt2 = {
    "GPT2BPETokenizer",           gpt2_open,  gpt2_close,           meg_bytebpe_tokenizer_clone,
    meg_bytebpe_tokenizer_encode, gpt2_bytes, meg_tok_decode_bytes, false,
    MEG_TOK_LIB_MEGATRON,         NULL,
};
