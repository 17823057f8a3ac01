/* tokenizer.c - encode text to token ids and decode ids to text, through one interface for every --tokenizer-type. */
#include "tokenizer/tokenizer.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "foreign/foreign.h"
#include "io/json.h"
#include "tokenizer/internal.h"
#include "unicode/utf8.h"

const struct meg_opt meg_tok_opts[] = {
    { "tokenizer-type", 0, MEG_STR(struct meg_tok_conf, type),
      "GPT2BPETokenizer|SentencePieceTokenizer|GPTSentencePieceTokenizer|Llama2Tokenizer|"
      "BertWordPieceLowerCase|BertWordPieceCase|TikTokenizer|"
      "HuggingFaceTokenizer|PretrainedFromHF|NullTokenizer",
      NULL, "tokenizer type, as in Megatron-LM" },
    { "vocab-file", 0, MEG_STR(struct meg_tok_conf, vocab_file), "FILE", NULL,
      "GPT2BPETokenizer: vocab.json; BertWordPieceLowerCase, BertWordPieceCase: vocab.txt" },
    MEG_ALIAS("vocab", "vocab-file"),
    { "merge-file", 0, MEG_STR(struct meg_tok_conf, merge_file), "FILE", NULL,
      "GPT2BPETokenizer: merges.txt, one pair of tokens per line" },
    { "tokenizer-model", 0, MEG_STR(struct meg_tok_conf, tokenizer_model), "FILE", NULL,
      "SentencePieceTokenizer, GPTSentencePieceTokenizer, Llama2Tokenizer: SentencePiece model; TikTokenizer: "
      "vocabulary, as JSON or as lines of base64 and rank; HuggingFaceTokenizer, PretrainedFromHF: "
      "directory that contains tokenizer.json" },
    { "tokenizer-name-or-path", 0, MEG_STR(struct meg_tok_conf, name_or_path), "DIR", NULL,
      "HuggingFaceTokenizer, PretrainedFromHF: directory that contains tokenizer.json; cannot be combined with "
      "--tokenizer-model" },
    { "vocab-extra-ids", 0, MEG_I64(struct meg_tok_conf, vocab_extra_ids), "N", NULL,
      "SentencePieceTokenizer, BertWordPieceLowerCase, BertWordPieceCase: add N tokens <extra_id_0>, <extra_id_1>, "
      "..." },
    { "vocab-size", 0, MEG_I64(struct meg_tok_conf, vocab_size), "N", NULL,
      "NullTokenizer: ids are 0 to N (0 to N - 1 from --megatron-release 0.18 on), and the last one is the "
      "end-of-document id; TikTokenizer: truncate a JSON vocabulary to N ids, including the special tokens" },
    { "tiktoken-pattern", 0, MEG_STR(struct meg_tok_conf, tiktoken_pattern), "v1|v2|cl100k|o200k", NULL,
      "TikTokenizer: pre-tokenization pattern; default: v2 for a JSON vocabulary, else cl100k" },
    { "tiktoken-num-special-tokens", 0, MEG_I64(struct meg_tok_conf, tiktoken_num_special_tokens), "N", "1000",
      "TikTokenizer: reserve the first N ids of a JSON vocabulary for special tokens" },
    { "tiktoken-special-tokens", 0, MEG_LIST(struct meg_tok_conf, tiktoken_special_tokens), "TOKEN...", NULL,
      "TikTokenizer: names of the first special tokens; default for a JSON vocabulary: <unk> <s> </s>, and also <mask> "
      "<pad> <cls> <sep> from --megatron-release 0.15 on" },
    { "megatron-release", 0, MEG_STR(struct meg_tok_conf, megatron_release), MEG_MEGATRON_RELEASES, NULL,
      "Megatron Core release whose token ids, blends and index cache are reproduced; default: the release stored in "
      "the "
      "checkpoint that is loaded, else 0.10" },
    { 0 }
};

const struct meg_tok_file meg_tok_files[MEG_NUM_TOK_FILES] = {
    [MEG_TOK_FILE_VOCAB] = { "vocab.json", offsetof(struct meg_tok_conf, vocab_file) },
    [MEG_TOK_FILE_BERT_VOCAB] = { "vocab.txt", offsetof(struct meg_tok_conf, vocab_file) },
    [MEG_TOK_FILE_MERGES] = { "merges.txt", offsetof(struct meg_tok_conf, merge_file) },
    [MEG_TOK_FILE_JSON] = { "tokenizer.json", offsetof(struct meg_tok_conf, tokenizer_json) },
    [MEG_TOK_FILE_CONFIG] = { "tokenizer_config.json", offsetof(struct meg_tok_conf, tokenizer_config) },
    [MEG_TOK_FILE_SPECIAL_MAP] = { "special_tokens_map.json", offsetof(struct meg_tok_conf, special_tokens_map) },
    [MEG_TOK_FILE_ADDED] = { "added_tokens.json", offsetof(struct meg_tok_conf, added_tokens) },
    [MEG_TOK_FILE_MODEL] = { "tokenizer.model", offsetof(struct meg_tok_conf, tokenizer_model) },
};

