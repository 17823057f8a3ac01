/* model_type.c - find the family of a Hugging Face model by its config.json. */
#include <string.h>
#include "ckpt/hf/internal.h"
#include "io/json.h"

static const struct ckpt_hf_family *const families[] = { &ckpt_hf_gpt2, &ckpt_hf_llama, &ckpt_hf_bert,
                                                         &ckpt_hf_megatron_bert, &ckpt_hf_t5 };
enum { NFAMILIES = sizeof families / sizeof families[0] };

static const struct ckpt_hf_family *family_of(const char *model_type, struct meg_str *known)
{
    for (int i = 0; i < NFAMILIES; i++)
        for (const char *const *name = families[i]->model_types; *name; name++) {
            if (strcmp(*name, model_type) == 0)
                return families[i];
            meg_str_printf(known, "%s%s", known->n ? ", " : "", *name);
        }
    return NULL;
}

/*
 * Return the model type of a class of transformers, such as BertForMaskedLM, or NULL.  The name of a class is that of a
 * model type, followed by a suffix.
 */
static const char *type_of_class(const char *class)
{
    static const char *const model[][2] = {
        { "GPT2", "gpt2" },   { "Llama", "llama" }, { "Mistral", "mistral" },
        { "Qwen2", "qwen2" }, { "Bert", "bert" },   { "MegatronBert", "megatron-bert" },
        { "T5", "t5" }
    };
    static const char *const suffix[] = { "For", "LMHead", "Model", "DoubleHeads" };

    for (size_t i = 0; i < sizeof model / sizeof *model; i++) {
        const size_t n = strlen(model[i][0]);

        for (size_t k = 0; strncmp(class, model[i][0], n) == 0 && k < sizeof suffix / sizeof *suffix; k++)
            if (strncmp(class + n, suffix[k], strlen(suffix[k])) == 0)
                return model[i][1];
    }
    return NULL;
}

/* Return the model type to which a member of config.json belongs, or NULL. */
static const char *type_of_members(const json_t *config)
{
    static const char *const member[][2] = { { "type_vocab_size", "bert" }, { "n_embd", "gpt2" }, { "d_kv", "t5" } };

    for (size_t i = 0; i < sizeof member / sizeof *member; i++)
        if (json_object_get(config, member[i][0]))
            return member[i][1];
    return NULL;
}

/*
 * If config.json has no model_type, as before 2020, infer it from the class of the model or, if there is none, from
 * members that only one model type has, and set it.
 */
static void infer_model_type(json_t *config)
{
    const json_t *classes = json_object_get(config, "architectures");
    const char *class = json_string_value(json_array_get(classes, 0));
    const char *type = class ? type_of_class(class) : type_of_members(config);

    if (!json_object_get(config, "model_type") && type)
        json_object_set_new(config, "model_type", json_string(type));
}

int ckpt_hf_find_family(const struct ckpt_hf_family **out, json_t *config, const char *from, struct meg_err *e)
{
    struct meg_str known = { 0 };
    const char *type = NULL;
    int r;

    infer_model_type(config);
    if ((r = meg_json_get_str(config, "model_type", MEG_JSON_REQUIRED, &type, from, e)) < 0)
        return r;
    *out = family_of(type, &known);
    if (!*out)
        r = meg_fail(e, MEG_EFORMAT, "%s: unsupported model_type %.40s; expected one of %s", from, type, known.s);
    meg_str_free(&known);
    return r;
}
