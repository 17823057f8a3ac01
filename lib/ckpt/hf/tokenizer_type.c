/* tokenizer_type.c - the tokenizer of a Hugging Face directory: its files, and its type and options. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include "ckpt/hf/internal.h"
#include "io/json.h"
#include "tokenizer/export/export.h"

static void find_tokenizer(struct meg_ckpt *c)
{
    static const char *const other_models[] = { CKPT_HF_T5_MODEL, CKPT_HF_MEG_MODEL };

    for (int i = 0; i < MEG_NUM_TOK_FILES; i++)
        if (ckpt_path_exists(c->path, meg_tok_files[i].name))
            c->tok_file[i] = ckpt_path(c->path, meg_tok_files[i].name);
    for (int i = 0; i < 2; i++)
        if (ckpt_path_exists(c->path, other_models[i])) {
            free(c->tok_file[MEG_TOK_FILE_MODEL]);
            c->tok_file[MEG_TOK_FILE_MODEL] = ckpt_path(c->path, other_models[i]);
        }
}

/*
 * Return whether the directory has the files of a tokenizer type: those that `needs` lists or, for a type that is not
 * listed, the file of the tokenizer model.
 */
static bool has_files_of(const struct meg_ckpt *c, const char *type)
{
    static const struct {
        const char *type;
        int file, other;
    } needs[] = { { "GPT2BPETokenizer", MEG_TOK_FILE_VOCAB, MEG_TOK_FILE_MERGES },
                  { "BertWordPieceLowerCase", MEG_TOK_FILE_BERT_VOCAB, MEG_TOK_FILE_BERT_VOCAB },
                  { "BertWordPieceCase", MEG_TOK_FILE_BERT_VOCAB, MEG_TOK_FILE_BERT_VOCAB },
                  { "HuggingFaceTokenizer", MEG_TOK_FILE_JSON, MEG_TOK_FILE_JSON },
                  { "PretrainedFromHF", MEG_TOK_FILE_JSON, MEG_TOK_FILE_JSON } };

    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        if (strcmp(type, needs[i].type) == 0)
            return c->tok_file[needs[i].file] && c->tok_file[needs[i].other];
    return c->tok_file[MEG_TOK_FILE_MODEL] != NULL;
}

/*
 * Set the tokenizer options to the values that an export by meg saved in tokenizer_config.json.  If these values are
 * missing or invalid, or a file of the tokenizer is missing, set the default options and return false.
 */
static bool read_own_options(const struct meg_ckpt *c, const json_t *config, const struct meg_optgroup *group,
                             const struct meg_tok_conf *tok)
{
    struct meg_str text = { 0 };
    const json_t *line;
    size_t i;
    bool is_read;

    meg_str_add(&text, "", 0);
    json_array_foreach(json_object_get(config, MEG_TOK_EXPORT_KEY), i, line)
    {
        meg_str_printf(&text, "%s\n", json_is_string(line) ? json_string_value(line) : "");
    }
    is_read = text.n > 0 && meg_opt_apply(group, text.s, MEG_TOK_EXPORT_KEY, NULL) == 0 && tok->type &&
              has_files_of(c, tok->type);
    meg_str_free(&text);
    if (!is_read)
        meg_opt_defaults(group);
    return is_read;
}

/*
 * Return the tokenizer type for a vocab.txt.  Return NULL if tokenizer_config.json has a setting that neither type has.
 */
static const char *guess_wordpiece_type(const json_t *config)
{
    const bool is_cased = json_is_false(json_object_get(config, "do_lower_case"));
    const json_t *strips_accents = json_object_get(config, "strip_accents");

    if ((json_is_boolean(strips_accents) && json_is_true(strips_accents) == is_cased) ||
        json_is_false(json_object_get(config, "tokenize_chinese_chars")))
        return NULL;
    return is_cased ? "BertWordPieceCase" : "BertWordPieceLowerCase";
}

/*
 * Guess the tokenizer type; return NULL if the files do not determine a type.  A tokenizer.json is preferred, as in
 * transformers: vocab.json and merges.txt do not define the pre-tokenizer, and a vocab.txt defines neither added tokens
 * nor [CLS] and [SEP] around a text.  For a BERT or T5, its type is PretrainedFromHF, which has [PAD] in every release
 * of Megatron-LM.  A tokenizer.model that begins with '[' (JSON) or a base64 character is a tiktoken vocabulary;
 * SentencePiece protobufs begin with byte 0x0A.
 */
static const char *guess_tokenizer_type(const struct meg_ckpt *c, const json_t *config,
                                        const struct ckpt_hf_family *family)
{
    char *path = c->tok_file[MEG_TOK_FILE_MODEL];
    struct meg_mmap m = { 0 };
    const int first = path && meg_mmap_open(&m, path, NULL) == 0 && m.n ? m.p[0] : 0;

    meg_mmap_close(&m);
    if (c->tok_file[MEG_TOK_FILE_JSON])
        return family->is_bert || family == &ckpt_hf_t5 ? "PretrainedFromHF" : "HuggingFaceTokenizer";
    if (family->is_bert && c->tok_file[MEG_TOK_FILE_BERT_VOCAB])
        return guess_wordpiece_type(config);
    if (c->tok_file[MEG_TOK_FILE_VOCAB] && c->tok_file[MEG_TOK_FILE_MERGES])
        return "GPT2BPETokenizer";
    if (!path)
        return NULL;
    if (first == '[' || first == '+' || first == '/' || isalnum(first))
        return "TikTokenizer";
    return family == &ckpt_hf_t5 || json_is_false(json_object_get(config, "add_bos_token"))
               ? "GPTSentencePieceTokenizer"
               : "Llama2Tokenizer";
}

int ckpt_hf_set_ckpt_options(struct meg_ckpt *c, struct meg_model_conf *m, const struct ckpt_hf_family *family,
                             struct meg_err *e)
{
    struct meg_tok_conf tok = { 0 };
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, m }, { "tokenizer", meg_tok_opts, &tok }, { 0 } };
    struct meg_str options = { 0 };
    json_t *config = NULL;
    int r = 0;

    find_tokenizer(c);
    if (c->tok_file[MEG_TOK_FILE_CONFIG] &&
        (r = meg_json_load_regular(&config, c->tok_file[MEG_TOK_FILE_CONFIG], e)) < 0)
        return r;
    meg_opt_defaults(groups + 1);
    if (!read_own_options(c, config, groups + 1, &tok))
        tok.type = guess_tokenizer_type(c, config, family);
    json_decref(config);
    meg_opt_dump(groups, &options);
    c->options = options.s;
    return 0;
}