static const struct meg_tok_class *const classes[] = {
    &meg_tok_gpt2,          &meg_tok_sentencepiece, &meg_tok_gpt_sentencepiece, &meg_tok_llama2,
    &meg_tok_bert_lower,    &meg_tok_bert_case,     &meg_tok_tiktoken,          &meg_tok_hf,
    &meg_tok_hf_pretrained, &meg_tok_null,
};

void meg_ids_reserve(struct meg_ids *ids, int64_t n)
{
    if (ids->n + n <= ids->cap)
        return;
    ids->cap = ids->n + n + ids->cap / 2;
    ids->v = meg_realloc_array(ids->v, (size_t)ids->cap, sizeof *ids->v);
}

int meg_ids_write(struct meg_ids *ids, int64_t n, const struct meg_id_sink *sink, struct meg_err *e)
{
    int r = sink->write(sink->ctx, ids->v, n, e);

    if (r < 0)
        return r;
    ids->n -= n;
    memmove(ids->v, ids->v + n, (size_t)ids->n * sizeof *ids->v);
    return 0;
}

int meg_tok_mmap_file(struct meg_mmap *map, const char *path, struct meg_err *e)
{
    int r = meg_mmap_open(map, path, e);

    if (r == 0 && map->n > MEG_TOK_MAX_FILE_BYTES) {
        r = meg_fail(e, MEG_EFORMAT, "%s: size is %zu bytes; the limit for a tokenizer file is %d", path, map->n,
                     MEG_TOK_MAX_FILE_BYTES);
        meg_mmap_close(map);
    }
    return r;
}

int meg_tok_read_file(const char *path, struct meg_str *out, struct meg_err *e)
{
    struct meg_mmap map = { 0 };
    int r = meg_tok_mmap_file(&map, path, e);

    if (r == 0)
        meg_str_add(out, map.p, map.n);
    meg_mmap_close(&map);
    return r;
}

/*
 * Select HuggingFaceTokenizer as the default of --tokenizer-type.  Return MEG_EUSAGE if --tokenizer-name-or-path is not
 * set and meg_tok_find_files finds no tokenizer.json.  The open function of HuggingFaceTokenizer checks the value of
 * --tokenizer-name-or-path.
 */
static int class_of_dir(const struct meg_tok_class **out, const struct meg_tok_conf *c, struct meg_err *e)
{
    struct meg_tok_conf found = *c;
    char *owned[MEG_TOK_MAX_FOUND];
    int r = 0;

    meg_tok_find_files(&found, owned);
    *out = &meg_tok_hf;
    if (!found.tokenizer_json && c->tokenizer_model && meg_tok_is_dir(c->tokenizer_model))
        r = meg_tok_refuse_path(c->tokenizer_model, e);
    else if (!found.tokenizer_json && !c->name_or_path)
        r = meg_fail(e, MEG_EUSAGE,
                     "--tokenizer-type is required, unless --tokenizer-model or --tokenizer-name-or-path names a "
                     "directory with tokenizer.json");
    for (int i = 0; i < MEG_TOK_MAX_FOUND; i++)
        free(owned[i]);
    return r;
}

static int class_of(const struct meg_tok_class **out, const struct meg_tok_conf *c, struct meg_err *e)
{
    if (!c->type)
        return class_of_dir(out, c, e);
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        *out = classes[i];
        if (strcmp(c->type, classes[i]->name) == 0)
            return 0;
    }
    return meg_fail(e, MEG_EUSAGE, "--tokenizer-type: '%s' is not one of %s", c->type, meg_tok_opts[0].metavar);
}

/*
 * Check that no file is in a foreign format, and that a directory in the cache of the Hub has one snapshot to read.  A
 * file of merges or tokens can contain any bytes, so this is checked before the files are read.  A directory is left to
 * the type of tokenizer.
 */
static int check_files(const struct meg_tok_conf *c, struct meg_err *e)
{
    const char *dir = c->name_or_path ? c->name_or_path : c->tokenizer_model;
    struct meg_tok_conf found = *c;
    char *owned[MEG_TOK_MAX_FOUND], *snapshot = NULL;
    int r = dir ? meg_foreign_hub_snapshot(&snapshot, dir, e) : 0;

    free(snapshot);
    meg_tok_find_files(&found, owned);
    for (int i = 0; r == 0 && i < MEG_NUM_TOK_FILES; i++) {
        const char *path = *meg_tok_file_path(&found, i);
        struct stat st;

        if (path && stat(path, &st) == 0 && S_ISREG(st.st_mode))
            r = meg_foreign_check_path(path, MEG_EXPECT_TOKENIZER, e);
    }
    for (int i = 0; i < MEG_TOK_MAX_FOUND; i++)
        free(owned[i]);
    return r;
}

