/*
 * basic_tokenizer.h - BERT's BasicTokenizer (Devlin et al. 2018, tokenization.py), and Hugging Face's BertNormalizer.
 * The BasicTokenizer, which Megatron-LM uses, cleans the text, isolates ideographs, and splits the text into words at
 * whitespace and around punctuation.  If is_lower is set, the BasicTokenizer lowercases each word and then strips
 * accents.  The BertNormalizer does not split text, and strips accents before lowercasing.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "base/mem.h"
#include "unicode/codepoints.h"

/*
 * Return true for U+0009, U+000A, U+000D, U+0020 and ideographs.  Text can be split before and after such a character:
 * the four whitespace characters separate words, and each ideograph is a word.
 */
bool meg_bert_is_safe_split(int32_t cp);
/* Return true for Unicode category P and for ASCII symbols such as $. */
bool meg_bert_is_punctuation(int32_t cp);

/*
 * State of the word splitter.  It starts as { .is_lower = ... } and can be reused for the next text.
 *   is_lower  lowercase words by Unicode's full mapping (with the final sigma at the end of a word), decompose them
 *             and remove characters of category Mn
 */
struct meg_bert_basic_tokenizer {
    bool is_lower;
    const char *text, *end;
    struct meg_codepoints word, lowered;
    struct meg_str partial; /* beginning of a word that the next characters may continue */
};
void meg_bert_basic_free(struct meg_bert_basic_tokenizer *r);
/* Begin to split text [n], which must be well-formed UTF-8 and is borrowed. */
void meg_bert_basic_start(struct meg_bert_basic_tokenizer *r, const char *text, int64_t n);
/*
 * meg_bert_basic_next - set `out` to the next words, each followed by a zero byte (words contain none)
 * A word of more than MEG_BERT_MAX_WORD bytes may be truncated, but still has more than 250 characters.  WordPiece
 * encodes this word as unknown, since WordPiece's limit is 200 characters (vocab_file.c).  Returns 1, or 0 at the end
 * of the text.
 * A word can be split at a safe point without changing the result of lowercasing and decomposition.  Returns
 * MEG_EFORMAT if more than MEG_BERT_MAX_RUN consecutive characters of a word have no safe point between them.  This
 * limit also applies if is_lower is false.
 */
enum { MEG_BERT_MAX_WORD = 1024, MEG_BERT_MAX_RUN = 4 << 20 };
int meg_bert_basic_next(struct meg_bert_basic_tokenizer *r, struct meg_str *out, struct meg_err *e);
/* Set the error message for a run of more than MEG_BERT_MAX_RUN characters, and return MEG_EFORMAT. */
int meg_bert_run_error(struct meg_err *e);

/* The options of Hugging Face's BertNormalizer. */
struct meg_bert_normalizer {
    bool clean_text, handle_chinese_chars, strip_accents, lowercase;
};
/* Append the normalized form of text [n], which must be well-formed UTF-8, to out. */
void meg_bert_normalize(const struct meg_bert_normalizer *b, const char *text, int64_t n, struct meg_str *out);
