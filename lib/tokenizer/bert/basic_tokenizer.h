/*
 * basic_tokenizer.h - text as BERT reads it: cleaned, ideographs apart, in lower case without accents, cut
 * into words at blanks and around punctuation.  Devlin et al. 2018 (tokenization.py, BasicTokenizer),
 * which Megatron-LM keeps; Hugging Face's tokenizers do it in another order.
 */
#ifndef MEG_TOKENIZER_BERT_BASIC_TOKENIZER_H
#define MEG_TOKENIZER_BERT_BASIC_TOKENIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "unicode/codepoints.h"

/* U+0009, U+000A, U+000D and U+0020, or an ideograph: words of Megatron-LM's never span one. */
bool meg_bert_is_safe_split(int32_t cp);
/* ASCII that is no letter, digit, blank or control, and category P. */
bool meg_bert_is_punctuation(int32_t cp);

/*
 * A text on its way to words.  Starts as { 0 }, reads one text after another.
 *   is_lower  in lower case by Unicode's full mapping (a capital sigma at the end of a word is a final one),
 *             decomposed, and without category Mn
 */
struct meg_bert_basic_tokenizer {
    bool is_lower;
    const char *text, *end;
    struct meg_codepoints word, lowered;
    struct meg_str open; /* the beginning of a word */
};
void meg_bert_basic_free(struct meg_bert_basic_tokenizer *r);
void meg_bert_basic_start(struct meg_bert_basic_tokenizer *r, const char *text, int64_t n); /* well-formed UTF-8 */
/*
 * meg_bert_basic_next - set out to the next words, each ended by a zero byte (no word has one); of one of more than
 * MEG_BERT_MAX_WORD bytes, which makes more than 250 characters, the first bytes.  Returns 1, 0 when no word is
 * left; MEG_EFORMAT for more than MEG_BERT_MAX_RUN characters that have to be looked at together.
 */
enum { MEG_BERT_MAX_WORD = 1024, MEG_BERT_MAX_RUN = 4 << 20 };
int meg_bert_basic_next(struct meg_bert_basic_tokenizer *r, struct meg_str *out, struct meg_err *e);
int meg_bert_run_error(struct meg_err *e); /* what to say then */

/* What Hugging Face calls BertNormalizer, its four options. */
struct meg_bert_normalizer {
    bool clean_text, handle_chinese_chars, strip_accents, lowercase;
};
void meg_bert_normalize(const struct meg_bert_normalizer *b, const char *text, int64_t n, struct meg_str *out);

#endif
