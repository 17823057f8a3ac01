/* replaceable.c - check that --overwrite removes only files of a Hugging Face checkpoint. */
#include <dirent.h>
#include <fnmatch.h>
#include <string.h>
#include "ckpt/hf/internal.h"
#include "file/commit.h"

/* Patterns of the names of files that transformers, the model hub and meg write to Hugging Face directories. */
static const char *const known_files[] = {
    "config.json",         "generation_config.json",
    "*.safetensors",       "*.safetensors.index.json",
    "pytorch_model*.bin",  "pytorch_model.bin.index.json",
    "tokenizer*",          "vocab.*",
    "merges.txt",          "special_tokens_map.json",
    "added_tokens.json",   "chat_template*",
    "README.md",           "LICENSE*",
    "USE_POLICY.md",       ".gitattributes",
    "training_args.bin",   "preprocessor_config.json",
    CKPT_HF_MEG_MODEL,     CKPT_HF_T5_MODEL,
    MEG_LOCK_DIR_FILE "*",
};

static bool is_known(const char *name)
{
    for (size_t i = 0; i < sizeof known_files / sizeof *known_files; i++)
        if (fnmatch(known_files[i], name, 0) == 0)
            return true;
    return false;
}

int meg_ckpt_check_replaceable(const char *at, const char *dir, struct meg_err *e)
{
    struct meg_ckpt *c = NULL;
    struct dirent *f;
    int r = 0;
    DIR *d;

    if (meg_ckpt_open(&c, at, MEG_UNSET, NULL) < 0 || strcmp(meg_ckpt_path(c), at) != 0 || c->is_native)
        r = meg_fail(e, MEG_EUSAGE,
                     "--overwrite: %s does not contain a complete Hugging Face checkpoint, so it is not replaced; "
                     "choose a new directory",
                     dir);
    meg_ckpt_close(c);
    d = opendir(at);
    while (r == 0 && d && (f = readdir(d)))
        if (strcmp(f->d_name, ".") != 0 && strcmp(f->d_name, "..") != 0 && !is_known(f->d_name))
            r = meg_fail(e, MEG_EUSAGE,
                         "--overwrite: %s/%s is not a file of a Hugging Face checkpoint, but would be removed; move it "
                         "or choose a new directory",
                         dir, f->d_name);
    if (d)
        closedir(d);
    return r;
}