int meg_tokenizer_open(struct meg_tokenizer **out, const struct meg_tok_conf *c, struct meg_err *e)
{
    const struct meg_megatron_release *release = meg_megatron_release_find(c->megatron_release);
    const struct meg_tok_class *class;
    struct meg_tok_special_ids *ids;
    struct meg_tokenizer *t;
    int r = class_of(&class, c, e);

    if (r < 0)
        return r;
    if (c->vocab_extra_ids > 0 && !class->has_extra_ids)
        return meg_fail(e, MEG_EUSAGE, "--vocab-extra-ids: %s does not support this option", class->name);
    if ((r = check_files(c, e)) < 0)
        return r;
    t = meg_new(class->size);
    t->type = class;
    ids = &t->special_ids;
    *ids = meg_tok_no_special_ids;
    if ((r = class->open(t, c, e)) < 0) {
        meg_tokenizer_close(t);
        return r;
    }
    if (release->unsets_shared_pad && (ids->pad == ids->eod || ids->pad == ids->eos))
        ids->pad = -1; /* otherwise, real eod and eos tokens would be masked as padding */
    if (release->kwargs != MEG_TOK_KWARGS_NONE)
        meg_tok_describe_kwargs(t, c, release);
    *out = t;
    return 0;
}

void meg_tokenizer_close(struct meg_tokenizer *t)
{
    if (!t)
        return;
    if (t->type->free_buffers)
        t->type->free_buffers(t);
    if (t->type->free_files && !t->is_clone)
        t->type->free_files(t->files);
    meg_str_free(&t->description);
    free(t);
}

struct meg_tokenizer *meg_tokenizer_clone(const struct meg_tokenizer *t)
{
    struct meg_tokenizer *s = meg_new(t->type->size);

    *s = *t;
    s->is_clone = true;
    s->description = (struct meg_str){ 0 };
    meg_str_add(&s->description, t->description.s, t->description.n);
    return s;
}

int meg_tokenizer_encode(struct meg_tokenizer *t, const char *text, int64_t n, struct meg_ids *out, struct meg_err *e)
{
    int64_t bad = meg_utf8_find_invalid(text, n);

    if (bad >= 0)
        return meg_fail(e, MEG_EFORMAT, "invalid UTF-8 at byte offset %" PRId64 " of the text: 0x%02x", bad,
                        (unsigned char)text[bad]);
    return meg_tokenizer_encode_to_sink(t, text, n, out, NULL, e);
}

int meg_tokenizer_encode_to_sink(struct meg_tokenizer *t, const char *text, int64_t n, struct meg_ids *out,
                                 const struct meg_id_sink *sink, struct meg_err *e)
{
    int64_t before;
    int r;

    if (n >= INT32_MAX) /* a document's length, including its eod id, is an int32 in the index */
        return meg_fail(e, MEG_EFORMAT, "the text has %" PRId64 " bytes; at most %d can be encoded at once", n,
                        INT32_MAX - 1);
    if (sink && out->n > MEG_IDS_FLUSH_COUNT && (r = meg_ids_write(out, out->n, sink, e)) < 0)
        return r;
    before = out->n;
    if ((r = t->type->encode(t, text, n, out, sink, e)) < 0 && out->n > before)
        out->n = before;
    return r;
}

void meg_tok_add_strings(const struct meg_strtab *tokens, const int32_t *ids, int64_t n, struct meg_str *out)
{
    for (int64_t i = 0; i < n; i++) {
        struct meg_str s = meg_strtab_get(tokens, ids[i]);

        meg_str_add(out, s.s, s.n);
    }
}

static int check_ids(const struct meg_tokenizer *t, const int32_t *ids, int64_t n, struct meg_err *e)
{
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= t->vocab_size)
            return meg_fail(e, MEG_EFORMAT, "token id %d is not in the vocabulary, which has ids 0 to %" PRId64, ids[i],
                            t->vocab_size - 1);
    }
    return 0;
}

int meg_tokenizer_bytes(const struct meg_tokenizer *t, const int32_t *ids, int64_t n, struct meg_str *out,
                        struct meg_err *e)
{
    int r = check_ids(t, ids, n, e);

    if (r == 0)
        t->type->bytes(t, ids, n, out);
    return r;
}

int meg_tokenizer_token(const struct meg_tokenizer *t, int32_t id, struct meg_str *out, struct meg_err *e)
{
    int r = check_ids(t, &id, 1, e);

    if (r < 0)
        return r;
    if (t->type->token)
        t->type->token(t, id, out);
    else
        t->type->bytes(t, &id, 1, out);
    return 0;
}

