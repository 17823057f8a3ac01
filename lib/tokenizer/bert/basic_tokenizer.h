/*
 * basic_tokenizer.h - BERT's BasicTokenizer (Devlin et al. 2018, tokenization.py), which Megatron-LM uses: clean the
 * text, isolate ideographs, lowercase and strip accents, split into words at whitespace and around punctuation.
 * Hugging Face's BertNormalizer does the first steps in another order.
 */
#ifndef MEG_TOKENIZER_BERT_BASIC_TOKENIZER_H
#define MEG_TOKENIZER_BERT_BASIC_TOKENIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/decls.h"
#include "base/err.h"
#include "base/mem.h"
#include "unicode/codepoints.h"

MEG_BEGIN_DECLS

/*
 * Return true for U+0009, U+000A, U+000D, U+0020 and ideographs: text can be split next to them, since no word of
 * Megatron-LM contains one of them and another character.
 */
bool meg_bert_is_safe_split(int32_t cp);
/* Return true for category P, and ASCII that is neither letter, digit, space nor control character. */
bool meg_bert_is_punctuation(int32_t cp);

/*
 * State of splitting a text into words.  Starts as { 0 }; may read one text after another.
 *   is_lower  lowercase words by Unicode's full mapping (with the final sigma at the end of a word), decompose them
 *             and remove category Mn
 */
struct meg_bert_basic_tokenizer {
    bool is_lower;
    const char *text, *end;
    struct meg_codepoints word, lowered;
    struct meg_str partial; /* beginning of a word that may continue */
};
void meg_bert_basic_free(struct meg_bert_basic_tokenizer *r);
void meg_bert_basic_start(struct meg_bert_basic_tokenizer *r, const char *text, int64_t n); /* well-formed UTF-8 */
/*
 * meg_bert_basic_next - set out to the next words, each followed by a zero byte (words contain none)
 * A word of more than MEG_BERT_MAX_WORD bytes, which is more than 250 characters, is truncated.  Returns 1, or 0 at
 * the end of the text; MEG_EFORMAT for a run of more than MEG_BERT_MAX_RUN characters that depend on each other.
 */
enum { MEG_BERT_MAX_WORD = 1024, MEG_BERT_MAX_RUN = 4 << 20 };
int meg_bert_basic_next(struct meg_bert_basic_tokenizer *r, struct meg_str *out, struct meg_err *e);
/* Return MEG_EFORMAT with the message for such a run. */
int meg_bert_run_error(struct meg_err *e);

/* Hugging Face's BertNormalizer. */
struct meg_bert_normalizer {
    bool clean_text, handle_chinese_chars, strip_accents, lowercase;
};
/* Append text normalized to out. */
void meg_bert_normalize(const struct meg_bert_normalizer *b, const char *text, int64_t n, struct meg_str *out);

MEG_END_DECLS

#endif
