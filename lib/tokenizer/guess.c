/* guess.c - find out which tokenizer a directory or a file contains. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include "file/commit.h"
#include "tokenizer/internal.h"

/* Files of tokenizers, by their usual names, in the order of preference. */
static const struct known {
    const char *name, *merges; /* merges: a second file, or NULL */
    const char *type;          /* NULL: the content of the file decides */
    const char *option;        /* the option that takes the file */
} known[] = {
    { "tokenizer.json", NULL, "HuggingFaceTokenizer", "tokenizer-model" },
    { "vocab.json", "merges.txt", "GPT2BPETokenizer", "vocab-file" },
    { "tokenizer.model", NULL, NULL, "tokenizer-model" },
    { "spiece.model", NULL, "GPTSentencePieceTokenizer", "tokenizer-model" },
    { "sentencepiece.bpe.model", NULL, "GPTSentencePieceTokenizer", "tokenizer-model" },
    { "vocab.txt", NULL, "BertWordPieceLowerCase", "vocab-file" },
};
enum { NKNOWN = sizeof known / sizeof *known };

/* Return the type for a file by its first byte: '[' begins JSON, and base64 a text vocabulary of tiktoken. */
static const char *type_of_content(const char *path)
{
    struct meg_mmap m = { 0 };
    const int first = meg_mmap_open(&m, path, NULL) == 0 && m.n ? m.p[0] : 0;

    meg_mmap_close(&m);
    return first == '[' || first == '+' || first == '/' || isalnum(first) ? "TikTokenizer" : "Llama2Tokenizer";
}

/* Set *k to the row of the file or of a directory's files, and return the paths of the files, or NULL. */
static char *find_known(const char *path, const struct known **k, char **merges)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const bool is_dir = meg_tok_is_dir(path);
    const int ndir = is_dir ? (int)strlen(path) : slash ? (int)(slash - path) : 1;
    const char *dir = is_dir || slash ? path : ".";

    *merges = NULL;
    for (*k = known; *k < known + NKNOWN; ++*k) {
        char *found = is_dir || strcmp(name, (*k)->name) == 0 ? meg_tok_path_in_dir(dir, ndir, (*k)->name) : NULL;

        if (found && (!(*k)->merges || (*merges = meg_tok_path_in_dir(dir, ndir, (*k)->merges))))
            return found;
        free(found);
    }
    return NULL;
}

int meg_tok_guess(struct meg_tok_conf *c, const char *path, char *owned[2], struct meg_err *e)
{
    const struct known *k;
    char *file = find_known(path, &k, &owned[1]);

    owned[0] = file;
    if (!file && meg_tok_is_dir(path))
        return meg_fail(e, MEG_ENOENT,
                        "%s: found no file of a tokenizer, expected tokenizer.json or, for example, vocab.txt", path);
    if (!c->type)
        c->type = file && k->type ? k->type : type_of_content(file ? file : path);
    if (strcmp(c->type, "GPT2BPETokenizer") == 0 || strncmp(c->type, "BertWordPiece", strlen("BertWordPiece")) == 0) {
        c->vocab_file = file ? file : path;
        c->merge_file = c->merge_file ? c->merge_file : owned[1];
    } else {
        c->tokenizer_model = file ? file : path;
    }
    return 0;
}

int meg_tok_refuse_path(const char *path, struct meg_err *e)
{
    const struct known *k;
    char *merges, *file = meg_tok_is_dir(path) ? find_known(path, &k, &merges) : NULL;
    int r;

    if (!file)
        return meg_fail(e, MEG_ENOENT,
                        "%s: not a directory with tokenizer.json; models are not downloaded by name from the Hugging "
                        "Face Hub",
                        path);
    r = meg_fail(e, MEG_ENOENT, "%s: found %s%s%s, expected tokenizer.json; use --tokenizer-type %s --%s %s%s%s", path,
                 k->name, merges ? " and " : "", merges ? k->merges : "", k->type ? k->type : type_of_content(file),
                 k->option, file, merges ? " --merge-file " : "", merges ? merges : "");
    free(file);
    free(merges);
    return r;
}
