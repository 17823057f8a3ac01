/*
 * bert_text.h - text as BERT reads it: cleaned, ideographs apart, in lower case without accents, cut
 * into words at blanks and around punctuation.  Devlin et al. 2018 (tokenization.py, BasicTokenizer),
 * which Megatron-LM keeps; Hugging Face's tokenizers do it in another order.
 */
#ifndef MEG_TEXT_BERT_TEXT_H
#define MEG_TEXT_BERT_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"

/* U+0009, U+000A, U+000D and U+0020, or an ideograph: words of Megatron-LM's never span one. */
bool meg_bert_is_seam(int32_t cp);
/* ASCII that is no letter, digit, blank or control, and category P. */
bool meg_bert_is_punctuation(int32_t cp);

/*
 * meg_bert_words - append the words of text [n], well-formed UTF-8, to out, each ended by a zero byte
 * (no word has one).  With is_lower in lower case by Unicode's full mapping (a capital sigma at the
 * end of a word is a final one), decomposed, and without category Mn.
 */
void meg_bert_words(const char *text, int64_t n, bool is_lower, struct meg_str *out);

/* What Hugging Face calls BertNormalizer, its four options. */
struct meg_bert_norm {
    bool clean_text, handle_chinese_chars, strip_accents, lowercase;
};
void meg_bert_normalize(const struct meg_bert_norm *b, const char *text, int64_t n,
                        struct meg_str *out);

#endif
