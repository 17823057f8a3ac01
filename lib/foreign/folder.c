/* folder.c - identify the directory of a model or checkpoint of another program by the names of its files. */
#define _GNU_SOURCE /* memmem, strverscmp */
#include <dirent.h>
#include <fnmatch.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/mem.h"
#include "foreign/internal.h"

enum { MAX_NAMES = 1 << 16 };

/* The names in a directory, without hidden ones except .metadata, in the order of strverscmp. */
struct names {
    char **v;
    size_t n;
};

static int by_version(const void *a, const void *b)
{
    return strverscmp(*(char *const *)a, *(char *const *)b);
}

/* List the names in dir; return false if dir is no directory that can be read. */
static bool list_names(struct names *x, const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *ent;

    *x = (struct names){ 0 };
    while (d && x->n < MAX_NAMES && (ent = readdir(d))) {
        if (ent->d_name[0] == '.' && strcmp(ent->d_name, ".metadata") != 0)
            continue;
        x->v = meg_realloc_array(x->v, x->n + 1, sizeof *x->v);
        x->v[x->n++] = meg_strdup(ent->d_name);
    }
    if (x->n)
        qsort(x->v, x->n, sizeof *x->v, by_version);
    return d && closedir(d) == 0;
}

static void free_names(struct names *x)
{
    for (size_t i = 0; i < x->n; i++)
        free(x->v[i]);
    free(x->v);
}

/* Return the last name that matches a shell pattern, or NULL. */
static const char *find(const struct names *x, const char *pattern)
{
    for (size_t i = x->n; i-- > 0;)
        if (fnmatch(pattern, x->v[i], 0) == 0)
            return x->v[i];
    return NULL;
}

static char *path_in(const char *dir, const char *name)
{
    struct meg_str s = { 0 };

    meg_str_printf(&s, "%s/%s", dir, name);
    return s.s;
}

static bool exists(const char *dir, const char *name)
{
    char *path = path_in(dir, name);
    const bool found = access(path, F_OK) == 0;

    free(path);
    return found;
}

/* ---- formats ---- */

struct format {
    const char *name;     /* with its article */
    const char *remedy;   /* NULL: use the directory whose name matches */
    const char *files[7]; /* shell patterns, one of which matches */
};

#define NEMO_TO_HF "export the model with NeMo to the format of Hugging Face"
#define TO_HF "convert the model to the format of Hugging Face"

/* The first row with a matching file is used. */
static const struct format formats[] = {
    { "a DeepSpeed checkpoint",
      "convert it with zero_to_fp32.py, which DeepSpeed stores beside it, or if it is of Megatron-DeepSpeed, with "
      "tools/convert_checkpoint/deepspeed_to_megatron.py",
      { "global_step*", "*zero_pp_rank_*", "mp_rank_*_model_states.pt", "layer_*-model_*-model_states.pt",
        "latest_universal", "zero_to_fp32.py" } },
    { "weights of Meta",
      TO_HF ": python -m transformers.models.llama.convert_llama_weights_to_hf --input_dir DIR --model_size SIZE "
            "--output_dir OUT",
      { "consolidated.*.pth" } },
    { "weights of Mistral",
      "download the files of transformers: config.json, model*.safetensors and tokenizer.json",
      { "consolidated*.safetensors" } },
    { "a GGUF model", "use the model in the format of Hugging Face, of which it is a conversion", { "*.gguf" } },
    { "a NeMo model", NEMO_TO_HF, { "*.nemo", "model_weights.ckpt", "model_weights", "model_config.yaml" } },
    { "an ONNX model", "use the model in the format of Hugging Face, of which it is an export", { "*.onnx", "onnx" } },
    { "weights of Flax",
      TO_HF ": from_pretrained(DIR, from_flax=True).save_pretrained(OUT) in transformers 4",
      { "flax_model*.msgpack" } },
    { "weights of TensorFlow",
      TO_HF ": from_pretrained(DIR, from_tf=True).save_pretrained(OUT) in transformers 4, or a script of the model's "
            "authors",
      { "tf_model*.h5", "saved_model.pb", "*.ckpt*.index", "ckpt-*.index", "model.ckpt*" } },
    { "an Orbax checkpoint of JAX",
      TO_HF,
      { "_CHECKPOINT_METADATA", "_METADATA", "_sharding", "manifest.ocdbt", "*.orbax-checkpoint-tmp-*" } },
    { "a Keras model", TO_HF, { "*.keras", "*.h5", "*.hdf5" } },
    { "a model of OpenVINO",
      "use the model in the format of Hugging Face, of which it is an export",
      { "openvino_*.xml" } },
    { "weights of LitGPT", TO_HF ": litgpt convert_from_litgpt", { "lit_model.pth" } },
    { "a Diffusers pipeline", "use a language model", { "model_index.json" } },
    { "an output directory of Trainer", NULL, { "checkpoint-[0-9]*" } },
    { "a cache of the Hugging Face Hub", NULL, { "models--*--*" } },
};

