/*
 * megatron_release.h - what the releases of Megatron-LM (core) do differently, where this toolkit promises the
 * same bytes: token ids, sizes of blends, descriptions of the index cache.  meg(7), section MEGATRON
 * RELEASES, tells it to users.  A row says what the last patch release of that number does.
 */
#ifndef MEG_TOKENIZER_MEGATRON_RELEASE_H
#define MEG_TOKENIZER_MEGATRON_RELEASE_H

#include <stdbool.h>

#define MEG_MEGATRON_RELEASES "0.10|0.11|0.12|0.13|0.14|0.15|0.16|0.17|0.18|0.19" /* as an option lists them */

/* The arguments that a description of a tokenizer lists (tokenizer/description.c). */
enum meg_tok_kwargs {
    MEG_TOK_KWARGS_NONE, /* its class, files and options instead */
    MEG_TOK_KWARGS_0_15,
    MEG_TOK_KWARGS_0_16,
    MEG_TOK_KWARGS_0_17,
    MEG_TOK_KWARGS_0_18
};

struct meg_megatron_release {
    const char *name;
    /* tokenizers */
    bool has_bert;                   /* the BERT types add [BOS], [EOS] and extra ids to vocab.txt */
    bool has_llama2_bos;             /* Llama2Tokenizer begins each text with <s> */
    bool has_spm_special_tokens;     /* SentencePieceTokenizer adds special tokens and finds them in text */
    bool has_hf_template;            /* HuggingFaceTokenizer puts the post-processor's tokens around a text */
    bool parses_special_tokens;      /* GPT2BPETokenizer and TikTokenizer find special tokens in text */
    bool needs_seven_special_tokens; /* TikTokenizer needs <mask> <pad> <cls> <sep> behind <unk> <s> </s> */
    bool null_vocab_includes_eod;    /* NullTokenizer of size n: n ids, the last one ends a document; else n + 1 */
    bool has_pad;                    /* every type has the padding id of its files; else SentencePiece's two and BERT */
    bool unsets_shared_pad;          /* an id that also ends a document or a text is not padding */
    enum meg_tok_kwargs kwargs;
    /* data */
    bool blend_sizes_with_surplus; /* datasets of a blend are built larger than the blend asks of them */
    bool renormalizes;             /* --renormalize-blend-weights, and its value in descriptions of blends */
};

/* Return the row of a name that MEG_MEGATRON_RELEASES lists; of NULL the default, which is the first. */
const struct meg_megatron_release *meg_megatron_release_find(const char *name);

#endif