int meg_tokenizer_token_text(const struct meg_tokenizer *t, int32_t id, struct meg_str *out, struct meg_err *e)
{
    return t->adds_spaces ? meg_tokenizer_token(t, id, out, e) : meg_tokenizer_bytes(t, &id, 1, out, e);
}

int meg_detok_add(struct meg_detok *d, const int32_t *ids, int64_t n, bool is_last, struct meg_str *out,
                  struct meg_err *e)
{
    int r = check_ids(d->tok, ids, n, e);

    if (r < 0)
        return r;
    d->tok->type->decode(d, ids, n, is_last, out);
    d->n += n;
    return 0;
}

void meg_detok_free(struct meg_detok *d)
{
    meg_str_free(&d->pending);
}

int meg_tokenizer_decode(const struct meg_tokenizer *t, const int32_t *ids, int64_t n, struct meg_str *out,
                         struct meg_err *e)
{
    struct meg_detok d = { .tok = t };
    int r = meg_detok_add(&d, ids, n, true, out, e);

    meg_detok_free(&d);
    return r;
}

void meg_tok_decode_bytes(struct meg_detok *d, const int32_t *ids, int64_t n, bool is_last, struct meg_str *out)
{
    size_t at = 0;

    d->tok->type->bytes(d->tok, ids, n, &d->pending);
    while (at < d->pending.n) {
        int32_t cp;
        int len = meg_utf8_decode(d->pending.s + at, (int64_t)(d->pending.n - at), &cp);

        if (len < 0 && at + (size_t)-len == d->pending.n && !is_last)
            break; /* later ids may complete the character */
        meg_utf8_add_replaced(out, d->pending.s + at, abs(len));
        at += (size_t)abs(len);
    }
    meg_str_remove_prefix(&d->pending, at);
}

/* Replace all occurrences of `from` by `to`, left to right. */
static void replace(struct meg_str *s, const char *from, const char *to)
{
    size_t nfrom = strlen(from), nto = strlen(to), kept = 0;

    for (size_t i = 0; i < s->n;) {
        if (s->n - i >= nfrom && memcmp(s->s + i, from, nfrom) == 0) {
            memcpy(s->s + kept, to, nto); /* no replacement is longer than its pattern */
            kept += nto;
            i += nfrom;
        } else {
            s->s[kept++] = s->s[i++];
        }
    }
    s->n = kept;
}

void meg_tok_clean_up(struct meg_str *s, bool is_wordpiece)
{
    static const struct {
        const char *from, *to;
        bool is_wordpieces; /* applied by the WordPiece decoder only */
    } rule[] = {
        { " .", ".", false },   { " ?", "?", false },     { " !", "!", false },     { " ,", ",", false },
        { " ' ", "'", false },  { " n't", "n't", false }, { " 'm", "'m", false },   { " do not", " don't", true },
        { " 's", "'s", false }, { " 've", "'ve", false }, { " 're", "'re", false },
    };

    for (size_t i = 0; i < sizeof rule / sizeof *rule; i++) {
        if (is_wordpiece || !rule[i].is_wordpieces)
            replace(s, rule[i].from, rule[i].to);
    }
}

int64_t meg_tokenizer_vocab_size(const struct meg_tokenizer *t)
{
    return t->vocab_size;
}

int64_t meg_tokenizer_num_text_ids(const struct meg_tokenizer *t)
{
    return t->vocab_size - t->num_appended;
}

const char *meg_tokenizer_type(const struct meg_tokenizer *t)
{
    return t->type->name;
}

const struct meg_tok_special_ids meg_tok_no_special_ids = { -1, -1, -1, -1, -1, -1, -1 };

const struct meg_tok_special_ids *meg_tokenizer_special_ids(const struct meg_tokenizer *t)
{
    return &t->special_ids;
}

void meg_tok_set_description(struct meg_tokenizer *t, const char *class_name, const char *const *files,
                             const char *const *options)
{
    struct meg_str *d = &t->description;

    meg_str_printf(d, "{\n    \"class\": \"%s\",\n    \"tokenizer_path\": [\n", class_name);
    if (!*files)
        meg_str_printf(d, "        null");
    for (; *files; files++) {
        meg_str_printf(d, "        ");
        meg_json_add_ascii(d, *files);
        meg_str_printf(d, files[1] ? ",\n" : "");
    }
    meg_str_printf(d, "\n    ]");
    for (; *options; options += 2) {
        meg_str_printf(d, ",\n    \"%s\": ", options[0]);
        meg_json_add_ascii(d, options[1]);
    }
    meg_str_printf(d, "\n}");
}

const char *meg_tokenizer_description(const struct meg_tokenizer *t)
{
    return t->description.s;
}