/* A directory of NeMo 2 contains both `context` and `weights`. */
static const struct format nemo2 = { "a NeMo model", NEMO_TO_HF, { NULL } };

/* A Hugging Face directory may contain a metadata.json in addition to its config.json. */
static bool is_distributed(const struct names *x)
{
    return find(x, ".metadata") || find(x, "common.pt") || find(x, "*.distcp") ||
           (find(x, "metadata.json") && !find(x, "config.json"));
}

bool meg_foreign_is_distributed(const char *dir)
{
    struct names x;
    const bool is = list_names(&x, dir) && is_distributed(&x);

    free_names(&x);
    return is;
}

static int refuse(const char *dir, const char *name, const char *file, const char *remedy, struct meg_err *e)
{
    return meg_fail(e, MEG_EFORMAT,
                    "%s: found %s (%.60s), expected a checkpoint of meg, Megatron-LM or Hugging Face; %s", dir, name,
                    file, remedy);
}

static int refuse_distributed(const char *dir, const struct names *x, struct meg_err *e)
{
    char *path = path_in(dir, "metadata.json"), text[1024];
    const size_t n = foreign_read(path, text, sizeof text);
    const bool is_zarr = memmem(text, n, "zarr", 4) != NULL;

    free(path);
    if (is_zarr)
        return refuse(dir, "a distributed checkpoint of Megatron", "zarr",
                      "run Megatron once with the options of its run plus --ckpt-convert-format torch "
                      "--ckpt-convert-save DIR, then load DIR/torch",
                      e);
    return refuse(
        dir, "a distributed checkpoint without .metadata",
        find(x, "*.distcp")    ? "*.distcp"
        : find(x, "common.pt") ? "common.pt"
                               : "metadata.json",
        "the save was interrupted or the copy is incomplete: load another iteration with --ckpt-step, or copy "
        "the checkpoint again",
        e);
}

static int refuse_adapter(const char *dir, const char *file, struct meg_err *e)
{
    char *path = path_in(dir, "adapter_config.json"), text[1 << 14];
    json_t *conf = json_loadb(text, foreign_read(path, text, sizeof text), 0, NULL);
    const char *base = json_string_value(json_object_get(conf, "base_model_name_or_path"));
    struct meg_str remedy = { 0 };
    int r;

    meg_str_printf(&remedy,
                   "merge it into %.80s with merge_and_unload() of peft, and use the result of save_pretrained()",
                   base ? base : "its base model");
    r = refuse(dir, "an adapter of PEFT", file, remedy.s, e);
    meg_str_free(&remedy);
    json_decref(conf);
    free(path);
    return r;
}

static int refuse_format(const char *dir, const struct format *f, const char *file, struct meg_err *e)
{
    struct meg_str remedy = { 0 };
    int r;

    meg_str_printf(&remedy, "use %s/%s", dir, file);
    r = refuse(dir, f->name, file, f->remedy ? f->remedy : remedy.s, e);
    meg_str_free(&remedy);
    return r;
}

