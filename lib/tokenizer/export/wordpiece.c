/*
 * wordpiece.c - convert BERT's vocab.txt.  BertNormalizer's option clean_text would remove private-use characters,
 * which Megatron-LM keeps.  A Replace step before BertNormalizer therefore removes control characters instead.
 * BertNormalizer lowercases each character separately.  For BertWordPieceLowerCase, a second Replace step therefore
 * lowercases final sigmas.
 */
#include "tokenizer/bert/vocab_file.h"
#include "tokenizer/export/internal.h"

#define CONTROL "(?![\\t\\n\\r])[\\p{Cc}\\p{Cf}\\x{FFFD}]"
#define CASED "\\p{Lu}\\p{Ll}\\p{Lt}"
#define FINAL_SIGMA                                                                                                    \
    "(?<=[" CASED "\\p{Mn}])\xCE\xA3"                                                                                  \
    "(?![\\p{Mn}\\p{Me}\\p{Cf}\\p{Lm}\\p{Sk}'.:\xC2\xB7\xE2\x80\x99]*[" CASED "])"

static json_t *normalizer(bool is_lower)
{
    json_t *steps = json_array();

    json_array_append_new(steps, meg_export_replace(CONTROL, ""));
    if (is_lower)
        json_array_append_new(steps, meg_export_replace(FINAL_SIGMA, "\xCF\x82"));
    json_array_append_new(steps, meg_export_component("BertNormalizer", "{s:b,s:b,s:b,s:b}", "clean_text", 0,
                                                      "handle_chinese_chars", 1, "strip_accents", is_lower, "lowercase",
                                                      is_lower));
    return meg_export_component("Sequence", "{s:o}", "normalizers", steps);
}

int meg_export_wordpiece(struct meg_export_builder *b, struct meg_err *e)
{
    const struct meg_bert_files *f = b->tok->files;
    struct meg_str unk;
    json_t *vocab = json_object();

    (void)e;
    for (int64_t id = 0; id < f->tokens.n; id++) {
        const struct meg_str t = meg_strtab_get(&f->tokens, id);

        json_object_setn_new_nocheck(vocab, t.s, t.n, json_integer(id));
    }
    b->unk = f->wordpiece.unk;
    unk = meg_strtab_get(&f->tokens, b->unk);
    b->model =
        meg_export_component("WordPiece", "{s:s%,s:s,s:I,s:o}", "unk_token", unk.s, unk.n, "continuing_subword_prefix",
                             "##", "max_input_chars_per_word", (json_int_t)f->wordpiece.max_chars, "vocab", vocab);
    b->normalizer = normalizer(b->tok->type == &meg_tok_bert_lower);
    b->pre_tokenizer = meg_export_component("BertPreTokenizer", "{}");
    b->decoder = meg_export_component("WordPiece", "{s:s,s:b}", "prefix", "##", "cleanup", 1);
    meg_export_add_all_special(b);
    meg_export_add_special(b, b->unk, unk.s, unk.n);
    return 0;
}
