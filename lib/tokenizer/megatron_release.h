/*
 * megatron_release.h - differences between releases of Megatron Core in token ids, blend sizes and index cache
 * descriptions.  This toolkit reproduces all three exactly.  Each struct meg_megatron_release describes the last patch
 * release of a minor version.  The user documentation is in meg(7), section MEGATRON RELEASES.
 */
#pragma once
#include <stdbool.h>

#define MEG_MEGATRON_RELEASES "0.10|0.11|0.12|0.13|0.14|0.15|0.16|0.17|0.18|0.19" /* choices of --megatron-release */

/* The keyword arguments listed in the description of a tokenizer (tokenizer/description.c). */
enum meg_tok_kwargs {
    MEG_TOK_KWARGS_NONE, /* the description lists class, files and options instead */
    MEG_TOK_KWARGS_0_15,
    MEG_TOK_KWARGS_0_16,
    MEG_TOK_KWARGS_0_17,
    MEG_TOK_KWARGS_0_18
};

struct meg_megatron_release {
    const char *name;
    /* differences in tokenizers */
    bool has_bert;                   /* the BERT types are supported, since the release splits words as meg does */
    bool has_llama2_bos;             /* Llama2Tokenizer prepends <s> to each text */
    bool has_spm_special_tokens;     /* SentencePieceTokenizer adds special tokens and parses them in text */
    bool has_hf_template;            /* HuggingFaceTokenizer adds the tokens of the post-processor's template */
    bool parses_special_tokens;      /* GPT2BPETokenizer and TikTokenizer parse special tokens in text */
    bool needs_seven_special_tokens; /* TikTokenizer requires <mask> <pad> <cls> <sep>, not only <unk> <s> </s> */
    bool null_vocab_includes_eod;    /* NullTokenizer: --vocab-size N includes eod; ids are 0 to N - 1 */
    bool has_pad;                    /* HuggingFaceTokenizer and TikTokenizer may have a padding id */
    bool unsets_shared_pad;          /* a padding id equal to the eod or eos id is unset */
    enum meg_tok_kwargs kwargs;
    /* differences in datasets */
    bool blend_sizes_with_surplus; /* meg_blend_sizes_with_surplus computes the sample counts of a blend */
    bool renormalizes;             /* the release has --renormalize-blend-weights, and blend descriptions contain it */
};

/*
 * Return the release called `name` in MEG_MEGATRON_RELEASES, or the first one, which is the default, if name is NULL.
 * Any other name is a bug.
 */
const struct meg_megatron_release *meg_megatron_release_find(const char *name);