/* Refuse weights that have the names of a known format, but no config.json. */
static int check_weights(const char *dir, const struct names *x, struct meg_err *e)
{
    static const char *const weights[] = { "*.safetensors", "pytorch_model*.bin", "*.pth", "*.ckpt" };

    for (size_t i = 0; i < sizeof weights / sizeof *weights && !find(x, "config.json"); i++) {
        const char *file = find(x, weights[i]);

        if (file)
            return refuse(dir, "weights without config.json", file, "add the config.json of the model", e);
    }
    return 0;
}

static int check_names(const char *dir, const struct names *x, struct meg_err *e)
{
    const char *adapter = find(x, "adapter_config.json");

    if (adapter || (adapter = find(x, "adapter_model.*")))
        return refuse_adapter(dir, adapter, e);
    if (is_distributed(x))
        return refuse_distributed(dir, x, e);
    if (find(x, "context") && find(x, "weights"))
        return refuse_format(dir, &nemo2, "context", e);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        for (const char *const *pattern = formats[i].files; *pattern; pattern++) {
            const char *file = find(x, *pattern);

            if (file)
                return refuse_format(dir, &formats[i], file, e);
        }
    return check_weights(dir, x, e);
}

int meg_foreign_check_folder(const char *dir, struct meg_err *e)
{
    struct names x;
    const int r = list_names(&x, dir) ? check_names(dir, &x, e) : 0;

    free_names(&x);
    return r;
}

/* ---- the cache of the Hub ---- */

/* Return the name of the commit in refs/main of the model's directory, or NULL; the caller frees it. */
static char *main_commit(const char *model)
{
    char *path = path_in(model, "refs/main"), commit[100];
    size_t n = foreign_read(path, commit, sizeof commit - 1);

    free(path);
    while (n > 0 && (commit[n - 1] == '\n' || commit[n - 1] == ' '))
        n--;
    commit[n] = 0;
    return n && !strchr(commit, '/') ? meg_strdup(commit) : NULL;
}

static int refuse_snapshots(const char *snapshots, const struct names *x, struct meg_err *e)
{
    struct meg_str list = { 0 };
    int r;

    for (size_t i = 0; i < x->n && i < 3; i++)
        meg_str_printf(&list, "%s%.40s", i ? ", " : "", x->v[i]);
    r = x->n ? meg_fail(e, MEG_EFORMAT,
                        "%s: found %zu snapshots of the Hugging Face Hub, expected one; use the directory of one of "
                        "them: %s%s",
                        snapshots, x->n, list.s, x->n > 3 ? ", ..." : "")
             : meg_fail(e, MEG_EFORMAT,
                        "%s: found an empty directory, expected a snapshot of the Hugging Face Hub; download the model",
                        snapshots);
    meg_str_free(&list);
    return r;
}

/* Choose a snapshot of `model`, a directory in the cache. */
static int choose_snapshot(char **out, const char *model, struct meg_err *e)
{
    char *snapshots = path_in(model, "snapshots"), *commit = main_commit(model);
    const char *chosen = NULL;
    struct names x;
    int r = 0;

    list_names(&x, snapshots);
    if (x.n == 1)
        chosen = x.v[0];
    else if (commit && exists(snapshots, commit))
        chosen = commit;
    if (chosen)
        *out = path_in(snapshots, chosen);
    else
        r = refuse_snapshots(snapshots, &x, e);
    free_names(&x);
    free(commit);
    free(snapshots);
    return r;
}

int meg_foreign_hub_snapshot(char **out, const char *path, struct meg_err *e)
{
    char *parent = path_in(path, "..");
    size_t n = strlen(path);
    int r = 0;

    while (n > 1 && path[n - 1] == '/')
        n--;
    *out = NULL;
    if (exists(path, "snapshots") && (exists(path, "refs") || exists(path, "blobs")))
        r = choose_snapshot(out, path, e);
    else if (n >= 9 && strncmp(path + n - 9, "snapshots", 9) == 0 &&
             (exists(parent, "refs") || exists(parent, "blobs")))
        r = choose_snapshot(out, parent, e);
    free(parent);
    return r;
}
