/*
 * vocab_write.c - write the files of a vocabulary.  vocab.json and merges.txt equal, byte for byte, the files that
 * Hugging Face's BPE model saves.  vocab.txt has the format of BERT's vocabulary file.
 */
#include <inttypes.h>
#include <stdbool.h>
#include "file/commit.h"
#include "tokenizer/bpe/byte_alphabet.h"
#include "tokenizer/bpe/train.h"

/* Append a token in the byte alphabet, as a JSON string if is_quoted. */
static void add_token(const struct meg_bpe_vocab *v, int32_t id, bool is_quoted, struct meg_str *out)
{
    struct meg_str token = meg_strtab_get(&v->tokens, id);

    if (is_quoted)
        meg_str_add(out, "\"", 1);
    for (size_t i = 0; i < token.n; i++) {
        if (is_quoted && (token.s[i] == '"' || token.s[i] == '\\'))
            meg_str_add(out, "\\", 1);
        meg_byte_alphabet_encode(out, token.s + i, 1);
    }
    if (is_quoted)
        meg_str_add(out, "\"", 1);
}

static void vocab_json(const struct meg_bpe_vocab *v, struct meg_str *out)
{
    for (int64_t id = 0; id < v->tokens.n; id++) {
        meg_str_add(out, id ? "," : "{", 1);
        add_token(v, (int32_t)id, true, out);
        meg_str_printf(out, ":%" PRId64, id);
    }
    meg_str_add(out, "}", 1);
}

static void merges_txt(const struct meg_bpe_vocab *v, struct meg_str *out)
{
    meg_str_printf(out, "#version: 0.2\n");
    for (int64_t i = 0; i < v->nmerges; i++) {
        add_token(v, v->merge[i].left, false, out);
        meg_str_add(out, " ", 1);
        add_token(v, v->merge[i].right, false, out);
        meg_str_add(out, "\n", 1);
    }
}

static void tokenizer_json(const struct meg_bpe_vocab *v, struct meg_str *out)
{
    meg_str_printf(out,
                   "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n"
                   "\"added_tokens\":[{\"id\":0,\"content\":\"%s\",\"single_word\":false,"
                   "\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}],\n"
                   "\"normalizer\":null,\n"
                   "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                   "\"trim_offsets\":true,\"use_regex\":true},\n"
                   "\"post_processor\":null,\n"
                   "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
                   "\"trim_offsets\":true,\"use_regex\":true},\n"
                   "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
                   "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
                   "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,\n\"vocab\":",
                   MEG_ENDOFTEXT);
    vocab_json(v, out);
    meg_str_printf(out, ",\n\"merges\":[");
    for (int64_t i = 0; i < v->nmerges; i++) {
        meg_str_printf(out, i ? ",[" : "[");
        add_token(v, v->merge[i].left, true, out);
        meg_str_add(out, ",", 1);
        add_token(v, v->merge[i].right, true, out);
        meg_str_add(out, "]", 1);
    }
    meg_str_printf(out, "]}}\n");
}

/*
 * Append the configuration that transformers' AutoTokenizer and Megatron-LM's HuggingFaceTokenizer require in addition
 * to tokenizer.json.
 */
static void tokenizer_config_json(const struct meg_bpe_vocab *v, struct meg_str *out)
{
    (void)v;
    meg_str_printf(out,
                   "{\n  \"add_bos_token\": false,\n  \"bos_token\": \"%s\",\n"
                   "  \"clean_up_tokenization_spaces\": false,\n  \"eos_token\": \"%s\",\n"
                   "  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n",
                   MEG_ENDOFTEXT, MEG_ENDOFTEXT);
}

static void vocab_txt(const struct meg_bpe_vocab *v, struct meg_str *out)
{
    for (int64_t id = 0; id < v->tokens.n; id++) {
        const struct meg_str token = meg_strtab_get(&v->tokens, id);

        meg_str_add(out, token.s, token.n);
        meg_str_add(out, "\n", 1);
    }
}

int meg_bpe_vocab_write(const struct meg_bpe_vocab *v, const char *dir, struct meg_err *e)
{
    static const struct vocab_file {
        const char *name;
        void (*text)(const struct meg_bpe_vocab *v, struct meg_str *out);
    } byte_level[] = { { "merges.txt", merges_txt },
                       { "tokenizer.json", tokenizer_json },
                       { "tokenizer_config.json", tokenizer_config_json },
                       { "vocab.json", vocab_json } },
      wordpiece[] = { { "vocab.txt", vocab_txt } };
    enum { N = sizeof byte_level / sizeof *byte_level };
    const struct vocab_file *files = v->is_wordpiece ? wordpiece : byte_level;
    const int nfiles = v->is_wordpiece ? 1 : N;
    struct meg_file file[N] = { { 0 } }, *set[N];
    struct meg_str text = { 0 };
    int r = 0;

    for (int i = 0; i < nfiles && r == 0; i++) {
        struct meg_str path = { 0 };

        meg_str_printf(&path, "%s/%s", dir, files[i].name);
        text.n = 0;
        files[i].text(v, &text);
        if ((r = meg_file_create(&file[i], path.s, e)) == 0)
            r = meg_file_write(&file[i], text.s, text.n, e);
        set[i] = &file[i];
        meg_str_free(&path);
    }
    if (r == 0)
        r = meg_commit_files(set, nfiles, e);
    for (int i = 0; i < nfiles; i++)
        meg_file_abandon(&file[i]);
    meg_str_free(&text);
    return r;
}
